"""A Ray cluster: connected to or started on this machine, with room for so many workers, and watched while it is used."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError, install_command

logger = logging.getLogger("lrpx")

LOOK_AFTER = 2.0  # seconds, whether this machine's Ray node lives
PATIENCE = 60.0  # seconds for machines to join, and for the workers of an earlier run to give back what they hold


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
    ray = import_ray()
    import_ray("ray.data")
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
    import torch  # not before it is needed: what only counts parts (``ray_attempts.py``) starts without it

    def room(threads: int) -> int:
        return sum(int(machine.get("CPU", 0)) // threads for machine in machines)

    choices = range(torch.get_num_threads(), 0, -1)
    threads = next((n for n in choices if room(n) >= (workers or 1)), 1)
    return Cluster("cpu", workers or max(1, room(threads)), threads)


def import_ray(module: str = "ray") -> Any:
    """Ray, or a part of it, with what to install where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'engine="ray" needs Ray Data: {install_command("ray")}') from error
