"""What explains the gap between LRP and AttnLRP on gated models? Two steps, and where relevance goes instead.

LRP and AttnLRP differ in two rules. ``lrp-uniform-gate`` stands between them: it shares a gated product as AttnLRP does, and
keeps attention constant as LRP does. So for a metric m, on the samples that all three explain,

    m(attnlrp) - m(lrp)  =  [m(uniform) - m(lrp)]  +  [m(attnlrp) - m(uniform)]
                             the rule for gates         the rule for attention

and the share of the first bracket is reported with its bootstrap interval. Then: which token is the most relevant one where
AttnLRP puts the subject first and LRP does not, and how the absolute relevance is spread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..evaluation.condensed import TOPS
from ..evaluation.metrics import FEWEST, Interval
from .measured import Columns, Measured, common, values_of
from .paired import intervals, resamples

STEPS = ("lrp", "lrp-uniform-gate", "attnlrp")


class Gap(NamedTuple):
    """The gap of one model in one metric."""

    metric: str
    means: tuple[float, float, float]  # of STEPS
    gate: Interval
    attention: Interval
    share: Interval  # of the rule for gates in the gap


def gaps(model: Measured, at: str = "input") -> list[Gap]:
    """The gap in PG2, MRR and RMA; nothing if one of the three methods is missing there."""
    methods = model.places.get(at, {})
    if not set(STEPS) <= methods.keys():
        return []
    steps = [methods[name] for name in STEPS]
    ids = common(*steps)
    return [_gap(metric, [values_of(columns, metric, ids) for columns in steps]) for metric in ("pg2", "mrr", "rma")]


def _gap(metric: str, steps: list[np.ndarray]) -> Gap:
    lrp, uniform, attnlrp = steps
    gate, attention = intervals([uniform - lrp, attnlrp - uniform])
    means = tuple(float(values.mean()) for values in steps)
    return Gap(metric, (means[0], means[1], means[2]), gate, attention, _share(uniform - lrp, attnlrp - lrp))


def _share(part: np.ndarray, whole: np.ndarray) -> Interval:
    """``mean(part) / mean(whole)`` with a bootstrap interval; NaN where there is no gap, or where samples are few."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (resamples(len(part)) @ part) / (resamples(len(whole)) @ whole)
        mean = part.sum() / whole.sum()
    if len(part) < FEWEST or not np.isfinite(ratios).all():
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(mean), float(low), float(high))


def lost_to(model: Measured) -> dict[str, float]:
    """Where AttnLRP puts the subject first and LRP does not: role -> share of these samples in which LRP puts it first."""
    if not {"lrp", "attnlrp"} <= model.methods.keys():
        return {}
    lrp, attnlrp = model.methods["lrp"], model.methods["attnlrp"]
    ids = common(lrp, attnlrp)
    tops = values_of(lrp, "top", ids)
    lost = tops[(values_of(attnlrp, "rank", ids) == 1) & (values_of(lrp, "rank", ids) > 1)]
    return {role: float((lost == role).mean()) for role in TOPS if (lost == role).any()} if len(lost) else {}


def without_first(columns: Columns) -> tuple[float, float]:
    """Bounds of the MRR if the first token, unless it is the subject, were left out of the ranking.

    Where the first token is the most relevant one, the subject's rank is one less. Where it is not, it may or may not stand
    before the subject.
    """
    rank = columns["rank"].astype(np.float64)
    known = rank - (columns["top"] == "first")
    least = np.where(columns["top"] == "first", known, np.maximum(rank - 1, 1))
    return float((1 / known).mean()), float((1 / least).mean())


def tops(columns: Columns) -> dict[str, float]:
    """Role -> share of the samples whose most relevant token has it."""
    return {role: float((columns["top"] == role).mean()) for role in TOPS}
