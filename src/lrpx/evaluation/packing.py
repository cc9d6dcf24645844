"""A finished run -> a condensed one: the folder that ``condensed.py`` describes and reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..benchmark.storage import check_place, read_manifest, read_table, write_table
from ..errors import InputError
from ..files import sha256, write_json
from .condensed import (
    CONDENSED_SCHEMA,
    FILES,
    TOPS,
    Condensed,
    checksum_of,
    digest_of,
    load_condensed,
    sample_types,
    score_types,
)
from .records import Run


def pack(run: Run, folder: str | Path) -> Condensed:
    """Condense a finished run into ``folder``.

    Args:
        run: From ``records.open_run``.
        folder: A new or empty folder, or one that this function made, which is written anew.

    Raises:
        InputError: The run is not finished, or the folder holds something else.
    """
    folder = Path(folder)
    if not run.finished or run.counts is None:
        raise InputError(
            f"{run.path} is not finished.",
            python="Call evaluate(...) with the same arguments again, which goes on, and then pack it.",
            command="Type the same lrpx evaluate again, which goes on, and then pack it.",
        )
    if not run.counts["predicted"]:
        raise InputError(
            f"{run.path} has nothing to pack: no sample was predicted.",
            python=f"lrpx.report.write([{str(run.path)!r}]) says why.",
            command=f"lrpx report {run.path} says why.",
        )
    if not _was_begun(folder):
        check_place(folder, what="folder of condensed records")
    if (folder / "manifest.json").exists():
        read_manifest(folder, "condensed", CONDENSED_SCHEMA)
    table = run.table()
    rows = [row for row in table.drop(["tokens"]).to_pylist() if row["correct"] is not None]
    order = {name: n for n, name in enumerate(run.manifest["methods"])}
    rows.sort(key=lambda row: (order[row["method"]], row["sample_id"]))
    samples = {row["sample_id"]: _sample(row) for row in rows}
    scores = [_score(row) for row in rows if row["error"] is None]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "samples.parquet", "condensed samples", [samples[i] for i in sorted(samples)], sample_types())
    _write(folder / "scores.parquet", "condensed scores", scores, score_types())
    kept = {name: run.manifest[name] for name in ("benchmark", "model", "methods", "options", "plan", "versions")}
    kept |= {name: run.manifest[name] for name in ("own_methods",) if name in run.manifest}
    checksums = {name: sha256(folder / name) for name in FILES}
    checksums["tokenised"] = checksum_of(samples, (sample["digest"] for sample in samples.values()))
    manifest = {"kind": "condensed", "schema": CONDENSED_SCHEMA, **kept, "counts": run.counts, "checksums": checksums}
    write_json(folder / "manifest.json", manifest)
    return load_condensed(folder)


def _was_begun(folder: Path) -> bool:
    """Whether all that a folder holds is what packing had written when it was stopped."""
    names = {path.name for path in folder.iterdir() if path.suffix != ".tmp"} if folder.is_dir() else set()
    if not names or not names <= set(FILES):
        return False
    for name in names:
        read_table(folder / name, f"condensed {name.removesuffix('.parquet')}")
    return True


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    forms = (row["predicted_id"], row["other_id"])
    return {
        "sample_id": row["sample_id"],
        "digest": digest_of(row["token_ids"], row["position"], forms, row["ground_truth"]),
        "tokens": len(row["token_ids"]),
        "subject": len(row["ground_truth"]),
        "attractors": row["attractors"],
        "correct": row["correct"],
    }


def _score(row: dict[str, Any]) -> dict[str, Any]:
    relevance = np.asarray(row["relevance"])
    absolute = np.abs(relevance)
    total = absolute.sum()
    places = {
        "first": [0],
        "explained": [row["position"]],
        "subject": row["ground_truth"],
        "attractor": [n for n, role in enumerate(row["roles"]) if role == "attractor"],
    }
    top = int(relevance.argmax())
    role = row["roles"][top]
    kinds = [name for name in TOPS if top in places.get(name, ()) or name == role]
    return {
        "sample_id": row["sample_id"],
        "method": row["method"],
        "at": row["at"],
        "rank": round(1 / row["mrr"]),
        "agreeing": round(row["pta"] * len(relevance)),
        "rma": round(row["rma"], 4),
        **{name: round(float(absolute[at].sum() / total), 2) if total else 0.0 for name, at in places.items()},
        "top": kinds[0],
    }


def _write(path: Path, kind: str, rows: Sequence[dict[str, Any]], types: dict[str, Any]) -> None:
    write_table(path, kind, {name: [row[name] for row in rows] for name in types}, types)
