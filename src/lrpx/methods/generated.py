"""Methods on generated text.

LRP and its relatives and the gradients are backward passes, so many tokens are explained at once; their equations are in
``lrp.py`` and ``gradient.py``. Other methods (``alti-logit``) explain one prediction at a time: ``OneByOne``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.positions import longest_alike
from ..passes.dispatch import PassRunner
from ..passes.many_targets import Combine
from ..passes.spec import PassSpec
from ..text.batching import Item, pad
from ..text.grouping import groups_of
from . import METHODS, Method
from .gradient import norm_of
from .rule_names import named_rules

_ONE_PASS = ("lrp:explain", "gradient:times_input", "gradient:explain")


def is_one_pass(method: Method) -> bool:
    """Whether a method explains several tokens in one pass."""
    return method.function in _ONE_PASS


def check_decomposes(method: Method, why: str) -> None:
    """Refuse a method that does not divide the explained value by one backward pass.

    Raises:
        InputError: ``why`` says what it does not do; the error names the methods that do.
    """
    if not (is_one_pass(method) and method.measures == "parts"):
        others = ", ".join(name for name, m in METHODS.items() if is_one_pass(m) and m.measures == "parts")
        raise InputError(f"{method.name} {why}; {others} do.")


def how(method: Method, settings: Mapping[str, Any], *, images: bool = False) -> tuple[PassSpec, Combine]:
    """The pass of a method, and how it makes relevance of a hidden state and its gradient.

    Args:
        method: The method.
        settings: Its options.
        images: Whether there may be images, so that ``"pixels"`` is a place, beside what enters the first block.

    Raises:
        InputError: The method is not made of a backward pass, or more than one place is asked for.
    """
    known: dict[str, Any] = {
        "lrp:explain": lambda: (named_rules(settings["rules"]), torch.mul),
        "gradient:times_input": lambda: ({}, torch.mul),
        "gradient:explain": lambda: ({}, norm_of(settings["norm"])),
    }
    if not is_one_pass(method):
        names = ", ".join(name for name, each in METHODS.items() if is_one_pass(each))
        raise InputError(
            f"{method.name} explains the logit of one token, and neither several tokens together nor log-probabilities; {names} "
            "do."
        )
    if settings.get("heads"):
        raise InputError(
            "heads=True is for one explained prediction, not for generated text or two embeddings.",
            python="Explain one token of a text: explainer(TEXT_BEFORE_IT, target=TOKEN, heads=True).",
        )
    at = settings["at"]
    places = (at,) if isinstance(at, str) else tuple(at)
    known_places: dict[tuple[str, ...], tuple[str, ...]] = {
        ("input",): ("input",),
        ("embedding",): ("embedding",),
    }
    if images:
        known_places[("pixels",)] = ("input", "pixels")
    if places not in known_places:
        *most, last = (f'"{place}"' for (place,) in known_places)
        raise InputError(
            f"at={at!r}: several tokens and log-probabilities are explained at {', '.join(most)} or at {last}, one of them."
        )
    rules, combine = known[str(method.function)]()
    return PassSpec(rules, known_places[places]), combine


def about_rotations(model: PreTrainedModel, beginning: int, whole: int) -> tuple[str, ...]:
    """A note where a pass over a whole text reads its beginning otherwise than a pass over the beginning alone.

    Rotations of the kinds ``dynamic`` and ``longrope`` depend on the length of the text that is read, once it is longer than the
    model was made for. Then the rows of a pass over ``whole`` tokens are not those of calls for their beginnings.
    """
    alike = longest_alike(model, beginning)
    if alike is None or whole <= alike:
        return ()
    return (
        f"The rotary embedding of {type(model).__name__} depends on how long the text is, beyond {alike} tokens: all tokens are "
        f"explained as the model reads the whole text of {whole}. A call for the beginning alone gives other numbers.",
    )


class OneByOne:
    """As ``ManyTargets``, for a method that explains one prediction at a time: a call for each, and sums of their rows.

    Args:
        runner: Of the model.
        method: The method.
        settings: Its options.
        items: The text before each token, which is its target.
        batch_tokens: Tokens per batch.
    """

    log_probabilities = None
    notes: tuple[str, ...] = ()

    def __init__(
        self, runner: PassRunner, method: Method, settings: Mapping[str, Any], items: list[Item], batch_tokens: int
    ) -> None:
        function, model = method.run_by(runner), runner.model
        self.scores = np.zeros(len(items))
        self._rows = np.zeros((len(items), len(items[-1].token_ids)))
        for group in groups_of(model, items, batch_tokens):
            found = function(pad([items[i] for i in group], model), **settings)
            for i, one in zip(group, found, strict=True):
                self.scores[i] = one.value
                self._rows[i, : len(one.relevance)] = one.relevance

    def relevance(
        self, weights: np.ndarray, combine: Combine | None = None, tell: Callable[[int], object] | None = None
    ) -> np.ndarray:
        """``[V, T]`` of the weighted sums ``[V, P]`` of the scores."""
        return np.asarray(weights @ self._rows)
