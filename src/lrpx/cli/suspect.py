"""Texts that are probably not meant as texts: the name of a file, a table, JSON, or what lrpx itself wrote.

Such a text can be explained, and its map looks as good as any other. So it is noted, with what to type instead.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError, warn

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
TABLES = {".csv": "a table (CSV)", ".tsv": "a table (TSV)"}


def note_file_names(texts: Iterable[str], instead: str) -> None:
    """Warn of texts that are the name of a file, other than of a picture, which a model may read where others read a text.

    ``instead``: how it is given to the command, with ``{}`` for the name.
    """
    for text in texts:
        if _is_file(text) and not is_picture(text):
            warn(
                f"{text!r} is explained as a text, and a file of this name exists. To read it: "
                f"{instead.format(shlex.quote(text))}"
            )


def note_pictures(texts: Iterable[Any]) -> None:
    """Warn of texts that are the name of a picture, for a model that reads them as texts."""
    for text in texts:
        if isinstance(text, str) and _is_file(text) and is_picture(text):
            warn(
                f"{text!r} is explained as a text, and a picture of this name exists. To explain it, with a model that reads "
                f"images: lrpx explain --image {shlex.quote(text)}"
            )


def check_lines(lines: list[str], named: str, file: Path) -> None:
    """Look at lines that are each to be explained as a text.

    Raises:
        InputError: They are a result that lrpx wrote.
    """
    first = _object(lines[0]) if lines else None
    if made := _made_by_lrpx(first):
        raise not_texts(named, made)
    if isinstance(first, dict) and first.keys() & {"text", "messages"}:
        warn(
            f"{named} looks like JSON lines, and each line is explained as a text as it stands. To read them as JSON: --jsonl"
        )
    elif _is_json("\n".join(lines)):
        warn(f"{named} is JSON, and each line is explained as a text as it stands. {_jq(file)}")
    elif kind := TABLES.get(file.suffix.lower()):
        warn(
            f"{named} is {kind}, and each line is explained as a text, with all its columns. Write one text per line, or JSON "
            'lines, {"text": "...", "target": "..."}, into a file that is called .jsonl.'
        )


def not_texts(named: str, made: str) -> InputError:
    """The error for a file of results where texts are expected."""
    shows = " To show explanations again: lrpx compare a.json b.json." if made == "explanations" else ""
    return InputError(
        f"{named} holds {made} that lrpx wrote, and no texts. Give the file with the texts.{shows} To explain each line as a "
        "text all the same: --no-jsonl"
    )


def _made_by_lrpx(found: Any) -> str:
    """What a JSON value of lrpx is: explanations, a flow, generated text; empty for any other."""
    while isinstance(found, list) and found:
        found = found[0]
    if not isinstance(found, dict) or "schema" not in found:
        return ""
    kinds = {"flow": "a flow", "generation": "generated text"}
    if found.get("kind") in kinds:
        return kinds[found["kind"]]
    return "explanations" if {"tokens", "relevance", "method"} <= found.keys() else ""


def made_by_lrpx(line: str) -> str:
    """What a line of JSON that lrpx wrote holds; empty for any other."""
    return _made_by_lrpx(_object(line))


def _is_file(text: str) -> bool:
    try:
        return os.path.isfile(text)
    except ValueError:  # a NUL in it
        return False


def is_picture(text: str) -> bool:
    """Whether a name ends as that of a picture does."""
    return os.path.splitext(text)[1].lower() in IMAGE_SUFFIXES


def _object(line: str) -> Any:
    """A JSON object or list from a line, ``None`` for anything else."""
    if not line.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_json(content: str) -> bool:
    found = _object(content)
    return isinstance(found, dict) or (isinstance(found, list) and isinstance(next(iter(found), None), dict | str))


def _jq(file: Path) -> str:
    if str(file) == "-":
        return "Give JSON lines instead, one object per line, with --jsonl"
    made = shlex.quote(str(file.with_suffix(".jsonl")))
    return (
        f"Make JSON lines of it, one object per line: jq -c '.[]' {shlex.quote(str(file))} > {made}, and --file {made}"
    )
