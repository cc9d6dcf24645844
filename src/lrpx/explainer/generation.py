"""``Explainer.generate``: what a model went on with, and what each token of that was made of.

1. The prompt and its continuation as ids: the model's own continuation, or one that is given.
2. What the score of each token is, and which sums of scores are asked for.
3. One forward pass over the whole text, and one backward pass per value (``passes/many_targets.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..errors import InputError, warn
from ..methods import Method
from ..methods.generated import OneByOne, about_rotations, how, is_one_pass
from ..models.lock import lock_of
from ..models.reader import image_processor_of, tokenizer_of
from ..models.signature import ModelSignature, padding_id
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..passes.many_targets import FEW, ManyTargets, check_reads_forward, explain_many
from ..passes.scoring import AVERAGES, LIKE_AVERAGES, Average, Objective, Scoring
from ..passes.spec import PassSpec
from ..results.generation import GenerationExplanation
from ..results.spans import checked_spans, checked_weights, hop, hop_notes
from ..results.tokens import Token
from ..tasks.image_text import check_images
from ..tasks.text2text import target_side
from ..text.batching import Item, pad
from ..text.given import as_python
from ..text.items import item_of
from ..text.suspect import notes_of
from ..text.targets import resolve_token
from ..text.tokenization import Encoded
from ..text.units import predicted_token, special_ids
from .generated_rows import GeneratedRows


@dataclass(frozen=True)
class Asked:
    """What is to be explained of a continuation; as the arguments of ``Explainer.generate``, and notes on it."""

    objective: Objective
    contrast: Any
    spans: Sequence[tuple[int, int]] | tuple[int, int] | None
    weights: Any
    hops: int
    notes: tuple[str, ...] = ()


def explain_continuation(
    runner: PassRunner,
    reader: Any,
    prompt: Encoded,
    continuation: tuple[int, ...],
    method: Method,
    settings: dict[str, Any],
    asked: Asked,
    progress: bool | None,
    batch_tokens: int,
) -> GenerationExplanation:
    """Explain the tokens of a continuation.

    Raises:
        InputError: A span, weight, contrast or option that cannot be used.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    model, count, first, tokenizer = runner.model, len(continuation), len(prompt.token_ids), tokenizer_of(reader)
    images = bool(prompt.image_inputs)
    spec, combine = how(method, settings, images=images) if is_one_pass(method) else (PassSpec({}), torch.mul)
    if asked.objective not in ("logit", "logprob"):
        raise InputError(f'objective={asked.objective!r}: give "logit" or "logprob".')
    if isinstance(asked.hops, bool) or not isinstance(asked.hops, int) or asked.hops < 0:
        raise InputError(f"hops={asked.hops!r}: give a number from 0.")
    if asked.hops and method.measures != "parts":
        raise InputError(
            f"{method.name} does not decompose the explained value, so there is nothing to pass on. Leave out hops."
        )
    spans = [(i, i + 1) for i in range(count)] if asked.spans is None else checked_spans(asked.spans, count)
    if asked.weights is not None and asked.spans is None:
        raise InputError("weights= are those of the tokens in a span: give spans=[(start, stop)] too.")
    weights = checked_weights(asked.weights, count)
    ids = (*prompt.token_ids, *continuation)
    signature = ModelSignature.of(model)
    extras = {name: (*values, *[values[-1]] * (count - 1)) for name, values in prompt.extras.items()}
    read = replace(prompt, text=None, token_ids=ids[:-1], extras=extras)
    item = item_of(signature, tokenizer, read, target=ids[-1])
    item = replace(item, images=item.lengthened(ids[:-1], item.position, ids[-1]).images)
    check_images(model, item, method, settings)
    if item.images and method.changes_pixels:
        raise InputError(
            f"{method.name} explains one prediction of a text with images, and no generated text.",
            python="Explain one token: explainer(text, images=[...], target=...).",
            command="Explain one token: lrpx explain TEXT --image FILE.",
            app="Choose another method, such as attnlrp.",
        )
    if item.images and not signature.placeholders.isdisjoint(continuation):
        raise InputError(
            "the continuation holds a token that stands for an image, and no image is given for it. Let the model generate fewer "
            "tokens, or give another continuation."
        )
    contrast = _contrast(asked, ids, continuation, prompt, tokenizer, model)
    scoring = Scoring(
        positions=range(first - 1 - prompt.source, first - 1 - prompt.source + count),
        targets=continuation,
        contrast=contrast,
        objective=asked.objective,
        probabilities=asked.spans is None,
    )
    factors = np.zeros((len(spans), count))
    for row, (start, stop) in zip(factors, spans, strict=True):
        row[start:stop] = weights[start:stop]
    kept: set[int] = set()
    rows = GeneratedRows(model, prompt.followed_by(continuation, tokenizer), image_processor_of(reader))

    def ask(many: ManyTargets | OneByOne) -> tuple[ManyTargets | OneByOne, np.ndarray]:
        with tqdm(total=len(factors), desc=method.name, unit="token", disable=progress is not True) as bar:
            found = rows.relevance(many, factors, combine, bar.update)

        def row_of(one: np.ndarray) -> np.ndarray:
            return rows.relevance(many, one[None], combine)[0]

        for i in range(len(found) * bool(asked.hops)):
            found[i], stayed = hop(found[i], many.scores, row_of, asked.hops, rows.begin(first))
            kept.update(stayed)
        return many, found

    many: ManyTargets | OneByOne
    about: tuple[str, ...] = ()
    if is_one_pass(method):
        with lock_of(model):
            if asked.spans is not None:
                check_reads_forward(runner, pad([item.beginning(FEW)], model), spec)
            many, relevance = explain_many(runner, pad([item], model), spec, scoring, ask)
        about = many.notes
        item = replace(item, notes=(*item.notes, *about_rotations(model, first, len(ids) - 1)))
    else:
        _check_one_by_one(method, asked, contrast)
        others = contrast if isinstance(contrast, tuple) else [None] * count
        items = [
            Item(ids[:end], end - 1, ids[end], others[end - first], {k: v[:end] for k, v in item.extras.items()})
            for end in range(first, first + count)
        ]
        many, relevance = ask(OneByOne(runner, method, settings, items, batch_tokens))
    values = factors @ many.scores
    given = replace(prompt, token_ids=prompt.token_ids[: prompt.source or None])
    [notes] = notes_of([given], tokenizer, padding_id(model, tokenizer), signature)
    for note in (*notes, *asked.notes, *item.notes):
        warn(note)
    whole = rows.encoded
    return GenerationExplanation(
        tokens=whole.tokens,
        token_ids=list(whole.token_ids),
        units=whole.units,
        prompt_length=rows.begin(first),
        spans=spans,
        relevance=relevance,
        values=values,
        residuals=values - relevance.sum(1) if method.measures == "parts" else None,
        method=method.name,
        probabilities=None if many.log_probabilities is None else np.exp(many.log_probabilities),
        objective=asked.objective,
        contrast=_named(contrast, tokenizer),
        weights=None if asked.weights is None else weights,
        hops=asked.hops,
        at=place_first(settings["at"])[0] if is_one_pass(method) else spec.at[0],
        text=prompt.text,
        source=rows.begin(prompt.source),
        special=tuple(n for n, i in enumerate(whole.token_ids) if i in special_ids(tokenizer)),
        images=whole.images,
        measures=method.measures,
        notes=(
            *prompt.notes,
            *notes,
            *asked.notes,
            *item.notes,
            *about,
            *_outside(method),
            *(hop_notes(asked.hops, sorted(kept)) if asked.hops else ()),
        ),
        provenance=runner.provenance(method.name, settings),
    )


