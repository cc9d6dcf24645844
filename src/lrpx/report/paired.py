"""Is one method ahead of another? Paired tests on the samples that both explain, corrected for how many pairs are tested.

For a metric m and methods a, b on N common samples, d_n = m_n(a) - m_n(b):

1. The difference is the mean of d, with a percentile bootstrap interval over samples.
2. The test is a randomisation test (Fisher): if the two were alike, the sign of each d_n could as well be the other one. A sum
   of d_n with random signs has mean 0 and variance sum d_n^2, and for many samples it is normal, so
   p = erfc(|sum d_n| / sqrt(2 sum d_n^2)). Where fewer than 16 samples differ, this is too small: there p is exact, the
   share of all 2^n signs with a sum as large, |sum s_n d_n| >= |sum d_n|.
3. Holm's correction over all pairs of the model: with p sorted, adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..evaluation.metrics import FEWEST, Interval
from .measured import Columns, common, difference

EXACT_BELOW = 16  # samples that differ: 2^15 signs at most


class Comparison(NamedTuple):
    """One method against another: mean difference with its interval, samples, p and p after Holm's correction."""

    difference: Interval
    samples: int
    p: float
    adjusted: float


def compared(methods: dict[str, Columns], metric: str) -> dict[tuple[str, str], Comparison]:
    """Every pair of methods that share samples, each both ways round: ``(a, b)`` holds ``a - b``."""
    pairs = [pair for pair in combinations(methods, 2) if len(common(*(methods[name] for name in pair)))]
    differences = [difference(methods[a], methods[b], metric) for a, b in pairs]
    p = [randomisation(d) for d in differences]
    found = {}
    for (a, b), interval, d, own, adjusted in zip(pairs, intervals(differences), differences, p, holm(p), strict=True):
        found[a, b] = Comparison(interval, len(d), own, adjusted)
        found[b, a] = Comparison(Interval(-interval.mean, -interval.high, -interval.low), len(d), own, adjusted)
    return found


def intervals(columns: Sequence[np.ndarray]) -> list[Interval]:
    """Mean and 95 % interval of each array, as ``metrics.bootstrap`` gives them; equally many samples are resampled alike."""
    found: dict[int, Interval] = {}
    for size in {len(values) for values in columns}:
        places = [n for n, values in enumerate(columns) if len(values) == size]
        together = np.column_stack([columns[n] for n in places]).astype(np.float64)
        low, high = np.quantile(resamples(size) @ together / size, [0.025, 0.975], axis=0)
        if size < FEWEST:
            low, high = np.full((2, len(places)), np.nan)
        ends = zip(together.mean(axis=0), low, high, strict=True)
        found |= {n: Interval(*map(float, each)) for n, each in zip(places, ends, strict=True)}
    return [found[n] for n in range(len(columns))]


@lru_cache(maxsize=4)
def resamples(size: int) -> np.ndarray:
    """How often each of ``size`` samples is drawn in each of 1,000 resamples, float64 ``[1000, size]``."""
    rng = np.random.default_rng(0)
    draws = (rng.integers(size, size=size) for _ in range(1000))
    return np.stack([np.bincount(drawn, minlength=size) for drawn in draws]).astype(np.float64)


def randomisation(differences: np.ndarray) -> float:
    """The p of step 2; 1 where nothing differs."""
    differing = np.asarray(differences, dtype=np.float64)
    differing = differing[differing != 0]  # the others change neither the sum nor the share
    total = abs(float(differing.sum()))
    if len(differing) >= EXACT_BELOW:
        return math.erfc(total / math.sqrt(2 * float(np.square(differing).sum())))
    slack = 1e-12 * float(np.abs(differing).sum())  # equal sums may differ by rounding
    return float((np.abs(_signs(len(differing)) @ differing) >= total - slack).mean())


@lru_cache(maxsize=EXACT_BELOW)
def _signs(size: int) -> np.ndarray:
    """All signs of ``size`` numbers, float64 ``[2^size, size]``: the bits of 0, 1, 2, ..."""
    return 1.0 - 2.0 * (np.arange(2**size)[:, None] >> np.arange(size) & 1)


def holm(p: Sequence[float]) -> list[float]:
    """The adjusted values of step 3, in the given order."""
    adjusted, highest = [0.0] * len(p), 0.0
    for place, n in enumerate(sorted(range(len(p)), key=lambda n: p[n])):
        highest = max(highest, min(1.0, (len(p) - place) * p[n]))
        adjusted[n] = highest
    return adjusted
