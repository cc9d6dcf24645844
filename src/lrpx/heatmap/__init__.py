"""Explanations as pictures: in the terminal, as HTML, as LaTeX, and as PNG, PDF and SVG.

Every renderer draws the same ``View`` (``view.py``): the text, each cell coloured by its relevance. Red raises the
explained value, blue lowers it, white is zero. Each map has one symmetric colour scale and a colour bar that shows it;
``Look`` says where the scale ends, what is hidden, and whether tokens are joined to words. Several explanations are drawn
below one another, each with its own scale. Only ``show`` and the ``to_...`` functions print or write anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..errors import InputError
from ..files import check_ending
from .drawable import Drawable, FlowLike, Generated
from .look import Look
from .matrix import MatrixView, layers_by_heads, tokens_by_layers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .grid import Grid
    from .view import View


__all__ = ["Look", "html_fragment", "render", "show", "to_html", "to_latex", "to_pdf", "to_png", "to_svg"]

Drawables = Drawable | Sequence[Drawable]  # of lrpx.Explanation
_LOOK = Look()


def show(explanations: Drawables, look: Look = _LOOK, of: str = "tokens") -> None:
    """Print the heatmap to the terminal; in a notebook, display it as HTML.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    _show(lambda: html_fragment(explanations, look, of), lambda: render(explanations, look=look, of=of))


def render(
    explanations: Drawables, width: int | None = None, *, look: Look = _LOOK, of: str = "tokens"
) -> RenderableType:
    """The heatmap as something ``rich`` can print.

    On a terminal with colours each token has a coloured background. Without colours (a pipe, a file, ``NO_COLOR``) the
    same renderable prints a table: position, id, relevance and text of each unit.

    Args:
        explanations: One explanation or several.
        width: Columns to use; the console's width if ``None``.
        look: How it is drawn.
        of: ``"tokens"``, or the matrices of ``"layers"``, ``"heads"`` or ``"pairs"``.

    Raises:
        InputError: The list is empty or holds something other than explanations, or they do not have what is drawn.
    """
    from rich.console import Group
    from rich.text import Text

    from .grid_terminal import TerminalGrid
    from .matrix_terminal import TerminalMatrix
    from .overview import TerminalOverview, overview
    from .terminal import TerminalMap
    from .view import View

    def terminal(part: View | Grid | MatrixView) -> TerminalMap | TerminalGrid | TerminalMatrix:
        if isinstance(part, MatrixView):
            return TerminalMatrix(part, width)
        return TerminalMap(part, width) if isinstance(part, View) else TerminalGrid(part, width)

    parts = _parts(explanations, look, of)
    table = overview(parts)
    drawn = [*([TerminalOverview(table)] if table else []), *map(terminal, parts)]
    return Group(*[line for each in drawn for line in (Text(), each)][1:])


def html_fragment(explanations: Drawables, look: Look = _LOOK, of: str = "tokens") -> str:
    """The heatmap as HTML to place in a page: one ``<style>`` and one ``<section>`` per explanation, no script.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    from . import page

    return page.fragment(_parts(explanations, look, of))


def to_html(explanations: Drawables, look: Look = _LOOK, of: str = "tokens") -> str:
    """The heatmap as a self-contained HTML page.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    from . import page
    from .explorer import explorer
    from .grid import Grid
    from .matrix import known_matrices
    from .view import checked

    drawn, each = _parts(explanations, look, of), checked(explanations)
    # A map has tables of its layers and heads, a grid has none.
    matrices_of = known_matrices(each, look) if any(isinstance(part, Grid) for part in drawn) else []
    return page.page(drawn, explorer(each, look, of), matrices_of)


def to_latex(
    explanations: Drawables,
    look: Look = _LOOK,
    of: str = "tokens",
    *,
    fragment: bool = False,
    engine: Literal["pdflatex", "lualatex"] = "pdflatex",
) -> str:
    r"""The heatmap as a LaTeX document.

    For ``pdflatex`` it needs ``xcolor`` and nothing else beyond a basic TeX installation. That engine has no glyphs for most
    scripts: a character outside Latin (and some symbols) is printed as its code point in small type, ``U+4E2D`` for 中.
    ``lualatex`` sets every script in installed fonts, Noto's if they are there.

    Args:
        explanations: One explanation or several.
        look: How it is drawn.
        of: ``"tokens"``.
        fragment: Not a document, but a file to ``\input`` in one. A comment at its top says what that needs in its preamble.
        engine: The program that will compile it.

    Raises:
        InputError: The list is empty or holds something other than explanations; another engine.
    """
    from . import latex
    from .grid import parts

    if of != "tokens":
        raise InputError(f'LaTeX draws tokens, and this is of={of!r}. Type: e.to_pdf("{of}.pdf", of="{of}")')
    return latex.source(parts(explanations, look), fragment=fragment, engine=engine)


def to_png(explanations: Drawables, path: str | os.PathLike[str], look: Look = _LOOK, of: str = "tokens") -> None:
    """Draw the heatmap into a PNG file, with matplotlib (extra ``viz``).

    Text is drawn in DejaVu Sans and, for characters it lacks, in installed fonts, emoji in colour where a colour font has
    them. A character that no font has is drawn as its code point, ``U+4E2D`` for 中, and a warning names it. Right-to-left text
    needs matplotlib 3.11 (Python 3.11).

    Args:
        explanations: One explanation or several.
        path: File to write. It ends in ``.png`` or has no ending.
        look: How it is drawn.
        of: ``"tokens"``, or of one explanation the matrix of its ``"layers"`` or ``"heads"``.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: The list is empty or holds something else than explanations; ``path`` cannot be written, or does not end
            in ``.png``; the text is too long for a picture.
    """
    _draw(explanations, path, look, of, "png")


