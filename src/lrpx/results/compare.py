"""Explanations from anywhere, side by side: those of one text become rows of one grid."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import InputError
from ..files import json_object
from ..heatmap.alignment import text_of
from .explanation import Explanation
from .explanations import Explanations, Failure
from .saved import WROTE, read_saved

Given: TypeAlias = "Explanation | Iterable[Explanation] | str | os.PathLike[str]"


def compare(*given: Given) -> Explanations:
    """Put explanations side by side, those of one text one after the other, so that a heatmap draws them as one grid.

    Rows may differ in method, target, model or tokenizer. Where a text was tokenised in several ways, the heatmap joins tokens
    until all ways have the same pieces, and says so.

    Args:
        *given: Explanations, ``Explanations`` or other sequences of them, or paths of files that hold either.

    Returns:
        All of them, text by text, with the failures that they have.

    Raises:
        InputError: Something else is given, or no text is explained twice.

    Examples:
        >>> explainer = lrpx.Explainer("openai-community/gpt2")
        >>> lrpx.compare(*(explainer("The keys to the cabinet", method=name) for name in ("lrp", "attnlrp"))).show()
    """
    by_text: dict[str, list[Explanation]] = {}
    failures: dict[tuple[int, str], Failure] = {}  # of a text once, where two methods or models failed on it
    for e in _each(given):
        if isinstance(e, Failure):
            failures[e.index, str(e.text)] = e
        else:
            by_text.setdefault(text_of(e), []).append(e)
    if not any(len(found) > 1 for found in by_text.values()):
        texts = ", ".join(repr(_text(found[0])) for found in list(by_text.values())[:3])
        why = f"no text is explained twice: {texts}" if texts else "no explanations are given"
        raise InputError(f"nothing to compare: {why}. Give two or more explanations of one text.")
    return Explanations((e for found in by_text.values() for e in found), failures.values())


def load_any(path: str | os.PathLike[str]) -> Explanations:
    """The explanations of a file that ``Explanation.save``, ``Explanations.save`` or ``lrpx explain`` wrote.

    Raises:
        InputError: The file holds none.
    """
    if not Path(path).is_file():
        raise InputError(
            f"{os.fspath(path)!r} is no file.", python="Give one that Explanation.save() wrote.", command=WROTE
        )
    if lines := _json_lines(Path(path)):
        return Explanations.from_dicts(lines, lambda i: f"{os.fspath(path)}, line {i + 1}")
    found = read_saved(path, "Explanation.save()")
    return Explanations.load(path) if isinstance(found, list) else Explanations([Explanation.load(path)])


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of several JSON lines; of any other file none."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [json_object(line) for line in lines] if len(lines) > 1 else []
    except ValueError:  # a UnicodeDecodeError is one, too
        return []


def _each(given: Iterable[Given]) -> Iterator[Explanation | Failure]:
    for one in given:
        if isinstance(one, Explanation):
            yield one
        elif isinstance(one, Explanations):
            yield from (*one, *one.failures)
        elif isinstance(one, str | os.PathLike):
            yield from _each([load_any(one)])
        elif isinstance(one, Iterable):
            yield from _each(one)  # type: ignore[arg-type]
        else:
            raise InputError(
                f"to compare, give explanations, or paths of saved ones. This is of the type {type(one).__name__}."
            )


def _text(e: Explanation) -> str:
    text = e.text or "".join(text for _, _, text in e.units)
    return text if len(text) <= 40 else text[:39] + "…"
