"""CUDA graphs give what the eager pass gives for the same padded batch, bit for bit, and notice a model that has changed."""

import contextlib
import gc
import unittest.mock
import weakref

import numpy as np
import pytest
import tiny
import torch
from support import change_mlp, runner_of
from torch import nn

import lrpx
from lrpx.passes import cuda_graphs as module
from lrpx.passes.attribution import run
from lrpx.passes.compiled import plan
from lrpx.passes.compiled.plan import Plan
from lrpx.passes.cuda_graphs import KEPT, MAX_TOKENS, Graphs, _padded, bucket
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassSpec
from lrpx.propagation import rules
from lrpx.propagation.jacobians import scale_gradient
from lrpx.propagation.rulesets import ATTNLRP
from lrpx.text.batching import Item, pad

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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


def test_lengths_are_rounded_up():
    assert [bucket(n, None) for n in (1, 8, 9, 64, 65, 129, 500)] == [8, 8, 16, 64, 80, 160, 512]
    assert bucket(9, 12) == 12  # never beyond what the model reads
    assert bucket(13, 12) == 13


@pytest.mark.parametrize("family", ["causal:llama", "masked:fnet"])
def test_only_where_padding_changes_nothing(family):
    model = tiny.build(family)
    assert Graphs(model).shape_of(batch_for(model))[1] == (16 if family == "causal:llama" else 9)


def test_a_causal_model_made_to_look_both_ways_is_not_padded(pretended):
    """With padding, transformers would mask what comes later."""
    model = tiny.build("causal:llama")
    before = explained(model, fast=True)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    values = [explained(model, fast=True) for _ in range(3)]
    assert values == [explained(model, fast=False)] * 3
    assert values[0] != pytest.approx(before)
    ids = [tiny.inputs(model, n_tokens=n)["input_ids"][0].tolist() for n in (40, 39)]
    several = lrpx.explain(model, None, ids, target=11, contrast=13, position=5, fast=False)
    alone = [lrpx.explain(model, None, i, target=11, contrast=13, position=5, fast=False) for i in ids]
    for a, b in zip(several, alone, strict=True):
        assert a.relevance == pytest.approx(b.relevance, rel=1e-9)


def test_on_a_cpu_there_are_none():
    model = tiny.build("causal:llama")
    batch = batch_for(model)
    plain, asked = run(model, batch, "attnlrp"), run(model, batch, "attnlrp", runner=runner_of(model, fast=True))
    assert len(runner_of(model).graphs) == 0
    assert (plain.products == asked.products).all()


class Recording:
    """In place of a ``torch.cuda.CUDAGraph``: replaying changes nothing, so what was captured stays."""

    def capture_begin(self, **_):
        pass

    capture_end = replay = capture_begin


@pytest.fixture
def pretended(monkeypatch):
    """Graphs without a GPU, to see when one is captured and used; returns the model classes of all captures."""
    for name in ("Stream", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: unittest.mock.MagicMock())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(module, "_fits", lambda batch: True)
    captured, plain = [], Graphs.capture

    def noted(self, *args, **options):
        found = plain(self, *args, **options)
        captured.append(type(self._model).__name__)
        return found

    monkeypatch.setattr(Graphs, "capture", noted)
    return captured


def explained(model, **options):
    return run(model, batch_for(model), "attnlrp", runner=runner_of(model, **options)).values[0]


def test_captured_once_and_replayed(pretended):
    model = tiny.build("causal:llama")
    assert [explained(model) for _ in range(4)] == [explained(model, fast=False)] * 4
    assert pretended == ["LlamaForCausalLM"]


def test_heads_and_layers_are_replayed_too(pretended):
    model = tiny.build("causal:llama")
    plain = run(model, batch_for(model), "attnlrp", runner=runner_of(model, fast=False), heads=True).inside[0]
    for _ in range(3):
        found = run(model, batch_for(model), "attnlrp", runner=runner_of(model), heads=True).inside[0]
        for name in ("by_head", "by_attention", "by_mlp", "by_layer"):
            length = plain[name].shape[-1]  # a graph is padded
            np.testing.assert_allclose(found[name][..., :length], plain[name], rtol=1e-9, atol=1e-12)
    assert pretended == ["LlamaForCausalLM"]


