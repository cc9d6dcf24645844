r"""Every propagation rule: an operation whose value is PyTorch's own, bit for bit, but whose Jacobian is another.

Relevance is value times gradient, :math:`R = x \, \partial x` (Arras et al. 2025, section LRPx). So a rule never touches
relevance: it changes the local Jacobian, and an ordinary backward pass does the rest. A rule takes the ``Call`` that the model
made and returns its output. Operations without a rule use the ordinary gradient, which for linear ones is LRP-epsilon with
epsilon = 0 (App. D.1). "App." is the appendix of Arras et al. 2025; "AttnLRP" is Achtibat et al. 2024.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch_internals import rms_norm_epsilon
from ..recognition.call import Call
from ..recognition.gates import MIXED, rank_of
from .jacobians import Gate, Scale, ratio, scale_gradient
from .linear_rules import Rule as Rule
from .linear_rules import alpha1beta0 as alpha1beta0
from .linear_rules import alpha_beta as alpha_beta
from .linear_rules import epsilon as epsilon
from .linear_rules import gamma as gamma


def identity(call: Call) -> Tensor:
    r"""Element-wise activation ``y = f(x)``: all relevance of ``y`` goes to ``x`` (App. D.3; AttnLRP Eq. 9).

    .. math:: x_i \, \partial x_i = y_i \, \partial y_i \quad\Longrightarrow\quad \partial y_i / \partial x_i := y_i / x_i
    """
    if call.written_out:
        return call()
    return Scale.apply(call.argument(0, "input"), call, ratio)


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
    _, denominator = call.fraction
    return call.detached(lambda t: t is denominator)()


def layer_norm(call: Call) -> Tensor:
    r"""LayerNorm, :math:`y = \gamma \, (x - E[x]) / [\sigma]_{const} + \beta`: the mean subtraction stays (App. D.5)."""
    return _normalised(call, call.argument(4, "eps", 1e-5), centred=True)


def rms_norm(call: Call) -> Tensor:
    r"""RMSNorm, :math:`y = \gamma \, x / [\sqrt{E[x^2] + \epsilon}]_{const}` (App. D.5)."""
    eps = call.argument(3, "eps")
    return _normalised(call, rms_norm_epsilon(call.argument(0, "input").dtype) if eps is None else eps, centred=False)


def _normalised(call: Call, eps: float, *, centred: bool) -> Tensor:
    x, shape, weight = (call.argument(i, name) for i, name in enumerate(("input", "normalized_shape", "weight")))
    dims = list(range(-len(shape), 0))

    def slope(x: Tensor, _: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps) * (1 if weight is None else weight)

    return Scale.apply(x - x.mean(dims, keepdim=True) if centred else x, call, slope)


def signal_take_all(call: Call) -> Any:
    """Product of gates and signals: the gates are constants, the signals take all relevance (App. D.4).

    Gates are the factors of the highest rank (``recognition/gates.py``) if another ranks lower; if none does, as ``uniform``.
    """
    ranks = {id(t): rank_of(t) for t in call.factors}
    if MIXED in ranks.values():
        call.unknown["a product with a part of a concatenation of gates and signals"] += 1
    elif len(set(ranks.values())) > 1:
        highest = max(ranks.values())  # type: ignore[type-var]
        call = call.detached(lambda t: ranks.get(id(t)) == highest)
    return uniform(call)


def uniform(call: Call) -> Any:
    """Product of n factors that carry gradient: each takes 1/n of the relevance (section AttnLRP, section LRPx)."""
    count, bias = len(call.factors), call.bias  # counted before the call, which may be in place
    back = call if bias is None else call.change(lambda t: scale_gradient(t, count, shared=True) if t is bias else t)
    return scale_gradient(back(), 1 / count)


def constant_attention(call: Call) -> Tensor:
    """Fused attention under LRP: the attention weights are constants, values take all relevance (App. D.4)."""
    value = call.argument(2, "value")
    return call.detached(lambda t: t is not value)()


def uniform_attention(call: Call) -> Tensor:
    """Fused attention under AttnLRP: ``weights @ value`` and ``query @ key`` are uniform products, softmax is as it is.

    The halves multiply up: values get 1/2, queries and keys 1/4, a mask that carries gradient 1/2 (App. D.6). The fused kernel
    stays, so nothing of size T x T is stored.
    """
    query, key, value, mask = (call.argument(i, name) for i, name in enumerate(("query", "key", "value", "attn_mask")))
    scores_carry = any(t is not None and t.requires_grad for t in (query, key, mask))
    inner = 0.5 if query.requires_grad and key.requires_grad else 1
    outer = 0.5 if value.requires_grad and scores_carry else 1
    # The output's gradient is scaled once, for queries and keys; what is not theirs gets its share back.
    back = call.change(lambda t: scale_gradient(t, 1 / inner, shared=True) if t is value or t is mask else t)
    return scale_gradient(back(), outer * inner)
