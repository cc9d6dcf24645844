"""One thread at a time explains a model. TF32 is on for those that asked for it, and the process's own setting comes back."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny
import torch
from lrpx.models.turns import _Turns, _turns, is_exact, matrix_precision

import lrpx
from lrpx.evaluation.scoring import sources
from lrpx.text.batching import Item, pad


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
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else before)
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
                    seen[tf32].add(torch.get_float32_matmul_precision())
                    time.sleep(0)  # lets others come in
                    seen[tf32].add(torch.get_float32_matmul_precision())

        return run

    in_threads(work(True), work(False), work(True), work(False))
    assert seen == {True: {"high"}, False: {"highest"}}
    assert torch.get_float32_matmul_precision() == "highest"


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
        assert torch.get_float32_matmul_precision() == "high"
    with matrix_precision(False), matrix_precision(True):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "highest"


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
        assert len(turns._inside) == 1


def test_models_explained_in_threads_leave_the_precision_as_it_was():
    torch.set_float32_matmul_precision("highest")
    models = [tiny.build("causal:llama", dtype=torch.float32) for _ in range(2)]
    expected = lrpx.explain(models[0], None, [5, 17, 3]).relevance

    def run(model, tf32):
        return lambda: [lrpx.explain(model, None, [5, 17, 3], tf32=tf32) for _ in range(10)]

    in_threads(run(models[0], True), run(models[1], False))
    assert torch.get_float32_matmul_precision() == "highest"
    assert (lrpx.explain(models[0], None, [5, 17, 3]).relevance == expected).all()


def explained(model, ids, **options):
    return lambda: lrpx.explain(model, None, ids, fast=False, **options).relevance


def evaluated(model, ids, name="attnlrp"):
    def run():
        batch = pad([Item(tuple(ids), len(ids) - 1, 11, 13)], model)
        (attribution,) = sources([name])[0].explain(model, batch, None)[0]
        return attribution.relevance

    return run


@pytest.mark.parametrize(
    "pair",
    [("explain", "evaluate"), ("evaluate", "evaluate"), ("evaluate", "gradient"), ("explain", "alti-logit")],
    ids="-".join,
)
def test_threads_that_share_a_model_do_not_meet(pair):
    """Whatever they call: a pass of one under the settings of another would be a wrong map."""
    model = tiny.build("causal:llama")
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    ways = {
        "explain": explained(model, ids, target=11, contrast=13),
        "evaluate": evaluated(model, ids),
        "gradient": evaluated(model, ids, "gradient-x-input"),
        "alti-logit": evaluated(model, ids, "alti-logit"),
    }
    wrong = []

    def work(way):
        expected = way()

        def run():
            for _ in range(25):
                try:
                    wrong.append(not (way() == expected).all())
                except Exception as error:
                    wrong.append(error)

        return run

    works = [work(ways[name]) for name in pair]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        in_threads(*works)
    finally:
        sys.setswitchinterval(before)
    assert wrong == [False] * 50


def test_who_waits_for_a_turn_holds_no_model():
    """A pass of one model may explain another one, for which a thread waits that wants the other precision."""
    outer, inner = (tiny.build("causal:llama", dtype=torch.float32) for _ in range(2))
    inside, found = threading.Event(), []

    def hook(*_):
        inside.set()
        while not _turns._waiting:  # the other thread
            time.sleep(0.001)
        if not found:
            found.append(None)
            found.append(lrpx.explain(inner, None, [5, 17, 3]).value)

    outer.model.layers[0].register_forward_hook(hook)

    def other():
        inside.wait(60)
        lrpx.explain(inner, None, [5, 17, 3], tf32=True)

    in_threads(lambda: lrpx.explain(outer, None, [5, 17, 3]), other)
    assert found[1] is not None


def test_a_setting_made_meanwhile_stays():
    torch.set_float32_matmul_precision("highest")
    with matrix_precision(True):
        torch.set_float32_matmul_precision("medium")
    assert torch.get_float32_matmul_precision() == "medium"


SET_FOR_ALL = """
import torch
from lrpx.models.turns import is_exact, matrix_precision
for first, then, exact in (("tf32", "ieee", True), ("ieee", "tf32", False)):
    torch.backends.fp32_precision = first
    with matrix_precision(True):
        assert not is_exact()
    assert is_exact() == (first == "ieee")
    torch.backends.fp32_precision = then
    assert is_exact() == exact, (first, then)
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from torch 2.9 on")
def test_precision_set_for_all_backends():
    done = subprocess.run([sys.executable, "-c", SET_FOR_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SET_ONE_BY_ONE = """
import sys
import torch
sys.path.insert(0, {tests!r})
import tiny, lrpx
from lrpx.models.turns import is_exact, matrix_precision, precision
torch.set_float32_matmul_precision({first!r})
matmul = torch.backends.{backend}.matmul
matmul.fp32_precision = {value!r}
model = tiny.build("causal:llama", dtype=torch.float32)
for tf32 in (False, True):
    lrpx.explain(model, None, [5, 17, 3], tf32=tf32)
    assert matmul.fp32_precision == {value!r}
before = precision()
with matrix_precision(True):
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert not is_exact()
assert precision() == before
print(is_exact())
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from torch 2.9 on")
@pytest.mark.parametrize(
    ("first", "backend", "value", "exact"),
    [
        ("highest", "cuda", "tf32", False),
        ("highest", "mkldnn", "bf16", True),
        ("high", "cuda", "ieee", True),
        ("highest", "cuda", "none", True),
    ],
)
def test_precision_set_for_backends_one_by_one(first, backend, value, exact):
    """PyTorch then refuses to say it in one word. In a process of its own: there is no way back."""
    code = SET_ONE_BY_ONE.format(
        tests=str(Path(__file__).parents[1] / "helpers"), first=first, backend=backend, value=value
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(exact)
