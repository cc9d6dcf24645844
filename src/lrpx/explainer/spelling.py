"""Strings that can be taken for something else.

1. A target or contrast of several tokens that was probably meant with another leading space: its probability tells. For a
   single token ``predictions.py`` knows that from the pass itself; here the other spelling takes a forward pass of its own.
2. A contrast that is the name of an average of logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import ModelSignature
from ..passes.dispatch import PassRunner
from ..passes.scores import exact_dtype, explained_logits
from ..passes.scoring import LIKE_AVERAGES
from ..text.batching import Item, pad
from ..text.targets import with_other_space
from ..text.tokenization import Encoded
from .predictions import FAR_MORE, far_less_probable


def misspelt(
    runner: PassRunner,
    tokenizer: Any,
    encoded: Encoded,
    item: Item,
    given: Mapping[str, Any],
    probabilities: Mapping[str, float],
) -> list[str]:
    """Warnings about strings that are far more probable with another leading space.

    Args:
        runner: Of a causal model, the only kind that is asked about several tokens.
        tokenizer: The model's.
        encoded: The text.
        item: The text, and where it is explained.
        given: ``target`` and ``contrast`` as they were given.
        probabilities: ``target_probability`` and ``contrast_probability``, those of all their tokens.
    """
    found = []
    for role in ("target", "contrast"):
        text, p = given[role], probabilities.get(f"{role}_probability")
        other = with_other_space(text, encoded, item.position, tokenizer) if isinstance(text, str) else None
        if other is not None and p is not None and probability(runner, item, other[1]) > max(FAR_MORE * p, 1e-300):
            found.append(far_less_probable(role, text, other[0]))
    return found


def misspelt_continuation(
    runner: PassRunner, tokenizer: Any, prompt: Encoded, item: Item, given: Any, ids: tuple[int, ...]
) -> tuple[str, ...]:
    """A warning about a continuation ``given`` as a string, of the tokens ``ids``, that is far more probable otherwise."""
    other = with_other_space(given, prompt, item.position, tokenizer) if isinstance(given, str) else None
    if other is None:
        return ()
    p, q = (probability(runner, item, each) for each in (ids, other[1]))
    return (far_less_probable("continuation", given, other[0]),) if q > max(FAR_MORE * p, 1e-300) else ()


def averages_in_generate(contrast: Any) -> tuple[str, ...]:
    """A note where a contrast is text that can be taken for an average of logits, which ``generate`` subtracts."""
    if not isinstance(contrast, str) or not LIKE_AVERAGES.fullmatch(contrast):
        return ()
    return (
        f"the contrast is the text {contrast!r}, not an average of logits. For that use generate(), with the target as "
        'continuation= and contrast="mean", or "top10".',
    )


def probability(runner: PassRunner, item: Item, ids: tuple[int, ...]) -> float:
    """How likely a causal model finds all of ``ids`` after the tokens up to the item's position; 0 where it cannot read them."""
    read = (*item.token_ids[: item.position + 1], *ids[:-1])
    context = ModelSignature.of(runner.model).context
    if context is not None and len(read) > context:
        return 0.0
    extras = {name: (*values, *[values[-1]] * len(ids))[: len(read)] for name, values in item.extras.items()}
    batch = pad([Item(read, item.position, None, None, extras)], runner.model)
    positions = torch.arange(item.position, len(read), device=batch.positions.device)
    with lock_of(runner.model), torch.no_grad(), fresh_rotations(runner.model):
        logits, index = explained_logits(runner.model, replace(batch, positions=positions))
    rows = logits[0, index.to(logits.device)]
    chosen = torch.tensor(ids, device=rows.device).unsqueeze(1)
    return float(rows.to(exact_dtype(rows)).log_softmax(-1).gather(1, chosen).sum().exp())
