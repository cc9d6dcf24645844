"""Build a benchmark folder from BLiMP's agreement paradigms: no parser, as ``blimp.py`` explains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, import_optional
from .blimp import PAIR_REASONS, counts_by_paradigm, read_pairs
from .builder import write_benchmark
from .folder import Benchmark, load_benchmark
from .ground_truth import Truth
from .storage import SCHEMA, check_claim, check_place, claim, count, losses


def build_blimp(
    source: str | Path,
    out: str | Path,
    *,
    paradigms: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> Benchmark:
    """Build a benchmark of BLiMP's agreement paradigms in the folder ``out``.

    Args:
        source: A folder with BLiMP's files, or one of them.
        out: A new or empty folder, or one in which the same build was finished.
        paradigms: Names such as ``determiner_noun_agreement_1``; by default all that are there.
        skip_bad_rows: Leave out rows that are not of BLiMP's form, instead of refusing the source.

    Returns:
        The finished benchmark. Its samples have one more column, ``paradigm``.

    Raises:
        ImportError: pyarrow is not installed.
        InputError: The source cannot be used, ``out`` holds something else, or no row is left.
        LrpxError: A file could not be written.
    """
    pa = import_optional("pyarrow", "Building a benchmark")
    out = Path(out)
    check_place(out, what="benchmark")
    read = read_pairs(source, paradigms=paradigms, skip_bad_rows=skip_bad_rows)
    manifest = {
        "kind": "benchmark",
        "schema": SCHEMA,
        "task": "blimp",
        "source": read.manifest,
        "ground_truth": {"rule": {"name": "BLiMP's pairs and templates"}},
        "skip_bad_rows": skip_bad_rows,
    }
    check_claim(out, manifest, what="benchmark")
    if (out / "counts.json").exists():
        return load_benchmark(out)
    dropped = sorted(each for _, each in read.dropped)
    counts = count(read.rows.total(), dropped, PAIR_REASONS)
    counts["published"] = read.published._asdict() if read.published else None
    counts["paradigms"] = counts_by_paradigm(read)
    if not counts["rows"]:
        raise InputError(f"{source} is empty: it has no rows. Give BLiMP's files as they are published.")
    if not read.samples:
        lookup = (
            " The other form of a predicted word is looked up in the other paradigms: give the folder with all of them."
            if any(each.reason == "no_other_form" for each in dropped)
            else ""
        )
        raise InputError(f"{source}: no row is left of {counts['rows']} ({losses(counts)}).{lookup}")
    claim(out, manifest, what="benchmark")
    kept = [(sample.row, Truth(sample.decides, None, sample.attractors)) for sample in read.samples]
    more = {"paradigm": (pa.string(), [sample.paradigm for sample in read.samples])}
    write_benchmark(out, manifest, kept, dropped, counts, more)
    return load_benchmark(out)
