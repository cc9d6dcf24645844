"""A flow of relevance in the terminal: from the logit down, what each place keeps and which tokens take from others.

Steps in which each kept token only takes from itself are counted, not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from .flow import Edge, FlowView, percent
from .numbers import MINUS, short
from .terminal import encodable, signs, style_for
from .text import in_quotes

Fit: TypeAlias = Callable[[str], str]  # text in characters of the encoding

STRONGEST = 6  # edges that are named in a line


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
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        for name in ("step", "tokens", "of place", "of edges", "who takes from whom"):
            right = name not in ("step", "who takes from whom")
            table.add_column(name, justify="right" if right else "left", header_style="dim", overflow="fold")
        silent = 0
        for row, name in enumerate(view.rows[:-1]):
            edges = by_row.get(row, [])
            crossing = sorted((e for e in edges if e.upper != e.lower), key=lambda e: -abs(e.relevance))
            if not crossing:
                silent += 1
                continue
            tokens = str(view.tokens[row - 1]) if row else ""
            shares = (percent(view.token_shares[row - 1]), percent(view.edge_shares[row - 1])) if row else ("", "")
            line = self._line(crossing, console, plain, fit)
            table.add_row(Text(f"{name} to {view.rows[row + 1]}"), tokens, *shares, line)
        yield table
        if silent:
            yield Text(f"and {silent} steps in which each token takes from itself alone", "" if plain else "dim")
        low = len(view.rows) - 1
        last = sorted((c for r, c in view.nodes if r == low), key=lambda c: -abs(view.nodes[low, c]))
        text = Text(f"{view.rows[low]}: ")
        for n, column in enumerate(last[:STRONGEST]):
            text.append("  " if n else "")
            self._number(text, view.names[column], view.nodes[low, column], console, plain, fit)
        if not last:
            text.append("nothing reaches it")
        yield text
        if any(name != in_quotes(label) for name, label in zip(view.names, view.labels, strict=True)):
            yield Text("(n): the token at position n, where several read the same", "" if plain else "dim")

    def _line(self, edges: list[Edge], console: Console, plain: bool, fit: Fit) -> Text:
        text, view = Text(), self.view
        for n, edge in enumerate(edges[:STRONGEST]):
            above = "" if edge.row == 0 else f"{view.names[edge.upper]} "
            text.append("\n" if n else "")
            self._number(text, f"{above}from {view.names[edge.lower]}", edge.relevance, console, plain, fit)
        if len(edges) > STRONGEST:
            text.append(f"\nand {len(edges) - STRONGEST} more")
        return text

    def _number(self, text: Text, what: str, value: float, console: Console, plain: bool, fit: Fit) -> None:
        scale = self.view.scale
        text.append(fit(what), "" if plain or not scale else style_for(console, value / scale))
        text.append(f" {fit(short(value, MINUS))}")
