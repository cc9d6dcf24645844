"""Generated text in the terminal: the text, and for each generated token what was strongest for it.

On a terminal with colours the strongest tokens have the colours of the row's map; without, the same lines carry the numbers only.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from .generated import GeneratedView, Row
from .look import Look
from .numbers import MINUS, probability, short
from .terminal import encodable, signs, style_for
from .text import SAME, in_quotes


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
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        likely = any(row.probability is not None for row in view.rows)
        for name in ("explained", *["p"] * likely, "value", "strongest"):
            table.add_column(
                name, justify="right" if name in ("p", "value") else "left", header_style="dim", overflow="fold"
            )
        for row in view.rows:
            p = [] if row.probability is None else [probability(row.probability).strip("= ")]
            against = f" {minus} {in_quotes(fit(row.against))}" if row.against else ""
            table.add_row(
                Text(in_quotes(fit(row.text)) + against),
                *p,
                short(row.value, minus),
                self._strongest(row, console, plain, fit),
            )
        yield table
        if any(self.apart[i] for row in view.rows for i in row.strongest()):
            yield Text(SAME, "" if plain else "dim")
        yield Text(fit(f"value: {view.explained}"), "dim")

    def _strongest(self, row: Row, console: Console, plain: bool, fit) -> Text:  # type: ignore[no-untyped-def]
        scale, text = Look().end_of_scale(row.relevance[: row.end].tolist()), Text()
        for n, i in enumerate(row.strongest()):
            value = float(row.relevance[i])
            cell = self.view.cells[i]
            shown = fit(cell.text) if cell.image else in_quotes(fit(self.view.text(i))) + self.apart[i]
            text.append("  " if n else "")
            text.append(shown, "" if plain or not scale else style_for(console, value / scale))
            text.append(f" {fit(short(value, MINUS))}")
        return text
