"""A grid as a part of a picture: lines of columns, each with the text on top and a strip of colour for each row below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .canvas import BODY, FRAME, MARGIN, ROOM, SMALL, SOFT, TINY, Canvas, unit
from .cells import Cell, joined_pieces
from .colours import ink
from .fonts import Typeface
from .grid import Grid
from .numbers import MINUS
from .rtl import RTL_MARK, direction, levels, visual_order
from .view import DOT

LABEL = 30  # characters of a row's label at most
TOP, ROW, AFTER = 56, 40, 26  # pixels: of the text, of a row, below a line
PAD, GAP, END = 7, 14, 34  # pixels: beside a text, between words, before a number at the end
STEPS, BAR = 120, 420  # of the colour bar, and its length in pixels


def text_of_grid(grid: Grid) -> str:
    """All text that will be drawn, for the choice of fonts."""
    cells = " ".join("".join(pieces) for pieces in joined_pieces(grid.columns))
    names = [row.label for row in grid.rows] + [cell.segment for cell in grid.columns]
    return " ".join([cells, *names, *grid.below(MINUS), grid.explains(MINUS), grid.method(), grid.marked()])


@dataclass(frozen=True)
class _PictureColumn:
    """A column: its text, and what each row has below it."""

    width: float
    text: str
    below: tuple[str, ...]
    gap: float
    cells: tuple[Cell | None, ...] = ()  # empty: no cell of the text


def draw_grid(canvas: Canvas, grid: Grid) -> None:
    """Draw a grid with its header and legend, and move down."""
    face = canvas.face
    head = [text for text in (grid.method(), grid.explains(MINUS)) if text]
    if head and grid.look.header:
        canvas.paragraph([(text + "  ", i == 0) for i, text in enumerate(head)], BODY * 0.9)
    labels, explained = grid.short_labels(LABEL)
    for text in [*explained, *(grid.below(MINUS, labels=labels) if grid.look.header else [])]:
        canvas.paragraph([(text, False)], SMALL, SOFT)
    canvas.y += 24
    left = max(face.width(face.text(label), SMALL, True) for label in labels) + 24
    lines = list(_lines(face, grid, ROOM - left))
    widest = max(sum(c.width + c.gap for c in line) for line in lines)
    for line in lines:
        x = MARGIN + left
        x += widest - sum(c.width + c.gap for c in line) if grid.rtl else 0.0
        for n, label in enumerate(labels):
            y = canvas.y + TOP + n * ROW + ROW * 0.7
            canvas.text(MARGIN, y, face.text(label), SMALL, bold=True)
        for column in _on_paper(grid, line):
            if column.text:
                _draw_column(canvas, grid, column, x)
            x += column.width
        canvas.y += TOP + ROW * len(grid.rows) + AFTER
    _bar(canvas, grid)


def _lines(face: Typeface, grid: Grid, room: float) -> Iterator[list[_PictureColumn]]:
    """The columns in lines. The numbers at the ends of the rows stay together where a line holds them."""
    line: list[_PictureColumn] = []
    columns = list(_columns(face, grid))
    first = len(columns) - len(grid.ends())
    together = sum(c.width + c.gap for c in columns[first:] if c)
    for n, column in enumerate(columns):
        wide = 0.0 if column is None else together if n == first else column.width + column.gap
        if column is None or (line and sum(c.width + c.gap for c in line) + wide > room):
            yield from [line] * bool(line)
            line = []
        if column is not None:
            line.append(column if line else replace(column, gap=0.0))
    yield from [line] * bool(line)


def _columns(face: Typeface, grid: Grid) -> Iterator[_PictureColumn | None]:
    """The columns in the order of the text, ``None`` for a line break, then the numbers at the ends of the rows."""

    def width(texts: tuple[str, ...], size: float) -> float:
        return max(face.width(face.text(text), size) for text in texts)

    for n, (cell, pieces) in enumerate(zip(grid.columns, joined_pieces(grid.columns), strict=True)):
        if cell.breaks:
            yield None
        none = ("",) * len(grid.rows)
        if cell.segment:
            yield _PictureColumn(width((f"{cell.segment}:",), SMALL) + 2 * PAD, f"{cell.segment}:", none, 0)
        cells, text = tuple(row.cells[n] for row in grid.rows), "".join(pieces)
        numbers = tuple(row.number(c, MINUS) for row, c in zip(grid.rows, cells, strict=True))
        below = numbers if grid.with_numbers else none
        wide = max(width((text,), BODY), width(below, TINY)) + 2 * PAD
        yield _PictureColumn(wide, text, below, GAP if cell.gap else 0, cells)
        if len(cell.pieces) > 1:
            yield None
    for name, texts in grid.ends(MINUS):
        yield _PictureColumn(width((name, *texts), SMALL), name, tuple(texts), END)


def _on_paper(grid: Grid, line: list[_PictureColumn]) -> list[_PictureColumn]:
    """A line's columns from left to right, spaces as columns without text; right-to-left rows end at the left.

    A space stands where it would between the letters: also between two runs, or left of a word in a right-to-left run.
    """
    line = [each for c in line for each in ([_PictureColumn(c.gap, "", (), 0)] * (c.gap > 0) + [c])]
    directions = [direction(c.text) if c.cells or not c.text else "R" if grid.rtl else "L" for c in line]
    depth = levels(directions, grid.rtl)
    return [
        replace(c, text=RTL_MARK + c.text) if c.text and depth[i] % 2 and directions[i] in " S" else c
        for i in visual_order(depth)
        for c in [line[i]]
    ]


def _draw_column(canvas: Canvas, grid: Grid, column: _PictureColumn, x: float) -> None:
    face, centre = canvas.face, x + column.width / 2
    baseline = canvas.y + TOP - 16
    if not column.cells:
        side, ha = (x, "left") if not any(column.below) else (x + column.width, "right")
        canvas.text(side, baseline, face.text(column.text), SMALL, ink=SOFT, ha=ha)
        for n, text in enumerate(column.below):
            canvas.text(side, canvas.y + TOP + n * ROW + ROW * 0.7, text, SMALL, ha="right")
        canvas.right = max(canvas.right, x + column.width)
        return
    canvas.text(centre, baseline, face.text(column.text), BODY, ha="center")
    for n, (row, cell, number) in enumerate(zip(grid.rows, column.cells, column.below, strict=True)):
        y = canvas.y + TOP + n * ROW
        if cell is None:
            continue
        fill = row.view.fill(cell)
        canvas.box(x, y, column.width, ROW, unit(fill), FRAME, 0.5)
        if cell.explained:
            canvas.box(x + 1, y + 1, column.width - 2, ROW - 2, "none", "black", 1.6, 2)
        if number:
            canvas.text(centre, y + ROW * 0.68, number, TINY, ink=unit(ink(fill)), ha="center")


def _bar(canvas: Canvas, grid: Grid) -> None:
    """The colour bar and what it means."""
    one_sided = all(row.view.one_sided for row in grid.rows)
    x, y, low = float(MARGIN), canvas.y + 6, 0.0 if one_sided else -1.0
    for i in range(STEPS):
        share = low + (1 - low) * i / (STEPS - 1)
        start = i * BAR / STEPS  # each goes on below those after it, as in the bar of a map
        canvas.box(x + start, y, BAR - start, 20, unit(grid.look.colour(share)), "none", 0)
    canvas.box(x, y, BAR, 20, "none", SOFT, 0.4, 2)
    ticks = [(0.0, "0", "left")] if one_sided else [(0.0, f"{MINUS} end", "left"), (0.5, "0", "center")]
    for place, text, ha in [*ticks, (1.0, "+ end", "right")]:
        canvas.text(x + place * BAR, y + 48, text, SMALL, ink=SOFT, ha=ha)
    canvas.box(x + BAR + 70, y, 40, 20, "white", "black", 1.6, 2)
    canvas.text(x + BAR + 125, y + 19, grid.marked(), SMALL, ink=SOFT)
    canvas.y += 60
    canvas.paragraph([(grid.legend().replace("; ", DOT), False)], SMALL, SOFT)
    canvas.y += MARGIN / 2