@pytest.mark.compiler
@pytest.mark.slow
def test_every_shape_of_a_compiled_pass_is_captured(pretended, as_traced):
    """One trace serves all lengths; it must not keep the second length from being captured."""
    model = tiny.build("causal:llama")
    lengths = ((4,), (12,), (20,), (4, 4))
    for _ in range(2):
        for shape in lengths:
            batch = batch_for(model, shape)
            found = run(model, batch, "attnlrp", runner=runner_of(model, fast=True, compile=True)).products
            plain = run(model, batch, "attnlrp", runner=runner_of(model, fast=False)).products
            np.testing.assert_allclose(found[:, : plain.shape[1]], plain, rtol=1e-6, atol=1e-9)
        assert pretended == ["LlamaForCausalLM"] * len(lengths)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("family", ["causal:llama", "masked:bert"])
def test_a_graph_takes_one_compilation(pretended, as_traced, quickly, monkeypatch, family):
    """Of the padded text. BERT would have another plan for the text without padding, which needs no mask."""
    model, plans = tiny.build(family), []
    monkeypatch.setattr(plan, "Plan", lambda *args: plans.append(Plan(*args)) or plans[-1])
    for length in (9, 9, 20):
        batch = batch_for(model, (length,))
        found = run(model, batch, "attnlrp", runner=runner_of(model, fast=True, compile=True)).products
        expected = run(model, batch, "attnlrp", runner=runner_of(model, fast=False)).products
        np.testing.assert_allclose(found[:, :length], expected, rtol=1e-6, atol=1e-9)
    assert len(plans) == 1
    assert len(pretended) == 2
    monkeypatch.setattr(Graphs, "takes", lambda *_: False)  # a long text: now the other one is needed
    run(model, batch_for(model, (40,)), "attnlrp", runner=runner_of(model, fast=True, compile=True))
    assert len(plans) == (2 if family == "masked:bert" else 1)


class Scaled(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.scales, self.used = base, {"a": 1.0, "b": 3.0}, ["a"]

    def forward(self, x):
        return self.base(x) * self.scales[self.used[0]]


@pytest.mark.slow
def test_what_a_module_holds_is_noticed(trusted, pretended):
    """Nothing stale is given, and a model that changes with every text is not captured each time."""
    model = tiny.build("causal:llama")
    layer = model.model.layers[0].mlp
    layer.up_proj = scaled = Scaled(layer.up_proj).eval()
    for used in "aa" + 15 * "ab":
        scaled.used[0] = used
        assert explained(model) == explained(model, fast=False)
    assert 2 <= len(pretended) <= 5
    for _ in range(40):
        assert explained(model) == explained(model, fast=False)
    captures = len(pretended)
    for _ in range(3):
        assert explained(model) == explained(model, fast=False)
    assert len(pretended) == captures  # replayed
    scaled.scales["b"] = 2.0
    assert explained(model) == explained(model, fast=False)
    assert explained(model, fast=True) == explained(model, fast=False)
    assert len(pretended) == captures + 1


def test_code_of_others_is_not_captured(pretended, caplog):
    """A hook may do something else each time."""
    model = tiny.build("causal:llama")
    factor = [1.0]
    hook = model.model.layers[0].mlp.register_forward_hook(lambda _, __, y: y * factor[0])
    with caplog.at_level("INFO", logger="lrpx"):
        values = []
        for factor[0] in (1.0, 2.0, 3.0, 4.0):
            values.append(explained(model, fast=True))
            assert values[-1] == explained(model, fast=False)
    assert len(set(values)) == 4
    assert pretended == []
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("LlamaForCausalLM runs without CUDA graphs: model.layers.0.mlp has a hook (")
    hook.remove()
    assert explained(model, fast=True) == explained(model, fast=False)
    assert len(pretended) == 1
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, y: y * factor[0])
    assert explained(model, fast=True) == explained(model, fast=False)
    assert len(pretended) == 1


