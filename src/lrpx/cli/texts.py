"""The texts that a command explains: its arguments, standard input, the lines of a text file, or JSON lines.

A line of a JSON lines file is a string or an object: ``{"text": ...}`` or ``{"messages": [...]}``, with ``target``, ``contrast``,
``position``, ``text_pair``, ``question`` and ``choices`` of its own if it has them.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InputError, LrpxWarning, nearest, with_arguments
from ..files import not_utf8
from ..methods import METHODS
from .suspect import check_lines, is_picture, made_by_lrpx, not_texts, note_file_names, note_pictures
from .wording import ERROR, tell

if TYPE_CHECKING:
    from ..results.explanations import Explanations

KEYS = {
    "text": (str, "a string"),
    "messages": (list, "a list of chat messages"),
    "target": (str | int, "a string or a token id"),
    "contrast": (str | int, "a string or a token id"),
    "position": (int, "the index of a token"),
    "text_pair": (str, "a string"),
    "question": (str, "a string"),
    "choices": (list, "a list of strings"),
}
AFTER_LOADING = ("explain", "generate")  # they call ``note_pictures`` when they know whether the model reads pictures


@dataclass(frozen=True)
class InputText:
    """One text, where it came from, and what is asked of it, if it says so itself."""

    text: str | list[dict[str, Any]]
    origin: str = ""  # "x.jsonl, line 3"
    target: str | int | None = None
    contrast: str | int | None = None
    position: int | None = None
    text_pair: str | None = None
    question: str | None = None
    choices: list[str] | None = None
    line: int | None = field(default=None, compare=False)  # of a file; ``origin`` says it too


def texts_of(
    arguments: list[str] | None,
    file: Path | None,
    *,
    jsonl: bool | None,
    chat: bool,
    command: str = "explain",
    images: int = 0,
) -> list[InputText]:
    """The texts to explain: what was typed, what the file holds, or what comes in through a pipe.

    Args:
        arguments: What was typed; ``-`` alone is standard input.
        file: One text per line, blank ones left out; ``-`` is standard input.
        jsonl: Whether the lines are JSON. ``None``: if the file's name ends in ``.jsonl``.
        chat: Each text is what a user says to a chat model.
        command: Which command takes them, for messages.
        images: How many come first in what a user says, with ``chat``.

    Raises:
        InputError: There are none, or they cannot be used; the error names the line.
    """
    if arguments == ["-"] and file is None:
        arguments, file = None, Path("-")
    if arguments and file:
        raise InputError("give texts as arguments or with --file, not both.")
    if arguments and jsonl:
        raise InputError("--jsonl is about the lines of --file or of standard input, and texts are given as arguments.")
    if arguments:
        _check_for_methods(arguments, command)
        note_file_names(arguments, "--file {}")
        if command not in AFTER_LOADING:
            note_pictures(arguments)
        several = len(arguments) > 1
        found = [InputText(text, f"text {n}" if several else "") for n, text in enumerate(arguments, start=1)]
    else:
        if file is None and sys.stdin.isatty():
            raise InputError(f'no text given. Type: lrpx {command} "The keys to the cabinet"')
        found = _lines_of(file or Path("-"), jsonl)
        if not found and file is None:
            raise InputError(
                f'no text given, and standard input is empty. Type: lrpx {command} "The keys to the cabinet"'
            )
        if not found:
            raise InputError(f"{_named(file)} holds no text; expected one per line.")
    return [_as_chat(one, images) for one in found] if chat else found


def one_text(argument: str | None, command: str, *, chat: bool = False, images: int = 0) -> Any:
    """The one text of a command that takes no more: as it was typed, or what comes in through a pipe.

    Raises:
        InputError: There is none, or there are several lines.
    """
    if argument not in (None, "-"):
        _check_for_methods([argument], command)
        note_file_names([argument], f"lrpx {command} < {{}}")
        if command not in AFTER_LOADING:
            note_pictures([argument])
        found = [InputText(argument)]
        return (_as_chat(found[0], images) if chat else found[0]).text
    found = texts_of(None, None, jsonl=False, chat=chat, command=command, images=images)
    if len(found) > 1:
        raise InputError(
            f"standard input has {len(found)} lines with text, and lrpx {command} takes one text. Give one of them."
        )
    return found[0].text


def _check_for_methods(texts: list[str], command: str) -> None:
    for text in texts:
        if text in METHODS:
            raise InputError(
                f"{text!r} stands where a text is expected, and is the name of a method. Type --method before each: "
                f"--method {text}. If it is the text: echo {text} | lrpx {command}"
            )


def _lines_of(file: Path, jsonl: bool | None) -> list[InputText]:
    try:
        raw = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        content = raw.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"--file {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        picture = f"To explain a picture: --image {shlex.quote(str(file))}" if is_picture(str(file)) else ""
        raise not_utf8(raw, _named(file), None if str(file) == "-" else file, picture) from error
    as_json = file.suffix.lower() in (".jsonl", ".ndjson") if jsonl is None else jsonl
    found = []
    lines = content.replace("\r\n", "\n").split("\n")
    if not as_json and jsonl is None:
        check_lines([line for line in lines if line.strip()], _named(file), file)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            origin = f"{_named(file)}, line {number}"
            found.append(replace(_parsed(line, origin) if as_json else InputText(line, origin), line=number))
    return found


def asked_of(texts: Sequence[InputText], typed: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is asked of each text: what its line says, or else what was typed for all."""
    return {
        name: [value if getattr(one, name) is None else getattr(one, name) for one in texts]
        for name, value in typed.items()
    }


