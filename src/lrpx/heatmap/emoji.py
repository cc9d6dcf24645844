"""Emoji in colour, as images: matplotlib draws no colour fonts, Pillow (which matplotlib needs) does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import regex

_SIZES = (109, 136, 160, 128, 96, 64)  # pixels; most colour fonts hold bitmaps of one size: Noto 109, Apple 160
_EMOJI = regex.compile(
    r"\p{Emoji_Presentation}|\p{Regional_Indicator}|\p{Emoji}.*(\uFE0F|\p{Emoji_Modifier})", regex.DOTALL
)


def is_emoji(character: str) -> bool:
    """Whether what readers take for one character is an emoji, shown as a picture by default: 🔑, ❤️ but not ❤."""
    return _EMOJI.match(character) is not None


class EmojiFont:
    """The first colour font among some files, and its pictures."""

    def __init__(self, files: Iterable[str]) -> None:
        self._font: Any = None
        self._known: set[int] = set()
        self._images: dict[str, np.ndarray] = {}
        for path in sorted(files, key=lambda file: "color" not in Path(file).name.lower()):
            if "emoji" in Path(path).name.lower() and self._open(path):
                break

    def _open(self, path: str) -> bool:
        from fontTools.ttLib import TTFont, TTLibError
        from PIL import ImageFont

        try:
            with TTFont(path, lazy=True, fontNumber=0) as font:
                if not {"CBDT", "COLR", "sbix", "SVG "} & set(font.keys()):
                    return False
                known = set(font.getBestCmap() or ())
        except (TTLibError, OSError):
            return False
        for size in _SIZES:
            try:
                self._font, self._known = ImageFont.truetype(path, size), known
            except OSError:  # it has no bitmaps of this size
                continue
            return True
        return False

    def __contains__(self, character: str) -> bool:
        return ord(character[0]) in self._known and self.image(character) is not None

    def image(self, character: str) -> np.ndarray | None:
        """The picture ``[height, width, RGBA]`` of an emoji, cut to its ink; ``None`` if the font draws nothing."""
        from PIL import Image, ImageDraw

        if character not in self._images:
            left, top, right, bottom = map(int, self._font.getbbox(character))
            image = Image.new("RGBA", (max(right - left, 1), max(bottom - top, 1)))
            ImageDraw.Draw(image).text((-left, -top), character, font=self._font, embedded_color=True)
            box = image.getbbox()
            self._images[character] = np.asarray(image.crop(box) if box else image)
        image_of = self._images[character]
        return image_of if image_of[..., 3].any() else None
