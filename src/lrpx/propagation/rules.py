r"""Every propagation rule: an operation whose value is PyTorch's own, bit for bit, but whose Jacobian is another.

Relevance is value times gradient, :math:`R = x \, \partial x` (Arras et al. 2025, section LRPx). So a rule never touches
relevance: it changes the local Jacobian, and an ordinary backward pass does the rest. All rules have one signature,

    ``rule(function, args, kwargs) -> output``

where ``function`` is what the model called, and at least one tensor in ``args`` or ``kwargs`` carries gradient; calling it
gives PyTorch's own gradient, and inside ``torch.no_grad()`` the value alone. Which rule goes to which operation is plain data,
see ``rulesets.py``. An operation without a rule keeps its gradient, which for linear operations is LRP-epsilon with epsilon
= 0 (App. C.1).

"App." is the appendix of Arras et al. 2025, "A Close Look at Decomposition-based XAI-Methods for Transformer Language
Models"; "AttnLRP" is Achtibat et al. 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .marks import is_gate

Function = Callable[..., Any]
Rule = Callable[[Function, Sequence[Any], Mapping[str, Any]], Any]


def identity(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    r"""Element-wise activation ``y = f(x)``: all relevance of ``y`` goes to ``x`` (App. C.3; AttnLRP Eq. 9).

    .. math:: x_i \, \partial x_i = y_i \, \partial y_i \quad\Longrightarrow\quad \partial y_i / \partial x_i := y_i / x_i

    A unit that is exactly zero carries no relevance, hence slope 0 there.
    """
    x = args[0] if args else kwargs["input"]
    return _Slope.apply(x, lambda: function(*args, **kwargs))


def power(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """``x ** n`` with n > 0: the identity rule's slope ``x ** (n - 1)`` is 1/n of the gradient, which needs no division."""
    x, exponent = _bind(("input", "exponent"), args, kwargs, exponent=2)
    exponent = exponent.item() if isinstance(exponent, Tensor) else exponent
    rest = {k: v for k, v in kwargs.items() if k != "input"}
    return function(scale_gradient(x, 1 / exponent), *args[1:], **rest)


