r"""Every propagation rule: an operation whose value is PyTorch's own, bit for bit, but whose Jacobian is another.

Relevance is value times gradient, :math:`R = x \, \partial x` (Arras et al. 2025, section LRPx). So a rule never touches
relevance: it changes the local Jacobian, and an ordinary backward pass does the rest. A rule takes the ``Call`` that the model
made and returns its output. Without a rule the gradient is the ordinary one: for linear operations, LRP-epsilon with epsilon = 0
(App. D.1). "App." is the appendix of Arras et al. 2025; "AttnLRP" is Achtibat et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._torch_internals import rms_norm_epsilon
from ..errors import InputError
from ..recognition.activations import slope_at_zero
from ..recognition.call import Call
from ..recognition.gates import MIXED, rank_of
from .jacobians import Gate, Scale, ratio, scale_gradient

Rule = Callable[[Call], Any]


def identity(call: Call) -> Tensor:
    r"""Element-wise activation ``y = f(x)``: all relevance of ``y`` goes to ``x`` (App. D.3; AttnLRP Eq. 9).

    .. math:: x_i \, \partial x_i = y_i \, \partial y_i \quad\Longrightarrow\quad \partial y_i / \partial x_i := y_i / x_i
    """
    if call.written_out:
        return call()
    return Scale.apply(call.argument(0, "input"), call, partial(ratio, at_zero=slope_at_zero(call)))


def power(call: Call) -> Tensor:
    """``x ** n``, n > 0: the identity rule's slope ``x ** (n - 1)`` is 1/n of the gradient, which needs no division."""
    x, n = call.argument(0, "input"), float(call.exponent)
    if n == 2:
        return x * x.detach()  # the same number, and no Python on the way back
    return scale_gradient(call(), 1 / n) if n >= 1 else identity(call)  # 0 at 0, not infinite


def constant(call: Call) -> Any:
    """The result is a constant: nothing flows back (App. D.4 for softmax as a gate, App. D.5 for a normaliser)."""
    with torch.no_grad():
        return call()


def constant_gate(call: Call) -> Tensor:
    """Element-wise ``f(0) != 0``, such as sigmoid: a constant gate (as softmax, App. D.4), which the graph still shows."""
    return Gate.apply(call, *call.factors)


def constant_denominator(call: Call) -> Any:
    """``a / b``: ``b`` normalises and is a constant (App. D.5)."""
    return call.detached(lambda t: t is call.fraction[1])()


def layer_norm(call: Call) -> Tensor:
    r"""LayerNorm, :math:`y = \gamma \, (x - E[x]) / [\sigma]_{const} + \beta`: the mean subtraction stays (App. D.5)."""
    return _normalised(call, call.argument(4, "eps", 1e-5), centred=True)


def rms_norm(call: Call) -> Tensor:
    r"""RMSNorm, :math:`y = \gamma \, x / [\sqrt{E[x^2] + \epsilon}]_{const}` (App. D.5)."""
    return _normalised(call, call.argument(3, "eps"), centred=False)


def unit_norm(call: Call) -> Tensor:
    r"""``F.normalize``, :math:`y = x / [\lVert x \rVert]_{const}` (App. D.5); a vector of zeros passes nothing on."""
    x, p = call.argument(0, "input"), call.argument(1, "p", 2.0)
    dim, eps = call.argument(2, "dim", 1), call.argument(3, "eps", 1e-12)
    return Scale.apply(x, call, lambda x, _: ratio((norm := x.norm(p, dim, keepdim=True)).clamp_min(eps), norm.sign()))


