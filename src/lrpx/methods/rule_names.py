"""Rule sets by name: one of lrpx's, or one with a rule for layers that multiply by weights, as ``"lrp+gamma=0.25"``.

The rules for such layers are called as in zennit: ``epsilon=1e-6``, ``gamma=0.25``, ``alpha1beta0``. Their equations are in
``propagation/rules.py``. ``conv:`` before one says that it is for convolutions alone, such as the patch embedding of a vision
transformer: ``"lrp+conv:gamma=0.25+gamma=0.05"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import InputError, nearest
from ..propagation import rules
from ..propagation.rules import Rule
from ..propagation.rulesets import RULESETS, RuleSet, get_rules
from ..recognition.call import Call

Rules = str | RuleSet
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|nan|inf)"  # the rule itself says which numbers it takes
_PATTERNS: dict[str, Callable[..., Rule]] = {
    rf"epsilon(?:=({_NUMBER}))?": rules.epsilon,
    rf"gamma(?:=({_NUMBER}))?": rules.gamma,
    rf"alpha({_NUMBER})beta({_NUMBER})": rules.alpha_beta,
}
EXAMPLES = ("epsilon=1e-6", "gamma=0.25", "alpha1beta0", "conv:gamma=0.25")
_CONV = "conv:"
_BETWEEN = r"\+(?=[a-z])"  # not the plus of 1e+2


@cache  # the same rule for the same text: what is kept of a pass goes by its rules
def linear_rule(text: str) -> Rule:
    """The rule for layers that multiply by weights called ``epsilon=1e-6``, ``gamma=0.25`` or ``alpha1beta0``.

    Without a number, ``epsilon`` and ``gamma`` have their default.

    Raises:
        InputError: There is none of that name, or alpha - beta is not 1.
    """
    for pattern, rule in _PATTERNS.items():
        if found := re.fullmatch(pattern, text):
            return rule(*(float(number) for number in found.groups() if number is not None))
    check_number(text)
    raise InputError(f"unknown rule {text!r} for layers with weights. {nearest(text, EXAMPLES)}")


def check_number(text: str) -> None:
    """Refuse ``gamma=abc`` by what is wrong with it.

    Raises:
        InputError: A rule that takes a number has something else.
    """
    if found := re.fullmatch(r"(?:conv:)?(epsilon|gamma)=(.*)", text):
        example = next(name for name in EXAMPLES if name.startswith(found[1]))
        raise InputError(f"the rule {text!r}: {found[2]!r} is no number. Give one, as in {example!r}.")


@dataclass(frozen=True)
class ByLayer:
    """One rule for convolutions, another one for all other layers with weights; ``None``: the ordinary gradient."""

    convolutions: Rule | None
    others: Rule | None

    def __call__(self, call: Call) -> Any:
        """The operation under the rule of its layer."""
        rule = self.convolutions if call.name.startswith("conv") else self.others
        return call() if rule is None else rule(call)


@cache
def _linear_rules(text: str) -> Rule:
    """The rule for layers with weights that is named by one part or two, as ``conv:gamma=0.25+gamma=0.05``."""
    parts = re.split(_BETWEEN, text)
    convolutions = [linear_rule(part.removeprefix(_CONV)) for part in parts if part.startswith(_CONV)]
    others = [linear_rule(part) for part in parts if not part.startswith(_CONV)]
    if len(convolutions) > 1 or len(others) > 1:
        raise InputError(
            f"the rules {text!r} have two for the same layers. Give one, or one for convolutions and one for the others: "
            '"conv:gamma=0.25+gamma=0.05".'
        )
    if not convolutions:
        return others[0]
    return ByLayer(convolutions[0], others[0] if others else None)


def named_rules(rules_or_name: Rules) -> RuleSet:
    """``get_rules``, which also knows names such as ``"lrp+gamma=0.25"``."""
    if isinstance(rules_or_name, str) and "+" in rules_or_name:
        base, _, linear = rules_or_name.partition("+")
        return {**get_rules(base), "linear": _linear_rules(linear)}
    return get_rules(rules_or_name)


def full_name(name: str, base: str) -> str:
    """The name of a rule set, where ``name`` may be a rule that is to join the rule set ``base``.

    Raises:
        InputError: It is neither.
    """
    if any(re.fullmatch(pattern, re.split(_BETWEEN, name)[0].removeprefix(_CONV)) for pattern in _PATTERNS):
        name = f"{base}+{name}"
    elif "+" not in name and name not in RULESETS:
        check_number(name)
        raise InputError(f"unknown rule set {name!r}. {nearest(name, [*RULESETS, *EXAMPLES])}")
    named_rules(name)
    return name
