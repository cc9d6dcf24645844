"""Maps and grids as HTML: a part of a page without a script, or a page of its own."""

from __future__ import annotations

from collections.abc import Sequence

from . import grid_html, html, image_html
from .grid import Grid
from .view import MINUS, View


def fragment(drawn: Sequence[View | Grid]) -> str:
    """The style sheet and one section per map or grid."""
    style = html.STYLE
    style += image_html.STYLE * any(isinstance(each, View) and bool(each.images) for each in drawn)
    style += grid_html.STYLE * any(isinstance(each, Grid) for each in drawn)
    return f"<style>{style}</style>\n" + "".join(map(_section, drawn))


def page(drawn: Sequence[View | Grid]) -> str:
    """A complete page."""
    return html.document(_title(drawn[0]), fragment(drawn))


def _section(each: View | Grid) -> str:
    return html.section(each) if isinstance(each, View) else grid_html.section(each)


def _title(first: View | Grid) -> str:
    if isinstance(first, View):
        return f"{first.method}: {first.explains(MINUS)}"
    return ": ".join(text for text in (first.method() or "lrpx", first.explains(MINUS)) if text)
