"""Every described family decomposes its logits exactly; everything else is refused with what is missing."""

from pathlib import Path

import pytest
import tiny
import torch
import transformers
from alti_reference import float64_norms
from support import families
from transformers import AutoModelForSequenceClassification

from lrpx.errors import UnsupportedModelError
from lrpx.methods.alti import logit as alti_logit
from lrpx.methods.alti.families import Family, all_families, find_family, get
from lrpx.text.batching import Item, pad

TYPES = sorted({kind for family in all_families() for kind in family.model_types})
BUILT = [f"{task}:{kind}" for kind in TYPES for task in ("causal", "masked") if f"{task}:{kind}" in tiny.FAMILIES]

VARIANTS = {
    "opt, 350m layout": ("causal:opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "opt, no final norm": ("causal:opt", {"_remove_final_layer_norm": True}),
    "gpt2, scaled by layer": (
        "causal:gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt_neox, one after the other": ("causal:gpt_neox", {"use_parallel_residual": False}),
    "falcon, one after the other": (
        "causal:falcon",
        {"parallel_attn": False, "multi_query": False, "num_kv_heads": 4, "alibi": True},
    ),
    "falcon, new": ("causal:falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2}),
    "phi, normed queries": ("causal:phi", {"qk_layernorm": True}),
    "granite, multipliers": (
        "causal:granite",
        {"residual_multiplier": 0.3, "logits_scaling": 7.0, "embedding_multiplier": 5.0, "attention_multiplier": 0.2},
    ),
    "stablelm, parallel": ("causal:stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "llama, biases": ("causal:llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one layer": ("causal:llama", {"num_hidden_layers": 1}),
}


def variant(family, changes, dtype=torch.float64):
    """As ``tiny.build``, with another configuration."""
    config = tiny.configuration(family)
    for name, value in changes.items():
        setattr(config, name, value)
    with tiny._quiet():
        model = getattr(transformers, tiny._CLASS_NAMES[family])._from_config(config, dtype=dtype)
    tiny._draw(model, torch.Generator().manual_seed(0))
    return model.eval()


def explain(model, position=8):
    ids = tiny.inputs(model, 9)["input_ids"][0].tolist()
    batch = pad([Item(tuple(ids), position, 20, 30)], model)
    return alti_logit.explain(model, batch)[0], batch


def check_sum(model):
    """Tokens + components = value, which is the plain model's."""
    for position in (8, 3):
        found, batch = explain(model, position)
        parts = found.relevance.sum() + sum(
            part.sum() if hasattr(part, "sum") else part for part in found.components.values()
        )
        with torch.no_grad():
            logits = model(**batch.inputs).logits[0, position]
        assert found.value == pytest.approx(float(logits[20] - logits[30]), rel=1e-9)
        assert parts == pytest.approx(found.value, rel=1e-9)
        assert found.residual == pytest.approx(0, abs=1e-9 * abs(found.value))


@families(BUILT)
def test_parts_add_up(family):
    model = tiny.build(family)
    with float64_norms(model):
        check_sum(model)


@pytest.mark.parametrize("name", VARIANTS)
def test_parts_add_up_in_other_layouts(name):
    model = variant(*VARIANTS[name])
    with float64_norms(model):
        check_sum(model)


def test_the_layouts_differ():
    """What the variants switch is really on."""
    narrow = variant(*VARIANTS["opt, 350m layout"])
    assert narrow.model.decoder.project_out is not None
    assert find_family(narrow).sum_norms
    assert not find_family(tiny.build("causal:opt")).sum_norms
    found, _ = explain(narrow)
    assert {"attention_norm_bias", "mlp_norm_bias"} <= found.components.keys()
    assert explain(tiny.build("causal:phi"))[0].components["head_bias"] != 0
    assert tiny.build("causal:gemma2").config.final_logit_softcapping


@pytest.mark.parametrize(
    "name", ["causal:gpt2", "causal:qwen3", "causal:mistral", "causal:gemma3_text", "causal:falcon", "masked:bert"]
)
def test_recomputed_attention_equals_the_models_own(name):
    """Masks, windows, scales, grouped heads, query and key norms: the fused call gives the same map as the eager one."""
    fused, eager = (tiny.build(name, attn_implementation=kind) for kind in ("sdpa", "eager"))
    with float64_norms(fused), float64_norms(eager):
        a, b = explain(fused)[0], explain(eager)[0]
    # transformers' eager softmax is float32 in the families with windows and grouped heads
    assert a.relevance == pytest.approx(b.relevance, abs=1e-6)
    assert a.by_head == pytest.approx(b.by_head, abs=1e-6)


def test_sliding_windows_keep_tokens_out():
    """With a window of 5 in a single layer, the first tokens cannot matter."""
    model = variant("causal:mistral", {"num_hidden_layers": 1, "sliding_window": 5})
    found = explain(model)[0]
    assert (found.relevance[:4] == 0).all()
    assert (found.relevance[4:] != 0).all()


def test_paths_of_one_type_lead_to_one_family():
    """A type with several families tells them apart by its configuration."""
    for kind in TYPES:
        families = [family for family in all_families() if kind in family.model_types]
        told_apart = all(family.requires for family in families) or len({f.head for f in families}) == len(families)
        assert len(families) == 1 or told_apart, kind


def test_the_readme_counts_the_types():
    readme = (Path(__file__).resolve().parents[4] / "README.md").read_text(encoding="utf-8")
    assert f"[knows {len(TYPES)} model types](docs/add_a_family.md)" in readme


def test_refuses_an_unknown_type():
    with pytest.raises(
        UnsupportedModelError, match=r"model type 'mamba'.*missing.*Known: .*llama.*add_a_family.*'attnlrp'"
    ):
        find_family(tiny.build("causal:mamba"))


def test_refuses_encoder_decoders():
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=8, num_layers=1, num_heads=2, d_ff=8, d_kv=4, vocab_size=50)
    )
    with pytest.raises(
        UnsupportedModelError, match=r"T5ForConditionalGeneration is an encoder-decoder.*'gradient-x-input'"
    ):
        find_family(model)


def test_refuses_a_classifier_and_a_bare_model():
    config = tiny.configuration("causal:gpt2")
    config.pad_token_id = 0
    classifier = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(
        UnsupportedModelError, match=r"GPT2ForSequenceClassification.*missing: a language-model head; lm_head"
    ):
        find_family(classifier)
    with pytest.raises(UnsupportedModelError, match=r"GPT2Model.*missing: .*transformer.ln_f"):
        find_family(tiny.build("causal:gpt2").transformer)


def test_refuses_a_configuration_that_the_family_does_not_cover():
    model = variant("causal:bloom", {"apply_residual_connection_post_layernorm": True})
    with pytest.raises(
        UnsupportedModelError, match=r"config.apply_residual_connection_post_layernorm = False \(it is True\)"
    ):
        find_family(model)


def test_says_which_block_lacks_what():
    model = tiny.build("causal:llama")
    del model.model.layers[1].mlp
    assert find_family(tiny.build("causal:llama")).missing(model) == ["mlp in block 1"]


def test_a_family_takes_ten_lines():
    """The example of docs/add_a_family.md: a new model type that is built like a known one."""
    mine = Family(
        model_types=("my_llama",),
        blocks="model.layers",
        attention_output="self_attn.o_proj",
        mlp_output="mlp",
        head=("model.norm", "lm_head"),
    )
    model = tiny.build("causal:llama")
    assert mine.missing(model) == []
    assert get(model, mine.blocks) is model.model.layers
