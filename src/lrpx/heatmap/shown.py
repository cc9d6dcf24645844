"""The views of ``Explanation`` and ``Explanations``: the same methods and options for one and for several."""

from __future__ import annotations

import os
from typing import Any, Literal

from ..errors import names_checked
from . import html_fragment, show, to_html, to_latex, to_pdf, to_png, to_svg
from .look import Group, Hide, Look, Scale


class Shown:
    """What can be shown and drawn. All methods take the same options, those of ``lrpx.heatmap.Look``.

    ``scale`` says where the colours end (``"robust"``, ``"max"`` or a number), ``hide`` which tokens stay without colour
    (``"special"``, ``"first"`` or both), ``group`` whether tokens are joined to ``"words"``, ``numbers`` whether each has its
    number below it.
    """

    @names_checked()
    def show(
        self, *, scale: Scale = "robust", hide: Hide = (), group: Group = "tokens", numbers: bool | None = None
    ) -> None:
        """Print a coloured heatmap to the terminal, or display it in a notebook.

        Raises:
            InputError: An option that is none.
        """
        show(self._drawable(), Look(scale, hide, group, numbers))

    @names_checked()
    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        scale: Scale = "robust",
        hide: Hide = (),
        group: Group = "tokens",
        numbers: bool | None = None,
    ) -> str:
        """A self-contained HTML page; also written to ``path`` if given."""
        return to_html(self._drawable(), path, Look(scale, hide, group, numbers))

    @names_checked()
    def to_latex(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        fragment: bool = False,
        engine: Literal["pdflatex", "lualatex"] = "pdflatex",
        scale: Scale = "robust",
        hide: Hide = (),
        group: Group = "tokens",
        numbers: bool | None = None,
    ) -> str:
        r"""A LaTeX document; also written to ``path`` if given.

        Args:
            path: File to write.
            fragment: A file to ``\input`` in a paper instead of a document; a comment at its top says what it needs.
            engine: ``"pdflatex"`` prints characters outside Latin as code points, ``"lualatex"`` sets every script.
            scale: See ``Look``, also for the others.
            hide: Likewise.
            group: Likewise.
            numbers: Likewise.

        Raises:
            InputError: An option that is none.
        """
        look = Look(scale, hide, group, numbers)
        return to_latex(self._drawable(), path, look, fragment=fragment, engine=engine)

    @names_checked()
    def to_png(
        self,
        path: str | os.PathLike[str],
        *,
        scale: Scale = "robust",
        hide: Hide = (),
        group: Group = "tokens",
        numbers: bool | None = None,
    ) -> None:
        """Draw the heatmap into a PNG file (needs the extra ``viz``)."""
        to_png(self._drawable(), path, Look(scale, hide, group, numbers))

    @names_checked()
    def to_pdf(
        self,
        path: str | os.PathLike[str],
        *,
        scale: Scale = "robust",
        hide: Hide = (),
        group: Group = "tokens",
        numbers: bool | None = None,
    ) -> None:
        """Draw the heatmap into a PDF file (needs the extra ``viz``)."""
        to_pdf(self._drawable(), path, Look(scale, hide, group, numbers))

    @names_checked()
    def to_svg(
        self,
        path: str | os.PathLike[str],
        *,
        scale: Scale = "robust",
        hide: Hide = (),
        group: Group = "tokens",
        numbers: bool | None = None,
    ) -> None:
        """Draw the heatmap into an SVG file (needs the extra ``viz``)."""
        to_svg(self._drawable(), path, Look(scale, hide, group, numbers))

    def _repr_html_(self) -> str:
        return html_fragment(self._drawable())

    def _drawable(self) -> Any:
        """This object, which is a ``Drawable`` or a sequence of them."""
        return self
