"""How a pass is run: options that are heard, memory that is estimated, ways back, and nothing kept of a model that is gone."""

import gc
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from transformers import LlamaForCausalLM

import lrpx
from lrpx.errors import InputError, LrpxError
from lrpx.passes import dispatch as module
from lrpx.passes.attribution import run
from lrpx.passes.dispatch import DEFAULT, Execution, activation_bytes, known_of, needs_checkpoint
from lrpx.passes.forward_backward import PassSpec, compute
from lrpx.text.batching import Item, pad


def batch_for(model, lengths=(9, 6)):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(row), len(row) // 2, 11, 13) for row in rows], model)


def assert_same(found, expected):
    assert (found.values == expected.values).all()
    assert (found.products == expected.products).all()


@pytest.fixture
def asked(monkeypatch):
    """The questions that were put to ``compute``; ``asked.fail`` may raise for a question."""

    class Asked(list):
        fail = staticmethod(lambda question: None)

    seen = Asked()

    def noting(model, batch, question):
        seen.append(question)
        seen.fail(question)
        return compute(model, batch, question)

    monkeypatch.setattr(module, "compute", noting)
    return seen


# Options


@pytest.mark.parametrize("name", ["fast", "compile", "checkpoint", "tf32"])
@pytest.mark.parametrize("value", [1, 0, "yes", "", 1.0, np.True_, [True]])
def test_options_that_are_neither_true_nor_false_are_refused(name, value):
    with pytest.raises(InputError, match=rf"^{name}=.*: give True or False\."):
        Execution(**{name: value})


def test_none_lets_choose_where_there_is_a_choice():
    assert Execution(fast=None, checkpoint=None) == DEFAULT == Execution(None, False, None, False)
    for name in ("compile", "tf32"):
        with pytest.raises(InputError, match=f"{name}=None"):
            Execution(**{name: None})
    for fast in (True, False, None):
        for checkpoint in (True, False, None):
            assert Execution(fast, True, checkpoint, True).checkpoint is checkpoint


@pytest.mark.parametrize("checkpoint", [True, False, None])
def test_checkpointing_is_as_asked_for(asked, checkpoint):
    model = tiny.build("causal:llama")
    found = run(model, batch_for(model), "attnlrp", execution=Execution(checkpoint=checkpoint))
    assert [question.checkpoint for question in asked] == [checkpoint is True]
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
    ("lrp", {"tf32": True}, torch.float64, ["tf32=True changes nothing: the model is float64"]),
    ("alti", {"compile": True}, torch.float32, ["compile=True changes nothing: alti has no backward pass"]),
    ("alti-logit", {"checkpoint": True, "fast": True}, torch.float32, ["fast=True", "checkpoint=True"]),
    ("lrp", {}, torch.float64, []),
    ("gradient", {"tf32": True, "checkpoint": True}, torch.float32, []),
    ("alti", {"checkpoint": False, "fast": False, "tf32": True}, torch.float32, []),
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
    first, second = (run(model, batch, {}) for _ in range(2))
    assert [question.whole_head for question in asked] == [False, True, True]
    assert known_of(model).whole_head
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
    assert [question.whole_head for question in asked] == [False, False, True]


def test_a_failure_that_is_not_the_heads_is_not_remembered():
    model = tiny.build("causal:llama")

    def fail(*_):
        raise ZeroDivisionError

    hook = model.lm_head.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        run(model, batch_for(model), "lrp")
    hook.remove()
    run(model, batch_for(model), "lrp")
    assert not known_of(model).whole_head


def test_the_way_back_keeps_the_options(asked):
    model = softmax_model()
    run(model, batch_for(model), {}, execution=Execution(checkpoint=True))
    assert [(q.whole_head, q.checkpoint) for q in asked] == [(False, True), (True, True)]


# What is kept of a model


def test_what_is_known_of_a_model_goes_with_it():
    model, other = tiny.build("causal:llama"), tiny.build("causal:llama")
    known = known_of(model)
    assert known_of(model) is known
    assert known_of(other) is not known
    run(model, batch_for(model), "attnlrp")
    lrpx.explain(model, None, [11, 12, 13], checkpoint=True)
    assert known_of(model) is known
    gone = [weakref.ref(each) for each in (model, known, known.graphs, known.compiled)]
    gc.collect()  # models of other tests
    count = len(module._known)
    del model, known
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4
    assert len(module._known) == count - 1
    assert known_of(other) is known_of(other)


# Memory that runs out


