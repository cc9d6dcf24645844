"""``lrpx check`` of models that read images or sound: each gets a random input that it reads, or is not judged."""

import numpy as np
import pytest
import tiny
import tiny_image_text
import tiny_images
import torch
import transformers
from support import families
from transformers import ViTImageProcessor

from lrpx.check import check
from lrpx.check_inputs import random_batch

QUICK = ("score:clip", "score:siglip2", "speech2text:whisper", "speech2text:speech_to_text")
SCORES = [family for family in tiny_images.SCORES if family != "score:blip-2"]  # which is not explained
SOUND = [
    "speech2text:moonshine",
    "speech2text:speech-encoder-decoder",
    "speech2text:speech_to_text",
    "speech2text:speecht5",
    "speech2text:whisper",
]
SOUND = [family for family in SOUND if family in tiny.PAIRS]


def trocr(size=384):
    encoder = transformers.ViTConfig(
        image_size=size, patch_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    decoder = transformers.TrOCRConfig(
        vocab_size=110, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, pad_token_id=0,
        cross_attention_hidden_size=32, max_position_embeddings=64, bos_token_id=101, eos_token_id=102,
        decoder_start_token_id=101,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(
        encoder=transformers.ViTModel(encoder), decoder=transformers.TrOCRForCausalLM(decoder)
    )
    return model.eval()


def donut():
    encoder = transformers.DonutSwinConfig(
        image_size=[64, 32], patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    decoder = transformers.MBartConfig(
        vocab_size=97, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, is_decoder=True,
        add_cross_attention=True,
    )  # fmt: skip
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    torch.manual_seed(0)
    return transformers.VisionEncoderDecoderModel(both).eval()


def pix2struct():
    return tiny_image_text.build("pix2struct")


def built(family):
    return (tiny_images if family.startswith("score:") else tiny).build(family)


def lines_of(report, word):
    return [line for _, line in report.lines if word in line]


@pytest.mark.parametrize("make", [trocr, donut, pix2struct])
def test_an_image_that_is_a_source(make):
    model = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = check(model)
    assert report.holds, report.lines
    assert len(lines_of(report, "bit for bit")) > 1
    assert lines_of(report, "of what enters the first blocks adds up to the logit")
    assert list(report.sums) == ["input"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_size_is_that_of_the_configuration_or_of_the_processor():
    assert random_batch(trocr(), None, 16, 0).inputs["pixel_values"].shape == (1, 3, 384, 384)
    assert random_batch(donut(), None, 16, 0).inputs["pixel_values"].shape == (1, 3, 64, 32)
    model, processor = trocr(32), ViTImageProcessor(size={"height": 32, "width": 32})
    given = random_batch(model, processor, 16, 0).inputs["pixel_values"]
    assert given.shape == (1, 3, 32, 32)
    assert float(given.abs().max()) <= 1  # a picture, scaled
    assert check(model, processor).holds


@families([*SCORES, *SOUND], QUICK)
def test_texts_with_images_and_sound(family):
    report = check(built(family))
    assert report.holds, report.lines
    total = sum(report.sums.values())
    assert total + report.absorbed == pytest.approx(report.value, rel=1e-3)
    if family.startswith("score:"):
        halves = np.array(list(report.sums.values()))
        assert halves == pytest.approx(halves[::-1], rel=1e-3)


@pytest.mark.parametrize("make", [trocr, lambda: built("score:clip"), lambda: built("speech2text:whisper")])
def test_wrong_rules_are_noticed(make, monkeypatch):
    """By plain gradients in place of the rules, which do not add up."""
    from lrpx.check import run

    monkeypatch.setattr("lrpx.check.run", lambda m, b, _, *a, **k: run(m, b, {}, *a, **k))
    report = check(make())
    assert report.checked
    [failed] = [line for ok, line in report.lines if ok is False]
    assert "adds up" in failed


def test_a_constant_before_the_first_block_is_not_counted():
    """Position embeddings are added to what becomes the leaf, and take nothing after it."""
    assert check(built("speech2text:whisper")).absorbed == 0


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8))


def visual_bert():
    return transformers.VisualBertForQuestionAnswering(transformers.VisualBertConfig(**SIZES, vocab_size=97))


def wav2vec2():
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SIZES))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (vit, "ViTModel reads images and gives no labels"),
        (visual_bert, "VisualBertForQuestionAnswering returns is not read"),
        (wav2vec2, "Wav2Vec2Model cannot read this input, also without lrpx"),
    ],
)
def test_what_cannot_be_checked_neither_holds_nor_fails(make, message):
    report = check(make().eval())
    assert not report.checked
    assert not report.holds
    [(ok, line)] = report.lines
    assert ok is None
    assert message in line


def test_what_is_refused_fails():
    """Not for want of an input: no explanation of it is given either."""
    report = check(tiny.build("speech2text:dia", dtype=torch.float32))
    assert report.checked
    assert [ok for ok, _ in report.lines] == [False]
