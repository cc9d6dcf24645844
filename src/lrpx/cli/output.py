"""Where ``lrpx explain`` writes, and in which format."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.console import Console, RenderableType

from ..errors import InputError, LrpxWarning, counted, install_command, listed, nearest
from ..files import check_output, format_of_output, json_line, save_output
from ..heatmap import Look
from ..heatmap.latex import ENGINES

if TYPE_CHECKING:
    from ..results.explanation import Explanation
    from ..results.explanations import Failure


class Format(str, enum.Enum):
    """What ``lrpx explain`` writes."""

    terminal = "terminal"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    html = "html"
    latex = "latex"
    png = "png"
    pdf = "pdf"
    svg = "svg"


ENDINGS = {  # how files of each format are called, the usual one first
    "json": (".json", ".jsonl", ".txt"),
    "jsonl": (".jsonl", ".json", ".txt"),
    "csv": (".csv",),
    "html": (".html", ".htm"),
    "latex": (".tex",),
    "png": (".png",),
    "pdf": (".pdf",),
    "svg": (".svg",),
    "terminal": (".txt",),
}
PICTURES = (Format.png, Format.pdf, Format.svg)  # drawn by matplotlib


def destination(
    format: str | None,
    output: Path | None,
    reads: Iterable[str | os.PathLike[str] | None] = (),
    kinds: Sequence[Format] = tuple(Format),
) -> tuple[Format, Path | None]:
    """What to write and where, before anything is computed: ``None`` is standard output, which is also called ``-``.

    ``kinds``: what the command writes, for the error about an unknown suffix; see ``check_kind`` for others.

    Raises:
        InputError: See ``format_of``, ``check_output`` and ``refuse_overwriting``.
    """
    output = None if str(output) == "-" else output
    if output is not None:
        refuse_overwriting(output, reads)
        check_output(output, "output")
    return format_of(format, output, kinds), output


def refuse_overwriting(output: Path, reads: Iterable[str | os.PathLike[str] | None]) -> None:
    """Refuse to write over a file that the command reads: those in ``reads``, by any name, or standard input.

    Raises:
        InputError: ``output`` is one of them.
    """
    if not output.is_file():  # a new file; a device, a pipe
        return
    for file in reads:
        if file is not None and os.path.isfile(file) and os.path.samefile(file, output):
            raise InputError(f"--output {output} is the file {file}, which is read. Give another name.")
    try:
        redirected = os.path.samestat(os.fstat(sys.stdin.fileno()), output.stat())
    except (OSError, ValueError):  # no standard input, or none with a file
        redirected = False
    if redirected:
        raise InputError(f"--output {output} is what standard input is read from. Give another name.")


def format_of(format: str | None, output: Path | None, kinds: Sequence[Format] = tuple(Format)) -> Format:
    """What to write: as asked for, or by the suffix of the output.

    Raises:
        InputError: An unknown format or suffix, or one that cannot be written there.
    """
    kind = Format(format_of_output(format, output, ENDINGS, [kind.name for kind in kinds]))
    if kind in PICTURES and output is None:
        raise InputError(f"{kind.name} needs a file: --output heatmap.{kind.name}")
    if kind in PICTURES and importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"{kind.name} needs matplotlib: {install_command('viz')}")
    return kind


def check_kind(kind: Format, command: str, kinds: Sequence[Format]) -> None:
    """Refuse a format that ``command`` does not write.

    Raises:
        InputError: It is none of ``kinds``.
    """
    if kind not in kinds:
        raise InputError(f"{kind.name} is for lrpx explain; {command} has {', '.join(f.name for f in kinds)}.")


def quiet_if_shown(kind: Format, output: Path | None) -> None:
    """Give no warnings of lrpx where what is shown on the terminal says the same in its header."""
    if kind is Format.terminal and output is None:
        warnings.simplefilter("ignore", LrpxWarning)


def check_document(kind: Format, *, fragment: bool, engine: str | None) -> None:
    """Refuse options of documents that do not go with the format, before anything is computed.

    Raises:
        InputError: A fragment of what has none, or a program that compiles something else than LaTeX, or is not known.
    """
    if fragment and kind not in (Format.html, Format.latex):
        raise InputError(f"--fragment is for html and latex, and the format is {kind.name}.")
    if engine is not None and kind is not Format.latex:
        raise InputError(f"--engine is for latex, and the format is {kind.name}.")
    if engine is not None and engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}. {nearest(engine, ENGINES)}")


def view_of(kind: Format, of: str, head: str | None, output: Path | None) -> tuple[str, tuple[int, ...] | None]:
    """What is shown, and of which head, as asked for by ``--of`` and ``--head``.

    Raises:
        InputError: There is no such view, or the format does not go with it.
    """
    views = ("tokens", "layers", "heads", "neurons")
    if of not in views:
        raise InputError(f"unknown view --of {of}. {nearest(of, views)}")
    places = None
    if head is not None:
        if of not in ("tokens", "heads"):
            raise InputError(f"--head {head} shows the tokens of one head, and --of {of} is given.")
        if not re.fullmatch(r"\d+,\d+", head):
            raise InputError(f"--head {head}: give a layer and a head, both from 0: --head 3,5")
        of, places = "heads", tuple(map(int, head.split(",")))
    typed = f"--of {of}" if head is None else f"--head {head}"
    if of != "tokens" and kind is Format.csv:
        raise InputError(
            f"{typed} is for what is drawn, and csv has a row for each token. Type another format: {_instead(output, 'html')}"
        )
    if of != "tokens" and kind in (Format.json, Format.jsonl):
        raise InputError(
            f"{typed} is for what is drawn, and {kind.name} holds all numbers. Leave it out, or type another format: "
            f"{_instead(output, 'html')}"
        )
    if of in ("layers", "heads") and places is None and kind is Format.latex:
        raise InputError(f"--of {of} is no text, which is what latex can show. Type: {_instead(output, 'pdf')}")
    return of, places


def _instead(output: Path | None, kind: str) -> str:
    """What to type for another format; a picture needs a file."""
    if output is None:
        return "--output heatmap.pdf" if kind == "pdf" else f"--format {kind}"
    return f"--output {shlex.quote(str(output.with_suffix(ENDINGS[kind][0])))}"


def look_of(scale: str, hide: list[str] | None, group: str, numbers: bool | None, palette: str, header: bool) -> Look:
    """How maps are drawn, as asked for.

    Raises:
        InputError: A value that none of the options has.
    """
    end: Any = scale
    with contextlib.suppress(ValueError):
        end = float(scale)
    hidden: Any = tuple(name.strip() for given in hide or () for name in given.split(","))
    return Look(end, hidden, cast("Any", group), numbers, cast("Any", palette), header)


def write(
    explanations: list[Any], kind: Format, output: Path | None, look: Look, *, fragment: bool, engine: str,
    of: str = "tokens", head: tuple[int, ...] | None = None, lines: Sequence[int] = (),
) -> None:  # fmt: skip
    """Write the explanations to ``output``, or to standard output: as JSON a list, as JSON lines an object per line.

    ``lines``: of each explanation the line of the file that its text was read from, for CSV; empty where there is no file.

    Raises:
        InputError: The explanations do not have what is asked for by ``of`` and ``head``.
    """
    from .. import heatmap
    from ..heatmap.shown import chosen

    if kind in (Format.json, Format.jsonl):
        each = [e.to_dict() for e in explanations]
        documents = [each] if kind is Format.json else each
        write_result("".join(map(json_line, documents)), output)
        return
    if kind is Format.csv:
        from ..app.downloads import csv_of

        write_result(csv_of(explanations, lines), output)
        return
    drawn, look, of = chosen(explanations, of, look, head=head)
    if kind is Format.terminal and output is None:
        heatmap.show(drawn, look, of)
    elif kind in PICTURES and output is not None:
        getattr(heatmap, f"to_{kind.name}")(drawn, output, look, of)
    elif kind is Format.html:
        write_result((heatmap.html_fragment if fragment else heatmap.to_html)(drawn, look=look, of=of), output)
    elif kind is Format.latex:
        written = heatmap.to_latex(drawn, look, of, fragment=fragment, engine=cast("Any", engine))
        write_result(written, output)
    else:
        write_result(plain_text(heatmap.render(drawn, look=look, of=of)), output)


def with_failures(
    kind: Format, explanations: Sequence[Explanation], failures: Sequence[Failure], origins: Sequence[str]
) -> list[Any]:
    """What ``write`` is given where texts failed: JSON holds the failures, and the first header of a map says where they are."""
    if kind in (Format.json, Format.jsonl) or not failures:
        return [*explanations, *failures]
    from ..results.explanations import noted_first

    places = [origin.rpartition(", ")[2] for origin in origins]
    return noted_first(explanations, f"{counted(len(failures), 'text')} could not be explained: {listed(places, 10)}.")


def check_header(kind: Format, header: bool) -> None:
    """Refuse to leave out the lines above a flow, or generated text, where it is no picture.

    Raises:
        InputError: The format has no such option.
    """
    if not header and kind not in PICTURES:
        raise InputError(f"--no-header is for {', '.join(f.name for f in PICTURES)}, and the format is {kind.name}.")


def write_one(
    found: Any, kind: Format, output: Path | None, render: Callable[[Any], RenderableType], *, header: bool
) -> None:
    """Write a flow, or generated text, to ``output``, or to standard output; ``render`` draws it for a terminal."""
    if kind in PICTURES:
        getattr(found, f"to_{kind.name}")(output, header=header)
    elif kind is Format.json:
        write_result(json_line(found.to_dict()), output)
    elif kind is Format.csv:
        write_result(found.table().to_csv(), output)
    elif kind is Format.html:
        write_result(found.to_html(), output)
    elif output is None:
        found.show()
    else:
        write_result(plain_text(render(found)), output)


def plain_text(drawn: RenderableType) -> str:
    """What is drawn for a terminal, without colours."""
    page = io.StringIO()
    Console(file=page, width=120, force_jupyter=False).print(drawn)
    return page.getvalue()


def write_result(content: str, output: Path | None) -> None:
    """Write to ``output``, or to standard output."""
    if output is None:
        typer.echo(content.encode("utf-8"), nl=False)  # as bytes: the files say UTF-8, whatever the terminal's encoding
    else:
        save_output(output, content)
