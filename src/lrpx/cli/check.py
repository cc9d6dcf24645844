"""``lrpx check``: whether the rules hold for a model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..errors import InputError, counted
from ..heatmap.terminal import unclipped
from . import options
from .wording import in_command_syntax, options_of


def check(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Hub id, folder, GGUF file, or smollm2-135m, which is the default."),
    ] = None,
    model: Annotated[
        str | None,
        options.model_option("--model", "-m", metavar="NAME", help="The model, as the other commands have it."),
    ] = None,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    verbose: options.VerboseOption = False,
) -> None:
    """Verify a model on the spot: forward pass untouched, rules met, relevance adds up.

    Exit status 1 if it does not hold, 2 if the model cannot be checked.
    """
    options.set_logging(verbose)
    if name is not None and model is not None:
        raise InputError(f"two models are given: {name} and --model {model}. Give one.")
    model = name or model or options.DEFAULT_MODEL
    from ..check import check as run
    from ..models.loading import load
    from ..passes.hidden_states import PLACES, is_entry

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
        table = unclipped("LRP relevance at", f"sum (value {report.value:.6g})")
        for name, total in report.sums.items():
            table.add_row(name if name in PLACES or is_entry(name) else f"output of {name}", f"{total:.6g}")
        console.print(table)
    failed = sum(ok is False for ok, _ in report.lines)
    about = escape(model)
    if report.holds:
        status, verdict = 0, f"[green]{about} can be explained: all checks hold.[/]"
    elif failed:
        status = 1
        verdict = f"[red]{about}: {counted(failed, 'check')} failed. Do not rely on its explanations.[/]"
    else:
        status, why = 2, "for the reason above, which says nothing about its explanations."
        verdict = f"[yellow]{about}: lrpx check cannot check this model, {why}[/]"
    console.print(verdict, soft_wrap=True, highlight=False)
    raise typer.Exit(status)
