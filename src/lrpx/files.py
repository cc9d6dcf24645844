"""Files: where one can be written, written completely or not at all, read with errors that name the line; checksums."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from .errors import InputError, LrpxError, nearest

ENDINGS = {  # format -> what writes it, and how its files are called
    "png": ("to_png()", (".png",)),
    "pdf": ("to_pdf()", (".pdf",)),
    "svg": ("to_svg()", (".svg",)),
    "html": ("to_html()", (".html", ".htm")),
    "latex": ("to_latex()", (".tex",)),
    "json": ("save()", (".json", ".jsonl")),
}
NO_JSON = {  # endings of what a result may be expected to be saved as -> what writes it, or nothing does
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".xlsx"), "to_frame(), and pandas writes the table"),
    **dict.fromkeys((".pkl", ".pickle", ".npy", ".npz", ".pt", ".safetensors"), ""),
}
KNOWN = {  # suffixes that say what a file holds
    *(ending for _, endings in ENDINGS.values() for ending in endings),
    *NO_JSON,
    *(".txt", ".md", ".markdown", ".docx", ".odt", ".jpg", ".jpeg", ".gif", ".webp", ".eps", ".ps"),
}


def check_output(path: str | os.PathLike[str], name: str = "") -> Path:
    """A path where a file can be written; ``name`` is the argument that it was given as, for the error.

    Raises:
        InputError: It is a folder or below a file, its folder does not exist, or writing is not permitted.
    """
    file, given = Path(path), f"{name}={os.fspath(path)!r}" if name else os.fspath(path)
    if file.is_dir():
        raise InputError(f"{given} is a folder. Give a file name in it.")
    folder = file.absolute().parent
    check_above(file)
    if not folder.is_dir():
        make = f"~ is not expanded here: give {file.expanduser()}" if file.parts[:1] == ("~",) else f"mkdir -p {folder}"
        raise InputError(f"{given}: the folder {folder} does not exist. Make it first: {make}")
    existed = file.exists()
    if existed and not file.is_file():  # /dev/stdout, a pipe
        return file
    try:  # root may write everywhere, and still not into /proc
        with file.open("a"):
            pass
    except OSError as error:
        raise InputError(f"{given} cannot be written: {(error.strerror or str(error)).lower()}.") from None
    if not existed:
        file.unlink()
    return file


def check_above(path: Path) -> None:
    """Refuse a path that is below a file.

    Raises:
        InputError: It is; the error names the file.
    """
    above = next(place for place in path.absolute().parents if os.path.exists(place))
    if not above.is_dir():
        raise InputError(f"{path} cannot be made: {above} is a file. Give a place in a folder.")


def check_ending(path: str | os.PathLike[str], kind: str) -> Path:
    """A path where a file of the format ``kind``, one of ``ENDINGS``, can be written.

    Its name ends as files of this format do, or has no ending. A name for JSON may end in anything but what is another format's.

    Raises:
        InputError: It ends otherwise; or see ``check_output``.
    """
    ending = Path(path).suffix.lower()
    writer, own = ENDINGS[kind]
    other = next((method for method, endings in ENDINGS.values() if ending in endings), NO_JSON.get(ending))
    if ending and ending not in own and (other is not None or kind != "json"):
        instead = f"For {ending} use {other}." if other else f"Name it {Path(path).with_suffix(own[0])}."
        raise InputError(f"{writer} writes {kind.upper()}, and {os.fspath(path)!r} ends in {ending}. {instead}")
    return check_output(path)


def format_of_output(
    format: str | None,
    output: Path | None,
    endings: Mapping[str, Sequence[str]],
    offered: Iterable[str] | None = None,
) -> str:
    """The format to write: as asked for, or by the suffix of the file; ``terminal`` without a file.

    A suffix that says nothing of a format, such as that of ``report.2026``, goes with each.

    Args:
        format: As asked for.
        output: The file.
        endings: Of each format the suffixes that its files have, the usual one first.
        offered: The formats whose suffixes an error names. Default: all.

    Raises:
        InputError: The format is not known, none goes with the suffix, or the suffix is that of another one.
    """
    if format is not None and format not in endings:
        raise InputError(f"unknown format {format!r}. {nearest(format, endings)}")
    if output is None:
        return format or "terminal"
    suffix = output.suffix.lower()
    if format is None:
        told = {own[0]: name for name, own in endings.items()}
        if suffix not in told:
            other = "" if suffix in KNOWN else ", or say which: format='html'"
            usable = [ending for ending, name in told.items() if offered is None or name in offered]
            raise InputError(
                f"output={str(output)!r}: no format goes with the suffix {output.suffix!r}. Use {', '.join(usable)}{other}."
            )
        return told[suffix]
    if suffix in KNOWN and suffix not in endings[format]:
        raise InputError(
            f"format={format!r} does not go with output={str(output)!r}, which is called like another format. Type: "
            f"output={str(output.with_suffix(endings[format][0]))!r}"
        )
    return format


@contextmanager
def atomic_write(
    path: Path, kept: str = "What was finished is kept: make room, then run the same command again to go on."
) -> Iterator[Path]:
    """Give a temporary path to write to; it is renamed to ``path`` if the block succeeds and removed if it fails.

    So a process that is killed, or a disk that fills up, leaves what was there before. A file that was there keeps its mode,
    and a link stays one.

    Args:
        path: The file.
        kept: What the error says of results that are there.

    Raises:
        InputError: The path is below a file.
        LrpxError: The file could not be written, for instance because the disk is full.
    """
    check_above(path)
    real = Path(os.path.realpath(path))
    temporary = real.with_name(f".{real.name}.{secrets.token_hex(8)}.tmp")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        flush_to_disk(temporary)
        if real.exists():
            shutil.copymode(real, temporary)
        os.replace(temporary, real)
    except OSError as error:
        raise LrpxError(f"could not write {path}: {error.strerror or error}. {kept}") from error
    finally:
        temporary.unlink(missing_ok=True)


def save_output(path: Path, content: str | bytes) -> None:
    """Write a whole result to a path of ``check_output``. If that fails, the file is as it was before.

    Only a device, a pipe, or a file in a folder where no other can be made is written as it is.

    Raises:
        LrpxError: The file could not be written, for instance because the disk is full.
    """
    whole = content.encode("utf-8") if isinstance(content, str) else content
    if (path.exists() and not path.is_file()) or not os.access(Path(os.path.realpath(path)).parent, os.W_OK):
        try:
            path.write_bytes(whole)
        except OSError as error:
            raise LrpxError(f"could not write {path}: {error.strerror or error}.") from error
        return
    with atomic_write(path, "What was there before is kept.") as temporary:
        temporary.write_bytes(whole)


@overload
def written(text: str, path: None, kind: str) -> str: ...
@overload
def written(text: str, path: str | os.PathLike[str], kind: str) -> None: ...
def written(text: str, path: str | os.PathLike[str] | None, kind: str) -> str | None:
    """``text``, or nothing where it is written to a file of the format ``kind``: a notebook would print it."""
    if path is None:
        return text
    save_output(check_ending(path, kind), text)
    return None


def flush_to_disk(path: Path) -> None:
    """Wait until a file is on disk, so that it survives a power failure after it was renamed."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def json_line(data: Any) -> str:
    """JSON on a line of its own, as results are saved and printed; ``ValueError`` for NaN and infinity."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: The file is missing or is not a JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: {path.parent} is not a complete folder of this kind.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a JSON {type(data).__name__}; expected an object.")
    return data


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its place for messages: ``file.jsonl, line 3``. Skips blank lines.

    Raises:
        InputError: A line is not a JSON object, or the file is not UTF-8.
    """
    with open(path, encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path.name}, line {number}"
                    try:
                        yield where, json_object(line)
                    except ValueError as error:
                        raise InputError(f"{where}: {error}.") from error
        except UnicodeDecodeError as error:
            raise not_utf8(
                path.read_bytes(), str(path), path, "Otherwise: Parquet files need the suffix .parquet."
            ) from error


