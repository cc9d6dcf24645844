"""The tables of a report, independent of the output format: groups of columns, rows of cells, which cell is best.

``scores`` has the layout of the paper's Table 2: methods x (PG2, MRR, RMA, PTA) per model, best and second best per
column, and what relevance drawn by chance scores below. ``accuracy`` has that of its Table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..benchmark.folder import ROLES
from ..evaluation.metrics import FEWEST, Interval
from .paper import SOURCE
from .results import CHANCE, NORMS, Result, kind_in, method_label, methods_in

EXTENSION = "†"


@dataclass(frozen=True)
class TableCell:
    """One entry.

    Attributes:
        text: As it is shown, without emphasis.
        rank: 1 for the best of its column, 2 for the second best, else 0.
        low: Ends of the confidence interval, or ``None``.
        high: See ``low``.
        mark: A sign after the text that the caption explains, or nothing.
        few: Whether it is of too few samples to be the best of its column.
    """

    text: str
    rank: int = 0
    low: float | None = None
    high: float | None = None
    mark: str = ""
    few: bool = False

    @property
    def interval(self) -> str:
        """``0.851–0.882``, or nothing."""
        return "" if self.low is None or self.high is None else f"{self.low:.3f}–{self.high:.3f}"

    @property
    def margin(self) -> str:
        """``±0.016``, half the width of the interval, or nothing."""
        return "" if self.low is None or self.high is None else f"±{(self.high - self.low) / 2:.3f}"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: One line.
        caption: Sentences that say how to read it.
        groups: Name of a group of columns (a model, or nothing) and its columns.
        rows: Name of a row and, per group, its cells.
        summary: Number of rows at the end that stand apart from the others.
        warning: What a reader must know before comparing columns, or nothing.
    """

    title: str
    caption: str
    groups: list[tuple[str, list[str]]]
    rows: list[tuple[str, list[list[TableCell]]]]
    summary: int = 0
    warning: str = ""

    def part(self, start: int, stop: int) -> Table:
        """The groups from ``start`` up to ``stop``."""
        rows = [(name, cells[start:stop]) for name, cells in self.rows]
        return Table(self.title, self.caption, self.groups[start:stop], rows, self.summary, self.warning)

    def columns(self, start: int, stop: int) -> Table:
        """Of a table of one group, its columns from ``start`` up to ``stop``."""
        (label, columns), rows = self.groups[0], [(name, [cells[0][start:stop]]) for name, cells in self.rows]
        return Table(self.title, self.caption, [(label, columns[start:stop])], rows, self.summary, self.warning)

    def blocks(self, most: int) -> Iterator[Table]:
        """The same table in pieces of at most ``most`` groups each, to stand below one another."""
        for start in range(0, len(self.groups), most):
            yield self.part(start, start + most)


NONE = TableCell("–")


def all_tables(results: Sequence[Result], *, with_intervals: bool = True) -> list[Table]:
    """The tables of a report; the intervals need one of their own where cells do not show them."""
    found = [
        scores(results),
        intervals(results) if with_intervals else None,
        norms(results),
        faithfulness_table(results),
    ]
    return [table for table in [*found, accuracy(results), roles(results)] if table is not None]


def scores(results: Sequence[Result]) -> Table:
    """Methods x metrics per model."""
    methods = methods_in(results)
    body = [(method_label(m), [_scores(r, m) for r in results]) for m in methods]
    body = _ranked(body)
    body.append((f"{CHANCE}, mean", [[_known(r.random.get(m), 0) for m in r.metrics] for r in results]))
    body.append((f"{CHANCE}, ±std", [[_known(r.random.get(m), 1) for m in r.metrics] for r in results]))
    chosen = [f"{method_label(r.norm).removeprefix('Gradient, ')} for {r.label}" for r in results if r.norm]
    k = results[0].k if results else 2
    caption = (
        f"PG{k}: pointing game, top {k}. MRR: mean reciprocal rank. RMA: relevance mass accuracy. PTA: per-token accuracy. All "
        f"lie between 0 and 1, higher is better. Means over the correctly predicted samples{_counts(results)}; best and second "
        f"best per column are marked. {CHANCE}: relevance drawn uniformly from [−1, 1) on all samples, 10 seeds."
    )
    if "random" in methods:
        caption += " Random is a method: one draw from a normal distribution, on the samples of the others."
    if any(0 < scored.samples < FEWEST for r in results for scored in r.methods.values()):
        caption += f" Of fewer than {FEWEST} samples there is no interval, and no best."
    if chosen:
        caption += f" Gradient: the better norm, {', '.join(chosen)}."
    if any(r.of_paper for r in results):
        caption += f" (paper): {SOURCE}."
    if any(r.is_extension(m) for r in results for m in r.methods):
        caption += f" {EXTENSION}: an extension of lrpx; there is no published ALTI-Logit for masked models."
    warning = different_samples(results)
    return Table("Accuracy of the explanations", caption, _groups(results), body, summary=2, warning=warning)


