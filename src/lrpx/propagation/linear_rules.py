"""Rules for layers that multiply by weights, as vision models want them: an option, ``{**LRP, "linear": gamma(0.25)}``.

Contributions are ``z_ij = x_i w_ji``; the output ``z_j`` is their sum with the bias, ``z_j^+`` and ``z_j^-`` are the sums of one
sign, bias included. Without such a rule, linear layers use the ordinary gradient, LRP-epsilon with epsilon = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..recognition.call import Call
from .jacobians import Scale, ratio

Rule = Callable[[Call], Any]


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
    r"""LRP-alpha-beta (App. D.2): :math:`R_i = \sum_j (\alpha z_{ij}^+ / z_j^+ - \beta z_{ij}^- / z_j^-) R_j`.

    Raises:
        InputError: alpha - beta is not 1, so that relevance would not be conserved.
    """
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
        z = call()
        return Scale.apply(through(z, partial(_part, call)), z.detach, lambda y, z: torch.ones_like(y))

    rule.__name__ = name
    return rule


def _part(call: Call, sign: int) -> Tensor:
    """What the contributions of one sign add up to, bias included: inputs and weights of equal or of opposite signs."""
    x, bias = call.factors[0], call.bias

    def cut(x_sign: int, t: Tensor) -> Tensor:
        if not t.is_floating_point() or (t is bias and x_sign < 0):
            return t if t is not bias else torch.zeros_like(t)  # once is enough
        positive = (x_sign if t is x else sign if t is bias else x_sign * sign) > 0
        return t.clamp(min=0) if positive else t.clamp(max=0)

    return call.change(partial(cut, 1))() + call.change(partial(cut, -1))()


alpha1beta0 = alpha_beta(1, 0)
