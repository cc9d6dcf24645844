"""Saved results: JSON files, and whether they hold what they should."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError

WROTE = "Give what lrpx explain wrote: lrpx explain TEXT -o a.json"  # to those who compare on the command line


def read_saved(path: str | os.PathLike[str], written_by: str) -> Any:
    """The JSON of a file that ``save`` wrote; ``written_by`` is how users call it.

    Raises:
        InputError: There is no such file, or it is not JSON.
    """
    if not Path(path).is_file():
        raise InputError(f"{os.fspath(path)!r} is no file.", python=f"Give one that {written_by} wrote.", command=WROTE)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: {error}.", python=f"Give a file written by {written_by}.", command=WROTE
        ) from error


def read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The JSON object of a file that ``save`` wrote; ``what`` it should be, for the error: ``"a flow"``.

    Raises:
        InputError: It holds no JSON object.
    """
    data = read_saved(path, "save()")
    if not isinstance(data, dict):
        raise InputError(f"{path} holds {type(data).__name__}, not {what} written by save().")
    return data


def fields_of(
    result: type[Any], data: Mapping[str, Any], kind: str, schema: int, what: str, later: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a saved result that says what it is (``kind``).

    Args:
        result: The dataclass.
        data: What was saved.
        kind: Its kind.
        schema: The schema that is read.
        what: What it is, for the error: ``"flow"``.
        later: Fields that did not exist yet in the first version, as they would have been.

    Raises:
        InputError: It is of another kind or schema, or a field is missing or unknown.
    """
    if data.get("kind") != kind:
        raise InputError(f"not a saved {result.__name__}. An Explanation is read by Explanation.load().")
    if data.get("schema") != schema:
        raise InputError(f"schema {data.get('schema')!r}: this version of lrpx reads schema {schema}. Upgrade lrpx.")
    fields = {**later, **{k: v for k, v in data.items() if k not in ("schema", "kind")}}
    expected = {f.name for f in dataclasses.fields(result)}
    if fields.keys() != expected:
        raise InputError(f"not a saved {what}: these fields differ: {sorted(fields.keys() ^ expected)}.")
    return fields
