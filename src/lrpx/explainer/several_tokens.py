"""A target or contrast of several tokens: the text and what may come after it, in a pass for each.

The value is the sum of the scores of the target's tokens, minus that of the contrast's, which may be of another length. Tokens
of a target that is being read take relevance too. That is no part of the text's map, and stands in ``components``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..methods import Method
from ..methods.generated import about_rotations, how
from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import ModelSignature
from ..passes.dispatch import PassRunner
from ..passes.many_targets import FEW, Combine, ManyTargets, check_reads_forward, explain_many
from ..passes.scores import explained_logits
from ..passes.scoring import Objective, Scoring
from ..results.explanation import Explanation
from ..results.spans import explained
from ..results.tokens import Token, joined
from ..text.batching import Attribution, Item, pad
from ..text.items import item_of
from ..text.targets import SeveralTokens, resolve_tokens
from ..text.tokenization import Encoded, encode
from ..text.units import pieces_shown, predicted_token


@dataclass(frozen=True)
class Several:
    """Which tokens of a text are explained together.

    Attributes:
        target: Their ids; ``None``: the top prediction.
        contrast: Those that they are compared with, or ``None``.
        objective: What is summed over them.
    """

    target: tuple[int, ...] | None
    contrast: tuple[int, ...] | None
    objective: Objective


def read_item(
    signature: ModelSignature, tokenizer: Any, encoded: Encoded, objective: Objective, given: dict[str, Any]
) -> tuple[Item, Several | None]:
    """A text as an item, and what is explained of it if that is more than a logit or a difference of two.

    Args:
        signature: Of the model.
        tokenizer: The model's, or ``None``.
        encoded: The text.
        objective: ``"logit"`` or ``"logprob"``.
        given: ``target``, ``contrast`` and ``position``.

    Raises:
        InputError: Something cannot be used.
    """
    try:
        return item_of(signature, tokenizer, encoded, **given), None
    except SeveralTokens:
        pass
    item = item_of(signature, tokenizer, encoded, position=given["position"])
    ids = {
        role: resolve_tokens(given[role], role, encoded, item.position, tokenizer, signature.vocabulary, signature.task)
        for role in ("target", "contrast")
    }
    return item, Several(ids["target"], ids["contrast"], objective)


@dataclass(frozen=True)
class Found:
    """What the passes gave, beside an attribution."""

    several: Several  # with the target that was explained
    probabilities: dict[str, Any]  # as fields of an ``Explanation``


def explain_several(
    runner: PassRunner, item: Item, several: Several, method: Method, settings: dict[str, Any]
) -> tuple[Attribution, Found]:
    """Explain several tokens after a text together.

    Raises:
        InputError: The method cannot do it, or the text becomes too long for the model.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    spec, combine = how(method, {**settings, "heads": None}, images=bool(item.images))
    model, signature = runner.model, ModelSignature.of(runner.model)
    with lock_of(model):
        if several.target is None:
            several = replace(several, target=(_top_prediction(runner, item),))
        assert several.target is not None
        if several.target == several.contrast:
            raise InputError("target and contrast are the same: their difference is 0. Give two that differ.")
        if method.measures != "parts" and several.contrast is not None:
            raise InputError(
                f"{method.name} does not decompose the explained value, so target and contrast need a pass together and have "
                "to be one token each."
            )
        relevance, value = np.zeros(len(item.token_ids)), 0.0
        probabilities: dict[str, Any] = {}
        components: dict[str, Any] = {}
        layers: dict[str, np.ndarray] = {}
        notes: dict[str, None] = {}  # each once, in order
        sides = [("target", 1, several.target)]
        if several.contrast is not None:
            sides.append(("contrast", -1, several.contrast))
        for role, sign, ids in sides:
            before = item.token_ids[: item.position + 1]
            read = (*before, *ids[:-1])
            length = len(read) - item.source
            if signature.context is not None and length > signature.context:
                raise InputError(
                    f"text and {role} have {length} tokens to read, and {signature.name} can read {signature.context}. "
                    "Shorten one."
                )
            asked = item.lengthened(read, item.position, ids[0])
            first = item.position - item.source
            scoring = Scoring(
                positions=range(first, first + len(ids)),
                targets=ids,
                objective=several.objective,
                probabilities=True,
            )
            if len(ids) > 1:
                check_reads_forward(runner, pad([asked.beginning(FEW)], model), spec)
            score, row, of_images, log_probability, about = explain_many(
                runner, pad([asked], model), spec, scoring, partial(_together, combine=combine)
            )
            notes |= dict.fromkeys([*about, *about_rotations(model, len(before), len(read))])
            # What a decoder has read of the target is a part of the explanation.
            length = len(read) if role == "target" and item.source else len(before)
            relevance[:length] += sign * row[:length]
            layers = {name: layers.get(name, 0) + sign * each for name, each in of_images.items()}
            value += sign * score
            probabilities[f"{role}_probability"] = float(np.exp(log_probability))
            if length < len(row) and method.measures == "parts":
                components[f"{role} tokens read"] = sign * float(row[length:].sum())
    residual = value - float(relevance.sum()) - sum(components.values()) if method.measures == "parts" else None
    result = Attribution(
        relevance=relevance,
        value=value,
        residual=residual,
        target=several.target[0],
        components=components,
        layers=layers,
        notes=tuple(notes),
    )
    return result, Found(several, probabilities)


