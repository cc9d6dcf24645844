"""Spans of generated tokens: which they are, what they weigh, and how what they took goes on to the tokens before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, counted

Passes = Callable[[np.ndarray], np.ndarray]  # weights of the G scores -> relevance [N - 1] of their weighted sum


def hop(
    relevance: np.ndarray, scores: np.ndarray, passes: Passes, hops: int, prompt_length: int
) -> tuple[np.ndarray, list[int]]:
    """Pass on what generated tokens took to the tokens before them, ``hops`` times.

    A generated token i that holds relevance ``r_i`` was itself predicted, with score ``s_i``. One backward pass from the sum of
    ``(r_i / s_i) s_i`` gives the tokens before it what it held: nothing is lost but the residual of that pass. After recursive
    attribution of Pan et al. 2026 (FlashTrace, arXiv 2602.01914), with signs kept.

    Args:
        relevance: ``[N - 1]``.
        scores: ``[G]``. A token whose score is not positive was no likely choice; it keeps what it took.
        passes: A backward pass.
        hops: How often.
        prompt_length: P.

    Returns:
        The relevance afterwards, and which generated tokens kept a part because of their score.
    """
    found, held = relevance.copy(), relevance[prompt_length:].copy()
    goes = scores[: len(held)] > 0
    kept: set[int] = set()
    for _ in range(hops):
        kept |= set(np.flatnonzero(~goes & (held != 0)).tolist())
        passed = np.where(goes, held, 0.0)
        if not passed.any():
            break
        weights = np.zeros(len(scores))
        weights[: len(held)] = np.divide(passed, scores[: len(held)], out=np.zeros_like(passed), where=goes)
        found[prompt_length:] -= passed
        moved = passes(weights)
        found += moved
        held = moved[prompt_length:].copy()
    return found, sorted(kept)


def hop_notes(hops: int, kept: Sequence[int]) -> tuple[str, ...]:
    """What a reader must know about an explanation with hops."""
    times = "once" if hops == 1 else f"{hops} times"
    notes = [f"what generated tokens took was passed on to the tokens before them, {times}."]
    if kept:
        notes.append(
            f"{len(kept)} generated token{'s' * (len(kept) > 1)} (the first: {kept[0]}) kept what they took: their own score "
            "is not positive."
        )
    return tuple(notes)


def checked_spans(spans: Any, generated: int) -> list[tuple[int, int]]:
    """Several spans of generated tokens; a pair of integers is one span.

    Raises:
        InputError: There is none, or one of them cannot be used.
    """
    if _is_pair(spans):
        spans = [spans]
    if not isinstance(spans, list | tuple) or not spans:
        raise InputError(
            f"spans={spans!r}: no span. Give some, such as spans=[(0, {generated})], or leave it out for each token."
        )
    return [checked_span(span, generated) for span in spans]


def checked_span(span: Any, generated: int) -> tuple[int, int]:
    """Start and stop of a span of generated tokens, not negative.

    Raises:
        InputError: There is no such span, or it is empty.
    """
    if not _is_pair(span):
        raise InputError(
            f"the span {span!r}: give (start, stop), counted over the generated tokens, such as (0, {generated})."
        )
    start, stop = (i + generated * (i < 0) for i in map(int, span))  # of NumPy, too: JSON knows none
    if not 0 <= start < stop <= generated:
        raise InputError(
            f"the span {span[0]}:{span[1]} is empty or goes beyond the generated tokens, of which there are {generated}: "
            f"start counts from 0, and stop is the first after the span, at most {generated}."
        )
    return start, stop


def _is_pair(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(i, int | np.integer) for i in given)


def weight_notes(weights: np.ndarray | None) -> tuple[str, ...]:
    """What a reader must know of weights that are not all 1."""
    if weights is None or (weights == 1).all():
        return ()
    return (f"the scores of the tokens are multiplied by {', '.join(f'{weight:g}' for weight in weights)}",)


def checked_weights(weights: Any, count: int) -> np.ndarray:
    """One weight for each of ``count`` tokens, as float64; 1 by default.

    Raises:
        InputError: Another number of them, or something that is no number.
    """
    if weights is None:
        return np.ones(count)
    try:
        given = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(0, np.nan)
    if given.shape != (count,) or not np.isfinite(given).all():
        raise InputError(f"weights={weights!r}: give {counted(count, 'number')}, one for each token.")
    return given


def explained(objective: str, average: str | None, count: int, *, weighted: bool = False) -> str:
    """What is explained of ``count`` tokens, as a phrase before their text; empty for one logit, or a difference of two."""
    if average is not None:
        mean = "mean logit" if average == "mean" else f"mean of the {average.removeprefix('top')} largest logits"
        if weighted:
            return f"weighted sum of logits minus {mean}, of"
        return f"logit minus {mean}, of" if count == 1 else f"sum of logits minus {mean}, of"
    if weighted:
        return f"weighted sum of the {'log-probabilities' if objective == 'logprob' else 'logits'} of"
    if objective == "logprob":
        return "log-probability of"
    return "" if count == 1 else "sum of the logits of"
