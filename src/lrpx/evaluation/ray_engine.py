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

import importlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from transformers import PreTrainedModel

from ..errors import InputError, LrpxError
from ..methods import Method
from ..models.default.download import ALIAS
from ..models.precision import is_exact
from ..passes.execution import DEFAULT, Execution
from .external import ExternalRelevances
from .ray_worker import ATTEMPTS, Job, Worker, about, block_of
from .selection import Part

logger = logging.getLogger("lrpx")

LOOK_AFTER = 2.0  # seconds, whether this machine's Ray node lives
PATIENCE = 60.0  # seconds for machines to join, and for the workers of an earlier run to give back what they hold


class Done(NamedTuple):
    """A finished part."""

    number: int
    content: bytes  # its file
    samples: int
    failed: int  # of these, how many some method could not explain


@dataclass(frozen=True)
class Cluster:
    """Where the workers run.

    Attributes:
        device: ``"cuda"`` (a GPU per worker) or ``"cpu"``.
        workers: How many.
        threads: CPUs per worker, on a CPU.
    """

    device: str
    workers: int
    threads: int

    def job(
        self,
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
            loading={**loading, "device": self.device, "progress": False},
            methods=methods,
            given=given,
            execution=execution,
            metrics=tuple(metrics),
            proven=proven,
            threads=self.threads,
            tf32=not is_exact(),
            same=about(model, self.device),
        )

    def compute(self, job: Job, parts: Mapping[int, Part], table: Any) -> Iterator[Done]:
        """Compute parts; they come in the order in which they are finished.

        Args:
            job: What the workers do.
            parts: Number -> batches.
            table: The tokenised set, a ``pyarrow.Table``.

        Raises:
            LrpxError: A worker cannot do it, or Ray failed several times in a row. All workers are stopped.
        """
        ray = _ray()
        starts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Starts).remote()
        row = {sample_id: n for n, sample_id in enumerate(table.column("sample_id").to_pylist())}
        rows = {n: [row[sample.sample_id] for batch in part for sample in batch] for n, part in parts.items()}
        missing, failures = dict(parts), 0
        while missing:
            blocks = [block_of(number, part, table.take(rows[number])) for number, part in missing.items()]
            try:
                for done in self._pipeline(job, blocks, _Attempt(starts)):
                    if missing.pop(done.number, None) is not None:
                        failures = 0
                        yield done
                if missing:
                    raise RuntimeError(f"{len(missing)} parts did not come back")
            except LrpxError:
                raise
            except Exception as error:  # such as an actor that is gone for good, which Ray Data does not replace
                failures += 1
                lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                reason = " ".join(dict.fromkeys((lines[0], lines[-1])))  # in between: the trace, ids
                if failures == ATTEMPTS:
                    raise LrpxError(
                        f"Ray failed: {reason} What was finished is kept: run the same command again to go on."
                    ) from error
                logger.warning("Ray failed, going on with new workers. It said: %s", reason)

    def _pipeline(self, job: Job, blocks: list[Any], attempt: Callable[[int], int]) -> Iterator[Done]:
        """Blocks through the workers, who restart when they die; what they were at is then computed again."""
        data = _ray("ray.data")
        dataset = data.from_arrow(blocks)
        dataset.context.enable_progress_bars = dataset.context.print_on_execution_start = False
        share = {"num_gpus": 1} if self.device == "cuda" else {"num_cpus": self.threads}
        results = dataset.map_batches(
            Worker,
            fn_constructor_kwargs={"job": job, "attempt": attempt},
            batch_format="pyarrow",
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(self.workers, len(blocks))),
            **share,
        ).iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)  # none waits for the next one
        with _quiet("ray.data"), closing(iter(results)) as tables:
            for table in tables:
                for result in table.to_pylist():
                    for note in result["notes"]:
                        logger.warning("%s", note)
                    if result["error"] is not None:
                        raise pickle.loads(result["error"])
                    yield Done(result["part"], result["content"], result["samples"], result["failed"])


