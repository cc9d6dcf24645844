"""Generated text in the terminal: the text, and for each generated token what was strongest for it.

On a terminal with colours the strongest tokens have the colours of the row's map; without, the same lines carry the numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .generated import GeneratedView, Row
from .look import Look
from .numbers import MINUS, four, probability, short
from .terminal import NO_BREAK, encodable, signs, style_for, unbroken, wrapped
from .text import SAME, in_quotes

BETWEEN = 2  # columns between two of the table
NARROW = 24  # columns for the strongest tokens, below which they stand in lines of their own


class TerminalGenerated:
    """What ``rich`` prints of generated text."""

    def __init__(self, view: GeneratedView) -> None:
        self.view, self.apart = view, view.apart()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A header, the text, and a table with one line per value."""
        view, plain = self.view, console.color_system is None or console.no_color

        minus = "-" if plain else signs(options.encoding)[0]

        def fit(text: str) -> str:
            return encodable(text.replace(MINUS, minus), options.encoding)

        yield Text.assemble((view.method, "" if plain else "bold"), f": {fit(', '.join(view.notes))}")
        for remark in view.remarks:
            yield Text(f"note: {fit(remark)}")
        parts = ((0, view.begun), (view.begun, view.first), (view.first, len(view.cells)))
        source, prompt, reply = ("".join(view.text(i) for i in range(*part)) for part in parts)
        if source:
            yield Text(f"source: {fit(source)}")
            prompt = f"target: {prompt}"
        yield Text.assemble(fit(prompt), (fit(reply), "bold"))
        yield Text()
        yield from self._rows(console, min(options.max_width, console.width), plain, fit)
        if any(self.apart[i] for row in view.rows for i in row.strongest()):
            yield Text(SAME, "" if plain else "dim")
        yield Text(fit(f"value: {view.explained}"), "dim")

    def _rows(self, console: Console, width: int, plain: bool, fit: Callable[[str], str]) -> Iterator[RenderableType]:
        """A table with a line per value, or in a narrow terminal two lines for each."""
        view = self.view
        likely = any(row.probability is not None for row in view.rows)
        names = ("explained", *["p"] * likely, "value")
        cells = []
        for row in view.rows:
            p = [] if row.probability is None else [probability(row.probability).strip("= ")]
            against = fit(f" {MINUS} {in_quotes(row.against)}") if row.against else ""
            cells.append([in_quotes(fit(row.text)) + against, *p, fit(four(row.value, MINUS))])
        widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
        room = width - sum(wide + BETWEEN for wide in widths)
        if room < NARROW:
            for row, (text, *numbers) in zip(view.rows, cells, strict=True):
                told = ", ".join(f"{name} {number}" for name, number in zip(names[1:], numbers, strict=True))
                yield from wrapped(Text(f"{unbroken(text, width)}: {told.replace(' ', NO_BREAK)}"), console, width)
                for line in wrapped(
                    self._strongest(row, console, width - BETWEEN, plain, fit), console, width - BETWEEN
                ):
                    yield Text(" " * BETWEEN) + line
            return
        table = Table(box=None, pad_edge=False, padding=(0, BETWEEN, 0, 0), show_edge=False)
        for name in (*names, "strongest"):
            table.add_column(
                name, justify="right" if name in ("p", "value") else "left", header_style="dim", no_wrap=True
            )
        for row, (text, *numbers) in zip(view.rows, cells, strict=True):
            lines = wrapped(self._strongest(row, console, room, plain, fit), console, room)
            table.add_row(Text(text), *numbers, Text("\n").join(lines))
        yield table

    def _strongest(self, row: Row, console: Console, width: int, plain: bool, fit: Callable[[str], str]) -> Text:
        """Tokens with their numbers; no line of ``width`` columns begins or ends inside a token or before its number."""
        scale, found = Look().end_of_scale(row.relevance[: row.end].tolist()), []
        for i in row.strongest():
            value = float(row.relevance[i])
            cell = self.view.cells[i]
            shown = fit(cell.text) if cell.image else in_quotes(fit(self.view.text(i))) + self.apart[i]
            number = NO_BREAK + fit(short(value, MINUS))
            if cell_len(shown + number) > width:
                number = number.replace(NO_BREAK, " ")
            shown = shown.replace(" ", NO_BREAK) if cell_len(shown) <= width else shown
            found.append(Text(shown, "" if plain or not scale else style_for(console, value / scale)) + number)
        return Text("  ").join(found)
