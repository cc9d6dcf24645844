"""What to say of a folder of another kind than was asked for: what it is, what was expected, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError, listed
from ..files import read_json

NOUNS = {"run": "a run", "benchmark": "a benchmark", "tokenized": "a tokenised set", "condensed": "condensed records"}
_MAKERS = {  # what makes a folder in Python, and on the command line
    "run": ("lrpx.evaluation.run.evaluate(...) makes one.", "lrpx evaluate makes one."),
    "benchmark": ("lrpx.benchmark.build(...) makes one.", "lrpx benchmark build, blimp or haystack makes one."),
    "tokenized": ("lrpx.benchmark.tokenize(...) makes one.", "lrpx benchmark tokenize makes one."),
    "condensed": (
        "lrpx.evaluation.packing.pack(lrpx.evaluation.records.open_run(RUN), DIR) makes them.",
        "lrpx records pack makes them.",
    ),
}
_NEXT = {  # what it is, what was expected -> what to type on the command line
    ("benchmark", "run"): "Type: lrpx evaluate {} --out RUN, and give RUN.",
    ("benchmark", "condensed"): "Type: lrpx evaluate {} --out RUN, then lrpx records pack RUN --out DIR, and give DIR.",
    ("run", "condensed"): "Type: lrpx records pack {} --out DIR, and give DIR.",
    ("condensed", "run"): "Its scores are for: lrpx results {} --output results.md",
}
_MODELS = ("config.json", "*.safetensors", "*.gguf", "pytorch_model*.bin")
_LISTED = 5


def of_another_kind(folder: Path, there: Any, kind: str) -> InputError:
    """The error for a folder whose manifest says that it is ``there``, where ``kind`` was expected."""
    what = NOUNS.get(there, f"a folder of the kind {there!r}")
    return _error(f"{folder} is {what}. Expected: {NOUNS[kind]}.", folder, kind, _NEXT.get((there, kind), ""))


def not_ours(folder: Path, kind: str) -> InputError:
    """The error for a file, or a folder without a manifest."""
    command = ""
    if folder.is_file():
        why = "it is a file"
    elif not any(folder.iterdir()):
        why = "it is empty"
    elif any(True for pattern in _MODELS for _ in folder.glob(pattern)):
        why = "it holds a model"
        if kind == "run":
            command = "Type: lrpx evaluate BENCHMARK --model {} --out RUN, and give RUN."
    else:
        why = "it has no manifest.json"
    return _error(f"{folder} is not {NOUNS[kind]}: {why}.", folder, kind, command)


def not_there(folder: Path, kind: str) -> InputError:
    """The error for a folder that does not exist."""
    return _error(f"there is no folder {str(folder)!r}. Current folder: {Path.cwd()}.", folder, kind)


def _error(problem: str, folder: Path, kind: str, command: str = "") -> InputError:
    """The problem, and which folder was meant or else what makes one; ``command`` says it better on the command line."""
    if around := _around(folder, kind):
        return InputError(f"{problem} {around}")
    python, by_command = _MAKERS[kind]
    return InputError(problem, python=python, command=command.format(folder) or by_command)


def _around(folder: Path, kind: str) -> str:
    """Which folder was meant: one that this one is in, or those in it."""
    for parent in list(folder.parents)[:3]:
        if kind_of_folder(parent) == kind:
            return f"It is in {parent}: give that folder."
    inside = list(_inside(folder, kind))
    return f"In it are: {listed(inside, _LISTED)}. Give one of them." if inside else ""


def _inside(folder: Path, kind: str) -> Iterator[str]:
    """The folders of this kind in a folder, or in those in it."""
    for pattern in ("*/manifest.json", "*/*/manifest.json"):
        yield from (str(found.parent) for found in sorted(folder.glob(pattern)) if kind_of_folder(found.parent) == kind)


def kind_of_folder(folder: Path) -> Any:
    """What the manifest says that it is; ``None`` without one that can be read."""
    try:
        return read_json(folder / "manifest.json").get("kind")
    except (InputError, OSError):
        return None
