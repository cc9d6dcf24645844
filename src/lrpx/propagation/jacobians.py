"""Autograd functions whose value is PyTorch's own and whose Jacobian is stated: the pieces that rules are made of.

Written with ``ctx`` in ``forward``: the newer ``setup_context`` costs more than the operation on short texts. ``compute`` is
called inside ``forward``, so that its result is nobody's view and may be changed in place by the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Compute = Callable[[], Tensor]


class Slope(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := y / x`` and 0 where ``x == 0``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute) -> Tensor:
        y = compute()
        ctx.dtype = x.dtype
        # 0 / 0, and whatever else has no slope, passes nothing on. In place: saves a kernel and a temporary tensor.
        ctx.save_for_backward(torch.div(y, x).nan_to_num_(nan=0, posinf=0, neginf=0))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return (grad * slope).to(ctx.dtype), None


class Scale(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := slope``, a tensor that broadcasts with ``x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute, slope: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        ctx.save_for_backward(slope)
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return (grad * slope).to(ctx.dtype), None, None


class Gate(torch.autograd.Function):
    """``y = compute()``, a constant: no gradient passes. The graph still shows what it was made of (see ``gates.py``)."""

    @staticmethod
    def forward(ctx: Any, compute: Compute, *made_of: Tensor) -> Tensor:
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        return (None,) * len(ctx.needs_input_grad)


class LayerNorm(torch.autograd.Function):
    """``y = compute()``, with the Jacobian of ``weight * (x - mean(x)) / [std]`` over the last ``n_dims`` dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute, weight: Tensor | None, n_dims: int, eps: float) -> Tensor:
        ctx.dtype, ctx.dims = x.dtype, tuple(range(-n_dims, 0))
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance = wide.var(ctx.dims, correction=0, keepdim=True)
        ctx.save_for_backward(torch.rsqrt(variance + eps), weight)
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        inverse_std, weight = ctx.saved_tensors
        grad = (grad if weight is None else grad * weight) * inverse_std
        return (grad - grad.mean(ctx.dims, keepdim=True)).to(ctx.dtype), None, None, None, None


def scale_gradient(y: Tensor, factor: float) -> Tensor:
    """``y`` itself; the gradient that arrives at it is multiplied by ``factor`` before it goes on."""
    if factor != 1 and y.requires_grad:
        # Half the cost of an autograd function. The gradient is None behind a constant gate.
        y.register_hook(lambda gradient: None if gradient is None else gradient * factor)
    return y


OURS: tuple[type, ...] = tuple(function._backward_cls for function in (Slope, Scale, Gate, LayerNorm))  # type: ignore[attr-defined]
"""The types of the nodes that these functions leave in the autograd graph."""
