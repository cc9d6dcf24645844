"""Figures and tables of dataset cards, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def spread(values: Any) -> str:
    """Least, greatest, mean, standard deviation and median of some integers."""
    array = np.asarray(values)
    return f"{array.min()}-{array.max()}, mean {array.mean():.3g}, std {array.std():.2g}, median {np.median(array):.3g}"


def percentage(part: int, whole: int) -> str:
    """A percentage."""
    return f"{part / whole:.1%}" if whole else "not known"


def distribution(numbers: Sequence[int | None]) -> str:
    """``1: 40.0%, 2: 60.0%`` of the numbers that are known."""
    known = Counter(n for n in numbers if n is not None)
    return ", ".join(f"{n}: {percentage(known[n], known.total())}" for n in sorted(known)) or "not known"


def table_lines(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(c) for c in line) + " |" for line in lines]


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")
