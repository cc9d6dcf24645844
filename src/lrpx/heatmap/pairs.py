"""The pairs of tokens of two texts whose similarity is explained, as a matrix."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from .cells import cells_of
from .drawable import Drawable
from .facts import model_and_settings
from .look import Look
from .matrix import MatrixRow, MatrixView
from .numbers import MINUS, short
from .text import mostly_rtl


def pairs_matrix(e: Drawable, look: Look) -> MatrixView:
    """A row per cell of the first text, a column per cell of the second.

    Raises:
        InputError: The explanation has no pairs.
    """
    pairs = getattr(e, "pairs", None)
    if pairs is None:
        raise InputError(
            "this explanation has no pairs of tokens. Ask for them: explainer.similarity(text, other, pairs=True)."
        )
    cells, length = cells_of(e, look), len(pairs)
    first = [cell for cell in cells if cell.tokens[0][0] < length]
    second = [cell for cell in cells if cell.tokens[0][0] >= length]
    summed = np.add.reduceat(pairs, [cell.tokens[0][0] for cell in first], axis=0)
    summed = np.add.reduceat(summed, [cell.tokens[0][0] - length for cell in second], axis=1)
    summed[[cell.hidden for cell in first]] = np.nan
    summed[:, [cell.hidden for cell in second]] = np.nan
    text, other = (name for name, _, _ in e.segments)
    return MatrixView(
        title=f"{e.method}: {e.explains}, by pairs of tokens",
        notes=(sums(e, float(pairs.sum())), *model_and_settings(e)),
        rows=tuple(MatrixRow(cell.text, line, len(second)) for cell, line in zip(first, summed, strict=True)),
        columns=other,
        corner=text,
        scale=look.end_of_scale(summed[np.isfinite(summed)].tolist()),
        look=look,
        rtl=mostly_rtl("".join(cell.text for cell in cells)),
        names=tuple(cell.text for cell in second),
    )


def sums(e: Drawable, total: float) -> str:
    """The value, what the pairs add up to, and what is left; of gradients, which are no parts of the value, no rest."""
    rest = f"residual {short(e.value - total, MINUS)}" if e.residual is not None else "not parts of the value"
    return f"value {short(e.value, MINUS)}, sum of the pairs {short(total, MINUS)}, {rest}"
