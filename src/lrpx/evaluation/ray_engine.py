"""An evaluation as a Ray Data pipeline: planned parts in, a pool of actors with one model each, the parts' files out.

1. The caller has planned the run, as for one process: parts of batches of samples, from the lengths alone.
2. Every part that is missing becomes one Arrow block, cut out of the tokenised set's Parquet file.
3. Each worker loads the model by its name onto its GPU, or for its share of the CPUs, makes sure that it is the model of the
   manifest, and turns blocks into the parts' Parquet files, as bytes.
4. The caller writes them as they come.

So benchmark and run need no shared file system, the caller does next to nothing per sample, and the files are those of a run
in one process. A worker that dies costs the part it was at: Ray starts it again, and the part is computed once more. What is
finished is on the caller's disk, and another run, on whatever machines, goes on from there.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ..errors import LrpxError, lines_of
from ..methods import Method
from ..models.default.download import ALIAS
from ..models.precision import is_exact
from ..passes.execution import DEFAULT, Execution
from .external import ExternalRelevances
from .ray_attempts import Attempt, Starts
from .ray_cluster import Cluster, import_ray
from .ray_worker import ATTEMPTS, Job, Worker, about, block_of
from .selection import Part

logger = logging.getLogger("lrpx")


class FinishedPart(NamedTuple):
    """A finished part."""

    number: int
    content: bytes  # its file
    samples: int
    failed: int  # of these, how many some method could not explain


def job_for(
    cluster: Cluster,
    name: str | os.PathLike[str],
    loading: Mapping[str, Any],
    model: PreTrainedModel,
    methods: Sequence[Method],
    given: ExternalRelevances,
    execution: Execution = DEFAULT,
    metrics: Sequence[str] = (),
    *,
    proven: bool,
) -> Job:
    """The job for the model called ``name``; ``model`` is the same one, loaded here, to compare with."""
    path = Path(name).expanduser()
    elsewhere = os.fspath(name) == ALIAS or not path.exists()
    return Job(
        model=os.fspath(name) if elsewhere else str(path.resolve()),  # workers have another working directory
        loading={**loading, "device": cluster.device, "progress": False},
        methods=methods,
        given=given,
        execution=execution,
        metrics=tuple(metrics),
        proven=proven,
        threads=cluster.threads,
        tf32=not is_exact(),
        same=about(model, cluster.device),
    )


def compute_parts(cluster: Cluster, job: Job, parts: Mapping[int, Part], table: Any) -> Iterator[FinishedPart]:
    """Compute parts; they come in the order in which they are finished.

    Args:
        cluster: Where they run.
        job: What the workers do.
        parts: Number -> batches.
        table: The tokenised set, a ``pyarrow.Table``.

    Raises:
        LrpxError: A worker cannot do it, or Ray failed several times in a row. All workers are stopped.
    """
    ray = import_ray()
    starts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Starts).remote()
    row = {sample_id: n for n, sample_id in enumerate(table.column("sample_id").to_pylist())}
    rows = {n: [row[sample.sample_id] for batch in part for sample in batch] for n, part in parts.items()}
    missing, failures = dict(parts), 0
    while missing:
        blocks = [block_of(number, part, table.take(rows[number])) for number, part in missing.items()]
        try:
            for done in _pipeline(cluster, job, blocks, Attempt(starts)):
                if missing.pop(done.number, None) is not None:
                    failures = 0
                    yield done
            if missing:
                raise RuntimeError(f"{len(missing)} parts did not come back")
        except LrpxError:
            raise
        except Exception as error:  # such as an actor that is gone for good, which Ray Data does not replace
            failures += 1
            lines = lines_of(error) or [type(error).__name__]
            reason = " ".join(dict.fromkeys((lines[0], lines[-1])))  # in between: the trace, ids
            if failures == ATTEMPTS:
                raise LrpxError(
                    f"Ray failed: {reason} What was finished is kept: run the same command again to go on."
                ) from error
            logger.warning("Ray failed, going on with new workers. It said: %s", reason)


def _pipeline(cluster: Cluster, job: Job, blocks: list[Any], attempt: Callable[[int], int]) -> Iterator[FinishedPart]:
    """Blocks through the workers, who restart when they die; what they were at is then computed again."""
    data = import_ray("ray.data")
    dataset = data.from_arrow(blocks)
    dataset.context.enable_progress_bars = dataset.context.print_on_execution_start = False
    share = {"num_gpus": 1} if cluster.device == "cuda" else {"num_cpus": cluster.threads}
    results = dataset.map_batches(
        Worker,
        fn_constructor_kwargs={"job": job, "attempt": attempt},
        batch_format="pyarrow",
        batch_size=1,
        compute=data.ActorPoolStrategy(size=min(cluster.workers, len(blocks))),
        **share,
    ).iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)  # none waits for the next one
    with _quiet("ray.data"), closing(iter(results)) as tables:
        for table in tables:
            for result in table.to_pylist():
                for note in result["notes"]:
                    logger.warning("%s", note)
                if result["error"] is not None:
                    raise pickle.loads(result["error"])
                yield FinishedPart(result["part"], result["content"], result["samples"], result["failed"])


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Nothing of a logger meanwhile."""
    other = logging.getLogger(name)
    level = other.level
    other.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        other.setLevel(level)
