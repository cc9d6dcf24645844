"""Methods of one's own in a run's manifest: an edited method makes other numbers, so it is another run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, warn
from ..files import read_json, write_json
from ..methods import Method

NO_SOURCE = "not available"


def manifest_entries(methods: Sequence[Method]) -> dict[str, Any]:
    """What the manifest says of the methods that are not lrpx's own; nothing without any.

    Per name its options, checksums of its source, and what it measures, for reports of processes that do not know it.
    """
    entries = {method.name: _entry(method) for method in methods if callable(method.function)}
    return {"own_methods": entries} if entries else {}


def _entry(method: Method) -> dict[str, Any]:
    options = {name: _plain(value) for name, value in method.options.items()}
    entry: dict[str, Any] = {"options": options, "measures": method.measures}
    if method.code is None or method.code.function is None:
        warn(
            f"{method.name}: the source of this method cannot be read, so lrpx does not notice when it has changed. Evaluate "
            "into a new folder after each change."
        )
        return {**entry, "function": NO_SOURCE}
    return {**entry, "function": method.code.function, "file": method.code.file}


def _plain(value: Any) -> Any:
    """A default as JSON keeps it; others as text, without addresses in memory, which differ in each process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def check_own_methods(out: Path, methods: Sequence[Method], now: dict[str, Any]) -> None:
    """Refuse a folder whose records are of a method of one's own that was another one then.

    Where there are no records yet, because the method failed from the first sample on, the manifest is made to say what the
    methods are now; and so where an older lrpx did not write what they measure.

    Args:
        out: The folder of the run.
        methods: All that are asked for.
        now: Their ``manifest_entries``.

    Raises:
        InputError: One has changed; the error says what has.
    """
    if not (out / "manifest.json").exists():
        return
    there = read_json(out / "manifest.json")
    before, now = there.get("own_methods", {}), now.get("own_methods", {})
    changes = [
        f"{method.name}: {change}"
        for method in methods
        if method.name in now and method.name in there.get("methods", ())
        for change in _changes(method, before.get(method.name), now[method.name])
    ]
    if changes and not any((out / "records").glob("part-*")):
        write_json(out / "manifest.json", {**there, "own_methods": now})
    elif changes:
        new = f"{out.name}-2"
        raise InputError(
            f"{out} holds records of a method that has changed since then. {'; '.join(changes)}.",
            python=f"Evaluate into a new folder, such as out={str(out.with_name(new))!r}.",
            command=f"Evaluate into a new folder, such as --out {out.with_name(new)}.",
        )
    elif older := {name: now[name] for name in before if name in now and "measures" not in before[name]}:
        write_json(out / "manifest.json", {**there, "own_methods": {**before, **older}})


def _changes(method: Method, before: dict[str, Any] | None, now: dict[str, Any]) -> Iterator[str]:
    if before is None:
        yield "the run does not say what its source was"
        return
    options = before["options"], now["options"]
    for name in sorted(options[0].keys() | options[1].keys()):
        old, new = (repr(each[name]) if name in each else "not there" for each in options)
        if old != new:
            yield f"the default of its option {name} was {old} and is {new}"
    if before.get("measures", now["measures"]) != now["measures"]:
        yield f"what it measures was {before['measures']!r} and is {now['measures']!r}"
    if before["function"] != now["function"]:
        known = NO_SOURCE not in (before["function"], now["function"])
        yield "its function was edited" if known else "its source could be read only one of the two times"
    elif before.get("file") != now.get("file"):
        where = method.code.path if method.code and method.code.path else "the file that it is in"
        yield f"another part of {where} was edited"
