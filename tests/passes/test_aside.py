"""Work aside: done at once on a CPU, apart in a trace, on a stream of its own in a CUDA graph; joined before it is used."""

import weakref
from contextlib import contextmanager

import pytest
import tiny
import torch
from compiled_tools import batch_for, gpt2
from support import runner_of

from lrpx.passes.aside import Aside, OnAStream
from lrpx.passes.attribution import run
from lrpx.passes.compiled import partition
from lrpx.passes.compiled.plan import Plan
from lrpx.passes.compiled.trace import weights_of
from lrpx.passes.cuda_graphs import _padded
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.text.batching import Item, pad

Q = PassSpec("attnlrp")


class Noting(Aside):
    """What was done aside, and how much of it when the results were asked for."""

    def __init__(self):
        self.done, self.joined = [], []

    def __call__(self, work):
        self.done.append(work())
        return self.done[-1]

    def join(self):
        self.joined.append(len(self.done))


def asked(model, *lengths, likeliest=5):
    rows = [tiny.inputs(model, n_tokens=n, seed=n)["input_ids"][0].tolist() for n in lengths]
    return pad([Item(tuple(ids), len(ids) - 1, 11, 13) for ids in rows], model, likeliest=likeliest)


def test_what_the_model_predicts_is_found_aside():
    """All logits, what the model does to them (Gemma 2 caps them), and their reduction; nothing else."""
    model = tiny.build("causal:gemma2")
    noting = Noting()
    found = compute(model, asked(model, 9), Q, PassOptions(static=True, aside=noting))
    first, capped, reduced = noting.done
    assert first[:, 0].shape == capped.shape == (1, model.config.get_text_config().vocab_size)
    assert not torch.equal(first[:, 0], capped)
    assert reduced.shape == (1, 2 * 5 + 4) == (1, found.predicted)
    assert noting.joined == [3]
    plain = compute(model, asked(model, 9), Q, PassOptions(static=True))
    assert torch.equal(found.summary, plain.summary)
    assert not any(t.requires_grad for t in noting.done)


def test_nothing_is_aside_where_nothing_is_asked():
    noting = Noting()
    model = tiny.build("causal:llama")
    compute(model, asked(model, 9, likeliest=0), Q, PassOptions(aside=noting))
    assert noting.done == []


def test_a_plan_does_it_aside_and_joins_before_it_is_used(on_paper):
    model = gpt2(layers=2)
    batch = asked(model, 9)
    plan = Plan(model, batch, Q, PassOptions(static=True))
    noting = Noting()
    found = plan.run(batch, weights_of(model), noting)
    assert len(noting.done) == 3  # all logits, those of the position, and their reduction
    assert noting.joined == [3]
    apart = [i for i, step in enumerate(plan._steps) if step.aside]
    [joins] = [i for i, step in enumerate(plan._steps) if step.joins]
    assert joins == len(plan._steps) - 1 > apart[-1] + 2  # the backward pass is between them
    made = {name for i in apart for name in plan._steps[i].outputs}
    users = [i for i, step in enumerate(plan._steps) if made & set(step.inputs)]
    assert set(users) <= {*apart, joins}
    eager = compute(model, batch, Q)
    assert torch.allclose(found.summary, eager.summary, rtol=1e-5, atol=1e-6)


def test_a_plan_without_it_joins_nowhere(on_paper):
    model = gpt2(layers=2)
    plan = Plan(model, batch_for(model), Q, PassOptions(static=True))
    assert not any(step.aside or step.joins for step in plan._steps)


@pytest.fixture
def on_paper(monkeypatch):
    """Pieces run as they were traced."""
    monkeypatch.setattr(partition, "_compile", lambda graph, examples: graph)


class Stream:
    """Instead of a ``torch.cuda.Stream``: notes which stream has waited for which."""

    def __init__(self, name, waits):
        self.name, self.waits = name, waits

    def wait_stream(self, other):
        self.waits.append((self.name, other.name))


@contextmanager
def entering(entered, stream):
    entered.append(stream.name)
    yield


def test_a_stream_waits_and_is_waited_for(monkeypatch):
    waits, entered = [], []
    usual = Stream("usual", waits)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: usual)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: entering(entered, stream))
    aside = OnAStream(torch.device("cuda"), Stream("own", waits))
    aside.join()
    assert waits == []  # it has no part in a capture yet
    assert aside(lambda: 5) == 5
    assert aside(lambda: 6) == 6
    assert entered == ["own", "own"]
    assert waits == [("own", "usual")] * 2
    aside.join()
    aside.join()
    assert waits == [*[("own", "usual")] * 2, ("usual", "own")]


def test_what_the_work_reads_stays_until_it_is_joined(monkeypatch):
    """Its memory would be used for other tensors, while the stream still reads it."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("usual", []))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: entering([], stream))
    aside, read = OnAStream(torch.device("cuda"), Stream("own", [])), torch.ones(3)
    aside(lambda read=read: read.sum())
    there = weakref.ref(read)
    del read
    assert there() is not None
    aside.join()
    assert there() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", ["causal:llama", "causal:gemma2", "masked:bert"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_graph_with_a_branch_repeats_the_pass(family, compiled):
    model = tiny.build(family).to("cuda")
    for length in (9, 12, 9, 11):
        batch = asked(model, length)
        found = run(model, batch, "attnlrp", runner=runner_of(model, fast=True, compile=compiled))
        eager = compute(model, _padded(model, batch, 16), Q).read(1)
        if compiled:
            assert found.predictions == pytest.approx(eager.predictions, rel=1e-3)
        else:
            assert (found.predictions == eager.predictions).all()
            assert (found.products == eager.products[:, : found.products.shape[1]]).all()
    assert len(runner_of(model).graphs) == 1
