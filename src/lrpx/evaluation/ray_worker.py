"""One model that turns parts of an evaluation into their files, in whatever process, on whatever machine.

A part comes in as an Arrow block of one row, and leaves as the bytes of its Parquet file. What the workers of a run have in
common is a ``Job``. ``ray_engine.py`` has them run by Ray.
"""

from __future__ import annotations

import gc
import logging
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..benchmark.folder import samples_in
from ..errors import InputError, LrpxError, import_optional
from ..methods import Method
from ..models.loading import load
from ..models.provenance import model_facts, provenance
from ..passes.dispatch import PassRunner
from ..passes.execution import Execution
from .external import ExternalRelevances
from .records import Record, part_bytes
from .scoring import BatchExplainer, sources
from .selection import Part

logger = logging.getLogger("lrpx")

ATTEMPTS = 4  # at one part; one that always takes its worker down would be computed for ever


@dataclass(frozen=True)
class Job:
    """What a worker has to know: small, and the same for all of them.

    Attributes:
        model: A name or path that means the same on every machine.
        loading: For ``lrpx.load``.
        methods: In order, with their options.
        given: Relevance from a file, as for ``sources``.
        execution: How passes are run.
        metrics: As for ``BatchExplainer``, and ``proven`` too.
        threads: Of torch, on a CPU.
        tf32: The caller's process uses TF32 matrix products.
        same: What the manifest says of the model and the versions, to be compared.
    """

    model: str
    loading: Mapping[str, Any]
    methods: Sequence[Method]
    given: ExternalRelevances
    execution: Execution
    metrics: tuple[str, ...]
    proven: bool
    threads: int
    tf32: bool
    same: Mapping[str, Any]


class Worker:
    """One model. Turns a block with one part's samples (``block_of``) into one with the part's file.

    What is wrong with the model, a method or the samples is handed back as a result, so that the caller can raise it as it is.

    Args:
        job: What to do.
        attempt: Told the number of a part, says how often it was started, this time included.
    """

    def __init__(self, job: Job, attempt: Callable[[int], int]) -> None:
        self.attempt = attempt
        self.refused: LrpxError | None = None
        if job.loading["device"] == "cpu":
            torch.set_num_threads(job.threads)
        if job.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            model = load(job.model, **job.loading).model
            check_same(job, model)
            runner = PassRunner(model, job.execution)
            of_job = sources(job.methods, runner, job.given)
            self.explain = BatchExplainer(model, of_job, proven=job.proven, metrics=job.metrics)
            gc.freeze()  # the collector need not look at what is here to stay: a tenth of the time per sample
        except Exception as error:
            self.refused = _ours(error)

    def __call__(self, block: Any) -> Any:
        """The file, and what there is to say about it, as a ``pyarrow.Table`` of one row."""
        number, batches = part_of(block)
        result: dict[str, Any] = {"part": number, "content": b"", "samples": sum(map(len, batches)), "failed": 0}
        error = None
        with _warnings() as notes:
            attempt = self.attempt(number)
            if attempt > 1:
                logger.warning("part %d is computed once more: its worker died", number)
            try:
                result |= self._compute(number, batches, attempt)
            except Exception as found:
                error = pickle.dumps(_ours(found))
        pa = import_optional("pyarrow", "An evaluation")
        return pa.Table.from_pylist([{**result, "notes": notes, "error": error}], schema=result_schema())

    def _compute(self, number: int, batches: Part, attempt: int) -> dict[str, Any]:
        if self.refused is not None:
            raise self.refused
        if attempt > ATTEMPTS:
            raise LrpxError(
                f"a worker died each of the {ATTEMPTS} times that it was at part {number} (samples of up to "
                f"{len(batches[0][0].tokens)} tokens). If memory ran out, make batches smaller: batch_tokens=. "
                f"Ray's logs are on {socket.gethostname()}, below /tmp/ray."
            )
        records: list[Record] = []
        for batch in batches:
            records += self.explain(batch)
        failed = {record.sample_id for record in records if record.error is not None}
        return {"content": part_bytes(records), "failed": len(failed)}


def _ours(error: Exception) -> LrpxError:
    """The error as one of ours, which says all there is to say and can be sent to the caller."""
    if isinstance(error, LrpxError):
        return error
    trace = "".join(traceback.format_exception(error))
    return LrpxError(f"the worker on {socket.gethostname()} failed. {trace}")


def check_same(job: Job, model: PreTrainedModel) -> None:
    """Refuse a model or a version that is not the one of the manifest.

    Raises:
        InputError: They differ; the error names each difference and the machine.
    """
    here = about(model, str(job.loading["device"]))
    differences = [
        f"{name} is {job.same[name]!r} there and {value!r} here"
        for name, value in here.items()
        if value != job.same[name]
    ]
    if differences:
        raise InputError(
            f"{job.model} on the worker {socket.gethostname()} is not what the run is about: {'; '.join(differences)} (there: "
            "where the evaluation was started). Workers need the same model files and the same packages."
        )


def about(model: PreTrainedModel, device: str) -> dict[str, Any]:
    """What must be the same on all machines: the manifest's facts of the model, but for its name, and the versions."""
    facts = {**model_facts(model), "device": device}
    del facts["name"]  # a path may be written in several ways
    return facts | provenance(model, "", {})["versions"]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Warnings of lrpx meanwhile: nobody reads a worker's own output."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


# Blocks: one row each, so that a part is never divided


def block_of(number: int, part: Part, table: Any) -> Any:
    """A part as a ``pyarrow.Table`` of one row: ``part``, ``sizes`` of its batches, and ``samples`` in their order.

    Args:
        number: Of the part.
        part: Its batches.
        table: Rows of the tokenised set, in the order of the part.
    """
    pa = import_optional("pyarrow", "An evaluation")
    samples = table.combine_chunks().to_struct_array()
    samples = samples.combine_chunks() if isinstance(samples, pa.ChunkedArray) else samples
    return pa.table(
        {
            "part": pa.array([number], pa.int64()),
            "sizes": pa.array([[len(batch) for batch in part]], pa.list_(pa.int64())),
            "samples": pa.ListArray.from_arrays(pa.array([0, len(samples)], pa.int32()), samples),
        }
    )


def part_of(block: Any) -> tuple[int, Part]:
    """The number and the batches in a block that ``block_of`` made."""
    pa = import_optional("pyarrow", "An evaluation")
    rows = pa.Table.from_batches([pa.RecordBatch.from_struct_array(block.column("samples").combine_chunks().flatten())])
    samples = iter(samples_in(rows))
    (number,), (sizes,) = block.column("part").to_pylist(), block.column("sizes").to_pylist()
    return number, [[next(samples) for _ in range(size)] for size in sizes]


def result_schema() -> Any:
    """Of what a worker returns: ``content`` is the part's file, ``notes`` are warnings, ``error`` is a pickled ``LrpxError``."""
    pa = import_optional("pyarrow", "An evaluation")
    whole = {name: pa.int64() for name in ("part", "samples", "failed")}
    types = {**whole, "content": pa.large_binary(), "notes": pa.list_(pa.string()), "error": pa.binary()}
    return pa.schema(list(types.items()))
