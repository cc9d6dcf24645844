"""Hidden states at any place, refusal of what cannot be explained, and theory: what relevance must satisfy."""

import numpy as np
import pytest
import tiny
import torch
from torch import nn

import lrpx
from lrpx.errors import InputError, NonFiniteError, UnsupportedModelError
from lrpx.methods import METHODS
from lrpx.passes import attribution
from lrpx.passes.attribution import Later, run
from lrpx.passes.hidden_states import layer_count, resolve_at
from lrpx.passes.validation import check_model, foreign_nodes
from lrpx.text.batching import Item, pad

FAMILIES = ["causal:gpt2", "causal:llama", "causal:mixtral", "masked:bert", "causal:bloom", "causal:gpt_neox"]
RULES = ["lrp", "attnlrp", "lrp-uniform-gate"]


def batch_for(model, target=11, contrast=13, n=9, position=4, seed=0):
    ids = tiny.inputs(model, n_tokens=n, seed=seed)["input_ids"][0].tolist()
    return pad([Item(tuple(ids), position, target, contrast)], model)


def relevance(model, rules, at=("input",), **what):
    result = run(model, batch_for(model, **what), rules, at)
    return {name: h.state * h.gradient for name, h in result.hidden.items()}, float(result.values[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rules", RULES)
def test_contrast_is_antisymmetric_and_a_difference(family, rules):
    """R(a, b) = -R(b, a) = R(a) - R(b)."""
    model = tiny.build(family)
    ab, value = relevance(model, rules, target=11, contrast=13)
    ba, other = relevance(model, rules, target=13, contrast=11)
    a, _ = relevance(model, rules, target=11, contrast=None)
    b, _ = relevance(model, rules, target=13, contrast=None)
    scale = float(ab["input"].abs().max())
    assert value == pytest.approx(-other, abs=1e-12)
    torch.testing.assert_close(ab["input"], -ba["input"], rtol=0, atol=1e-6 * scale)
    torch.testing.assert_close(ab["input"], a["input"] - b["input"], rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_lrp_adds_up_at_every_layer_and_attnlrp_does_not(family):
    model = tiny.build(family, zero_biases=True)
    blocks = next(n for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == layer_count(model))
    for rules, conserves in (("lrp", True), ("lrp-uniform-gate", True), ("attnlrp", False)):
        found, value = relevance(model, rules, ["input", f"{blocks}.?"])
        assert len(found) == 1 + layer_count(model)
        for name, r in found.items():
            missing = abs(float(r.sum()) - value) / float(r.abs().sum())
            last = name == f"{blocks}.{layer_count(model) - 1}"
            assert missing < 1e-6 if conserves or last else missing > 1e-4, (rules, name)


def test_neurons_and_layers_come_from_one_call():
    """Relevance of the MLP's neurons plus what goes round it is the block's relevance."""
    model = tiny.build("causal:llama")
    found, value = relevance(model, "lrp", ["model.layers.1.mlp.act_fn", "model.layers.0.mlp.*_proj", "input"])
    assert list(found) == [
        "input",
        "model.layers.1.mlp.act_fn",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.down_proj",
    ]
    width = model.config.intermediate_size
    assert found["model.layers.1.mlp.act_fn"].shape == (1, 9, width)
    up, down = (float(found[f"model.layers.0.mlp.{n}_proj"].sum()) for n in ("up", "down"))
    assert up == pytest.approx(down, rel=1e-6)  # all of it goes through the signal
    assert float(found["model.layers.0.mlp.gate_proj"].abs().sum()) == 0  # and none through the gate
    assert abs(float(found["input"].sum()) - value) < 1e-6 * abs(value)


def test_tapping_hidden_states_changes_nothing():
    model = tiny.build("causal:gpt2")
    alone, _ = relevance(model, "attnlrp")
    names = [n for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)]
    among, _ = relevance(model, "attnlrp", ["embedding", "input", "transformer.h.*.mlp", *names])
    torch.testing.assert_close(among["input"], alone["input"], rtol=1e-12, atol=0)


def test_globs_stay_between_dots():
    model = tiny.build("causal:llama")
    assert list(resolve_at(model, ["model.layers.*"])) == ["model.layers.0", "model.layers.1"]
    assert list(resolve_at(model, ["model.layers.?.mlp"])) == ["model.layers.0.mlp", "model.layers.1.mlp"]
    deep = resolve_at(model, ["model.layers.0.**"])
    assert {"model.layers.0.mlp", "model.layers.0.self_attn.q_proj"} <= set(deep)
    found, _ = relevance(model, "attnlrp", ["model.layers.*"])
    assert list(found) == ["input", "model.layers.0", "model.layers.1"]


def test_padding_that_takes_part_is_refused():
    """FNet mixes all positions, padding included, whatever the mask says."""
    model = tiny.build("masked:fnet")
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    items = [Item(tuple(ids[:n]), 2, 11, 13) for n in (9, 6)]
    with pytest.raises(UnsupportedModelError, match="one by one"):
        run(model, pad(items, model), "attnlrp")
    run(model, pad(items[1:], model), "attnlrp")


def test_constants_have_no_relevance_and_stay_constants():
    model = tiny.build("causal:llama")
    alone, _ = relevance(model, "attnlrp")
    among, _ = relevance(model, "attnlrp", ["input", "model.rotary_emb"])
    assert not among["model.rotary_emb"].any()
    torch.testing.assert_close(among["input"], alone["input"], rtol=0, atol=0)


def test_only_what_is_asked_for_is_differentiated():
    model = tiny.build("causal:llama")
    for p in model.parameters():
        p.requires_grad_(True)
    relevance(model, "attnlrp")
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_works_inside_no_grad_and_inference_mode():
    model = tiny.build("causal:gpt2")
    expected, _ = relevance(model, "lrp")
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found, _ = relevance(model, "lrp")
        torch.testing.assert_close(found["input"], expected["input"], rtol=0, atol=0)


def test_default_target_is_the_top_prediction():
    model = tiny.build("causal:gpt2")
    batch = batch_for(model, target=None, contrast=None)
    with torch.no_grad():
        logits = model(**batch.inputs).logits[0, 4]
    result = run(model, batch, "lrp")
    assert result.targets == [int(logits.argmax())]
    assert result.values[0] == pytest.approx(float(logits.max()), rel=1e-12)


def test_names_that_match_nothing_or_no_hidden_state():
    model = tiny.build("causal:llama")
    with pytest.raises(InputError, match=r"at='model.layer.\*' matches no module.*Did you mean"):
        resolve_at(model, ["model.layer.*"])
    model.unused = nn.Linear(2, 2).eval()
    with pytest.raises(InputError, match="did not run"):
        run(model, batch_for(model), "lrp", ["unused"])


def test_refuses_training_mode_and_hidden_kernels():
    model = tiny.build("causal:llama")
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"training mode.*model\.eval\(\)"):
        check_model(model, "lrp")
    model.eval()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(UnsupportedModelError, match=r"flash_attention_2.*sdpa"):
        check_model(model, "lrp")


def test_refuses_operations_it_does_not_know():
    """A kernel with its own backward pass and a function without a rule are named, not passed over."""

    class Scale(torch.autograd.Function):  # called like one of our own
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    for name, function in (("ScaleBackward", Scale.apply), ("special_i0", torch.special.i0)):
        model = tiny.build("causal:llama")
        mlp = model.model.layers[0].mlp
        mlp.register_forward_hook(lambda _, __, y, function=function: function(y))
        with pytest.raises(UnsupportedModelError, match=f"{name}.*gradient-x-input"):
            run(model, batch_for(model), "attnlrp")
        assert run(model, batch_for(model), {}).values.size == 1


def test_refuses_attention_it_cannot_see():
    """Rules that never met an attention are not reported as relevance."""
    model = tiny.build("causal:llama")
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    with pytest.raises(UnsupportedModelError, match="0 attentions"):
        run(model, batch_for(model), "lrp")


@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "lrp-uniform-gate"])
def test_a_softmax_written_out_is_a_softmax(rules):
    """``exp(s) / sum(exp(s))``, in a module of whatever name, gives the map of ``softmax(s)``."""

    def written_out(s):
        e = torch.exp(s - s.amax(-1, keepdim=True).detach())
        return e / e.sum(-1, keepdim=True)

    def explained(softmax):
        class Mixer(nn.Module):
            def __init__(self, attention):
                super().__init__()
                self.v, self.o = attention.q_proj, attention.o_proj

            def forward(self, hidden_states, **kwargs):
                v = self.v(hidden_states)
                return self.o(softmax(v @ v.mT / 10) @ v), None

        model = tiny.build("causal:llama")
        for layer in model.model.layers:
            layer.self_attn = Mixer(layer.self_attn).eval()
        return run(model, batch_for(model), rules)

    found, known = explained(written_out), explained(lambda s: torch.softmax(s, -1))
    assert found.mode.met["softmax"] == known.mode.met["softmax"] == 2
    torch.testing.assert_close(found.products, known.products)


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="this torch does not tell"
)
def test_refuses_checkpointing_by_hand():
    """What is recomputed in the backward pass would not follow the rules."""
    model = tiny.build("causal:llama")
    mlp = model.model.layers[0].mlp
    plain = mlp.forward
    mlp.forward = lambda x: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)
    with pytest.raises(UnsupportedModelError, match="checkpointing"):
        run(model, batch_for(model), "lrp")
    mlp.forward = plain
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # the caller's own are the caller's
        run(model, batch_for(model), "lrp")