def _outside(method: Method) -> tuple[str, ...]:
    """A note on what a row leaves out."""
    if method.name != "alti-logit":
        return ()
    return ("The residuals hold what MLPs and biases gave, which alti-logit assigns to no token.",)


def _check_one_by_one(method: Method, asked: Asked, contrast: Sequence[int] | Average | None) -> None:
    """Refuse what only a method of one pass can explain."""
    if isinstance(contrast, Average) or asked.objective != "logit":
        raise InputError(
            f"{method.name} explains logits of tokens, one at a time: give tokens as contrast, or none, and no other objective."
        )
    if asked.spans is not None and method.measures != "parts":
        raise InputError(
            f"{method.name} does not decompose the explained value, so spans have no map. Leave out spans."
        )


def _contrast(
    asked: Asked, ids: Sequence[int], targets: Sequence[int], prompt: Encoded, tokenizer: Any, model: PreTrainedModel
) -> tuple[int, ...] | Average | None:
    """What is subtracted at each position: G ids, an average, or nothing. With hops the mean, unless something is given."""
    given, vocabulary = as_python(asked.contrast), ModelSignature.of(model).vocabulary
    if given is None:
        return Average() if asked.hops else None
    if isinstance(given, str) and (found := AVERAGES.fullmatch(given)):
        count = None if found[1] is None else int(found[1])
        if count is not None and count > vocabulary:
            raise InputError(f"contrast={given!r}: the vocabulary has {vocabulary} tokens.")
        return Average(count)
    if isinstance(given, str) and LIKE_AVERAGES.fullmatch(given):
        raise InputError(
            f'contrast={given!r}: the averages of logits are "mean" and "top10" (of the ten largest; any number from 1).',
            python="If you mean the token of this name, give its id.",
            command="",
        )
    each = given if isinstance(given, list) else [given] * len(targets)
    if len(each) != len(targets):
        raise InputError(
            f"{len(each)} contrasts for {len(targets)} generated tokens. Give one for each, one for all, "
            '"mean" (the mean logit), or "top10" (the mean of the ten largest).'
        )
    found_ids = []
    for i, one in enumerate(each):
        first, side = target_side(prompt, tokenizer)
        before = replace(prompt, text=None, token_ids=tuple(ids[: len(prompt.token_ids) + i]))
        context = first if i == 0 else before
        chosen = resolve_token(
            one, "contrast", context, len(context.token_ids) - 1, side, vocabulary, "causal", several=False
        )
        if chosen is None:
            raise InputError("a contrast is None: give one for each generated token.")
        if chosen == targets[i]:
            raise InputError(
                f"contrast {one!r} is generated token {i} itself ({chosen}): their difference is 0. Give another one there."
            )
        found_ids.append(chosen)
    return tuple(found_ids)


def _named(contrast: Sequence[int] | Average | None, tokenizer: Any) -> str | tuple[Token, ...] | None:
    if contrast is None or isinstance(contrast, Average):
        return None if contrast is None else str(contrast)
    return tuple(predicted_token(tokenizer, i, ()) for i in contrast)
