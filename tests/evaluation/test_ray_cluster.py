"""A Ray cluster: room for the workers, what was started is shut down, and what is said where its node dies."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from evaluation_tools import OF_RAY

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("ray", reason="ray is not installed")

import lrpx
from lrpx.errors import InputError
from lrpx.evaluation import ray_cluster
from lrpx.evaluation.ray_cluster import Cluster, connect

pytestmark = [pytest.mark.slow, *OF_RAY]


# Room


def pretended(monkeypatch, *machines, free=None):
    """Ray on machines with these resources, all of them free unless said."""
    total = {unit: sum(m.get(unit, 0) for m in machines) for unit in ("CPU", "GPU")}
    made = SimpleNamespace(
        is_initialized=lambda: True,
        nodes=lambda: [{"Alive": True, "Resources": m} for m in machines] + [{"Alive": False, "Resources": {"GPU": 9}}],
        available_resources=lambda: {**total, **(free or {})},
    )
    monkeypatch.setattr(ray_cluster, "import_ray", lambda module="ray": made)
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0)


@pytest.mark.parametrize(
    ("machines", "workers", "device", "threads", "expected"),
    [
        ([{"CPU": 8, "GPU": 4}], None, None, 1, Cluster("cuda", 4, 1)),
        ([{"CPU": 8, "GPU": 4}, {"CPU": 8, "GPU": 2}], None, "cuda", 1, Cluster("cuda", 6, 1)),
        ([{"CPU": 8, "GPU": 4}], 2, "auto", 1, Cluster("cuda", 2, 1)),
        ([{"CPU": 8, "GPU": 4}], None, "cpu", 4, Cluster("cpu", 2, 4)),
        ([{"CPU": 8}], None, None, 8, Cluster("cpu", 1, 8)),
        ([{"CPU": 8}], 3, None, 8, Cluster("cpu", 3, 2)),
        ([{"CPU": 6}, {"CPU": 6}], None, None, 4, Cluster("cpu", 2, 4)),
        ([{"CPU": 6}, {"CPU": 6}], 4, None, 4, Cluster("cpu", 4, 3)),
        ([{"CPU": 2}], None, None, 4, Cluster("cpu", 1, 2)),
    ],
)
def test_room_for_workers(monkeypatch, machines, workers, device, threads, expected):
    pretended(monkeypatch, *machines)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with connect(None, workers, device) as found:
        assert found == expected


@pytest.mark.parametrize(
    ("machines", "free", "workers", "device", "message"),
    [
        ([{"CPU": 8, "GPU": 4}], {}, 5, None, "5 workers need 5 GPUs; the Ray cluster has 4, and 4 of them are free"),
        ([{"CPU": 8, "GPU": 4}], {"GPU": 1}, None, None, r"has 4, and 1 of them are free. Ask for fewer workers \(1\)"),
        ([{"CPU": 2}], {}, 3, None, "3 workers need 3 CPUs; the Ray cluster has 2"),
        ([{"CPU": 2}], {}, None, "cuda", "the Ray cluster has no GPU. Type device='cpu', or start Ray where"),
        ([{"CPU": 2}], {}, None, "cuda:1", "device='cuda:1': with Ray, give 'cuda'"),
    ],
)
def test_no_room_for_workers(monkeypatch, machines, free, workers, device, message):
    pretended(monkeypatch, *machines, free=free)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with pytest.raises(InputError, match=message), connect(None, workers, device):
        pass


def test_what_was_started_is_shut_down(monkeypatch):
    calls = []

    def init(**options):
        calls.append(options)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray's would

    pretended(monkeypatch, {"CPU": 2})
    made = ray_cluster.import_ray()
    made.is_initialized, made.init, made.shutdown = lambda: False, init, lambda: calls.append("shutdown")
    before = signal.getsignal(signal.SIGTERM)
    for failing in (False, True):
        calls.clear()
        with pytest.raises(InputError) if failing else nullcontext(), connect(None, 9 if failing else 1, None):
            assert len(calls) == 1
        assert (calls[0]["address"], calls[0]["include_dashboard"], calls[1:]) == ("local", False, ["shutdown"])
        assert signal.getsignal(signal.SIGTERM) == before


def test_a_cluster_that_is_not_there(monkeypatch):
    def init(**options):
        raise ConnectionError("Could not find any running Ray instance.")

    made = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda module="ray": made)
    with pytest.raises(
        InputError, match=r"'auto' cannot be reached: Could not find any running Ray instance\. Start one"
    ):
        connect("auto", None, None).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"'127\.0\.0\.1:1' cannot be reached: .* Start one with: ray start --head"):
        connect(None, None, None).__enter__()
    with pytest.raises(InputError, match="address=5: give 'HOST:PORT'"):
        connect(5, None, None).__enter__()


# The machine's own Ray

WITNESSED = """
import os, sys
from lrpx.evaluation.ray_cluster import _witness
with _witness("it ended"):
    if sys.argv[1] == "dies":
        os._exit(1)
"""
NODE_DIES = """
import os, signal, sys, threading
from lrpx.evaluation.ray_cluster import connect
if __name__ == "__main__":
    with connect(None, 1, "cpu"):
        import ray
        for process in ray._private.worker._global_node.all_processes[sys.argv[1]]:
            os.kill(process.process.pid, signal.SIGKILL)
        threading.Event().wait()
"""


def ended(program, *arguments, **env):
    """The exit status of a program, and what it wrote to standard error."""
    env = os.environ | env | {"PYTHONPATH": str(Path(lrpx.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def test_another_process_says_that_this_one_ended():
    assert ended(WITNESSED, "dies") == (1, "it ended\n")
    assert ended(WITNESSED, "lives") == (0, "")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_where_the_only_node_dies_it_is_said_what_to_type(part):
    """Ray ends this process then, in a way that nothing in it can see; or, without its raylet, lets it wait for ever."""
    quickly = {"period_ms": 500, "timeout_ms": 30_000, "failure_threshold": 2}
    health = {f"RAY_health_check_{name}": str(value) for name, value in quickly.items()}
    status, said = ended(NODE_DIES, part, RAY_gcs_rpc_server_reconnect_timeout_s="2", **health)
    assert status == 1
    assert "Most likely the Ray node of this machine died" in said
    assert said.count("run the same command again to go on") == 1