def to_pdf(explanations: Drawables, path: str | os.PathLike[str], look: Look = _LOOK, of: str = "tokens") -> None:
    """As ``to_png``, as a PDF of one page: text and colours stay sharp in a paper."""
    _draw(explanations, path, look, of, "pdf")


def to_svg(explanations: Drawables, path: str | os.PathLike[str], look: Look = _LOOK, of: str = "tokens") -> None:
    """As ``to_png``, as an SVG: its letters are shapes, so it looks the same wherever it is opened."""
    _draw(explanations, path, look, of, "svg")


def show_generated(generated: Generated) -> None:
    """Print generated text to the terminal, with what was strongest for each token; in a notebook, display it as HTML."""
    _show(lambda: html_of_generated(generated, fragment=True), lambda: render_generated(generated))


def render_generated(generated: Generated) -> RenderableType:
    """Generated text, with what was strongest for each token, as something ``rich`` can print."""
    from .generated import generated_view
    from .generated_terminal import TerminalGenerated

    return TerminalGenerated(generated_view(generated))


def html_of_generated(generated: Generated, *, fragment: bool = False) -> str:
    """Generated text as a page in which one marks a token or a span; ``fragment``: as a part of a page, without the script."""
    from . import generated_html as renderer
    from .generated import generated_view

    return (renderer.fragment if fragment else renderer.page)(generated_view(generated))


def draw_generated(generated: Generated, path: str | os.PathLike[str], kind: str, look: Look = _LOOK) -> None:
    """Generated text as a matrix in a PNG, PDF or SVG file, with matplotlib (extra ``viz``): a row per value, a column per token.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: The matrix is too large for a picture; ``path`` cannot be written, or ends otherwise than the format.
    """
    from . import generated_matrix
    from .generated import generated_view

    generated_matrix.draw(generated_view(generated), check_ending(path, kind), kind, look)


def show_flow(flow: FlowLike) -> None:
    """Print what a flow of relevance keeps, and its strongest edges, to the terminal; in a notebook, display the graph."""
    _show(lambda: html_of_flow(flow, fragment=True), lambda: render_flow(flow))


def render_flow(flow: FlowLike) -> RenderableType:
    """What a flow of relevance keeps, and its strongest edges, as something ``rich`` can print."""
    from .flow import flow_view
    from .flow_terminal import TerminalFlow

    return TerminalFlow(flow_view(flow))


def html_of_flow(flow: FlowLike, *, fragment: bool = False) -> str:
    """A flow of relevance as a page with its graph, a row per place and a column per token.

    ``fragment``: as a part of a page, without the script.
    """
    from . import flow_html
    from .flow import flow_view

    return (flow_html.fragment if fragment else flow_html.page)(flow_view(flow))


def draw_flow(flow: FlowLike, path: str | os.PathLike[str], kind: str, look: Look = _LOOK) -> None:
    """The graph of a flow of relevance in a PNG, PDF or SVG file, with matplotlib (extra ``viz``).

    Raises:
        ImportError: matplotlib is not installed.
        InputError: The graph is too large for a picture; ``path`` cannot be written, or ends otherwise than the format.
    """
    from . import flow_picture
    from .flow import flow_view

    flow_picture.draw(flow_view(flow), check_ending(path, kind), kind, look)


def _show(fragment: Callable[[], str], drawn: Callable[[], RenderableType]) -> None:
    from . import notebook

    if notebook.in_notebook():
        notebook.display_html(fragment())
        return
    from rich.console import Console

    Console().print(drawn())


def _parts(explanations: Drawables, look: Look, of: str) -> Sequence[View | Grid | MatrixView]:
    from .grid import parts

    return parts(explanations, look) if of == "tokens" else _matrices(explanations, of, look)


def _matrices(explanations: Drawables, of: str, look: Look) -> list[MatrixView]:
    from .pairs import pairs_matrix
    from .view import checked, failed

    draw = {"layers": tokens_by_layers, "heads": layers_by_heads, "pairs": pairs_matrix}[of]
    found = [draw(e, look) for e in checked(explanations)]
    if failures := getattr(explanations, "failures", ()):  # a matrix has no notes of its explanation
        found[0] = replace(found[0], notes=(*found[0].notes, failed(failures)))
    return found


def _draw(explanations: Drawables, path: str | os.PathLike[str], look: Look, of: str, kind: str) -> None:
    from . import generated_matrix, picture
    from .grid import parts

    if of == "tokens":
        picture.draw(parts(explanations, look), path, kind)
        return
    found = _matrices(explanations, of, look)
    if len(found) > 1:
        raise InputError(
            f"a picture holds one matrix, and there are {len(found)} explanations.",
            python=f"Type: es[0].to_{kind}(...)",
            command="Give one text and one method, or write a page, which holds several: --output maps.html",
        )
    generated_matrix.draw(found[0], check_ending(path, kind), kind, look)
