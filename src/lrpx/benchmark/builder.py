"""Build a benchmark folder from a source file: find the subject of each sentence's verb.

1. Read the source (``sources.py``); bad rows and rows outside the selection are set aside.
2. Drop rows whose two verb forms are equal.
3. Find the subject of every verb, from a parse or from a file (``ground_truth.py``); drop rows without a nominal
   subject and rows whose verb is not tagged as present tense.
4. Write ``samples.parquet``, ``dropped.parquet`` (every other row of the source, with its reason), ``counts.json`` and
   the card ``README.md``.

Step 3 takes long, so its results are written in parts while it runs. A run that was stopped continues after the last
finished part and produces the same files, byte for byte.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import InputError, LrpxError, import_optional
from ..files import sha256, write_json, write_text
from .card import card
from .folder import Benchmark, load_benchmark
from .ground_truth import (
    Truth,
    check_parser,
    load_parser,
    parse,
    parse_in_worker,
    parser_label,
    read_file,
    start_worker,
)
from .sources import Dropped, SourceRow, read_source
from .storage import (
    DOWNLOADS,
    SCHEMA,
    check_claim,
    check_place,
    claim,
    count,
    losses,
    read_table,
    write_dropped,
    write_table,
)

logger = logging.getLogger("lrpx")

PART = 256  # rows per part; also what one worker parses at a time

# Why a row of the source is not in the benchmark, in the order in which the reasons are checked.
REASONS = {
    "bad_row": "not of the source's form",
    "not_selected": "not 1 to 4 nouns between subject and verb, all of the other number (Linzen's file)",
    "no_other_form": "the verb's other form does not occur in the source (Linzen's file)",
    "equal_forms": "both forms of the verb are the same",
    "no_subject": "the verb has no nominal subject (nsubj)",
    "verb_tag": "the verb is not tagged VBZ or VBP",
}


def build(
    source: str | Path,
    out: str | Path,
    *,
    parser: Any = None,
    ground_truth: str | Path | None = None,
    format: str | None = None,
    workers: int = 1,
    skip_bad_rows: bool = False,
    progress: bool = True,
) -> Benchmark:
    """Build the subject-verb agreement benchmark of ``source`` in the folder ``out``.

    Args:
        source: ``lgd_dataset.tsv``, ``agr_50_mostcommon_10K.tsv(.gz)`` or a BLiMP agreement file: a path or an http(s) URL.
        out: A new or empty folder, or one in which the same build was stopped or finished.
        parser: Name of a spaCy pipeline with tagger and parser, or the loaded pipeline itself (one process then). Default:
            ``en_core_web_trf``, the paper's.
        ground_truth: A file with the subjects, instead of a parser.
        format: ``lgd``, ``linzen`` or ``blimp``; recognised by content if not given.
        workers: Number of processes that parse. With more than one, a script must guard its entry point with
            ``if __name__ == "__main__":``.
        skip_bad_rows: Leave out rows of the source that cannot be used, instead of refusing it.
        progress: Show a progress bar, on a terminal.

    Returns:
        The finished benchmark.

    Raises:
        ImportError: spaCy (unless ``ground_truth`` is given) or pyarrow is not installed.
        InputError: The source, the parser or the ground truth cannot be used, ``out`` holds something else, or no row is
            left.
        LrpxError: A file could not be written.
    """
    import_optional("pyarrow", "Building a benchmark")
    out = Path(out)
    if ground_truth is not None and parser is not None:
        raise InputError("ground_truth and parser are both given, and each says where the subjects are. Leave one out.")
    parser = "en_core_web_trf" if parser is None else parser
    if workers < 1:
        raise InputError(f"workers={workers}: give 1 or more.")
    check_place(out, what="benchmark")
    data = read_source(source, format=format, skip_bad_rows=skip_bad_rows, downloads=out / DOWNLOADS)
    pipeline = None
    if ground_truth is None:
        pipeline = load_parser(parser) if isinstance(parser, str) else check_parser(parser)
        origin: dict[str, Any] = {"parser": parser_label(pipeline)}
    else:
        ground_truth = Path(ground_truth)
        if not ground_truth.is_file():
            raise InputError(f"{ground_truth} is not a file: give the ground truth as TSV or JSON lines.")
        origin = {"file": {"name": ground_truth.name, "sha256": sha256(ground_truth)}}
    manifest = {
        "kind": "benchmark",
        "schema": SCHEMA,
        "source": {"name": data.name, "format": data.format, "sha256": data.sha256},
        "ground_truth": origin,
        "skip_bad_rows": skip_bad_rows,
    }
    check_claim(out, manifest, what="benchmark")
    if (out / "counts.json").exists():
        logger.info("%s is finished already", out)
        shutil.rmtree(out / "parts", ignore_errors=True)
        return load_benchmark(out)

    rows = [row for row in data.rows if row.verb != row.other]
    equal = [
        Dropped(r.sample_id, r.line, "equal_forms", f"both are {r.verb!r}") for r in data.rows if r.verb == r.other
    ]
    if ground_truth is not None:
        truths = read_file(ground_truth, rows)
    else:
        claim(out, manifest, what="benchmark")
        name = parser if isinstance(parser, str) else None
        truths = _parse_in_parts(pipeline, name, rows, out / "parts", workers, progress)
    kept: list[tuple[SourceRow, Truth]] = []
    dropped = data.dropped + equal
    for row, truth in zip(rows, truths, strict=True):
        if reason := truth.reason():
            dropped.append(Dropped(row.sample_id, row.line, *reason))
        else:
            kept.append((row, truth))
    counts = count(len(data.rows) + len(data.dropped), dropped, REASONS)
    counts["published"] = data.published._asdict() if data.published else None
    if not kept:
        raise InputError(
            f"{data.name}: no row is left of {counts['rows']} ({losses(counts)}), so there is no benchmark to write."
        )
    claim(out, manifest, what="benchmark")
    write_benchmark(out, manifest, kept, sorted(dropped), counts)
    return load_benchmark(out)


def _parse_in_parts(
    pipeline: Any, name: str | None, rows: Sequence[SourceRow], folder: Path, workers: int, progress: bool
) -> list[Truth]:
    """The truths of ``rows``; finished parts are read from ``folder``, the others are parsed and written there."""
    parts = [rows[i : i + PART] for i in range(0, len(rows), PART)]
    paths = [folder / f"{n:05d}.parquet" for n in range(len(parts))]
    missing = [n for n, path in enumerate(paths) if not path.exists()]
    if workers > 1 and name is None:
        logger.info("a pipeline given as an object parses in one process")
    done = len(rows) - sum(len(parts[n]) for n in missing)
    with tqdm(total=len(rows), initial=done, desc="parse", unit="row", disable=None if progress else True) as bar:
        if workers == 1 or name is None or len(missing) <= 1:
            results: Iterator[tuple[int, list[Truth]]] = ((n, parse(pipeline, parts[n])) for n in missing)
        else:
            results = _in_processes(name, parts, missing, workers)
        for n, truths in results:
            _write_part(paths[n], parts[n], truths)
            bar.update(len(parts[n]))
    return [truth for path, part in zip(paths, parts, strict=True) for truth in _read_part(path, part)]


def _in_processes(
    name: str, parts: Sequence[Sequence[SourceRow]], missing: Sequence[int], workers: int
) -> Iterator[tuple[int, list[Truth]]]:
    """(number, truths) of each missing part, as they finish. Processes are spawned, because forking torch can hang."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(
        min(workers, len(missing)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(name, threads),
    )
    try:
        futures = {pool.submit(parse_in_worker, parts[n]): n for n in missing}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise LrpxError(
            "a parsing process ended before its work was done: it may have run out of memory (use fewer workers), or the "
            'script that calls build() lacks its `if __name__ == "__main__":`. Finished parts are kept; run again to go on.'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _write_part(path: Path, rows: Sequence[SourceRow], truths: Sequence[Truth]) -> None:
    columns: dict[str, list[Any]] = {name: [getattr(t, name) for t in truths] for name in Truth._fields}
    write_table(path, "part", {"sample_id": [row.sample_id for row in rows], **columns}, _part_types())


def _read_part(path: Path, rows: Sequence[SourceRow]) -> list[Truth]:
    part = read_table(path, "part").to_pydict()
    if part.pop("sample_id") != [row.sample_id for row in rows]:
        raise InputError(f"{path} belongs to another build: remove the folder {path.parent} and run again.")
    return [
        Truth(subject, tag, None if attractors is None else tuple(attractors), detail)
        for subject, tag, attractors, detail in zip(*(part[name] for name in Truth._fields), strict=True)
    ]


def _part_types() -> dict[str, Any]:
    pa = import_optional("pyarrow", "Building a benchmark")
    return {
        "sample_id": pa.int64(),
        "subject": pa.int32(),
        "verb_tag": pa.string(),
        "attractors": pa.list_(pa.int32()),
        "detail": pa.string(),
    }


def write_benchmark(
    out: Path,
    manifest: dict[str, Any],
    kept: Sequence[tuple[SourceRow, Truth]],
    dropped: Sequence[Dropped],
    counts: dict[str, Any],
    more: Mapping[str, tuple[Any, Sequence[Any]]] | None = None,
) -> None:
    """Write the files of a benchmark; ``counts.json`` is written last and marks the folder as complete.

    Args:
        out: A folder that was claimed for ``manifest``.
        manifest: What the benchmark is made from.
        kept: The samples, each with what decides it.
        dropped: The other rows of the source.
        counts: As ``storage.count`` makes them, with ``published``.
        more: Further columns of the samples: name -> (pyarrow type, values).
    """
    pa = import_optional("pyarrow", "Building a benchmark")
    rows, truths = [row for row, _ in kept], [truth for _, truth in kept]
    columns = {
        "sample_id": (pa.int64(), [row.sample_id for row in rows]),
        "line": (pa.int64(), [row.line for row in rows]),
        "sentence": (pa.string(), [" ".join(row.words) for row in rows]),
        "verb_index": (pa.int32(), [row.verb_index for row in rows]),
        "verb": (pa.string(), [row.verb for row in rows]),
        "other": (pa.string(), [row.other for row in rows]),
        "verb_tag": (pa.string(), [truth.verb_tag for truth in truths]),
        "subject_index": (pa.int32(), [truth.subject for truth in truths]),
        "subject": (pa.string(), [row.words[truth.subject or 0] for row, truth in kept]),
        "attractors": (pa.list_(pa.int32()), [truth.attractors for truth in truths]),
        "n_attractors": (pa.int32(), [row.n_attractors for row in rows]),
        **(more or {}),
    }
    types = {name: kind for name, (kind, _) in columns.items()}
    write_table(out / "samples.parquet", "samples", {name: values for name, (_, values) in columns.items()}, types)
    write_dropped(out / "dropped.parquet", dropped)
    write_text(out / "README.md", card(Benchmark(out, manifest, counts)))
    write_json(out / "counts.json", counts)
    shutil.rmtree(out / "parts", ignore_errors=True)
