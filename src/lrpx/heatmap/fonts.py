"""Fonts for pictures: DejaVu Sans, which comes with matplotlib, and installed fonts for the characters it lacks.

Emoji are drawn in colour where a colour font is installed. A character that no font has is drawn as its code point,
``U+4E2D``, instead of an empty box, and a warning says what to install.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import warn
from .emoji import EmojiFont, is_emoji
from .text import characters, code_point, is_rtl, mostly_rtl

DPI = 200

_NOT_FOR_TEXT = re.compile("Last ?Resort|Color")  # fonts of placeholder boxes, and colour emoji, which come out blank
_ASCENT = 1.1  # height of an emoji, in sizes of the font


class Typeface:
    """Font families that together cover as many of a text's characters as possible, and the width of text drawn in them."""

    def __init__(self, text: str) -> None:
        from matplotlib import __version__ as version
        from matplotlib import font_manager, ft2font
        from matplotlib.backends.backend_agg import RendererAgg

        self._manager = font_manager
        self._widths: dict[tuple[str, float, bool], float] = {}
        self._renderer = RendererAgg(1, 1, DPI)
        self._emoji: dict[str, Any] = self._pictures({c for c in characters(text) if is_emoji(c)})
        self.families = ["DejaVu Sans"]
        self._missing = {c for character in set(characters(text)) - set(self._emoji) for c in character}
        self._cover()
        if any(not _ignorable(c) for c in self._missing):
            self._find_new_fonts()
        if drawn := sorted(c for c in self._missing if not _ignorable(c)):
            warn(
                f"no installed font has {', '.join(map(code_point, drawn))}, drawn as code points. Install one that has them, "
                "such as those of Noto (Debian, Ubuntu: apt install fonts-noto; others: fonts.google.com/noto), and draw again."
            )
        if not hasattr(ft2font, "__libraqm_version__") and any(map(is_rtl, text)):
            warn(
                f"right-to-left text in a picture needs matplotlib 3.11, this is {version}: letters come out unjoined, in "
                "reverse order."
            )

    def _pictures(self, emoji: set[str]) -> dict[str, Any]:
        """Images of the emoji that an installed colour font has."""
        if not emoji:
            return {}
        font = EmojiFont(self._manager.findSystemFonts())
        return {character: font.image(character) for character in emoji if character in font}

    def _cover(self) -> None:
        """Add families until every character has a glyph, or there is no other font."""
        self._missing -= _covered(self._manager.findfont("DejaVu Sans"), self._missing)
        for font in sorted(self._manager.fontManager.ttflist, key=lambda font: "Sans" not in font.name):
            if self._missing and not _NOT_FOR_TEXT.search(font.name) and (found := _covered(font.fname, self._missing)):
                self.families.append(font.name)
                self._missing -= found

    def _find_new_fonts(self) -> None:
        """Look for fonts that were installed after matplotlib listed them, which it does once and keeps."""
        manager = self._manager.fontManager
        known = {str(Path(font.fname)) for font in manager.ttflist}
        for path in sorted(set(self._manager.findSystemFonts()) - known):
            if "emoji" not in Path(path).name.lower() and _covered(path, self._missing):
                manager.addfont(path)
                self._cover()

    def text(self, text: str) -> str:
        """``text`` as it can be drawn: characters without a glyph as code points."""
        runs = self._runs(text)
        return "".join(part if drawn else "".join(map(self._readable, characters(part))) for drawn, part in runs)

    def _readable(self, character: str) -> str:
        """A character as it can be drawn; code points are not joined, which would draw them over each other in a PDF."""
        codes = any(char in self._missing and not _ignorable(char) for char in character)
        left_out = {char for char in character if _ignorable(char) and (codes or char in self._missing)}
        return "".join(code_point(c) if c in self._missing else c for c in character if c not in left_out)

    def _runs(self, text: str) -> Iterator[tuple[bool, str]]:
        """Parts of ``text`` in order, each with whether it is an emoji that is drawn as an image."""
        if not self._emoji:
            yield False, text
            return
        letters = ""
        for character in characters(text):
            if character not in self._emoji:
                letters += character
                continue
            yield from [(False, letters)] * bool(letters)
            yield True, character
            letters = ""
        yield from [(False, letters)] * bool(letters)

    def laid_out(self, text: str, size: float, bold: bool = False) -> Iterator[tuple[float, float, str, Any]]:
        """Where the parts of ``text`` stand: offset from the left and width in pixels, the letters, or the image of an emoji."""
        runs = list(self._runs(text))
        x = 0.0
        for drawn, part in reversed(runs) if mostly_rtl(text) else runs:
            width = self.width(part, size, bold)
            yield x, width, "" if drawn else part, self._emoji[part] if drawn else None
            x += width

    def font(self, size: float, bold: bool = False) -> Any:
        """The font properties for a text of ``size`` points."""
        return self._manager.FontProperties(family=self.families, size=size, weight="bold" if bold else "normal")

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """The width of ``text`` in pixels."""
        if (text, size, bold) not in self._widths:
            self._widths[text, size, bold] = math.fsum(self._run_width(*run, size, bold) for run in self._runs(text))
        return self._widths[text, size, bold]

    def _run_width(self, drawn: bool, part: str, size: float, bold: bool) -> float:
        if drawn:
            height, width, _ = self._emoji[part].shape
            return emoji_height(size) * float(width / height)
        return (
            float(self._renderer.get_text_width_height_descent(part, self.font(size, bold), False)[0]) if part else 0.0
        )


def emoji_height(size: float) -> float:
    """The height in pixels of an emoji beside text of ``size`` points."""
    return size * DPI / 72 * _ASCENT


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