def test_notes_where_the_model_cuts_the_gradient():
    model = tiny.build("causal:llama")
    assert run(model, batch_for(model), "attnlrp").notes == ()
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, y: y.detach())
    (note,) = run(model, batch_for(model), "attnlrp").notes
    assert note.startswith("LlamaForCausalLM cuts the gradient by detach: ")


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_is_named_with_its_module(kind):
    model = tiny.build("causal:llama")
    handle = getattr(model.model.layers[1].mlp, kind)(lambda *_: None)
    with pytest.raises(
        UnsupportedModelError, match=r"a backward hook is registered on 'model\.layers\.1\.mlp', and may"
    ):
        run(model, batch_for(model), "attnlrp")
    handle.remove()
    assert run(model, batch_for(model), "attnlrp").notes == ()


@pytest.mark.filterwarnings(
    "ignore:For backward hooks to be called:UserWarning"
)  # PyTorch's, of outputs it cannot hook
def test_a_backward_hook_for_all_modules():
    model = tiny.build("causal:gpt2")
    handle = torch.nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    with handle, pytest.raises(UnsupportedModelError, match="a backward hook is registered for all modules"):
        run(model, batch_for(model), "lrp")


def test_foreign_nodes_pass_pytorch_and_our_own():
    model = tiny.build("causal:gpt2")
    x = torch.ones(3, requires_grad=True)
    assert foreign_nodes((x.exp() * 2)[1:].sum()) == []
    assert run(model, batch_for(model), "attnlrp").mode.unknown == {}


