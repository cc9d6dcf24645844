"""Texts, rectangles and images, collected from the top down and painted with matplotlib when the size is known.

All lengths are in pixels of the PNG; pyplot is not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .colours import Rgb
from .fonts import DPI, Typeface, emoji_height
from .rtl import LTR_MARK
from .text import BYTES, is_rtl

WIDTH, MARGIN = 1800, 50  # pixels; a narrower map gets a narrower picture
ROOM = WIDTH - 2 * MARGIN
BODY, SMALL, TINY = 13.0, 9.0, 6.5  # points
SOFT, FRAME = (0.38, 0.4, 0.44), (0.83, 0.84, 0.86)

# A word, or a token in quotes: its spaces and quotes go the way of its letters.
_WORD = re.compile(r'(?:"[^"]*"\S*|\S+)\s*|\s+')


class Canvas:
    """Collects texts and rectangles from the top down and paints them at the end, when the size is known."""

    def __init__(self, face: Typeface) -> None:
        self.face, self.y, self.right = face, float(MARGIN), 0.0
        self._marks: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def text(
        self, x: float, y: float, text: str, size: float, *, bold: bool = False, ink: Any = "black", ha: str = "left"
    ) -> None:
        """Place ``text`` with its baseline at ``y``."""
        style = {
            "fontproperties": self.face.font(size, bold),
            "color": ink,
            "ha": "left",
            "va": "baseline",
            "parse_math": False,
        }
        width = self.face.width(text, size, bold)
        left = x - {"left": 0.0, "center": width / 2, "right": width}[ha]
        for offset, _, letters, image in self.face.laid_out(text, size, bold):
            if image is None:
                self._marks.append(("text", (left + offset, y, letters), style))
            else:
                height = emoji_height(size)
                self._marks.append(("image", (left + offset, y + height * 0.2, height), {"image": image}))
        self.right = max(self.right, left + width if ha == "left" else x)

    def box(
        self, x: float, y: float, width: float, height: float, fill: Any, edge: Any, line: float, layer: int = 1
    ) -> None:
        """Place a rectangle with its upper left corner at ``x, y``; ``line`` in points."""
        self.right = max(self.right, x + width)
        self._marks.append(
            ("box", (x, y, width, height), {"facecolor": fill, "edgecolor": edge, "linewidth": line, "zorder": layer})
        )

    def picture(self, x: float, y: float, width: float, height: float, pixels: Any) -> None:
        """Place an image ``[height, width, 3]`` with its upper left corner at ``x, y``."""
        self.right = max(self.right, x + width)
        x, y = round(x), round(y)  # whole pixels, or it would be resampled
        self._marks.append(("picture", (x, y, width, height), {"image": pixels}))

    def paragraph(self, parts: Sequence[tuple[str, bool]], size: float, ink: Any = "black") -> None:
        """Place running text, given as ``(text, bold)`` parts, with line wrapping, and move down."""
        x, step = float(MARGIN), size * DPI / 72 * 1.45
        self.y += step
        for text, bold in parts:
            for word in _WORD.findall(self.face.text(text)):
                width = self.face.width(word.rstrip(), size, bold)
                if x > MARGIN and x + width > WIDTH - MARGIN:
                    x, self.y = float(MARGIN), self.y + step
                # Drawn alone, a Hebrew letter with a full stop would go from right to left, unlike the line that it is in.
                mark = LTR_MARK * (any(map(is_rtl, word)) and (word[0] != '"' or bool(BYTES.search(word))))
                self.text(x, self.y, mark + word.rstrip(), size, bold=bold, ink=ink)
                x += width + (len(word) - len(word.rstrip())) * size * DPI / 72 * 0.32

    def paint(self, figure: Any, width: float, height: float) -> None:
        """Draw everything on ``figure``; one unit of its axes is one pixel."""
        from matplotlib.image import AxesImage
        from matplotlib.patches import Rectangle

        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        for shape, place, style in self._marks:
            if shape == "text":
                axes.text(*place, **style, zorder=3)
            elif shape in ("image", "picture"):
                if shape == "image":
                    x, bottom, tall = place
                    wide = tall * style["image"].shape[1] / style["image"].shape[0]
                else:
                    x, top, wide, tall = place
                    bottom = top + tall
                picture = AxesImage(axes, extent=(x, x + wide, bottom, bottom - tall), origin="upper", zorder=3)
                picture.set_data(style["image"])
                axes.add_image(picture)
            else:
                axes.add_patch(Rectangle(place[:2], *place[2:], **style))


def unit(rgb: Rgb) -> tuple[float, float, float]:
    """A colour with components from 0 to 1, as matplotlib expects."""
    return rgb[0] / 255, rgb[1] / 255, rgb[2] / 255
