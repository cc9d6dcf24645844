"""Heatmaps in the terminal, through ``rich``.

The console decides how a map looks when it is printed: shades with true colour or 256 colours, three steps each way
with 16 colours, and a plain table without colours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .cells import Cell
from .colours import HIDDEN, IMAGE, ink
from .excerpt import around, parts_begun, printed_cells, told
from .images import ImageMap
from .look import Look
from .numbers import MINUS
from .text import around_quotes
from .view import ALL_ZERO, WITH_NUMBERS, View

WHOLE = 256  # parts of an image that are all printed without colours
STRONGEST = 10  # of a larger one
BAR = 33  # columns of the colour bar, odd
# Stands for a space that must not end a line: rich breaks lines at no-break spaces too. No visible text has it.
NO_BREAK = "\ue000"
_PROBABILITY = re.compile(r"(?: p)?(?: [=<>])? \.\d+")


class TerminalMap:
    """One heatmap; its looks depend on the console it is printed to."""

    def __init__(self, view: View, width: int | None) -> None:
        self.view, self.width = view, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines that fit the console's width, in characters of its encoding."""
        width = min(self.width or options.max_width, options.max_width)
        view = in_encoding(self.view, options.encoding)
        if console.color_system is None or console.no_color:
            lines = _plain(view, width)
        else:
            few = console.color_system in ("standard", "windows")
            on = _few_colours if few else partial(_shades, look=view.look)
            lines = _ColouredMap(view, on, *signs(options.encoding)).lines(width)
        for line in lines:
            yield from wrapped(line, console, width)


def bar_steps(free: int) -> int:
    """How many columns of ``free`` ones a colour bar takes: an odd number, so that 0 is one of them."""
    return max(3, min(BAR, free - 1 + free % 2))


def unbroken(line: str, width: int) -> str:
    """A line of a header for ``wrapped``, which breaks no quoted token that fits a line, and not before its probability."""
    words, *rest = around_quotes(line)
    for token, after in zip(rest[::2], rest[1::2], strict=True):
        found = _PROBABILITY.match(after)
        end = found.end() if found else 0
        whole = token + after[:end]
        words += whole.replace(" ", NO_BREAK) if cell_len(whole) < width else whole  # a comma may follow
        words += after[end:]
    return words


def wrapped(line: Text, console: Console, width: int) -> Iterator[Text]:
    """Lines of at most ``width`` columns."""
    for part in line.wrap(console, width, overflow="fold"):
        part.plain = part.plain.replace(NO_BREAK, " ")  # of the same length, so styles stay in place
        yield part


def unclipped(*headings: str) -> Table:
    """A table without lines, whose cells go on below each other in a narrow terminal instead of being cut."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def encodable(text: str, encoding: str) -> str:
    r"""The text with escapes (``\u4e2d``) for characters that the encoding lacks."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def signs(encoding: str) -> tuple[str, str]:
    """The minus sign and the dot to use."""
    return (MINUS, " · ") if encodable(MINUS + "·", encoding) == MINUS + "·" else ("-", ", ")


def in_encoding(view: View, encoding: str) -> View:
    """The view with escapes for characters that the encoding lacks."""

    def fit(text: str) -> str:
        return encodable(text, encoding)

    return replace(
        view,
        target=fit(view.target),
        contrast=None if view.contrast is None else fit(view.contrast),
        notes=tuple(map(fit, view.notes)),
        predictions=tuple(map(fit, view.predictions)),
        remarks=tuple(map(fit, view.remarks)),
        cells=tuple(
            replace(cell, pieces=tuple(map(fit, cell.pieces)), segment=fit(cell.segment)) for cell in view.cells
        ),
        components=tuple((fit(name), total, layers) for name, total, layers in view.components),
        images=tuple(replace(image, label=fit(image.label)) for image in view.images),
    )


# With colours.


def style_for(console: Console, share: float, look: Look = Look()) -> Style:  # noqa: B008
    """The style of a share of the scale, from -1 to 1 and beyond, on a console with colours."""
    return _few_colours(share) if console.color_system in ("standard", "windows") else _shades(share, look)


def _shades(share: float, look: Look) -> Style:
    background = look.colour(share)
    return Style(color=Color.from_rgb(*ink(background)), bgcolor=Color.from_rgb(*background))


