"""Methods on generated text: what each makes of hidden states and gradients when many tokens are explained at once.

For the methods that are one backward pass: LRP and its relatives, and gradients. Their equations are in ``lrp.py`` and
``gradient.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InputError
from ..passes.forward_backward import PassSpec
from ..passes.many_targets import Combine
from . import METHODS, Method
from .gradient import norm_of
from .rule_names import named_rules


def how(method: Method, settings: Mapping[str, Any]) -> tuple[PassSpec, Combine]:
    """The pass of a method, and how it makes relevance of a hidden state and its gradient.

    Raises:
        InputError: The method is not made of a backward pass, or more than one place is asked for.
    """
    known: dict[str, Any] = {
        "lrp:explain": lambda: (named_rules(settings["rules"]), torch.mul),
        "gradient:times_input": lambda: ({}, torch.mul),
        "gradient:explain": lambda: ({}, norm_of(settings["norm"])),
    }
    if method.function not in known:
        names = ", ".join(name for name, each in METHODS.items() if each.function in known)
        raise InputError(
            f"{method.name} does not explain several tokens in one pass; {names} do. Explain one token at a time: "
            "explainer(text, target=...)."
        )
    at = settings["at"]
    places = (at,) if isinstance(at, str) else tuple(at)
    if places not in (("input",), ("embedding",)):
        raise InputError(f'at={at!r}: generated tokens are explained at "input" or at "embedding".')
    rules, combine = known[method.function]()
    return PassSpec(rules, places), combine