class _Starts:
    """How often each part was started. An actor of its own, since workers forget."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, number: int) -> int:
        self.counts[number] += 1
        return self.counts[number]


@dataclass(frozen=True)
class _Attempt:
    """Asks ``_Starts``."""

    starts: Any

    def __call__(self, number: int) -> int:
        return int(_ray().get(self.starts.add.remote(number)))


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


@contextmanager
def connect(address: str | None, workers: int | None, device: Any) -> Iterator[Cluster]:
    """Connect to a Ray cluster, or start one on this machine; what was started is shut down in the end.

    Ray that is connected already is used as it is.

    Args:
        address: Of a cluster; ``"auto"``: the one that this machine belongs to. ``None``: the one of the environment variable
            ``RAY_ADDRESS``, if set, else one is started on this machine.
        workers: How many. ``None``: one per GPU; without GPUs, as many as there is room for with torch's number of threads.
        device: ``"cuda"`` or ``"cpu"``. ``None`` or ``"auto"``: the GPUs, if the cluster has any.

    Raises:
        ImportError: Ray is not installed.
        InputError: The cluster cannot be reached, or has no room for the workers.
    """
    if address is not None and not isinstance(address, str):
        raise InputError(f"address={address!r}: give 'HOST:PORT' of a Ray cluster, or 'auto'.")
    ray = _ray()
    _ray("ray.data")
    started = not ray.is_initialized()
    on_terminate = signal.getsignal(signal.SIGTERM)
    alone = started and _start(ray, address)
    try:
        with _witness(_ENDED), _ended_with_its_node(ray):
            yield _cluster(ray, workers, _kind(device), min(5.0, PATIENCE) if alone else PATIENCE)
    finally:
        if started:
            ray.shutdown()
            if on_terminate is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_terminate)


_ENDED = (
    "lrpx: this process was ended from outside. Most likely the Ray node of this machine died (it may have run out of memory): "
    "Ray then ends what is connected to it. What was finished is kept: run the same command again to go on."
)
_WATCH = """
import os, signal, sys
if hasattr(os, "fork") and os.fork():
    os._exit(0)  # no child of the process that it watches: Ray ends those too
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not sys.stdin.read():
    print(sys.argv[1], file=sys.stderr, flush=True)
"""


@contextmanager
def _witness(message: str) -> Iterator[None]:
    """If this process ends inside the block, another one says ``message``: Ray ends it in a way that nothing in it can see."""
    other = subprocess.Popen([sys.executable, "-c", _WATCH, message], stdin=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        other.communicate("left")


@contextmanager
def _ended_with_its_node(ray: Any) -> Iterator[None]:
    """End this process if its Ray node dies inside the block, which ``_witness`` says.

    Ray ends a process that computes, after some seconds. Where nothing is computed at that time, or Ray Data begins anew, it
    waits for ever, in code that cannot be interrupted.
    """
    left = threading.Event()

    def watch() -> None:
        while not left.wait(LOOK_AFTER):
            own = ray.get_runtime_context().get_node_id()
            if any(node["NodeID"] == own and not node["Alive"] for node in ray.nodes()):
                os._exit(1)

    other = threading.Thread(target=watch, daemon=True)
    other.start()
    try:
        yield
    finally:
        left.set()
        other.join()


def _ray(module: str = "ray") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError('engine="ray" needs Ray Data: pip install "lrpx[ray]"') from error


def _start(ray: Any, address: str | None) -> bool:
    """Connect; whether that meant to start Ray on this machine."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        ray.init(address="local", include_dashboard=False, **quiet)
        return True
    try:
        _knock(address)
        ray.init(address=address, **quiet)
        return False
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise InputError(
            f"the Ray cluster at {address!r} cannot be reached: {' '.join(str(error).split()).rstrip('.')}. "
            "Start one with: ray start --head; or give no address, to use this machine alone."
        ) from error


def _knock(address: str) -> None:
    """Ray would try for minutes where nobody listens."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout=10).close()


def _kind(device: Any) -> str | None:
    kind = None if device is None else str(device).lower().replace("gpu", "cuda")
    if kind not in (None, "auto", "cuda", "cpu"):
        raise InputError(f"device={str(device)!r}: with Ray, give 'cuda' (a GPU for each worker) or 'cpu'.")
    return None if kind == "auto" else kind


def _cluster(ray: Any, workers: int | None, kind: str | None, patience: float) -> Cluster:
    """The workers that there is room for, once there is."""
    deadline, told = time.monotonic() + patience, False
    while True:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(sum(machine.get("GPU", 0) for machine in machines))
        if kind != "cpu" and (gpus or kind == "cuda"):
            found, unit, each = Cluster("cuda", workers or gpus, 1), "GPU", 1
        else:
            found = _shares(machines, workers)
            unit, each = "CPU", found.threads
        free, need = int(ray.available_resources().get(unit, 0)), max(1, found.workers) * each
        if free >= need:
            logger.info("Ray: %d workers on %s, %d machines", found.workers, found.device, len(machines))
            return found
        if time.monotonic() > deadline:
            break
        if not told:
            logger.info("waiting up to %.0f s for %d %ss, of which %d are free", patience, need, unit, free)
            told = True
        time.sleep(0.1)
    total = int(sum(machine.get(unit, 0) for machine in machines))
    if not total:
        raise InputError(f"the Ray cluster has no {unit}. Type device='cpu', or start Ray where there are some.")
    raise InputError(
        f"{found.workers} workers need {need} {unit}s; the Ray cluster has {total}, and {free} of them are free. "
        f"Ask for fewer workers ({max(1, free // each)}), or wait for what uses the others."
    )


def _shares(machines: Sequence[Mapping[str, float]], workers: int | None) -> Cluster:
    """CPUs for each worker: torch's number of threads, so that results are those of a local run; fewer for many workers."""

    def room(threads: int) -> int:
        return sum(int(machine.get("CPU", 0)) // threads for machine in machines)

    choices = range(torch.get_num_threads(), 0, -1)
    threads = next((n for n in choices if room(n) >= (workers or 1)), 1)
    return Cluster("cpu", workers or max(1, room(threads)), threads)
