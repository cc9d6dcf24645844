"""``lrpx reproduce``: the paper's Table 2 from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import CompileOption, FastOption, Tf32Option, set_precision
from .wording import SAID, tell


def reproduce(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder, or where it was stopped.")
    ],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar="NAME[=PATH]",
            help="Models of the paper, such as gpt2,bert-base-uncased, or gpt2=path. Repeatable. Default: all six.",
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="N", help="Evaluate this many samples of each model.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be done, how long it takes and what is missing.")
    ] = False,
    benchmark: Annotated[
        Path | None, typer.Option("--benchmark", metavar="DIR", help="A benchmark. Default: one is built in --output.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--source", metavar="FILE", help="lgd_dataset.tsv. Default: it is downloaded.")
    ] = None,
    parser: Annotated[
        str | None, typer.Option("--parser", metavar="NAME", help="spaCy pipeline. Default: the paper's.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="DTYPE", help="Default: the paper's, float64 or bfloat16.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Default: a GPU if there is one.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", metavar="N", help="Tokens per batch, padding included.")
    ] = None,
    fast: FastOption = None,
    compile: CompileOption = False,
    tf32: Tf32Option = False,
) -> None:
    """Evaluate the paper's methods on its six models, and say where the figures differ. Resumes if stopped.

    [b]lrpx reproduce --output paper --plan[/b]

    Exit status 1 if a model could not be had, or if something that the plan needs is missing.
    """
    from ..report import plan as planned
    from ..report import reproduce as module

    given: dict[str, Any] = {
        "models": models,
        "benchmark": benchmark,
        "source": source,
        "parser": parser,
        "samples": samples,
        "dtype": dtype,
        "device": device,
        "batch_tokens": batch_tokens,
        "compile": compile,
    }
    set_precision(tf32)
    if plan:
        steps = planned.plan(output, **given)
        typer.echo(planned.plan_text(steps))
        raise typer.Exit(1 if any(step.missing for step in steps) else 0)
    done = module.reproduce(output, **given, fast=fast)
    typer.echo(done.comparison.read_text(encoding="utf-8"))
    missing = f", but {', '.join(done.missing)} could not be evaluated" if done.missing else ""
    tell(SAID, f"finished{missing}: {done.comparison}")
    raise typer.Exit(1 if done.missing else 0)