def test_nan_weights_are_named():
    model = tiny.build("causal:llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    for rules in ("attnlrp", {}):
        with pytest.raises(NonFiniteError, match=r"'model\.layers\.1\.mlp\.up_proj'.*weights hold NaN"):
            run(model, batch_for(model), rules)


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate", "gradient", "gradient-x-input"])
def test_methods_differ_from_each_other(method):
    model = tiny.build("causal:llama")
    batch = batch_for(model)
    found = {}
    for name in ("lrp", "attnlrp", "lrp-uniform-gate", "gradient", "gradient-x-input"):
        entry = METHODS[name]
        (found[name],) = entry.load()(model, batch, **entry.options)
    mine = found.pop(method).relevance
    for other in found.values():
        assert abs(mine - other.relevance).max() > 1e-3 * abs(mine).max()


def test_squared_l2_and_l1_norms():
    model = tiny.build("causal:gpt2")
    batch = batch_for(model)
    gradient = run(model, batch, {}).hidden["input"].gradient[0]
    for norm, expected in (("l1", gradient.abs().sum(-1)), ("l2", gradient.square().sum(-1))):
        (found,) = METHODS["gradient"].load()(model, batch, norm=norm)
        torch.testing.assert_close(torch.tensor(found.relevance), expected)
        assert found.residual is None
    with pytest.raises(InputError, match="unknown norm 'L1'"):
        METHODS["gradient"].load()(model, batch, norm="L1")


def test_attributions_of_a_batch_are_made_while_the_next_is_computed(monkeypatch):
    """What is left between two passes is to read the numbers and to look for objections."""
    order, read = [], attribution.read_predictions
    monkeypatch.setattr(attribution, "read_predictions", lambda numbers: order.append("made") or read(numbers))
    model = tiny.build("causal:llama")
    handle = model.register_forward_pre_hook(lambda *_: order.append("pass"))
    texts = [[5, 7, 9, 11], [6, 8, 10, 12], [7, 9, 11, 13]]
    together = lrpx.Explainer(model, batch_tokens=4)(texts, target=3, contrast=4, progress=False)
    handle.remove()
    assert order == ["pass", "pass", "made", "pass", "made", "made"]
    for text, e in zip(texts, together, strict=True):
        alone = lrpx.explain(model, None, text, target=3, contrast=4)
        assert e.token_ids == text
        np.testing.assert_array_equal(e.relevance, alone.relevance)
        assert (e.value, e.residual, e.top) == (alone.value, alone.residual, alone.top)


def test_a_list_made_later_is_made_once():
    made = []
    later = Later(3, lambda: made.append(1) or [4, 5, 6])
    assert len(later) == 3
    assert made == []
    assert (list(later), later[-1], list(later)) == ([4, 5, 6], 6, [4, 5, 6])
    assert made == [1]