def _few_colours(share: float) -> Style:
    """Black on white near 0, then red or blue on white, then white on red or blue; red or blue on black beyond the scale.

    The nearest of 16 colours would be grey.
    """
    hue = "red" if share > 0 else "blue"
    if abs(share) > 1:
        return Style(color=f"bright_{hue}", bgcolor="black", bold=True)
    if abs(share) < 0.1:
        return Style(color="black", bgcolor="bright_white")
    if abs(share) < 0.5:
        return Style(color=hue, bgcolor="bright_white")
    return Style(color="bright_white", bgcolor=hue)


@dataclass(frozen=True)
class _ColouredMap:
    """A map on a console with colours."""

    view: View
    on: Callable[[float], Style]  # the style of a share of the scale, from -1 to 1
    minus: str
    dot: str

    def lines(self, width: int) -> list[Text]:
        """Header, text, colour bar and what belongs to no token."""
        view = self.view
        marked = [f": {view.marked()}"] * bool(view.marked())
        title = Text.assemble(
            (view.method, "bold"),
            f"  {unbroken(view.explains(self.minus), width)}" + " = " * bool(view.equals()),
            (view.equals(self.minus), "bold"),
        )
        below = (Text(unbroken(line, width), "dim") for line in view.below(self.minus, self.dot))
        lines = [
            *([title, *below, Text()] if view.look.header else []),
            *(self._grid(width) if view.with_numbers else [self._flow(), Text()]),
            *(line for image in view.images for line in self._image(image, width)),
            self._bar(width),
            Text.assemble(
                *[("underlined", "dim underline")] * bool(marked), (self.dot.join([*marked, *self._legend()]), "dim")
            ),
        ]
        if view.components:
            lines.append(Text("outside the tokens: " + self.dot.join(view.outside(self.minus)), "dim"))
        return lines

    def _legend(self) -> list[str]:
        lines = self.view.legend(self.minus)
        return [line.replace("darkest", "on black") for line in lines] if self.on is _few_colours else lines

    def _image(self, image: ImageMap, width: int) -> Iterator[Text]:
        """The patches as blocks of two columns, or fewer and larger ones where the line is too short."""
        blocks = image.coarse((width - 2) // 2)
        merged = (
            f", a block is the mean of {side} x {side}" if (side := -(-image.columns // blocks.shape[1])) > 1 else ""
        )
        yield Text(self.view.caption(image, self.minus) + merged, "dim")
        for row in blocks:
            yield Text("").join(Text("  ", self.on(self.view.share(float(value)))) for value in row)
        yield Text()

    def _fill(self, cell: Cell) -> Style:
        if cell.coloured:
            return self.on(self.view.share(cell.value))
        if self.on is _few_colours:
            return Style(color="black", bgcolor="white")  # which terminals show as light grey
        grey = IMAGE if cell.image else HIDDEN
        return Style(color=Color.from_rgb(*ink(grey)), bgcolor=Color.from_rgb(*grey))

    def _style(self, cell: Cell) -> Style:
        mark = Style(bold=True, underline=True) if cell.explained else Style()
        return self._fill(cell) + mark

    def _pieces(self, cell: Cell) -> tuple[str, ...]:
        return (f" {self.view.label(cell, self.minus)} ",) if cell.image else cell.pieces

    def _flow(self) -> Text:
        """The running text, each unit on its colour."""
        text = Text()
        for cell in self.view.cells:
            text.append("\n" if cell.breaks else " " if cell.gap else "")
            text.append(f"{cell.segment}: " if cell.segment else "", "dim")
            for i, piece in enumerate(self._pieces(cell)):
                text.append("\n" if i else "")
                text.append(piece, self._style(cell))
        return text

    def _grid(self, width: int) -> list[Text]:
        """The text with a number below each unit; as many units per line as fit."""
        rows = [(Text(), Text())]
        for cell in self.view.cells:
            number = self.view.number(cell.value, self.minus) if cell.coloured else ""
            if cell.segment:
                name = f"{cell.segment}: "
                rows.append((Text().append(name, "dim"), Text(" " * cell_len(name))))
            for i, piece in enumerate(self._pieces(cell)):
                if i:
                    rows.append((Text(), Text()))
                if not piece:
                    continue
                below = "" if i else number
                columns = max(cell_len(piece), len(below)) + 2
                if rows[-1][0] and rows[-1][0].cell_len + cell.gap + columns > width:
                    rows.append((Text(), Text()))
                tokens, values = rows[-1]
                gap = " " if cell.gap and tokens else ""
                left = (columns - cell_len(piece)) // 2
                right = columns - cell_len(piece) - left
                pad = self._fill(cell)
                tokens.append(gap).append(" " * left, pad).append(piece, self._style(cell)).append(" " * right, pad)
                values.append(gap + below.center(columns), "dim")
        return [line for tokens, values in rows if tokens for line in (tokens, values, Text())]

    def _bar(self, width: int) -> Text:
        """The colour bar between its numbers, of at most ``BAR`` steps, in one line."""
        view = self.view
        if not view.scale:
            return Text(ALL_ZERO, "dim")
        (_, low), *between, (_, high) = view.ticks(self.minus)
        below, above = view.beyond
        bar = Text(f"{low} ").append("  " * below, self.on(-2.0))
        free = width - cell_len(f"{low}  {high}") - 2 * below - 2 * above
        for share in view.bar(bar_steps(free)):
            zero = share == 0 and between
            bar.append("0" if zero else "-" if self.on is _few_colours and abs(share) < 0.5 else " ", self.on(share))
        return bar.append("  " * above, self.on(2.0)).append(f" {high}")


# Without colours.


def _plain(view: View, width: int) -> list[Text]:
    """A header and one row per unit: position, id, relevance, text; ``*`` marks the explained position.

    Of a long text these are the strongest units, each with the text around it.
    """
    head = f"{view.method}: {view.equation()}"
    lines = [
        *(unbroken(line, width) for line in (head, *view.below(dot=", ")) if view.look.header),
        *[f"*: {view.marked()}"] * bool(view.marked()),
    ]
    rows = [("position", "id", "relevance", "text")]
    kept = printed_cells([[cell.size for cell in view.cells]], whole=_is_whole(view))
    in_short = len(kept) < len(view.cells)
    shown: list[int | None] = [None]  # of each row, its cell
    for n, part in zip(kept, parts_begun(view.cells, kept), strict=True):
        cell = view.cells[n]
        positions, ids = [str(token[0]) for token in cell.tokens], [str(token[2]) for token in cell.tokens]
        position = "-".join(dict.fromkeys((positions[0], positions[-1]))) + ("*" if cell.explained else "")
        number = "hidden" if cell.hidden else view.number(cell.value)
        rows += [("", "", "", f"{part}:")] * bool(part)
        shown += [None] * bool(part) + [n]
        no_tokens = cell.image or ids[0] == "-1"  # frames of sound have no ids
        rows.append(
            (
                position,
                "" if no_tokens else _listed(ids),
                number,
                cell.text if cell.image else cell.quoted.replace(" ", NO_BREAK),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    table = ["  ".join([*(c.rjust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
    if in_short:
        wide = max(map(cell_len, table)) + 2
        beside = ["" if n is None else around(view.cells, n, width - wide) for n in shown]
        beside[0] = "in the text" * any(beside)
        table = [
            line + " " * (wide - cell_len(line)) + text if text else line
            for line, text in zip(table, beside, strict=True)
        ]
        table.append(told(len(view.cells)))
    lines += table
    for image in view.images:
        lines += ["", view.caption(image)]
        lines += _values(view, image, width)
    if view.components:
        lines.append("outside the tokens: " + ", ".join(view.outside()))
    return [Text(line) for line in lines]


def _is_whole(view: View) -> bool:
    """Whether all units are printed: of up to ``WITH_NUMBERS``, or where numbers are asked for."""
    return bool(view.look.numbers) or len(view.cells) <= WITH_NUMBERS


def _values(view: View, image: ImageMap, width: int) -> Iterator[str]:
    """The values of an image in rows and columns; of a large one, such as one of pixels, the strongest."""
    if image.values.size <= WHOLE:
        yield from _matrix([[view.number(float(value)) for value in row] for row in image.values], width)
        return
    yield f"{'row':>5}  {'column':>6}  relevance"
    for row, column, value in image.strongest(STRONGEST):
        yield f"{row:>5}  {column:>6}  {view.number(value):>9}"
    yield f"All {image.values.size:,} {image.parts} are in what is saved as CSV, JSON, HTML or a picture."


def _matrix(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Numbers in rows and columns; of a wider matrix, blocks of columns below one another."""
    wide, count = max(len(text) for row in rows for text in row), len(rows[0])
    fit = max(1, (width + 2) // (wide + 2))
    for start in range(0, count, fit):
        stop = min(start + fit, count)
        if fit < count:
            yield f"columns {start + 1} to {stop}:" if stop - start > 1 else f"column {stop}:"
        yield from ("  ".join(text.rjust(wide) for text in row[start:stop]) for row in rows)


def _listed(ids: Sequence[str]) -> str:
    """The ids of a unit; of more than three, the first two and how many there are, so that a row stays one line."""
    return ",".join(ids) if len(ids) <= 3 else f"{','.join(ids[:2])},... {len(ids)} ids"
