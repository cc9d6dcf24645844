"""Right-to-left text in a picture whose units are drawn one by one.

matplotlib 3.11 and newer shape each string and put its letters in order (with libraqm). Two things concern several
strings and are done here: the order of the units in a line, by the part of the Unicode bidirectional algorithm (UAX 9)
that one line needs; and the joins of Arabic letters where a word is divided over units.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from .text import around_quotes, is_ltr, is_rtl, mostly_rtl

RTL_MARK, LTR_MARK, JOINER = "\N{RIGHT-TO-LEFT MARK}", "\N{LEFT-TO-RIGHT MARK}", "\N{ZERO WIDTH JOINER}"


def in_order(line: str) -> str:
    """A line of Latin words and tokens in quotes that is drawn as one string: a number after a Hebrew token stays behind it."""
    parts = around_quotes(line)
    return "".join(part + LTR_MARK * (n % 2 and any(map(is_rtl, part))) for n, part in enumerate(parts))


def direction(text: str) -> str:
    """The direction of a unit: ``R`` right to left, ``L`` left to right, ``N`` number, ``S`` number separator, else a blank."""
    if any(is_rtl(c) or is_ltr(c) for c in text):
        return "R" if mostly_rtl(text) else "L"
    return "N" if any(c.isdigit() for c in text) else "S" if text and text in ".,:/" else " "


def levels(directions: Sequence[str], rtl: bool) -> list[int]:
    """The embedding level of each unit: even from left to right, odd from right to left (UAX 9: W4, W7, N1, N2, I1, I2).

    Args:
        directions: ``direction`` of each unit of the line.
        rtl: The text as a whole runs from right to left.
    """
    line = "R" if rtl else "L"
    known = [line, *directions, line]
    for i in range(1, len(known) - 1):
        if known[i] == "S":
            known[i] = "N" if known[i - 1] == known[i + 1] == "N" else " "
    strong = line
    for i, found in enumerate(known):
        strong = found if found in "LR" else strong
        known[i] = "L" if found == "N" and strong == "L" else found
    before, after = list(known), list(known)
    for i in range(1, len(known)):
        before[i] = before[i - 1] if known[i] == " " else known[i]
        after[-i - 1] = after[-i] if known[-i - 1] == " " else known[-i - 1]
    sides = [(b.replace("N", "R"), a.replace("N", "R")) for b, a in zip(before, after, strict=True)]
    resolved = [d if d != " " else b if b == a else line for d, (b, a) in zip(known, sides, strict=True)][1:-1]
    return [{"L": 2 * rtl, "R": 1, "N": 2}[d] for d in resolved]


def visual_order(levels: Sequence[int]) -> list[int]:
    """The indices of a line's units from left to right: runs are reversed, from the highest level down (UAX 9: L2)."""
    order = list(range(len(levels)))
    for level in range(max(levels, default=0), 0, -1):
        start = 0
        while start < len(order):
            end = start
            while end < len(order) and levels[order[end]] >= level:
                end += 1
            order[start:end] = order[start:end][::-1]
            start = max(end, start + 1)
    return order


def with_joiners(text: str, before: str = "", after: str = "") -> str:
    """``text`` with a joiner at each end where an Arabic letter joins the neighbouring unit, which is drawn separately."""
    first = JOINER if _join(before[-1:], text[:1]) else ""
    last = JOINER if _join(text[-1:], after[:1]) else ""
    return first + text + last


def _join(letter: str, following: str) -> bool:
    """Whether two Arabic letters join. A letter that joins its successor has an initial form in Unicode; others do not."""
    return _has_form(letter, "INITIAL") and _has_form(following, "FINAL")


def _has_form(letter: str, form: str) -> bool:
    try:
        return bool(unicodedata.lookup(f"{unicodedata.name(letter, '')} {form} FORM")) if letter else False
    except KeyError:
        return False
