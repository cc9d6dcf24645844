"""Read a benchmark folder: the sentences, and one tokenised set per tokenizer.

Layout (``docs/benchmark.md`` describes every column)::

    DIR/manifest.json      what the benchmark was made from
    DIR/samples.parquet    one row per sentence: words, verb, subject, attractors
    DIR/dropped.parquet    every other row of the source, with its reason
    DIR/counts.json        what each filter dropped; its presence marks the build as finished
    DIR/README.md          the dataset card
    DIR/tokenized/NAME/    the same four files for one tokenizer

Only pyarrow is needed to read; neither spaCy nor a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, nearest
from .storage import read_counts, read_manifest, read_table

ROLES = ("subject", "attractor", "other", "special")
COUNTED = ("rows", "kept", "steps")  # in the counts of every finished folder


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark folder.

    Attributes:
        path: The folder.
        manifest: What it was made from: source, ground truth, options.
        counts: ``rows`` of the source, ``kept``, ``steps`` (what each filter dropped and left) and ``published`` (what
            the source is, if its authors published it).
    """

    path: Path
    manifest: dict[str, Any]
    counts: dict[str, Any]

    def __len__(self) -> int:
        return int(self.counts["kept"])

    @cached_property
    def samples(self) -> Any:
        """The kept rows, a ``pyarrow.Table``."""
        return read_table(self.path / "samples.parquet", "samples")

    @cached_property
    def dropped(self) -> Any:
        """Every other row of the source with its reason, a ``pyarrow.Table``."""
        return read_table(self.path / "dropped.parquet", "dropped")

    @cached_property
    def tokenized(self) -> dict[str, TokenizedSet]:
        """The finished tokenised sets by name."""
        finished = sorted(self.path.glob("tokenized/*/counts.json"))
        return {path.parent.name: _load_set(path.parent) for path in finished}


@dataclass(frozen=True)
class TokenizedSample:
    """One prediction with its ground truth. Positions count the T tokens that the model sees, from 0."""

    sample_id: int  # the row of the source
    text: str  # what was tokenised: the text before the verb, or the sentence with the mask token
    input_ids: list[int]  # [T], special tokens included
    tokens: list[str]  # [T] raw pieces, as the tokenizer stores them
    position: int  # whose logits tell the verb: the last token, or the mask
    verb: str
    other: str
    verb_id: int  # the verb's token id in this context
    other_id: int  # the same for the other number
    ground_truth: list[int]  # positions of the subject's tokens
    roles: list[str]  # [T] of ROLES
    verb_tag: str | None
    n_attractors: int | None  # as the source says, if it does


@dataclass(frozen=True, eq=False)
class TokenizedSet:
    """The benchmark for one tokenizer.

    Attributes:
        path: The folder.
        manifest: Which benchmark, which tokenizer, causal or masked input.
        counts: ``rows`` of the benchmark, ``kept`` and ``steps``.
    """

    path: Path
    manifest: dict[str, Any]
    counts: dict[str, Any]

    def __len__(self) -> int:
        return int(self.counts["kept"])

    @property
    def name(self) -> str:
        """Name of the set: the tokenizer's, usable as a folder name."""
        return str(self.manifest["tokenizer"]["name"])

    @property
    def input(self) -> str:
        """``causal`` (the text before the verb) or ``masked`` (the sentence with a mask)."""
        return str(self.manifest["input"])

    @cached_property
    def table(self) -> Any:
        """The kept samples, a ``pyarrow.Table`` with the fields of ``TokenizedSample`` as columns."""
        return read_table(self.path / "samples.parquet", "tokenized")

    @cached_property
    def dropped(self) -> Any:
        """The benchmark's other samples with their reasons, a ``pyarrow.Table``."""
        return read_table(self.path / "dropped.parquet", "dropped")

    @cached_property
    def samples(self) -> list[TokenizedSample]:
        """The kept samples, in the order of the source."""
        return samples_in(self.table)

    @cached_property
    def lengths(self) -> np.ndarray:
        """``[N]`` numbers of tokens."""
        return np.diff(self.table.column("input_ids").combine_chunks().offsets.to_numpy())

    @cached_property
    def ground_truths(self) -> list[list[int]]:
        """N lists of token positions, as ``evaluation.metrics.score`` takes them."""
        return list(self.table.column("ground_truth").to_pylist())


def samples_in(table: Any) -> list[TokenizedSample]:
    """The rows of a tokenised set's ``pyarrow.Table``, in their order."""
    columns = [_values(table.column(field.name).combine_chunks()) for field in fields(TokenizedSample)]
    return [TokenizedSample(*values) for values in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    """``to_pylist``, several times faster for a column of lists."""
    if not hasattr(column, "offsets"):
        return list(column.to_pylist())
    flat = column.flatten().to_numpy(zero_copy_only=False).tolist()
    ends = np.cumsum(column.value_lengths().to_numpy()).tolist()
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def set_name(tokenizer: str) -> str:
    """The name of a tokenizer's set: the last part of a path, ``owner--name`` for a name on the Hub."""
    name = Path(tokenizer).name if Path(tokenizer).is_dir() else tokenizer.replace("/", "--")
    return re.sub(r"[^\w.\-]", "_", name).lstrip(".") or "tokenizer"


def load_benchmark(directory: str | Path) -> Benchmark:
    """A benchmark that ``build`` finished.

    Raises:
        InputError: The folder is not a benchmark, is not finished or has another schema version.
    """
    path = Path(directory)
    manifest, counts = _finished(path, "benchmark", (*COUNTED, "published"))
    return Benchmark(path, manifest, counts)


def load_tokenized(directory: str | Path, name: str) -> TokenizedSet:
    """The tokenised set ``name`` of the benchmark in ``directory``.

    Args:
        directory: The benchmark folder.
        name: Name of the set, or the name or path the tokenizer was loaded from.

    Raises:
        InputError: There is no such benchmark or no such set; the error lists the sets there are.
    """
    benchmark = load_benchmark(directory)
    for candidate in (name, set_name(name)):
        if (path := benchmark.path / "tokenized" / candidate / "counts.json").is_file():
            return _load_set(path.parent)
    known = list(benchmark.tokenized)
    hint = nearest(name, known) if known else "There is none yet."
    raise InputError(
        f"{directory} has no tokenised set {name!r}. {hint}",
        python=f"Make it with: lrpx.benchmark.tokenize({str(directory)!r}, {name!r})",
        command=f"Make it with: lrpx benchmark tokenize {directory} --tokenizer {name}",
    )


def _load_set(path: Path) -> TokenizedSet:
    manifest, counts = _finished(path, "tokenized", COUNTED)
    return TokenizedSet(path, manifest, counts)


def _finished(path: Path, kind: str, counted: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the counts of a finished folder."""
    manifest = read_manifest(path, kind)
    if not (path / "counts.json").is_file():
        raise InputError(f"{path} is not finished: run what made it again to go on.")
    return manifest, read_counts(path / "counts.json", counted)
