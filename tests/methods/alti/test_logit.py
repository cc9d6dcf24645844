"""ALTI-Logit against published values, a slow twin in loops, and what its definition promises."""

import dataclasses
import json
import subprocess
import sys

import alti_reference
import numpy as np
import pytest
import tiny
import torch
from alti_reference import float64_norms
from support import COMMON, GOLDEN, SHARED, needs_shared, slow_but
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from lrpx.errors import NonFiniteError, UnsupportedModelError
from lrpx.methods.alti import families
from lrpx.methods.alti import logit as alti_logit
from lrpx.methods.alti.contributions import kept
from lrpx.methods.alti.residual_trace import trace
from lrpx.text.batching import Item, pad

TWIN = ("causal:gpt2", "causal:llama", "causal:olmo2", "causal:gemma2", "masked:bert")


def items(*lengths, target=20, contrast=30, position=None):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(tiny.FIRST_TEXT_ID, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [Item(tuple(i), len(i) - 1 if position is None else position, target, contrast) for i in ids]


def explain(model, *lengths, side="right", direct=False, **options):
    return alti_logit.explain(model, pad(items(*lengths, **options), model, side=side), direct=direct)


def total(attribution):
    return attribution.relevance.sum() + sum(np.sum(part) for part in attribution.components.values())


def golden(name, **options):
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    model = auto.from_pretrained(GOLDEN / name, **options).eval()
    return model, json.loads((GOLDEN / name / "cases.json").read_text())["cases"]


def cases(model, all_cases):
    """(batch, golden values of the scalar) for both scalars of every case."""
    for case in all_cases:
        for scalar, contrast in (("contrast", case["contrast"]), ("target", None)):
            item = Item(tuple(case["input_ids"]), case["position"], case["target"], contrast)
            yield pad([item], model), case["explained"][scalar], case


def matrices(model, batch):
    """The mixing matrices [L, T, T] of a single item."""
    return trace(model, families.find_family(model), batch, mixing=kept, last=True).mixing[:, 0].numpy()


@pytest.mark.parametrize(
    ("name", "source", "within"),
    [("gpt2", "official_eps0", 1e-9), ("gpt2", "official", 1e-5), ("llama", "oracle_alti", 1e-9)],
)
def test_published_values(name, source, within):
    """The official code adds 1e-6 to every coordinate (``official``); without that we agree to round-off.

    The oracle of Llama computes norms in float64.
    """
    model, all_cases = golden(name)
    with float64_norms(model):
        for batch, expected, case in cases(model, all_cases):
            found = alti_logit.explain(model, batch)[0]
            expected = expected["alti_logit"]
            pairs = {
                "token": found.relevance,
                "layer_token": found.by_layer,
                "layer_head_token_no_rollout": found.by_head,
                "layer_token_no_rollout": found.by_head.sum(1),
                "mlp": found.components["mlp"],
                "out_proj_bias": found.components["attention_bias"],
                "initial_residual": found.components["direct"],
                "final_norm_bias": found.components["final_norm_bias"],
                "sum": total(found),
            }
            for field, value in pairs.items():
                np.testing.assert_allclose(value, expected[field][source], rtol=0, atol=within, err_msg=field)
            np.testing.assert_allclose(
                matrices(model, batch), case["alti_matrices"]["layer"][source], rtol=0, atol=within
            )
            rolled = alti_logit.alti(model, batch)[0].relevance
            row = np.array(case["alti_matrices"]["rollout"][source])[-1, case["position"]]
            np.testing.assert_allclose(rolled, row, rtol=0, atol=within)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert_adds_up_to_the_logits_of_the_golden_set(attention):
    model, all_cases = golden("bert", attn_implementation=attention)
    for batch, expected, _ in cases(model, all_cases):
        found = alti_logit.explain(model, batch)[0]
        assert found.value == pytest.approx(expected["scalar"]["oracle"], rel=1e-12)
        assert total(found) == pytest.approx(found.value, rel=1e-9)
        assert abs(found.residual) < 1e-9


@pytest.fixture
def mini_bert(tmp_path):
    """The small trained BERT, unpacked, in float64."""
    subprocess.run([sys.executable, SHARED / "models" / "unpack.py", tmp_path], check=True, capture_output=True)
    folder = tmp_path / "mini-bert"
    return AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float64), AutoTokenizer.from_pretrained(folder)


@pytest.mark.slow
@needs_shared(SHARED / "models")
def test_a_trained_bert_adds_up_and_finds_the_subject(mini_bert):
    """What makes "are" likelier than "is" is the plural subject, not the noun between."""
    model, tokenizer = mini_bert
    ids = tuple(tokenizer("the keys to the cabinet [MASK] on the table .").input_ids)
    are, is_ = tokenizer.convert_tokens_to_ids(["are", "is"])
    batch = pad([Item(ids, ids.index(tokenizer.mask_token_id), are, is_)], model)
    found = alti_logit.explain(model, batch)[0]
    assert total(found) == pytest.approx(found.value, rel=1e-9)
    assert tokenizer.convert_ids_to_tokens(ids[found.relevance.argmax()]) == "keys"


