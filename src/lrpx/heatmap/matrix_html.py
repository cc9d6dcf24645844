"""A matrix in HTML without a script: an image with a pixel per number, stretched, beside the texts of its rows.

So a matrix of 500 tokens and 32 layers is some kilobytes and one element. The pixels are exact colours of the scale.
"""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import numpy as np

from .colours import HIDDEN
from .html import prose
from .matrix import MatrixView
from .numbers import MINUS
from .view import DOT

ROW, COLUMN = 20, 18  # pixels on the page
EACH = 100  # columns of which each has its number
STRONGEST = 5  # places that are told below a matrix whose columns have names
PAPER = 600  # pixels of a printed page that a matrix may take, at least
NAMES = 160  # that names of rows take, at most

STYLE = f"""
.lrpx .matrix{{overflow:auto;max-height:32em;background:#fff;color:#000;border:1px solid var(--lrpx-line);border-radius:6px;
margin:8px 0;font-size:13px}}
.lrpx .matrix>div{{display:grid;grid-template-columns:max-content max-content;width:max-content;padding:4px 8px}}
.lrpx .matrix .names{{text-align:right;padding-right:8px;line-height:{ROW}px}}
.lrpx .matrix .names span{{display:block;height:{ROW}px;max-width:11em;overflow:hidden;text-overflow:ellipsis;white-space:pre}}
.lrpx .matrix .numbers{{display:flex;color:#5d6169;font-size:11px;line-height:{ROW}px}}
.lrpx .matrix .numbers span{{width:{COLUMN}px;text-align:center;overflow:visible;white-space:nowrap}}
.lrpx .matrix .above{{display:flex;align-items:end;line-height:{COLUMN}px;font-size:12px;color:#5d6169}}
.lrpx .matrix .above span{{width:{COLUMN}px;max-height:11em;overflow:hidden;writing-mode:vertical-rl;rotate:180deg;
white-space:pre;color:#000}}
.lrpx .matrix img{{display:block;image-rendering:pixelated;print-color-adjust:exact;-webkit-print-color-adjust:exact}}
@media print{{.lrpx .matrix{{max-height:none;overflow:visible}}.lrpx .matrix>div{{zoom:var(--on-paper)}}}}
"""


def section(view: MatrixView) -> str:
    """One matrix with its header."""
    head = (
        f'<p class="what"><span class="method">{prose(view.title)}</span></p>\n'
        f'<p class="soft">{prose(DOT.join(view.notes))}</p>\n'
    )
    return f'<section class="lrpx" dir="ltr">{head * view.look.header}{matrix(view)}</section>\n'


def matrix(view: MatrixView) -> str:
    """The image, the names of its rows, and the numbers or names of its columns; of those with names, the strongest places."""
    names = "".join(f'<span title="{escape(row.text)}"><bdi>{escape(row.text)}</bdi></span>' for row in view.rows)
    every = 1 if view.width <= EACH else 5
    ticks = "".join(f"<span>{i if i % every == 0 else ''}</span>" for i in range(view.width))
    if view.names:
        ticks = (
            "".join(f'<span title="{escape(name)}"><bdi>{escape(name)}</bdi></span>' for name in view.names) + "&ensp;"
        )
    told = f"strongest: {', '.join(view.strongest(STRONGEST, MINUS))}" if view.names else ""
    kind = "above" if view.names else "numbers"
    size = f"width:{COLUMN * view.width}px;height:{ROW * len(view.rows)}px"
    on_paper = min(1.0, PAPER / (NAMES + COLUMN * view.width))
    what = f"{view.width} columns" if view.names else f"{view.columns}s 0 to {view.width - 1}"
    alt = f"{view.title}: {len(view.rows)} rows, {what}; {view.legend(MINUS)}"
    return (
        f'<div class="matrix" tabindex="0"><div style="--on-paper:{on_paper:.3g}"><span class="names">{view.corner}</span>'
        f'<span class="{kind}">{ticks}{view.columns}</span>'
        f'<div class="names">{names}</div><img alt="{escape(alt)}" style="{size}" '
        f'src="data:image/png;base64,{base64.b64encode(png(view)).decode()}"></div></div>'
        f'<p class="soft">{escape(view.legend(MINUS))}</p>\n' + f'<p class="soft">{escape(told)}</p>\n' * bool(told)
    )


def png(view: MatrixView) -> bytes:
    """A PNG file with a pixel per number."""
    numbers = view.numbers
    palette = {
        value: view.look.colour(view.share(value)) if np.isfinite(value) else HIDDEN for value in set(numbers.ravel())
    }
    lines = b"".join(b"\0" + bytes(c for value in row for c in palette.get(value, HIDDEN)) for row in numbers)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", numbers.shape[1], numbers.shape[0], 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
