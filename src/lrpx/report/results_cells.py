"""Words and cells of the page of results, as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import partial

from ..evaluation.metrics import Interval

Row = Sequence[str]


def pm(interval: Interval, sign: str = "") -> str:
    """The mean, with half the width of the interval if there is one."""
    return f"{interval.mean:{sign}.3f}" + (f" ± {(interval.high - interval.low) / 2:.3f}" if interval.known else "")


def range_of(low: float, high: float) -> str:
    """One number, if both are printed alike."""
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"between {low:.3f} and {high:.3f}"


def p_value(p: float) -> str:
    """As articles print it: without the zero before the point."""
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


def bold(text: str, best: bool) -> str:
    """Bold if it is the best."""
    return f"**{text}**" if best else text


_NUMBER = re.compile(r"[<−+-]? ?(\d[\d,]*)?(\.\d+)?%?( ± [\d.]+| of \d.*| \(.*\))?")


def table_of(rows: Sequence[Row]) -> str:
    """A table whose columns of numbers are aligned to the right, and its texts to the left."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    columns = [[cell.strip("*") for cell in column if cell] for column in zip(*body, strict=True)]
    right = [bool(column) and all(map(_NUMBER.fullmatch, column)) for column in columns]
    lines = [head, ["---:" if numbers else "---" for numbers in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def prose(*paragraphs: str) -> str:
    """Paragraphs wrapped at 120 characters; a heading stays as it is."""
    wrap = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(p if p.startswith("#") else wrap(" ".join(p.split())) for p in paragraphs)
