"""Does the relevance point at the ground truth? The four metrics of Arras et al. (2025), "Evaluation Metrics".

For relevance r over T tokens and ground truth G (some of the T positions):

1. rank of a token = number of tokens with relevance >= its own, so that ties count against the explanation and a
   constant map scores low; best = the smallest rank in G;
2. PGk (pointing game) = 1 if best <= k, else 0;
3. MRR (reciprocal rank) = 1 / best;
4. RMA (relevance mass) = sum over G of max(r, 0) / sum over all tokens of max(r, 0), 0 when nothing is positive;
5. PTA (per-token accuracy) = share of tokens t with (r_t > 0) == (t in G).

All lie in [0, 1], higher is better. Samples of any length are concatenated and reduced by segment, without a loop
over tokens. This needs numpy only, so explanations made elsewhere can be scored too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, NonFiniteError


@dataclass(frozen=True, eq=False)
class Scores:
    """The four metrics of N samples, each a float64 array ``[N]``.

    Attributes:
        pg: Pointing game: 1 where one of the ``k`` most relevant tokens is in the ground truth.
        mrr: Reciprocal of the best rank in the ground truth.
        rma: Share of the positive relevance that lies in the ground truth.
        pta: Share of tokens whose sign agrees with the ground truth.
        k: The k of ``pg``.
    """

    pg: np.ndarray
    mrr: np.ndarray
    rma: np.ndarray
    pta: np.ndarray
    k: int = 2

    def __len__(self) -> int:
        return len(self.pg)

    def to_dict(self) -> dict[str, np.ndarray]:
        """The arrays by name, in the order of the paper's tables: ``pg2`` (or another k), ``mrr``, ``rma``, ``pta``."""
        return {f"pg{self.k}": self.pg, "mrr": self.mrr, "rma": self.rma, "pta": self.pta}

    def mean(self, where: np.ndarray | None = None) -> dict[str, float]:
        """Averages over all samples, or over those where the boolean array ``where [N]`` is true.

        Raises:
            InputError: There is nothing to average, or ``where`` does not fit.
        """
        chosen = np.ones(len(self), bool) if where is None else np.asarray(where)
        if chosen.shape != (len(self),) or chosen.dtype != bool:
            raise InputError(
                f"where is {chosen.dtype} of shape {chosen.shape}: give one boolean for each of {len(self)} samples."
            )
        if not chosen.any():
            raise InputError(f"none of {len(self)} samples is left to average over.")
        return {name: float(values[chosen].mean()) for name, values in self.to_dict().items()}


FEWEST = 6  # samples for an interval or a comparison: even if all of 5 agree in sign, p = 2 / 2^5 > .05


class Interval(NamedTuple):
    """A mean and its bootstrap confidence interval; numbers, or one array per column of the input.

    The ends are NaN where fewer than ``FEWEST`` samples say too little about others.
    """

    mean: Any
    low: Any
    high: Any

    @property
    def known(self) -> bool:
        """Whether there are ends; of one mean."""
        return not np.isnan(self.low)


class Baseline(NamedTuple):
    """What random relevance scores: mean and standard deviation over the seeds, and each seed's averages."""

    mean: dict[str, float]
    std: dict[str, float]
    runs: dict[str, np.ndarray]  # name -> [seeds]


def score(relevances: Iterable[Any], ground_truths: Iterable[Any], *, k: int = 2) -> Scores:
    """Score explanations against their ground truths.

    Args:
        relevances: N arrays of any lengths ``[T_n]``: one relevance per token.
        ground_truths: N ground truths: token positions ``[G_n]`` (integers from 0), or boolean arrays ``[T_n]``.
        k: How many of the most relevant tokens the pointing game looks at.

    Returns:
        Per-sample scores; ``.mean()`` averages them. Average over correctly predicted samples only, as the paper does.

    Raises:
        InputError: Numbers of samples differ, a relevance is no vector, a ground truth is empty or outside the tokens.
        NonFiniteError: A relevance is NaN or infinite; the error names the sample.
    """
    if not isinstance(k, int) or k < 1:
        raise InputError(f"k={k!r}: give a whole number of tokens, 1 or more.")
    rows = [_vector(r, n) for n, r in enumerate(relevances)]
    truths = list(ground_truths)
    if len(rows) != len(truths):
        raise InputError(
            f"{len(rows)} relevances and {len(truths)} ground truths: give one ground truth per relevance."
        )
    lengths = np.array([len(r) for r in rows], dtype=np.int64)
    inside = _membership(truths, lengths)
    flat = np.concatenate(rows) if rows else np.zeros(0)
    if not np.isfinite(flat).all():
        token = int(np.flatnonzero(~np.isfinite(flat))[0])
        sample = int(np.searchsorted(np.cumsum(lengths), token, side="right"))
        place = token - int(lengths[:sample].sum())
        raise NonFiniteError(f"relevance of sample {sample} is {flat[token]} at token {place}; a score needs numbers.")
    return _score(flat, inside, lengths, k)


def _score(flat: np.ndarray, inside: np.ndarray, lengths: np.ndarray, k: int) -> Scores:
    """The metrics of concatenated samples: relevance ``[sum T]``, ground truth ``[sum T]`` bool, lengths ``[N]``."""
    if not len(lengths):
        return Scores(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), k)
    starts = np.cumsum(lengths) - lengths

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts, dtype=np.float64)

    top = np.maximum.reduceat(np.where(inside, flat, -np.inf), starts)  # [N] best relevance in G
    rank = total(flat >= np.repeat(top, lengths))
    # Largest first, so that the sum cannot overflow and a sample of tiny numbers does not vanish.
    peak = np.maximum.reduceat(np.maximum(flat, 0.0), starts)
    positive = np.maximum(flat, 0.0) / np.repeat(np.where(peak > 0, peak, 1.0), lengths)
    mass = total(positive)
    hit = total(np.where(inside, positive, 0.0))
    return Scores(
        pg=(rank <= k).astype(np.float64),
        mrr=1.0 / rank,
        rma=np.divide(hit, mass, out=np.zeros_like(hit), where=mass > 0),
        pta=total((flat > 0) == inside) / lengths,
        k=k,
    )


