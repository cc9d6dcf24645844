"""The private parts of PyTorch that lrpx uses, each with the public behaviour it stands for. Nothing else imports any."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

SET_GRAD_ENABLED: Callable[[bool], None] = torch._C._set_grad_enabled
"""What ``torch.no_grad()`` and its like call, as a ``TorchFunctionMode`` sees it."""


def no_function_modes() -> AbstractContextManager[Any]:
    """No ``TorchFunctionMode`` and no tensor subclass sees what runs inside."""
    return torch._C.DisableTorchFunction()


def no_dispatch_modes() -> AbstractContextManager[Any]:
    """No ``TorchDispatchMode`` sees what runs inside: tensors have numbers there, also while a pass is traced."""
    return _disable_current_modes()


def function_modes() -> list[TorchFunctionMode]:
    """The modes that are active in this thread, the innermost last."""
    return _get_current_function_mode_stack()


def saved_tensor_hooks() -> Any:
    """The innermost ``torch.autograd.graph.saved_tensors_hooks``; ``None`` if there are none, or before torch 2.7."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True)


def has_hidden_gradient(tensor: Tensor) -> bool:
    """Whether a tensor inside ``torch.vmap`` and its like carries gradient outside of it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def inside_transform() -> bool:
    """Whether ``torch.vmap`` or its like is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@cache
def seen_from_inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function of ``torch.nn.functional`` as a copy that does not hand itself to an active ``TorchFunctionMode``.

    Such a function asks ``has_torch_function`` first; in the copy the answer is no, so the mode sees the functions it calls.
    """
    code: Any = getattr(function, "__wrapped__", function)
    return types.FunctionType(
        code.__code__,
        {**code.__globals__, "has_torch_function": lambda _: False},
        code.__name__,
        code.__defaults__,
        code.__closure__,
    )
