"""A grid in the terminal: the text on top, a line of colours below for each row, wrapped together; at the end its numbers.

Without colours it is a table: a line per token, a column per row of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from .cells import Cell
from .colours import HIDDEN, ink
from .excerpt import parts_begun, printed_cells, told
from .grid import Grid, GridRow
from .numbers import MINUS
from .terminal import NO_BREAK, bar_steps, encodable, in_encoding, signs, style_for, unbroken, wrapped
from .view import WITH_NUMBERS

LABEL = 24  # columns of a row's label at most
LINES = 5  # of which each says what the number of a row stands for
BETWEEN = 2  # columns between the label and the text, and before the numbers at the end


class TerminalGrid:
    """One grid; its looks depend on the console it is printed to."""

    def __init__(self, grid: Grid, width: int | None) -> None:
        self.grid, self.width = grid, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines that fit the console's width, in characters of its encoding."""
        width = min(self.width or options.max_width, options.max_width)
        plain = console.color_system is None or console.no_color
        minus, dot = ("-", ", ") if plain else signs(options.encoding)
        grid = _encodable(self.grid, options.encoding, minus)
        if plain:
            lines = _plain(grid, width)
        else:
            lines = _ColouredGrid(grid, lambda share: style_for(console, share, grid.look), minus, dot).lines(width)
        for line in lines:
            yield from wrapped(line, console, width)


def _encodable(grid: Grid, encoding: str, minus: str) -> Grid:
    """The grid with escapes for characters that the encoding lacks, and this minus in the labels of its rows."""

    def cell(found: Cell | None) -> Cell | None:
        return found and replace(found, pieces=tuple(encodable(piece, encoding) for piece in found.pieces))

    rows = tuple(
        GridRow(
            encodable(row.label.replace(MINUS, minus), encoding),
            in_encoding(row.view, encoding),
            tuple(map(cell, row.cells)),
        )
        for row in grid.rows
    )
    columns = tuple(
        replace(
            c, pieces=tuple(encodable(piece, encoding) for piece in c.pieces), segment=encodable(c.segment, encoding)
        )
        for c in grid.columns
    )
    return replace(grid, rows=rows, columns=columns)


@dataclass(frozen=True)
class _TerminalColumn:
    """A column of a line: the text on top, and what each row has below it."""

    gap: bool
    top: str
    below: tuple[str, ...]
    cells: tuple[Cell | None, ...] = ()  # empty: no cell of the text

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.top, *self.below))) + (2 if self.cells and any(self.below) else 0)


