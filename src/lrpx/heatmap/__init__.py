"""Explanations as pictures: in the terminal, as HTML, as LaTeX and as PNG.

Every renderer draws the same ``View`` (``view.py``): the text, each unit coloured by its relevance. Red raises the
explained value, blue lowers it, white is zero. Each map has one symmetric colour scale that ends at its largest
absolute relevance, and a colour bar that shows it. Several explanations are drawn below one another, each with its own
scale. Only ``show`` and the ``to_...`` functions print or write anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .drawable import Drawable
from .view import views

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["html_fragment", "render", "show", "to_html", "to_latex", "to_png"]

Drawables = Drawable | Sequence[Drawable]  # of lrpx.Explanation


def show(explanations: Drawables) -> None:
    """Print the heatmap to the terminal; in a notebook, display it as HTML.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    from . import notebook

    if notebook.running():
        notebook.display_html(html_fragment(explanations))
        return
    from rich.console import Console

    Console().print(render(explanations))


def render(explanations: Drawables, width: int | None = None, *, numbers: bool | None = None) -> RenderableType:
    """The heatmap as something ``rich`` can print.

    On a terminal with colours each token has a coloured background. Without colours (a pipe, a file, ``NO_COLOR``) the
    same renderable prints a table: position, id, relevance and text of each unit.

    Args:
        explanations: One explanation or several.
        width: Columns to use; the console's width if ``None``.
        numbers: Print the relevance below each token. By default maps of up to 40 units show their numbers.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    from . import terminal

    return terminal.terminal_maps(views(explanations), width, numbers)


def html_fragment(explanations: Drawables) -> str:
    """The heatmap as HTML to place in a page: one ``<style>`` and one ``<section>`` per explanation, no script.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    from . import html

    return html.fragment(views(explanations))


def to_html(explanations: Drawables, path: str | os.PathLike[str] | None = None) -> str:
    """The heatmap as a self-contained HTML page; also written to ``path`` if given.

    Raises:
        InputError: The list is empty or holds something other than explanations.
        OSError: ``path`` cannot be written.
    """
    from . import html

    page = html.page(views(explanations))
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


def to_latex(
    explanations: Drawables, path: str | os.PathLike[str] | None = None, *, numbers: bool | None = None
) -> str:
    """The heatmap as a LaTeX document for plain ``pdflatex``; also written to ``path`` if given.

    Needs ``xcolor`` and nothing else beyond a basic TeX installation. ``pdflatex`` has no glyphs for most scripts: a
    character outside Latin (and some symbols) is printed as its code point in small type, ``U+4E2D`` for 中. The
    other formats show every script.

    Args:
        explanations: One explanation or several.
        path: File to write.
        numbers: Print the relevance below each token. By default maps of up to 40 units show their numbers.

    Raises:
        InputError: The list is empty or holds something other than explanations.
        OSError: ``path`` cannot be written.
    """
    from . import latex

    document = latex.document(views(explanations), numbers)
    if path is not None:
        Path(path).write_text(document, encoding="utf-8")
    return document


def to_png(explanations: Drawables, path: str | os.PathLike[str], *, numbers: bool | None = None) -> None:
    """Draw the heatmap into a PNG file, with matplotlib (extra ``viz``).

    Text is drawn in DejaVu Sans and, for characters it lacks, in installed fonts. A character that no font has is drawn
    as its code point, ``U+4E2D`` for 中, and named in the log. Right-to-left text needs matplotlib 3.11 (Python 3.11).

    Args:
        explanations: One explanation or several.
        path: File to write.
        numbers: Print the relevance below each token. By default maps of up to 40 units show their numbers.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: The list is empty or holds something else than explanations, or the text is too long for a picture.
        OSError: ``path`` cannot be written.
    """
    from . import png

    png.draw(views(explanations), path, numbers)
