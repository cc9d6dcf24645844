"""The two autograd functions that rules are made of: their value is PyTorch's own, their Jacobian is stated.

``compute`` is called inside ``forward``: its result is nobody's view, so the model may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._torch_internals import base_of


class Scale(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := slope(x, y)``; given dimensions ``centred``, ``dy/d(x - E[x])``, E over these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Any, slope: Any, centred: Any = ()) -> Tensor:
        ctx.dtype, ctx.centred, y = x.dtype, centred, compute()
        ctx.save_for_backward(slope(x, y))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        back = grad * ctx.saved_tensors[0]
        return (back - back.mean(ctx.centred, keepdim=True) if ctx.centred else back).to(ctx.dtype), None, None, None


class Gate(torch.autograd.Function):
    """``y = compute()``, a constant: no gradient passes. The graph still shows what it was made of (see ``gates.py``)."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *made_of: Tensor) -> Tensor:
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        return (None,) * len(ctx.needs_input_grad)


def scale_gradient(y: Tensor, factor: float, *, shared: bool = False) -> Tensor:
    """``y``, as a new tensor; the gradient that arrives there is multiplied by ``factor`` before it goes on to ``y``.

    ``shared``: others use ``y`` too. If not, a hook on it does; it has half the cost of an autograd function.
    """
    if factor == 1 or not y.requires_grad:
        return y
    source = y[...] if shared else base_of(y)  # y[...]: the same elements in a new tensor, and the graph says so
    source.register_hook(lambda grad: None if grad is None else grad * factor)  # None: behind a constant gate
    return source if shared else y[...]


def ratio(x: Tensor, y: Tensor, at_zero: float = 0.0) -> Tensor:
    """The slope ``y / x``, and ``at_zero`` where x is 0."""
    return torch.div(y, x).nan_to_num_(nan=at_zero, posinf=at_zero, neginf=at_zero)  # a y that rounds is not quite 0
