"""How a pass is run: options that are heard, memory that is estimated, ways back, and nothing kept of a model that is gone."""

import gc
import weakref

import numpy as np
import pytest
import tiny
import torch
from support import runner_of
from transformers import LlamaForCausalLM

import lrpx
from lrpx.errors import LrpxError
from lrpx.passes import dispatch as module
from lrpx.passes.attribution import run
from lrpx.passes.cuda_graphs import Graphs
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.passes.forward_backward import compute
from lrpx.text.batching import Item, pad


def batch_for(model, lengths=(9, 6)):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(row), len(row) // 2, 11, 13) for row in rows], model)


def assert_same(found, expected):
    assert (found.values == expected.values).all()
    assert (found.products == expected.products).all()


@pytest.fixture
def asked(monkeypatch):
    """The options that were given to ``compute``; ``asked.fail`` may raise for some."""

    class Asked(list):
        fail = staticmethod(lambda options: None)

    seen = Asked()

    def noting(model, batch, spec, options):
        seen.append(options)
        seen.fail(options)
        return compute(model, batch, spec, options)

    monkeypatch.setattr(module, "compute", noting)
    return seen


# Options


@pytest.mark.parametrize("checkpoint", [True, False, None])
def test_checkpointing_is_as_asked_for(asked, checkpoint):
    model = tiny.build("causal:llama")
    found = run(model, batch_for(model), "attnlrp", runner=runner_of(model, checkpoint=checkpoint))
    assert [options.checkpoint for options in asked] == [checkpoint is True]
    assert_same(found, run(model, batch_for(model), "attnlrp"))


def test_an_unsuitable_model_is_refused_before_anything_is_computed(asked):
    model = tiny.build("causal:llama").train()
    with pytest.raises(LrpxError, match="training mode"):
        run(model, batch_for(model), "attnlrp")
    assert asked == []


IDLE = [
    (
        "lrp",
        {"fast": True},
        torch.float32,
        ["fast=True changes nothing: CUDA graphs need a GPU, and the model is on cpu"],
    ),
    (
        "lrp",
        {"fast": True, "checkpoint": True},
        torch.float32,
        ["fast=True changes nothing: a checkpointed pass is not"],
    ),
    ("alti", {"compile": True}, torch.float32, ["compile=True changes nothing: alti has no backward pass"]),
    ("alti-logit", {"checkpoint": True, "fast": True}, torch.float32, ["fast=True", "checkpoint=True"]),
    ("lrp", {}, torch.float64, []),
    ("gradient", {"checkpoint": True}, torch.float32, []),
    ("alti", {"checkpoint": False, "fast": False}, torch.float32, []),
]


@pytest.mark.parametrize(("method", "options", "dtype", "said"), IDLE)
def test_the_log_says_which_options_change_nothing(caplog, method, options, dtype, said):
    model = tiny.build("causal:llama", dtype=dtype)
    with caplog.at_level("INFO", logger="lrpx"):
        lrpx.explain(model, None, [5, 17, 3], method=method, **options)
    found = [r.getMessage() for r in caplog.records]
    assert len(found) == len(said)
    assert all(a.startswith(b) for a, b in zip(found, said, strict=True))


# The output embedding