@pytest.mark.parametrize("family", TWIN)
def test_agrees_with_the_loops(family):
    model = tiny.build(family, attn_implementation="eager")
    item = items(7, position=4 if family == "masked:bert" else None)[0]
    with float64_norms(model):
        expected = alti_reference.alti_logit(model, list(item.token_ids), item.position, item.target, item.contrast)
        found = alti_logit.explain(model, pad([item], model))[0]
        mixing = matrices(model, pad([item], model))
    close = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(mixing, expected["matrices"], **close)
    np.testing.assert_allclose(found.by_head, expected["heads"], **close)
    np.testing.assert_allclose(found.by_layer, expected["layers"], **close)
    np.testing.assert_allclose(found.relevance, expected["tokens"], **close)
    np.testing.assert_allclose(found.components["mlp"], expected["mlp"], **close)
    np.testing.assert_allclose(found.components["attention_bias"], expected["attention_bias"], **close)
    assert found.components["direct"] == pytest.approx(expected["direct"], rel=1e-9)
    assert found.value == pytest.approx(expected["value"], rel=1e-9)


def test_the_mixing_matters():
    """The check above is one that can fail: without matrices the tokens come out differently, at the same sum."""
    found = explain(tiny.build("causal:gpt2"), 7)[0]
    unmixed = found.by_head.sum((0, 1))
    assert np.abs(found.relevance - unmixed).max() > 0.01 * np.abs(unmixed).max()
    assert found.relevance.sum() == pytest.approx(unmixed.sum(), rel=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "family", slow_but(["causal:gpt2", "causal:llama", "causal:bloom", "causal:opt", "masked:bert"], *COMMON)
)
def test_a_batch_equals_one_by_one(family, side):
    # transformers' float64 BLOOM returns NaN for padding on the left: its softmax takes the smallest float64 in float32.
    model = tiny.build(family, dtype=torch.float32 if family == "causal:bloom" else torch.float64)
    lengths = (9, 4, 1, 6)
    together = explain(model, *lengths, side=side)
    for item, found in zip(items(*lengths), together, strict=True):
        alone = alti_logit.explain(model, pad([item], model))[0]
        close = {"rtol": 0, "atol": {"causal:bloom": 2e-5, "causal:llama": 1e-6}.get(family, 1e-9)}  # float32 norms
        np.testing.assert_allclose(found.relevance, alone.relevance, **close)
        np.testing.assert_allclose(found.by_layer, alone.by_layer, **close)
        np.testing.assert_allclose(found.by_head, alone.by_head, **close)
        for name, part in alone.components.items():
            np.testing.assert_allclose(found.components[name], part, **close, err_msg=name)
        assert found.value == pytest.approx(alone.value, abs=close["atol"])
        for method in (alti_logit.alti, alti_logit.attention_rollout):
            rows = method(model, pad(items(*lengths), model, side=side))
            np.testing.assert_allclose(
                rows[items(*lengths).index(item)].relevance, method(model, pad([item], model))[0].relevance, **close
            )


def test_linear_in_what_is_explained():
    """R(a, b) = R(a) - R(b) = -R(b, a)."""
    model = tiny.build("causal:gpt2")
    both, swapped = explain(model, 8)[0], explain(model, 8, target=30, contrast=20)[0]
    first, second = explain(model, 8, contrast=None)[0], explain(model, 8, target=30, contrast=None)[0]
    np.testing.assert_allclose(both.relevance, first.relevance - second.relevance, atol=1e-12)
    np.testing.assert_allclose(both.relevance, -swapped.relevance, atol=1e-12)
    np.testing.assert_allclose(both.components["mlp"], first.components["mlp"] - second.components["mlp"], atol=1e-12)


def test_relevance_is_what_removing_a_value_takes_away():
    """One layer, uniform attention, no MLP: silencing a token's value vector moves the stream by its relevance.

    Measured before the final norm, along the direction that this norm, at its own deviation, gives the two logits.
    """
    model = tiny.build("causal:gpt2").requires_grad_(False)
    del model.transformer.h[1:]
    block, norm = model.transformer.h[0], model.transformer.ln_f
    block.attn.c_attn.weight[:, :64] = 0  # queries and keys
    block.mlp.c_proj.weight.zero_()
    batch = pad(items(6), model)
    found = alti_logit.explain(model, batch)[0]
    x = last_stream(model, batch)
    direction = (model.lm_head.weight[20] - model.lm_head.weight[30]) * norm.weight
    direction = (direction - direction.mean()) / (x.var(unbiased=False) + norm.eps).sqrt()
    for token in range(6):
        silence = block.attn.c_attn.register_forward_hook(lambda m, a, qkv, t=token: silenced(qkv, t))
        change = x - last_stream(model, batch)
        silence.remove()
        assert float(direction @ change) == pytest.approx(found.relevance[token], rel=1e-9)


def silenced(qkv, token):
    qkv = qkv.clone()
    qkv[0, token, 64:] = 0
    return qkv


def last_stream(model, batch):
    """What enters the final norm at the last position."""
    seen = []
    handle = model.transformer.ln_f.register_forward_pre_hook(lambda m, a: seen.append(a[0][0, -1]))
    model(**batch.inputs)
    handle.remove()
    return seen[0]


