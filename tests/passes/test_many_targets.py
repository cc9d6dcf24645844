"""Many values of one text from one pass: as one pass each, and refused where one pass cannot tell."""

import functools
import logging
import warnings

import numpy as np
import pytest
import tiny
import torch
from support import COMMON, runner_of, slow_but
from swept import REFUSES
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from lrpx.errors import LrpxError, NonFiniteError, UnsupportedModelError
from lrpx.passes import many_targets, scoring
from lrpx.passes.attribution import run
from lrpx.passes.many_targets import check_reads_forward, explain_many
from lrpx.passes.scoring import Average, Scoring
from lrpx.passes.spec import PassSpec
from lrpx.propagation import rules
from lrpx.propagation.propagate import propagate
from lrpx.propagation.rulesets import LRP
from lrpx.text.batching import Item, pad

N, PROMPT = 11, 7  # tokens, and how many of them are the prompt's
CAUSAL = [family for family in tiny.FAMILIES if family.startswith("causal:")]
# Whose own forward pass gives other logits for a text than for its beginning: a router's tie, decided by rounding.
NOT_THE_SAME_TEXT = {"causal:axk2"}


@functools.cache
def model_of(family):
    return tiny.build(family)


def ids_of(model, length=N):
    return tiny.inputs(model, n_tokens=length)["input_ids"][0].tolist()


def batch_of(model, ids):
    return pad([Item(tuple(ids), len(ids) - 1, 0)], model)


def answer(model, rule_set, ids, weights=None, combine=torch.mul, at="input", together=None, options=None, **asked):
    """Scores and relevance of the tokens from ``PROMPT`` on, by ``explain_many``."""
    targets = ids[PROMPT:]
    asked = Scoring(range(PROMPT - 1, len(ids) - 1), targets, **asked)
    weights = np.eye(len(targets)) if weights is None else np.asarray(weights, dtype=float)
    return explain_many(
        runner_of(model, **options or {}), batch_of(model, ids[:-1]), PassSpec(rule_set, (at,)), asked,
        lambda many: (many.scores, many.relevance(weights, combine), many.log_probabilities), together=together,
    )  # fmt: skip


def one_by_one(model, rule_set, ids, at="input", contrast=None):
    """The same by one pass per token, over the text before it."""
    values, rows = [], np.zeros((len(ids) - PROMPT, len(ids) - 1))
    for i, end in enumerate(range(PROMPT, len(ids))):
        batch = pad([Item(tuple(ids[:end]), end - 1, ids[end], None if contrast is None else contrast[i])], model)
        found = run(model, batch, rule_set, (at,), runner=runner_of(model))
        values.append(found.values[0])
        rows[i, :end] = found.products[0]
    return np.array(values), rows


def own_difference(model, ids):
    """How much the model's logits of the whole text differ from those of its beginnings: rounding of parts in float32."""
    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
        parts = torch.stack([model(torch.tensor([ids[:end]])).logits[0, -1] for end in range(PROMPT, len(ids))])
    whole = whole[PROMPT - 1 : len(ids) - 1]
    return float((whole - parts).abs().max() / whole.abs().max())


class Float32(TorchDispatchMode):
    """Notes whether anything is computed in float32."""

    found = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        self.found |= isinstance(output, torch.Tensor) and output.dtype == torch.float32 and output.numel() > 1
        return output


def has_float32_parts(model, ids):
    """Whether a float64 model computes some of its parts (norms, routers, rotations) in float32, so that they are rounded."""
    with torch.no_grad(), Float32() as seen:
        model(torch.tensor([ids]))
    return seen.found


def tolerance_of(model, ids, *, common):
    """Common models are exact, but for a softmax in float32, which eager attention has: its last digit is the processor's."""
    exact = common and model.config.get_text_config()._attn_implementation != "eager"
    return 1e-10 if exact or not has_float32_parts(model, ids) else 1e-5


PLAIN = {*COMMON, *REFUSES, *CAUSAL[::7]}  # elsewhere gradients under rules are enough
CASES = [(family, rule_set) for rule_set in ("lrp", "attnlrp", {}) for family in CAUSAL if rule_set or family in PLAIN]


