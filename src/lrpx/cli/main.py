"""The command line: parse, call one public function, show. Errors a person can mend go to stderr with exit status 2."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import LrpxError
from ..methods import METHODS
from . import benchmark as cli_benchmark
from .check import check
from .explain import explain

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Explain what a transformer language model predicts: how much each input token contributed to a logit.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        typer.echo(f"lrpx {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


def methods() -> None:
    """List the methods, each with one line and its source."""
    table = Table("method", "what it computes", "source", box=None, pad_edge=False)
    for m in METHODS.values():
        table.add_row(m.name, m.summary, m.source)
    Console().print(table)


app.command()(explain)
app.command()(methods)
app.command()(check)
app.add_typer(cli_benchmark.benchmark, name="benchmark")
app.command()(cli_benchmark.evaluate)
app.command()(cli_benchmark.report)


def main() -> None:
    """Run the command line; an error that a person can mend is one line on stderr, exit status 2."""
    try:
        app(prog_name="lrpx")
    except (LrpxError, ImportError, OSError) as error:
        Console(stderr=True).print(f"[bold red]lrpx:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise SystemExit(2) from None
