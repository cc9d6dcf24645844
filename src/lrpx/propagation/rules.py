r"""Every propagation rule: an operation whose value is PyTorch's own, bit for bit, but whose Jacobian is another.

Relevance is value times gradient, :math:`R = x \, \partial x` (Arras et al. 2025, section LRPx). So a rule never touches
relevance: it changes the local Jacobian, and an ordinary backward pass does the rest. A rule takes the ``Call`` that the model
made, at least one of whose tensors carries gradient, and returns its output. Which rule goes to which operation is plain data,
see ``rulesets.py``. Operations without a rule use the ordinary gradient, which for linear ones is LRP-epsilon with epsilon = 0
(App. D.1).

"App." is the appendix of Arras et al. 2025, "A Close Look at Decomposition-based XAI-Methods for Transformer Language
Models"; "AttnLRP" is Achtibat et al. 2024.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .gates import MAGNITUDE, MIXED, rank_of
from .jacobians import Gate, LayerNorm, Scale, Slope, scale_gradient

_MISSING: Any = object()


@dataclass
class Notes:
    """What a pass has met so far that decides what rules look for.

    Attributes:
        gates: How many constant gates the graph holds, through which no gradient passes.
        magnitudes: How many magnitudes of hidden states.
        unknown: Why the map would be wrong, and how often.
    """

    gates: int = 0
    magnitudes: int = 0
    unknown: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Call:
    """A PyTorch function that the model called, with its arguments; ``call()`` makes it as it is, with its own gradient."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    notes: Notes = field(default_factory=Notes)

    def __call__(self) -> Any:
        """The result as PyTorch computes it."""
        return self.function(*self.args, **self.kwargs)

    def value(self) -> Any:
        """The result without a gradient."""
        with torch.no_grad():
            return self()

    @property
    def name(self) -> str:
        """The function's name, such as ``"mul"`` or ``"__rtruediv__"``."""
        return getattr(self.function, "__name__", "")

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, also inside lists (``cat``, ``einsum``)."""
        return tensors_in(self.args, self.kwargs)

    @property
    def factors(self) -> list[Tensor]:
        """The tensors among the arguments that carry gradient."""
        return [t for t in self.tensors if t.requires_grad]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument given positionally or by keyword."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def change(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every tensor, also inside lists."""
        return replace(
            self,
            args=[_changed(a, change) for a in self.args],
            kwargs={k: _changed(v, change) for k, v in self.kwargs.items()},
        )

    def detached(self, which: Callable[[Tensor], bool]) -> Call:
        """The same call, in which those of its factors are constants."""
        return self.change(lambda t: t.detach() if t.requires_grad and which(t) else t)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(v, change) for v in value) if isinstance(value, list | tuple) else value


Rule = Callable[[Call], Any]


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among arguments, also inside lists."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def identity(call: Call) -> Tensor:
    r"""Element-wise activation ``y = f(x)``: all relevance of ``y`` goes to ``x`` (App. D.3; AttnLRP Eq. 9).

    .. math:: x_i \, \partial x_i = y_i \, \partial y_i \quad\Longrightarrow\quad \partial y_i / \partial x_i := y_i / x_i

    A unit that is exactly zero carries no relevance, hence slope 0 there.
    """
    return Slope.apply(call.argument(0, "input"), call)


def power(call: Call) -> Tensor:
    """``x ** n`` with n > 0: the identity rule's slope ``x ** (n - 1)`` is 1/n of the gradient, which needs no division."""
    exponent = {"square": 2, "sqrt": 0.5}.get(call.name.strip("_")) or call.argument(1, "exponent")
    if exponent < 1:
        return identity(call)  # whose slope at 0 is 0, where the gradient is infinite
    return scale_gradient(call(), 1 / float(exponent))


def constant(call: Call) -> Any:
    """The result is a constant: nothing flows back (App. D.4 for softmax as a gate, App. D.5 for a normaliser)."""
    return call.value()


def constant_gate(call: Call) -> Tensor:
    """Element-wise ``f(0) != 0``, such as sigmoid: a constant gate (as softmax, App. D.4), which the graph still shows."""
    call.notes.gates += 1
    return Gate.apply(call.value, *call.factors)


