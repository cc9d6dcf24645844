"""A run condensed to its scores: a small folder that can be stored in a repository or handed in, and is checked on load.

    FOLDER/manifest.json     that of the run, its counts, and checksums of the tokenised samples and of the two files
    FOLDER/samples.parquet   one row per sample: what was predicted, and what the sample is, as a checksum
    FOLDER/scores.parquet    one row per sample and method: ranks, counts and shares from which every metric follows

The relevance of each token is left out, which makes it ten times smaller than the run; so are the measures of
faithfulness. ``docs/evaluate.md`` describes every column, and ``packing.py`` writes them. Only pyarrow and numpy are needed
to read; no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..benchmark.folder import load_benchmark
from ..benchmark.storage import read_manifest, read_table
from ..benchmark.wrong_folder import NOUNS, kind_of_folder, not_ours, of_another_kind
from ..errors import InputError, import_optional
from ..files import sha256
from .records import METRICS

CONDENSED_SCHEMA = 1
TOPS = ("subject", "first", "explained", "attractor", "special", "other")
_SHARES = ("first", "explained", "subject", "attractor")
FILES = ("samples.parquet", "scores.parquet")
_KEYS = {
    "benchmark": ("source", "tokenized", "input", "tokenizer", "samples"),
    "model": ("name", "revision", "weights", "dtype", "device", "layers"),
    "options": ("limit", "seed", "at"),
    "plan": ("samples",),
    "versions": ("lrpx", "torch", "transformers"),
    "counts": ("samples", "predicted", "correct", "failures", "card"),
    "checksums": ("tokenised", *FILES),
}


@dataclass(frozen=True, eq=False)
class Condensed:
    """A condensed run.

    Attributes:
        path: The folder.
        manifest: ``benchmark``, ``model``, ``methods``, ``options``, ``plan`` and ``versions`` of the run, its ``counts``, and
            ``checksums``.
        samples: A ``pyarrow.Table``, sorted by ``sample_id``.
        scores: A ``pyarrow.Table``, method by method, sorted by ``sample_id``.
    """

    path: Path
    manifest: dict[str, Any]
    samples: Any
    scores: Any

    def of(self, method: str) -> dict[str, np.ndarray]:
        """The rows of one method: the columns of ``scores``, and the four metrics, by name, each ``[N]``."""
        pc = import_optional("pyarrow.compute", "Reading condensed records")
        table = self.scores.filter(pc.equal(self.scores.column("method"), method))
        names = ("sample_id", "at", "rank", "agreeing", "rma", *_SHARES, "top")
        found = {name: table.column(name).to_numpy(zero_copy_only=False) for name in names}
        ids = self.samples.column("sample_id").to_numpy()
        tokens = self.samples.column("tokens").to_numpy()[np.searchsorted(ids, found["sample_id"])]
        metrics = ((found["rank"] <= 2).astype(float), 1.0 / found["rank"], found["rma"], found["agreeing"] / tokens)
        return {**found, **{name: m.astype(np.float64) for name, m in zip(METRICS, metrics, strict=True)}}


def digest_of(token_ids: Iterable[int], position: int, forms: Iterable[int | None], ground_truth: Iterable[int]) -> str:
    """A checksum of one tokenised sample: what the model reads, where it predicts, which forms, and the right answer."""
    told = [list(token_ids), position, sorted(form or 0 for form in forms), sorted(ground_truth)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]


def checksum_of(sample_ids: Iterable[int], digests: Iterable[str]) -> str:
    """A checksum of tokenised samples, whichever file they are in."""
    lines = sorted(zip(sample_ids, digests, strict=True))
    return hashlib.sha256("\n".join(f"{i} {digest}" for i, digest in lines).encode()).hexdigest()


def sample_types() -> dict[str, Any]:
    """The columns of ``samples.parquet`` with the types of their values."""
    pa = import_optional("pyarrow", "Condensing records")
    whole = dict.fromkeys(("tokens", "subject", "attractors"), pa.int32())
    return {"sample_id": pa.int64(), "digest": pa.string(), **whole, "correct": pa.bool_()}


def score_types() -> dict[str, Any]:
    """The columns of ``scores.parquet``, likewise."""
    pa = import_optional("pyarrow", "Condensing records")
    whole = dict.fromkeys(("rank", "agreeing"), pa.int32())
    shares = dict.fromkeys(("rma", *_SHARES), pa.float32())
    return {"sample_id": pa.int64(), "method": pa.string(), "at": pa.string(), **whole, **shares, "top": pa.string()}


def find_condensed(paths: Sequence[str | Path]) -> list[Condensed]:
    """The condensed runs in or below the given folders, in the order of their paths, each checked.

    Raises:
        InputError: A folder has none, or one does not hold; see ``load_condensed``.
    """
    return [load_condensed(folder) for folder in condensed_folders(paths)]


def condensed_folders(paths: Sequence[str | Path]) -> list[Path]:
    """The folders in or below the given ones that have a manifest, in the order of their paths.

    Raises:
        InputError: A folder has none, or is a run or a benchmark itself.
    """
    found = []
    for path in map(Path, paths):
        inside = sorted(manifest.parent for manifest in path.rglob("manifest.json"))
        if path.is_file():
            raise not_ours(path, "condensed")
        if not inside:
            raise InputError(
                f"{path} has no condensed records.",
                python="Make them from a run: lrpx.evaluation.packing.pack(lrpx.evaluation.records.open_run(RUN), "
                f"{str(path)!r}).",
                command=f"Make them from a run: lrpx records pack RUN --out {path}",
            )
        if inside[0] == path and (kind := kind_of_folder(path)) in NOUNS and kind != "condensed":
            raise of_another_kind(path, kind, "condensed")
        found += inside
    return found


def load_condensed(folder: str | Path) -> Condensed:
    """The condensed run in ``folder``, if it holds.

    Raises:
        InputError: Something is missing, of another schema, changed since it was written, twice there, out of its range,
            or does not fit the rest; one error that says which.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, "condensed", CONDENSED_SCHEMA)
    _check_manifest(folder, manifest)
    for name in FILES:
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}: it is not complete. Pack the run again.")
        if (found := sha256(folder / name)) != manifest["checksums"][name]:
            raise InputError(
                f"{folder / name} has sha256 {found[:12]}..., its manifest says {manifest['checksums'][name][:12]}...: the "
                "file was changed or damaged. Pack the run again."
            )
    tables = [read_table(folder / f"{name}.parquet", f"condensed {name}") for name in ("samples", "scores")]
    for table, types, name in zip(tables, (sample_types(), score_types()), FILES, strict=True):
        if {field.name: field.type for field in table.schema} != types:
            raise InputError(f"{folder / name} has the columns {table.column_names}, expected {list(types)}.")
        for column in table.column_names:
            if table.column(column).null_count and column not in ("attractors", "at"):
                raise InputError(f"{folder / name}: {column} is missing in a row.")
    condensed = Condensed(folder, manifest, *tables)
    _check_samples(condensed)
    _check_scores(condensed)
    return condensed


