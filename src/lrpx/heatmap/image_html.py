"""An image in HTML: the picture, and beside it the same in pale grey below a grid of patches with their numbers on hover."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from html import escape

from .colours import hex_colour
from .images import PALE, ImageMap, overlay
from .look import Look
from .numbers import MINUS
from .view import View

LARGEST = 420  # pixels on the page, of either side

STYLE = f"""
.lrpx .picture{{margin:10px 0}}
.lrpx .picture>div{{display:flex;flex-wrap:wrap;gap:12px;margin-top:4px}}
.lrpx .picture .plain,.lrpx .picture .over{{position:relative;max-width:100%;background:#fff;border-radius:4px;overflow:hidden;
box-shadow:0 0 0 1px var(--lrpx-line);print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none}}
.lrpx .picture .plain,.lrpx .picture .under{{background-image:var(--lrpx-picture);background-size:100% 100%}}
.lrpx .picture .under,.lrpx .picture .patches{{position:absolute;inset:0}}
.lrpx .picture .under{{filter:grayscale(1);opacity:{PALE}}}
.lrpx .picture .patches{{display:grid}}
.lrpx .picture .patches i:hover{{outline:1.5px solid #111}}
.lrpx .map .image{{padding:.2em .5em;border-radius:4px;background:#f2eedc;color:#1b1c1f}}
"""


def figures(view: View) -> Iterator[str]:
    """One figure per image."""
    for image in view.images:
        yield figure(image, view.share, lambda value: view.number(value, MINUS), view.look)


def figure(
    image: ImageMap, share: Callable[[float], float], number: Callable[[float], str], look: Look, after: str = ""
) -> str:
    """An image: beside the picture its patches, coloured by their ``share`` of the scale, with ``after`` its caption."""
    data = base64.b64encode(image.png).decode("ascii")
    wide = LARGEST * min(1.0, image.width / image.height)
    size = f"width:{wide:.0f}px;aspect-ratio:{image.width}/{image.height}"
    columns = f"grid-template:repeat({image.rows},1fr)/repeat({image.columns},1fr)"
    caption = escape(image.caption(number, MINUS) + after)
    return (
        f'<figure class="picture" style="--lrpx-picture:url(data:image/png;base64,{data})">'
        f'<figcaption class="soft">{caption}</figcaption><div>'
        f'<div class="plain" style="{size}" role="img" aria-label="{escape(image.label)}"></div>'
        f'<div class="over" style="{size}" role="img" aria-label="relevance of its {image.parts}"><div class="under"></div>'
        f'<div class="patches" style="{columns}">{"".join(_patches(image, share, number, look))}</div></div></div></figure>\n'
    )


def _patches(
    image: ImageMap, share: Callable[[float], float], number: Callable[[float], str], look: Look
) -> Iterator[str]:
    for row, column, token, value in image.places():
        rgb, opacity = overlay(share(value), look)
        tip = f"row {row + 1}, column {column + 1}   token {token}   {number(value)}"
        yield f'<i style="background:#{hex_colour(rgb)}{round(255 * opacity):02X}" title="{tip}"></i>'
