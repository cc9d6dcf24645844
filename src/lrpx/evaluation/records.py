"""The records of an evaluation: one row per sample and method, in a folder from which every table can be recomputed.

    RUN/manifest.json             which benchmark, model, methods, options and versions; another run is refused
    RUN/records/part-00000.parquet ...   the rows, in parts that are written atomically
    RUN/counts.json               written last: its presence means *finished*

The manifest alone determines what each part holds. So a run that was killed keeps its finished parts, computes the
others, and ends with the same bytes as an uninterrupted run. A row whose ``error`` is set is a sample that failed: it
has no relevance. ``docs/evaluate.md`` describes every column. Only pyarrow is needed to read; no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..benchmark.storage import read_counts, read_manifest, read_table, table_bytes, write_table
from ..benchmark.wrong_folder import kind_of_folder
from ..errors import InputError, counted, import_optional, nearest
from ..files import atomic_write, write_json
from .curves import NAMES

METRICS = ("pg2", "mrr", "rma", "pta")
MEASURES = NAMES  # of faithfulness
SCHEMA = 3  # of a run; 2: records say where relevance is taken; 3: and how many attractors the source counts, and faithfulness
COUNTED = ("samples", "predicted", "correct", "accuracy", "failed", "failures")  # in the counts of a finished run
_KIND = "records"


class Record(NamedTuple):
    """One sample explained by one method. Positions count the T tokens that the model sees, from 0.

    ``relevance`` and ``value`` are those of the *predicted* form against the other one. ``value`` is
    ``logit[predicted] - logit[other]``, which is not negative. Where ``error`` is set there is no relevance and no
    score; where the prediction failed too, there is neither ``predicted`` nor ``value``.
    """

    sample_id: int  # the row of the benchmark's source
    method: str
    at: str | None  # "input" (of the first block), "embedding" or a module; null for methods without this choice
    predicted: str | None  # the verb form with the larger logit
    other: str | None
    predicted_id: int | None  # their token ids
    other_id: int | None
    correct: bool | None  # whether the predicted form is the sentence's own; equal logits count as not correct
    value: float | None
    residual: float | None  # value - all that was assigned; null for methods that do not decompose the value
    position: int  # whose logits are explained
    tokens: list[str]  # [T] raw pieces
    token_ids: list[int]  # [T]
    roles: list[str]  # [T] subject, attractor, other or special
    ground_truth: list[int]  # positions of the subject's tokens
    attractors: int | None  # nouns of the other number between subject and verb, as the source says, if it does
    relevance: np.ndarray | None  # float64 [T]
    pg2: float | None
    mrr: float | None
    rma: float | None
    pta: float | None
    error: str | None  # why there is no relevance
    # Faithfulness, in logits; null where it was not asked for. See ``curves.py``.
    area_most: float | None = None
    area_least: float | None = None
    difference: float | None = None
    comprehensiveness: float | None = None
    sufficiency: float | None = None


def _types() -> dict[str, Any]:
    pa = import_optional("pyarrow", "Writing the records of an evaluation")
    number, text, integer = pa.float64(), pa.string(), pa.int32()
    types = {
        "sample_id": pa.int64(),
        **dict.fromkeys(("method", "at", "predicted", "other"), text),
        **dict.fromkeys(("predicted_id", "other_id"), integer),
        "correct": pa.bool_(),
        **dict.fromkeys(("value", "residual"), number),
        "position": integer,
        "tokens": pa.list_(text),
        "token_ids": pa.list_(integer),
        "roles": pa.list_(text),
        "ground_truth": pa.list_(integer),
        "attractors": integer,
        "relevance": pa.list_(number),
        **dict.fromkeys(METRICS, number),
        "error": text,
        **dict.fromkeys(MEASURES, number),
    }
    assert tuple(types) == Record._fields
    return types


@dataclass(frozen=True, eq=False)
class Run:
    """A folder of records.

    Attributes:
        path: The folder.
        manifest: ``benchmark``, ``model``, ``methods``, ``options``, ``plan`` (``samples``, ``parts``, and a checksum of the
            selected samples) and ``versions``.
        counts: ``samples``, ``predicted``, ``correct``, ``accuracy``, ``failed`` (samples that some method could not
            explain), ``failures`` (``method``, ``reason``, ``samples``) and ``card`` (name of the GPU, or kind of processor);
            ``None`` while the run is not finished.
    """

    path: Path
    manifest: dict[str, Any]
    counts: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.manifest["model"]["name"])

    @property
    def finished(self) -> bool:
        """Whether every part is there."""
        return self.counts is not None and len(self.parts) == self.manifest["plan"]["parts"]

    @property
    def failed(self) -> int:
        """How many samples failed with at least one method; a command ends with a non-zero status if there are any."""
        return 0 if self.counts is None else int(self.counts["failed"])

    def part(self, number: int) -> Path:
        """The file of a part, whether it is there or not."""
        return self.path / "records" / f"part-{number:05d}.parquet"

    @property
    def parts(self) -> list[Path]:
        """The files of the finished parts, in order."""
        return [path for n in range(self.manifest["plan"]["parts"]) if (path := self.part(n)).is_file()]

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """The records of the finished parts, or some of their columns, as a ``pyarrow.Table``.

        Raises:
            InputError: A part is damaged, or is gone from a run that was finished, or there is none yet; or an unknown column.
        """
        pa = import_optional("pyarrow", "Reading the records of an evaluation")
        parts = self.parts
        if not parts:
            raise InputError(f"{self.path} has no records yet: run the same evaluation again to go on.")
        if self.counts is not None and not self.finished:
            raise InputError(f"{self.path} has lost records: run the same evaluation again, which computes them anew.")
        tables = [read_table(path, _KIND) for path in parts]
        for name in columns or ():
            if name not in tables[0].column_names:
                raise InputError(
                    f"columns: {name!r} is no column of the records. {nearest(name, tables[0].column_names)}"
                )
        return pa.concat_tables([t if columns is None else t.select(list(columns)) for t in tables])


def open_run(path: str | Path) -> Run:
    """The run in a folder.

    Raises:
        InputError: The folder is not one that ``lrpx evaluate`` made, or of another schema version, or its counts are not
            those of a run.
    """
    path = Path(path)
    manifest = read_manifest(path, "run", SCHEMA)
    counts = path / "counts.json"
    return Run(path, manifest, read_counts(counts, COUNTED) if counts.is_file() else None)


def find_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The runs in the given folders: each is a run, or all that is below it, such as one run per model.

    Raises:
        InputError: A folder is not a run, and none is below it.
    """
    found = []
    for path in map(Path, paths):
        below = [] if (path / "manifest.json").exists() else sorted(p.parent for p in path.rglob("manifest.json"))
        found += [open_run(p) for p in [p for p in below if kind_of_folder(p) == "run"] or [path]]
    if not found:
        raise InputError(
            "no run given.",
            python="Give the folders that evaluate wrote.",
            command="Type: lrpx report RUN, where RUN is the --out folder of lrpx evaluate.",
        )
    return found