@pytest.mark.parametrize(
    ("family", "rule_set"), slow_but(CASES, *(case for case in CASES if case[0] in COMMON)), ids=str
)
def test_every_token_gets_what_a_pass_of_its_own_gives(family, rule_set):
    assert_as_one_by_one(family, rule_set)


@pytest.mark.parametrize("family", [family for family in CAUSAL if family in COMMON])
def test_and_so_it_is_with_the_rules_of_both(family):
    assert_as_one_by_one(family, "lrp-uniform-gate")


def assert_as_one_by_one(family, rule_set):
    model = model_of(family)
    ids = ids_of(model)
    try:
        values, rows = one_by_one(model, rule_set, ids)
    except LrpxError as error:
        with pytest.raises(type(error)):
            answer(model, rule_set, ids)
        return
    if family in NOT_THE_SAME_TEXT:
        assert own_difference(model, ids) > 1e-3
        return
    scores, relevance, _ = answer(model, rule_set, ids, probabilities=True)
    tolerance = tolerance_of(model, ids, common=family in COMMON)
    np.testing.assert_allclose(scores, values, rtol=0, atol=tolerance * np.abs(values).max())
    # Gradient x Input right before a norm is the sum of large numbers that cancel: the value says how large they are.
    scale = max(np.abs(rows).max(), np.abs(values).max())
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("at", ["input", "embedding"])
@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama"])
def test_at_either_place_and_with_either_attention(family, at, attention):
    model = tiny.build(family)
    model.set_attn_implementation(attention)
    ids = ids_of(model)
    values, rows = one_by_one(model, "attnlrp", ids, at)
    scores, relevance, _ = answer(model, "attnlrp", ids, at=at)
    tolerance = 1e-12 if attention == "sdpa" else tolerance_of(model, ids, common=True)
    np.testing.assert_allclose(scores, values, rtol=tolerance)
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=tolerance * np.abs(rows).max())