def _check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    for part, keys in _KEYS.items():
        there = manifest.get(part)
        if missing := [part] if not isinstance(there, dict) else [f"{part}.{k}" for k in keys if k not in there]:
            raise InputError(f"{folder / 'manifest.json'} has no {missing[0]}.")
    texts = {"model": ("name", "weights", "dtype"), "options": ("at",), "checksums": _KEYS["checksums"]}
    for part, key in ((part, key) for part, keys in texts.items() for key in keys):
        if not isinstance(manifest[part][key], str):
            raise InputError(f"{folder / 'manifest.json'}: {part}.{key} is {manifest[part][key]!r}, expected a text.")
    failures = manifest["counts"]["failures"]
    if not isinstance(failures, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("method"), str) and isinstance(entry.get("samples"), int)
        for entry in failures
    ):
        raise InputError(f"{folder / 'manifest.json'}: counts.failures is no list of method, reason and samples.")
    methods = manifest.get("methods")
    known = isinstance(methods, list) and all(isinstance(name, str) for name in methods)
    if not known or not methods or len(set(methods)) < len(methods):
        raise InputError(f"{folder / 'manifest.json'}: methods is {methods!r}, expected a list of different names.")


def _check_samples(condensed: Condensed) -> None:
    table, manifest, where = condensed.samples, condensed.manifest, condensed.path / "samples.parquet"
    counts = manifest["counts"]
    if len(table) != counts["predicted"] or counts["samples"] != manifest["plan"]["samples"]:
        raise InputError(
            f"{where} has {len(table)} samples; the manifest says that {counts['predicted']} of {counts['samples']} were "
            f"predicted, of {manifest['plan']['samples']} that were to be."
        )
    _check(
        where, table, "sample_id", lambda ids: np.diff(ids, prepend=ids[:1] - 1) > 0, "is there twice, or out of order"
    )
    _check(where, table, "subject", lambda n: (n >= 1) & (n <= table.column("tokens").to_numpy()), "is not 1 to tokens")
    correct = int(table.column("correct").to_numpy(zero_copy_only=False).sum())
    if correct != counts["correct"]:
        raise InputError(f"{where} has {correct} correct predictions, the manifest says {counts['correct']}.")
    found = checksum_of(table.column("sample_id").to_pylist(), table.column("digest").to_pylist())
    if found != manifest["checksums"]["tokenised"]:
        raise InputError(
            f"{where}: its samples have the checksum {found[:12]}..., the manifest says "
            f"{manifest['checksums']['tokenised'][:12]}...: they are of another tokenised set."
        )