def tell_failures(explained: Explanations, texts: Sequence[InputText], context: typer.Context) -> None:
    """One error for each text that could not be explained, with the line that it stands in."""
    for failure in explained.failures:
        one = texts[failure.index]
        said = _as_in_the_line(failure.error.at(one.origin).in_command, one)
        tell(ERROR, said, context.command, context.find_root().command)


def _as_in_the_line(message: str, one: InputText) -> str:
    """What a line of JSON asks for itself, such as a target, as it is written there: an option would not change it."""

    def written(name: str, value: str | None) -> str | None:
        if name == "text" or getattr(one, name, None) is None:
            return None
        try:
            return f'"{name}": ...' if value is None else f'"{name}": {json.dumps(ast.literal_eval(value))}'
        except (SyntaxError, ValueError):
            return None

    return with_arguments(message, written)


@contextmanager
def origins_in_warnings(texts: Sequence[InputText]) -> Iterator[None]:
    """Inside the block, a warning of lrpx names the line of a file where it would name a text by its index."""
    shown = warnings.showwarning

    def named(found: re.Match[str]) -> str:
        i = int(found[1])
        return texts[i].origin or found[0] if i < len(texts) else found[0]

    def show(message: Any, category: Any, *place: Any) -> None:
        if issubclass(category, LrpxWarning):
            message = category(re.sub(r"\btext\[(\d+)\]", named, str(message)))
        shown(message, category, *place)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = shown


def _parsed(line: str, origin: str) -> InputText:
    """One line of a JSON lines file."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{origin} is no JSON: {_reason(error)}. Expected a string, or an object with a text or messages."
        ) from None
    if isinstance(entry, str):
        entry = {"text": entry}
    if not isinstance(entry, dict):
        if made := made_by_lrpx(line):
            raise not_texts(origin.rpartition(",")[0], made)
        raise InputError(f'{origin}: {line.strip()[:40]} is no text. Give a string, or {{"text": "..."}}.')
    if made := made_by_lrpx(line):
        raise not_texts(origin.rpartition(",")[0], made)
    for key, value in entry.items():
        if key not in KEYS:
            raise InputError(f"{origin}: unknown key {key!r}. {nearest(key, KEYS)}")
        kind, expected = KEYS[key]
        if isinstance(value, bool) or not (
            isinstance(value, kind) or (value is None and key not in ("text", "messages"))
        ):
            raise InputError(f"{origin}: {key} is {json.dumps(value)[:40]}. Give {expected}.")
    if ("text" in entry) == ("messages" in entry):
        raise InputError(f"{origin}: give either text or messages; it has {', '.join(entry) or 'nothing'}.")
    text = entry.pop("text") if "text" in entry else entry.pop("messages")
    return InputText(text, origin, **entry)


def _reason(error: Exception) -> str:
    """Why a line is no JSON, with the column alone: JSON's own message counts lines from this one."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} in column {error.colno}"
    return str(error)


def _as_chat(asked: InputText, images: int) -> InputText:
    """A text as what a user says, after so many images."""
    if not isinstance(asked.text, str):
        return asked
    parts = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": asked.text}]
    return replace(asked, text=[{"role": "user", "content": parts if images else asked.text}])


def _named(file: Path | None) -> str:
    return "standard input" if str(file) == "-" else f"--file {file}"