def _together(
    many: ManyTargets, combine: Combine
) -> tuple[float, np.ndarray, dict[str, np.ndarray], float, tuple[str, ...]]:
    """The sum of all scores, its relevance ``[T]`` and that of images, the log-probability of all tokens, and notes."""
    assert many.log_probabilities is not None
    row = many.relevance(np.ones((1, many.scores.size)), combine)[0]
    return float(many.scores.sum()), row, many.apart[0], float(many.log_probabilities.sum()), many.notes


def described(e: Explanation, found: Found, tokenizer: Any) -> Explanation:
    """The explanation of the first token, changed into one of all tokens."""
    several, notes = found.several, []
    assert several.target is not None
    count = len(several.target)

    def entry(role: str, ids: tuple[int, ...]) -> Token:
        begin = next((part.start for part in e.segments if part.name == "target"), 0)
        before, tokens = list(e.token_ids[begin : e.position + 1]), []
        pieces = pieces_shown(tokenizer, ids, before)
        for i in ids:
            tokens.append(predicted_token(tokenizer, i, before))
            before.append(i)
        if len(ids) > 1:
            notes.append(f"the {role} is {len(ids)} tokens, which are explained together: {pieces}.")
        whole = "" if tokenizer is None else "".join(unit.text for unit in encode(tokenizer, list(ids))[0].units)
        # A character may be split over tokens; one that is cut off is shown by its bytes.
        return joined(tokens) if not whole or "\\x" in whole else joined(tokens)._replace(shown=whole)

    target = entry("target", several.target)
    contrast = entry("contrast", several.contrast) if several.contrast else None
    provenance = {**e.provenance, "target": list(several.target), "target_text": target.text}
    if contrast is not None and several.contrast:
        provenance |= {"contrast": list(several.contrast), "contrast_text": contrast.text}
    return replace(
        e,
        target=target,
        contrast=contrast,
        explains=explained(several.objective, None, max(_lengths(several))),
        span=(e.position, e.position + count) if count > 1 else None,
        notes=(*e.notes, *notes),
        provenance={**provenance, "objective": several.objective},
        **found.probabilities,
    )


def incomparable(several: Several) -> tuple[str, ...]:
    """A warning where the explained number is a difference of sums that cannot be compared."""
    if several.objective != "logit" or len(_lengths(several)) < 2:
        return ()
    return (
        "target and contrast have different numbers of tokens, and sums of logits of different lengths cannot be compared: "
        'use objective="logprob".',
    )


def _lengths(several: Several) -> set[int]:
    return {len(ids) for ids in (several.target, several.contrast) if ids}


def _top_prediction(runner: PassRunner, item: Item) -> int:
    with torch.no_grad(), fresh_rotations(runner.model):
        logits, index = explained_logits(runner.model, pad([item], runner.model))
    return int(logits[0, int(index[0])].argmax())
