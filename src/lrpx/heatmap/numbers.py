"""How a heatmap writes numbers: with a sign, and as many digits as their scale needs."""

from __future__ import annotations

import math

import numpy as np

MINUS = "\N{MINUS SIGN}"


def fixed(value: float, scale: float, sign: str = "-") -> str:
    """A number with as many decimals as ``scale`` needs for four digits, so that numbers in a column line up."""
    if scale and not 1e-3 <= scale < 1e6:
        text = f"{value:+.3e}" if value else "0"
    else:
        decimals = max(0, 3 - math.floor(math.log10(scale))) if scale else 0
        rounded = round(value, decimals)
        text = f"{rounded:+.{decimals}f}" if rounded else "0"
    return text.replace("-", sign)


def darkest(numbers: np.ndarray, scale: float, sign: str = "-") -> str:
    """How many of the finite ``numbers`` are beyond the scale, and how far: to the largest, or both ways; empty where none is."""
    shown = numbers[np.isfinite(numbers)]
    beyond = shown[np.abs(shown) > scale]
    if not beyond.size:
        return ""
    low, high = (fixed(float(end), scale, sign) for end in (beyond.min(), beyond.max()))
    far = f"{low} to {high}" if beyond.min() < 0 < beyond.max() else f"up to {low if beyond.max() < 0 else high}"
    return f"darkest: beyond the scale ({beyond.size} of {shown.size}, {far})"


def probability(p: float) -> str:
    """``= .41``: two digits; ``> .99`` and ``< .001`` beyond."""
    if p > 0.995:
        return "> .99"
    if p < 0.001:
        return "< .001"
    return f"= {p:.{1 - math.floor(math.log10(p))}f}".replace("0.", ".")


def four(value: float, sign: str = "-") -> str:
    """As ``short``, with zeros at the end, for a column of numbers."""
    return f"{value:+#.4g}".replace("-", sign).removesuffix(".") if value else "0"


def short(value: float, sign: str = "-") -> str:
    """A number of the header: four significant digits and the sign, ``sign`` for the minus."""
    return f"{value:+.4g}".replace("-", sign) if value else "0"