def _counts(results: Sequence[Result]) -> str:
    """`` (53 of 60 for gpt2)``, of one's own models."""
    told = ", ".join(f"{r.correct:,} of {r.samples:,} for {r.label}" for r in results if r.correct is not None)
    return f" ({told})" if told else ""


def intervals(results: Sequence[Result]) -> Table:
    """The confidence intervals of ``scores``, in the same places."""
    own = [r for r in results if not r.of_paper]
    body = [
        (method_label(m), [[TableCell(c.interval or NONE.text) for c in _scores(r, m)] for r in own])
        for m in methods_in(own)
    ]
    caption = "Bootstrap over samples, 1,000 resamples, percentiles."
    return Table("95 % confidence intervals", caption, _groups(own), body, warning=different_samples(own))


def norms(results: Sequence[Result]) -> Table | None:
    """Both norms of the gradient, where there are two."""
    both = [r for r in results if all(n in r.methods for n in NORMS)]
    if not both:
        return None
    body = _ranked([(method_label(n), [_scores(r, n) for r in both]) for n in NORMS], second=False)
    caption = "The better one by the average of the four metrics is the row Gradient of the main table."
    return Table("Norms of the gradient", caption, _groups(both), body, warning=different_samples(both))


_MEASURES = {
    "area_most": "area, most first",
    "area_least": "area, least first",
    "difference": "difference",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
}
_LOW_IS_BETTER = ("area_least", "sufficiency")


def faithfulness_table(results: Sequence[Result]) -> Table | None:
    """What the value loses when tokens are hidden, where it was asked for."""
    own = [r for r in results if any(scored.measures for scored in r.methods.values())]
    if not own:
        return None
    names = [m for m in _MEASURES if any(m in scored.measures for r in own for scored in r.methods.values())]

    def cells(result: Result, method: str) -> list[TableCell]:
        scored = result.reported(method)
        means = [scored.measures.get(name) if scored else None for name in names]
        return [NONE if mean is None or scored is None else _mean(mean, scored.samples) for mean in means]

    lower = [names.index(name) for name in _LOW_IS_BETTER if name in names]
    body = _ranked([(method_label(m), [cells(r, m) for r in own]) for m in methods_in(own)], lower=lower)
    caption = (
        "What the explained difference of logits loses when tokens are hidden in the order of their relevance, the most or the "
        "least relevant first (area over the curve); the top 1 to 50 % (comprehensiveness); or all but these (sufficiency). "
        "Means over the correctly predicted samples. High is better, but low for the least relevant first and for sufficiency."
    )
    groups = [(r.label, [_MEASURES[name] for name in names]) for r in own]
    return Table("Faithfulness", caption, groups, body, warning=different_samples(own))


def roles(results: Sequence[Result]) -> Table:
    """Where relevance goes, by role of the token."""
    own = [r for r in results if r.token_roles]
    kind = kind_in(own)
    body = [
        (
            "Share of the tokens",
            [[TableCell(f"{r.token_roles[x]:.3f}") if r.token_roles[x] else NONE for x in ROLES] for r in own],
        )
    ]
    body += [(method_label(m), [_role_cells(r, m) for r in own]) for m in methods_in(own)]
    caption = (
        "Positive and negative relevance as shares of the sum of absolute relevance of a sample, averaged over the correctly "
        f"predicted samples. Attractors: {kind.attractors}."
    )
    groups = [(r.label, list(map(kind.role, ROLES))) for r in own]
    return Table("Relevance by role of the token", caption, groups, body, warning=different_samples(own))


