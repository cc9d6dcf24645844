"""Do methods agree? Spearman's rank correlation of their relevances, text by text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np


def agreements(each: Iterable[tuple[Hashable, str, np.ndarray]]) -> dict[tuple[str, str], float]:
    """The rank correlation of every two methods, averaged over what both explain; NaN where it is not defined.

    Fewer than three numbers, and numbers that are all the same, are left out.

    Args:
        each: What is explained, the method, and its relevance ``[n]``.
    """
    by_what: dict[Hashable, dict[str, np.ndarray]] = {}
    methods: dict[str, None] = {}
    for what, method, relevance in each:
        by_what.setdefault(what, {})[method] = relevance
        methods[method] = None
    names, found = list(methods), {}
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            both = [known for known in by_what.values() if first in known and second in known]
            values = [rank_correlation(known[first], known[second]) for known in both]
            defined = [value for value in values if value is not None]
            found[first, second] = float(np.mean(defined)) if defined else float("nan")
    return found


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's rank correlation of two arrays ``[n]``, ties with their mean rank; ``None`` where it is not defined."""
    ranks = [_ranks(np.asarray(values, float)) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return None if len(ranks[0]) < 3 or size == 0 else float((centred[0] * centred[1]).sum() / size)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    middle: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return middle
