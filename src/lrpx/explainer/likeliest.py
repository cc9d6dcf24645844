"""``Explainer.likeliest``: which tokens a language model expects at a place of a text, from one forward pass."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError
from ..models.heads import TEXT2TEXT
from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import task_of
from ..passes.dispatch import PassRunner
from ..passes.scores import exact_dtype, explained_logits
from ..passes.validation import check_model
from ..results.tokens import Prediction
from ..text.batching import pad
from ..text.units import predicted_token
from .reading import read_texts


def likeliest(
    runner: PassRunner, reader: Any, text: Any, count: int, position: Any, images: Any, target_prefix: Any
) -> list[Prediction]:
    """The ``count`` likeliest tokens of one text; arguments as of ``Explainer.likeliest``.

    Raises:
        InputError: Something cannot be used, several texts are given, or the model is no language model.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    model, task = runner.model, task_of(runner.model)
    if task not in ("causal", "masked", TEXT2TEXT):
        raise InputError(f"likeliest() is for language models, and {type(model).__name__} is for {task}. See e.top.")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"the count is {count!r}: give a number of tokens from 1.")
    asked = {"target": None, "contrast": None, "position": position, "explains": None}
    parts = {"text_pair": None, "question": None, "choices": None, "target_prefix": target_prefix, "images": images}
    texts: Any = read_texts(runner, reader, text, asked, parts, objective="logit", collect=False, batch_tokens=1)
    if texts.several:
        raise InputError(f"{len(texts.given)} texts: likeliest() takes one. Call it once for each.")
    item, encoded = texts.items[0], texts.encoded[0]
    with lock_of(model), torch.no_grad(), fresh_rotations(model):
        check_model(model, {})
        logits, index = explained_logits(model, pad([item], model))
    scores = logits[0, index.to(logits.device)[0]]
    shares = scores.to(exact_dtype(scores)).softmax(-1)
    best = shares.topk(min(count, len(shares)))
    before = encoded.token_ids[encoded.source : item.position + 1]
    return [
        Prediction(predicted_token(texts.tokenizer, i, before), p)
        for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
