"""Encoder-decoder models that read sound: every family of the installed transformers, and how features are given."""

import numpy as np
import pytest
import tiny
import torch
from support import families, fingerprint

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.signature import ModelSignature
from lrpx.models.stacks import encoder_of
from lrpx.propagation.propagate import propagate
from lrpx.tasks.text2text import start_tokens

# One prefix for all random models, whose decoders begin with different tokens.
pytestmark = pytest.mark.filterwarnings("ignore:target_prefix= begins with id 2:lrpx.errors.LrpxWarning")

REFUSES = {
    "dia": "it writes audio codes of several channels, not text",
    "pop2piano": "it reads sound and writes notes, not text",
}
WITHOUT_DECODER = """
fun_asr_nano granite_speech granite_speech_plus kyutai_speech_to_text omniasr qwen3_asr vibevoice vibevoice_asr voxtral
voxtral_realtime
""".split()
NOT_BUILT = ["moonshine_streaming"]
KINDS = [family.split(":")[1] for family in tiny.PAIRS if family.startswith("speech2text:")]
EXPLAINED = [kind for kind in KINDS if kind not in (*REFUSES, *WITHOUT_DECODER, *NOT_BUILT)]


def sound(model, seed=0):
    """Random features, or a random wave, that the model can read."""
    generator = torch.Generator().manual_seed(seed)
    kind, config = model.config.model_type, model.config
    shape = (1, 6400)
    if kind == "whisper":
        shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
    elif ModelSignature.of(model).source.features == "input_features":
        encoder = getattr(config, "encoder_config", config)
        names = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins")
        shape = (1, 64, next((n for name in names if (n := getattr(encoder, name, None))), 80))
    return torch.randn(shape, generator=generator).to(model.dtype)


@families(EXPLAINED, ("whisper",))
def test_relevance_adds_up_over_frames_and_target(family):
    model = tiny.build(f"speech2text:{family}", zero_biases=True)
    before, features = fingerprint(model), sound(model)
    e = lrpx.explain(model, None, features, target=11, contrast=13, target_prefix=[2, 20], method="lrp")
    frames = e.segments[0].end
    assert [part.name for part in e.segments] == ["source", "target"]
    assert e.tokens[:2] == ["frame 0", "frame 1"]
    assert len(e.tokens) == frames + 2
    near = 1e-9 if model.dtype == torch.float64 else 1e-4
    assert abs(e.residual) < near * np.abs(e.relevance).sum()
    assert np.abs(e.relevance[:frames]).sum() > 0.01 * np.abs(e.relevance).sum()
    name = ModelSignature.of(model).source.features
    given = {name: features, "decoder_input_ids": torch.tensor([[2, 20]])}
    with torch.no_grad():
        plain = model(**given, use_cache=False).logits
    assert e.value == pytest.approx(float(plain[0, -1, 11] - plain[0, -1, 13]), abs=10 * near)
    with propagate(model, "lrp"), torch.enable_grad():
        assert torch.equal(model(**given, use_cache=False).logits, plain)
    gradient = lrpx.explain(
        model, None, features, target=11, contrast=13, target_prefix=[2, 20], method="gradient-x-input"
    )
    assert abs(gradient.residual) > 1e-3 * np.abs(gradient.relevance).sum()  # the sum is one that can miss
    assert fingerprint(model) == before


@families(EXPLAINED, ("whisper",))
def test_generated_text_is_row_by_row_a_call(family):
    model = tiny.build(f"speech2text:{family}")
    explainer, features = lrpx.Explainer(model), sound(model)
    g = explainer.generate(features, max_new_tokens=3, target_prefix=[2, 20])
    for i, row in enumerate(g):
        start, at = g.source, g.prompt_length + i
        one = explainer(features, target=g.token_ids[at], target_prefix=g.token_ids[start:at])
        near = 1e-9 if model.dtype == torch.float64 else 1e-4
        np.testing.assert_allclose(row.relevance, one.relevance, rtol=0, atol=near * np.abs(one.relevance).max())
        assert one.top[0].token.id == g.token_ids[at]


@pytest.mark.parametrize("kind", [kind for kind in REFUSES if kind in KINDS])
def test_refuses_by_name(kind):
    model = tiny.build(f"speech2text:{kind}", dtype=torch.float32)
    given = [9, 10] if kind == "pop2piano" else sound(model)  # which says that it reads ids
    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        lrpx.explain(model, None, given, target=11, target_prefix=[2], method="lrp")


@pytest.fixture(scope="module")
def whisper():
    return lrpx.Explainer(tiny.build("speech2text:whisper"))


def test_features_in_any_container(whisper):
    features = sound(whisper.model)
    expected = whisper(features, target=11).relevance
    for given in (features[0], features.numpy(), {"input_features": features}, features[0].tolist()):
        np.testing.assert_allclose(whisper(given, target=11).relevance, expected, atol=1e-12)
    several = whisper([features, sound(whisper.model, seed=1)], target=11)
    np.testing.assert_allclose(several[0].relevance, expected, atol=1e-12)
    assert np.abs(several[1].relevance - expected).max() > 0
    both = whisper(features, target=[11, 12])
    np.testing.assert_allclose(both[0].relevance, expected, atol=1e-9)
    words = whisper(features, target=[[11, 12, 13]])[0]
    assert words.span == (64, 67)


def test_units_are_few_and_saved(whisper, tmp_path):
    e = whisper(sound(whisper.model), target=11)
    assert len(e.units) < 64 < len(e.tokens)
    assert e.units[0].text == "[0:2]"
    e.save(tmp_path / "e.json")
    assert lrpx.Explanation.load(tmp_path / "e.json").segments == e.segments
    assert "[0:2]" in e.to_html()


BAD = [
    ("hello", "WhisperForConditionalGeneration reads sound, and was given 'hello'.*processor\\(audio"),
    ({"input_values": [1.0]}, "was given a dictionary with input_values"),
    (torch.zeros(2, 80, 128), r"input_features has the shape \[2, 80, 128\]: expected 3 dimensions"),
    (torch.zeros(80), r"has the shape \[80\]"),
    (torch.zeros(80, 100, dtype=torch.float64), "the encoder of Whisper.* cannot read this sound"),
    (torch.full((80, 128), float("nan")), "NaN or infinity"),
    (torch.zeros(80, 128, dtype=torch.int64), "expected finite real numbers"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[m[:20] for _, m in BAD])
def test_bad_input(whisper, given, message):
    with pytest.raises(InputError, match=message):
        whisper(given, target=11)


class Prefixes:
    def __init__(self, *tokens):
        self.prefix_tokens = list(tokens)


def test_whispers_tokenizer_knows_language_and_task(whisper):
    [start] = start_tokens(whisper.model)
    assert start_tokens(whisper.model, Prefixes(start, 50, 51)) == (start, 50, 51)
    assert start_tokens(whisper.model, Prefixes(start + 1, 50, 51)) == (start,)  # another model's


def test_every_family_is_in_one_list():
    for kind in EXPLAINED:
        assert encoder_of(tiny.build(f"speech2text:{kind}", dtype=torch.float32)) is not None
