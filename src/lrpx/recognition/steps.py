"""Loops over tokens, whose backward pass would take time that grows with the square of the length.

A recurrence reads one token of a tensor after the other, ``x[:, :, t]``. The gradient of each such read is a tensor of the size
of ``x``, zero but for one token. Taken apart once, ``x.unbind(2)[t]`` is the same view, and the gradients are put together once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._torch_internals import no_function_modes
from .operations import operation_of

_ALL = slice(None)


class Steps(TorchFunctionMode):
    """Reads single tokens of tensors that carry gradient from their parts."""

    def __init__(self) -> None:
        super().__init__()
        self._apart: dict[tuple[int, int], tuple[Tensor, int, tuple[Tensor, ...]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part = self.step(args) if operation_of(func).name == "getitem" else None
        return func(*args, **(kwargs or {})) if part is None else part

    def step(self, args: Sequence[Any]) -> Tensor | None:
        """What ``x[:, t]`` and its like return; ``None``: this is none, or ``x`` was changed in place meanwhile."""
        tensor, index = args
        places = [place for place, i in enumerate(index) if type(i) is int] if type(index) is tuple else []
        if len(places) != 1 or index.count(_ALL) != len(index) - 1:
            return None
        with no_function_modes():  # which would see each look at a tensor
            if not (tensor.requires_grad and torch.is_grad_enabled()):
                return None
            dim = places[0]
            key = id(tensor), dim
            if key not in self._apart:
                self._apart[key] = tensor, tensor._version, tensor.unbind(dim)
            _, version, parts = self._apart[key]
            return parts[index[dim]] if version == tensor._version else None
