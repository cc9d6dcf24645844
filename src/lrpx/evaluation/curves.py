"""What removing parts of an input or of a model in order of relevance does to the explained value: curves and their areas.

For relevance r of n parts (tokens, heads or neurons), v(S) is the explained value without the parts S. They are removed in the
order of r, ties in their own order:

1. perturbation curve, most relevant first: v of the first k parts removed, for k from 0 to n in ``steps`` steps; the *area over
   the curve* is the mean of v(nothing) - v(k) over the steps, and large for a faithful explanation (Samek et al. 2017);
2. the same, least relevant first: small for a faithful explanation. The difference of both areas does not depend on how much
   the value falls when anything at all is removed (Blücher et al. 2024);
3. comprehensiveness: v(nothing) - v(the top 1, 5, 10, 20 and 50 % removed), on average; large is better;
4. sufficiency: v(nothing) - v(all but these removed), on average; small is better (DeYoung et al. 2020, of logits here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import counted
from ..results.agreement import agreements
from ..results.table import DataTable
from .metrics import Interval, bootstrap

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the tokens, for comprehensiveness and sufficiency
NAMES = ("area_most", "area_least", "difference", "comprehensiveness", "sufficiency")


def area_over(curve: np.ndarray) -> float:
    """What the value loses on average over the steps of a curve ``[S + 1]``."""
    return float((curve[0] - curve[1:]).mean())


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbed:
    """What the tokens, heads or neurons of one explanation are to the model.

    Attributes:
        text: Which of the texts, counted from 0: ``Explanation.index``, where all are of one call.
        method: Of the explanation.
        relevance: float64 ``[n]`` by which they were ordered.
        hidden: ``[S + 1]`` how many are removed at each step of the curves, from 0 to n.
        most: float64 ``[S + 1]`` the value without so many of the most relevant ones.
        least: Likewise, the least relevant first.
        comprehensiveness, sufficiency: In logits.
    """

    text: int
    method: str
    relevance: np.ndarray
    hidden: np.ndarray
    most: np.ndarray
    least: np.ndarray
    comprehensiveness: float
    sufficiency: float

    @property
    def area_most(self) -> float:
        """Area over the curve, the most relevant first: higher is better."""
        return area_over(self.most)

    @property
    def area_least(self) -> float:
        """Area over the curve, the least relevant first: lower is better."""
        return area_over(self.least)

    @property
    def difference(self) -> float:
        """``area_most - area_least``: higher is better, 0 for random relevance on average."""
        return self.area_most - self.area_least


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Several explanations perturbed, in the order in which they were given."""

    each: tuple[Perturbed, ...]

    def __repr__(self) -> str:
        return f"<Faithfulness of {counted(len({one.text for one in self.each}), 'text')}: {', '.join(self.methods)}>"

    @property
    def methods(self) -> list[str]:
        """Their methods, each once."""
        return list(dict.fromkeys(one.method for one in self.each))

    def mean(self) -> dict[str, dict[str, Interval]]:
        """Method -> measure -> ``(mean, low, high)``, in logits: the mean over the texts, and its 95 % bootstrap interval.

        The ends of the interval are NaN for fewer than six texts, and it is too narrow for a dozen (``docs/faithfulness.md``).
        """
        found: dict[str, dict[str, Interval]] = {}
        for method in self.methods:
            rows = np.array([[getattr(one, name) for name in NAMES] for one in self.each if one.method == method])
            intervals = np.array(bootstrap(rows)).reshape(3, len(NAMES))
            found[method] = {name: Interval(*map(float, intervals[:, i])) for i, name in enumerate(NAMES)}
        return found

    def agreement(self) -> dict[tuple[str, str], float]:
        """Spearman's rank correlation of the relevances of every two methods, averaged over the texts that both explain.

        Texts of fewer than three tokens, and relevance that is the same for all tokens, are left out.
        """
        return agreements((one.text, one.method, one.relevance) for one in self.each)

    def to_frame(self) -> Any:
        """A row per explanation: text, method, and the measures of the top of this file. Needs pandas."""
        return self.table().to_frame()

    def table(self) -> DataTable:
        """The rows of ``to_frame``, which need no pandas."""
        columns = ("text", "method", *NAMES)
        return DataTable(columns, [tuple(getattr(one, name) for name in columns) for one in self.each])


@dataclass(frozen=True, eq=False)
class Removals:
    """Which of n parts are removed, row by row: the two curves, then the shares of the most relevant, then all but these.

    Attributes:
        masks: bool ``[R, n]``.
        hidden: ``[S + 1]`` how many are removed at each step of the curves; empty where these are not asked for.
        shares: How many shares there are, 0 likewise.
    """

    masks: np.ndarray
    hidden: np.ndarray
    shares: int

    def groups(self, values: np.ndarray) -> list[np.ndarray]:
        """The values ``[R]`` of the rows, as those of the four groups."""
        return np.split(values, np.cumsum([len(self.hidden), len(self.hidden), self.shares]))


def removals(
    relevance: np.ndarray, steps: int, *, kept: int | None = None, curves: bool = True, shares: bool = True
) -> Removals:
    """What to remove, in the order of relevance.

    Args:
        relevance: float64 ``[n]``.
        steps: Of the curves.
        kept: The part that is never removed.
        curves: Whether these are asked for.
        shares: Whether comprehensiveness and sufficiency are.
    """
    n = len(relevance)
    free = np.array([part for part in range(n) if part != kept], dtype=int)
    descending = free[np.argsort(-relevance[free], kind="stable")]
    counts = np.unique(np.round(np.linspace(0, len(free), min(steps, len(free)) + 1)).astype(int))[
        : None if curves else 0
    ]
    tops = [max(1, round(share * len(free))) for share in SHARES if shares]
    chosen = [descending[:k] for k in counts]
    chosen += [descending[len(free) - k :] for k in counts]  # the least relevant
    chosen += [descending[:k] for k in tops]
    chosen += [descending[k:] for k in tops]
    masks = np.zeros((len(chosen), n), bool)
    for row, removed in enumerate(chosen):
        masks[row, removed] = True
    return Removals(masks, counts, len(tops))


def perturbed(
    text: int,
    method: str,
    relevance: np.ndarray,
    values_without: Callable[[np.ndarray], np.ndarray],
    steps: int,
    *,
    kept: int | None = None,
) -> Perturbed:
    """Remove parts in the order of their relevance.

    Args:
        text: Which of the texts.
        method: Of the explanation.
        relevance: float64 ``[n]``.
        values_without: bool ``[R, n]``, which parts are removed, each row another choice -> the values ``[R]``.
        steps: Of the curves.
        kept: The part that is never removed.
    """
    chosen = removals(relevance, steps, kept=kept)
    different, which = np.unique(chosen.masks, axis=0, return_inverse=True)
    most, least, without, only = chosen.groups(values_without(different)[which.reshape(-1)])
    return Perturbed(
        text=text,
        method=method,
        relevance=relevance,
        hidden=chosen.hidden,
        most=most,
        least=least,
        comprehensiveness=float((most[0] - without).mean()),
        sufficiency=float((most[0] - only).mean()),
    )
