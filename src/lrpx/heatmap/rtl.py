"""Right-to-left text for a drawing surface that places glyphs from left to right.

A small part of the Unicode bidirectional algorithm (UAX 9), for one line: items with a direction are put in the order
in which they stand on paper. The same function orders the units of a line and the letters of a word. Arabic letters
take their joined forms, by the names that Unicode has for these; so a word split over tokens still looks like one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from .text import is_ltr, is_rtl, mostly_rtl

_MIRROR = str.maketrans("()[]{}<>«»‹›", ")(][}{><»«›‹")
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
_CLUSTER = re.compile(rf"\d+|.[{_MARKS}]*", re.DOTALL)  # what keeps its order inside: a number, a letter and its marks


def kind(text: str) -> str:
    """``R`` for right-to-left letters, ``L`` for left-to-right, ``N`` for a number, ``S`` for its separator, or blank."""
    if any(is_rtl(c) or is_ltr(c) for c in text):
        return "R" if mostly_rtl(text) else "L"
    return "N" if any(c.isdigit() for c in text) else "S" if text and text in ".,:/" else " "


def levels(kinds: Sequence[str], rtl: bool) -> list[int]:
    """The embedding level of each item: even from left to right, odd from right to left (UAX 9: W4, W7, N1, N2, I1, I2)."""
    line = "R" if rtl else "L"
    known = [line, *kinds, line]
    for i in range(1, len(known) - 1):
        if known[i] == "S":
            known[i] = "N" if known[i - 1] == known[i + 1] == "N" else " "
    strong = line
    for i, k in enumerate(known):
        strong = k if k in "LR" else strong
        known[i] = "L" if k == "N" and strong == "L" else k
    before, after = list(known), list(known)
    for i in range(1, len(known)):
        before[i] = before[i - 1] if known[i] == " " else known[i]
        after[-i - 1] = after[-i] if known[-i - 1] == " " else known[-i - 1]
    sides = [(b.replace("N", "R"), a.replace("N", "R")) for b, a in zip(before, after, strict=True)]
    kinds = [k if k != " " else b if b == a else line for k, (b, a) in zip(known, sides, strict=True)][1:-1]
    return [{"L": 2 * rtl, "R": 1, "N": 2}[k] for k in kinds]


def visual_order(levels: Sequence[int]) -> list[int]:
    """The indices of a line's items from left to right: runs are turned round, from the highest level down (L2)."""
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


def mirrored(text: str) -> str:
    """Brackets as they look in right-to-left text."""
    return text.translate(_MIRROR)


def ordered(text: str) -> str:
    """The characters of a word in the order in which they stand on paper, from left to right."""
    if not any(map(is_rtl, text)):
        return text
    clusters = _CLUSTER.findall(text)
    kinds = [kind(c) for c in clusters]
    depth = levels(kinds, mostly_rtl(text))
    turned = [mirrored(c) if d % 2 and k == " " else c for c, d, k in zip(clusters, depth, kinds, strict=True)]
    return "".join(turned[i] for i in visual_order(depth))


def joined(text: str, before: str = "", after: str = "") -> str:
    """``text`` with every Arabic letter in the form its neighbours ask for, those ``before`` and ``after`` it included.

    A font joins the letters of one string by itself; this is for a word that is drawn in several pieces.
    """
    if not any(map(is_rtl, text)):
        return text
    forms = _forms()
    parts = [before, *re.findall("\u0644[\u0622\u0623\u0625\u0627]|.", text, flags=re.DOTALL), after]
    letters = [i for i, part in enumerate(parts) if part[-1:] and unicodedata.category(part[-1]) != "Mn"]
    joins = {i: forms.get(parts[i], {}) for i in letters}  # marks between letters do not part them
    for i, before_it, after_it in zip(letters, [-1, *letters], [*letters[1:], -1], strict=False):
        if i in (0, len(parts) - 1):
            continue
        earlier = "initial" in joins.get(before_it, {}) and "final" in joins[i]
        later = "initial" in joins[i] and "final" in joins.get(after_it, {})
        form = {(False, False): "isolated", (False, True): "initial", (True, True): "medial", (True, False): "final"}
        parts[i] = joins[i].get(form[earlier, later], parts[i])
    return "".join(parts[1:-1])


@cache
def _forms() -> dict[str, dict[str, str]]:
    """Letter (or lam and alef) -> its forms by name, from the compatibility decompositions of Unicode."""
    table: dict[str, dict[str, str]] = {}
    for code in (*range(0xFB50, 0xFC00), *range(0xFE80, 0xFEFD)):
        kind, *letters = unicodedata.decomposition(chr(code)).split() or [""]
        if kind in ("<isolated>", "<initial>", "<medial>", "<final>"):
            table.setdefault("".join(chr(int(x, 16)) for x in letters), {})[kind.strip("<>")] = chr(code)
    return table