def constant(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result is a constant: nothing flows back (App. C.4 for softmax as a gate, App. C.5 for a normaliser)."""
    with torch.no_grad():
        return function(*args, **kwargs)


def constant_denominator(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``a / b``: ``b`` normalises and is a constant (App. C.5)."""
    a, b, *rest = args
    return (
        function(_detached(a), b, *rest, **kwargs)
        if _is_reversed(function)
        else function(a, _detached(b), *rest, **kwargs)
    )


def layer_norm(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    r"""LayerNorm: the standard deviation is a constant, the mean subtraction stays (App. C.5).

    .. math:: y = \gamma \, (x - E[x]) / [\sigma]_{const} + \beta
    """
    x, shape, weight, _, eps = _bind(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs, eps=1e-5)
    return _LayerNorm.apply(x, lambda: function(*args, **kwargs), weight, len(shape), eps)


def rms_norm(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    r"""RMSNorm: the root mean square is a constant (App. C.5), so the slope is ``y / x``."""
    x, shape, weight, eps = _bind(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    with torch.no_grad():
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(tuple(range(-len(shape), 0)), keepdim=True)
        slope = torch.rsqrt(mean_square + (torch.finfo(x.dtype).eps if eps is None else eps))
        slope = slope if weight is None else slope * weight
    return _Scale.apply(x, lambda: function(*args, **kwargs), slope)


def unit_norm(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """``F.normalize``: the norm is a constant (App. C.5), so the slope is ``y / x``."""
    return identity(function, args, kwargs)


def signal_take_all(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Product of a gate and a signal: the gate is a constant, the signal takes all relevance (App. C.4).

    A product in which no factor, or every factor, is a gate has no signal to choose: it follows ``uniform``.
    """
    factors = carrying(args, kwargs)
    gates = [t for t in factors if is_gate(t)]
    if not gates or len(gates) == len(factors):
        return uniform(function, args, kwargs)
    args, kwargs = _map_tensors(lambda t: t.detach() if is_gate(t) else t, args, kwargs)
    return function(*args, **kwargs)


def uniform(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Product of n factors that carry gradient: each takes 1/n of the relevance (section AttnLRP, section LRPx)."""
    share = 1 / len(carrying(args, kwargs))
    args, kwargs = _map_tensors(lambda t: scale_gradient(t, share), args, kwargs)
    return function(*args, **kwargs)


def constant_attention(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Fused attention under LRP: the attention weights are constants, values take all relevance (App. C.4)."""
    query, key, value, mask = _bind(_ATTENTION, args, kwargs)
    return _attend(function, args, kwargs, query.detach(), key.detach(), value, _detached(mask))


def uniform_attention(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Fused attention under AttnLRP: ``weights @ value`` and ``query @ key`` are uniform products, softmax is as it is.

    The halves multiply up: values get 1/2, queries and keys 1/4, a mask that carries gradient 1/2 (App. C.6 and section
    LRPx). The fused kernel stays, so nothing of size T x T is stored.
    """
    query, key, value, mask = _bind(_ATTENTION, args, kwargs)
    scores_carry = any(isinstance(t, Tensor) and t.requires_grad for t in (query, key, mask))
    outer = 0.5 if scores_carry and value.requires_grad else 1.0
    inner = outer * (0.5 if query.requires_grad and key.requires_grad else 1.0)
    query, key = scale_gradient(query, inner), scale_gradient(key, inner)
    return _attend(function, args, kwargs, query, key, scale_gradient(value, outer), scale_gradient(mask, outer))


_ATTENTION = ("query", "key", "value", "attn_mask")


def _attend(
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """The attention the model asked for, with other queries, keys, values and mask."""
    rest = {name: value for name, value in kwargs.items() if name not in _ATTENTION}
    return function(q, k, v, mask, *args[4:], **rest)


def alpha1beta0(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    r"""Linear layer under LRP-alpha1-beta0: only positive contributions take relevance (App. C.2).

    .. math:: R_i = \sum_j \frac{(z_i w_{ij})^+}{z_j^{pos}} R_j, \quad z_j^{pos} = \sum_i (z_i w_{ij})^+ + (b_j)^+

    For ``linear``, ``conv1d`` to ``conv3d`` and ``addmm``. An output whose ``z_pos`` is 0 passes nothing on.
    """
    with torch.no_grad():
        z = function(*args, **kwargs)

    def positive(t: Tensor) -> Tensor:
        return t.clamp(min=0)

    def negative(t: Tensor) -> Tensor:
        return t.clamp(max=0)

    x = carrying(args, kwargs)[0]
    z_pos = _with_weights(function, args, kwargs, positive(x), positive, positive)
    z_pos = z_pos + _with_weights(function, args, kwargs, negative(x), negative, torch.zeros_like)
    return _Scale.apply(z_pos, lambda: z, torch.where(z_pos == 0, 0, z / z_pos).detach())


# The pieces. Each returns the value it was given and states its own Jacobian.


def scale_gradient(x: Any, factor: float) -> Any:
    """``x`` itself, but its gradient is multiplied by ``factor`` on the way back."""
    return _Factor.apply(x, factor) if isinstance(x, Tensor) and x.requires_grad and factor != 1 else x


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments, also inside lists (``cat``, ``einsum``)."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def carrying(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that carry gradient."""
    return [t for t in tensors_in(args, kwargs) if t.requires_grad]


# Written with ``ctx`` in ``forward``: the newer ``setup_context`` costs more than the operation on short texts.

Compute = Callable[
    [], Tensor
]  # called inside ``forward``, so that the result is nobody's view and may be changed in place


class _Slope(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := y / x`` and 0 where ``x == 0``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute) -> Tensor:
        y = compute()
        ctx.dtype = x.dtype
        # 0 / 0, and whatever else has no slope, passes nothing on. In place: one kernel and no tensor more.
        ctx.save_for_backward(torch.div(y, x).nan_to_num_(nan=0, posinf=0, neginf=0))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return (grad * slope).to(ctx.dtype), None


class _Scale(torch.autograd.Function):
    """``y = compute()``, with ``dy/dx := slope``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute, slope: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        ctx.save_for_backward(slope)
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return (grad * slope).to(ctx.dtype), None, None


class _Factor(torch.autograd.Function):
    """``x``, with ``dy/dx := factor``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.factor, None


class _LayerNorm(torch.autograd.Function):
    """``y = compute()``, with the Jacobian of ``weight * (x - mean(x)) / [std]``."""

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


def _bind(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], **defaults: Any) -> list[Any]:
    """The values of the parameters ``names``, given by place or by name."""
    bound = dict(zip(names, args, strict=False)) | dict(kwargs)
    return [bound.get(name, defaults.get(name)) for name in names]


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _is_reversed(function: Function) -> bool:
    """Whether the function takes its operands the other way round: ``Tensor.__rtruediv__(b, a)`` is ``a / b``."""
    return getattr(function, "__name__", "").startswith("__r")


def _map_tensors(
    change: Callable[[Tensor], Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with ``change`` applied to every tensor, also inside lists."""

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if isinstance(value, list | tuple):
            return type(value)(change(v) if isinstance(v, Tensor) else v for v in value)
        return value

    return [visit(a) for a in args], {k: visit(v) for k, v in kwargs.items()}


def _with_weights(
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    x: Tensor,
    sign: Callable[[Tensor], Tensor],
    bias: Callable[[Tensor], Tensor],
) -> Tensor:
    """A linear operation with another input, matrix and bias. ``addmm`` has its bias first, ``linear`` and ``conv`` last."""
    named = dict(kwargs)
    addmm = getattr(function, "__name__", "") == "addmm"
    names = ("input", "mat1", "mat2") if addmm else ("input", "weight", "bias")
    named |= dict(zip(names, args, strict=False))
    first, second, third = (named.pop(name, None) for name in names)
    if addmm:
        return function(bias(first), x, sign(third), *args[3:], **named)
    return function(x, sign(second), None if third is None else bias(third), *args[3:], **named)
