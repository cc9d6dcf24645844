"""Fonts for the PNG: DejaVu Sans, which comes with matplotlib, and installed fonts for the characters it lacks.

A character that no font has is drawn as its code point, ``U+4E2D``, instead of an empty box.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from typing import Any

from .text import code_point, is_rtl

log = logging.getLogger("lrpx")

DPI = 200

_NOT_FOR_TEXT = re.compile("Last ?Resort|Color")  # fonts of placeholder boxes, and colour emoji, which come out blank


class Typeface:
    """Font families that together cover as many of ``characters`` as possible, and the width of text drawn in them."""

    def __init__(self, characters: set[str]) -> None:
        from matplotlib import __version__ as version
        from matplotlib import font_manager, ft2font
        from matplotlib.backends.backend_agg import RendererAgg

        self._manager = font_manager
        self._widths: dict[tuple[str, float, bool], float] = {}
        self._renderer = RendererAgg(1, 1, DPI)
        self.families = ["DejaVu Sans"]
        missing = characters - _covered(font_manager.findfont("DejaVu Sans"), characters)
        for font in sorted(font_manager.fontManager.ttflist, key=lambda font: "Sans" not in font.name):
            if missing and not _NOT_FOR_TEXT.search(font.name) and (found := _covered(font.fname, missing)):
                self.families.append(font.name)
                missing -= found
        self._missing = missing
        drawn = sorted(c for c in missing if not _ignorable(c))
        if drawn:
            log.warning("no installed font has %s: drawn as code points", ", ".join(map(code_point, drawn)))
        if not hasattr(ft2font, "__libraqm_version__") and any(map(is_rtl, characters)):
            log.warning(
                "right-to-left text in a PNG needs matplotlib 3.11, this is %s: letters come out unjoined, in reverse order",
                version,
            )

    def text(self, text: str) -> str:
        """``text`` as it can be drawn: characters without a glyph as code points."""
        return "".join(c if c not in self._missing else "" if _ignorable(c) else code_point(c) for c in text)

    def font(self, size: float, bold: bool = False) -> Any:
        """The font properties for a text of ``size`` points."""
        return self._manager.FontProperties(family=self.families, size=size, weight="bold" if bold else "normal")

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """The width of ``text`` in pixels."""
        if not text:
            return 0.0
        if (text, size, bold) not in self._widths:
            width = self._renderer.get_text_width_height_descent(text, self.font(size, bold), False)[0]
            self._widths[text, size, bold] = float(width)
        return self._widths[text, size, bold]


def _covered(path: str, characters: set[str]) -> set[str]:
    """The subset of ``characters`` that the font at ``path`` has; empty if the font cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        glyphs = get_font(path).get_charmap()
    except (RuntimeError, OSError):
        return set()
    return {c for c in characters if ord(c) in glyphs}


def _ignorable(char: str) -> bool:
    """Joiners and variation selectors: they change how their neighbours look and are invisible themselves."""
    return unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f"
