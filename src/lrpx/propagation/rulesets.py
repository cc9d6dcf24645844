"""Plain data: which rule goes to which kind of operation (``recognition/table.py``).

``propagate`` takes any such dictionary, so a rule set of your own is ``{**LRP, "linear": rules.gamma(0.25)}``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError, nearest
from ..recognition.table import RULED
from . import rules

RuleSet = Mapping[str, rules.Rule]
LRP: RuleSet = {
    "activation": rules.identity,  # App. D.3
    "power": rules.power,
    "layer_norm": rules.layer_norm,  # App. D.5
    "rms_norm": rules.rms_norm,
    "unit_norm": rules.unit_norm,
    "normaliser": rules.constant,
    "division": rules.constant_denominator,
    "softmax": rules.constant,  # App. D.4: attention and router weights are gates, and a gate is a constant
    "sigmoid": rules.constant_gate,
    "product": rules.signal_take_all,
    "contraction": rules.signal_take_all,
    "attention": rules.constant_attention,
    "selector": rules.constant,  # of a recurrence, as softmax of attention
}
LRP_UNIFORM_GATE: RuleSet = {**LRP, "product": rules.uniform}
ATTNLRP: RuleSet = {
    **{kind: rule for kind, rule in LRP.items() if kind not in ("softmax", "sigmoid")},  # these keep their gradient
    "product": rules.uniform,
    "contraction": rules.uniform,
    "attention": rules.uniform_attention,
    **dict.fromkeys(("selector", "written"), rules.share),
}
RULESETS: dict[str, RuleSet] = {"lrp": LRP, "attnlrp": ATTNLRP, "lrp-uniform-gate": LRP_UNIFORM_GATE}


def get_rules(rules_or_name: str | RuleSet) -> RuleSet:
    """A rule set by name, or the given one; ``InputError`` if none has that name, or it names an unknown kind."""
    if isinstance(rules_or_name, str) and rules_or_name not in RULESETS:
        raise InputError(f"unknown rule set {rules_or_name!r}. {nearest(rules_or_name, RULESETS)}")
    rule_set = RULESETS[rules_or_name] if isinstance(rules_or_name, str) else rules_or_name
    for kind in rule_set.keys() - set(RULED):
        raise InputError(f"unknown kind of operation {kind!r} in the rule set. {nearest(kind, RULED)}")
    return rule_set