def accuracy(results: Sequence[Result]) -> Table:
    """Prediction accuracy and facts of the models."""
    failed = any(r.failed for r in results)
    columns = ["accuracy", "samples", *(["failed"] if failed else []), "params", "layers", "heads", "width", "vocab"]
    columns.append("tokenizer")

    def row(r: Result) -> list[TableCell]:
        facts = r.facts
        parameters = facts["parameters"]
        size = _rounded(parameters) if isinstance(parameters, int) else str(parameters)
        rest = [facts["layers"], facts["heads"], facts["width"], facts["vocabulary"], facts["tokenizer"]]
        first = [_mean(r.accuracy, r.samples), TableCell(f"{r.samples:,}")]
        if failed:
            first.append(NONE if r.of_paper else TableCell(f"{r.failed:,}"))
        return [*first, TableCell(size), *(NONE if value is None else TableCell(str(value)) for value in rest)]

    caption = f"Share of all samples in which the model gives the right {kind_in(results).predicted} the larger logit."
    rows = [(r.label, [row(r)]) for r in results]
    return Table("Prediction accuracy", caption, [("", columns)], rows, warning=different_samples(results))


def different_samples(results: Sequence[Result]) -> str:
    """A warning if one's own models are not scored on the same samples; the paper's set-up is compared in the notes."""
    own = [r for r in results if not r.of_paper]
    if len({(r.source, r.sample_ids) for r in own}) < 2:
        return ""
    told = "; ".join(f"{r.label} {r.samples:,}" for r in own)
    if len({r.source for r in own}) > 1:
        return f"Different sources of sentences, so the models cannot be compared: {told} samples."
    common = len(frozenset.intersection(*(r.sample_ids for r in own)))
    return f"The models are scored on different samples: {told}; {common:,} of them are the same. Compare with care."


def _groups(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    return [(r.label, [m.upper() for m in r.metrics]) for r in results]


def _scores(result: Result, method: str) -> list[TableCell]:
    scored = result.reported(method)
    if scored is None:
        return [NONE] * len(result.metrics)
    mark = EXTENSION if result.is_extension(method) else ""
    means = [scored.scores.get(m) for m in result.metrics]
    return [NONE if mean is None else replace(_mean(mean, scored.samples), mark=mark) for mean in means]


def _known(pair: tuple[float, float] | None, place: int) -> TableCell:
    return NONE if pair is None else TableCell(f"{pair[place]:.3f}")


def _mean(interval: Interval, samples: int) -> TableCell:
    """Of so many samples; 0: not known."""
    low, high = (interval.low, interval.high) if interval.known else (None, None)
    return TableCell(f"{interval.mean:.3f}", low=low, high=high, few=0 < samples < FEWEST)


def _role_cells(result: Result, method: str) -> list[TableCell]:
    scored = result.reported(method)
    if scored is None:
        return [NONE] * len(ROLES)
    found = []
    for role in ROLES:
        positive, negative = scored.roles[role]
        parts = [f"+{positive:.3f}"] * bool(positive) + [f"−{negative:.3f}"] * bool(negative)
        found.append(TableCell(" ".join(parts)) if parts else NONE)
    return found


Body = list[tuple[str, list[list[TableCell]]]]


def _ranked(body: Body, *, second: bool = True, lower: Sequence[int] = ()) -> Body:
    """Mark the best and the second best of each column, by the printed numbers.

    Equal numbers share their place; a number that stands alone has none, nor has one of few samples. In the
    columns ``lower``, the lowest is the best.
    """

    def ranked(group: int, column: int) -> Callable[[TableCell], TableCell]:
        values = [float(cells[group][column].text) for _, cells in body if not _no_rank(cells[group][column])]

        def mark(cell: TableCell) -> TableCell:
            if _no_rank(cell) or len(values) < 2:
                return cell
            sign = -1 if column in lower else 1
            rank = 1 + sum(sign * value > sign * float(cell.text) for value in values)
            return replace(cell, rank=rank if rank <= 1 + second else 0)

        return mark

    groups = range(len(body[0][1])) if body else ()
    marks = [[ranked(g, c) for c in range(len(body[0][1][g]))] for g in groups]
    return [
        (name, [[mark(c) for mark, c in zip(ms, group, strict=True)] for ms, group in zip(marks, cells, strict=True)])
        for name, cells in body
    ]


def _no_rank(cell: TableCell) -> bool:
    return cell is NONE or cell.few


def _rounded(count: int) -> str:
    """``124M``, ``1.5B``."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 10 * size else f"{count / size:.0f}{letter}"
    return str(count)