class Softmax(LlamaForCausalLM):
    """Its logits cannot be made one by one."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.softmax(-1)
        return output


def softmax_model():
    model = tiny.build("causal:llama")
    model.__class__ = Softmax
    return model


def test_a_model_whose_logits_are_not_made_one_by_one_is_remembered(asked):
    model = softmax_model()
    batch = batch_for(model)
    first, second = (run(model, batch, {}, runner=runner_of(model)) for _ in range(2))
    assert [options.whole_head for options in asked] == [False, True, True]
    assert runner_of(model).whole_head
    assert_same(second, first)
    with torch.no_grad():
        p = model(**batch.inputs).logits[torch.arange(2), batch.positions]
    np.testing.assert_allclose(first.values, p[:, 11] - p[:, 13], rtol=1e-6)


def test_each_model_by_itself(asked):
    run(softmax_model(), batch_for(softmax_model()), {})
    asked.clear()
    model = tiny.build("causal:llama")
    run(model, batch_for(model), {})
    run(softmax_model(), batch_for(model), {})
    assert [options.whole_head for options in asked] == [False, False, True]


def test_a_failure_that_is_not_the_heads_is_not_remembered():
    model = tiny.build("causal:llama")

    def fail(*_):
        raise ZeroDivisionError

    hook = model.lm_head.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        run(model, batch_for(model), "lrp")
    hook.remove()
    run(model, batch_for(model), "lrp")
    assert not runner_of(model).whole_head


def test_the_way_back_keeps_the_options(asked):
    model = softmax_model()
    run(model, batch_for(model), {}, runner=runner_of(model, checkpoint=True))
    assert [(q.whole_head, q.checkpoint) for q in asked] == [(False, True), (True, True)]


# What is kept of a model


def test_nothing_is_kept_of_a_model_that_is_gone():
    model = tiny.build("causal:llama")
    lrpx.explain(model, None, [11, 12, 13], checkpoint=True)
    explainer = lrpx.Explainer(model)
    explainer([11, 12, 13])
    gone = [weakref.ref(each) for each in (model, explainer, explainer._runner, explainer._runner.graphs)]
    del model, explainer
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4


def test_a_runner_forgets_on_demand():
    model = softmax_model()
    runner = PassRunner(model)
    run(model, batch_for(model), {}, runner=runner)
    assert runner.whole_head
    runner.refresh()
    assert not runner.whole_head


def test_an_eager_pass_is_not_compared_with_anything(monkeypatch):
    """Comparing costs time that only a captured or compiled pass gives back."""
    monkeypatch.setattr(module, "ModelState", None)
    model = tiny.build("causal:llama")
    for fast in (None, True):
        for _ in range(3):
            run(model, batch_for(model), "attnlrp", runner=runner_of(model, fast=fast))
    assert runner_of(model).state is None


# Memory that runs out


def too_much(options):
    if not options.checkpoint:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_pass_that_does_not_fit_is_checkpointed(asked, caplog):
    model = tiny.build("causal:llama")
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()
    asked.fail = too_much
    found = run(model, batch_for(model), "attnlrp")
    assert [options.checkpoint for options in asked] == [False, True]
    assert_same(found, expected)
    assert "checkpoint=True" in caplog.text
    run(model, batch_for(model), "attnlrp")
    assert [options.checkpoint for options in asked[2:]] == [False, True]  # another text may fit


def test_not_where_that_was_ruled_out(asked):
    model = tiny.build("causal:llama")
    asked.fail = too_much
    with pytest.raises(torch.OutOfMemoryError):
        run(model, batch_for(model), "attnlrp", runner=runner_of(model, checkpoint=False))
    assert len(asked) == 1


@pytest.mark.parametrize("checkpoint", [True, None])
def test_not_a_third_time(asked, checkpoint):
    model = tiny.build("causal:llama")

    def fail(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    asked.fail = fail
    with pytest.raises(torch.OutOfMemoryError):
        run(model, batch_for(model), "attnlrp", runner=runner_of(model, checkpoint=checkpoint))
    assert [options.checkpoint for options in asked] == [True] if checkpoint else [False, True]


def test_other_errors_are_no_lack_of_memory(asked):
    model = tiny.build("causal:llama")

    def fail(_):
        raise RuntimeError("of another kind")

    asked.fail = fail
    with pytest.raises(RuntimeError, match="of another kind"):
        run(model, batch_for(model), "attnlrp")
    assert len(asked) == 1


def out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_nor_does_a_compiled_pass_fit(asked, monkeypatch):
    model = tiny.build("causal:llama")
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()
    for checkpoint in (None, False):
        runner = PassRunner(model, Execution(fast=True, compile=True, checkpoint=checkpoint))
        monkeypatch.setattr(runner.compiled, "run", out_of_memory)
        if checkpoint is False:
            with pytest.raises(torch.OutOfMemoryError):
                run(model, batch_for(model), "attnlrp", runner=runner)
        else:
            assert_same(run(model, batch_for(model), "attnlrp", runner=runner), expected)
    assert [options.checkpoint for options in asked] == [True]


@pytest.mark.parametrize("checkpoint", [None, False])
def test_a_graph_that_does_not_fit_is_not_tried_again(asked, monkeypatch, checkpoint):
    model, tried = tiny.build("causal:llama"), []
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()
    runner = PassRunner(model, Execution(fast=True, checkpoint=checkpoint))
    monkeypatch.setattr(Graphs, "takes", lambda *_: True)
    monkeypatch.setattr(runner.graphs, "capture", lambda *_, **__: tried.append(1) or out_of_memory())
    for _ in range(2):
        assert_same(run(model, batch_for(model), "attnlrp", runner=runner), expected)
    assert len(tried) == 1
    assert [options.checkpoint for options in asked] == [False, False]


@pytest.mark.parametrize("place", ["model.layers.1.mlp", "lm_head"])
def test_wherever_in_the_model_it_happens(asked, place):
    """Also at the output embedding, where another failure would mean that logits are not made one by one."""
    model = tiny.build("causal:llama")
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()
    times = []

    def once(*_):
        times.append(None)
        if len(times) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.get_submodule(place).register_forward_hook(once)
    assert_same(run(model, batch_for(model), "attnlrp"), expected)
    assert [(q.checkpoint, q.whole_head) for q in asked] == [(False, False), (True, False)]
    assert not runner_of(model).whole_head


def test_the_estimate_decides_where_nothing_is_asked_for(asked, monkeypatch):
    model = tiny.build("causal:gpt2")
    monkeypatch.setattr(module, "needs_checkpoint", lambda *_, **__: True)
    for checkpoint in (None, False):
        run(model, batch_for(model), "attnlrp", runner=runner_of(model, checkpoint=checkpoint))
    assert [options.checkpoint for options in asked] == [True, False]


# Other work while the device is busy


def test_other_work_is_done_once_before_the_result_is_read(monkeypatch):
    model, order = tiny.build("causal:llama"), []
    runner, read = PassRunner(model), module.PassResult.read
    monkeypatch.setattr(module.PassResult, "read", lambda *args: order.append("read") or read(*args))
    with runner.meanwhile(lambda: order.append("work")):
        run(model, batch_for(model), "lrp", runner=runner)
        run(model, batch_for(model), "lrp", runner=runner)
    assert order == ["work", "read", "read"]


def test_other_work_is_done_without_a_pass_and_dropped_after_an_error():
    runner, done = PassRunner(tiny.build("causal:llama")), []
    with runner.meanwhile(lambda: done.append(1)):
        pass
    with pytest.raises(RuntimeError, match="stopped"), runner.meanwhile(lambda: done.append(2)):
        raise RuntimeError("stopped")
    runner.use_the_wait()
    assert done == [1]


def test_an_error_of_other_work_is_raised_after_the_pass_and_before_one_of_the_block():
    """It belongs to what was computed before: whoever catches errors of a pass must not take it for one."""
    runner, order = PassRunner(tiny.build("causal:llama")), []

    def fails():
        order.append("work")
        raise ValueError("the disk is full")

    def reads():
        runner.use_the_wait()
        order.append("read")

    def stops():
        runner.use_the_wait()
        raise RuntimeError("stopped")

    for block in (reads, stops):
        with pytest.raises(ValueError, match="disk is full"), runner.meanwhile(fails):
            block()
    with runner.meanwhile(lambda: order.append("again")):
        pass
    assert order == ["work", "read", "work", "again"]
