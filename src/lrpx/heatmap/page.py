"""Maps and grids as HTML: a part of a page without a script, or a page of its own."""

from __future__ import annotations

from collections.abc import Sequence

from . import grid_html, html, image_html, matrix_html
from . import overview as above
from .grid import Grid
from .matrix import MatrixView
from .numbers import MINUS
from .view import View

Drawn = View | Grid | MatrixView
SHORT = 60  # cells of a map below which a reader still sees what follows


def fragment(drawn: Sequence[Drawn]) -> str:
    """The style sheet and one section per map, grid or matrix."""
    style = html.STYLE
    style += image_html.STYLE * any(isinstance(each, View) and bool(each.images) for each in drawn)
    style += grid_html.STYLE * any(isinstance(each, Grid) for each in drawn)
    style += matrix_html.STYLE * any(isinstance(each, MatrixView) for each in drawn)
    table = above.overview(drawn)
    top = f"<style>{above.STYLE}</style>\n{above.overview_section(table)}" if table else ""
    return f"<style>{style}</style>\n{top}" + "".join(map(_section, drawn))


def page(drawn: Sequence[Drawn], explorer: str = "", otherwise: Sequence[MatrixView] = ()) -> str:
    """A complete page; ``explorer`` stands below a short map, and above several or a long one.

    Args:
        drawn: The maps.
        explorer: Its section, or nothing.
        otherwise: What stands there where scripts are switched off.
    """
    maps, first = fragment(drawn), drawn[0]
    if otherwise:
        explorer += f"<noscript><style>{matrix_html.STYLE}</style>\n{''.join(map(_section, otherwise))}</noscript>\n"
    cells = len(first.columns) if isinstance(first, Grid) else len(first.cells) if isinstance(first, View) else 0
    below = len(drawn) == 1 and cells <= SHORT
    return html.document(_title(first), maps + explorer if below else explorer + maps)


def _section(each: Drawn) -> str:
    if isinstance(each, MatrixView):
        return matrix_html.section(each)
    return html.section(each) if isinstance(each, View) else grid_html.section(each)


def _title(first: Drawn) -> str:
    if isinstance(first, MatrixView):
        return first.title
    if isinstance(first, View):
        return f"{first.method}: {first.explains(MINUS)}"
    return ": ".join(text for text in (first.method() or "lrpx", first.explains(MINUS)) if text)
