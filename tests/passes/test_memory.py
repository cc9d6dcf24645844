"""How much memory a pass takes, by estimate, and when its blocks are recomputed because of that."""

import logging
from types import SimpleNamespace

import pytest
import tiny
import torch
import transformers
from support import slow_but

from lrpx.passes import memory as module
from lrpx.passes.forward_backward import compute
from lrpx.passes.memory import activation_bytes, needs_checkpoint
from lrpx.passes.spec import PassSpec
from lrpx.text.batching import Item, pad


def batch_for(model, lengths=(9, 6)):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(row), len(row) // 2, 11, 13) for row in rows], model)


def on_cuda(rows, length):
    """A batch that says it is on a GPU; its ids take no memory."""
    ids = torch.zeros(1, 1, dtype=torch.int64).expand(rows, length)
    on_gpu = SimpleNamespace(device=torch.device("cuda", 0))
    return SimpleNamespace(
        positions=on_gpu, inputs={"input_ids": ids}, ids=ids, shapes=[(rows, length)], of_images=False
    )


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
    monkeypatch.setattr(module, "devices_of", lambda model: "cuda:0, cuda:1")
    assert not needs_checkpoint(model, batch)


def test_offloaded_weights_would_stay(memory, monkeypatch):
    model = tiny.build("causal:gpt2")
    monkeypatch.setattr(module, "is_offloaded", lambda model: True)
    assert needs_checkpoint(model, on_cuda(1, 4))
    assert not needs_checkpoint(model, batch_for(model))


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


def saved_bytes(model, batch, spec):
    """Of all that a pass saves for its backward pass, beside the weights."""
    weights = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage  # kept, so that no other tensor gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute(model, batch, spec)
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


@pytest.mark.parametrize(("family", "attention"), slow_but(ESTIMATED, *ESTIMATED[:4]))
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


@pytest.mark.skipif(
    not hasattr(transformers.LlamaConfig(), "is_heterogeneous"), reason="layers are alike in this transformers"
)
def test_of_a_model_whose_layers_have_sizes_of_their_own_the_largest_count():
    model = tiny.build("causal:llama")
    batch, config = batch_for(model, (10,)), model.config
    alike = activation_bytes(model, batch)
    config.per_layer_config = {1: {"intermediate_size": config.intermediate_size + 16}}
    assert activation_bytes(model, batch) == alike + 10 * config.num_hidden_layers * 3 * 16 * model.dtype.itemsize