def constant_denominator(call: Call) -> Any:
    """``a / b``: ``b`` normalises and is a constant (App. D.5)."""
    denominator = call.args[0] if call.name.startswith("__r") else call.argument(1, "other")
    return call.detached(lambda t: t is denominator)()


def layer_norm(call: Call) -> Tensor:
    r"""LayerNorm: the standard deviation is a constant, the mean subtraction stays (App. D.5).

    .. math:: y = \gamma \, (x - E[x]) / [\sigma]_{const} + \beta
    """
    shape, weight = call.argument(1, "normalized_shape"), call.argument(2, "weight")
    return LayerNorm.apply(call.argument(0, "input"), call, weight, len(shape), call.argument(4, "eps", 1e-5))


def rms_norm(call: Call) -> Tensor:
    r"""RMSNorm: the root mean square is a constant (App. D.5), so the slope is ``y / x``."""
    x, shape, weight = call.argument(0, "input"), call.argument(1, "normalized_shape"), call.argument(2, "weight")
    eps = call.argument(3, "eps")
    with torch.no_grad():
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(tuple(range(-len(shape), 0)), keepdim=True)
        slope = torch.rsqrt(mean_square + (torch.finfo(x.dtype).eps if eps is None else eps))
        slope = slope if weight is None else slope * weight
    return Scale.apply(x, call, slope)


def unit_norm(call: Call) -> Tensor:
    """``F.normalize``: the norm is a constant (App. D.5), so the slope is ``y / x``; the result is a signal, no gate."""
    x = call.argument(0, "input")
    return Scale.apply(x, call, torch.div(call.value(), x.detach()).nan_to_num_(nan=0, posinf=0, neginf=0))


def signal_take_all(call: Call) -> Any:
    """Product of gates and signals: the gates are constants, the signals take all relevance (App. D.4).

    Gates are the factors of the highest rank (``gates.py``) if another one ranks lower. Otherwise there is no signal to
    choose, and the product follows ``uniform``.
    """
    call = _with_constant_magnitudes(call)
    ranks = [rank_of(t) for t in call.factors]
    if MIXED in ranks and len(ranks) > 1:
        call.notes.unknown["a product with a part of a concatenation of gates and signals"] += 1
    elif len(set(ranks)) > 1:
        call = call.detached(lambda t: rank_of(t) == max(ranks))  # type: ignore[type-var]
    return uniform(call)


def uniform(call: Call) -> Any:
    """Product of n factors that carry gradient: each takes 1/n of the relevance (section AttnLRP, section LRPx)."""
    call = _with_constant_magnitudes(call)
    return scale_gradient(call(), 1 / max(1, len(call.factors)))


def _with_constant_magnitudes(call: Call) -> Call:
    """The magnitude of a hidden state normalises what it multiplies: a constant (App. D.5)."""
    if not call.notes.magnitudes:
        return call
    ranks = [rank_of(t) for t in call.factors]
    return call.detached(lambda t: rank_of(t) == MAGNITUDE) if MAGNITUDE in ranks and len(set(ranks)) > 1 else call


def constant_attention(call: Call) -> Tensor:
    """Fused attention under LRP: the attention weights are constants, values take all relevance (App. D.4)."""
    value = call.argument(2, "value")
    return call.detached(lambda t: t is not value)()


def uniform_attention(call: Call) -> Tensor:
    """Fused attention under AttnLRP: ``weights @ value`` and ``query @ key`` are uniform products, softmax is as it is.

    The halves multiply up: values get 1/2, queries and keys 1/4, a mask that carries gradient 1/2 (App. D.6 and section
    LRPx). The fused kernel stays, so nothing of size T x T is stored.
    """
    query, key, value, mask = (call.argument(i, name) for i, name in enumerate(("query", "key", "value", "attn_mask")))
    mask_carries = isinstance(mask, Tensor) and mask.requires_grad
    outer = 0.5 if value.requires_grad and (query.requires_grad or key.requires_grad or mask_carries) else 1
    inner = 0.5 if query.requires_grad and key.requires_grad else 1
    # The output's gradient is scaled once, for queries and keys; what is not theirs gets it back.
    back = call.change(lambda t: _alias(t, 1 / inner) if t is value or t is mask else t)
    return scale_gradient(back(), outer * inner)


