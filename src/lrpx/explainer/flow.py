"""``Explainer.flow``: the arguments read, the flow computed (``passes/flow.py``), and made into a ``RelevanceFlow``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, UnsupportedModelError, warn
from ..methods import Method
from ..methods.generated import check_decomposes, how
from ..models.lock import lock_of
from ..models.signature import ModelSignature, padding_id
from ..passes.dispatch import PassRunner
from ..passes.flow import Keep, flow_of
from ..passes.places import INSTEAD
from ..results.flow import FlowStep, RelevanceFlow
from ..results.tokens import Token
from ..text.batching import Predictions, pad
from ..text.given import as_python, shortened, split
from ..text.items import item_of
from ..text.suspect import notes_of
from ..text.targets import SeveralTokens
from ..text.tokenization import encode
from ..text.units import predicted_token, special_ids
from .predictions import LIKELIEST, likeliest_is_contrast, misspelt_token
from .spelling import averages_in_generate


@dataclass(frozen=True)
class AskedFlow:
    """What is to be explained, and how much of it kept; as the arguments of ``Explainer.flow``."""

    target: Any
    contrast: Any
    position: Any
    between: Sequence[Any] | None
    layers: Sequence[int] | None
    share: float | None
    threshold: float | None


def explain_flow(
    runner: PassRunner, tokenizer: Any, text: Any, method: Method, settings: dict[str, Any], asked: AskedFlow
) -> RelevanceFlow:
    """Follow the relevance of one prediction.

    Raises:
        InputError: Something that cannot be used.
        UnsupportedModelError: The model cannot be explained correctly, or runs no blocks one after the other.
        NonFiniteError: NaN or infinity appeared.
    """
    check_decomposes(method, "does not propagate relevance through the blocks, so there is no flow of it")
    keep, model = keep_of(asked.share, asked.threshold), runner.model
    signature = ModelSignature.of(model)
    if signature.task not in ("causal", "masked"):
        raise UnsupportedModelError(
            f"{signature.name} is for {signature.task}, and a flow is that of a prediction of a causal or masked language model.",
            **INSTEAD,
        )
    for name in ("target", "contrast", "position"):
        if isinstance(value := as_python(getattr(asked, name)), list):
            raise InputError(
                f"{name}={shortened(value)}: flow() follows one prediction, of one token. Call it once for each."
            )
    between, at = _places(asked, settings["at"])
    spec, _ = how(method, {**settings, "at": at})
    singles, several = split(text)
    if several and len(singles) != 1:
        raise InputError(f"{len(singles)} texts: flow() takes one. Call it once for each.")
    encoded = encode(tokenizer, singles[0])[0]
    if signature.task == "causal":
        encoded = encoded.without_closing()
    given = {"target": asked.target, "contrast": asked.contrast, "position": asked.position}
    try:
        item = item_of(signature, tokenizer, encoded, **given, several=False)
    except SeveralTokens as error:
        raise InputError(f"{error} flow() follows the relevance of one token's logit.") from None
    batch = pad([item], model, likeliest=LIKELIEST if signature.task == "causal" else 0)
    with lock_of(model):
        found = flow_of(runner, batch, spec, keep, between=between, layers=asked.layers)
    before = encoded.token_ids[: item.position + 1]
    target = predicted_token(tokenizer, found.target, before)
    if found.target == item.contrast:
        others = [] if found.predictions is None else found.predictions.ids[1:2].tolist()
        raise likeliest_is_contrast(target, predicted_token(tokenizer, others[0], before) if others else None)
    contrast = None if item.contrast is None else predicted_token(tokenizer, item.contrast, before)
    doubts = _doubts(
        found.predictions, {role: given[role] for role in ("target", "contrast")}, (target, contrast), tokenizer
    )
    about = runner.provenance(method.name, settings)
    about |= {"target": target.id, "target_text": target.text}
    about |= {"contrast": contrast and contrast.id, "contrast_text": contrast and contrast.text}
    [known] = notes_of([encoded], tokenizer, padding_id(model, tokenizer), signature)
    for note in known:
        warn(note)
    names = found.places
    steps = [FlowStep(**{**vars(step), "upper": names[step.upper], "lower": names[step.lower]}) for step in found.steps]
    return RelevanceFlow(
        tokens=encoded.tokens,
        token_ids=list(encoded.token_ids),
        units=encoded.units,
        value=found.value,
        target=target,
        contrast=contrast,
        position=item.position,
        method=method.name,
        places=names,
        relevance=found.relevance,
        kept=found.kept,
        steps=steps,
        share=keep.share,
        threshold=keep.threshold,
        text=encoded.text,
        special=tuple(n for n, i in enumerate(encoded.token_ids) if i in special_ids(tokenizer)),
        notes=(*known, *item.notes, *doubts, *found.notes),
        provenance=about,
    )


def _doubts(
    predicted: Predictions | None, given: Mapping[str, Any], named: tuple[Token, Token | None], tokenizer: Any
) -> list[str]:
    """Warnings about a target or contrast, given as a string, that was probably meant otherwise."""
    found: list[str] = []
    if predicted is not None:
        found += averages_in_generate(given["contrast"])
        for (role, text), token, chance in zip(
            given.items(), named, (predicted.target, predicted.contrast), strict=True
        ):
            if isinstance(text, str) and token is not None and chance is not None:
                found += misspelt_token(role, token, chance[0], predicted, tokenizer)
    for doubt in found:
        warn(doubt)
    return found


def keep_of(share: Any, threshold: Any) -> Keep:
    """What is kept, from the arguments.

    Raises:
        InputError: Both are given, or one is no such number.
    """
    if share is not None and threshold is not None:
        raise InputError(f"share={share!r} and threshold={threshold!r} are both given: either says what is kept.")

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    if threshold is not None:
        if not number(threshold) or not 0 <= threshold < float("inf"):
            raise InputError(
                f"threshold={threshold!r}: give the least relevance that is kept, in logits, such as 0.05."
            )
        return Keep(None, float(threshold))
    share = 0.9 if share is None else share
    if not number(share) or not 0 < share <= 1:
        raise InputError(f"share={share!r}: give the share of the relevance that is kept, above 0 and at most 1.")
    return Keep(float(share), None)


def _places(asked: AskedFlow, at: Any) -> tuple[Sequence[Any] | None, str]:
    """The names of places, checked as far as that goes without the model; and the lowest place."""
    between = asked.between
    if asked.layers is not None:
        if between is not None:
            raise InputError("between= and layers= are both given: either names the places.")
        if isinstance(asked.layers, str | Mapping) or not hasattr(asked.layers, "__len__"):
            raise InputError(f"layers={asked.layers!r}: give a list of numbers of blocks, such as [0, 5].")
    if between is not None and (isinstance(between, str) or not hasattr(between, "__len__") or len(between) < 2):
        raise InputError(
            f'between={between!r}: give two places or more, from the text upwards, such as between=["input", "...", "last"].'
        )
    places = (at,) if isinstance(at, str) else tuple(at)
    if places not in (("input",), ("embedding",)):
        raise InputError(f'at={at!r}: the lowest place of a flow is "input" or "embedding". Others are for between=.')
    [lowest] = places
    if between is not None and between[0] == "embedding":
        lowest = "embedding"
    return between, lowest
