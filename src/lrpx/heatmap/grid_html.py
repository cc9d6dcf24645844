"""A grid in HTML, without a script: columns flow and wrap like words, so it fits a phone as well as a wide page.

Every column is as high as all others. So the labels of the rows, repeated in a gutter that is cut off where the text ends, stand
beside their rows on every line. On a phone, numbers stand there for all but short labels, and a line above says what they mean.
Numbers of a column are in its tooltip; a table below holds all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from .cells import joined_pieces
from .grid import Grid
from .html import bar_colours, cell_style, details, prose, quote
from .numbers import MINUS
from .text import legible
from .view import DOT

LABEL, NARROW = 24, 10  # characters of a label in the gutter, and in that of a narrow window

STYLE = """
.lrpx .grid{position:relative;overflow-x:auto;background:#fff;color:#000;border-radius:6px;border:1px solid var(--lrpx-line);
padding:6px 12px 0;margin:10px 0}
.lrpx .gutter{position:absolute;left:12px;top:30px;bottom:0;overflow:hidden;white-space:pre;font-size:12px;color:#454950;
user-select:none;line-height:18px;width:calc(var(--label)*7px + 4px)}
.lrpx .columns{line-height:18px;margin-left:calc(var(--label)*7px + 10px)}
.lrpx .columns .c{display:inline-flex;flex-direction:column;height:calc((var(--rows) + 2)*18px);text-align:center;
position:relative;vertical-align:top}
.lrpx .columns .space{display:inline-block;width:.4em}
.lrpx .columns .c.gap{margin-inline-end:.4em}
.lrpx .columns .c>b{font-weight:400;font-size:15px;line-height:24px;height:24px;padding:0 1px;white-space:pre}
.lrpx .columns .c.name>b{color:#5d6169;font-size:12px;padding-inline-end:.5em}
.lrpx .columns .c>i{height:18px;line-height:18px;font-style:normal;font-size:11px;min-width:.7em;padding:0 3px;
font-variant-numeric:tabular-nums;white-space:pre;direction:ltr;box-shadow:0 0 0 .5px rgba(0,0,0,.18) inset;
print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none}
.lrpx .columns .c>i.at{box-shadow:0 0 0 2px #111 inset,0 0 0 3px #fff inset}
.lrpx .columns .c:hover>b{text-decoration:underline}
.lrpx .columns .after{display:inline-flex;flex-wrap:wrap;max-width:100%;vertical-align:top}
.lrpx .columns .end{text-align:right;color:#33363b;margin-inline-start:14px}
.lrpx .columns .end>b{font-size:12px;color:#5d6169}
.lrpx .columns .end>i{box-shadow:none;font-size:12px;padding:0}
.lrpx .columns .nl{display:block}
.lrpx .narrow{display:none}
@media (max-width:600px){.lrpx .narrow{display:block}.lrpx .wide{display:none}.lrpx .grid.both{--label:2!important}}
"""


def section(grid: Grid) -> str:
    """One grid."""
    heading = " ".join(
        [f'<span class="method">{escape(text)}</span>' for text in [grid.method()] if text] + [_explains(grid)]
    ).strip()
    labels, key = grid.short_labels(LABEL)
    few, key_of_few = grid.short_labels(NARROW)
    both = labels != few
    longest = max(*map(_width, labels), 2)
    return "".join(
        [
            f'<section class="lrpx" dir="ltr" aria-label="heatmap of {len(grid.rows)} rows">\n',
            f'<p class="what">{heading}</p>\n' if heading and grid.look.header else "",
            f'<p class="soft key">{prose(DOT.join(key))}</p>\n' if key else "",
            f'<p class="soft key narrow">{prose(DOT.join(key_of_few))}</p>\n' if both else "",
            *(f'<p class="soft">{prose(line)}</p>\n' for line in grid.below(MINUS, labels=labels) if grid.look.header),
            f'<div class="grid{" both" * both}" style="--rows:{len(grid.rows)};--label:{longest}">',
            _gutter(grid, labels, " wide" * both),
            _gutter(grid, few, " narrow") if both else "",
            f'<div class="columns" dir="{"rtl" if grid.rtl else "ltr"}">{"".join(_columns(grid))}</div></div>\n',
            f'<div class="legend soft">{_bar(grid)}<span><span class="mark"></span>{escape(grid.marked())}</span>',
            f"<span>{escape(grid.legend())}</span></div>\n",
            details("All numbers", _numbers(grid)),
            "</section>\n",
        ]
    )


def _width(label: str) -> int:
    """How wide a label is, in the columns of the gutter: some letters are wider than others."""
    return math.ceil(sum(1.7 if c in "mwMW@" else 1.2 if c.isupper() or c.isdigit() else 1.0 for c in label))


def _gutter(grid: Grid, labels: Sequence[str], kind: str) -> str:
    """The labels as often as there can be lines; the rest is cut off."""
    items = len(grid.columns) + len(grid.ends()) + sum(len(c.pieces) > 1 or bool(c.segment) for c in grid.columns)
    text = escape("\n".join(labels) + "\n\n\n") * items
    return f'<div class="gutter{kind}" aria-hidden="true">{text}</div>'


def _explains(grid: Grid) -> str:
    """What all rows explain, tokens set apart."""
    view = next((row.view for row in grid.rows if row.view.measures != "mixture"), grid.rows[0].view)
    text = grid.explains(MINUS)
    if not text or view.measures == "mixture" or not view.target:
        return escape(text)
    name = escape(view.what or "logit")
    contrast = "" if view.contrast is None else f" {MINUS} {name} {quote(view.contrast)}"
    value = f" = <b>{view.equals(MINUS)}</b>" if text != view.explains(MINUS) else ""  # rows can differ in it
    return f"{name} {quote(view.target)}{contrast}{value}"


def _columns(grid: Grid) -> Iterator[str]:
    texts = map("".join, joined_pieces(grid.columns))
    depth = 0  # of runs of text in the other direction, within each other
    levels = grid.levels()
    for n, (cell, text, level) in enumerate(zip(grid.columns, texts, levels, strict=True)):
        yield "</span>" * (depth - level)
        if n and cell.gap and level != levels[n - 1]:
            yield '<span class="space"></span>'  # between the runs, not in one of them
        yield "".join(f'<span dir="{"ltr" if grid.rtl == (d % 2 == 0) else "rtl"}">' for d in range(depth, level))
        depth = level
        if cell.breaks:
            yield '<span class="nl"></span>'
        if cell.segment:
            yield f'<span class="c name"><b><bdi>{escape(cell.segment)}:</bdi></b></span>'
        strips, tips = [], [f"{legible(raw)}   id {i}" for _, raw, i, _ in cell.tokens]
        for row in grid.rows:
            found = row.cells[n]
            if found is None:
                strips.append("<i></i>")
                continue
            number = row.number(found, MINUS)
            shown = number if grid.with_numbers and grid.look.numbers is not False else ""
            at = ' class="at"' * found.explained
            strips.append(f'<i{at} style="{cell_style(row.view.fill(found))}">{shown}</i>')
            tips.append(f"{row.label}   {number or 'hidden'}")
        # A space is the margin of the column before it, so that it does not indent a line.
        gap = n + 1 < len(grid.columns) and grid.columns[n + 1].gap and levels[n + 1] == level
        kind = "c gap" if gap else "c"
        yield (
            f'<span class="{kind}" title="{"&#10;".join(map(escape, tips))}"><b><bdi>{escape(text)}</bdi></b>'
            f"{''.join(strips)}</span>"
        )
        if len(cell.pieces) > 1:
            yield '<span class="nl"></span>'
    yield "</span>" * depth + '<span class="after">'
    for name, numbers in grid.ends(MINUS):
        rows = "".join(f"<i>{escape(number)}</i>" for number in numbers)
        yield f'<span class="c end"><b>{name}</b>{rows}</span>'
    yield "</span>"


def _bar(grid: Grid) -> str:
    one_sided = all(row.view.one_sided for row in grid.rows)
    ticks = ("0", "end of the row's scale") if one_sided else (f"{MINUS} end", "0", "+ end")
    kind = "bar one-sided" if one_sided else "bar"
    below = "".join(f"<span>{t}</span>" for t in ticks)
    return f'<div class="{kind}"{bar_colours(grid.look)}><div><i></i></div><span>{below}</span></div>'


def _numbers(grid: Grid) -> str:
    """One line per column, and one for each kind of number at the end."""
    head = "".join(f"<th>{escape(row.label)}</th>" for row in grid.rows)
    lines = [f'<tr><th>position</th><th class="text">text</th>{head}</tr>']
    for n, cell in enumerate(grid.columns):
        place = DOT.strip() if grid.joined else str(cell.tokens[0][0])
        values = []
        for row in grid.rows:
            found = row.cells[n]
            style = "" if found is None else f' style="{cell_style(row.view.fill(found))}"'
            number = "" if found is None else row.view.number(found.value, MINUS)
            values.append(f'<td class="value"{style}>{number}</td>')
        lines.append(f'<tr><td>{place}</td><td class="text"><bdi>{escape(cell.text)}</bdi></td>{"".join(values)}</tr>')
    for name, numbers in grid.ends(MINUS):
        cells = "".join(f'<td class="value">{escape(number)}</td>' for number in numbers)
        lines.append(f'<tr><td></td><td class="text">{name}</td>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"