def too_much(question):
    if not question.checkpoint:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_pass_that_does_not_fit_is_checkpointed(asked, caplog):
    model = tiny.build("causal:llama")
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()
    asked.fail = too_much
    found = run(model, batch_for(model), "attnlrp")
    assert [question.checkpoint for question in asked] == [False, True]
    assert_same(found, expected)
    assert "checkpoint=True" in caplog.text
    run(model, batch_for(model), "attnlrp")
    assert [question.checkpoint for question in asked[2:]] == [False, True]  # another text may fit


def test_not_where_that_was_ruled_out(asked):
    model = tiny.build("causal:llama")
    asked.fail = too_much
    with pytest.raises(torch.OutOfMemoryError):
        run(model, batch_for(model), "attnlrp", execution=Execution(checkpoint=False))
    assert len(asked) == 1


@pytest.mark.parametrize("checkpoint", [True, None])
def test_not_a_third_time(asked, checkpoint):
    model = tiny.build("causal:llama")

    def fail(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    asked.fail = fail
    with pytest.raises(torch.OutOfMemoryError):
        run(model, batch_for(model), "attnlrp", execution=Execution(checkpoint=checkpoint))
    assert [question.checkpoint for question in asked] == [True] if checkpoint else [False, True]


def test_other_errors_are_no_lack_of_memory(asked):
    model = tiny.build("causal:llama")

    def fail(_):
        raise RuntimeError("of another kind")

    asked.fail = fail
    with pytest.raises(RuntimeError, match="of another kind"):
        run(model, batch_for(model), "attnlrp")
    assert len(asked) == 1


@pytest.mark.parametrize("way", ["graphs", "compiled"])
def test_nor_does_a_graph_or_a_compiled_pass_fit(asked, monkeypatch, way):
    model = tiny.build("causal:llama")
    expected = run(model, batch_for(model), "attnlrp")
    asked.clear()

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(getattr(known_of(model), way), "answer", fail)
    for checkpoint in (None, False):
        execution = Execution(compile=way == "compiled", checkpoint=checkpoint)
        if checkpoint is False:
            with pytest.raises(torch.OutOfMemoryError):
                run(model, batch_for(model), "attnlrp", execution=execution)
        else:
            assert_same(run(model, batch_for(model), "attnlrp", execution=execution), expected)
    assert [question.checkpoint for question in asked] == [True]


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
    assert not known_of(model).whole_head


# Estimates


def on_cuda(rows, length):
    """A batch that says it is on a GPU; its ids take no memory."""
    ids = torch.zeros(1, 1, dtype=torch.int64).expand(rows, length)
    return SimpleNamespace(positions=SimpleNamespace(device=torch.device("cuda", 0)), inputs={"input_ids": ids})


@pytest.fixture
def memory(monkeypatch):
    """A GPU's memory, to be set."""
    now = SimpleNamespace(free=1 << 40, reserved=0, allocated=0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (now.free, 1 << 41))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: now.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: now.allocated)
    return now


def test_a_cpus_memory_is_not_looked_at(memory):
    model = tiny.build("causal:gpt2")
    memory.free = 0
    assert not needs_checkpoint(model, batch_for(model))


@pytest.mark.parametrize("compiled", [False, True])
def test_where_the_estimate_exceeds_what_is_free(memory, caplog, compiled):
    model = tiny.build("causal:gpt2", attn_implementation="sdpa")
    batch = on_cuda(1000, 1000)
    estimate = activation_bytes(model, batch, compiled=compiled)
    assert estimate > 1 << 30
    with caplog.at_level(logging.INFO, logger="lrpx"):
        for share, expected in ((0.79, False), (0.81, True), (2.0, True), (0.01, False)):
            memory.free = int(estimate / share)
            assert needs_checkpoint(model, batch, compiled=compiled) == expected, share
            assert ("checkpoint=True" in caplog.text) == expected
            caplog.clear()
    memory.free = int(estimate / 0.81)
    memory.reserved, memory.allocated = estimate, estimate // 2  # what PyTorch holds and does not use is free too
    assert not needs_checkpoint(model, batch, compiled=compiled)
    memory.reserved = memory.allocated
    assert needs_checkpoint(model, batch, compiled=compiled)


def test_small_passes_are_not_worth_a_look(memory):
    memory.free = 0
    model = tiny.build("causal:gpt2")
    assert not needs_checkpoint(model, on_cuda(1, 64))
    assert needs_checkpoint(model, on_cuda(1000, 1000))


