"""Explanations that were made elsewhere: a file with one relevance per token of each sample, for ``evaluate(relevances=...)``.

JSON lines or Parquet with ``sample_id`` (the row of the benchmark's source), ``relevance`` (one number per token of the
tokenised set, in its order; positive speaks for the verb form that the model predicts, against the other one) and, if
the file holds several methods, ``method``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..benchmark.folder import TokenizedSample
from ..benchmark.storage import parquet
from ..errors import InputError
from ..files import read_jsonl, sha256

ExternalRelevances = dict[str, dict[int, np.ndarray]]  # method -> sample_id -> [T]


def read_relevances(path: str | Path) -> ExternalRelevances:
    """Read a file of relevances.

    Args:
        path: ``.parquet``, or JSON lines under any other name. Without a column ``method`` the method is called like the file.

    Raises:
        InputError: There is no such file, or an entry is malformed, twice there, or not finite; the error names the row.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"relevances={str(path)!r}: no such file. Give JSON lines or Parquet with sample_id and relevance."
        )
    found: ExternalRelevances = {}
    for where, entry in _entries(path):
        for name in ("sample_id", "relevance"):
            if entry.get(name) is None:
                raise InputError(f"{where}: there is no {name}. Each entry needs sample_id and relevance.")
        sample_id, method = entry["sample_id"], path.stem if entry.get("method") is None else entry["method"]
        if isinstance(sample_id, bool) or not isinstance(sample_id, int):
            raise InputError(f"{where}: sample_id is {sample_id!r}, expected a whole number: the row of the source.")
        if not isinstance(method, str) or not method.strip():
            raise InputError(f"{where}: method is {method!r}, expected a name.")
        try:
            relevance = np.asarray(entry["relevance"], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: relevance is not a list of numbers: {error}.") from error
        if relevance.ndim != 1 or not np.isfinite(relevance).all():
            raise InputError(f"{where}: relevance must be one finite number per token, it is {entry['relevance']!r}.")
        if sample_id in found.setdefault(method, {}):
            raise InputError(f"{where}: sample_id {sample_id} is there twice for the method {method!r}.")
        found[method][sample_id] = relevance
    if not found:
        raise InputError(f"{path} has no entries.")
    return found


def check_relevances(external: ExternalRelevances, samples: Sequence[TokenizedSample], path: str | Path) -> list[int]:
    """The indices of the samples that every method of ``external`` explains.

    Raises:
        InputError: A relevance has another number of tokens than its sample, its sample is not in the set, or none is.
    """
    by_id: Mapping[int, TokenizedSample] = {sample.sample_id: sample for sample in samples}
    for method, relevances in external.items():
        for sample_id, relevance in relevances.items():
            sample = by_id.get(sample_id)
            if sample is None:
                raise InputError(f"{path}: sample_id {sample_id} ({method}) is not a sample of this tokenised set.")
            if len(relevance) != len(sample.tokens):
                raise InputError(
                    f"{path}: sample_id {sample_id} ({method}) has {len(relevance)} numbers for {len(sample.tokens)} tokens: "
                    f"{' '.join(sample.tokens)}. Special tokens count."
                )
    kept = [n for n, sample in enumerate(samples) if all(sample.sample_id in r for r in external.values())]
    if not kept:
        raise InputError(f"{path}: no sample has a relevance of every method ({', '.join(external)}).")
    return kept


def manifest_entry(path: str | Path, external: ExternalRelevances) -> dict[str, Any]:
    """What the manifest of a run says about such a file."""
    return {"file": Path(path).name, "sha256": sha256(Path(path)), "methods": sorted(external)}


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place for messages, fields) of each entry."""
    if path.suffix == ".parquet":
        pa, pq = parquet()
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {error}.") from error
        columns = [name for name in ("sample_id", "relevance", "method") if name in table.column_names]
        for row, entry in enumerate(table.select(columns).to_pylist()):
            yield f"{path.name}, row {row}", entry
        return
    yield from read_jsonl(path)