def _normalised(call: Call, eps: float | None, *, centred: bool) -> Tensor:
    x, shape, weight = (call.argument(i, name) for i, name in enumerate(("input", "normalized_shape", "weight")))
    dims, eps = list(range(-len(shape), 0)), rms_norm_epsilon(x.dtype) if eps is None else eps

    def slope(x: Tensor, _: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide.var(dims, correction=0, keepdim=True) if centred else wide.square().mean(dims, keepdim=True)
        return torch.rsqrt(square + eps) if weight is None else torch.rsqrt(square + eps) * weight

    return Scale.apply(x, call, slope, dims if centred else ())


def signal_take_all(call: Call) -> Any:
    """Product of gates and signals: the gates are constants, the signals take all relevance (App. D.4).

    Gates are the factors of the highest rank (``recognition/gates.py``) if another ranks lower; if none does, as ``uniform``.
    """
    ranks = {id(t): rank_of(t) for t in call.factors}
    if MIXED in ranks.values():
        call.unknown["a product with a part of a concatenation of gates and signals"] += 1
    elif len(set(ranks.values())) > 1:
        call = call.detached(lambda t: ranks.get(id(t)) == max(ranks.values()))  # type: ignore[type-var]
    return uniform(call)


def uniform(call: Call) -> Any:
    """Product of n factors that carry gradient: each takes 1/n of the relevance (section AttnLRP, section LRPx)."""
    count, bias = len(call.factors), call.bias  # counted before the call, which may be in place
    back = call if bias is None else call.change(lambda t: scale_gradient(t, count, shared=True) if t is bias else t)
    return scale_gradient(back(), 1 / count)


def constant_attention(call: Call) -> Tensor:
    """Fused attention under LRP: the attention weights are constants, values take all relevance (App. D.4)."""
    return call.detached(lambda t: t is not call.argument(2, "value"))()


def uniform_attention(call: Call) -> Tensor:
    """Fused attention under AttnLRP: ``weights @ value`` and ``query @ key`` are uniform products, softmax is as it is.

    Halves multiply up: values get 1/2, queries and keys 1/4, a mask with gradient 1/2 (App. D.6). Nothing is of size T x T.
    """
    query, key, value, mask = (call.argument(i, name) for i, name in enumerate(("query", "key", "value", "attn_mask")))
    scores_carry = any(t is not None and t.requires_grad for t in (query, key, mask))
    inner = 0.5 if query.requires_grad and key.requires_grad else 1
    outer = 0.5 if value.requires_grad and scores_carry else 1
    # The output's gradient is scaled once, for queries and keys; what is not theirs gets its share back.
    back = call.change(lambda t: scale_gradient(t, 1 / inner, shared=True) if t is value or t is mask else t)
    return scale_gradient(back(), outer * inner)


def share(call: Call) -> Tensor:
    """A factor of a recurrence (``recognition/mixers.py``): what is written takes 1/2, n that select take 1/(2n) each."""
    return scale_gradient(call(), 1 / call.argument(1, "count"), shared=True)


# Rules for layers that multiply by weights, an option that vision models want: ``{**LRP, "linear": gamma(0.25)}``. Contributions
# are ``z_ij = x_i w_ji``; the output ``z_j`` is their sum with the bias, ``z_j^+`` and ``z_j^-`` are those of one sign.
def epsilon(epsilon: float = 1e-6) -> Rule:
    r"""LRP-epsilon (App. D.1): :math:`R_i = \sum_j z_{ij} / (z_j + \epsilon \, \mathrm{sign}(z_j)) \, R_j`."""
    _check("epsilon(1e-6)", epsilon)
    return _linear(f"epsilon({epsilon})", lambda z, _: z * ratio(z + epsilon * (1 - 2 * (z < 0)), z).detach())


def gamma(gamma: float = 0.25) -> Rule:
    r"""LRP-gamma: :math:`R_i = \sum_j (z_{ij} + \gamma z_{ij}^s) / (z_j + \gamma z_j^s) \, R_j`, s being the sign of z_j."""
    _check("gamma(0.25)", gamma)

    def favoured(z: Tensor, part: Callable[[int], Tensor]) -> Tensor:
        y = z + gamma * torch.where(z < 0, part(-1), part(1))
        return y * ratio(y, z).detach()

    return _linear(f"gamma({gamma})", favoured)


def alpha_beta(alpha: float = 1, beta: float = 0) -> Rule:
    r"""LRP-alpha-beta (App. D.2), alpha - beta = 1: :math:`R_i = \sum_j (\alpha z_{ij}^+/z_j^+ - \beta z_{ij}^-/z_j^-) R_j`."""
    _check("alpha_beta(2, 1)", alpha, beta)
    if abs(alpha - beta - 1) > 1e-9:
        raise InputError(f"alpha_beta({alpha}, {beta}): alpha - beta has to be 1, as in alpha_beta(2, 1).")

    def apart(z: Tensor, part: Callable[[int], Tensor]) -> Tensor:
        up, down = part(1), part(-1)
        return up * ratio(up, alpha * z).detach() - down * ratio(down, beta * z).detach()

    return _linear(f"alpha_beta({alpha}, {beta})", apart)


def _check(example: str, *parameters: object) -> None:
    """Refuse what is no number of at least 0; a rule set with ``gamma`` instead of ``gamma(0.25)`` calls it with a ``Call``."""
    for given in parameters:
        if not isinstance(given, int | float) or not 0 <= given < math.inf:
            what = "nothing, but used as a rule" if isinstance(given, Call) else f"{given!r:.40}"
            raise InputError(f"{example} is how to call it, with numbers that are not negative; it was given {what}.")


def _linear(name: str, through: Callable[[Tensor, Callable[[int], Tensor]], Tensor]) -> Rule:
    """The rule with the value ``z_j`` and the Jacobian of ``through(z, part)``, ``part(1)`` being z^+ and ``part(-1)`` z^-."""

    def rule(call: Call) -> Tensor:
        return Scale.apply(through(z := call(), partial(_part, call)), z.detach, lambda y, z: torch.ones_like(y))

    rule.__name__ = name
    return rule


def _part(call: Call, sign: int) -> Tensor:
    """What the contributions of one sign add up to, bias included: inputs and weights of equal or of opposite signs."""
    x, bias = call.factors[0], call.bias

    def cut(x_sign: int, t: Tensor) -> Tensor:
        if not t.is_floating_point() or (t is bias and x_sign < 0):
            return t if t is not bias else torch.zeros_like(t)  # once is enough
        return t.clamp(min=0) if (x_sign if t is x else sign if t is bias else x_sign * sign) > 0 else t.clamp(max=0)

    return call.change(partial(cut, 1))() + call.change(partial(cut, -1))()


alpha1beta0 = alpha_beta(1, 0)