def bootstrap(values: Any, *, n: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Mean of ``values`` with a percentile bootstrap confidence interval.

    Args:
        values: ``[N]``, or ``[N, M]`` for M metrics of the same samples: they are then resampled together.
        n: Number of resamples.
        seed: Seed of the resampling.
        level: Coverage of the interval.

    Returns:
        ``(mean, low, high)``: floats for ``[N]``, arrays ``[M]`` for ``[N, M]``. Of fewer than ``FEWEST`` samples, ``low`` and
        ``high`` are NaN.

    Raises:
        InputError: There are no values, or ``n`` or ``level`` makes no sense.
        NonFiniteError: A value is NaN or infinite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or not len(array):
        raise InputError(f"values of shape {array.shape}: give [N] or [N, M] numbers with N of 1 or more.")
    if n < 1 or not 0 < level < 1:
        raise InputError(f"n={n}, level={level}: give n of 1 or more and a level between 0 and 1, such as 0.95.")
    if not np.isfinite(array).all():
        raise NonFiniteError("the values to average hold NaN or infinity.")
    rng = np.random.default_rng(seed)
    columns = array.reshape(len(array), -1)  # [N, M]
    means = np.empty((n, columns.shape[1]))
    for i in range(n):  # one resample at a time: n x N indices would not fit in memory
        means[i] = columns[rng.integers(len(columns), size=len(columns))].mean(axis=0)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if len(array) < FEWEST:
        low, high = np.full((2, columns.shape[1]), np.nan)
    if array.ndim == 1:
        return Interval(float(array.mean()), float(low[0]), float(high[0]))
    return Interval(array.mean(axis=0), low, high)


def random_baseline(
    ground_truths: Sequence[Any], lengths: Sequence[int] | np.ndarray, *, k: int = 2, seeds: int = 10
) -> Baseline:
    """What relevances drawn uniformly from [-1, 1) score: the paper's random row.

    Args:
        ground_truths: N ground truths, as for ``score``.
        lengths: Their N numbers of tokens.
        k: The k of the pointing game.
        seeds: Number of draws, with seeds 0, 1, ...

    Returns:
        Mean and standard deviation (of the sample, 0 for one seed) of the averages over the seeds.

    Raises:
        InputError: There are no samples or seeds, or ground truths and lengths do not fit.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    truths = list(ground_truths)
    if sizes.shape != (len(truths),) or not len(truths) or seeds < 1:
        raise InputError(
            f"{len(truths)} ground truths, lengths of shape {sizes.shape}, {seeds} seeds: give one length per ground "
            "truth and at least one of each."
        )
    inside = _membership(truths, sizes)
    draws = (np.random.default_rng(seed).uniform(-1.0, 1.0, size=len(inside)) for seed in range(seeds))
    averages = [_score(flat, inside, sizes, k).mean() for flat in draws]
    runs = {name: np.array([a[name] for a in averages]) for name in averages[0]}
    std = {name: float(values.std(ddof=1)) if seeds > 1 else 0.0 for name, values in runs.items()}
    return Baseline({name: float(values.mean()) for name, values in runs.items()}, std, runs)


def _vector(relevance: Any, sample: int) -> np.ndarray:
    """One relevance as a float64 vector."""
    try:
        array = np.asarray(relevance, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # torch says RuntimeError for a tensor with gradient
        raise InputError(
            f"relevance of sample {sample} is not an array of numbers: {error}. "
            "For a tensor, give r.detach().cpu().double().numpy()."
        ) from error
    if array.ndim != 1 or not len(array):
        raise InputError(f"relevance of sample {sample} has shape {array.shape}: give one number per token, [T].")
    return array


def _membership(truths: Sequence[Any], lengths: np.ndarray) -> np.ndarray:
    """Ground truths of concatenated samples as one boolean array ``[sum T]``."""
    starts = np.cumsum(lengths) - lengths
    inside = np.zeros(int(lengths.sum()), dtype=bool)
    positions = [np.asarray(truth) for truth in truths]
    for n, array in enumerate(positions):
        if array.dtype == bool:
            if array.shape != (lengths[n],):
                raise InputError(f"ground truth of sample {n}: boolean of shape {array.shape} for {lengths[n]} tokens.")
            positions[n] = array = np.flatnonzero(array)
        if array.ndim != 1 or not len(array):
            raise InputError(f"ground truth of sample {n} is empty: give the positions of at least one token.")
        if array.dtype.kind not in "iu":
            raise InputError(
                f"ground truth of sample {n} holds {array.dtype}: give token positions as integers from 0."
            )
    if not positions:
        return inside
    sample = np.repeat(np.arange(len(positions)), [len(array) for array in positions])
    flat = np.concatenate(positions).astype(np.int64)
    outside = (flat < 0) | (flat >= lengths[sample])
    if outside.any():
        n = sample[outside.argmax()]
        raise InputError(
            f"ground truth of sample {n} is {positions[n].tolist()}: positions lie between 0 and {lengths[n] - 1}."
        )
    inside[flat + starts[sample]] = True
    return inside