@dataclass(frozen=True)
class _ColouredGrid:
    """A grid on a console with colours."""

    grid: Grid
    on: Callable[[float], Style]  # the style of a share of the scale
    minus: str
    dot: str

    def lines(self, width: int) -> list[Text]:
        """Header, grid, colour bar and legend."""
        grid = self.grid
        labels, explained = grid.short_labels(max(4, min(LABEL, width // 4)))
        head = [unbroken(text, width) for text in (grid.method(), grid.explains(self.minus)) if text]
        shown = grid.look.header
        title = Text("  ").join([Text(text, "bold" if i == 0 else "") for i, text in enumerate(head)])
        below = grid.below(self.minus, self.dot, labels) if shown else []
        lines = [
            *[title] * bool(head and shown),
            *(Text(unbroken(line, width), "dim") for line in [*_few_lines(explained, self.dot), *below]),
        ]
        lines += [Text()] * bool(lines)
        for columns in self._wrapped(width - max(map(cell_len, labels)) - BETWEEN):
            lines += [*self._line(columns, labels), Text()]
        bar = Text("-" if self.minus == "-" else MINUS, "dim")
        one_sided = all(row.view.one_sided for row in grid.rows)
        steps = bar_steps(width - 2)
        for i in range(steps):
            share = (i / (steps - 1)) if one_sided else 2 * i / (steps - 1) - 1
            bar.append("0" if share == 0 else " ", self.on(share))
        lines.append(bar.append("+", "dim"))
        framed = f"underlined: {grid.marked()}"
        lines.append(Text(self.dot.join([grid.legend(), framed]), "dim"))
        return lines

    def _columns(self) -> Iterator[_TerminalColumn | None]:
        """The columns of the text, ``None`` for a line break, then the numbers at the ends of the rows."""
        grid = self.grid
        for n, cell in enumerate(grid.columns):
            if cell.breaks:
                yield None
            if cell.segment:
                yield _TerminalColumn(True, f"{cell.segment}: ", ("",) * len(grid.rows))
            cells = tuple(row.cells[n] for row in grid.rows)
            numbers = tuple(row.number(c, self.minus) for row, c in zip(grid.rows, cells, strict=True))
            yield _TerminalColumn(cell.gap, cell.text, numbers if grid.with_numbers else ("",) * len(cells), cells)
            if len(cell.pieces) > 1:
                yield None
        for n, (name, texts) in enumerate(grid.ends(self.minus)):
            wide = max(map(cell_len, (name, *texts)))
            lead = " " * (BETWEEN if n == 0 else 1)
            yield _TerminalColumn(False, lead + name.rjust(wide), tuple(lead + text.rjust(wide) for text in texts))

    def _wrapped(self, width: int) -> Iterator[list[_TerminalColumn]]:
        line: list[_TerminalColumn] = []
        for column in self._columns():
            if column is not None and line and sum(c.width + c.gap for c in (*line, column)) > width:
                yield line
                line = []
            if column is not None:
                line.append(column)
            elif line:
                yield line
                line = []
        if line:
            yield line

    def _line(self, columns: Sequence[_TerminalColumn], labels: Sequence[str]) -> list[Text]:
        left = max(map(cell_len, labels)) + BETWEEN
        top = Text(" " * left)
        for i, column in enumerate(columns):
            top.append(" " * (column.gap and i > 0))
            marked = any(cell is not None and cell.explained for cell in column.cells)
            style = "bold underline" if marked else "" if column.cells else "dim"
            before = (column.width - cell_len(column.top)) // 2 if column.cells else 0
            top.append(" " * before).append(column.top, style)
            top.append(" " * (column.width - before - cell_len(column.top)))
        top.rstrip()
        lines = [top]
        for n, (row, label) in enumerate(zip(self.grid.rows, labels, strict=True)):
            line = Text().append(label + " " * (left - cell_len(label)), "bold")
            for i, column in enumerate(columns):
                line.append(" " * (column.gap and i > 0))
                below = column.below[n]
                if not column.cells:
                    line.append(below + " " * (column.width - cell_len(below)))
                else:
                    line.append(below.center(column.width), self._fill(row, column.cells[n]))
            lines.append(line)
        return lines

    def _fill(self, row: GridRow, cell: Cell | None) -> Style:
        if cell is None:
            return Style(dim=True)
        if cell.hidden:
            return Style(color=Color.from_rgb(*ink(HIDDEN)), bgcolor=Color.from_rgb(*HIDDEN))
        return self.on(row.view.share(cell.value)) + Style(bold=cell.explained, underline=cell.explained)


def _plain(grid: Grid, width: int) -> list[Text]:
    """A header and one line per column of the grid; ``*`` marks the explained position. Rows that do not fit stand below."""
    head = ": ".join(text for text in (grid.method(), grid.explains()) if text)
    sizes = [[row.view.share(cell.size) if cell else 0.0 for cell in row.cells] for row in grid.rows]
    kept = printed_cells(sizes, whole=bool(grid.look.numbers) or len(grid.columns) <= WITH_NUMBERS)
    longest = max(cell_len(cell.quoted) for cell in grid.columns)
    labels, explained = grid.short_labels(max(8, min(LABEL, width - longest - 15)))  # 15: the position, and spaces
    explained = _few_lines(explained, "; ")
    header = [*[head] * bool(head), *explained, *grid.below(dot=", ", labels=labels)] if grid.look.header else explained
    lines = [*(unbroken(line, width) for line in header), f"*: {grid.marked()}"]
    left = ["position"]
    right = ["text"]
    columns = [[label] for label in labels]
    for n, part in zip(kept, parts_begun(grid.columns, kept), strict=True):
        cell = grid.columns[n]
        places = [str(token[0]) for token in cell.tokens]
        if part:
            left, right = [*left, ""], [*right, f"{part}:"]
        left.append("" if grid.joined else "-".join(dict.fromkeys((places[0], places[-1]))))
        right.append(cell.quoted.replace(" ", NO_BREAK))
        for row, column in zip(grid.rows, columns, strict=True):
            found = row.cells[n]
            number = "" if found is None else "hidden" if found.hidden else row.view.number(found.value)
            column += [""] * bool(part) + [number + "*" * (found is not None and found.explained)]
    for name, texts in grid.ends():
        if name not in ("colours to", "beyond"):
            left, right = [*left, ""], [*right, name]
            columns = [[*column, text] for column, text in zip(columns, texts, strict=True)]
    room = width - 2 * 2 - max(map(cell_len, left)) - max(map(cell_len, right))
    while columns:
        used = 0
        block: list[list[str]] = []
        while columns and (not block or used + max(map(cell_len, columns[0])) + 3 <= room):
            used += max(map(cell_len, columns[0])) + 3
            block.append(columns.pop(0))
        padded = [_aligned_right(column) for column in (left, *block)]
        lines += ["  ".join([*cells, text]) for *cells, text in zip(*padded, right, strict=True)]
        lines += [""] * bool(columns)
    lines += [told(len(grid.columns))] * (len(kept) < len(grid.columns))
    return [Text(line) for line in lines]


def _few_lines(explained: list[str], dot: str) -> list[str]:
    """What the numbers of the rows stand for: a line each, or of many rows one after the other."""
    return explained if len(explained) <= LINES else [dot.join(explained)]


def _aligned_right(column: Sequence[str]) -> list[str]:
    """Texts of one width, with room for a star behind each."""
    wide = max(cell_len(text.rstrip("*")) for text in column)
    return [" " * (wide - cell_len(text.rstrip("*"))) + text + " " * (not text.endswith("*")) for text in column]
