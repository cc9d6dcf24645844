"""Flow from token to token: as one backward pass per token, conserved, diagonal where it has to be, pruned as it says."""

import logging
from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch
from support import change_mlp, families, fingerprint, lift_float32_norms, runner_of
from transformers import LlamaConfig, LlamaForCausalLM

from lrpx.errors import InputError, NonFiniteError, UnsupportedModelError
from lrpx.passes import attention_flow, flow
from lrpx.passes.attribution import run
from lrpx.passes.flow import Keep, flow_of
from lrpx.passes.spec import PassSpec
from lrpx.propagation.propagate import propagate
from lrpx.propagation.rulesets import ATTNLRP
from lrpx.text.batching import Item, pad

T, TARGET, CONTRAST = 7, 50, 60
ALL = Keep(1.0)
# Where the residual stream between attention and MLP enters a module; None: both read what enters the block.
BETWEEN = {
    "causal:llama": "post_attention_layernorm",
    "causal:gpt2": "ln_2",
    "causal:mixtral": "post_attention_layernorm",
    "causal:qwen3": "post_attention_layernorm",
    "causal:gemma2": "pre_feedforward_layernorm",
    "causal:bloom": "post_attention_layernorm",
    "causal:gptj": None,
    "causal:gpt_neox": None,
    "masked:bert": "intermediate",
}
FAMILIES = list(BETWEEN)
QUICK = ("causal:llama", "causal:gpt2", "causal:mixtral", "causal:gptj", "masked:bert")
RULES = ["lrp", "attnlrp", "lrp-uniform-gate", {}]


def there(*names):
    """Those families that the installed transformers has."""
    return [name for name in names if name in tiny.FAMILIES]


def blocks_of(model):
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))


def batch_of(model, ids=None, position=-1, contrast=CONTRAST):
    ids = tiny.inputs(model, n_tokens=T)["input_ids"][0].tolist() if ids is None else ids
    return pad([Item(tuple(ids), position % len(ids), TARGET, contrast)], model)


def found_for(model, rules="attnlrp", keep=ALL, batch=None, at="input", **options):
    options.setdefault("together", 3)  # several groups
    batch = batch_of(model) if batch is None else batch
    return flow_of(runner_of(model), batch, PassSpec(rules, (at,)), keep, **options)


def matrix(found, step):
    whole = np.zeros((found.relevance.shape[1],) * 2)
    whole[step.edges[:, 0], step.edges[:, 1]] = step.relevance
    return whole


class Twin:
    """The states at the places, found by the names of modules, and one backward pass per token, written out."""

    def __init__(self, model, family, rules, position=-1):
        self.states = []
        handles = []

        def note(_, args, kwargs):
            self.states.append(next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)))

        blocks = blocks_of(model)
        for block in blocks:
            handles.append(block.register_forward_pre_hook(note, with_kwargs=True))
            if BETWEEN[family] is not None:
                handles.append(getattr(block, BETWEEN[family]).register_forward_pre_hook(note, with_kwargs=True))
        handles.append(
            blocks[-1].register_forward_hook(
                lambda _, __, out: self.states.append(out[0] if isinstance(out, tuple) else out)
            )
        )
        with propagate(model, rules):
            x = model.get_input_embeddings()(tiny.inputs(model, n_tokens=T)["input_ids"]).detach().requires_grad_()
            logits = model(inputs_embeds=x).logits[0, position]
            for handle in handles:
                handle.remove()
            self.value = logits[TARGET] - logits[CONTRAST]
            self.gradients = [torch.autograd.grad(self.value, s, retain_graph=True)[0] for s in self.states]
        self.relevance = [self.of(s, g) for s, g in zip(self.states, self.gradients, strict=True)]

    @staticmethod
    def of(state, gradient):
        return (state * gradient).reshape(T, -1).sum(-1).detach().numpy()

    def matrix(self, upper, lower):
        """Row t: what token t at the upper place takes from each token at the lower one."""
        x, g = self.states[upper].reshape(T, -1), self.gradients[upper].reshape(T, -1).detach()
        rows = []
        for t in range(T):
            (back,) = torch.autograd.grad((x[t] * g[t]).sum(), self.states[lower], retain_graph=True, allow_unused=True)
            rows.append(np.zeros(T) if back is None else self.of(self.states[lower], back))
        return np.stack(rows)


