"""Fonts for the PNG: what DejaVu Sans (which matplotlib carries) lacks comes from fonts installed on the machine.

A character that no font has is drawn as its code point, so no box of a missing glyph and no warning about one remains.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from typing import Any

from .rtl import joined, ordered
from .text import code_point

log = logging.getLogger("lrpx")

DPI = 200

# Installed fonts that are tried, in this order, for what DejaVu Sans lacks. Colour emoji fonts cannot be drawn.
_FALLBACKS = (
    r"Noto Sans CJK|Source Han Sans|Noto Sans (SC|TC|JP|KR|HK)$",
    r"PingFang|Hiragino Sans|Heiti|Microsoft YaHei|Yu Gothic|Meiryo|MS Gothic|Malgun Gothic|SimHei",
    r"WenQuanYi|Droid Sans Fallback|IPAGothic|TakaoGothic|NanumGothic|Arial Unicode",
    r"Noto Emoji|Symbola|Segoe UI (Symbol|Emoji|Historic)|Apple Symbols",
    r"Noto Sans|Noto Naskh|FreeSans|Unifont|Nirmala|Leelawadee|Ebrima|Lohit",
)


class Typeface:
    """Font families that together have as many of ``characters`` as the machine allows, and a ruler for them."""

    def __init__(self, characters: set[str]) -> None:
        from matplotlib import font_manager, ft2font
        from matplotlib.backends.backend_agg import RendererAgg

        self._manager = font_manager
        self._orders = hasattr(ft2font, "__libraqm_version__")  # matplotlib does it itself, from 3.11 on
        self._widths: dict[tuple[str, float, bool], float] = {}
        self._renderer = RendererAgg(1, 1, DPI)
        self.families = ["DejaVu Sans"]
        missing = characters - _covered(font_manager.findfont("DejaVu Sans"))
        for pattern in _FALLBACKS if missing else ():
            for font in font_manager.fontManager.ttflist:
                found = missing & _covered(font.fname) if missing and re.match(pattern, font.name) else set()
                if found:
                    self.families.append(font.name)
                    missing -= found
        self._missing = missing
        drawn = sorted(c for c in missing if not _ignorable(c))
        if drawn:
            log.warning("no installed font has %s: drawn as code points", ", ".join(map(code_point, drawn)))

    def text(self, text: str) -> str:
        """``text`` as it can be drawn: characters without a glyph as code points, right-to-left letters in order."""
        known = "".join(c if c not in self._missing else "" if _ignorable(c) else code_point(c) for c in text)
        return known if self._orders else ordered(joined(known))

    def font(self, size: float, bold: bool = False) -> Any:
        """The font properties for a text of ``size`` points."""
        return self._manager.FontProperties(family=self.families, size=size, weight="bold" if bold else "normal")

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """Pixels that ``text`` takes."""
        if not text:
            return 0.0
        if (text, size, bold) not in self._widths:
            width = self._renderer.get_text_width_height_descent(text, self.font(size, bold), False)[0]
            self._widths[text, size, bold] = float(width)
        return self._widths[text, size, bold]


def _covered(path: str) -> set[str]:
    """The characters that the font at ``path`` has; none if it cannot be read (bitmap emoji)."""
    from matplotlib.font_manager import get_font

    try:
        return set(map(chr, get_font(path).get_charmap()))
    except (RuntimeError, OSError):
        return set()


def _ignorable(char: str) -> bool:
    """Joiners and variation selectors: they change how others look and are nothing themselves."""
    return unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f"
