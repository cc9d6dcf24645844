"""Heatmaps as PNG, PDF and SVG, drawn with matplotlib. The text is measured and laid out here; pyplot is not used.

1. Lines: units flow and wrap like words. In right-to-left text the units of a line are put into visual order.
2. Drawing: header, cells and colour bar. All lengths are in pixels of the PNG.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError, import_optional
from ..files import ENDINGS, check_ending
from .cells import Cell, joined_pieces
from .colours import Rgb, colour, ink
from .fonts import DPI, Typeface, emoji_height
from .image_picture import BETWEEN, drawn
from .rtl import RTL_MARK, direction, levels, visual_order
from .text import characters
from .view import ALL_ZERO, MINUS, View

WIDTH, MARGIN = 1800, 50  # pixels; a narrower map gets a narrower picture
ROOM = WIDTH - 2 * MARGIN
HIGHEST = {"png": 65_000, "pdf": 40_000}  # matplotlib's limit is 2 ** 16 pixels, that of PDF readers 200 inches
PICTURES = ("png", "pdf", "svg")
BODY, SMALL, TINY = 13.0, 9.0, 6.5  # points
PAD, GAP, LINE = 9, 15, 62  # pixels: inside a cell, between words, from line to line
CAP = 26  # pixels: at each end of the colour bar, the colour of cells beyond it
SOFT, FRAME = (0.38, 0.4, 0.44), (0.83, 0.84, 0.86)


def draw(views: Sequence[View], path: str | os.PathLike[str], kind: str) -> None:
    """Draw the maps below one another into the file ``path``.

    Args:
        views: The maps.
        path: The file, whose name ends as those of this format do, or has no ending.
        kind: One of ``PICTURES``.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: There can be no such file, or the text is too long for a picture.
    """
    file = check_ending(path, kind)
    matplotlib = import_optional("matplotlib", ENDINGS[kind][0], extra="viz")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # ignore the user's plot style; rc_context restores it
        # Typeface has said what cannot be drawn well; matplotlib would repeat it for every letter.
        warnings.filterwarnings("ignore", message="(Glyph|Matplotlib currently does not support)", category=UserWarning)
        canvas = _Canvas(Typeface(_characters(views)))
        for view in views:
            _map(canvas, view, view.with_numbers)
        width, height = canvas.right + MARGIN, canvas.y + MARGIN / 2
        if height > HIGHEST.get(kind, math.inf):
            raise InputError(
                f"the picture would be {height:.0f} pixels high, {HIGHEST[kind]} at most. Use HTML for such a text."
            )
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        canvas.paint(figure, width, height)
        figure.savefig(file, format=kind, dpi=DPI, metadata=METADATA[kind])


# A word, or a token in quotes: its spaces and quotes go the way of its letters.
_WORD = re.compile(r'(?:"[^"]*"\S*|\S+)\s*|\s+')

# Without a date, so that the same map gives the same file.
METADATA = {
    "png": {"Software": "lrpx"},
    "pdf": {"Creator": "lrpx", "CreationDate": None},
    "svg": {"Creator": "lrpx", "Date": None},
}


# Lines.


def _characters(views: Iterable[View]) -> str:
    """All text that will be drawn, for the choice of fonts."""
    texts = ["".join((view.explains(), *view.below(), *view.outside(), *view.legend(), view.method)) for view in views]
    texts += [cell.segment for view in views for cell in view.cells]
    texts += [view.caption(image) for view in views for image in view.images]
    pieces = (piece for view in views for texts in joined_pieces(view.cells) for piece in texts)
    return " ".join([*texts, *pieces])


@dataclass(frozen=True)
class _Box:
    """An element of a line: a unit, a part of a long unit, or without a cell a gap or the name of a part of the input."""

    width: float
    cell: Cell | None = None
    text: str = ""
    number: str = ""


def _lines(face: Typeface, view: View, numbers: bool) -> Iterator[list[_Box]]:
    """The lines of a map, boxes in the order of the text."""
    line: list[_Box] = []
    used = 0.0
    for word in _words(face, view, numbers):
        whole = sum(box.width for box in word.boxes)
        gap = GAP if word.gap and line else 0.0
        if used + gap + whole > ROOM >= whole and line:  # a word is broken only if it is longer than a line
            yield line
            line, used, gap = [], 0.0, 0.0
        if gap:
            line.append(_Box(gap))
            used += gap
        for box in word.boxes:
            if line and used + box.width > ROOM:
                yield line
                line, used = [], 0.0
            line.append(box)
            used += box.width
        if word.ends_line:
            yield line
            line, used = [], 0.0
    if line:
        yield line


@dataclass
class _Word:
    gap: bool
    boxes: list[_Box]
    ends_line: bool = False


def _words(face: Typeface, view: View, numbers: bool) -> Iterator[_Word]:
    word = _Word(False, [])
    for cell, texts in zip(view.cells, joined_pieces(view.cells), strict=True):
        if cell.gap and word.boxes:
            yield word
            word = _Word(True, [])
        if cell.segment:
            if word.boxes:
                word.ends_line = True
                yield word
            name = f"{cell.segment}:"
            yield _Word(False, [_Box(face.width(face.text(name), SMALL), text=name)])
            word = _Word(True, [])
        texts = [view.label(cell, MINUS)] if cell.image else texts
        number = view.number(cell.value, MINUS) if numbers and cell.coloured else ""
        for n, piece in enumerate(texts):
            if n:
                word.ends_line = True
                yield word
                word = _Word(False, [])
            for part in _parts(face, piece):
                width = max(face.width(face.text(part), BODY), face.width(number, TINY)) + 2 * PAD
                word.boxes.append(_Box(width, cell, part, number))
                number = ""
    if word.boxes:
        yield word


def _parts(face: Typeface, piece: str) -> Iterator[str]:
    """``piece`` cut where it is longer than a line."""
    while piece:
        part = piece
        while face.width(face.text(part), BODY) + 2 * PAD > ROOM and len(whole := characters(part)) > 1:
            part = "".join(whole[: len(whole) * 3 // 4])
        yield part
        piece = piece[len(part) :]


def _on_paper(view: View, line: list[_Box]) -> Iterator[_Box]:
    """A line's boxes from left to right. Brackets between right-to-left units get a mark, so that matplotlib mirrors them."""
    directions = [direction(box.text) for box in line]
    depth = levels(directions, view.rtl)
    for i in visual_order(depth):
        yield replace(line[i], text=RTL_MARK + line[i].text) if depth[i] % 2 and directions[i] in " S" else line[i]


