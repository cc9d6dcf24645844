"""The views of ``Explanation`` and ``Explanations``: the same methods and options for one and for several."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, overload

import numpy as np

from ..errors import InputError, check_names, nearest
from ..files import written
from . import html_fragment, show, to_html, to_latex, to_pdf, to_png, to_svg
from .colours import Palette
from .look import Group, Hide, Look, Scale
from .matrix import Of

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of the standard library from Python 3.11 on


TOP = 10  # neurons
_HOMES = {"head": "heads", "module": "neurons", "top": "neurons"}  # options -> the views that have them


class ViewOptions(TypedDict, total=False):
    """The options of every view; ``Shown.show`` says what they mean."""

    head: tuple[int, int] | None
    module: str | None
    top: int
    scale: Scale
    hide: Hide
    group: Group
    numbers: bool | None
    palette: Palette
    header: bool


class Shown:
    """What can be shown and drawn. All methods take the same options, which ``show`` describes; LaTeX has no matrices."""

    def show(self, of: Of = "tokens", **options: Unpack[ViewOptions]) -> None:
        """Print a coloured heatmap to the terminal, or display it in a notebook.

        Args:
            of: What is shown: the ``"tokens"``; ``"layers"``, a matrix of tokens and layers; ``"heads"``, one of layers and
                heads; ``"neurons"``, the strongest ones of the modules in ``Explanation.layers`` with their tokens; or
                ``"pairs"``, a matrix of the tokens of two texts whose similarity is explained.
            **options: ``scale``: where the colours end (``"robust"``, ``"max"`` or a number). ``hide``: which tokens stay without
                colour (``"special"``, ``"first"`` or both). ``group``: ``"tokens"``, or joined to ``"words"``. ``numbers``:
                whether each has its number. ``palette``: ``"red and blue"`` or ``"orange and purple"``. ``header``: whether
                there are lines above the map. ``lrpx.heatmap.Look`` says more of these. ``head``: of heads, the tokens of this
                one, as ``(layer, head)``. ``module`` and ``top``: of neurons, only those of modules of this name or glob, and
                how many, of all these modules together (10).

        Raises:
            InputError: An option that is none, or numbers that the explanation does not have.
        """
        show(*self._asked(of, options))

    @overload
    def to_html(self, path: None = None, *, of: Of = "tokens", **options: Unpack[ViewOptions]) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str], *, of: Of = "tokens", **options: Unpack[ViewOptions]) -> None: ...
    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, of: Of = "tokens", **options: Unpack[ViewOptions]
    ) -> str | None:
        """A self-contained HTML page, written to ``path`` if given, otherwise returned.

        If the relevance of layers or heads is known, the page has a script, with which one chooses text, method, layer, head and
        token. Without the script, and in notebooks, it shows ``of``, which is as of ``show``, and so are the options.
        """
        drawn, look, what = self._asked(of, options)
        return written(to_html(drawn, look, what), path, "html")

    @overload
    def to_latex(
        self,
        path: None = None,
        *,
        fragment: bool = False,
        engine: Literal["pdflatex", "lualatex"] = "pdflatex",
        of: Of = "tokens",
        **options: Unpack[ViewOptions],
    ) -> str: ...
    @overload
    def to_latex(
        self,
        path: str | os.PathLike[str],
        *,
        fragment: bool = False,
        engine: Literal["pdflatex", "lualatex"] = "pdflatex",
        of: Of = "tokens",
        **options: Unpack[ViewOptions],
    ) -> None: ...
    def to_latex(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        fragment: bool = False,
        engine: Literal["pdflatex", "lualatex"] = "pdflatex",
        of: Of = "tokens",
        **options: Unpack[ViewOptions],
    ) -> str | None:
        r"""A LaTeX document, written to ``path`` if given, otherwise returned.

        Args:
            path: File to write.
            fragment: A file to ``\input`` in a paper instead of a document; a comment at its top says what it needs.
            engine: ``"pdflatex"`` prints characters outside Latin as code points, ``"lualatex"`` sets every script.
            of: ``"tokens"`` or ``"neurons"``: LaTeX has no matrices.
            **options: As of ``show``.
        """
        drawn, look, what = self._asked(of, options)
        return written(to_latex(drawn, look, what, fragment=fragment, engine=engine), path, "latex")

    def to_png(self, path: str | os.PathLike[str], *, of: Of = "tokens", **options: Unpack[ViewOptions]) -> None:
        """Draw the heatmap into a PNG file (needs the extra ``viz``); ``of`` and options as of ``show``."""
        drawn, look, what = self._asked(of, options)
        to_png(drawn, path, look, what)

    def to_pdf(self, path: str | os.PathLike[str], *, of: Of = "tokens", **options: Unpack[ViewOptions]) -> None:
        """Draw the heatmap into a PDF file (needs the extra ``viz``); ``of`` and options as of ``show``."""
        drawn, look, what = self._asked(of, options)
        to_pdf(drawn, path, look, what)

    def to_svg(self, path: str | os.PathLike[str], *, of: Of = "tokens", **options: Unpack[ViewOptions]) -> None:
        """Draw the heatmap into an SVG file (needs the extra ``viz``); ``of`` and options as of ``show``."""
        drawn, look, what = self._asked(of, options)
        to_svg(drawn, path, look, what)

    def _repr_html_(self) -> str | None:
        return html_fragment(self._drawable())

    def _drawable(self) -> Any:
        """This object, which is a ``Drawable`` or a sequence of them."""
        return self

    def _asked(self, of: str, options: Mapping[str, Any]) -> tuple[Any, Look, str]:
        """What is drawn, how, and whether tokens, layers or heads."""
        check_names(options, ViewOptions.__annotations__)
        given: dict[str, Any] = dict(options)
        inside: dict[str, Any] = {name: given.pop(name) for name in _HOMES if name in given}
        return chosen(self._drawable(), of, Look(**given), **inside)


class ShownPairs(Shown):
    """What has relevance of pairs of tokens too, as the similarity of two texts has."""

    pairs: Any

    def pairs_to_png(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """Draw ``pairs`` as a matrix into a PNG file (needs the extra ``viz``): a row per token of the first text.

        Args:
            path: File to write.
            header: With the lines above the matrix.

        Raises:
            InputError: There are no pairs, or ``path`` cannot be written.
        """
        self.to_png(path, of="pairs", header=header)

    def pairs_to_pdf(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``pairs_to_png``, as a PDF of one page."""
        self.to_pdf(path, of="pairs", header=header)

    def pairs_to_svg(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``pairs_to_png``, as an SVG."""
        self.to_svg(path, of="pairs", header=header)


def chosen(
    explanations: Any, of: str, look: Look, *, head: Any = None, module: str | None = None, top: int | None = None
) -> tuple[Any, Look, str]:
    """What ``lrpx.heatmap`` draws where this is asked for; ``Shown.show`` says what the options mean.

    Returns:
        The explanations or parts of them, the look, and ``"tokens"`` or the kind of matrix.

    Raises:
        InputError: An option that is none, or numbers that the explanation does not have.
    """
    if of not in get_args(Of):
        raise InputError(f"there is no view of {of!r}. {nearest(of, get_args(Of))}")
    for name, value in (("head", head), ("module", module), ("top", top)):
        if value is not None and of != _HOMES[name]:
            raise InputError(f'{name}={value!r} is for of="{_HOMES[name]}", and this is of={of!r}.')
    several = list(explanations) if isinstance(explanations, Sequence) else [explanations]
    if head is not None:
        if not (isinstance(head, tuple | list) and len(head) == 2):
            raise InputError(f"head={head!r}: give (layer, head), such as (3, 5).")
        return [e.head(*head) for e in several], look, "tokens"
    if of == "neurons":
        most = TOP if top is None else top
        found = [neuron for e in several for neuron in _strongest(e.neurons(module, most), most)]
        return found, _on_one_scale(found, look), "tokens"
    return explanations, look, of


def _strongest(neurons: Sequence[Any], most: int) -> list[Any]:
    """Those with the most relevance of the strongest neurons of several modules: all of these would fill several screens."""
    if len(neurons) <= most:
        return list(neurons)
    chosen = sorted(range(len(neurons)), key=lambda n: -float(np.abs(neurons[n].relevance).sum()))[:most]
    told = [f"the {most} neurons with the most relevance are shown, of all modules together."]
    return [neurons[n].noted(told) for n in sorted(chosen)]


def _on_one_scale(found: Sequence[Any], look: Look) -> Look:
    """The look with a scale on which all can be compared."""
    end = look.end_of_scale(np.concatenate([e.relevance for e in found]).tolist()) if found else 0.0
    return replace(look, scale=end) if end else look