def assert_near(a, b, tolerance=1e-10):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1.0))


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "passes"])
@pytest.mark.parametrize("rules", RULES, ids=str)
@families(FAMILIES, QUICK)
def test_rows_are_one_backward_pass_per_token(family, rules, explicit):
    model = tiny.build(family)
    with lift_float32_norms(model, family in ("causal:llama", "causal:mixtral", "causal:qwen3")):
        twin, found = Twin(model, family, rules), found_for(model, rules, explicit=explicit)
    tolerance = 1e-6 if family == "causal:gemma2" else 1e-10  # norms in float32
    places = ["input", *(p for i in range(2) for p in (f"attention.{i}", f"block.{i}"))]
    assert found.places == [p for p in places if BETWEEN[family] or not p.startswith("attention")]
    assert_near(found.value, twin.value.item())
    assert_near(found.relevance, np.stack(twin.relevance), tolerance)
    ways = {step.way for step in found.steps}
    has_fused = model.config._attn_implementation == "sdpa"
    assert ("attention" in ways) == (explicit and has_fused)
    assert ("diagonal" in ways) == bool(BETWEEN[family])
    for step in found.steps:
        assert_near(matrix(found, step), twin.matrix(step.upper, step.lower), tolerance)
        assert step.around == 0


@pytest.mark.parametrize("family", ["causal:llama", "causal:gptj", "masked:bert"])
def test_between_places_that_are_far_apart(family):
    model = tiny.build(family)
    with lift_float32_norms(model, family == "causal:llama"):
        twin = Twin(model, family, "attnlrp")
        whole = found_for(model, between=("input", "last"))
        blocks = found_for(model, layers=[0])
    last = len(twin.states) - 1
    [step] = whole.steps
    assert step.way == "passes"
    assert whole.places == ["input", "block.1"]
    assert_near(matrix(whole, step), twin.matrix(last, 0))
    assert blocks.places == ["input", "block.0", "block.1"]
    for (lower, upper), step in zip(pairwise((0, last // 2, last)), reversed(blocks.steps), strict=True):
        assert_near(matrix(blocks, step), twin.matrix(upper, lower))


@families(FAMILIES, QUICK)
def test_relevance_is_conserved_where_biases_are_zero(family):
    model = tiny.build(family, zero_biases=True)
    tolerance = 1e-6 if family in ("causal:gemma2", "causal:llama", "causal:mixtral", "causal:qwen3") else 1e-10
    found, other = found_for(model, "lrp"), found_for(model, "attnlrp")
    for step in found.steps:
        rows = matrix(found, step)
        assert_near(rows.sum(1), found.relevance[step.upper], tolerance)
        assert_near(rows.sum(0), found.relevance[step.lower], tolerance)
        assert_near(step.residuals, np.zeros(T), tolerance)
        assert_near(step.residual, 0, tolerance)
    if family != "masked:bert":
        assert_near(found.relevance[0].sum(), found.value, tolerance)
    # softmax keeps a share: the check above is one that can fail
    assert max(abs(step.residual) for step in other.steps) > 1e-3


@families(
    ["causal:gemma2", "causal:gpt2", "causal:llama", "causal:qwen3", "masked:modernbert", "causal:gpt_oss"], QUICK
)
def test_the_lowest_place_has_the_relevance_of_the_tokens(family):
    model = tiny.build(family)
    for at in ("input", "embedding"):
        found = found_for(model, at=at)
        np.testing.assert_array_equal(found.relevance[0], run(model, batch_of(model), "attnlrp", (at,)).products[0])
        assert found.places[0] == at


@pytest.mark.parametrize("family", ["causal:llama", "causal:mixtral", "masked:bert"])
def test_mlps_do_not_mix_tokens(family, monkeypatch):
    model = tiny.build(family)
    quick = found_for(model)
    monkeypatch.setattr(flow._Walk, "_diagonal", lambda *_: None)
    slow = found_for(model, explicit=False)
    for a, b in zip(quick.steps, slow.steps, strict=True):
        assert_near(matrix(quick, a), matrix(slow, b), 1e-6)
        if a.way == "diagonal":
            assert b.way == "passes"
            off = matrix(slow, b) - np.diag(np.diag(matrix(slow, b)))
            assert np.abs(off).max() < 1e-12


@pytest.mark.parametrize("strength", [1, 1e-7])
def test_an_mlp_that_mixes_tokens_is_noticed(strength):
    model = tiny.build("causal:gpt2")
    change_mlp(model, lambda state: state + strength * state.roll(1, 1))
    found = found_for(model)
    assert [step.way for step in found.steps] == ["diagonal", "attention", "passes", "attention"]
    step = found.steps[2]
    off = matrix(found, step) - np.diag(np.diag(matrix(found, step)))
    assert np.abs(off).max() > 1e-3 * strength
    assert_near(matrix(found, step).sum(0), found.relevance[step.lower])


def test_an_explicit_flow_that_does_not_hold_is_not_used(monkeypatch, caplog):
    model = tiny.build("causal:gpt2")
    right = found_for(model, explicit=False)
    real = attention_flow.AttentionFlow._rows
    monkeypatch.setattr(attention_flow.AttentionFlow, "_rows", lambda self, tokens: real(self, tokens) * 1.001)
    with caplog.at_level(logging.DEBUG, logger="lrpx"):
        found = found_for(model)
    assert "does not hold" in caplog.text
    for a, b in zip(found.steps, right.steps, strict=True):
        assert a.way == b.way
        np.testing.assert_array_equal(a.relevance, b.relevance)


@pytest.mark.parametrize("family", there("causal:gemma3n_text", "causal:gemma4_text", "causal:zaya"))
def test_relevance_that_goes_around_the_places_is_reported(family):
    """Keys, values and states that later blocks use again. What comes through the place above and the rest are all."""
    model = tiny.build(family)
    found = found_for(model)
    assert any(step.around for step in found.steps)
    assert "ways around the places" in found.notes[-1]
    for step in found.steps:
        columns = matrix(found, step).sum(0)
        assert_near(found.relevance[step.lower].sum(), columns.sum() + step.around, 1e-5)
        assert_near(found.relevance[step.upper].sum() - step.residual, columns.sum(), 1e-5)
        assert_near(found.relevance[step.upper] - matrix(found, step).sum(1), step.residuals, 1e-5)


# How it is run


def assert_same(found, other, tolerance=1e-12):
    assert found.places == other.places
    assert_near(found.relevance, other.relevance, tolerance)
    for a, b in zip(found.steps, other.steps, strict=True):
        assert_near(matrix(found, a), matrix(other, b), tolerance)


@pytest.mark.parametrize("family", ["causal:gpt2", "masked:bert"])
def test_groups_checkpointing_and_attention_change_nothing(family):
    model = tiny.build(family)
    usual = found_for(model)
    assert_same(found_for(model, explicit=False, together=1), usual)
    checkpointed = flow_of(runner_of(model, checkpoint=True), batch_of(model), PassSpec("attnlrp"), ALL)
    runner_of(model)
    assert {step.way for step in checkpointed.steps} == {"diagonal", "passes"}
    assert_same(checkpointed, usual)
    model.set_attn_implementation("eager")
    assert_same(found_for(model), usual)


def test_without_vmap_each_token_has_its_pass(monkeypatch):
    model = tiny.build("causal:gpt2")
    usual, real = found_for(model, explicit=False), torch.autograd.grad

    def grad(*args, is_grads_batched=False, **kwargs):
        if is_grads_batched:
            raise RuntimeError("no rule for vmap")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    assert_same(found_for(model, explicit=False), usual)


class Shifted(LlamaForCausalLM):
    """Its logits cannot be made one by one."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + output.logits.mean(-1, keepdim=True)
        return output


def test_a_model_whose_logits_are_not_made_one_by_one():
    model = tiny.build("causal:llama")
    model.__class__ = Shifted
    found = found_for(model)
    np.testing.assert_array_equal(found.relevance[0], run(model, batch_of(model), "attnlrp").products[0])
    assert found.places == ["input", "attention.0", "block.0", "attention.1", "block.1"]  # noted once
    assert runner_of(model).whole_head


class InPlace(torch.nn.Module):
    """A block of a model's own that writes into the residual stream in place."""

    def __init__(self, block):
        super().__init__()
        self.block, self.self_attn = block, block.self_attn

    def forward(self, hidden_states, **kwargs):
        block = self.block
        hidden_states += block.self_attn(hidden_states=block.input_layernorm(hidden_states), **kwargs)[0]
        hidden_states += block.mlp(block.post_attention_layernorm(hidden_states))
        return hidden_states


def test_blocks_that_write_in_place():
    """A place that was overwritten is left out; the others are as usual."""
    usual = found_for(tiny.build("causal:llama"), at="embedding", between=["embedding", "block.0", "block.1"])
    model = tiny.build("causal:llama")
    for i, block in enumerate(model.model.layers):
        model.model.layers[i] = InPlace(block).eval()
        model.model.layers[i].attention_type = getattr(block, "attention_type", "full_attention")
    found = found_for(model, at="embedding")
    assert found.places == ["embedding", "block.0", "block.1"]
    assert_same(found, usual, 1e-6)


@pytest.mark.parametrize("position", [0, 3])
def test_another_position(position):
    model = tiny.build("causal:llama")
    found = found_for(model, batch=batch_of(model, position=position), keep=Keep(0.9))
    assert not found.relevance[:, position + 1 :].any()
    assert not found.kept[:, position + 1 :].any()
    assert found.kept[-1].tolist() == [t == position for t in range(T)]


def test_a_single_token_and_a_long_text():
    model = tiny.build("causal:llama")
    one = found_for(model, batch=batch_of(model, [33]))
    assert [step.edges.tolist() for step in one.steps] == [[[0, 0]]] * 4
    ids = tiny.inputs(model, n_tokens=40)["input_ids"][0].tolist()
    long = found_for(model, batch=batch_of(model, ids))
    for step in long.steps:
        assert_near(matrix(long, step).sum(0), long.relevance[step.lower], 1e-6)
        assert not np.triu(matrix(long, step), 1).any()  # causal


def test_in_bfloat16():
    model, narrow = (tiny.build("causal:llama", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    a, b = found_for(model), found_for(narrow)
    assert [step.way for step in a.steps] == [step.way for step in b.steps] == ["diagonal", "attention"] * 2
    assert_near(a.relevance, found_for(model, explicit=False).relevance, 1e-6)
    assert np.corrcoef(a.relevance.ravel(), b.relevance.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("family", ["causal:llama", "causal:bloom"])
def test_everything_is_as_before(family):
    model = tiny.build(family)
    runner_of(model)
    before = fingerprint(model)
    found_for(model)
    assert fingerprint(model) == before
    with pytest.raises(InputError):
        found_for(model, between=("input", "nowhere"))
    assert fingerprint(model) == before


# What is kept


@pytest.mark.parametrize("family", ["causal:llama", "causal:gptj", "masked:bert"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_share_is_kept_at_every_place(family, share):
    model = tiny.build(family)
    whole, found = found_for(model), found_for(model, keep=Keep(share))
    size = np.abs(found.relevance)
    assert ((size * found.kept).sum(1) >= share * size.sum(1) * (1 - 1e-9)).all()
    assert 0 < found.kept.sum() < found.kept.size
    for step, full in zip(found.steps, whole.steps, strict=True):
        rows, kept = matrix(whole, full), matrix(found, step)
        inside = rows * found.kept[step.upper][:, None] * found.kept[step.lower]
        np.testing.assert_allclose(kept[kept != 0], inside[kept != 0], rtol=1e-9)  # the same numbers
        assert np.abs(kept).sum() >= share * np.abs(inside).sum() * (1 - 1e-9)
        assert_near(step.mass, np.abs(rows[found.kept[step.upper]]).sum())
        assert step.followed.tolist() == np.flatnonzero(found.kept[step.upper]).tolist()
        assert (kept != 0).any(0).tolist() == found.kept[step.lower].tolist()  # each kept token is connected
        assert_near(step.residual, full.residual)


def check_kept(found, share):
    """Every place keeps its share, and every kept token is reached by edges from the logit."""
    size = np.abs(found.relevance)
    assert ((size * found.kept).sum(1) >= share * size.sum(1) * (1 - 1e-9)).all()
    for step in found.steps:
        above, below = (np.flatnonzero(found.kept[i]).tolist() for i in (step.upper, step.lower))
        assert step.followed.tolist() == above
        assert set(step.edges[:, 0]) <= set(above)
        loose = sorted(set(below) - set(step.edges[:, 1].tolist()))
        assert (size[step.lower, loose] < 1e-7 * size[step.lower].sum()).all()  # rounding, before norms in float32


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "passes"])
@pytest.mark.parametrize("rules", ["lrp", "attnlrp", {}], ids=str)
@families(["causal:llama", "causal:gpt2", "causal:gptj", "causal:gpt_neox", "masked:bert"], QUICK)
def test_every_place_keeps_its_share_and_is_joined_to_the_logit(family, rules, explicit):
    """Also where no kept token of the place above takes from a kept one, since all of them come before it."""
    layers = {"causal:gpt2": "n_layer", "causal:gptj": "n_layer"}.get(family, "num_hidden_layers")
    model = tiny.build(family, overrides={layers: 5})
    batch = batch_of(model, tiny.inputs(model, n_tokens=16)["input_ids"][0].tolist())
    whole = found_for(model, rules, batch=batch, explicit=explicit)
    for share in (0.3, 0.5, 0.7, 0.9):
        found = found_for(model, rules, Keep(share), batch, explicit=explicit)
        check_kept(found, share)
        fewest = np.stack([Keep(share).of(torch.from_numpy(row)).numpy() for row in found.relevance])
        assert (fewest <= found.kept).all()
        for step, full in zip(found.steps, whole.steps, strict=True):
            assert_near(step.mass, np.abs(matrix(whole, full)[found.kept[step.upper]]).sum(), 1e-6)
    found = found_for(model, rules, Keep(None, 0.02), batch, explicit=explicit)
    assert ((np.abs(found.relevance) >= 0.02) <= found.kept).all()
    check_kept(found, 0)


@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
def test_a_kept_token_that_nothing_above_is_itself_is_joined_by_another(rules, monkeypatch):
    """Beyond the reach of a window of attention a token has no relevance of its own above, but one that reads it has."""
    if "causal:mistral" not in tiny.FAMILIES:
        pytest.skip("needs Mistral")
    asked, real = [], flow._Walk._rows
    monkeypatch.setattr(flow._Walk, "_rows", lambda self, *ends: asked.append(ends[1]) or real(self, *ends))
    most = 0
    for seed in (6, 10, 13):
        model = tiny.build("causal:mistral", overrides={"num_hidden_layers": 3, "sliding_window": 2}, seed=seed)
        batch = batch_of(model, tiny.inputs(model, n_tokens=12)["input_ids"][0].tolist())
        for share in (0.8, 0.97):
            asked.clear()
            check_kept(found_for(model, rules, Keep(share), batch), share)
            most = max(most, *map(asked.count, asked))
    assert most == 3  # of the kept tokens, of those that are joined, of all


def test_no_fewer_tokens_would_do():
    assert Keep(0.9).of(torch.tensor([5.0, -4.0, 0.5, 0.5])).tolist() == [True, True, False, False]
    assert Keep(0.91).of(torch.tensor([5.0, -4.0, 0.5, 0.5])).sum() == 3
    assert Keep(0.9).of(torch.zeros(3)).tolist() == [False] * 3
    assert Keep(1.0).of(torch.tensor([0.0, 1.0])).tolist() == [True, True]
    assert Keep(None, 0.5).of(torch.tensor([[5.0, -0.5], [0.4, 0.0]])).tolist() == [[True, True], [False, False]]
    assert Keep(None, 0.0).everything


def test_a_threshold():
    model = tiny.build("causal:llama")
    whole, found = found_for(model), found_for(model, keep=Keep(None, 0.05))
    assert (np.abs(found.relevance)[found.kept] >= 0.05).mean() > 0.9  # but for those that MLP steps below need
    for step, full in zip(found.steps, whole.steps, strict=True):
        inside = matrix(whole, full) * found.kept[step.upper][:, None] * found.kept[step.lower]
        kept = matrix(found, step)
        if step.way != "diagonal":
            assert ((np.abs(inside) >= 0.05) <= (kept != 0)).all()
    everything = found_for(model, keep=Keep(None, 0.0))
    assert_same(everything, whole)


def test_only_kept_tokens_are_followed(monkeypatch):
    model = tiny.build("causal:gpt2")
    asked = []
    real = flow._Walk._by_passes
    monkeypatch.setattr(flow._Walk, "_by_passes", lambda self, *ends: asked.append(len(ends[2])) or real(self, *ends))
    found = found_for(model, keep=Keep(0.6), explicit=False)
    assert asked == [int(found.kept[step.upper].sum()) for step in found.steps if step.way == "passes"]
    assert asked[0] == 1
    assert max(asked) < T


# Bad input, and models without such places


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (
            ("input", "block.7"),
            r"there is no place 'block.7'. .*Known: input, attention.0, attention.1, block.0, block.1, last",
        ),
        (("block.1", "input"), r"'input' does not lie above 'block.1'"),
        ((..., "last"), "an ellipsis stands between two places"),
        (("input", ..., ..., "last"), "an ellipsis stands between two places"),
        (("last", ...), "an ellipsis stands between two places"),
        (("input", 3), "there is no place 3"),
    ],
)
def test_places_that_are_none(between, message):
    with pytest.raises(InputError, match=message):
        found_for(tiny.build("causal:llama"), between=between)


def test_an_ellipsis_stands_for_all_between():
    model = tiny.build("causal:llama")
    assert found_for(model, between=("attention.0", ..., "last")).places == [
        "attention.0",
        "block.0",
        "attention.1",
        "block.1",
    ]
    assert found_for(model, between=("input", "block.0", ..., "block.1")).places == [
        "input",
        "block.0",
        "attention.1",
        "block.1",
    ]
    assert found_for(model, layers=[-1]).places == ["input", "block.1"]
    for wrong in ([2], [True], [0.5]):
        with pytest.raises(InputError, match="give numbers of blocks from 0 to 1"):
            found_for(model, layers=wrong)


@pytest.mark.parametrize("family", there("causal:xlm", "causal:hrm_text"))
def test_models_without_such_places_are_refused(family):
    model = tiny.build(family)
    at = "embedding" if family == "causal:hrm_text" else "input"
    with pytest.raises(UnsupportedModelError, match="does not run blocks one after the other"):
        found_for(model, at=at)


def test_numbers_that_are_not_finite():
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"transformer.h.1.mlp.c_fc"):
        found_for(model)


def test_a_rule_of_ones_own_for_attention_goes_by_passes():
    model = tiny.build("causal:gpt2")
    own = {**ATTNLRP, "attention": lambda call: ATTNLRP["attention"](call)}
    found = found_for(model, own)
    assert {step.way for step in found.steps} == {"diagonal", "passes"}
    assert_same(found, found_for(model))


def test_all_places_of_a_deep_model_are_named():
    config = LlamaConfig(
        vocab_size=1000, hidden_size=16, intermediate_size=16, num_hidden_layers=8, num_attention_heads=2
    )
    known = "Known: input, attention.0 to attention.7, block.0 to block.7, last."
    with pytest.raises(InputError, match=known):
        found_for(LlamaForCausalLM(config).eval(), between=("input", "nowhere"))