def test_rules_of_others_are_not_captured(pretended):
    model = tiny.build("causal:llama")
    factor = [1.0]

    def scaled(call):
        return scale_gradient(call(), factor[0])

    found = []
    for factor[0] in (1.0, 2.0):
        for fast in (True, False):
            result = run(model, batch_for(model), {**ATTNLRP, "activation": scaled}, runner=runner_of(model, fast=fast))
            found.append(result.products[0, :9])
    assert (found[0] == found[1]).all()
    assert (found[2] == found[3]).all()
    assert (found[0] != found[2]).any()
    assert pretended == []
    run(model, batch_for(model), {**ATTNLRP, "activation": rules.identity}, runner=runner_of(model, fast=True))
    assert len(pretended) == 1


def test_what_surrounds_a_pass_is_part_of_what_is_captured(pretended):
    model = tiny.build("causal:llama", dtype=torch.float32)
    plain = explained(model, fast=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = explained(model, fast=True)
        assert other == pytest.approx(explained(model, fast=False), rel=0.05)  # which is not padded
    assert other != plain
    assert explained(model, fast=True) == plain
    assert len(pretended) == 2


def test_a_model_that_changes_itself_is_not_captured(lenient, trusted, pretended, caplog):
    class Remembers(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.last = base, []

        def forward(self, x):
            self.last.append(self.base(x))
            return self.last[-1]

    model = tiny.build("causal:llama")
    model.model.layers[0].mlp = Remembers(model.model.layers[0].mlp).eval()
    with caplog.at_level("INFO", logger="lrpx"):
        for _ in range(3):
            assert explained(model, fast=True) == explained(model, fast=False)
    assert pretended == []
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "changes itself while it runs: last" in said[0]
    model.model.layers[0].mlp = model.model.layers[0].mlp.base
    assert explained(model, fast=True) == explained(model, fast=False)
    assert len(pretended) == 1


def test_a_length_that_a_model_notes_is_no_change(pretended):
    model = tiny.build("masked:funnel")
    batches = [batch_for(model, (n,)) for n in (9, 12)]
    captures = []
    for _ in range(4):
        captures.append(len(pretended))
        for batch in batches:
            found = run(model, batch, {}, runner=runner_of(model, fast=True))
            assert found.values == run(model, batch, {}, runner=runner_of(model, fast=False)).values
    assert captures[2] == captures[3] <= 4


@needs_cuda
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ruleset", ["lrp", "attnlrp", {}], ids=["lrp", "attnlrp", "gradient"])
def test_bit_for_bit(family, ruleset):
    model = on_cuda(family)
    for lengths in [(9,), (13, 11), (9,), (12, 9)]:  # two graphs, each used twice
        batch = batch_for(model, lengths, seed=len(lengths))
        found = run(model, batch, ruleset, runner=runner_of(model, fast=True))
        length = batch.inputs["input_ids"].shape[1]
        eager = compute(model, _padded(model, batch, 16), PassSpec(ruleset)).cut(length)
        assert torch.equal(found.hidden["input"].state, eager.states["input"])
        assert torch.equal(found.hidden["input"].gradient, eager.gradients["input"])
        reading = eager.read(len(lengths))
        assert (found.values == reading.values).all()
        assert (found.products == reading.products).all()
    assert len(runner_of(model).graphs) == 2


@needs_cuda
def test_from_the_second_use_on():
    model = on_cuda("causal:llama")
    for uses in range(3):
        run(model, batch_for(model, seed=uses), "attnlrp", runner=runner_of(model))
        assert len(runner_of(model).graphs) == min(uses, 1)
    run(model, batch_for(model), "attnlrp", runner=runner_of(model, fast=False))
    assert len(runner_of(model).graphs) == 1


@needs_cuda
def test_top_predictions_and_hidden_states_are_copied_out():
    model = on_cuda("causal:llama")
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    explainer = lrpx.Explainer(model, fast=True)
    first = explainer(ids, at=["input", "model.layers.*"])
    kept = first.layers["model.layers.1"].copy()
    again = explainer(ids[::-1], at=["input", "model.layers.*"])
    assert len(explainer._runner.graphs) == 1
    assert (first.layers["model.layers.1"] == kept).all()
    plain = lrpx.explain(model, None, ids[::-1], fast=False, at=["input", "model.layers.*"])
    assert again.target == plain.target
    assert again.layers["model.layers.1"] == pytest.approx(plain.layers["model.layers.1"], rel=1e-4, abs=1e-9)


@needs_cuda
@pytest.mark.parametrize("change", ["in place", "data", "layer", "hook", "moved"])
def test_a_model_that_changed_is_captured_again(change):
    model = on_cuda("causal:llama")
    batch = batch_for(model)
    before = run(model, batch, "attnlrp", runner=runner_of(model, fast=True))
    with torch.no_grad():
        weight = model.model.layers[0].mlp.up_proj.weight
        if change == "in place":
            weight.mul_(3)
        elif change == "data":
            weight.data = weight.data * 3
        elif change == "layer":
            new = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="cuda", dtype=weight.dtype)
            new.weight.copy_(weight * 3)
            model.model.layers[0].mlp.up_proj = new.eval()
        elif change == "hook":
            model.model.layers[0].mlp.up_proj.register_forward_hook(lambda m, a, y: y * 3)
        else:
            model.to("cpu")
            weight.mul_(3)
            model.to("cuda")
    found = run(model, batch, "attnlrp", runner=runner_of(model, fast=True))
    expected = run(model, batch, "attnlrp", runner=runner_of(model, fast=False))
    before, found, expected = (p.products[:, batch.spans[0]] for p in (before, found, expected))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-7 * abs(expected).max())
    assert before != pytest.approx(expected, rel=1e-3)


