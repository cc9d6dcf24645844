"""What stands beside the maps of a page if layers or heads are known: one chooses text, method, layer, head and token.

The script (``explorer.js``) is part of the page; nothing is loaded from elsewhere, and without it the maps are the page. All
numbers of layers and heads are stored compactly, as one vector over the cells of the text for each layer and head:

1. ``v`` is stored as ``q = round(127 * sign(v) * sqrt(|v| / m))`` in one byte, with ``m`` the largest of its vector. So it is
   read back as ``m * sign(q) * (q / 127) ** 2``, wrong by at most 0.8 % of ``m``, and by less where it is small.
2. The sum of each vector is stored as a float32, so what is shown of a whole head is not rounded.
3. All vectors of an explanation are compressed by zlib, which browsers unpack, and written in base64.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cells import Cell
from .colours import PALETTES
from .drawable import Drawable
from .grid import GridRow, grid, groups
from .html import STYLE as MAP_STYLE
from .look import LEAD, QUANTILE, Look
from .matrix import missing, of_cells, positions_of
from .numbers import MINUS
from .rtl import in_order

PARTS = {"by_layer": "all", "by_attention": "attention", "by_mlp": "MLP"}
STEPS = 127  # of a byte, each way

STYLE = """
.lrpx.explore [hidden]{display:none!important}
.lrpx .explore-map{max-height:15em;overflow:auto}
.lrpx .choices{display:flex;flex-wrap:wrap;gap:8px 18px;align-items:center;font-size:14px}
.lrpx .choices label{display:flex;gap:.5em;align-items:center;max-width:100%}
.lrpx .choices select,.lrpx .choices button{font:inherit;color:inherit;background:var(--lrpx-quote);max-width:100%;
min-height:32px;border:1px solid var(--lrpx-line);border-radius:6px;padding:3px 10px;cursor:pointer;min-width:0}
.lrpx .choices select{flex:1 1 auto;text-overflow:ellipsis}
.lrpx .choices button[aria-pressed=true]{outline:2px solid currentColor;outline-offset:-1px}
.lrpx .explore-map .cell{cursor:pointer}
.lrpx .explore-map .cell.chosen{outline:2.5px solid #111;position:relative;z-index:1}
.lrpx.explore :focus-visible{outline:3px solid #0b57d0;outline-offset:1px;z-index:2}
.lrpx .told{font-size:14px;margin-top:6px!important;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.lrpx .board{overflow:auto;max-height:41em;background:#fff;color:#000;border:1px solid var(--lrpx-line);border-radius:6px;
margin:8px 0}
.lrpx .board>div{display:grid;grid-template-columns:max-content max-content;width:max-content;padding:4px 8px 6px;font-size:12px}
.lrpx .board .side{text-align:right;padding-right:8px;color:#33363b;position:sticky;left:0;background:#fff;z-index:1}
.lrpx .board .side span{display:block;white-space:pre;overflow:hidden;text-overflow:ellipsis;max-width:8.5em;
height:var(--high);line-height:var(--high)}
.lrpx .board .side .on{font-weight:700}
.lrpx .board .top{display:flex;color:#5d6169;height:18px}
.lrpx .board .top span{width:var(--wide);text-align:center;overflow:visible;white-space:nowrap;flex:none;font-size:11px}
.lrpx .board .plane{position:relative;cursor:crosshair;touch-action:manipulation}
.lrpx .board canvas{display:block;image-rendering:pixelated;width:100%;height:100%}
.lrpx .board .at{position:absolute;border:2px solid #111;box-shadow:0 0 0 1.5px #fff;pointer-events:none;
width:var(--wide);height:var(--high)}
"""


def explorer(explanations: Sequence[Drawable], look: Look, of: str = "tokens") -> str:
    """The section of the page, with its style, numbers and script; empty where no relevance of layers or heads is known.

    It shows texts. Images alone have none, and their patches in a line would say nothing.
    """
    explanations = [e for e in explanations if not _is_picture(e)]
    if not any(_has_inside(e) for e in explanations):
        return ""
    data = {
        "texts": [_text(group, look) for group in groups(explanations)],
        "start": of,
        "quantile": QUANTILE if look.scale == "robust" else 1,
        "lead": LEAD,
        "end": look.scale if isinstance(look.scale, int | float) else None,
        "minus": MINUS,
        "palettes": {look.palette: PALETTES[look.palette], **PALETTES},  # the first is that of the maps below
    }
    numbers = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    script = (Path(__file__).with_name("explorer.js")).read_text(encoding="utf-8")
    return (
        f'<style>{MAP_STYLE}{STYLE}</style>\n<section class="lrpx explore" dir="ltr" aria-label="inside the model" hidden>\n'
        f'<script type="application/json" class="data">{numbers}</script>\n<script>{script}</script>\n</section>\n'
    )


def _is_picture(e: Drawable) -> bool:
    return bool(e.images) and max(e.token_ids, default=-1) < 0


def _has_inside(e: Drawable) -> bool:
    return e.by_head is not None or any(getattr(e, name) is not None for name in PARTS)


def _text(group: Sequence[Drawable], look: Look) -> dict[str, Any]:
    """What the script knows of the explanations of one text."""
    made = grid(group, look)  # of one explanation too: it has its label
    title = "".join(text for _, _, text in group[0].units).strip()
    title += f" ({group[0].method})" * bool(group[0].images)  # each is a text of its own
    return {
        "title": title if len(title) <= 60 else title[:59] + "…",
        "rows": [_row(e, row) for e, row in zip(group, made.rows, strict=True)],
    }


def _row(e: Drawable, row: GridRow) -> dict[str, Any]:
    """One explanation: its cells, its numbers, and those of its layers and heads."""
    shown, cells = row.view, row.view.cells
    known = {name: np.asarray(numbers) for name in PARTS if (numbers := getattr(e, name)) is not None}
    heads = None if e.by_head is None else np.asarray(e.by_head)
    starts = [cell.tokens[0][0] for cell in cells]
    vectors = [of_cells(numbers, starts) for numbers in known.values()]
    vectors += [] if heads is None else [of_cells(heads, starts).reshape(-1, len(cells))]
    layers = len(vectors[0]) if known else 0 if heads is None else len(heads)
    names = [PARTS[name] for name in known]
    if e.components and "by_layer" in known:
        names[0] = "attention"  # ALTI-Logit's: MLPs belong to no token
    return {
        "label": row.label if e.method in row.label or ", " in e.method else f"{e.method}, {row.label}",
        "what": in_order(shown.equation(MINUS)),
        "cells": list(map(_cell, cells)),
        "rtl": shown.rtl,
        "total": [float(f"{cell.value:.6g}") for cell in cells],
        "oneSided": shown.one_sided,
        "where": positions_of(e),
        "layers": layers,
        "heads": 0 if heads is None else heads.shape[1],
        "parts": names,
        "data": packed(np.concatenate(vectors)) if vectors else "",
        **({} if vectors else {"missing": _why_missing(e)}),
    }


def _why_missing(e: Drawable) -> str:
    """Why nothing is known of layers and heads, and what to type, in Python and on the command line: a page is made by both."""
    error = missing(e, "layers and heads")
    typed = error.command.partition(": ")[2]
    return str(error)[0].upper() + str(error)[1:] + f" On the command line: {typed}" * bool(typed)


def _cell(cell: Cell) -> dict[str, Any]:
    """Text, position, and what holds for it."""
    holds = {"g": cell.gap, "r": cell.rtl, "x": cell.explained, "h": cell.hidden, "b": cell.breaks}
    return {"t": "\n".join(cell.pieces), "p": cell.tokens[0][0], **{name: 1 for name, true in holds.items() if true}}


def packed(vectors: np.ndarray) -> str:
    """Vectors ``[V, cells]`` as the script reads them: ``V`` float32 largest, ``V`` float32 sums, then a byte for each number."""
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    shares = np.divide(np.abs(vectors), largest[:, None], out=np.zeros(vectors.shape), where=largest[:, None] > 0)
    steps = np.rint(STEPS * np.sign(vectors) * np.sqrt(shares)).astype("<i1")
    data = largest.astype("<f4").tobytes() + vectors.sum(axis=1).astype("<f4").tobytes() + steps.tobytes()
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
