"""The command line: parse, call one public function, show. Errors a person can mend go to stderr with exit status 2."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import LrpxWarning
from ..heatmap.terminal import unclipped
from ..methods import METHODS
from . import benchmark as cli_benchmark
from .app import app as web_app
from .check import check
from .compare import compare
from .ending import status_of
from .explain import explain
from .faithfulness import faithfulness
from .flow import flow
from .generate import generate
from .plugins import load_plugin
from .records import records, results
from .reproduce import reproduce
from .similarity import similarity
from .wording import NOTE, SAID, running_commands, tell

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Explain what a transformer language model predicts: how much each input token contributed to a logit.

    [b]lrpx explain "The keys to the cabinet" --target " are" --contrast " is"[/b]

    [b]lrpx check openai-community/gpt2[/b]

    [b]lrpx methods --long[/b]

    Exit status: 0 all is well; 1 something failed, or does not hold; 2 wrong use; 130 an interrupt.

    Guides: the folder docs of the project.
    """,
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
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="MODULE",
            help="A module or file.py that registers methods with @lrpx.register_method. Before the command. Repeatable.",
        ),
    ] = None,
) -> None:
    for name in plugin or []:
        load_plugin(name)


def methods(
    long: Annotated[bool, typer.Option("--long", help="Also what each assumes, costs and gives.")] = False,
) -> None:
    """List the methods, each with one line and its source."""
    console = Console()
    table = unclipped("method", "what it computes", "source")
    for m in METHODS.values():
        table.add_row(m.name, m.summary, m.source)
    console.print(table)
    if long:
        console.print()
        console.print(traits_table())
        console.print(
            "As Table 1 of Arras et al. 2025, which does not have those with a star. Adds up: to the logit, but for the share"
            " of biases and, under AttnLRP, softmax.",
            style="dim",
        )


def traits_table() -> Table:
    """What each method assumes, costs and gives."""
    table = unclipped(
        "method", "granularity", "computation", "norms\nlinear", "attention\nconstant", "through\nMLPs", "adds\nup"
    )
    table.padding = (0, 1, 0, 0)
    table.columns[0].no_wrap = True
    table.columns[1].max_width = table.columns[2].max_width = len("granularity")
    for m in METHODS.values():
        if t := m.traits:
            answers = (t.linear_norms, t.constant_attention, t.through_mlps, t.decomposes)
            marks = ["–" if answer is None else "yes" if answer else "no" for answer in answers]
            table.add_row(m.name + "*" * (not t.in_paper), t.granularity, t.cost, *marks)
    return table


app.command()(explain)
app.command()(generate)
app.command()(flow)
app.command()(similarity)
app.command()(compare)
app.command()(faithfulness)
app.command()(methods)
app.command()(check)
app.command("app")(web_app)
app.add_typer(cli_benchmark.benchmark, name="benchmark")
app.command()(cli_benchmark.evaluate)
app.command()(cli_benchmark.report)
app.add_typer(records, name="records")
app.command()(results)
app.command()(reproduce)


def main() -> None:
    """Run the command line, and end with its exit status."""
    with warnings.catch_warnings(), _log_shown():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        run = partial(app, prog_name="lrpx", standalone_mode=False)
        raise SystemExit(status_of(run, typer.main.get_command(app), sys.argv[1:]))


def _show_warning(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """A warning of lrpx as one line; another library's as Python shows it."""
    if issubclass(category, LrpxWarning):
        tell(NOTE, str(message), *running_commands(typer.main.get_command(app), sys.argv[1:]))
    else:
        otherwise(message, category, *place)


class _Lines(logging.Handler):
    """What lrpx logs, as one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it to standard error."""
        kind = NOTE if record.levelno >= logging.WARNING else SAID
        tell(kind, record.getMessage(), *running_commands(typer.main.get_command(app), sys.argv[1:]))


@contextmanager
def _log_shown() -> Iterator[None]:
    """What lrpx logs is shown meanwhile."""
    logger, lines = logging.getLogger("lrpx"), _Lines()
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)
