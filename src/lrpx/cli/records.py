"""The commands for condensed records: pack runs, check what was handed in, make the page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError, LrpxError

records = typer.Typer(no_args_is_help=True, help="Records of an evaluation in a small form: pack them, check them.")


@records.command("pack")
def pack(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders made by [b]lrpx evaluate[/b].")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="One folder per run is made in it.")],
) -> None:
    """Condense finished runs to their scores, to be stored or handed in.

    [b]lrpx records pack runs/gpt2 --out records[/b]
    """
    from ..evaluation.packing import pack as condense
    from ..evaluation.records import find_runs

    found = find_runs(runs)
    names = [run.path.resolve().name for run in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two runs are called {twice}: pack them one by one, each with a folder of its own.")
    for run, name in zip(found, names, strict=True):
        made = condense(run, out / name)
        typer.echo(f"{made.path}: {len(made.samples):,} samples, {', '.join(made.manifest['methods'])}")


@records.command("check")
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Condensed records, or folders of them.")],
    benchmark: Annotated[
        Path | None, typer.Option("--benchmark", metavar="DIR", help="Compare the samples with this benchmark, too.")
    ] = None,
) -> None:
    """Check condensed records: complete, unchanged, in range, and of the samples that they say they are of.

    [b]lrpx records check records/gpt2 --benchmark sva[/b]

    Exit status 1 if one of them does not hold; for each of those there is one line that says why.
    """
    from ..evaluation.condensed import check_against, condensed_folders, load_condensed
    from .wording import ERROR, tell

    failed = 0
    for folder in condensed_folders(paths):
        try:
            found = load_condensed(folder)
            of = "" if benchmark is None else f" of the {check_against(found, benchmark):,} in {benchmark}"
        except LrpxError as error:
            failed += 1
            tell(ERROR, error)
            continue
        facts, at = found.manifest["model"], found.manifest["options"]["at"]
        methods = ", ".join(found.manifest["methods"])
        typer.echo(
            f"{folder}: holds. {facts['name']}, {facts['dtype']}, at {at}, {len(found.samples):,} samples{of}: {methods}"
        )
    raise typer.Exit(1 if failed else 0)


def results(
    paths: Annotated[list[Path], typer.Argument(metavar="RECORDS", help="Condensed records, or folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.md", help="The page, as Markdown.")],
) -> None:
    """Check condensed records and make a page of results from them: tables with intervals, tests, what explains what.

    [b]lrpx results results --output docs/results.md[/b]
    """
    from ..report.results_page import write_results

    write_results(paths, output)
