"""``lrpx compare``: saved explanations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import check_document, destination, look_of, view_of, with_failures, write


def compare(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What lrpx explain wrote as JSON.")],
    of: options.OfOption = "tokens",
    head: options.HeadOption = None,
    scale: options.ScaleOption = "robust",
    hide: options.HideOption = None,
    group: options.GroupOption = "tokens",
    numbers: options.NumbersOption = None,
    palette: options.PaletteOption = "red and blue",
    header: options.HeaderOption = True,
    format: options.FormatOption = None,
    fragment: options.FragmentOption = False,
    engine: options.EngineOption = None,
    output: options.OutputOption = None,
) -> None:
    """Show saved explanations side by side: those of one text as rows of one grid.

    [b]lrpx explain "The keys to the cabinet" -m gpt2 -o a.json[/b]

    [b]lrpx explain "The keys to the cabinet" -m smollm2-135m -o b.json[/b]

    [b]lrpx compare a.json b.json[/b]
    """
    kind, output = destination(format, output, files)
    check_document(kind, fragment=fragment, engine=engine)
    of, places = view_of(kind, of, head, output)
    look = look_of(scale, hide, group, numbers, palette, header)

    from ..results.compare import compare as side_by_side

    found = side_by_side(*files)
    shown = with_failures(kind, found, found.failures, [f"index {failure.index}" for failure in found.failures])
    write(shown, kind, output, look, fragment=fragment, engine=engine or "pdflatex", of=of, head=places)