def _check_scores(condensed: Condensed) -> None:
    table, manifest, where = condensed.scores, condensed.manifest, condensed.path / "scores.parquet"
    ids = condensed.samples.column("sample_id").to_numpy()
    known = set(table.column("method").to_pylist())
    if not known <= set(manifest["methods"]):  # one that failed on all samples has none
        raise InputError(f"{where} has the methods {sorted(known)}, the manifest says {sorted(manifest['methods'])}.")
    _check(where, table, "sample_id", lambda own: np.isin(own, ids), "is not among the samples")
    failed = dict.fromkeys(manifest["methods"], 0)
    for entry in manifest["counts"]["failures"]:
        failed[entry["method"]] = failed.get(entry["method"], 0) + entry["samples"]
    methods = table.column("method").to_numpy(zero_copy_only=False)
    own = table.column("sample_id").to_numpy()
    for name in manifest["methods"]:
        each = own[methods == name]
        if (np.diff(each) <= 0).any():
            raise InputError(f"{where}: a sample of {name} is there twice, or out of order.")
        if (
            not manifest["counts"]["predicted"] - failed[name]
            <= len(each)
            <= manifest["counts"]["samples"] - failed[name]
        ):
            raise InputError(
                f"{where}: {name} has {len(each)} samples; {manifest['counts']['predicted']} were predicted, and it failed "
                f"on {failed[name]}."
            )
    tokens = condensed.samples.column("tokens").to_numpy()[np.searchsorted(ids, own)]
    _check(where, table, "rank", lambda rank: (rank >= 1) & (rank <= tokens), "is not 1 to the number of tokens")
    _check(where, table, "agreeing", lambda n: (n >= 0) & (n <= tokens), "is not 0 to the number of tokens")
    for name in ("rma", *_SHARES):
        _check(where, table, name, lambda share: (share >= 0) & (share <= 1), "is no share, 0 to 1")
    first = table.column("rank").to_numpy() == 1
    _check(where, table, "top", lambda top: np.isin(top, TOPS) & (~first | (top == "subject")), "does not fit the rank")


def _check(where: Path, table: Any, name: str, holds: Any, what: str) -> None:
    """Raise for the first row whose value does not hold."""
    values = table.column(name).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~np.asarray(holds(values), dtype=bool))
    if len(wrong):
        row = int(wrong[0])
        method = f" ({table.column('method')[row].as_py()})" if "method" in table.column_names else ""
        sample = table.column("sample_id")[row].as_py()
        raise InputError(f"{where}, sample {sample}{method}: {name} is {values[row]}, which {what}.")


def check_against(condensed: Condensed, directory: str | Path) -> int:
    """Compare the samples with a benchmark folder; returns how many samples of the fitting tokenised set there are.

    Raises:
        InputError: The folder has no tokenised set for this tokenizer, or a sample is another one there.
    """
    benchmark = condensed.manifest["benchmark"]
    sets = load_benchmark(directory).tokenized.values()
    fitting = [
        s for s in sets if s.manifest["tokenizer"]["sha256"] == benchmark["tokenizer"] and s.input == benchmark["input"]
    ]
    if not fitting:
        raise InputError(
            f"{directory} has no tokenised set for the tokenizer of {condensed.path}.",
            python=f"Make it: lrpx.benchmark.tokenize({str(directory)!r}, {benchmark['tokenized']!r}).",
            command=f"Make it: lrpx benchmark tokenize {directory} --tokenizer {benchmark['tokenized']}",
        )
    theirs = {
        s.sample_id: digest_of(s.input_ids, s.position, (s.verb_id, s.other_id), s.ground_truth)
        for s in fitting[0].samples
    }
    columns = (condensed.samples.column(name).to_pylist() for name in ("sample_id", "digest"))
    for sample_id, digest in zip(*columns, strict=True):
        if theirs.get(sample_id) != digest:
            told = "another one" if sample_id in theirs else "not there"
            raise InputError(f"{condensed.path}: sample {sample_id} is {told} in {fitting[0].path}.")
    return len(theirs)
