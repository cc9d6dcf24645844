"""Evaluation by Ray workers: the same bytes as in one process, also where workers are killed; going on; errors."""

import dataclasses
import logging
import os
import pickle
import signal
import threading
from pathlib import Path

import pytest
import torch
from evaluation_tools import OF_RAY, benchmark, gpt2
from typer.testing import CliRunner

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("ray", reason="ray is not installed")

import lrpx
from lrpx.benchmark import load_benchmark
from lrpx.cli import main as cli
from lrpx.errors import InputError, LrpxError
from lrpx.evaluation import asked, ray_cluster, selection
from lrpx.evaluation import ray_engine as distributed
from lrpx.evaluation import ray_worker as working
from lrpx.evaluation import run as module
from lrpx.evaluation.ray_cluster import Cluster, connect
from lrpx.evaluation.ray_engine import job_for
from lrpx.evaluation.ray_worker import ATTEMPTS, Worker, block_of, part_of
from lrpx.evaluation.records import open_run
from lrpx.evaluation.run import evaluate
from lrpx.evaluation.selection import plan
from lrpx.methods import get_method

pytestmark = [pytest.mark.slow, *OF_RAY]
METHODS = ["lrp", "gradient"]


@pytest.fixture(scope="module")
def ray():
    """A cluster on this machine with room for two workers, who can import this file."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"), prepend=os.pathsep)
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def sva(tmp_path_factory):
    """A folder with a benchmark of 40 sentences in four parts, a model for it, and its run in one process."""
    folder = tmp_path_factory.mktemp("benchmark")
    benchmark(folder)
    for part in gpt2():
        part.save_pretrained(folder / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "PART", 10)
        assert run_of(folder, folder / "local").manifest["plan"]["parts"] == 4
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(selection, "PART", 10)


def run_of(sva, out, **options):
    return evaluate(sva / "sva", sva / "tiny", METHODS, out, batch_tokens=30, progress=False, **options)


def contents(out):
    return {path.name: path.read_bytes() for path in sorted(Path(out).rglob("*")) if path.is_file()}


def is_local(sva, out):
    """Manifest, records and counts are those of the run in one process, byte for byte."""
    return contents(out) == contents(sva / "local")


# On a cluster


class Killed(Worker):
    """Dies in the middle of two parts, once each: by kill -9, and by ray.kill."""

    def _compute(self, number, batches, attempt):
        import ray

        found = super()._compute(number, batches, attempt)
        if attempt == 1 and number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 1 and number == 2:
            ray.kill(ray.get_runtime_context().current_actor, no_restart=False)
            threading.Event().wait()
        return found


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_workers_that_are_killed(ray, sva, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(distributed, "Worker", Killed)
    run_of(sva, tmp_path / "run", engine="ray", workers=2)
    assert is_local(sva, tmp_path / "run")
    twice = [f"part {n} is computed once more: its worker died" for n in (0, 2)]
    assert sorted(r.getMessage() for r in caplog.records) == twice  # these, and no other


class Gone(Worker):
    """Dies once for good, as by ray.kill without a restart."""

    def _compute(self, number, batches, attempt):
        import ray

        if attempt == 1 and number == 2:
            ray.kill(ray.get_runtime_context().current_actor)
            threading.Event().wait()
        return super()._compute(number, batches, attempt)


def test_a_worker_that_is_gone_is_replaced_and_a_local_run_goes_on(ray, sva, tmp_path, monkeypatch, caplog):
    run_of(sva, tmp_path / "run")
    kept = open_run(tmp_path / "run").part(1)
    os.utime(kept, (0, 0))
    for n in (0, 2, 3):
        open_run(tmp_path / "run").part(n).unlink()
    (tmp_path / "run" / "counts.json").unlink()
    monkeypatch.setattr(distributed, "Worker", Gone)
    given = {
        "--model": sva / "tiny",
        "--out": tmp_path / "run",
        "--engine": "ray",
        "--workers": 1,
        "--batch-tokens": 30,
    }
    words = [str(word) for pair in given.items() for word in pair]
    monkeypatch.setattr(asked, "PAPER_METHODS", METHODS)
    done = CliRunner().invoke(cli.app, ["evaluate", str(sva / "sva"), *words])
    assert done.exit_code == 0, done.output
    assert is_local(sva, tmp_path / "run")
    assert kept.stat().st_mtime == 0
    said = [r.getMessage() for r in caplog.records]
    assert said.pop(0).startswith("Ray failed, going on with new workers. It said: ")
    assert "part 2 is computed once more: its worker died" in said
    again = {f"part {n} is computed once more: its worker died" for n in (0, 2)}  # 0 may have been on its way back
    assert len(said) == len(set(said))
    assert set(said) <= again


def test_a_stopped_run_keeps_its_parts_and_frees_its_workers(ray, sva, tmp_path, monkeypatch):
    def write(run, number, content):
        if len(run.parts) == 2:
            raise KeyboardInterrupt
        real(run, number, content)

    real = module.write_part_bytes
    monkeypatch.setattr(module, "write_part_bytes", write)
    with pytest.raises(KeyboardInterrupt):
        run_of(sva, tmp_path / "run", engine="ray", workers=1)
    assert len(open_run(tmp_path / "run").parts) == 2
    with connect(None, 2, "cpu") as cluster:  # waits for what is still held
        assert cluster == Cluster("cpu", 2, 1)
    run_of(sva, tmp_path / "run")
    assert is_local(sva, tmp_path / "run")
    assert ray.is_initialized()  # it was before


class Elsewhere(Worker):
    """On a machine whose files are other ones."""

    def __init__(self, job, attempt):
        super().__init__(dataclasses.replace(job, model=f"{job.model}-2"), attempt)


def test_a_worker_with_another_model_is_refused(ray, sva, tmp_path, monkeypatch):
    for part in gpt2(seed=5):
        part.save_pretrained(sva / "tiny-2")
    monkeypatch.setattr(distributed, "Worker", Elsewhere)
    with pytest.raises(
        InputError, match=r"tiny-2 on the worker .* is not what the run is about: weights is '\w+' there"
    ):
        run_of(sva, tmp_path / "run", engine="ray", workers=1)
    assert not open_run(tmp_path / "run").parts


# One worker, in this process


def job_of(sva, **changes):
    model = lrpx.load(sva / "tiny", dtype="float32", device="cpu").model
    job = job_for(
        Cluster("cpu", 1, 1),
        sva / "tiny",
        {"dtype": "float32"},
        model,
        [get_method(name) for name in METHODS],
        {},
        proven=False,
    )
    return dataclasses.replace(job, **changes)


def blocks_of(sva):
    table = load_benchmark(sva / "sva").tokenized["tiny"].table
    samples = load_benchmark(sva / "sva").tokenized["tiny"].samples
    row = {s.sample_id: n for n, s in enumerate(samples)}
    return [
        (part, block_of(n, part, table.take([row[s.sample_id] for batch in part for s in batch])))
        for n, part in enumerate(plan(samples, 30, 0.1))
    ]


def test_a_block_holds_a_part(sva):
    for n, (part, block) in enumerate(blocks_of(sva)):
        assert len(block) == 1
        assert part_of(block) == (n, part)


def test_a_worker_makes_the_files_of_a_local_run(sva):
    worker = Worker(job_of(sva), lambda number: 1)
    local = open_run(sva / "local")
    for n, (part, block) in enumerate(blocks_of(sva)):
        (result,) = worker(block).to_pylist()
        assert result["content"] == local.part(n).read_bytes()
        samples = sum(map(len, part))
        assert result == {**result, "part": n, "samples": samples, "failed": 0, "notes": [], "error": None}


def error_of(worker, block):
    (result,) = worker(block).to_pylist()
    assert result["content"] == b""
    return pickle.loads(result["error"])


def test_what_is_wrong_comes_back_as_a_result(sva, monkeypatch):
    block = blocks_of(sva)[0][1]
    same = {**job_of(sva).same, "torch": "0.4"}
    error = error_of(Worker(job_of(sva, same=same), lambda number: 1), block)
    assert isinstance(error, InputError)
    assert f"torch is '0.4' there and {torch.__version__!r} here" in str(error)
    error = error_of(Worker(job_of(sva, model="/nowhere"), lambda number: 1), block)
    assert isinstance(error, InputError)
    assert "/nowhere: no such file or folder" in str(error)
    worker = Worker(job_of(sva), lambda number: 1)
    monkeypatch.setattr(worker, "explain", lambda batch: 1 / 0)
    error = error_of(worker, block)
    assert isinstance(error, LrpxError)
    assert "ZeroDivisionError" in str(error)


def test_a_part_that_always_kills_its_worker_is_given_up(sva):
    worker = Worker(job_of(sva), lambda number: ATTEMPTS + 1)
    error = error_of(worker, blocks_of(sva)[0][1])
    assert "a worker died each of the 4 times that it was at part 0" in str(error)


def test_warnings_and_failures_of_a_worker_reach_the_caller(sva, monkeypatch):
    worker = Worker(job_of(sva), lambda number: 1)
    context = worker.explain.signature.context
    block = blocks_of(sva)[0][1]
    longest = max(len(s.tokens) for batch in part_of(block)[1] for s in batch)
    assert longest <= context
    monkeypatch.setattr(worker.explain, "signature", dataclasses.replace(worker.explain.signature, context=longest - 1))
    monkeypatch.setattr(
        working, "part_bytes", lambda records: working.logger.warning("%d records", len(records)) or b""
    )
    (result,) = worker(block).to_pylist()
    samples = [s for batch in part_of(block)[1] for s in batch]
    assert result["failed"] == sum(len(s.tokens) == longest for s in samples) > 0
    assert result["notes"] == [f"{3 * len(samples)} records"]


# Errors before anything is computed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "rey"}, "unknown engine 'rey'. Did you mean 'ray'"),
        ({"workers": 2}, "workers=2: only with engine='ray'"),
        ({"address": "auto"}, "address='auto': only with engine='ray'"),
        ({"engine": "ray", "workers": 0}, "workers=0: give a whole number, 1 or more"),
        ({"engine": "ray", "device_map": "auto"}, "with engine='ray' each worker has one GPU"),
    ],
)
def test_bad_options(sva, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        run_of(sva, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_loaded_model_stays_here(sva, tmp_path):
    model, tokenizer = gpt2()
    with pytest.raises(InputError, match=r"needs the model's name or path, .* a loaded GPT2LMHeadModel stays"):
        evaluate(sva / "sva", model, METHODS, tmp_path / "run", tokenizer=tokenizer, engine="ray")


def test_ray_is_not_installed(sva, tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(ray_cluster.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'pip install "ray\[data\]"'):
        run_of(sva, tmp_path / "run", engine="ray")
