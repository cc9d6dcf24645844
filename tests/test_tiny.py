"""The zoo of tiny models: complete, reproducible, alive in every layer, and free of constants once biases are zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import tiny
import torch
from support import families
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

# One of each make: rotary and learned positions, pre- and post-norm, experts, latent attention, recurrence, encoders.
SAMPLE = [
    "causal:bloom",
    "causal:deepseek_v3",
    "causal:gemma2",
    "causal:gpt2",
    "causal:jamba",
    "causal:llama",
    "causal:mixtral",
    "masked:bart",
    "masked:bert",
    "masked:deberta-v2",
    "masked:modernbert",
]


def test_every_model_type_is_built_or_skipped_for_a_reason():
    causal = {f"causal:{name}" for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    masked = {f"masked:{name}" for name in MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    assert set(tiny.FAMILIES) | set(tiny.SKIPPED) == causal | masked
    assert not set(tiny.FAMILIES) & set(tiny.SKIPPED)
    assert len(set(tiny.FAMILIES)) == len(tiny.FAMILIES) > 150
    assert all(len(reason) > 20 for reason in tiny.SKIPPED.values())


@pytest.mark.slow
def test_every_configuration_is_small_and_its_special_tokens_are_out_of_the_way():
    for family in tiny.FAMILIES:
        config = tiny.configuration(family)
        text = config.get_text_config()
        assert getattr(text, "vocab_size", tiny.VOCABULARY) == tiny.VOCABULARY, family
        for name in ("pad_token_id", "bos_token_id", "mask_token_id"):
            value = getattr(text, name, None)
            assert value is None or 0 <= value < tiny.FIRST_TEXT_ID, (family, name, value)


@pytest.mark.slow
def test_families_with_recurrent_layers_are_marked():
    recurrent = {"linear_attention", "mamba", "conv", "recurrent"}
    found = set()
    for family in tiny.FAMILIES:
        config = tiny.configuration(family).get_text_config()
        layers = [getattr(config, name, None) or () for name in ("layer_types", "layers_block_type", "block_types")]
        if recurrent & {kind for kinds in layers for kind in kinds}:
            found.add(family)
    assert len(found) >= 10
    assert found <= tiny.STATE_SPACE


@families(SAMPLE)
def test_logits_are_finite_and_depend_on_every_token(family: str):
    model = tiny.build(family)
    batch = tiny.inputs(model)
    ids = batch["input_ids"]
    with torch.no_grad():
        logits = model(**batch).logits
        torch.testing.assert_close(model(**batch).logits, logits, rtol=0, atol=0)
        for token in range(ids.shape[1]):
            other = ids.clone()
            other[0, token] = (ids[0, token] - tiny.FIRST_TEXT_ID + 1) % 89 + tiny.FIRST_TEXT_ID
            assert (model(input_ids=other).logits - logits)[0, -1].abs().max() > 1e-3, token
    assert logits.dtype == torch.float64
    assert logits.shape == (1, 9, tiny.VOCABULARY)
    assert logits.isfinite().all()
    assert 0.1 < logits.std() < 10
    assert not model.training


@families(SAMPLE)
def test_a_seed_gives_one_model(family: str):
    before = torch.get_rng_state()
    first, again, other = (tiny.build(family, seed=seed).state_dict() for seed in (3, 3, 4))
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    learned = [name for name, value in tiny.build(family).named_parameters() if value.numel() > 1]
    assert all(not torch.equal(first[name], other[name]) for name in learned)


@families(SAMPLE)
def test_data_types_and_attention_implementations_share_one_model(family: str):
    model = tiny.build(family)
    batch = tiny.inputs(model)
    with torch.no_grad():
        logits = model(**batch).logits
        eager = tiny.build(family, attn_implementation="eager")(**batch).logits
        single = tiny.build(family, dtype=torch.float32)(**batch).logits
    assert single.dtype == torch.float32
    # Some norms and softmaxes stay in float32, and older releases' sdpa leaves out gemma2's cap of the scores.
    torch.testing.assert_close(eager, logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(single.double(), logits, rtol=1e-3, atol=1e-3)


@contextlib.contextmanager
def _silent_embeddings(model: nn.Module) -> Iterator[None]:
    """Every embedding, of words, positions and types, returns zeros."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    hooks = [table.register_forward_hook(lambda _module, _inputs, output: output * 0) for table in tables]
    yield
    for hook in hooks:
        hook.remove()


@families(SAMPLE)
def test_without_biases_nothing_comes_from_nothing(family: str):
    """With embeddings and biases zero, all activations are zero: no additive constant was forgotten."""
    model = tiny.build(family)
    tiny.zero_bias(model)
    with torch.no_grad(), _silent_embeddings(model):
        assert model(**tiny.inputs(model)).logits.abs().max() == 0
    zeroed = tiny.build(family, zero_biases=True).state_dict()
    torch.testing.assert_close(zeroed, model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("family", ["causal:bloom", "causal:gpt2", "masked:bart", "masked:bert", "masked:deberta-v2"])
def test_with_biases_much_comes_from_nothing(family: str):
    """The check above can fail: each bias is far from zero, and together they alone make logits."""
    model = tiny.build(family)
    biases = tiny.biases(model)
    assert len(biases) > 10
    assert all(0.05 < tensor.abs().mean() < 1 for tensor in biases.values())
    with torch.no_grad(), _silent_embeddings(model):
        assert model(**tiny.inputs(model)).logits.abs().max() > 0.1


def test_zero_bias_leaves_the_choice_of_experts():
    model = tiny.build("causal:deepseek_v3", zero_biases=True)
    (name,) = [name for name in model.state_dict() if name.endswith("e_score_correction_bias")]
    assert model.state_dict()[name].abs().min() > 0
    assert name not in tiny.biases(model)


def test_inputs_are_seeded_and_hold_no_special_token():
    model = tiny.build("masked:bert")
    ids = tiny.inputs(model, n_tokens=50, batch=3, seed=1)["input_ids"]
    assert ids.shape == (3, 50)
    assert ids.min() >= tiny.FIRST_TEXT_ID
    assert ids.max() < tiny.VOCABULARY
    assert torch.equal(ids, tiny.inputs(model, n_tokens=50, batch=3, seed=1)["input_ids"])
    assert not torch.equal(ids, tiny.inputs(model, n_tokens=50, batch=3, seed=2)["input_ids"])


@pytest.mark.parametrize("family", [f for f in tiny.FLOAT32_ONLY if not f.startswith("vision:") or f in tiny.VISION])
def test_families_without_float64_are_built_in_float32(family: str):
    model = tiny.build(family)
    assert model.dtype == torch.float32
    if family.startswith("speech2text:"):  # reads sound
        return
    inputs = tiny.inputs(model)
    if family.startswith("text2text:"):
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        logits = model(**inputs).logits
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


@pytest.mark.parametrize("family", ["causal:gpt5", *tiny.SKIPPED])
def test_what_is_not_built_says_why(family: str):
    with pytest.raises(KeyError, match="unknown family" if family == "causal:gpt5" else "is not built"):
        tiny.build(family)
