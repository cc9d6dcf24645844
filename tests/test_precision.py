"""TF32 is on while it is asked for, for the threads that asked for it, and the process's own setting comes back."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny
import torch

import lrpx
from lrpx.precision import _Turns, is_exact, matrix_precision, precision


@pytest.fixture(autouse=True)
def restored():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("tf32", [True, False])
def test_the_precision_of_products_comes_back(before, tf32):
    torch.set_float32_matmul_precision(before)
    assert is_exact() == (before == "highest")
    with matrix_precision(tf32):
        assert precision() == ("high" if tf32 else before)
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ZeroDivisionError), matrix_precision(tf32):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_threads_that_want_different_ones_take_turns():
    torch.set_float32_matmul_precision("highest")
    seen = {True: set(), False: set()}

    def work(tf32):
        def run():
            for _ in range(200):
                with matrix_precision(tf32):
                    seen[tf32].add(precision())
                    time.sleep(0)  # lets others come in
                    seen[tf32].add(precision())

        return run

    in_threads(work(True), work(False), work(True), work(False))
    assert seen == {True: {"high"}, False: {"highest"}}
    assert precision() == "highest"


@pytest.mark.parametrize("tf32", [True, False])
def test_threads_that_want_the_same_are_inside_together(tf32):
    together = threading.Barrier(3)

    def run():
        with matrix_precision(tf32):
            together.wait(60)

    in_threads(run, run, run)
    assert not together.broken


def test_nobody_waits_for_ever_behind_those_who_want_the_other():
    """Whoever came later waits behind whoever waits already."""
    turns, order = _Turns(), []
    first_in, leave = threading.Event(), threading.Event()

    def first():
        with turns.take(False):
            first_in.set()
            leave.wait(60)

    def then(name, tf32):
        def run():
            with turns.take(tf32):
                order.append(name)

        return run

    threads = [threading.Thread(target=first)]
    threads[0].start()
    first_in.wait(60)
    for n, (name, tf32) in enumerate((("tf32", True), ("plain", False))):
        threads.append(threading.Thread(target=then(name, tf32)))
        threads[-1].start()
        while len(turns._waiting) <= n:  # until it waits
            time.sleep(0.001)
    leave.set()
    for thread in threads:
        thread.join(60)
    assert order == ["tf32", "plain"]


def test_one_thread_does_not_wait_for_itself():
    torch.set_float32_matmul_precision("highest")
    with matrix_precision(True), matrix_precision(False):
        assert precision() == "high"
    with matrix_precision(False), matrix_precision(True):
        assert precision() == "highest"
    assert precision() == "highest"


def test_an_interrupt_while_waiting_leaves_no_trace(monkeypatch):
    turns = _Turns()

    def interrupted(_):
        raise KeyboardInterrupt

    with turns.take(False):
        other = []

        def run():
            with monkeypatch.context() as patch:
                patch.setattr(turns._changed, "wait_for", interrupted)
                try:
                    with turns.take(True):
                        other.append("inside")
                except KeyboardInterrupt:
                    other.append("interrupted")

        in_threads(run)
    assert other == ["interrupted"]
    assert not turns._waiting
    with turns.take(False):
        assert turns._inside == 1


def test_models_explained_in_threads_leave_the_precision_as_it_was():
    torch.set_float32_matmul_precision("highest")
    models = [tiny.build("causal:llama", dtype=torch.float32) for _ in range(2)]
    expected = lrpx.explain(models[0], None, [5, 17, 3]).relevance

    def run(model, tf32):
        return lambda: [lrpx.explain(model, None, [5, 17, 3], tf32=tf32) for _ in range(10)]

    in_threads(run(models[0], True), run(models[1], False))
    assert precision() == "highest"
    assert (lrpx.explain(models[0], None, [5, 17, 3]).relevance == expected).all()


SET_ONE_BY_ONE = """
import sys
import torch
sys.path.insert(0, {tests!r})
import tiny, lrpx
from lrpx.precision import is_exact, matrix_precision, precision
matmul = torch.backends.{backend}.matmul
matmul.fp32_precision = {value!r}
model = tiny.build("causal:llama", dtype=torch.float32)
for tf32 in (False, True):
    lrpx.explain(model, None, [5, 17, 3], tf32=tf32)
    assert matmul.fp32_precision == {value!r}
with matrix_precision(True):
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert not is_exact()
print(precision(), is_exact())
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from torch 2.9 on")
@pytest.mark.parametrize(("backend", "value", "exact"), [("cuda", "tf32", False), ("mkldnn", "bf16", True)])
def test_precision_set_for_backends_one_by_one(backend, value, exact):
    """PyTorch then refuses to say it in one word. In a process of its own: there is no way back."""
    code = SET_ONE_BY_ONE.format(tests=str(Path(__file__).parent), backend=backend, value=value)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(exact)
