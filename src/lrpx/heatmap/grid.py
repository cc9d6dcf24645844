"""Several explanations of one text as one grid: a column per token, a row per method, target or model.

1. Explanations of one text that follow one another are a group. Where images are explained, each keeps a map of its own.
2. Columns are the cells of the text (``cells.py``). If the text was tokenised in several ways, tokens are joined until all rows
   have the same ones (``alignment.py``), and special tokens that a row lacks are blank there. The header says so.
3. A row is a ``View``: it has its own scale. Its label says what sets it apart from the other rows.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .alignment import aligned_cells, common_units, same_tokens, text_of
from .cells import Cell
from .drawable import Drawable
from .look import Look
from .numbers import MINUS, four
from .rtl import direction, levels
from .view import DOT, WITH_NUMBERS, View, checked, view

JOINED = "tokenised in several ways: where tokens do not end at the same places, a column is the sum of several"


@dataclass(frozen=True)
class GridRow:
    """One explanation as a row."""

    label: str
    view: View
    cells: tuple[Cell | None, ...]  # one per column; None: this row's text has no such token

    def number(self, cell: Cell | None, sign: str = "-") -> str:
        """What stands in a cell of the row."""
        return self.view.number(cell.value, sign) if cell is not None and cell.coloured else ""


@dataclass(frozen=True)
class Grid:
    """Rows over the same columns, ready to draw. Its text is visible text, not yet escaped for any format."""

    columns: tuple[Cell, ...]
    rows: tuple[GridRow, ...]
    joined: bool  # tokens were joined to align the rows

    @property
    def look(self) -> Look:
        """How it is drawn."""
        return self.rows[0].view.look

    def levels(self) -> list[int]:
        """How deep each column is in runs of the other direction: 0 in that of the text, 1 a Hebrew word in English."""
        found = levels([direction(column.text) for column in self.columns], self.rtl)
        return [level - self.rtl for level in found]

    @property
    def rtl(self) -> bool:
        """Whether the text runs from right to left."""
        return self.rows[0].view.rtl

    @property
    def with_numbers(self) -> bool:
        """Whether numbers are printed in the cells."""
        return len(self.columns) <= WITH_NUMBERS if self.look.numbers is None else self.look.numbers

    def method(self) -> str:
        """The method of all rows, or what their methods begin with, or ``""``."""
        methods = [row.view.method for row in self.rows]
        beginning = _beginning(methods)
        return _common(methods) or beginning.removesuffix(", ") + "*" * beginning.endswith(".")

    def explains(self, sign: str = "-") -> str:
        """What all rows explain, with its value if they share that too, or ``""``."""
        told = self._told()
        value = _common([v.equals(sign) for v in told])
        return _common([v.explains(sign) + f" = {value}" * bool(value) for v in told])

    def _views(self) -> list[View]:
        return [row.view for row in self.rows]

    def _told(self) -> list[View]:
        """The views that are about a logit, or all if none is."""
        return [v for v in self._views() if v.measures != "mixture"] or self._views()

    def below(self, sign: str = "-", dot: str = DOT, labels: Sequence[str] = ()) -> list[str]:
        """The lines below the header: what holds for all rows, then what holds for some, with their ``labels``."""
        views = self._views()
        shared = [note for note in views[0].notes if all(note in view.notes for view in views)]
        told = self._told()
        predicted = [p for p in told[0].predictions if all(p in view.predictions for view in told)]
        lines = [dot.join(shared), JOINED * self.joined, dot.join(predicted)]
        shared += predicted
        names = labels or [row.label for row in self.rows]
        own = {name: _own(row, shared, sign, dot) for name, row in zip(names, self.rows, strict=True)}
        counts = Counter(line for found in own.values() for line in found)
        several = [line for line, count in counts.items() if count > 1]
        lines += [line for line in several if counts[line] == len(self.rows)]
        for line in several:
            if counts[line] < len(self.rows):
                those = [label for label, found in own.items() if line in found]
                between = "; " if any(", " in label for label in those) else ", "
                lines.append(f"{between.join(those)}: {line}")
        lines += [f"{label}: {line}" for label, found in own.items() for line in found if counts[line] == 1]
        return [line for line in lines if line]

    def ends(self, sign: str = "-") -> list[tuple[str, list[str]]]:
        """What stands at the end of the rows: a name, and a text for each row."""
        views = self._views()

        def column(name: str, told: Callable[[View], float | None]) -> tuple[str, list[str]]:
            numbers = [None if view.one_sided else told(view) for view in views]
            return name, ["" if number is None else four(number, sign) for number in numbers]

        ends = ["" if not v.scale else v.number(v.scale) if v.one_sided else f"±{v.number(v.scale)[1:]}" for v in views]
        own = len(set(ends)) > 1 or not all(ends)
        found = [
            ("colours to", [(end or "all 0") * own for end in ends]),
            ("beyond", [_beyond(view) for view in views]),
            column("sum", lambda view: view.total),
            column("outside", lambda view: sum(p[1] for p in view.components) if view.components else None),
            column("residual", lambda view: view.residual),
            ("value", [four(view.value, sign) * bool(view.equals() and not _is_part(view)) for view in views]),
        ]
        return [(name, texts) for name, texts in found if any(texts)]

    def legend(self) -> str:
        """What the colours mean."""
        beyond = "; darkest: beyond it" * any(any(view.beyond) for view in self._views())
        hidden = "; grey: hidden" * any(cell.hidden for cell in self.columns)
        ends = dict(self.ends()).get("colours to")
        first = self.rows[0].view
        one = f"all rows: colours to {'±' * (not first.one_sided)}{first.number(first.scale)[1:]}"
        told = 'each row has its own scale, which ends at its number under "colours to"' if ends else one
        return f"{told}{beyond}{hidden}"

    def marked(self) -> str:
        """What the frame means."""
        return _common([view.marked() for view in self._told()]) or "what is explained"

    def short_labels(self, longest: int) -> tuple[list[str], list[str]]:
        """Labels of at most ``longest`` characters; where they are longer, numbers, and a line that explains each."""
        labels = [row.label for row in self.rows]
        if max(map(len, labels)) <= longest:
            return labels, []
        return [str(n) for n in range(1, len(labels) + 1)], [f"{n}: {label}" for n, label in enumerate(labels, 1)]


def parts(explanations: Drawable | Sequence[Drawable], look: Look) -> list[View | Grid]:
    """What is drawn below one another: a map for each explanation, and a grid for several of one text.

    Raises:
        InputError: The list is empty or holds something other than explanations; units do not cover the tokens.
    """
    found: list[View | Grid] = []
    for group in groups(checked(explanations)):
        found.append(view(group[0], look) if len(group) == 1 else grid(group, look))
    return found


def groups(explanations: Sequence[Drawable]) -> list[list[Drawable]]:
    """Explanations of one text that follow one another. Images are not aligned: each is alone."""
    found: list[list[Drawable]] = []
    for e in explanations:
        if found and not (e.images or found[-1][0].images) and text_of(found[-1][0]) == text_of(e):
            found[-1].append(e)
        else:
            found.append([e])
    return found


def grid(explanations: Sequence[Drawable], look: Look) -> Grid:
    """Explanations of one text as rows of a grid.

    Raises:
        InputError: The units do not cover the tokens in order, a position is outside the text, or everything is hidden.
    """
    joined = not all(same_tokens(explanations[0], e) for e in explanations)
    units = common_units(explanations) if joined else [list(e.units) for e in explanations]
    drawn = [view(e, look, own) for e, own in zip(explanations, units, strict=True)]
    columns = aligned_cells([v.cells for v in drawn])
    rows = tuple(
        GridRow(label, v, cells)
        for label, v, cells in zip(_labels(drawn, joined), drawn, zip(*columns, strict=True), strict=True)
    )
    return Grid(tuple(next(cell for cell in column if cell) for column in columns), rows, joined)


def _labels(drawn: Sequence[View], joined: bool) -> list[str]:
    """What sets each row apart: the method, what is explained, the position, and if that is not enough, model and settings."""
    told = [v for v in drawn if v.measures != "mixture"]
    differs = len({v.explains() for v in told}) > 1
    places = len({v.span for v in drawn}) > 1 and not joined  # positions of several tokenisations do not compare
    methods = len({v.method for v in drawn}) > 1
    beginning = _beginning([v.method for v in drawn])
    labels = []
    for v in drawn:
        method = v.method.removeprefix(beginning) if methods else v.method
        named = [method] * (methods or not (differs or places))
        named += [v.explains(MINUS)] * (differs and v.measures != "mixture") + [v.marked_place()] * places
        labels.append(", ".join(named))
    twice = {label for label, count in Counter(labels).items() if count > 1}
    for i, v in enumerate(drawn):
        rest = [n for n in v.notes if not all(n in other.notes for other in drawn)]
        if rest and (joined or labels[i] in twice):
            same = not (methods or differs or places)  # only the method, which the header says
            labels[i] = ", ".join([*[labels[i]] * (not same), *rest])
    counted: Counter[str] = Counter()
    again = {label for label, count in Counter(labels).items() if count > 1}
    for i, label in enumerate(labels):
        counted[label] += 1
        labels[i] += f" ({counted[label]})" * (label in again)
    return labels


def _own(row: GridRow, shared: Sequence[str], sign: str, dot: str) -> list[str]:
    """What a row says that is not the same for all."""
    v = row.view
    notes = [note for note in v.notes if note not in shared and note not in row.label]
    beside = [f"outside the tokens: {dot.join(v.outside(sign))}"] if v.components else []
    predicted = [p for p in v.predictions if p not in shared]
    holds = [line for line in v.holds(sign) if line.startswith("hidden:") or not _is_part(v)]
    lines = [dot.join(notes), dot.join(predicted), *holds, *beside]
    return [line for line in (*lines, *(f"note: {remark}" for remark in v.remarks)) if line]


def _beyond(v: View) -> str:
    shown = [abs(v.share(value)) > 1 for value in v.coloured]
    return f"{sum(shown)} of {len(shown)}" if any(shown) else ""


def _beginning(methods: Sequence[str]) -> str:
    """What all begin with: of neurons, the method and the module, or what the names of several modules begin with."""
    named = [method.split(", ") for method in methods]
    begun = "".join(f"{part}, " for part in _same([parts[:-1] for parts in named]))
    rest = [parts[begun.count(", ") :] for parts in named]
    of_modules = begun and all(len(parts) == 2 for parts in rest)
    return begun + "".join(f"{part}." for part in _same([parts[0].split(".")[:-1] for parts in rest]) if of_modules)


def _same(several: Sequence[Sequence[str]]) -> list[str]:
    """The first parts that are the same in all."""
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*several, strict=False))
    return [parts[0] for parts in same]


def _is_part(v: View) -> bool:
    """Whether it is of one head or neuron: of ``attnlrp, head 5 of layer 3``, unlike ``LRP, uniform gate``."""
    return re.search(r", (head \d+ of layer|\S+, neuron) \d+$", v.method) is not None


def _common(texts: Sequence[str]) -> str:
    """The text that all are, or nothing."""
    return texts[0] if len(set(texts)) == 1 else ""