# Drawing.


class _Canvas:
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
                self.text(x, self.y, word.rstrip(), size, bold=bold, ink=ink)
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


def _map(canvas: _Canvas, view: View, numbers: bool) -> None:
    canvas.paragraph(
        [
            (f"{view.method}  ", True),
            (view.explains(MINUS) + " = " * bool(view.equals()), False),
            (view.equals(MINUS), True),
        ],
        BODY * 0.9,
    )
    for text in view.below(MINUS):
        canvas.paragraph([(text, False)], SMALL, SOFT)
    canvas.y += 26
    lines = list(_lines(canvas.face, view, numbers))
    widths = [sum(box.width for box in line) for line in lines]
    for line, width in zip(lines, widths, strict=True):
        x = MARGIN + (max(widths) - width if view.rtl else 0.0)
        for box in _on_paper(view, line):
            if box.cell is not None:
                _draw_box(canvas, view, box, box.cell, x)
            elif box.text:
                canvas.text(x, canvas.y + (LINE - 14) * 0.72, canvas.face.text(box.text), SMALL, ink=SOFT)
            x += box.width
        canvas.y += LINE + (24 if numbers else 0)
    canvas.y += 12
    for image in view.images:
        canvas.paragraph([(view.caption(image, MINUS), False)], SMALL, SOFT)
        (width, height), picture, over = drawn(image, view.image_shares(image))
        for x, pixels in ((float(MARGIN), picture), (MARGIN + width + BETWEEN, over)):
            canvas.picture(x, canvas.y + 14, width, height, pixels)
        canvas.y += height + 40
    _bar(canvas, view)
    if view.components:
        canvas.paragraph([("outside the tokens: " + " · ".join(view.outside(MINUS)), False)], SMALL, SOFT)
    canvas.y += MARGIN / 2


def _draw_box(canvas: _Canvas, view: View, box: _Box, cell: Cell, x: float) -> None:
    background = view.fill(cell)
    centre, height = x + box.width / 2, LINE - 14
    canvas.box(x, canvas.y, box.width, height, _unit(background), FRAME, 0.5)
    if cell.explained:  # around the cell, to be seen on a dark one
        canvas.box(x - 4, canvas.y - 4, box.width + 8, height + 8, "none", "black", 1.6, 2)
    canvas.text(
        centre, canvas.y + height * 0.72, canvas.face.text(box.text), BODY, ink=_unit(ink(background)), ha="center"
    )
    if box.number:
        canvas.text(centre, canvas.y + height + 24, box.number, TINY, ink=SOFT, ha="center")


def _bar(canvas: _Canvas, view: View) -> None:
    """The colour bar with its numbers, and what the frame means."""
    x, length, height, steps = float(MARGIN), 500, 22, 250
    y = canvas.y
    below, above = view.beyond
    if view.scale:
        if below:
            canvas.box(x, y, CAP, height, _unit(colour(-2.0)), SOFT, 0.4)
            x += CAP
        for i, shade in enumerate(view.bar(steps)):
            fill = _unit(colour(shade))
            canvas.box(x + i * length / steps, y, length / steps + 0.5, height, fill, "none", 0)
        canvas.box(x, y, length, height, "none", SOFT, 0.4, 2)
        for place, label in view.ticks(MINUS):
            ha = {0.0: "left", 1.0: "right"}.get(place, "center")
            canvas.text(x + place * length, y + height + 30, label, SMALL, ink=SOFT, ha=ha)
        if above:
            canvas.box(x + length, y, CAP, height, _unit(colour(2.0)), SOFT, 0.4)
            x += CAP
    else:
        canvas.text(x, y + height, ALL_ZERO, SMALL, ink=SOFT)
    x += length + 70
    if view.marked():
        canvas.box(x, y, 40, height, "white", "black", 1.6, 2)
        canvas.text(x + 55, y + height - 2, view.marked(), SMALL, ink=SOFT)
    canvas.y += height + 38
    if legend := view.legend(MINUS):
        canvas.paragraph([(" · ".join(legend), False)], SMALL, SOFT)


def _unit(rgb: Rgb) -> tuple[float, float, float]:
    """A colour with components from 0 to 1, as matplotlib expects."""
    return rgb[0] / 255, rgb[1] / 255, rgb[2] / 255
