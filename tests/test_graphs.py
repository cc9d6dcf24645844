"""CUDA graphs give what the eager pass gives for the same padded batch, bit for bit, and notice a model that has changed."""

import pytest
import tiny
import torch
from torch import nn

import lrpx
from lrpx.batching import Item, pad
from lrpx.capture import run
from lrpx.execution import Execution, known_of
from lrpx.graphs import KEPT, MAX_TOKENS, _padded, bucket
from lrpx.program import Question, compute

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FAST = Execution(fast=True)
FAMILIES = [
    "causal:llama",
    "causal:gpt2",
    "masked:bert",
    "causal:qwen3",
    "causal:gpt_neox",
    "causal:opt",
    "masked:roberta",
]


def batch_for(model, lengths=(9,), seed=0, target=11, contrast=13):
    ids = [tiny.inputs(model, n_tokens=n, seed=seed + i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(i), len(i) // 2, target, contrast) for i in ids], model)


def on_cuda(family):
    return tiny.build(family).to("cuda")


def test_lengths_are_rounded_up_where_padding_changes_nothing():
    model = tiny.build("causal:llama")
    assert [bucket(model, n, None) for n in (1, 8, 9, 64, 65, 129, 500)] == [8, 8, 16, 64, 80, 160, 512]
    assert bucket(model, 9, 12) == 12  # never beyond what the model reads
    assert bucket(model, 13, 12) == 13
    model.config.model_type = "fnet"
    assert bucket(model, 9, None) == 9


def test_on_a_cpu_there_are_none():
    model = tiny.build("causal:llama")
    batch = batch_for(model)
    plain, asked = run(model, batch, "attnlrp"), run(model, batch, "attnlrp", execution=FAST)
    assert len(known_of(model).graphs) == 0
    assert (plain.products == asked.products).all()


@needs_cuda
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rules", ["lrp", "attnlrp", {}], ids=["lrp", "attnlrp", "gradient"])
def test_bit_for_bit(family, rules):
    model = on_cuda(family)
    for lengths in [(9,), (13, 11), (9,), (12, 9)]:  # two graphs, each used twice
        batch = batch_for(model, lengths, seed=len(lengths))
        found = run(model, batch, rules, execution=FAST)
        length = batch.inputs["input_ids"].shape[1]
        eager = compute(model, _padded(model, batch, 16), Question(rules)).cut(length)
        assert torch.equal(found.hidden["input"].state, eager.states["input"])
        assert torch.equal(found.hidden["input"].gradient, eager.gradients["input"])
        reading = eager.read(len(lengths))
        assert (found.values == reading.values).all()
        assert (found.products == reading.products).all()
    assert len(known_of(model).graphs) == 2


@needs_cuda
def test_from_the_second_use_on():
    model = on_cuda("causal:llama")
    for uses in range(3):
        run(model, batch_for(model, seed=uses), "attnlrp")
        assert len(known_of(model).graphs) == min(uses, 1)
    run(model, batch_for(model), "attnlrp", execution=Execution(fast=False))
    assert len(known_of(model).graphs) == 1


@needs_cuda
def test_top_predictions_and_hidden_states_are_copied_out():
    model = on_cuda("causal:llama")
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    first = lrpx.explain(model, None, ids, fast=True, at=["input", "model.layers.*"])
    kept = first.layers["model.layers.1"].copy()
    again = lrpx.explain(model, None, ids[::-1], fast=True, at=["input", "model.layers.*"])
    assert (first.layers["model.layers.1"] == kept).all()
    plain = lrpx.explain(model, None, ids[::-1], fast=False, at=["input", "model.layers.*"])
    assert again.target == plain.target
    assert again.layers["model.layers.1"] == pytest.approx(plain.layers["model.layers.1"], rel=1e-4, abs=1e-9)


@needs_cuda
@pytest.mark.parametrize("change", ["in place", "data", "layer", "hook", "moved"])
def test_a_model_that_changed_is_captured_again(change):
    model = on_cuda("causal:llama")
    batch = batch_for(model)
    before = run(model, batch, "attnlrp", execution=FAST)
    with torch.no_grad():
        weight = model.model.layers[0].mlp.up_proj.weight
        if change == "in place":
            weight.mul_(3)
        elif change == "data":
            weight.data = weight.data * 3
        elif change == "layer":
            new = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="cuda", dtype=weight.dtype)
            new.weight.copy_(weight * 3)
            model.model.layers[0].mlp.up_proj = new
        elif change == "hook":
            model.model.layers[0].mlp.up_proj.register_forward_hook(lambda m, a, y: y * 3)
        else:
            model.to("cpu")
            weight.mul_(3)
            model.to("cuda")
    found = run(model, batch, "attnlrp", execution=FAST)
    expected = run(model, batch, "attnlrp", execution=Execution(fast=False))
    before, found, expected = (p.products[:, batch.spans[0]] for p in (before, found, expected))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-7 * abs(expected).max())
    assert before != pytest.approx(expected, rel=1e-3)


@needs_cuda
def test_compiled_passes_are_captured_too():
    model = on_cuda("causal:llama")
    both = Execution(fast=True, compile=True)
    for seed in range(3):
        batch = batch_for(model, (9 + seed,), seed=seed)
        found = run(model, batch, "attnlrp", execution=both).products[:, batch.spans[0]]
        plain = run(model, batch, "attnlrp", execution=Execution(fast=False)).products
        assert found == pytest.approx(plain, rel=1e-4, abs=1e-5 * abs(plain).max())
    assert len(known_of(model).graphs) == 1


@needs_cuda
def test_what_cannot_be_captured_runs_as_usual(caplog):
    model = on_cuda("causal:llama")
    model.model.layers[0].register_forward_pre_hook(lambda m, args: print(end="" if float(args[0].sum()) else " "))
    with caplog.at_level("INFO", logger="lrpx"):
        found = run(model, batch_for(model), "attnlrp", execution=FAST)
    assert "without a CUDA graph" in caplog.text
    assert len(known_of(model).graphs) == 0
    plain = run(model, batch_for(model), "attnlrp", execution=Execution(fast=False))
    assert (found.products == plain.products).all()
    torch.cuda.synchronize()


@needs_cuda
def test_few_are_kept_and_large_batches_have_none():
    model = on_cuda("causal:llama")
    for rows in range(1, KEPT + 3):
        run(model, batch_for(model, (3,) * rows), "attnlrp", execution=FAST)
    assert len(known_of(model).graphs) == KEPT
    run(model, batch_for(model, (16,) * (MAX_TOKENS // 16 + 1)), "attnlrp", execution=FAST)
    assert len(known_of(model).graphs) == KEPT


@needs_cuda
def test_a_model_that_is_gone_leaves_nothing():
    import gc
    import weakref

    model = on_cuda("causal:llama")
    run(model, batch_for(model), "attnlrp", execution=FAST)
    gone, graphs = weakref.ref(model), weakref.ref(known_of(model).graphs)
    del model
    gc.collect()
    assert gone() is None
    assert graphs() is None
