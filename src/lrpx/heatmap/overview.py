"""Several texts by several methods: above their grids, a table of texts and methods with the strongest token of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from .grid import Grid, GridRow
from .html import cell_style, prose
from .numbers import MINUS, short
from .terminal import encodable, signs, style_for, unclipped

LONGEST = 60  # characters of a text; a longer one ends in an ellipsis
WHAT = "The strongest token of each text and method, with its number; all of them stand below."
STYLE = """
.lrpx .overview th,.lrpx .overview td{text-align:left;padding:3px 14px 3px 0;vertical-align:top}
.lrpx .overview td span{padding:1px 5px;border-radius:4px;white-space:pre-wrap}
.lrpx .overview-of{overflow-x:auto;margin-top:6px}
"""


@dataclass(frozen=True)
class Strongest:
    """What a field of the table says."""

    text: str
    number: float
    share: float
    row: GridRow


@dataclass(frozen=True)
class Overview:
    """The table. Its text is visible text, not yet escaped for any format."""

    methods: tuple[str, ...]
    # The text, what is explained, and a field for each method.
    texts: tuple[tuple[str, str, tuple[Strongest, ...]], ...]


def overview(drawn: Sequence[object]) -> Overview | None:
    """The table of several grids with the same rows; ``None`` where there are no such grids."""
    grids = [part for part in drawn if isinstance(part, Grid)]
    labels = {tuple(row.label for row in grid.rows) for grid in grids}
    if len(drawn) < 2 or len(grids) < len(drawn) or len(labels) > 1:
        return None
    texts = tuple((_title(grid), grid.explains(MINUS), tuple(map(_strongest, grid.rows))) for grid in grids)
    return Overview(labels.pop(), texts)


def _title(grid: Grid) -> str:
    text = "".join(" " * cell.gap + cell.text for cell in grid.columns).strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _strongest(row: GridRow) -> Strongest:
    cells = [cell for cell in row.cells if cell is not None and cell.coloured]
    best = max(cells, key=lambda cell: abs(cell.value))
    return Strongest(best.text, best.value, row.view.share(best.value), row)


def overview_section(table: Overview) -> str:
    """The table in HTML."""
    head = "".join(f"<th>{escape(method)}</th>" for method in table.methods)
    lines = [f"<tr><th>text</th><th>explained</th>{head}</tr>"]
    for text, explains, found in table.texts:
        fields = "".join(
            f'<td><span style="{cell_style(each.row.view.colour(each.number))}"><bdi>{escape(each.text)}</bdi> '
            f"{short(each.number, MINUS)}</span></td>"
            for each in found
        )
        side = "rtl" if found[0].row.view.rtl else "ltr"  # as of its grid: a browser would go by the first letter
        lines.append(f'<tr><td><bdi dir="{side}">{escape(text)}</bdi></td><td>{prose(explains)}</td>{fields}</tr>')
    return (
        f'<section class="lrpx" dir="ltr" aria-label="texts and methods"><p class="soft">{WHAT}</p>'
        f'<div class="overview-of" tabindex="0"><table class="overview">{"".join(lines)}</table></div></section>\n'
    )


class TerminalOverview:
    """The table in the terminal."""

    def __init__(self, table: Overview) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, in characters of the console's encoding."""
        coloured = console.color_system is not None and not console.no_color
        minus, _ = signs(options.encoding) if coloured else ("-", "")
        names = (encodable(name.replace(MINUS, minus), options.encoding) for name in self.table.methods)
        shown = unclipped("text", "explained", *names)
        for text, explains, found in self.table.texts:
            fields: Iterator[Text] = (
                Text(
                    encodable(f"{each.text} {short(each.number, minus)}", options.encoding),
                    style_for(console, each.share, each.row.view.look) if coloured else "",
                )
                for each in found
            )
            line = (Text(encodable(part.replace(MINUS, minus), options.encoding)) for part in (text, explains))
            shown.add_row(*line, *fields)
        yield shown
        yield Text(WHAT, "dim" if coloured else "")
