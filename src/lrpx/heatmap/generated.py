"""What every view of generated text draws: the cells of prompt and continuation, and a row of numbers for each value.

A row has one number per cell, the sum over the cell's tokens. What comes after a row's own tokens has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .cells import Cell, cells_of
from .drawable import Generated, Patches
from .facts import model_and_settings
from .images import ImageMap, maps_of
from .look import Look
from .numbers import MINUS, four, probability
from .text import legible, mostly_rtl, same_apart

STRONGEST = 3  # tokens that are named for each generated one


@dataclass(frozen=True)
class Row:
    """One value, and what the cells before it contributed."""

    cells: tuple[int, int]  # the cells whose tokens are explained, as (start, stop)
    end: int  # cells from here on took no part
    text: str  # of the explained tokens
    against: str  # of the tokens whose logits are subtracted; empty where there are none
    value: float
    residual: float | None
    probability: float | None
    relevance: np.ndarray  # [cells]

    def strongest(self, count: int = STRONGEST) -> list[int]:
        """The cells of the largest absolute relevance, the largest first."""
        order = np.argsort(-np.abs(self.relevance[: self.end]), kind="stable")
        return [int(i) for i in order[:count] if self.relevance[i]]


@dataclass(frozen=True)
class GeneratedView:
    """Generated text, ready to draw. Its text is visible text, not yet escaped for any format."""

    method: str
    cells: tuple[Cell, ...]
    first: int  # the first generated cell
    begun: int  # the first cell of the target that a decoder began with; 0: there is no decoder beside an encoder
    rows: tuple[Row, ...]
    per_token: bool
    additive: bool  # rows may be added up
    one: str  # what a value is, before the text of one token: ``logit``
    many: str  # before that of several
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    rtl: tuple[bool, bool]  # whether prompt and continuation run from right to left
    images: tuple[ImageMap, ...] = ()  # those of the prompt, with what they gave to ``whole``

    @property
    def title(self) -> str:
        """The header of the matrix."""
        return f"{self.method}: {self.explained} of each row's text"

    @property
    def sides(self) -> tuple[str, str]:
        """Rows and columns have texts, which say what they are."""
        return "", ""

    @property
    def adds_up(self) -> bool:
        """Whether there are several rows whose sum is that of all generated text."""
        return self.per_token and self.additive and len(self.rows) > 1

    @property
    def whole(self) -> Row:
        """All rows together where they add up, or else the first."""
        if not self.adds_up:
            return self.rows[0]
        residuals = [row.residual for row in self.rows if row.residual is not None]
        return Row(
            cells=(self.rows[0].cells[0], self.rows[-1].cells[1]),
            end=self.rows[-1].end,
            text="".join(self.text(i) for i in range(self.first, len(self.cells))),
            against="".join(row.against for row in self.rows),
            value=sum(row.value for row in self.rows),
            residual=sum(residuals) if residuals else None,
            probability=None,
            relevance=np.sum([row.relevance for row in self.rows], axis=0),
        )

    def text(self, cell: int) -> str:
        """The text of a cell with the space before it."""
        return " " * self.cells[cell].gap + self.cells[cell].text

    def apart(self) -> list[str]:
        """What to add to the text of each cell, so that cells which read the same are told apart."""
        return same_apart([cell.text for cell in self.cells], [cell.tokens[0][0] for cell in self.cells])

    def explains(self, row: Row) -> str:
        """What a row's value is: ``sum of the logits of``."""
        return self.one if row.cells[1] - row.cells[0] == 1 else self.many

    @property
    def explained(self) -> str:
        """What the values of all rows are, without a text after it: ``logit``."""
        return (self.one if self.per_token else self.many).removesuffix(" of").removesuffix(",")

    def sums(self, row: Row) -> list[str]:
        """Probability, sum and residual of a row, each with its name."""
        parts = [] if row.probability is None else [f"p {probability(row.probability)}"]
        if row.residual is not None:
            parts += [f"sum {four(float(row.relevance.sum()), MINUS)}", f"residual {four(row.residual, MINUS)}"]
        return parts


@dataclass(frozen=True)
class AllTokens:
    """All tokens, as ``cells_of`` reads them."""

    tokens: Sequence[str]
    token_ids: Sequence[int]
    units: Sequence[tuple[int, int, str]]
    special: Sequence[int]
    relevance: np.ndarray
    position: int = -1
    span: tuple[int, int] | None = (-1, -1)
    segments: tuple[tuple[str, int, int], ...] = ()
    images: Sequence[Patches] = ()


def generated_view(g: Generated) -> GeneratedView:
    """The view of a ``GenerationExplanation``."""
    count = len(g.tokens)
    text = AllTokens(g.tokens, g.token_ids, g.units, g.special, np.zeros(count), images=g.images)
    cells = cells_of(text, Look())  # type: ignore[arg-type]
    of_token = np.repeat(np.arange(len(cells)), [len(cell.tokens) for cell in cells])
    prompt = mostly_rtl("".join(text for start, _, text in g.units if start < g.prompt_length))
    contrasts = g.contrast if isinstance(g.contrast, tuple) else ()
    view = GeneratedView(
        method=g.method,
        cells=tuple(cells),
        first=int(of_token[g.prompt_length]),
        begun=int(of_token[g.source]),
        rows=(),
        per_token=g.per_token,
        additive=g.measures == "parts",
        one=_minus_contrasts(legible(g.what(1)) or "logit", contrasts, "its contrast"),
        many=_minus_contrasts(legible(g.what(2)), contrasts, "their contrasts"),
        notes=tuple(map(legible, model_and_settings(g))),
        remarks=tuple(map(legible, g.notes)),
        rtl=(prompt, mostly_rtl("".join(text for start, _, text in g.units if start >= g.prompt_length), prompt)),
    )
    rows = []
    for i, span in enumerate(g.spans):
        start, stop = (place + g.prompt_length for place in span)
        relevance = np.zeros(len(cells))
        np.add.at(relevance, of_token[: count - 1], g.relevance[i])
        explained = (int(of_token[start]), int(of_token[stop - 1]) + 1)
        likely = None if g.probabilities is None else g.probabilities[start - g.prompt_length : stop - g.prompt_length]
        rows.append(
            Row(
                cells=explained,
                end=int(of_token[stop - 2]) + 1,
                text="".join(view.text(k) for k in range(*explained)),
                against="".join(legible(token.shown or token.text) for token in contrasts[slice(*span)]),
                value=float(g.values[i]),
                residual=None if g.residuals is None else float(g.residuals[i]),
                probability=None if likely is None else float(np.prod(likely)),
                relevance=relevance,
            )
        )
    view = replace(view, rows=tuple(rows))
    relevance = g.relevance.sum(0) if view.adds_up else g.relevance[0]
    return replace(view, images=tuple(maps_of(g.images, relevance, g.at)))


def _minus_contrasts(phrase: str, contrasts: Sequence[Any], whose: str) -> str:
    """``logit`` as what it is where those of other tokens are subtracted."""
    return f"{phrase.removesuffix(' of')} minus that of {whose}, of" if contrasts else phrase