class Shifted(LlamaForCausalLM):
    """Its logits cannot be made one by one."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + output.logits.mean(-1, keepdim=True)
        return output


def test_a_model_whose_logits_are_not_made_one_by_one_is_remembered(caplog):
    model = tiny.build("causal:llama")
    model.__class__ = Shifted
    ids = ids_of(model)
    with caplog.at_level(logging.DEBUG, logger="lrpx"):
        first, second = (answer(model, "attnlrp", ids) for _ in range(2))
    assert [record.message for record in caplog.records if "one by one" in record.message] == [
        "Shifted computes all its logits: they are not made one by one"
    ]
    assert runner_of(model).whole_head
    np.testing.assert_array_equal(second[1], first[1])


def test_contrasts_at_each_position():
    model = model_of("causal:llama")
    ids = ids_of(model)
    contrast = [(i + 1) % 90 for i in ids[PROMPT:]]
    values, rows = one_by_one(model, "attnlrp", ids, contrast=contrast)
    scores, relevance, _ = answer(model, "attnlrp", ids, contrast=contrast)
    np.testing.assert_allclose(scores, values, rtol=1e-10)
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp", {}], ids=str)
def test_a_weighted_sum_is_one_backward_pass(rule_set, monkeypatch):
    model = model_of("causal:gpt2")  # float64 throughout
    ids = ids_of(model)
    weights = np.random.default_rng(0).normal(size=(1, N - PROMPT))
    _, rows, _ = answer(model, rule_set, ids)
    calls = []
    real = many_targets.ManyTargets._gradients
    monkeypatch.setattr(many_targets.ManyTargets, "_gradients", lambda *a, **k: calls.append(k) or real(*a, **k))
    _, found, _ = answer(model, rule_set, ids, weights)
    np.testing.assert_allclose(found, weights @ rows, rtol=0, atol=1e-13)
    assert calls == [{"batched": False}]


# Scores made of all logits, and a model's own changes to its logits


def by_hand(model, rule_set, ids, score):
    """Scores and relevance by a plain backward pass each, from all logits."""
    with propagate(model, rule_set):
        x = model.get_input_embeddings()(torch.tensor([ids[:-1]])).detach().requires_grad_()
        logits = model(inputs_embeds=x, use_cache=False).logits[0, PROMPT - 1 :]
    scores = score(logits.double(), torch.tensor(ids[PROMPT:]))
    rows = [(torch.autograd.grad(s, x, retain_graph=True)[0][0] * x[0]).sum(-1).detach().numpy() for s in scores]
    return scores.detach().numpy(), np.stack(rows)


def picked(logits, targets):
    return logits.gather(1, targets[:, None])[:, 0]


OBJECTIVES = {
    "logprob": ({"objective": "logprob"}, lambda z, t: picked(z.log_softmax(1), t)),
    "mean": ({"contrast": Average()}, lambda z, t: picked(z, t) - z.mean(1)),
    "top3": ({"contrast": Average(3)}, lambda z, t: picked(z, t) - z.topk(3).values.mean(1)),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp", {}], ids=str)
@pytest.mark.parametrize("family", ["causal:llama", "causal:gemma2", "causal:cohere", "causal:opt"])
def test_scores_made_of_all_logits(family, rule_set, objective, monkeypatch):
    """With few positions at a time, so that the parts have to be put together."""
    monkeypatch.setattr(scoring, "CHUNK", 4 * tiny.VOCABULARY)
    model = model_of(family)
    ids = ids_of(model)
    asked, score = OBJECTIVES[objective]
    values, rows = by_hand(model, rule_set, ids, score)
    scores, relevance, logs = answer(model, rule_set, ids, at="embedding", **asked)
    np.testing.assert_allclose(scores, values, rtol=1e-6)  # norms are in float32
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=1e-6 * np.abs(rows).max())
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0, PROMPT - 1 :]
    np.testing.assert_allclose(logs, picked(logits.double().log_softmax(1), torch.tensor(ids[PROMPT:])), rtol=1e-6)


def test_a_contrast_makes_log_probabilities_and_logits_equal():
    model = model_of("causal:llama")
    ids = ids_of(model)
    found = [answer(model, "attnlrp", ids, objective=o, contrast=Average())[0] for o in ("logit", "logprob")]
    np.testing.assert_array_equal(*found)


class Largest(TorchDispatchMode):
    """Notes the largest number of logits that any tensor holds."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        is_weight = func.overloadpacket is torch.ops.aten.t
        if isinstance(output, torch.Tensor) and output.shape[-1:] == (tiny.VOCABULARY,) and not is_weight:
            self.found = max(self.found, output.numel() // tiny.VOCABULARY)
        return output


@pytest.mark.parametrize(("asked", "at_most"), [({}, 0), ({"objective": "logprob"}, 2)], ids=["logit", "logprob"])
def test_no_tensor_holds_all_logits_of_all_positions(asked, at_most, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK", 2 * tiny.VOCABULARY)
    model = model_of("causal:llama")
    with Largest() as seen:
        answer(model, "attnlrp", ids_of(model), np.ones((1, N - PROMPT)), **asked)
    assert seen.found == at_most


# How passes are run


@pytest.mark.parametrize("together", [1, 2, 4, 100])
def test_groups_of_any_size_give_the_same_numbers(together):
    model = model_of("causal:gpt2")
    ids = ids_of(model)
    expected = answer(model, "attnlrp", ids, together=1)[1]
    np.testing.assert_allclose(answer(model, "attnlrp", ids, together=together)[1], expected, rtol=0, atol=1e-14)


def test_what_vmap_cannot_do_is_done_one_by_one(monkeypatch, caplog):
    model = model_of("causal:llama")
    ids = ids_of(model)
    expected = answer(model, "attnlrp", ids)[1]
    real = torch.autograd.grad

    def grad(*args, is_grads_batched=False, **kwargs):
        if is_grads_batched:
            raise RuntimeError("vmap: an operation without a batching rule")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    with caplog.at_level(logging.DEBUG, "lrpx"):
        found = answer(model, "attnlrp", ids)[1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    assert "LlamaForCausalLM goes backwards once per value: vmap" in caplog.text


def test_vmap_may_loop_over_a_kernel(monkeypatch):
    model = model_of("causal:llama")
    real = torch.autograd.grad

    def grad(*args, **kwargs):
        if kwargs.get("is_grads_batched"):
            warnings.warn(
                "There is a performance drop because we have not yet implemented ...", UserWarning, stacklevel=1
            )
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    answer(model, "attnlrp", ids_of(model))  # any other warning is an error here


def test_checkpointed():
    model = model_of("causal:llama")
    ids = ids_of(model)
    expected = answer(model, "attnlrp", ids)[1]
    np.testing.assert_array_equal(answer(model, "attnlrp", ids, options={"checkpoint": True}, together=1)[1], expected)
    runner_of(model)


def test_a_rule_for_the_output_embedding():
    """It needs the model's own way to its logits."""
    model = model_of("causal:llama")
    ids, rule_set = ids_of(model), {**LRP, "linear": rules.gamma(0.25)}
    values, rows = one_by_one(model, rule_set, ids)
    scores, relevance, _ = answer(model, rule_set, ids)
    tolerance = tolerance_of(model, ids, common=True)
    np.testing.assert_allclose(scores, values, rtol=tolerance)
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=tolerance * np.abs(rows).max())


def test_a_model_that_changes_single_logits():
    """What it does after its output embedding cannot be followed, so all logits are computed."""
    model = tiny.build("causal:llama")
    ids = ids_of(model)

    class Forbids(type(model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = torch.cat([output.logits[..., :2] * 3, output.logits[..., 2:]], -1)
            return output

    model.__class__ = Forbids
    values, rows = one_by_one(model, "lrp", ids)
    scores, relevance, _ = answer(model, "lrp", ids, probabilities=True)
    np.testing.assert_allclose(scores, values, rtol=1e-10)
    np.testing.assert_allclose(relevance, rows, rtol=0, atol=1e-12)


# What is refused


def both_ways(model):
    """Attention that sees the tokens to come, as in embedding models made of causal ones."""
    for block in model.model.layers:
        block.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.float64)}),
            with_kwargs=True,
        )
    return model


