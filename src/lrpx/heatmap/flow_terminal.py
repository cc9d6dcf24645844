"""A flow of relevance in the terminal: from the logit down, what each place keeps and which tokens take from others.

Steps in which each kept token only takes from itself are counted, not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..errors import counted
from .flow import Edge, FlowView, percent
from .numbers import MINUS, short
from .terminal import NO_BREAK, encodable, signs, style_for, wrapped
from .text import SAME, in_quotes

Fit: TypeAlias = Callable[[str], str]  # text in characters of the encoding

STRONGEST = 6  # edges that are named of a step
UNLIMITED = 10_000  # columns
INDENT = "  "


class _StepRow(NamedTuple):
    name: str
    tokens: str
    of_place: str
    of_edges: str
    edges: list[Text]


class TerminalFlow:
    """What ``rich`` prints of a flow."""

    def __init__(self, view: FlowView) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A header, and a line per step in which a token takes from another one."""
        view, plain = self.view, console.color_system is None or console.no_color

        minus = "-" if plain else signs(options.encoding)[0]

        def fit(text: str) -> str:
            return encodable(text.replace(MINUS, minus), options.encoding)

        sums = f" = {short(view.value, minus)}   residual {short(view.residual, minus)}"
        yield Text.assemble((view.method, "" if plain else "bold"), f": {fit(view.what)}{sums}")
        yield Text(fit(", ".join(view.notes)))
        yield Text(fit(view.kept), "" if plain else "dim")
        for remark in view.remarks:
            yield Text(f"note: {fit(remark)}")
        if not view.edges:
            return
        yield Text()
        by_row: dict[int, list[Edge]] = {}
        for edge in view.edges:
            by_row.setdefault(edge.row, []).append(edge)
        steps: list[_StepRow] = []
        silent = 0
        for row, name in enumerate(view.rows[:-1]):
            edges = by_row.get(row, [])
            crossing = sorted((e for e in edges if e.upper != e.lower), key=lambda e: -abs(e.relevance))
            if not crossing:
                silent += 1
                continue
            tokens = str(view.tokens[row - 1]) if row else ""
            shares = (percent(view.token_shares[row - 1]), percent(view.edge_shares[row - 1])) if row else ("", "")
            lines = self._lines(crossing, console, plain, fit)
            steps.append(_StepRow(f"{name} to {view.rows[row + 1]}", tokens, *shares, lines))
        table = _table(steps)
        if Measurement.get(console, options.update(max_width=UNLIMITED), table).maximum <= options.max_width:
            yield table
        else:
            yield from _below_one_another(steps, console, options.max_width, "" if plain else "dim")
        if silent:
            yield Text(
                f"and {counted(silent, 'step')} in which each token takes from itself alone", "" if plain else "dim"
            )
        low = len(view.rows) - 1
        last = sorted((c for r, c in view.nodes if r == low), key=lambda c: -abs(view.nodes[low, c]))
        text = Text(f"{view.rows[low]}: ")
        for n, column in enumerate(last[:STRONGEST]):
            number = self._number(view.names[column], view.nodes[low, column], console, plain, fit)
            text.append("  " if n else "").append_text(_unbroken(number, options.max_width))
        if not last:
            text.append("nothing reaches it")
        yield from wrapped(text, console, options.max_width)
        if any(name != in_quotes(label) for name, label in zip(view.names, view.labels, strict=True)):
            yield Text(SAME, "" if plain else "dim")

    def _lines(self, edges: list[Edge], console: Console, plain: bool, fit: Fit) -> list[Text]:
        lines, view = [], self.view
        for edge in edges[:STRONGEST]:
            above = "" if edge.row == 0 else f"{view.names[edge.upper]} "
            lines.append(self._number(f"{above}from {view.names[edge.lower]}", edge.relevance, console, plain, fit))
        return [*lines, *[Text(f"and {len(edges) - STRONGEST} more")] * (len(edges) > STRONGEST)]

    def _number(self, what: str, value: float, console: Console, plain: bool, fit: Fit) -> Text:
        scale = self.view.scale
        style = "" if plain or not scale else style_for(console, value / scale)
        return Text.assemble((fit(what), style), f" {fit(short(value, MINUS))}")


def _table(steps: Sequence[_StepRow]) -> Table:
    """The steps as rows, their edges on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("step", "tokens", "of place", "of edges", "who takes from whom"):
        table.add_column(name, justify="left" if name[:3] in ("ste", "who") else "right", header_style="dim")
    for step in steps:
        table.add_row(Text(step.name), step.tokens, step.of_place, step.of_edges, Text("\n").join(step.edges))
    return table


def _below_one_another(steps: Sequence[_StepRow], console: Console, width: int, dim: str) -> Iterator[Text]:
    """The same where the terminal is too narrow for a table: each edge has a line below its step."""
    for step in steps:
        numbers = f"   tokens {step.tokens}, of place {step.of_place}, of edges {step.of_edges}" if step.tokens else ""
        yield from wrapped(Text.assemble(step.name, (numbers, dim)), console, width)
        for edge in step.edges:
            room = width - len(INDENT)
            for line in wrapped(_unbroken(edge, room), console, room):
                yield Text(INDENT).append_text(line)


def _unbroken(text: Text, width: int) -> Text:
    """The text, at whose spaces ``wrapped`` breaks no line if it fits one."""
    if text.cell_len <= width:
        text.plain = text.plain.replace(" ", NO_BREAK)
    return text