def _alias(t: Tensor, factor: float) -> Tensor:
    return scale_gradient(t.view_as(t), factor) if t.requires_grad else t


# Options for layers that multiply by weights, as vision models want them: {**LRP, "linear": gamma(0.25)}.


def epsilon(epsilon: float = 1e-6) -> Rule:
    r"""LRP-epsilon (App. D.2), with :math:`z_{ij} = x_i w_{ji}` and :math:`z_j` the output.

    .. math:: R_i = \sum_j \frac{z_{ij}}{z_j + \epsilon \, \mathrm{sign}(z_j)} R_j
    """

    def rule(call: Call) -> Tensor:
        z = call()
        value = z.detach()
        return _valued(z * _ratio(value, value + epsilon * torch.where(z < 0, -1.0, 1.0)), value)

    return rule


def gamma(gamma: float = 0.25) -> Rule:
    r"""LRP-gamma: contributions of the output's sign count :math:`1 + \gamma` times, biases included.

    .. math:: R_i = \sum_j \frac{z_{ij} + \gamma z_{ij}^s}{z_j + \gamma z_j^s} R_j, \quad s = \mathrm{sign}(z_j)
    """

    def rule(call: Call) -> Tensor:
        z = call.value()
        signed = call() + gamma * torch.where(z < 0, _part(call, -1), _part(call, 1))
        return _valued(signed * _ratio(z, signed), z)

    return rule


def alpha_beta(alpha: float = 1, beta: float = 0) -> Rule:
    r"""LRP-alpha-beta (App. D.2): positive and negative contributions apart, biases included; :math:`\alpha - \beta = 1`.

    .. math:: R_i = \sum_j \left( \alpha \frac{z_{ij}^+}{z_j^+} - \beta \frac{z_{ij}^-}{z_j^-} \right) R_j

    Raises:
        InputError: alpha - beta is not 1, so that relevance would not be conserved.
    """
    if abs(alpha - beta - 1) > 1e-9:
        raise InputError(f"alpha_beta({alpha}, {beta}): alpha - beta has to be 1, as in alpha_beta(2, 1).")

    def rule(call: Call) -> Tensor:
        z, positive, negative = call.value(), _part(call, 1), _part(call, -1)
        return _valued(positive * _ratio(alpha * z, positive) - negative * _ratio(beta * z, negative), z)

    return rule


def _part(call: Call, sign: int) -> Tensor:
    """What the contributions of one sign, bias included, add up to: a linear operation on inputs and weights cut at 0."""
    x, addmm = call.factors[0], call.name.strip("_") in ("addmm", "baddbmm", "addmv", "addbmm")
    bias = call.argument(0, "input") if addmm else call.argument(2, "bias") if call.name != "matmul" else None

    def part(x_sign: int, with_bias: bool) -> Tensor:
        def cut(t: Tensor) -> Tensor:
            if t is bias:
                return _cut(t, sign) if with_bias else torch.zeros_like(t)
            return t if not t.is_floating_point() else _cut(t, x_sign if t is x else x_sign * sign)

        return call.change(cut)()

    return part(1, True) + part(-1, False)


def _cut(t: Tensor, sign: int) -> Tensor:
    return t.clamp(min=0) if sign > 0 else t.clamp(max=0)


def _ratio(z: Tensor, divisor: Tensor) -> Tensor:
    """A constant; 0 where the divisor is: such an output passes nothing on."""
    return torch.where(divisor == 0, 0, z / divisor).detach()


def _valued(through: Tensor, z: Tensor) -> Tensor:
    """The value ``z``, with the Jacobian of ``through``."""
    return Scale.apply(through, lambda: z, torch.ones((), dtype=z.dtype, device=z.device))


alpha1beta0 = alpha_beta(1, 0)
