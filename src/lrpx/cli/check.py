"""``lrpx check``: whether the rules hold for a model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..heatmap.terminal import unclipped
from . import options
from .wording import in_command_syntax, options_of


def check(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, folder, GGUF file, or smollm2-135m.")
    ] = options.DEFAULT_MODEL,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    verbose: options.VerboseOption = False,
) -> None:
    """Verify a model on the spot: forward pass untouched, rules met, relevance adds up. Exit status 1 if it does not hold."""
    options.set_logging(verbose)
    from ..check import check as run
    from ..models.loading import load

    loaded, reader = load(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        revision=revision,
        token=token,
    )
    report = run(loaded, reader)
    console, typed = Console(), options_of([context.command, context.find_root().command])
    marks = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "[dim]note [/]"}
    for ok, line in report.lines:
        console.print(marks[ok], escape(in_command_syntax(line, typed)), soft_wrap=True, highlight=False)
    if report.hits:
        kinds = sorted(set().union(*report.hits.values()))
        table = unclipped("operations met", *report.hits)
        for kind in kinds:
            table.add_row(kind, *(str(hits[kind]) for hits in report.hits.values()))
        console.print(table)
    if report.sums:
        table = unclipped("LRP relevance at", f"sum (logit {report.value:.6g})")
        for name, total in report.sums.items():
            table.add_row(name if name == "embedding" else f"output of {name}", f"{total:.6g}")
        console.print(table)
    raise typer.Exit(0 if report.holds else 1)
