"""Files of a benchmark folder: written atomically, with a schema version and a manifest.

- Parquet files carry the schema version and what they hold in their metadata; another version is refused.
- A folder's ``manifest.json`` says what it was made from. Continuing with other inputs is refused; the error names what
  differs.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, import_optional
from ..files import atomic_write, check_above, read_json, write_json
from .wrong_folder import not_ours, not_there, of_another_kind

SCHEMA = 1
DOWNLOADS = "download"  # subfolder for downloaded sources
_KEY = b"lrpx"


def write_table(path: Path, kind: str, columns: dict[str, Any], types: dict[str, Any]) -> None:
    """Write columns as Parquet, atomically, with ``kind`` and the schema version in the metadata.

    Args:
        path: The file.
        kind: What the rows are; ``read_table`` asks for it.
        columns: Name -> list of values.
        types: Name -> pyarrow type, in the order of the file.
    """
    with atomic_write(path) as temporary:
        _write_to(temporary, kind, columns, types)


def table_bytes(kind: str, columns: dict[str, Any], types: dict[str, Any]) -> bytes:
    """The bytes that ``write_table`` would write, for a file that another process writes."""
    file = io.BytesIO()
    _write_to(file, kind, columns, types)
    return file.getvalue()


def _write_to(file: Path | io.BytesIO, kind: str, columns: dict[str, Any], types: dict[str, Any]) -> None:
    pa, pq = parquet()
    schema = pa.schema(list(types.items()), metadata={_KEY: json.dumps({"kind": kind, "schema": SCHEMA})})
    pq.write_table(pa.table({name: columns[name] for name in types}, schema=schema), file, compression="zstd")


def parquet() -> tuple[Any, Any]:
    """The modules ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        ImportError: pyarrow is not installed.
    """
    return import_optional("pyarrow", "A benchmark"), import_optional("pyarrow.parquet", "A benchmark")


def write_dropped(path: Path, dropped: Sequence[Any]) -> None:
    """Write what a filter left out: ``sample_id``, ``line``, ``reason`` and ``detail`` of each entry."""
    pa = import_optional("pyarrow", "Writing a benchmark")
    types = {"sample_id": pa.int64(), "line": pa.int64(), "reason": pa.string(), "detail": pa.string()}
    write_table(path, "dropped", {name: [getattr(d, name) for d in dropped] for name in types}, types)


def count(total: int, dropped: Sequence[Any], reasons: dict[str, str]) -> dict[str, Any]:
    """How many of ``total`` rows each filter dropped, in the order of ``reasons`` (name -> what it means)."""
    numbers = Counter(d.reason for d in dropped)
    steps, left = [], total
    for reason, what in reasons.items():
        left -= numbers[reason]
        steps.append({"reason": reason, "what": what, "dropped": numbers[reason], "left": left})
    return {"rows": total, "kept": left, "steps": steps}


def losses(counts: dict[str, Any]) -> str:
    """What filters dropped, for an error: ``equal_forms 3, no_subject 1``."""
    return ", ".join(f"{step['reason']} {step['dropped']}" for step in counts["steps"] if step["dropped"])


def read_table(path: Path, kind: str) -> Any:
    """Read what ``write_table`` wrote, as a ``pyarrow.Table``.

    Raises:
        InputError: The file is missing, damaged, of another kind or of another schema version.
    """
    pa, pq = parquet()
    if not path.is_file():
        raise InputError(f"{path} does not exist: {path.parent} is not a complete folder of this kind.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path} cannot be read as Parquet: {error}. Remove the file and run the command again."
        ) from error
    stamp = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    if stamp.get("kind") != kind:
        raise InputError(f"{path} holds {stamp.get('kind') or 'no lrpx table'}, expected {kind}.")
    if stamp.get("schema") != SCHEMA:
        raise InputError(
            f"{path} has schema {stamp.get('schema')}, this version of lrpx reads schema {SCHEMA}. Build it again."
        )
    return table


def read_manifest(folder: Path, kind: str, schema: int = SCHEMA) -> dict[str, Any]:
    """The manifest of a folder of this ``kind``.

    Raises:
        InputError: The folder has none, or one of another ``kind`` or schema version; see ``wrong_folder.py``.
    """
    if not folder.exists():
        raise not_there(folder, kind)
    if not (folder / "manifest.json").is_file():
        raise not_ours(folder, kind)
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") != kind:
        raise of_another_kind(folder, manifest.get("kind"), kind)
    if manifest.get("schema") != schema:
        raise InputError(
            f"{folder} has schema {manifest.get('schema')}, this version of lrpx reads {schema}. Make it again."
        )
    return manifest


def read_counts(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """The ``counts.json`` of a finished folder, with at least the counts ``names``.

    Raises:
        InputError: The file is damaged, or lacks one of them.
    """
    counts = read_json(path)
    if missing := [name for name in names if name not in counts]:
        raise InputError(
            f"{path} has no {', '.join(map(repr, missing))}: remove the file, and run what made it again, which "
            "writes it anew."
        )
    return counts


def claim(folder: Path, manifest: dict[str, Any], *, what: str) -> None:
    """Check ``folder`` as ``check_claim`` does, and write its manifest if it has none."""
    check_claim(folder, manifest, what=what)
    if not (folder / "manifest.json").exists():
        write_json(folder / "manifest.json", manifest)


def check_claim(folder: Path, manifest: dict[str, Any], *, what: str) -> None:
    """Refuse a folder that was made from anything but what ``manifest`` describes, or that is not ours.

    Args:
        folder: An empty, new or already claimed folder.
        manifest: JSON types; what the result depends on.
        what: Noun for messages, such as ``benchmark``.

    Raises:
        InputError: The folder holds something else; the error names every difference.
    """
    path = folder / "manifest.json"
    if path.exists():
        there = read_json(path)
        differences = [sentence for _, sentence in _without_consequences(list(_differences(there, manifest)))]
        if differences:
            raise InputError(
                f"{folder} holds a {what} made from something else: {'; '.join(differences)}. "
                "Choose another folder, or remove this one."
            )
    check_place(folder, what=what)


def check_place(folder: Path, *, what: str) -> None:
    """Refuse a folder with foreign content.

    Raises:
        InputError: ``folder`` is a file or below one, or a non-empty folder without a manifest.
    """
    check_above(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder for the {what}.")
    if folder.exists() and not (folder / "manifest.json").exists():
        foreign = [p.name for p in folder.iterdir() if p.name != DOWNLOADS and not p.name.endswith(".tmp")]
        if foreign:
            raise InputError(f"{folder} is not a {what} and not empty (it holds {foreign[0]}): choose another folder.")


def _without_consequences(differences: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The differences that were asked for: what follows from others, such as how samples are divided, is left out.

    It is told if there is nothing else.
    """
    names = {name for name, _ in differences}
    other = {"model.name", "benchmark.source"} & names  # another model or benchmark: its other facts follow
    follow = ["plan.", *(each.partition(".")[0] + "." for each in other)]
    if "methods" in names:
        follow.append("own_methods")
    own = [(name, sentence) for name, sentence in differences if name in other or not name.startswith(tuple(follow))]
    return own or differences


def _differences(there: Any, now: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each leaf in which two nested dictionaries differ: its name, and a sentence.

    A file is known by its checksum, not its name.
    """
    if isinstance(there, dict) and isinstance(now, dict):
        for key in sorted(there.keys() | now.keys()):
            if key == "name" and "sha256" in there and "sha256" in now:
                continue
            yield from _differences(there.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif there != now:
        verb = "are" if isinstance(there, list) or isinstance(now, list) else "is"
        yield name, f"{name.removeprefix('options.')} {verb} {_as_typed(there)} there and {_as_typed(now)} now"


def _as_typed(value: Any) -> str:
    if value is None or value == []:
        return "not given"
    return ", ".join(map(str, value)) if isinstance(value, list) else repr(value)
