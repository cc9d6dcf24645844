"""A report as text: for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from .results import Result, notes
from .tables import Table, TableCell, all_tables

STYLES = {0: "", 1: "bold", 2: "underline"}
MARKS = {0: " ", 1: "*", 2: "+"}  # without bold and underlined text


def terminal(results: Sequence[Result], *, color: bool, width: int) -> str:
    """Tables for a terminal of ``width`` columns; with ``color`` best is bold and second underlined."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        force_jupyter=False,  # or in a notebook the lines would be shown there, and not be in the file
        color_system="standard" if color else None,
        highlight=False,
    )
    for table in all_tables(results, with_intervals=False):
        console.print(Text(table.title, style="bold"))
        if table.warning:
            console.print(Text(table.warning, style="bold yellow"))
        for block in _fitting(table, width):
            console.print()
            for line in _lines(block, marked=not color and _has_ranks(table)):
                console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        marks = " Best: *, second best: +." if not color and _has_ranks(table) else ""
        console.print()
        console.print(Text(f"{table.caption}{marks}", style="dim"))
        console.print()
    for note in notes(results):
        console.print(Text(note, style="yellow"))
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n")) + "\n"


def _fitting(table: Table, width: int) -> Iterator[Table]:
    """The table, in pieces with as many models side by side as fit; or columns, where not even one model does."""
    yield from _pieces(
        table.part, len(table.groups), width, lambda one: _pieces(one.columns, len(one.groups[0][1]), width, _alone)
    )


def _alone(column: Table) -> Iterator[Table]:
    yield column


def _pieces(
    part: Callable[[int, int], Table], count: int, width: int, divided: Callable[[Table], Iterator[Table]]
) -> Iterator[Table]:
    """Parts of as many of ``count`` as fit into ``width``; one that does not fit alone is ``divided``."""
    start = 0
    for stop in range(1, count + 1):
        if stop == count or not _fits(part(start, stop + 1), width):
            piece = part(start, stop)
            yield from [piece] if _fits(piece, width) else divided(piece)
            start = stop


def _fits(table: Table, width: int) -> bool:
    return all(line.cell_len <= width for line in _lines(table, marked=True))


def _lines(table: Table, *, marked: bool) -> Iterator[Text]:
    """The lines of a table: a head over each group of columns, then columns of equal width, numbers to the right."""
    unmarked = " " * any(cell.mark for _, groups in table.rows for group in groups for cell in group)

    def shown(cell: TableCell) -> Text:
        marks = (cell.mark or unmarked) + (MARKS[cell.rank] if marked else "")
        return Text.assemble((cell.text, STYLES[cell.rank]), marks, (f" {cell.margin}" if cell.margin else "", "dim"))

    body = [(Text(name), [[shown(c) for c in group] for group in groups]) for name, groups in table.rows]
    first = max((name.cell_len for name, _ in body), default=0)
    widths = [
        [max([len(column), *(groups[g][c].cell_len for _, groups in body)]) for c, column in enumerate(columns)]
        for g, (_, columns) in enumerate(table.groups)
    ]
    for g, (label, _) in enumerate(table.groups):  # a head longer than its columns widens the last column
        widths[g][-1] += max(0, len(label) - sum(widths[g]) - 2 * (len(widths[g]) - 1))

    def line(name: Text, groups: Sequence[Sequence[Text]]) -> Text:
        parts = [
            Text(" " * (w - cell.cell_len)) + cell
            for ws, cells in zip(widths, groups, strict=True)
            for w, cell in zip(ws, cells, strict=True)
        ]
        return Text("  ").join([name + " " * (first - name.cell_len), *parts])

    whole = [sum(ws) + 2 * (len(ws) - 1) for ws in widths]
    if any(label for label, _ in table.groups):
        heads = [Text(label.center(w), "bold") for (label, _), w in zip(table.groups, whole, strict=True)]
        yield Text("  ").join([Text(" " * first), *heads])
        yield Text("  ").join([Text(" " * first), *(Text("─" * w, "dim") for w in whole)])
    yield line(Text(""), [[Text(column, "bold") for column in columns] for _, columns in table.groups])
    rule = Text("─" * (first + sum(whole) + 2 * len(whole)), "dim")
    yield rule
    for n, (name, groups) in enumerate(body):
        if table.summary and n == len(body) - table.summary:
            yield rule
        yield line(name, groups)


def markdown(results: Sequence[Result]) -> str:
    """Tables in GitHub's Markdown: best bold, second underlined, confidence intervals in a table of their own."""
    lines = []
    for table in all_tables(results):
        lines += [f"## {table.title}", "", *([f"> **{_escape(table.warning)}**", ""] if table.warning else [])]
        lines += [table.caption, ""]
        for block in table.blocks(3):
            lines += [*_markdown(block), ""]
    for note in notes(results):
        lines += [f"> {_escape(note)}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown(table: Table) -> Iterator[str]:
    named = [f"{label}: {column}" if label else column for label, columns in table.groups for column in columns]
    yield "| " + " | ".join(["", *map(_escape, named)]) + " |"
    yield "|---|" + "---:|" * len(named)
    for name, groups in table.rows:
        yield "| " + " | ".join([_escape(name), *(_markdown_cell(c) for group in groups for c in group)]) + " |"


def _markdown_cell(cell: TableCell) -> str:
    return {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}[cell.rank].format(_escape(cell.text)) + cell.mark


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def _has_ranks(table: Table) -> bool:
    return any(cell.rank for _, groups in table.rows for group in groups for cell in group)
