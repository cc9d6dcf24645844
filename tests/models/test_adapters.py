"""Adapters of PEFT take part in the map, wherever they come from; what works outside the model is refused by name."""

import json

import numpy as np
import pytest
import tiny
import tiny_files
import torch
from tiny_classifiers import SENTIMENT, classifier, tokenizer
from transformers import LlamaForCausalLM

import lrpx
from lrpx.check import check
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.usable import usable_model

peft = pytest.importorskip("peft", reason="needs the package peft")
# PEFT asks transformers by an older name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
IDS = [9, 12, 15, 18, 21, 24, 27, 30]
TARGETS = ["q_proj", "v_proj", "down_proj"]
CONFIGS = {
    "LoRA": lambda: peft.LoraConfig(r=4, target_modules=TARGETS, task_type="CAUSAL_LM"),
    "DoRA": lambda: peft.LoraConfig(r=4, target_modules=TARGETS, use_dora=True, task_type="CAUSAL_LM"),
    "IA3": lambda: peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
    ),
    "VeRA": lambda: peft.VeraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
}
OUTSIDE = {
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "P_TUNING": lambda: peft.PromptEncoderConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


def adapted(config, model=None, seed=0):
    """A model with an adapter that does something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = peft.get_peft_model(model or tiny.build("causal:llama"), config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if any(part in name for part in ("lora_", "ia3_", "vera_")):
                    p.add_(0.3 * torch.randn_like(p))
    return model.eval()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("method", ["attnlrp", "lrp"])
def test_the_adapter_takes_part(kind, method):
    """As in the model that it is merged into."""
    model = adapted(CONFIGS[kind]())
    found = lrpx.explain(model, None, IDS, target=11, contrast=13, method=method)
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, -1]
    assert found.value == pytest.approx(float(logits[11] - logits[13]), rel=1e-9)
    assert found.provenance["adapters"] == [
        f"default ({ {'LoRA': 'LORA', 'DoRA': 'LORA', 'VeRA': 'VERA'}.get(kind, kind) })"
    ]
    assert check(model).holds
    merged = lrpx.explain(model.merge_and_unload(), None, IDS, target=11, contrast=13, method=method)
    np.testing.assert_allclose(found.relevance, merged.relevance, rtol=1e-7, atol=1e-9)
    plain = lrpx.explain(tiny.build("causal:llama"), None, IDS, target=11, contrast=13, method=method)
    assert "adapters" not in plain.provenance
    assert abs(found.value - plain.value) > 1e-3  # the adapter does something


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_works_outside_the_model_is_refused_by_name(kind):
    model = peft.get_peft_model(tiny.build("causal:llama", dtype=torch.float32), OUTSIDE[kind]()).eval()
    with pytest.raises(UnsupportedModelError, match=f"the model has a {kind} adapter, which works outside the model"):
        lrpx.explain(model, None, IDS, target=11)
    assert not check(model).holds


def test_an_adapter_that_is_switched_off_takes_no_part():
    model = adapted(CONFIGS["LoRA"]())
    explainer = lrpx.Explainer(model)
    on = explainer(IDS, target=11).value
    with model.disable_adapter():
        off = explainer(IDS, target=11).value
    assert off == pytest.approx(lrpx.explain(tiny.build("causal:llama"), None, IDS, target=11).value, rel=1e-9)
    assert on == explainer(IDS, target=11).value != off


# By name


def test_an_adapter_of_a_classifier_with_a_head_of_its_own(tmp_path):
    """PEFT keeps the classifier's weights twice, and runs the adapter's."""
    model = classifier("SequenceClassification", **SENTIMENT)
    config = peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = adapted(config, model)
    with torch.no_grad():
        logits = model(torch.tensor([[2, 5, 6, 3]])).logits[0]
    e = lrpx.explain(model, None, [2, 5, 6, 3], target="POSITIVE")
    assert e.value == pytest.approx(float(logits[1]))
    classifier("SequenceClassification", **SENTIMENT).save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    model.save_pretrained(tmp_path / "adapter")
    loaded, _ = lrpx.load(tmp_path / "adapter")
    assert lrpx.explain(loaded, None, [2, 5, 6, 3], target="POSITIVE").value == pytest.approx(e.value, rel=1e-5)


@pytest.fixture
def stored(tmp_path):
    """The folders of a model and of its adapter, and the model with it."""
    base = tmp_path / "base"
    tiny_files.save(base, LlamaForCausalLM, tiny_files.CONFIGS["llama"])
    model = adapted(CONFIGS["LoRA"](), LlamaForCausalLM.from_pretrained(base))
    model.save_pretrained(tmp_path / "adapter")
    return base, tmp_path / "adapter", model


def test_a_folder_with_an_adapter_loads_both(stored):
    base, folder, model = stored
    loaded, tokenizer = lrpx.load(folder)
    assert type(loaded) is LlamaForCausalLM
    assert (
        tokenizer("to")["input_ids"] == tiny_files.tokenizer()("to")["input_ids"]
    )  # of the model: the adapter has none
    found, expected = (lrpx.explain(m, None, IDS, target=11) for m in (loaded, model))
    assert found.value == pytest.approx(expected.value, rel=1e-5)
    np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-4, atol=1e-5)  # float32
    assert found.provenance["model"] == str(base)
    assert found.provenance["adapters"] == ["default (LORA)"]


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True:UserWarning")  # PEFT's, with transformers 5.0
def test_an_adapter_with_its_own_tokenizer_and_more_tokens(stored):
    base, folder, _ = stored
    config = type(tiny_files.CONFIGS["llama"])(**tiny_files.CONFIGS["llama"].to_dict() | {"tie_word_embeddings": False})
    tiny_files.save(base, LlamaForCausalLM, config)
    tokenizer = tiny_files.tokenizer()
    tokenizer.add_tokens(["<new>"])
    model = LlamaForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    config = peft.LoraConfig(
        r=4, target_modules=TARGETS, modules_to_save=["embed_tokens", "lm_head"], task_type="CAUSAL_LM"
    )
    model = adapted(config, model)
    model.save_pretrained(folder, save_embedding_layers=True)
    tokenizer.save_pretrained(folder)
    loaded, found = lrpx.load(folder)
    assert len(found) == len(tokenizer) == loaded.get_input_embeddings().weight.shape[0]
    new = [*IDS, len(tokenizer) - 1]
    assert lrpx.explain(loaded, None, new, target=11).value == lrpx.explain(model, None, new, target=11).value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": None}, "does not say which model it adapts"),
        ({"base_model_name_or_path": "./nowhere"}, "the model of the adapter .*: ./nowhere: no such file or folder"),
        ({"peft_type": "NO_SUCH"}, r"the adapter .* cannot be loaded"),
        (
            {"task_type": "SEQ_CLS"},
            r"is for SEQ_CLS, and brings a head .*AutoModelForSequenceClassification.from_pretrained",
        ),
    ],
)
def test_adapters_that_cannot_be_loaded(stored, change, message):
    _, folder, _ = stored
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        lrpx.load(folder)


def test_without_peft_the_error_says_what_to_install(stored, monkeypatch):
    monkeypatch.setattr("lrpx.models.adapters.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="is an adapter, which needs PEFT: pip install peft"):
        lrpx.load(stored[1])


def test_a_prompt_by_name_is_refused(stored):
    base, folder, _ = stored
    model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(base), OUTSIDE["PROMPT_TUNING"]())
    model.save_pretrained(folder.parent / "prompt")
    with pytest.raises(UnsupportedModelError, match="PROMPT_TUNING"):
        lrpx.load(folder.parent / "prompt")


def test_other_models_are_as_they_are():
    model = tiny.build("causal:llama")
    assert usable_model(model) is model
