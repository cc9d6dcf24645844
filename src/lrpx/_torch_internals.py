"""The private parts of PyTorch that lrpx relies on: each with the public behaviour it stands for, and what happens without it.

A part that is missing in some version of PyTorch raises ``AttributeError`` or ``ImportError`` where it is used, unless its
docstring says otherwise.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

SET_GRAD_ENABLED: Callable[[bool], None] = torch._C._set_grad_enabled
"""What ``torch.no_grad()`` and its like call, as a ``TorchFunctionMode`` sees it."""


def _batch_norm(
    mode: Any, _: Any, function: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor:
    """``batch_norm`` with the right gradient. On a CPU, PyTorch's is wrong for a single item whose gradient is laid out with
    the channels last, as it is behind ``flatten(2).transpose(1, 2)``. Rules know the one of fixed statistics, which is linear.
    """
    output = function(*args, **kwargs)
    if output.requires_grad and (args[5] if len(args) > 5 else kwargs.get("training", False)):
        mode.unknown["batch_norm with statistics of the batch"] += bool(mode.rules)
    if output.requires_grad and len(output) == 1:
        output.register_hook(Tensor.contiguous)
    return output


CORRECTED = {nn.functional.batch_norm: _batch_norm}
"""Functions of PyTorch that have a wrong gradient -> what is called instead, as ``propagate.Handler``."""


def base_of(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, or itself. What changes a view in place changes the history of that one."""
    return tensor if tensor._base is None else tensor._base


def no_function_modes() -> AbstractContextManager[Any]:
    """No ``TorchFunctionMode`` and no tensor subclass sees what runs inside."""
    return torch._C.DisableTorchFunction()


def no_dispatch_modes() -> AbstractContextManager[Any]:
    """No ``TorchDispatchMode`` sees what runs inside: tensors have numbers there, also while a pass is traced."""
    return _disable_current_modes()


@cache
def rms_norm_epsilon(dtype: torch.dtype) -> float:
    """What ``rms_norm`` adds where no epsilon is given. In bfloat16 and float16 older versions of PyTorch take the one of
    that dtype, newer ones that of float32, in which they compute: one number, normalised, tells.
    """
    with no_function_modes(), no_dispatch_modes(), torch.no_grad():
        one = nn.functional.rms_norm(torch.full((1,), 1e-3, dtype=dtype, device="cpu"), (1,))
        return torch.finfo(torch.promote_types(dtype, torch.float32) if one > 0.5 else dtype).eps


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


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """What ``module.register_forward_hook`` and its three relatives have registered. PyTorch has no public list of them."""
    own = module.__dict__
    return [hook for kind in HOOKS if own[kind] for hook in own[kind].values()]


HOOK_NODE = "BackwardHookFunctionBackward"
"""The autograd node by which a full backward hook of a module sees the gradient."""


def backward_hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """What ``register_full_backward_hook`` and ``register_full_backward_pre_hook`` have registered."""
    return [
        hook for kind in ("_backward_hooks", "_backward_pre_hooks") for hook in (module.__dict__[kind] or {}).values()
    ]


def global_hooks() -> list[Callable[..., Any]]:
    """What ``torch.nn.modules.module.register_module_forward_hook`` and its relatives have registered, for all modules."""
    return [hook for kind in HOOKS for hook in getattr(torch_module, f"_global{kind}").values()]


def active_modes() -> list[str]:
    """The names of the ``TorchFunctionMode`` and ``TorchDispatchMode`` blocks that this thread is in.

    ``with torch.device(...)`` is a mode too; it says where tensors are made, not what is computed, and is left out.
    """
    names = [type(mode).__name__ for mode in function_modes()]
    names += ["TorchDispatchMode"] * torch._C._len_torch_dispatch_stack()
    return [name for name in names if name != "DeviceContext"]


# Tracing and compiling. ``torch.compile`` does both for a module; lrpx traces forward and backward pass together, under its own
# gradients, which ``make_fx`` can and ``torch.compile`` cannot.


def tensors_without_numbers() -> tuple[Any, Any]:
    """A mode in which tensors have shapes but no numbers, and what it knows about sizes that are symbols."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment), environment


def with_symbols(fake: Any, tensor: Tensor) -> Tensor:
    """``tensor`` without numbers; its sizes are symbols, equal ones the same symbol (but 0 and 1 stay numbers)."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * tensor.ndim)
    return fake.from_tensor(tensor, symbolic_context=context)


def traced_graph(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """``make_fx``, which also accepts tensors with numbers that ``function`` holds: they become constants of the graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)


def tracer() -> Any:
    """The tracer of the ``make_fx`` that runs: ``graph`` so far, and in ``tensor_tracker`` which node a tensor stands for."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode: Any = get_proxy_mode()
    return mode.tracer


def overwrites(node: fx.Node) -> bool:
    """Whether an operation of a trace writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def fresh_result(node: fx.Node) -> bool:
    """Whether an operation of a trace returns new tensors, no views of its arguments."""
    return not any(returned.alias_info for returned in node.target._schema.returns)  # type: ignore[union-attr]


def not_in_place(node: fx.Node) -> Callable[..., Tensor] | None:
    """The twin of an in-place operation (``aten.add_.Tensor``) that returns a new tensor (``aten.add.Tensor``), if any."""
    target: Any = node.target
    name = target._schema.name.removeprefix("aten::")
    twin = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return None if twin is None else getattr(twin, target._overloadname)


def fused(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """``torch.compile(graph, fullgraph=True, dynamic=True)`` without Dynamo, which is what happens where it is missing.

    The graph is one of basic operations already, with its sizes as symbols, so TorchInductor can take it as it is. Through
    Dynamo each call costs 0.13 ms more (34 calls per pass with 16 blocks: 11.0 ms instead of 6.5 on a CPU, one short text),
    and the sizes of the weights become symbols too.
    """
    compile = getattr(getattr(torch, "_inductor", None), "compile", None)
    if compile is None:
        return torch.compile(graph, fullgraph=True, dynamic=True)
    return compile(graph, list(examples))
