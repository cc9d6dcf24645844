"""A matrix in the terminal: blocks of colour, or without colours its numbers; columns that do not fit stand below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from .matrix import MatrixView
from .numbers import MINUS
from .terminal import encodable, signs, style_for

LABEL = 24  # columns of a token at most; a longer one is cut, with an ellipsis
NAME = 12  # columns of a token above a column at most
BLOCK = 2  # columns of a block of colour


class TerminalMatrix:
    """One matrix; its looks depend on the console it is printed to."""

    def __init__(self, view: MatrixView, width: int | None) -> None:
        self.view, self.width = view, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines that fit the console's width, in characters of its encoding."""
        view, width = self.view, min(self.width or options.max_width, options.max_width)
        coloured = console.color_system is not None and not console.no_color
        minus, dot = signs(options.encoding) if coloured else ("-", ", ")
        title, notes = (
            encodable(line.replace(MINUS, minus), options.encoding) for line in (view.title, dot.join(view.notes))
        )
        head = [Text(title, "bold" if coloured else ""), Text(notes, "dim" if coloured else "")]
        labels = [_fit(encodable(row.text, options.encoding)) for row in view.rows]
        side = max(map(cell_len, [*labels, view.corner])) + 1
        names = [_fit(encodable(name, options.encoding), NAME) for name in view.names]
        with_numbers = view.look.numbers is not False if names else view.look.numbers is True or not coloured
        wide = max(len(view.number(v, minus)) for v in [*view.numbers[np.isfinite(view.numbers)], 0.0]) + 1
        wide = max(wide if with_numbers else BLOCK, *(cell_len(name) + 1 for name in names or [str(view.width - 1)]))
        for line in [*head, Text()] if view.look.header else []:
            yield from line.wrap(console, width, overflow="fold")
        per_block = max(1, (width - side) // wide)
        for start in range(0, view.width, per_block):
            stop = min(start + per_block, view.width)
            part = f" {start} to {stop - 1}" if view.width > per_block and not names else ""
            yield Text(" " * side + view.columns + part, "dim" if coloured else "")
            ticks = _named(names[start:stop], wide) if names else _ticks(start, stop, wide)
            yield Text(view.corner.ljust(side) + "".join(ticks), "" if names or not coloured else "dim")
            for row, label in zip(view.rows, labels, strict=True):
                text = Text(set_cell_size(label, side))
                for value in row.relevance[start:stop]:
                    shown = view.number(float(value), minus) if with_numbers and np.isfinite(value) else ""
                    style = (
                        style_for(console, view.share(float(value)), view.look)
                        if coloured and np.isfinite(value)
                        else ""
                    )
                    text.append(shown.rjust(wide - 1).rjust(wide), style)
                yield text
            yield Text()
        if coloured:
            legend = Text(encodable(view.legend(minus), options.encoding), "dim")
            yield from legend.wrap(console, width, overflow="fold")


def _ticks(start: int, stop: int, wide: int) -> Iterator[str]:
    """The numbers of the columns; every fifth where they are narrow."""
    for i in range(start, stop):
        yield (str(i) if i % 5 == 0 or wide > 4 or i == start else "").rjust(wide)


def _named(names: Sequence[str], wide: int) -> Iterator[str]:
    """The names of the columns, to the right as their numbers."""
    for name in names:
        yield " " * (wide - cell_len(name)) + name


def _fit(text: str, most: int = LABEL) -> str:
    return text if cell_len(text) <= most else set_cell_size(text, most - 1) + "…"
