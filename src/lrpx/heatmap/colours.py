"""Colours of a map: white at zero, red raises the explained value, blue lowers it."""

from __future__ import annotations

from typing import Literal, TypeAlias

Rgb = tuple[int, int, int]
Palette: TypeAlias = Literal["red and blue", "orange and purple"]

RED, WHITE, BLUE = (205, 26, 38), (255, 255, 255), (28, 88, 188)
BEYOND_RED, BEYOND_BLUE = (95, 6, 28), (8, 26, 84)  # larger than the end of the scale
HIDDEN = (224, 226, 230)
NOTHING = (172, 176, 184)  # of an edge or a dot of 0
IMAGE = (242, 238, 220)  # stands for an image in the text


def ink(background: Rgb) -> Rgb:
    """Black or white, whichever has the higher contrast (WCAG) on ``background``; it is at least 4.5 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in background)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if (luminance + 0.05) ** 2 > 0.05 * 1.05 else (255, 255, 255)


def hex_colour(rgb: Rgb) -> str:
    """``(205, 26, 38)`` -> ``CD1A26``."""
    return "".join(f"{c:02X}" for c in rgb)


# At 1, 0 and -1, and beyond 1 and -1. The second keeps its two ends apart, in hue and in lightness from white, for all common
# kinds of colour blindness.
PALETTES: dict[str, tuple[Rgb, Rgb, Rgb, Rgb, Rgb]] = {
    "red and blue": (RED, WHITE, BLUE, BEYOND_RED, BEYOND_BLUE),
    "orange and purple": ((204, 98, 0), WHITE, (84, 39, 143), (96, 40, 0), (33, 6, 74)),
}


def colour(share: float, palette: Palette = "red and blue") -> Rgb:
    """White at 0, the palette's ends at 1 and -1, linear in between; darker beyond."""
    high, zero, low, above, below = PALETTES[palette]
    if abs(share) > 1:
        return above if share > 0 else below
    r, g, b = (round(w + (c - w) * abs(share)) for w, c in zip(zero, high if share > 0 else low, strict=True))
    return r, g, b
