"""The texts that a command explains: its arguments, or the lines of a file."""

from __future__ import annotations

from pathlib import Path

import typer

from ..errors import InputError


def texts_of(text: list[str] | None, file: Path | None) -> list[str]:
    """The texts to explain.

    Raises:
        InputError: There are none, or they cannot be read.
    """
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
