"""Text alone for models that read images too: explained as by the causal model inside them."""

import numpy as np
import pytest
import tiny
import tiny_files
import torch
from transformers import (
    AutoModelForCausalLM,
    BlipConfig,
    BlipForConditionalGeneration,
    LlavaForConditionalGeneration,
    T5Config,
    T5Model,
    ViTConfig,
    ViTForImageClassification,
)

import lrpx
from lrpx.check import check
from lrpx.models.auto_class import auto_class_of
from lrpx.models.signature import task_of

IDS = [9, 12, 15, 18, 21, 24, 27, 30]


@pytest.mark.parametrize("family", tiny.VISION)
def test_text_alone_is_explained_and_check_agrees(family):
    model = tiny.build(family)
    assert task_of(model) == "causal"
    report = check(model)
    assert report.holds, [line for ok, line in report.lines if ok is False]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS))).logits[0, -1]
    rows = [IDS, IDS[:7]]
    for method in ("attnlrp", "lrp", "gradient-x-input"):
        together = lrpx.explain(model, None, rows, target=11, contrast=13, method=method)
        assert together[0].value == pytest.approx(float(logits[11] - logits[13]), rel=1e-9)
        for e, row in zip(together, rows, strict=True):  # the shorter one is padded
            alone = lrpx.explain(model, None, row, target=11, contrast=13, method=method)
            np.testing.assert_allclose(e.relevance, alone.relevance, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["attnlrp", "lrp"])
def test_the_map_is_that_of_the_language_model_inside(method):
    model = tiny.build("vision:llava")
    inner = AutoModelForCausalLM.from_config(model.config.text_config, dtype=torch.float64).eval()
    inner.model.load_state_dict(model.model.language_model.state_dict())
    inner.lm_head.load_state_dict(model.lm_head.state_dict())
    a, b = (lrpx.explain(m, None, IDS, target=11, method=method) for m in (model, inner))
    np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-9, atol=1e-12)
    assert a.value == pytest.approx(b.value, rel=1e-12)


def test_a_token_that_stands_for_an_image_is_said():
    model = tiny.build("vision:llava")
    image = getattr(model.config, "image_token_id", None) or model.config.image_token_index
    with pytest.warns(
        UserWarning, match="1 of the tokens stand for an image or sound that LlavaForConditionalGeneration is not"
    ):
        lrpx.explain(model, None, [9, image, 10], target=11)


@pytest.mark.parametrize("family", tiny.VISION)
def test_the_class_that_loads_it_is_the_one_that_was_saved(family):
    model = tiny.build(family)
    model.config.architectures = [type(model).__name__]
    assert auto_class_of(model.config, "x")._model_mapping[type(model.config)] is type(model)


def test_loaded_by_name(tmp_path):
    model = tiny.build("vision:llava", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    tiny_files.tokenizer().save_pretrained(tmp_path)
    loaded = lrpx.load(tmp_path).model
    assert type(loaded) is LlavaForConditionalGeneration
    a, b = (lrpx.explain(m, None, IDS, target=11) for m in (model, loaded))
    np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-4, atol=1e-5)  # float32


def test_check_and_explain_refuse_the_same():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 97}
    model = T5Model(T5Config(**sizes)).eval()
    with pytest.raises(lrpx.UnsupportedModelError) as caught:
        lrpx.explain(model, None, IDS)
    assert [line for ok, line in check(model).lines if ok is False] == [str(caught.value)]


def test_a_model_that_needs_an_image_is_not_explained_without_one():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = BlipForConditionalGeneration(
        BlipConfig(
            text_config={**sizes, "vocab_size": 97, "encoder_hidden_size": 32},
            vision_config={**sizes, "image_size": 16, "patch_size": 8},
        )
    ).eval()
    with pytest.raises(lrpx.InputError, match=r"no image is given. Give it: images=\[picture\]"):
        lrpx.explain(model, None, IDS)
    assert any(
        not ok and "missing 1 required positional argument: 'pixel_values'" in line for ok, line in check(model).lines
    )


def test_a_model_that_reads_no_text_says_what_it_reads():
    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = ViTForImageClassification(config).eval()
    with pytest.raises(lrpx.InputError, match=r"image\[0\]: the image is of the type int"):
        lrpx.explain(model, None, IDS)
