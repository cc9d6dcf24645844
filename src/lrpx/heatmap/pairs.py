"""The pairs of tokens of two texts whose similarity is explained, ready to be drawn as a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from .cells import Cell, cells_of
from .drawable import Drawable
from .facts import model_and_settings
from .look import Look
from .matrix import MatrixRow
from .numbers import MINUS, short


@dataclass(frozen=True)
class PairsView:
    """What ``generated_matrix.draw`` draws: a row per cell of the first text, a column per cell of the second."""

    title: str
    notes: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    columns: tuple[Cell, ...]
    first: int
    additive: bool = True
    sides: tuple[str, str] = ("", "")

    def text(self, cell: int, /) -> str:
        """The text of a column."""
        return self.columns[cell].text


def pairs_view(e: Drawable, pairs: object) -> PairsView:
    """The view of the pairs of an explanation.

    Raises:
        InputError: It has none.
    """
    if not isinstance(pairs, np.ndarray):
        raise InputError(
            "this explanation has no pairs of tokens. Ask for them: explainer.similarity(text, other, pairs=True)."
        )
    cells, length = cells_of(e, Look()), len(pairs)
    first = [cell for cell in cells if cell.tokens[0][0] < length]
    second = tuple(cell for cell in cells if cell.tokens[0][0] >= length)
    summed = np.add.reduceat(pairs, [cell.tokens[0][0] for cell in first], axis=0)
    summed = np.add.reduceat(summed, [cell.tokens[0][0] - length for cell in second], axis=1)
    rows = tuple(MatrixRow(cell.text, line, len(second)) for cell, line in zip(first, summed, strict=True))
    title = f"{e.method}: {e.explains}, by pairs of tokens"
    text, other = (name for name, _, _ in e.segments)
    notes = (sums(e, float(pairs.sum())), *model_and_settings(e))
    return PairsView(title, notes, rows, second, len(second), sides=(text, other))


def sums(e: Drawable, total: float) -> str:
    """The value, what the pairs add up to, and what is left; of gradients, which are no parts of the value, no rest."""
    rest = f"residual {short(e.value - total, MINUS)}" if e.residual is not None else "not parts of the value"
    return f"value {short(e.value, MINUS)}, sum of the pairs {short(total, MINUS)}, {rest}"
