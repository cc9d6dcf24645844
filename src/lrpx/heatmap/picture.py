"""Heatmaps as PNG, PDF and SVG, drawn with matplotlib. The text is measured and laid out here; pyplot is not used.

1. Lines: units flow and wrap like words. In right-to-left text the units of a line are put into visual order.
2. Drawing: header, cells and colour bar. All lengths are in pixels of the PNG.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError, import_optional
from ..files import ENDINGS, check_ending, save_output
from .canvas import BODY, FRAME, MARGIN, ROOM, SMALL, SOFT, TINY, Canvas, unit
from .cells import Cell, joined_pieces
from .colours import ink
from .fonts import DPI, Typeface
from .grid import Grid
from .grid_picture import draw_grid, text_of_grid
from .image_picture import BETWEEN, drawn
from .numbers import MINUS
from .rtl import RTL_MARK, direction, levels, visual_order
from .text import characters
from .view import ALL_ZERO, View

HIGHEST = {"png": 65_000, "pdf": 40_000}  # matplotlib's limit is 2 ** 16 pixels, that of PDF readers 200 inches
PICTURES = ("png", "pdf", "svg")
PAD, GAP, LINE = 9, 15, 62  # pixels: inside a cell, between words, from line to line
EDGE = 0.08  # inches: the margin
CAP = 26  # pixels: at each end of the colour bar, the colour of cells beyond it


def draw(parts: Sequence[View | Grid], path: str | os.PathLike[str], kind: str) -> None:
    """Draw the maps below one another into the file ``path``.

    Args:
        parts: The maps and grids.
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
        maps = [part for part in parts if isinstance(part, View)]
        grids = [part for part in parts if isinstance(part, Grid)]
        canvas = Canvas(Typeface(" ".join([_characters(maps), *map(text_of_grid, grids)])))
        for part in parts:
            if isinstance(part, View):
                _map(canvas, part, part.with_numbers)
            else:
                draw_grid(canvas, part)
        width, height = math.ceil(canvas.right + MARGIN), math.ceil(canvas.y + MARGIN / 2)
        if height > HIGHEST.get(kind, math.inf):
            raise InputError(
                f"the picture would be {height:.0f} pixels high, {HIGHEST[kind]} at most. Use HTML for such a text."
            )
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        canvas.paint(figure, width, height)
        save_figure(figure, file, kind)


# Without a date, so that the same map gives the same file.
METADATA = {
    "png": {"Software": "lrpx"},
    "pdf": {"Creator": "lrpx", "CreationDate": None},
    "svg": {"Creator": "lrpx", "Date": None},
}


def save_figure(figure: Any, path: Path, kind: str) -> None:
    """Write a figure of matplotlib, cut to what is drawn with an even margin, and complete before the file is touched."""
    import matplotlib
    from matplotlib.transforms import Bbox

    whole, renderer = io.BytesIO(), figure.canvas.get_renderer()
    if any(axes.axison for axes in figure.axes):
        box = figure.get_tightbbox(renderer)
    else:  # axes as large as the figure, whose own box tells nothing
        drawn = (each for axes in figure.axes for each in (*axes.texts, *axes.patches, *axes.images))
        boxes = [each.get_tightbbox(renderer) for each in drawn]
        boxes += [axes.dataLim.transformed(axes.transData) for axes in figure.axes if axes.collections]
        pixels = Bbox.union([each for each in boxes if each.width > 0 and each.height > 0])  # texts can be empty
        box = pixels.transformed(figure.dpi_scale_trans.inverted())
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType: many journals and conferences reject Type 3 fonts
        figure.savefig(whole, format=kind, dpi=DPI, metadata=METADATA[kind], bbox_inches=_cut(box))
    save_output(path, whole.getvalue())


def _cut(box: Any) -> Any:
    """A box in inches with the margin, at whole pixels, so that images keep theirs."""
    from matplotlib.transforms import Bbox

    (left, low), (right, high) = box.padded(EDGE).get_points() * DPI
    return Bbox.from_extents(
        *(edge / DPI for edge in (math.floor(left), math.floor(low), math.ceil(right), math.ceil(high)))
    )


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


def _map(canvas: Canvas, view: View, numbers: bool) -> None:
    if view.look.header:
        title = [
            (f"{view.method}  ", True),
            (view.explains(MINUS) + " = " * bool(view.equals()), False),
            (view.equals(MINUS), True),
        ]
        canvas.paragraph(title, BODY * 0.9)
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
        (width, height), picture, over = drawn(image, view.image_shares(image), view.look)
        for x, pixels in ((float(MARGIN), picture), (MARGIN + width + BETWEEN, over)):
            canvas.picture(x, canvas.y + 14, width, height, pixels)
        canvas.y += height + 40
    _bar(canvas, view)
    if view.components:
        canvas.paragraph([("outside the tokens: " + " · ".join(view.outside(MINUS)), False)], SMALL, SOFT)
    canvas.y += MARGIN / 2


def _draw_box(canvas: Canvas, view: View, box: _Box, cell: Cell, x: float) -> None:
    background = view.fill(cell)
    centre, height = x + box.width / 2, LINE - 14
    canvas.box(x, canvas.y, box.width, height, unit(background), FRAME, 0.5)
    if cell.explained:  # around the cell, to be seen on a dark one
        canvas.box(x - 4, canvas.y - 4, box.width + 8, height + 8, "none", "black", 1.6, 2)
    canvas.text(
        centre, canvas.y + height * 0.72, canvas.face.text(box.text), BODY, ink=unit(ink(background)), ha="center"
    )
    if box.number:
        canvas.text(centre, canvas.y + height + 24, box.number, TINY, ink=SOFT, ha="center")


def _bar(canvas: Canvas, view: View) -> None:
    """The colour bar with its numbers, and what the frame means."""
    x, length, height, steps = float(MARGIN), 500, 22, 250
    y = canvas.y
    below, above = view.beyond
    if view.scale:
        if below:
            canvas.box(x, y, CAP, height, unit(view.look.colour(-2.0)), SOFT, 0.4)
            x += CAP
        for i, shade in enumerate(view.bar(steps)):
            fill = unit(view.look.colour(shade))
            start = i * length / steps  # each goes on below those after it: at edges that meet, browsers show the paper
            canvas.box(x + start, y, length - start, height, fill, "none", 0)
        canvas.box(x, y, length, height, "none", SOFT, 0.4, 2)
        for place, label in view.ticks(MINUS):
            ha = {0.0: "left", 1.0: "right"}.get(place, "center")
            canvas.text(x + place * length, y + height + 30, label, SMALL, ink=SOFT, ha=ha)
        if above:
            canvas.box(x + length, y, CAP, height, unit(view.look.colour(2.0)), SOFT, 0.4)
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
