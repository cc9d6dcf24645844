"""The two autograd functions that rules are made of: their value is PyTorch's own, their Jacobian is stated.

``compute`` is called inside ``forward``: its result is nobody's view, so the model may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Slope = Callable[[Tensor, Tensor], Tensor]  # of x and y


class Scale(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := slope(x, y)``, a tensor that broadcasts with ``x``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, compute: Callable[[], Tensor], slope: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        y = compute()
        ctx.dtype = x.dtype
        ctx.save_for_backward(slope(x, y))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return (grad * ctx.saved_tensors[0]).to(ctx.dtype), None, None


class Gate(torch.autograd.Function):
    """``y = compute()``, a constant: no gradient passes. The graph still shows what it was made of (see ``gates.py``)."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *made_of: Tensor) -> Tensor:
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        return (None,) * len(ctx.needs_input_grad)


def scale_gradient(y: Tensor, factor: float) -> Tensor:
    """``y`` itself; the gradient that arrives at it is multiplied by ``factor`` before it goes on."""
    if (
        factor != 1 and y.requires_grad
    ):  # a hook has half the cost of an autograd function; behind a gate it is given None
        y.register_hook(lambda gradient: None if gradient is None else gradient * factor)
    return y


# The types of the nodes that these functions leave in the autograd graph.
OURS: tuple[type, ...] = (Scale._backward_cls, Gate._backward_cls)  # type: ignore[attr-defined]