def not_utf8(content: bytes, given: str, path: Path | None, otherwise: str = "") -> InputError:
    """The error for content that is not UTF-8: the line, and how to convert it.

    Args:
        content: What was read.
        given: How the file was given.
        path: The file, if it is one.
        otherwise: Advice, if it is no text.
    """
    start = 0
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        start = error.start
    source = "FILE" if path is None else shlex.quote(str(path))
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        advice = f"UTF-16. Convert it: iconv -f utf-16 -t utf-8 {source} > utf8.txt"
    else:
        line = content.count(b"\n", 0, start) + 1
        advice = f"byte 0x{content[start]:02x} in line {line}"
        if b"\0" in content:  # which no encoding of one byte per letter has
            advice += ", and zero bytes, as in a picture or a model. Give a file of text."
        else:
            advice += f". If it is Latin-1, convert it: iconv -f latin1 -t utf-8 {source} > utf8.txt"
    return InputError(" ".join(filter(None, [f"{given} is not UTF-8 text: {advice}", otherwise])))


def json_object(text: str) -> dict[str, Any]:
    """A JSON object from text.

    Raises:
        ValueError: It is none; the error says what it is.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"a JSON {type(data).__name__}, expected an object")
    return data


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return update_digest(hashlib.sha256(), path)


def update_digest(digest: Any, path: Path) -> str:
    """Feed a file to a digest of ``hashlib``, in blocks; the result in hexadecimal."""
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())