def test_top_prediction_is_the_default_target():
    model = tiny.build("causal:gpt2")
    batch = pad(items(8, target=None, contrast=None), model)
    found = alti_logit.explain(model, batch)[0]
    with torch.no_grad():
        logits = model(**batch.inputs).logits[0, -1]
    assert found.target == int(logits.argmax())
    assert found.value == pytest.approx(float(logits.max()), rel=1e-12)


def test_any_position():
    """Later tokens get nothing, and do not matter."""
    model = tiny.build("causal:gpt2")
    item = items(9, position=4)[0]
    long = alti_logit.explain(model, pad([item], model))[0]
    short = alti_logit.explain(model, pad([Item(item.token_ids[:5], 4, item.target, item.contrast)], model))[0]
    np.testing.assert_allclose(long.relevance[:5], short.relevance, rtol=1e-9)
    np.testing.assert_array_equal(long.relevance[5:], 0)
    assert long.by_head.shape == (2, 4, 9)


def test_direct_moves_one_component_to_the_explained_token():
    model = tiny.build("causal:gpt2")
    without, with_ = explain(model, 8)[0], explain(model, 8, direct=True)[0]
    moved = with_.relevance - without.relevance
    assert moved[-1] == pytest.approx(without.components["direct"])
    np.testing.assert_array_equal(moved[:-1], 0)
    assert with_.components["direct"] == 0
    assert total(with_) == pytest.approx(with_.value, rel=1e-9)


def test_tokens_that_leave_nothing_after_clipping():
    """All values 0: nothing enters any token, every row of C would be 0/0. Everything stays finite and adds up."""
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, 64:] = 0
            block.attn.c_attn.bias[64:] = 0
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.zero_()
        model.lm_head.weight = torch.nn.Parameter(torch.randn(97, 32, dtype=torch.float64))
    found = explain(model, 6)[0]
    np.testing.assert_array_equal(found.relevance, 0)
    assert total(found) == pytest.approx(found.value, rel=1e-9)
    stays = alti_logit.alti(model, pad(items(6), model))[0].relevance
    np.testing.assert_array_equal(stays, np.eye(6)[5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama", "causal:gemma2", "masked:bert"])
def test_half_precision_is_finite_and_close(family, dtype):
    half, full = (explain(tiny.build(family, dtype=t), 12)[0] for t in (dtype, torch.float32))
    assert np.isfinite(half.by_layer).all()
    assert abs(total(half) + half.residual - half.value) < 1e-5
    scale = np.abs(full.by_head).sum()
    assert np.abs(half.relevance - full.relevance).max() < 0.03 * scale


def test_alti_and_rollout_are_distributions():
    for family in ("causal:llama", "masked:bert"):
        model = tiny.build(family)
        for method in (alti_logit.alti, alti_logit.attention_rollout):
            found = method(model, pad(items(7), model))[0]
            assert (found.relevance >= 0).all()
            assert found.relevance.sum() == pytest.approx(1, rel=1e-9)
            assert found.residual is None


def test_attention_rollout_from_the_models_own_weights():
    model = tiny.build("causal:gpt2", attn_implementation="eager")
    batch = pad(items(7), model)
    with torch.no_grad():
        layers = model(**batch.inputs, output_attentions=True).attentions
    row = np.eye(7)[6]
    for weights in reversed(layers):
        row = row @ (0.5 * weights[0].mean(0).numpy() + 0.5 * np.eye(7))
    found = alti_logit.attention_rollout(tiny.build("causal:gpt2"), batch)[0]
    np.testing.assert_allclose(found.relevance, row, rtol=1e-9)


def test_refuses_a_family_that_does_not_describe_the_model(monkeypatch):
    """A wrong gain, a forgotten factor: the parts miss the value, and no map comes back, from ALTI neither."""
    model = tiny.build("causal:llama")
    right = families.find_family(model)
    for change in ({"norm_offset": 1.0}, {"multiplier": "initializer_range"}):
        wrong = dataclasses.replace(right, **change)
        monkeypatch.setattr(alti_logit, "find_family", lambda model, wrong=wrong: wrong)
        for method in (alti_logit.explain, alti_logit.alti):
            with pytest.raises(
                UnsupportedModelError, match=r"miss its value by .*'llama'.*does not describe.*'attnlrp'"
            ):
                method(model, pad(items(8), model))


def test_refuses_what_is_not_finite():
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        model.transformer.h[0].mlp.c_proj.bias[3] = torch.nan
    with pytest.raises(NonFiniteError, match="GPT2LMHeadModel"):
        explain(model, 5)


@pytest.mark.parametrize("method", [alti_logit.explain, alti_logit.alti, alti_logit.attention_rollout])
def test_numbers_that_are_not_finite_are_refused(method):
    """In float64, BLOOM's mask makes NaN of rows that are padded on the left."""
    model = tiny.build("causal:bloom")
    with pytest.raises(NonFiniteError, match=r"NaN or infinity .* BloomForCausalLM\. .*float32"):
        method(model, pad(items(9, 4), model, side="left"))