def write_part(run: Run, number: int, records: Sequence[Record]) -> None:
    """Write one part atomically.

    Raises:
        LrpxError: It could not be written, for instance because the disk is full; finished parts stay readable.
    """
    write_table(run.part(number), _KIND, _columns(records), _types())


def part_bytes(records: Sequence[Record]) -> bytes:
    """The content of one part, for another process that writes it with ``write_part_bytes``."""
    return table_bytes(_KIND, _columns(records), _types())


def write_part_bytes(run: Run, number: int, content: bytes) -> None:
    """Write one part that ``part_bytes`` made, atomically.

    Raises:
        LrpxError: As ``write_part``.
    """
    with atomic_write(run.part(number)) as temporary:
        temporary.write_bytes(content)


def _columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in zip(Record._fields, zip(*records, strict=True), strict=True)}


def part_is_done(run: Run, number: int, sample_ids: Sequence[int]) -> bool:
    """Whether a part is there.

    Args:
        run: The run.
        number: Of the part.
        sample_ids: Those of its records, in order.

    Raises:
        InputError: It is damaged, or has other samples.
    """
    path = run.part(number)
    if not path.exists():
        return False
    if read_table(path, _KIND).column("sample_id").to_pylist() != list(sample_ids):
        raise InputError(f"{path} holds other samples than this run asks for. Remove the file and run again.")
    return True


def finish(run: Run, card: str | None = None) -> Run:
    """Count the records and write ``counts.json``; the result is the finished run.

    Args:
        run: With all its parts.
        card: Name of the GPU or of the kind of processor that computed the last of them, if known.

    Raises:
        LrpxError: It could not be written.
    """
    table = run.table(["sample_id", "method", "correct", "error"]).to_pydict()
    samples = sorted(set(table["sample_id"]))
    correct = {i: c for i, c in zip(table["sample_id"], table["correct"], strict=True) if c is not None}
    reasons = [(m, e) for m, e in zip(table["method"], table["error"], strict=True) if e is not None]
    failed = {i for i, e in zip(table["sample_id"], table["error"], strict=True) if e is not None}
    counts = {
        "samples": len(samples),
        "predicted": len(correct),
        "correct": sum(correct.values()),
        "accuracy": sum(correct.values()) / len(correct) if correct else None,
        "failed": len(failed),
        "failures": [{"method": m, "reason": e, "samples": n} for (m, e), n in sorted(Counter(reasons).items())],
        "card": card,
    }
    write_json(run.path / "counts.json", counts)
    for left_over in (run.path / "records").glob(".*.tmp"):  # of a killed process
        left_over.unlink(missing_ok=True)
    return Run(run.path, run.manifest, counts)


def failures_of(run: Run) -> str:
    """How many samples of a finished run failed, and the most frequent reason."""
    failures = (run.counts or {})["failures"]
    most = max(failures, key=lambda failure: failure["samples"])
    others = f"; other reasons: {run.path / 'counts.json'}" if len(failures) > 1 else ""
    reason = f"{most['method']}: {most['reason']} ({counted(most['samples'], 'sample')})"
    return f"{counted(run.failed, 'sample')} failed: {reason}{others}"