@needs_cuda
def test_compiled_passes_are_captured_too():
    """In float32: float64 on a GPU fails in TorchInductor of torch 2.11, "expected scalar type Double but found Float"."""
    model = tiny.build("causal:llama", dtype=torch.float32).to("cuda")
    for seed in range(3):
        batch = batch_for(model, (9 + seed,), seed=seed)
        found = run(model, batch, "attnlrp", runner=runner_of(model, fast=True, compile=True)).products[
            :, batch.spans[0]
        ]
        plain = run(model, batch, "attnlrp", runner=runner_of(model, fast=False)).products
        assert found == pytest.approx(plain, rel=1e-3, abs=1e-4 * abs(plain).max())
    assert len(runner_of(model).graphs) == 1


@needs_cuda
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
def test_what_cannot_be_captured_runs_as_usual(lenient, trusted, caplog):
    model = on_cuda("causal:llama")
    change_mlp(model, lambda y: y * (1 if float(y.sum()) else 2))
    with caplog.at_level("INFO", logger="lrpx"):
        found = run(model, batch_for(model), "attnlrp", runner=runner_of(model, fast=True))
    assert "without CUDA graphs" in caplog.text
    assert len(runner_of(model).graphs) == 0
    plain = run(model, batch_for(model), "attnlrp", runner=runner_of(model, fast=False))
    assert (found.products == plain.products).all()
    torch.cuda.synchronize()


@needs_cuda
def test_few_are_kept_and_large_batches_have_none():
    model = on_cuda("causal:llama")
    for rows in range(1, KEPT + 3):
        run(model, batch_for(model, (3,) * rows), "attnlrp", runner=runner_of(model, fast=True))
    assert len(runner_of(model).graphs) == KEPT
    run(model, batch_for(model, (16,) * (MAX_TOKENS // 16 + 1)), "attnlrp", runner=runner_of(model, fast=True))
    assert len(runner_of(model).graphs) == KEPT


@needs_cuda
def test_a_model_that_is_gone_leaves_nothing():
    model = on_cuda("causal:llama")
    runner = PassRunner(model, Execution(fast=True))
    run(model, batch_for(model), "attnlrp", runner=runner)
    assert len(runner.graphs) == 1
    gone = [weakref.ref(each) for each in (model, runner.graphs)]
    del model, runner
    gc.collect()
    assert [reference() for reference in gone] == [None] * 2