def test_several_gpus_share_the_load(memory, monkeypatch):
    model = tiny.build("causal:gpt2")
    batch = on_cuda(1000, 1000)
    memory.free = activation_bytes(model, batch)
    assert needs_checkpoint(model, batch)
    monkeypatch.setattr(module, "described", lambda model: "cuda:0, cuda:1")
    assert not needs_checkpoint(model, batch)


def test_offloaded_weights_would_stay(memory, monkeypatch):
    model = tiny.build("causal:gpt2")
    monkeypatch.setattr(module, "is_offloaded", lambda model: True)
    assert needs_checkpoint(model, on_cuda(1, 4))
    assert not needs_checkpoint(model, batch_for(model))


def test_the_estimate_decides_where_nothing_is_asked_for(asked, monkeypatch):
    model = tiny.build("causal:gpt2")
    monkeypatch.setattr(module, "needs_checkpoint", lambda *_, **__: True)
    for checkpoint in (None, False):
        run(model, batch_for(model), "attnlrp", execution=Execution(checkpoint=checkpoint))
    assert [question.checkpoint for question in asked] == [True, False]


def test_the_estimate_by_hand():
    """Per token and block four vectors of the width and three of the MLP's, eager attention's weights three times."""
    rows, length = 3, 20
    batch = on_cuda(rows, length)
    model = tiny.build("causal:gpt2", dtype=torch.bfloat16, attn_implementation="sdpa")
    width, inner, layers = model.config.n_embd, 48, 2
    model.config.n_inner = inner
    vectors = rows * length * layers * 2
    assert activation_bytes(model, batch) == vectors * (4 * width + 3 * inner)
    assert activation_bytes(model, batch, compiled=True) == vectors * (4 * width + 2 * inner)
    model.config.n_inner = None  # four times the width
    assert activation_bytes(model, batch) == vectors * (4 * width + 3 * 4 * width)
    eager = tiny.build("causal:gpt2", dtype=torch.bfloat16, attn_implementation="eager")
    eager.config.n_inner = inner
    heads = eager.config.n_head
    assert activation_bytes(eager, batch) == vectors * (4 * width + 3 * inner + 3 * heads * length)
    mixture = tiny.build("causal:mixtral", dtype=torch.bfloat16, attn_implementation="sdpa")
    sizes = mixture.config
    expected = 4 * sizes.hidden_size + 3 * sizes.intermediate_size * sizes.num_experts_per_tok
    assert activation_bytes(mixture, batch) == vectors * expected


def saved_bytes(model, batch, question):
    """Of all that a pass saves for its backward pass, beside the weights."""
    weights = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage  # kept, so that no other tensor gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute(model, batch, question)
    return sum(storage.nbytes() for storage in saved.values())


BOTH = [
    "causal:gpt2",
    "causal:llama",
    "causal:qwen3",
    "causal:opt",
    "causal:falcon",
    "causal:gemma3_text",
    "masked:bert",
]
ESTIMATED = [(family, attention) for family in BOTH for attention in ("sdpa", "eager")]
ESTIMATED += [("causal:mixtral", "sdpa"), ("masked:modernbert", "sdpa"), ("masked:distilbert", "sdpa")]
ESTIMATED += [("causal:bloom", "eager"), ("causal:mpt", "eager")]


@pytest.mark.parametrize(("family", "attention"), ESTIMATED)
def test_the_estimate_is_of_the_right_size(family, attention):
    """Within a factor of three of what is saved; in a model of this width the MLP is smaller than in a large one."""
    model = tiny.build(family, dtype=torch.float32, attn_implementation=attention)
    for length, rules in ((60, "attnlrp"), (60, "lrp"), (60, {}), (16, "attnlrp")):
        batch = batch_for(model, (length, length))
        ratio = saved_bytes(model, batch, PassSpec(rules)) / activation_bytes(model, batch)
        assert 1 / 3 < ratio < 3, (length, rules)


def test_the_estimate_grows_as_the_memory_does():
    """With the texts, with their length, and with the square of it where attention weights are kept."""
    for attention in ("sdpa", "eager"):
        model = tiny.build("causal:llama", dtype=torch.float32, attn_implementation=attention)
        saved, estimate = {}, {}
        for rows, length in ((1, 16), (2, 16), (1, 64)):
            batch = batch_for(model, (length,) * rows)
            saved[rows, length] = saved_bytes(model, batch, PassSpec("attnlrp"))
            estimate[rows, length] = activation_bytes(model, batch)
        for more in ((2, 16), (1, 64)):
            growth = [each[more] / each[1, 16] for each in (saved, estimate)]
            assert growth[0] == pytest.approx(growth[1], rel=0.5), (attention, more)
        assert (growth[1] > 6) == (attention == "eager")
