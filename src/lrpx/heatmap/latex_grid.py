r"""A grid as LaTeX: tables below one another, each with as many columns as fit a line, and the numbers of the rows at the end.

A fragment is laid out for the width of a page and once more for a column of a paper; LaTeX takes what fits the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .cells import Cell, joined_pieces
from .colours import hex_colour, ink
from .grid import Grid
from .numbers import MINUS
from .rtl import direction, levels, visual_order
from .view import DOT

LABEL = 22  # letters of a row's label at most
PAGE, COLUMN = 78, 50  # letters of a line: 345 pt, as wide as the text of an article, and 219 pt
STEPS = 41  # of the colour bar
FOOTNOTE = 0.93  # how wide letters of a footnote are, in letters

COMMANDS = r"""% \lrpxstrip{background}{ink}{number}: a cell of a grid; \lrpxframed: the same in a frame.
\newcommand{\lrpxstrip}[3]{\cellcolor[HTML]{#1}\textcolor[HTML]{#2}{\scriptsize #3}}
\newcommand{\lrpxframed}[3]{\lrpxstrip{#1}{#2}{\fboxsep=1pt\fbox{#3}}}
"""


@dataclass(frozen=True)
class _LatexColumn:
    width: float  # in letters
    text: str
    below: tuple[str, ...]  # LaTeX
    kind: str


def grid_lines(grid: Grid, tex: Callable[[str], str], prose: Callable[[str], str], fragment: bool) -> Iterator[str]:
    """The source of one grid.

    Args:
        grid: The grid.
        tex: Text as LaTeX source.
        prose: The same for words around the map.
        fragment: It may come to stand in a column.
    """
    head = [text for text in (grid.method(), grid.explains(MINUS)) if text]
    yield r"{\sffamily\raggedright\setlength{\fboxsep}{1pt}"
    if head and grid.look.header:
        yield r"\textbf{" + prose(head[0]) + r"}\quad " + prose(" ".join(head[1:])) + r"\par\nobreak"
    labels, key = grid.short_labels(LABEL)
    for line in [*key, *(grid.below(MINUS, labels=labels) if grid.look.header else [])]:
        yield rf"{{\footnotesize {prose(line)}\par}}\nobreak"
    wide = [r"\medskip", *_tables(grid, tex, labels, PAGE)]
    narrow = [r"\medskip", *_tables(grid, tex, labels, COLUMN)]
    few, key_of_few = grid.short_labels(0)
    numbered = [r"\medskip", *_tables(grid, tex, few, COLUMN)]
    if not key and len(numbered) < len(narrow):  # names take the room of what they name
        narrow = [*(rf"{{\footnotesize {prose(line)}\par}}\nobreak" for line in key_of_few), *numbered]
    both = fragment and wide != narrow
    yield from [r"\ifdim\linewidth<300pt", *narrow, r"\else"] * both
    yield from wide
    yield from [r"\fi"] * both
    one_sided = all(row.view.one_sided for row in grid.rows)
    shares = [i / (STEPS - 1) if one_sided else 2 * i / (STEPS - 1) - 1 for i in range(STEPS)]
    steps = "".join(rf"\textcolor[HTML]{{{hex_colour(grid.look.colour(s))}}}{{\rule{{1.2mm}}{{2mm}}}}" for s in shares)
    low = "0" if one_sided else "$-$"
    frame = rf"\fboxsep=0pt\fboxrule=0.3pt\fcolorbox[HTML]{{999999}}{{FFFFFF}}{{{steps}}}"
    yield rf"{{\footnotesize {low} {frame} $+$\par}}\nobreak"
    legend = DOT.join([f"framed: {grid.marked()}", *grid.legend().split("; ")])
    yield rf"{{\footnotesize {prose(legend)}\par}}}}"


def _tables(grid: Grid, tex: Callable[[str], str], labels: Sequence[str], letters: int) -> list[str]:
    """The tables, each at most ``letters`` wide."""
    room = letters - FOOTNOTE * max(map(len, labels))
    return [_table(grid, columns, [tex(label) for label in labels]) for columns in _lines(grid, tex, room)]


def _lines(grid: Grid, tex: Callable[[str], str], room: float) -> Iterator[list[_LatexColumn]]:
    """The columns in lines. The numbers at the ends of the rows stay together where a line holds them."""
    line: list[_LatexColumn] = []
    columns = list(_columns(grid, tex))
    first = len(columns) - len(grid.ends())
    together = sum(c.width for c in columns[first:] if c)
    for n, column in enumerate(columns):
        wide = 0.0 if column is None else together if n == first else column.width
        if column is None or (line and sum(c.width for c in line) + wide > room):
            yield from [line] * bool(line)
            line = []
        if column is not None:
            line.append(column)
    yield from [line] * bool(line)


def _columns(grid: Grid, tex: Callable[[str], str]) -> Iterator[_LatexColumn | None]:
    """The columns, ``None`` for a line break, then the numbers at the ends of the rows."""
    none = ("",) * len(grid.rows)
    for n, (cell, pieces) in enumerate(zip(grid.columns, joined_pieces(grid.columns), strict=True)):
        if cell.breaks:
            yield None
        if cell.segment:
            yield _LatexColumn(len(cell.segment) + 2, rf"\footnotesize {tex(cell.segment)}:", none, " ")
        cells = [row.cells[n] for row in grid.rows]
        text = "".join(pieces)
        numbers = [row.number(c, MINUS) if grid.with_numbers else "" for row, c in zip(grid.rows, cells, strict=True)]
        strips = tuple(
            _strip(grid, r, c, tex(number)) for r, (c, number) in enumerate(zip(cells, numbers, strict=True))
        )
        wide = max(sum(map(_letters, text)), *(len(number) * 0.8 for number in numbers))
        yield _LatexColumn(wide + 1.2, tex(text), strips, direction(text))
        if len(cell.pieces) > 1:
            yield None
    for name, texts in grid.ends(MINUS):
        numbers = [rf"\footnotesize {tex(text)}" for text in texts]
        yield _LatexColumn(
            max(map(len, (name, *texts))) * FOOTNOTE + 1.2, rf"\footnotesize {tex(name)}", tuple(numbers), "end"
        )


def _letters(char: str) -> float:
    """How wide a character is, in letters; a code point in small type takes three."""
    return 3.0 if ord(char) > 0x17F else 1.5 if char.isupper() or char in "mw@%" else 1.0


def _strip(grid: Grid, row: int, cell: Cell | None, number: str) -> str:
    if cell is None:
        return ""
    fill = grid.rows[row].view.fill(cell)
    command = r"\lrpxframed" if cell.explained else r"\lrpxstrip"
    return f"{command}{{{hex_colour(fill)}}}{{{hex_colour(ink(fill))}}}{{{number}}}"


def _table(grid: Grid, line: Sequence[_LatexColumn], labels: Sequence[str]) -> str:
    own = "R" if grid.rtl else "L"
    order = visual_order(levels([own if c.kind == "end" else c.kind for c in line], grid.rtl))
    columns = [line[i] for i in order]
    form = "l" + "".join("r" if c.kind == "end" else "c" for c in columns)
    rows = [" & ".join(["", *(c.text for c in columns)])]
    rows += [" & ".join([rf"\footnotesize {label}", *(c.below[n] for c in columns)]) for n, label in enumerate(labels)]
    body = "".join(f"{row}\\\\\n" for row in rows)
    table = rf"\begin{{tabular}}{{{form}}}" + f"\n{body}" + r"\end{tabular}"
    return rf"{{\tabcolsep=2.5pt\renewcommand{{\arraystretch}}{{1.15}}\noindent{table}\par}}\smallskip"