def test_a_model_that_looks_ahead_is_refused():
    model = both_ways(tiny.build("causal:llama"))
    ids = ids_of(model)
    with pytest.raises(UnsupportedModelError, match="depends on tokens after it"):
        answer(model, "lrp", ids)
    answer(model, "lrp", ids, np.ones((1, N - PROMPT)))  # which cannot be seen in a sum that reaches to the end
    with pytest.raises(UnsupportedModelError, match="depends on tokens after it"):
        check_reads_forward(runner_of(model), batch_of(model, ids[:4]), PassSpec("lrp"))
    assert not runner_of(model).reads_forward


def test_that_a_model_reads_forward_is_remembered(monkeypatch):
    model = tiny.build("causal:llama")
    ids, runner, calls = ids_of(model), runner_of(model), []
    real = many_targets.explain_many
    monkeypatch.setattr(many_targets, "explain_many", lambda *args: calls.append(args) or real(*args))
    for _ in range(2):
        check_reads_forward(runner, batch_of(model, ids[:1]), PassSpec("lrp"))  # which shows nothing
    for _ in range(2):
        check_reads_forward(runner, batch_of(model, ids[:3]), PassSpec("lrp"))
    assert len(calls) == 3
    runner.refresh()
    assert not runner.reads_forward


def test_numbers_that_are_not_finite():
    model = tiny.build("causal:llama")
    ids = ids_of(model)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"'model.layers.1.mlp.down_proj'"):
        answer(model, "lrp", ids)


def test_training_mode_and_a_cut_gradient():
    model = tiny.build("causal:llama")
    ids = ids_of(model)
    with pytest.raises(UnsupportedModelError, match="training mode"):
        answer(model.train(), "lrp", ids)
    model.eval().model.norm.register_forward_hook(lambda _, __, output: output.detach())
    with pytest.raises(UnsupportedModelError, match="carry no gradient"):
        answer(model, "lrp", ids)


def test_memory_runs_out(monkeypatch, caplog):
    """Then blocks are recomputed; not if the caller has forbidden it."""
    model = model_of("causal:llama")
    ids = ids_of(model)
    expected = answer(model, "lrp", ids)[1]
    real, tries = many_targets.score_positions, []

    def scored(model, now, asked, options):
        tries.append(options.checkpoint)
        if not options.checkpoint:
            raise torch.OutOfMemoryError
        return real(model, now, asked, options)

    monkeypatch.setattr(many_targets, "score_positions", scored)
    np.testing.assert_array_equal(answer(model, "lrp", ids, together=1)[1], expected)
    assert tries == [False, True]
    assert "does not fit into memory" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        answer(model, "lrp", ids, options={"checkpoint": False})
    runner_of(model)
