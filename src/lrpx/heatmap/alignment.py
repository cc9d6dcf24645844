"""One text, tokenised in several ways: tokens are joined until all ways have the same pieces.

A piece ends where a token of every tokenisation ends. Places are counted in characters other than spaces, which tokenizers put
before or after a word. Special tokens are not part of the text: each is a piece of its own, which other tokenisations may lack.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from .cells import Cell
from .drawable import Drawable

Units = list[tuple[int, int, str]]


def text_of(e: Drawable) -> str:
    """The readable text without spaces and special tokens, by which explanations of one text know each other."""
    special = set(e.special)
    return "".join(_letters(text) for start, end, text in e.units if not special.issuperset(range(start, end)))


def same_tokens(first: Drawable, other: Drawable) -> bool:
    """Whether two explanations have the same tokens, which are parts of the text at the same places."""
    names = ("tokens", "units", "segments", "special")
    return all(list(getattr(first, name)) == list(getattr(other, name)) for name in names)


def common_units(explanations: Sequence[Drawable]) -> list[Units]:
    """The units of each explanation, joined so that all have the same pieces of the text."""
    ends = set.intersection(*({end for _, end in _places(e)} for e in explanations))
    return [_joined(e, ends) for e in explanations]


def aligned_cells(rows: Sequence[Sequence[Cell]]) -> list[tuple[Cell | None, ...]]:
    """A column for each piece of the text, and before it one for each special token that stands there in some row.

    Raises:
        InputError: The rows do not have the same pieces.
    """
    pieces = [[i for i, cell in enumerate(row) if not cell.special] for row in rows]
    if len({len(found) for found in pieces}) > 1:
        counts = " and ".join(str(len(found)) for found in pieces)
        raise InputError(f"the tokenisations of this text cannot be aligned: {counts} pieces. Draw them one by one.")
    columns: list[tuple[Cell | None, ...]] = []
    starts = [0] * len(rows)
    for ends in zip(*([*found, len(row)] for found, row in zip(pieces, rows, strict=True)), strict=True):
        waiting = [list(row[start:end]) for row, start, end in zip(rows, starts, ends, strict=True)]
        while any(waiting):
            text = next(cells[0].text for cells in waiting if cells)
            columns.append(tuple(cells.pop(0) if cells and cells[0].text == text else None for cells in waiting))
        if all(end < len(row) for row, end in zip(rows, ends, strict=True)):
            columns.append(tuple(row[end] for row, end in zip(rows, ends, strict=True)))
        starts = [end + 1 for end in ends]
    return columns


def _letters(text: str) -> str:
    return "".join(text.split())


def _places(e: Drawable) -> list[tuple[bool, int]]:
    """Of each unit whether it is special, and where it ends, in letters of the text."""
    special, place, found = set(e.special), 0, []
    for start, end, text in e.units:
        is_special = special.issuperset(range(start, end))
        place += 0 if is_special else len(_letters(text))
        found.append((is_special, place))
    return found


def _joined(e: Drawable, ends: set[int]) -> Units:
    """Units joined up to the next of ``ends``; spaces alone belong to the piece before, or else to the next."""
    units: Units = []
    goes_on = after_special = False
    for (start, end, text), (special, place) in zip(e.units, _places(e), strict=True):
        spaces = not special and not _letters(text)
        if not special and (goes_on or (spaces and units and not after_special)):
            first, _, before = units.pop()
            start, text = first, before + text
        units.append((start, end, text))
        alone = spaces and not _letters(text)  # nothing stands before it
        goes_on, after_special = not special and (place not in ends or alone), special
    return units
