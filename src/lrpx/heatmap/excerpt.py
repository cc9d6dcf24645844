"""Of a long text, the strongest cells, each with the text around it: what a table without colours prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size

from .cells import Cell

STRONGEST = 20
DOTS = "..."
NARROW = 20  # columns; in fewer, no text around a cell is shown


def printed_cells(sizes: Sequence[Sequence[float]], *, whole: bool) -> list[int]:
    """The indices of the cells that are printed, in the order of the text.

    Args:
        sizes: Of each row, the size of each cell, on a scale on which rows compare.
        whole: All of them; otherwise the ``STRONGEST``, by the row in which a cell is largest.
    """
    largest = np.max(np.array(sizes, dtype=np.float64), axis=0)
    if whole or len(largest) <= STRONGEST:
        return list(range(len(largest)))
    return sorted(np.argsort(-largest, kind="stable")[:STRONGEST].tolist())


def parts_begun(cells: Sequence[Cell], printed: Sequence[int]) -> list[str]:
    """Of each printed cell, the name of the part of the input that it is the first printed one of; empty for the others."""
    begun, names, last = [i for i, cell in enumerate(cells) if cell.segment], list[str](), -1
    for n in printed:
        part = max((i for i in begun if i <= n), default=-1)
        names.append(cells[part].segment if part not in (last, -1) else "")
        last = part
    return names


def around(cells: Sequence[Cell], n: int, room: int) -> str:
    """Cell n in brackets, with the text before and after it, in at most ``room`` columns; empty where there is no room."""
    if room < NARROW:
        return ""
    own = f"[{cells[n].text}]"
    half = max(0, (room - cell_len(own)) // 2)
    before = _joined(cells[:n]) + " " * (cells[n].gap and n > 0)
    after = _joined(cells[n + 1 :], gap=True)
    if cell_len(before) > half:
        before = DOTS + set_cell_size(before[::-1], max(0, half - len(DOTS)))[::-1]
    if cell_len(after) > half:
        after = set_cell_size(after, max(0, half - len(DOTS))) + DOTS
    return set_cell_size(before + own + after, min(room, cell_len(before + own + after))).rstrip()


def told(count: int) -> str:
    """What stands below the table."""
    return (
        f"These are the {STRONGEST} strongest of {count} tokens. All: numbers=True (--numbers), or what is saved as CSV, JSON or "
        "HTML."
    )


def _joined(cells: Sequence[Cell], *, gap: bool = False) -> str:
    """Their text in one line; with ``gap`` also the space before the first one."""
    return "".join(" " * (cell.gap and (gap or i > 0)) + cell.text for i, cell in enumerate(cells))
