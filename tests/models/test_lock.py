"""One thread at a time explains a model."""

import gc
import sys
import threading
import weakref

import pytest
import tiny
from torch import nn

import lrpx
from lrpx.evaluation.scoring import sources
from lrpx.methods import get_method
from lrpx.models.lock import lock_of
from lrpx.passes.dispatch import PassRunner
from lrpx.text.batching import Item, pad


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def test_a_lock_per_model_that_goes_with_it():
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    assert lock_of(model) is lock_of(model) is not lock_of(other)
    with lock_of(model), lock_of(model):  # a thread does not wait for itself
        pass
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def explained(model, ids, **options):
    return lambda: lrpx.explain(model, None, ids, fast=False, **options).relevance


def evaluated(model, ids, name="attnlrp"):
    def run():
        batch = pad([Item(tuple(ids), len(ids) - 1, 11, 13)], model)
        (attribution,) = sources([get_method(name)], PassRunner(model))[0].explain(batch, None)[0]
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
