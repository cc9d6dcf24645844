"""Heatmaps as HTML: no script, nothing loaded from elsewhere, one style sheet that applies to ``.lrpx`` only.

The text stays running text, so it wraps, copies and keeps its writing direction; a cell is a ``<span>`` with its own
background and ink, legible on light and dark pages alike. Raw token, id and value are in its tooltip; its value is
also there for screen readers, and a table below holds every number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from .cells import Cell, joined_pieces
from .colours import BEYOND_BLUE, BEYOND_RED, BLUE, PALETTES, RED, WHITE, Rgb, hex_colour, ink
from .image_html import figures
from .look import Look
from .numbers import MINUS, fixed
from .text import BYTES, around_quotes, in_quotes, legible
from .view import ALL_ZERO, View

_LIGHT = "--lrpx-page:#fff;--lrpx-ink:#1b1c1f;--lrpx-soft:#5d6169;--lrpx-line:#d9dce1;--lrpx-quote:#f0f1f4;color-scheme:light"
_DARK = "--lrpx-page:#1c1e22;--lrpx-ink:#e8e9ec;--lrpx-soft:#a3a8b1;--lrpx-line:#3d4148;--lrpx-quote:#2c2f35;color-scheme:dark"

# Light or dark as the browser asks, or as the notebook does.
STYLE = f"""
.lrpx{{{_LIGHT};background:var(--lrpx-page);color:var(--lrpx-ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",sans-serif;border:1px solid var(--lrpx-line);border-radius:8px;padding:14px 18px;margin:0 0 14px;max-width:60em;
box-sizing:border-box;text-align:left}}
@media (prefers-color-scheme:dark){{.lrpx{{{_DARK}}}}}
[data-jp-theme-light="true"] .lrpx{{{_LIGHT}}}
[data-jp-theme-light="false"] .lrpx{{{_DARK}}}
.lrpx *{{box-sizing:border-box}}
.lrpx p{{margin:0}}
.lrpx .what{{font-size:16px;overflow-wrap:anywhere}}
.lrpx .method{{font-weight:650;margin-right:.7em}}
.lrpx code{{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;background:var(--lrpx-quote);
color:inherit;border-radius:4px;padding:.1em .35em;white-space:pre-wrap}}
.lrpx .soft,.lrpx summary{{color:var(--lrpx-soft);font-size:13px;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}
.lrpx .map{{background:#fff;color:#000;border-radius:6px;padding:10px 14px;margin:10px 0;font-size:17px;line-height:2;
overflow-wrap:anywhere;text-align:start;border:1px solid var(--lrpx-line)}}
.lrpx .map .cell{{padding:.2em 0;box-decoration-break:clone;-webkit-box-decoration-break:clone;
box-shadow:0 0 0 1px rgba(0,0,0,.09);print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none}}
.lrpx .map .left{{padding-left:.22em;border-top-left-radius:4px;border-bottom-left-radius:4px}}
.lrpx .map .right{{padding-right:.22em;border-top-right-radius:4px;border-bottom-right-radius:4px}}
.lrpx .map .cell:hover{{outline:1.5px solid #555}}
.lrpx .map .explained,.lrpx .mark{{outline:2px solid #111;outline-offset:1px}}
.lrpx .map .explained{{position:relative;z-index:1}}
.lrpx .map .explained:not(.joins){{margin:0 3px}}
.lrpx .mark{{display:inline-block;width:1.5em;height:.85em;background:#fff;border-radius:3px;margin:0 .7em 0 4px;
vertical-align:-.08em;box-shadow:0 0 0 4px #fff}}
.lrpx .map .segment{{color:#5d6169;font-size:13px;margin-right:.6em;user-select:none}}
.lrpx .map .hidden{{color:#5d6169!important}}
.lrpx .map .numbered{{display:inline-block;max-width:100%;vertical-align:top;text-align:center;line-height:1.5;margin-bottom:6px}}
.lrpx .map small{{display:block;direction:ltr;font-size:10.5px;line-height:1.3;color:#5d6169;user-select:none;
font-variant-numeric:tabular-nums;padding:3px 3px 0}}
.lrpx .read{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap;user-select:none}}
.lrpx .outside{{margin-top:6px}}
.lrpx .legend{{display:flex;flex-wrap:wrap;gap:.3em 2em;align-items:center}}
.lrpx .bar{{width:260px;max-width:100%}}
.lrpx .bar>div{{display:flex;height:10px;border-radius:3px;border:1px solid var(--lrpx-line);overflow:hidden}}
.lrpx .bar i{{flex:1;print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none;
background:linear-gradient(90deg,var(--lrpx-low,#{hex_colour(BLUE)}),#fff,var(--lrpx-high,#{hex_colour(RED)}))}}
.lrpx .one-sided i{{background:linear-gradient(90deg,#fff,var(--lrpx-high,#{hex_colour(RED)}))}}
.lrpx .bar .low,.lrpx .bar .high{{flex:0 0 14px;background:var(--lrpx-below,#{hex_colour(BEYOND_BLUE)})}}
.lrpx .bar .high{{background:var(--lrpx-above,#{hex_colour(BEYOND_RED)})}}
.lrpx .bar span{{display:flex;justify-content:space-between}}
.lrpx details{{margin-top:8px}}
@media print{{.lrpx,.lrpx figure,.lrpx tr{{break-inside:avoid}}.lrpx .what{{break-after:avoid}}.lrpx .scroll{{max-height:none}}}}
.lrpx summary{{cursor:pointer}}
.lrpx .scroll{{max-height:24em;overflow:auto;margin-top:6px}}
.lrpx table{{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:0;color:inherit;background:none}}
.lrpx th,.lrpx td{{padding:2px 12px 2px 0;text-align:right;border:0;background:none;color:inherit;font-weight:400}}
.lrpx th{{color:var(--lrpx-soft)}}
.lrpx td.text,.lrpx th.text{{text-align:left;white-space:pre-wrap}}
.lrpx td.value{{padding:2px 8px;print-color-adjust:exact;forced-color-adjust:none}}
"""


def document(title: str, body: str) -> str:
    """A complete page around sections of class ``lrpx``."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        "<style>:root{color-scheme:light dark}body{margin:24px;background:#f6f7f9}"
        "@media (prefers-color-scheme:dark){body{background:#121316}}"
        "section.lrpx{margin-left:auto;margin-right:auto}"
        f"</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def section(view: View) -> str:
    """One map."""
    name = escape(view.what or "logit")
    what = f"{name} {quote(view.target)}" + ("" if view.contrast is None else f" {MINUS} {name} {quote(view.contrast)}")
    if view.measures == "mixture" or not view.target:
        what = escape(view.explains())
    value = f" = <b>{view.equals(MINUS)}</b>" if view.equals() else ""
    outside = " · ".join(escape(part) for part in view.outside(MINUS))
    marked = view.marked()
    mark = f'<span><span class="mark"></span>{escape(marked)}</span>' if marked else ""
    return "".join(
        [
            f'<section class="lrpx" dir="ltr" aria-label="{escape(view.method)} heatmap">\n',
            *(
                [f'<p class="what"><span class="method">{escape(view.method)}</span>{what}{value}</p>\n']
                * view.look.header
            ),
            *(f'<p class="soft">{prose(line)}</p>\n' for line in view.below(MINUS) if view.look.header),
            f'<p class="map" dir="{"rtl" if view.rtl else "ltr"}">{"".join(_cells(view))}</p>\n',
            *figures(view),
            f'<div class="legend soft">{bar(view)}{mark}'
            f"{''.join(f'<span>{escape(line)}</span>' for line in view.legend(MINUS))}</div>\n",
            f'<p class="soft outside">outside the tokens: {outside}</p>\n' if outside else "",
            details(f"All {sum(len(c.tokens) for c in view.cells)} numbers", _numbers(view)),
            *(
                details(what, table)
                for what, table in (("Per layer", _layers(view)), ("Per head", _heads(view)))
                if table
            ),
            "</section>\n",
        ]
    )


def prose(line: str) -> str:
    """Words around the map. A quoted token has its own direction, or numbers after Hebrew would stand before it."""
    parts = map(escape, around_quotes(line))
    return "".join(_isolated(part) if n % 2 else part for n, part in enumerate(parts))


def quote(text: str) -> str:
    """A token in quotes."""
    return f"<code>{_isolated(escape(in_quotes(text), quote=False))}</code>"


def _isolated(token: str) -> str:
    r"""A token with a direction of its own; if it ends within a character, ``י\xd7``, its bytes stand on the right."""
    return f'<bdi dir="ltr">{token}</bdi>' if BYTES.search(token) else f"<bdi>{token}</bdi>"


def letters(piece: str) -> str:
    """The text of a cell; it stays a part of its line, with which Arabic letters join, unless it ends within a character."""
    return _isolated(escape(piece)) if BYTES.search(piece) else escape(piece)


def _cells(view: View) -> Iterator[str]:
    """The running text. Only the ends of words get padding and round corners; inside a word they would break Arabic joins."""
    starts = [
        cell.gap or cell.breaks or not n or len(view.cells[n - 1].pieces) > 1 for n, cell in enumerate(view.cells)
    ]
    with_numbers = view.look.numbers is True  # otherwise they are in the tooltips
    reads: list[str] = []
    # Blocks with numbers would cut Arabic joins.
    texts = joined_pieces(view.cells) if with_numbers else (cell.pieces for cell in view.cells)
    for cell, pieces, first, last in zip(view.cells, texts, starts, [*starts[1:], True], strict=True):
        left, right = (last, first) if cell.rtl else (first, last)
        if cell.image:
            pieces = (view.label(cell, MINUS),)
        marks = {"left": left, "right": right, "explained": cell.explained, "joins": cell.rtl, "hidden": cell.hidden}
        kind = "cell image" if cell.image else " ".join(["cell", *(name for name, holds in marks.items() if holds)])
        tip = "&#10;".join(map(escape, _tooltip(view, cell)))
        number = "hidden" if cell.hidden else view.number(cell.value, MINUS)
        read = number + ", explained position" * cell.explained
        *inside, end = pieces
        # A final line break goes outside the cell, which would otherwise continue on the next line.
        lines = [*inside, end] if end else inside
        style = cell_style(view.fill(cell))
        shown = f'<span class="{kind}" style="{style}" title="{tip}">{"<br>".join(map(letters, lines))}</span>'
        if with_numbers:
            # A block has no direction of its own, by which its place is found and its brackets are mirrored.
            rtl = cell.rtl and not cell.text.isdigit()
            side = ' dir="rtl"' * rtl
            shown = f'<span class="numbered"{side}>{shown}<small>{number * cell.coloured}</small></span>'
            mark = "&rlm;" if rtl else "&lrm;"
            shown = f"{mark}{shown}{mark}"
        # What is read aloud stands behind the cell: inside, it would begin a line of its own where the cell ends one.
        reads.append(read)
        # Not between the digits of a number, which would swap places in right-to-left text.
        told = "" if cell.text[-1:].isdigit() and not last else f'<bdi class="read"> ({"; ".join(reads)}) </bdi>'
        reads = reads if not told else []
        name = f'<bdi class="segment">{escape(cell.segment)}:</bdi>' if cell.segment else ""
        yield f"{'<br>' * cell.breaks}{' ' * cell.gap}{name}{shown}{told}{'' if end else '<br>'}"


def _tooltip(view: View, cell: Cell) -> list[str]:
    """Raw token, id and relevance of each token; if there are several, their sum first."""
    lines = [f"{legible(raw)}   id {i}   {view.number(value, MINUS)}" for _, raw, i, value in cell.tokens]
    return [f"sum of {len(lines)} tokens   {view.number(cell.value, MINUS)}", *lines] if len(lines) > 1 else lines


def cell_style(background: Rgb) -> str:
    """The colours of a cell."""
    return f"background:#{hex_colour(background)};color:#{hex_colour(ink(background))}"


def bar(view: View) -> str:
    """The colour bar with its numbers."""
    if not view.scale:
        return f"<span>{ALL_ZERO}</span>"
    ticks = "".join(f"<span>{tick}</span>" for _, tick in view.ticks(MINUS))
    kind = "bar one-sided" if view.one_sided else "bar"
    below, above = view.beyond
    low, high = '<i class="low"></i>' * below, '<i class="high"></i>' * above
    pad = f' style="padding:0 {14 * above}px 0 {14 * below}px"' if below or above else ""
    return f'<div class="{kind}"{bar_colours(view.look)}><div>{low}<i></i>{high}</div><span{pad}>{ticks}</span></div>'


def bar_colours(look: Look) -> str:
    """The attribute of a colour bar whose colours are not those of the style sheet."""
    if look.palette == Look.palette:
        return ""
    high, _, low, above, below = map(hex_colour, PALETTES[look.palette])
    return f' style="--lrpx-high:#{high};--lrpx-low:#{low};--lrpx-above:#{above};--lrpx-below:#{below}"'


def details(summary: str, body: str) -> str:
    """Something that opens below a line."""
    return f'<details><summary>{summary}</summary><div class="scroll">{body}</div></details>\n'


def _numbers(view: View) -> str:
    """One row per token; the tokens of one unit share its text."""
    rows = ['<tr><th>position</th><th>id</th><th class="text">text</th><th>relevance</th></tr>']
    for cell in view.cells:
        for n, (position, raw, i, value) in enumerate(cell.tokens, start=1):
            text = escape(cell.text) + (f" ({n} of {len(cell.tokens)})" if len(cell.tokens) > 1 else "")
            # The scale is that of the units; a single token of a unit can exceed it and gets the end colour.
            rows.append(
                f'<tr title="{escape(legible(raw))}"><td>{position}</td><td>{i}</td><td class="text"><bdi>{text}</bdi></td>'
                f'<td class="value" style="{cell_style(view.colour(value))}">{view.number(value, MINUS)}</td></tr>'
            )
    return f"<table>{''.join(rows)}</table>"


def _layers(view: View) -> str:
    """A table with a row per layer: what it gave to the tokens, or what its attention and MLP added."""
    rows = itertools.zip_longest(*(column.tolist() for _, column in view.per_layer))
    return _table("layer", [escape(name) for name, _ in view.per_layer], list(rows), view.look)


def _heads(view: View) -> str:
    """A table with a row per layer and a column per head."""
    heads = np.zeros((0, 0)) if view.per_head is None else view.per_head
    return _table("layer, head", list(map(str, range(heads.shape[1]))), heads.tolist(), view.look)


def _table(corner: str, columns: Sequence[str], rows: Sequence[Sequence[float | None]], look: Look) -> str:
    """Numbers on one scale of colours, with the numbers of the rows in the first column. Empty if there are none."""
    numbers = [value for row in rows for value in row if value is not None]
    if not numbers:
        return ""
    largest = max(map(abs, numbers))

    def cell(value: float | None) -> str:
        if value is None:
            return "<td></td>"
        style = cell_style(look.colour(value / largest) if value else WHITE)
        return f'<td class="value" style="{style}">{fixed(value, largest, MINUS)}</td>'

    header = "".join(f"<th>{name}</th>" for name in (corner, *columns))
    body = "".join(f"<tr><td>{i}</td>{''.join(map(cell, row))}</tr>" for i, row in enumerate(rows))
    return f"<table><tr>{header}</tr>{body}</table>"
