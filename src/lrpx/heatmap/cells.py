"""An explanation's units as the cells of a map: readable text, one value each.

1. Tokens are grouped into the explanation's units, and on demand units into words; a cell's value is the sum of its
   tokens' relevance.
2. The patches of an image are one cell, with what stands between them, such as tokens for the ends of rows.
3. Its text is made visible (``text.py``). One leading space becomes the gap before the cell, so that words stand apart
   and the pieces of a word touch.
4. Hidden cells keep their text and value, but get no colour. Images get none either: they are drawn by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .drawable import Drawable
from .images import places_in_text
from .look import Look
from .rtl import with_joiners
from .text import EMPTY, NEWLINE, in_quotes, legible, mostly_rtl, visible, words_start

_SPACE_MARKS = ("Ġ", "▁", " ")  # what the raw piece of a token with a leading space begins with


@dataclass(frozen=True)
class Cell:
    """One unit or word of the text."""

    pieces: tuple[str, ...]  # visible text; a line break follows every piece but the last, which may be empty
    value: float
    tokens: tuple[tuple[int, str, int, float], ...]  # position, raw token, id, relevance
    gap: bool  # a space stands before it
    rtl: bool  # right to left, by its letters; without letters, the direction of the whole text
    explained: bool  # holds the token whose logits are explained
    special: bool  # every token of it is one of the tokenizer's special tokens
    hidden: bool = False  # its relevance is not shown
    segment: str = ""  # the name of the part of the input that begins here
    breaks: bool = False  # it begins a line for that reason
    image: bool = False  # stands for an image

    @property
    def coloured(self) -> bool:
        """Whether its value is shown as a colour in the text."""
        return not (self.hidden or self.image)

    @property
    def size(self) -> float:
        """Its share in the absolute relevance, before division; of an image, that of all its tokens."""
        return math.fsum(abs(token[3]) for token in self.tokens) if self.image else abs(self.value)

    @property
    def text(self) -> str:
        """The visible text in one line."""
        return "".join(self.pieces)

    @property
    def quoted(self) -> str:
        """The text in quotes, with its leading space if that belongs to the token."""
        return in_quotes(" " * (self.gap and self.tokens[0][1].startswith(_SPACE_MARKS)) + self.text)

    @property
    def place(self) -> str:
        """Its text and position, in a sentence."""
        named, first, last = self.text if self.image else self.quoted, self.tokens[0][0], self.tokens[-1][0]
        return f"{named} at position {first}" if first == last else f"{named} at positions {first} to {last}"


def explained_span(e: Drawable) -> tuple[int, int]:
    """The positions whose logits are explained, as (start, stop)."""
    return e.span or (e.position, e.position + 1)


def cells_of(e: Drawable, look: Look, units: Sequence[tuple[int, int, str]] | None = None) -> list[Cell]:
    """The cells of an explanation, in order; ``units`` are used in place of its own."""
    special, (begin, stop) = set(e.special), explained_span(e)
    beginning = {_with_specials(start, special): legible(name) for name, start, _ in e.segments}
    units, images = _with_images(e, e.units if units is None else units)
    if look.group == "words":
        units = _words(units, special | images, beginning)
    rtl = mostly_rtl("".join(text for _, _, text in units))

    def cell(n: int, start: int, end: int, text: str) -> Cell:
        is_image = start in images
        if gap := is_image or (text.startswith(" ") and text[1:2].strip() != ""):
            text = text.removeprefix(" ")
        *lines, last = text.split("\n")
        pieces = (*(visible(line) + NEWLINE for line in lines), visible(last))
        tokens = tuple((i, e.tokens[i], e.token_ids[i], float(e.relevance[i])) for i in range(start, end))
        is_special = special.issuperset(range(start, end))
        named = " ".join(beginning[i] for i in range(start, end) if i in beginning)
        return Cell(
            pieces=pieces if any(pieces) else (EMPTY,),
            value=math.fsum(token[3] for token in tokens),
            tokens=tokens,
            gap=gap and start > 0 and not named,
            rtl=mostly_rtl(text, rtl),
            explained=start < stop and begin < end,
            special=is_special and not is_image,
            hidden=not is_image and (("first" in look.hidden and n == 0) or ("special" in look.hidden and is_special)),
            segment=named,
            image=is_image,
        )

    cells = [cell(n, *unit) for n, unit in enumerate(units)]
    later = [replace(c, breaks=True) if c.segment and before.pieces[-1] else c for before, c in pairwise(cells)]
    return cells[:1] + later


def _with_specials(start: int, special: set[int]) -> int:
    """Where the first part of an input is shown to begin: before the special tokens that open the text."""
    return 0 if special.issuperset(range(start)) else start


def _with_images(e: Drawable, given: Sequence[tuple[int, int, str]]) -> tuple[list[tuple[int, int, str]], set[int]]:
    """The units, each image as one, and where images start."""
    units, starts = [(start, end, text) for start, end, text in given], set()
    for start, stop, label in places_in_text(e.images):
        inside = [unit for unit in units if unit[0] < stop and unit[1] > start]
        first, end = inside[0][0], inside[-1][1]
        units[units.index(inside[0]) : units.index(inside[-1]) + 1] = [(first, end, label)]
        starts.add(first)
    return units, starts


def _words(
    units: Sequence[tuple[int, int, str]], special: set[int], beginning: Container[int]
) -> list[tuple[int, int, str]]:
    """Units joined to words. Special tokens stay alone, and no word reaches into the next part of the input."""
    starts = words_start("".join(text for _, _, text in units))
    words: list[tuple[int, int, str]] = []
    place = 0  # in the whole text
    for start, end, text in units:
        inside = (
            words and text.strip() and text[0] == text[0].strip() and words[-1][2][-1:].strip() and place not in starts
        )
        if inside and start not in beginning and not special & {start, words[-1][0]}:
            first, _, before = words.pop()
            words.append((first, end, before + text))
        else:
            words.append((start, end, text))
        place += len(text)
    return words


def joined_pieces(cells: Sequence[Cell]) -> Iterator[list[str]]:
    """The pieces of each cell, Arabic letters joined across cells as in the whole word."""
    for n, cell in enumerate(cells):
        before = cells[n - 1].pieces[-1] if n and not cell.gap else ""
        after = cells[n + 1].pieces[0] if n + 1 < len(cells) and not cells[n + 1].gap else ""
        last = len(cell.pieces) - 1
        yield [
            with_joiners(piece, before if i == 0 else "", after if i == last else "")
            for i, piece in enumerate(cell.pieces)
        ]
