"""Every family that reads images and text: values untouched, relevance of text and images accounted for to round-off.

Under LRP every operation passes on what it receives, except where a constant is added. So with constants of zero the value is the
relevance of what enters the first block, image features included; and also that of the text there and of the pixels.
"""

import numpy as np
import pytest
import tiny_image_text
import tiny_images
import torch
from tiny_image_inputs import FORMS

import lrpx
from lrpx.check import Accounting
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.signature import ModelSignature
from lrpx.passes.attribution import run
from lrpx.passes.image_inputs import APART
from lrpx.propagation.propagate import propagate
from lrpx.tasks.image_places import image_tokens
from lrpx.tasks.image_row import CROSSING
from lrpx.tasks.image_text import encode_with_images
from lrpx.tasks.sources import encode_source
from lrpx.tasks.text2text import read_pair
from lrpx.text.batching import pad
from lrpx.text.items import item_of
from lrpx.text.tokenization import encoder

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
SINGLE = ("kosmos-2",)  # in float32 as a whole
COMMON = (
    "florence2",
    "vision-encoder-decoder",
    "llava",
    "llava_next",
    "qwen2_vl",
    "qwen3_vl",
    "paligemma",
    "smolvlm",
    "mllama",
)
REFUSED = {
    name: reason
    for name, reason in {
        "diffusion_gemma": "is not supported: it fills in a canvas",
        "evolla": "reads no images",
        "git": "with an image is not supported: it puts the features of the image before the text",
        "pi0": "is not supported: it predicts what a robot does",
        "udop": "is not supported: it reads where words stand on a page and adds the patches there to them",
    }.items()
    if name in tiny_image_text.NAMES and name not in tiny_image_text.NOT_BUILT
}
"""Model type -> how it is refused."""
NOT_TO_PIXELS = dict.fromkeys(("chameleon", "emu3", "ovis2"), "through a choice")
"""Model type -> what is said of its pixels: the image is made into tokens of a vocabulary."""

BOTH_WAYS = ("paligemma",)
"""Model types whose text attends forwards and backwards, so that a pass over all says nothing of single predictions."""

TRIED = [name for name in tiny_image_text.NAMES if name not in tiny_image_text.NOT_BUILT and name not in REFUSED]
PAIRS = [name for name in TRIED if name in tiny_image_text.PAIRS]
EXPLAINED = [name for name in TRIED if name not in PAIRS]
MIXED = tuple(
    "aria blip-2 deepseek_ocr2 emu3 fuyu granite4_vision idefics2 instructblip kosmos-2 kosmos-2.5 unlimited_ocr".split()
)
"""Model types whose image tokens have no places in the image, or none that are known."""


def families(names):
    return pytest.mark.parametrize(
        "name", [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in names]
    )


def batch_of(model, given):
    encoded = encode_with_images(model, None, given, None, encoder(None))
    return encoded, pad([item_of(ModelSignature.of(model), None, encoded, target=11, contrast=13)], model)


def relevance(hidden):
    return (hidden.state * hidden.gradient).double()


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # on lengths and further embeddings
@families(EXPLAINED)
def test_forward_is_bit_identical_and_relevance_adds_up(name):
    model = tiny_images.zero_constants(tiny_image_text.build(name))
    with torch.no_grad():  # Molmo adds features to the embedding of the token that stands for them
        model.get_input_embeddings().weight[tiny_image_text.image_token(model)] = 0
    encoded, batch = batch_of(model, tiny_image_text.inputs(model))
    with torch.no_grad():
        plain = model(**batch.inputs).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(model(**batch.inputs).logits, plain)
    value = float(plain[0, -1, 11] - plain[0, -1, 13])
    tolerance = 2e-5 if name in SINGLE else TOLERANCE

    result = run(model, batch, "lrp", mode=Accounting)
    assert result.values[0] == pytest.approx(value, rel=1e-5 if name in SINGLE else 1e-6, abs=1e-12)
    parts = [relevance(hidden) for hidden in result.hidden.values()]
    size = float(sum(part.abs().sum() for part in parts))
    total = float(sum(part.sum() for part in parts))
    assert abs(value - total - result.mode.absorbed) < tolerance * size

    plain_gradients = run(model, batch, {})  # the check above is one that can fail
    assert (
        abs(value - float(sum(relevance(each).sum() for each in plain_gradients.hidden.values())))
        > 50 * tolerance * size
    )

    of_images = image_tokens(model, encoded.token_ids, encoded.extras)
    if name in CROSSING:
        assert any(part.any() for where, part in zip(result.hidden, parts, strict=True) if where.startswith(APART))
    else:
        assert result.products[0, of_images].any()
    places = [token for patches in encoded.images for token in patches.tokens]
    assert set(places) <= set(of_images)
    assert bool(places) == (name not in MIXED and name not in CROSSING)

    if name in NOT_TO_PIXELS:
        with pytest.raises(UnsupportedModelError, match=NOT_TO_PIXELS[name]):
            run(model, batch, "lrp", ["input", "pixels"])
        return
    followed = run(model, batch, "lrp", ["input", "pixels"], mode=Accounting)
    of_pixels = [relevance(each) for where, each in followed.hidden.items() if where.startswith(APART)]
    of_text = followed.products[0].copy()
    if name not in CROSSING:
        of_text[of_images] = 0
    total = float(of_text.sum()) + float(sum(part.sum() for part in of_pixels))
    assert all(part.any() for part in of_pixels)
    if name not in BOTH_WAYS:
        generated_at_pixels_is_one_by_one(model, tiny_image_text.inputs(model))
    size = float(sum(relevance(each).abs().sum() for each in followed.hidden.values()))
    assert abs(value - total - followed.mode.absorbed) < tolerance * size

    other = run(model, batch_of(model, tiny_image_text.inputs(model, seed=1))[1], "attnlrp")
    first = run(model, batch, "attnlrp")
    assert abs(other.products - first.products).max() > 1e-6 * abs(first.products).max()


UNKNOWN_PACKING = ("fuyu",)
"""Model types of whose pixels it is not known which patch they belong to, so that they cannot be changed one by one."""
ONE_OF_EACH_FORM = tuple({form: name for name, form in FORMS.items() if name in EXPLAINED}.values())
OF_EACH_KIND = [name for name in EXPLAINED if name in {*COMMON, *MIXED, *BOTH_WAYS, *NOT_TO_PIXELS, *ONE_OF_EACH_FORM}]
"""Model types that differ in how images come in, which is what these methods change; all are in the test above."""
STEEP = 1e-4  # how far apart gradients may be at inputs that differ by a millionth of a millionth


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")
@families(OF_EACH_KIND)
def test_methods_that_change_the_input(name):
    """Without noise SmoothGrad is the gradient; integrated gradients and the baseline's value add up; all have the same row."""
    model = tiny_image_text.build(name)
    given, explainer = tiny_image_text.inputs(model), lrpx.Explainer(model)
    for at in ("input", "pixels"):
        asked = {"target": 11, "contrast": 13, "at": at}
        if at == "pixels" and name in (*UNKNOWN_PACKING, "chameleon", "emu3"):
            with pytest.raises(UnsupportedModelError, match=r"which numbers are a patch|through a choice"):
                explainer(given, method="smoothgrad", **asked)
            continue
        smooth = explainer(given, method="smoothgrad", samples=1, noise=1e-12, **asked)
        gradient = explainer(given, method="gradient", **asked)
        padding = [token for image in gradient.images[len(smooth.images) :] for token in image.tokens]
        expected = np.delete(gradient.relevance, padding)
        np.testing.assert_allclose(smooth.relevance, expected, rtol=0, atol=STEEP * abs(expected).max())
        path = explainer(given, method="integrated-gradients", steps=2, **asked)
        assert path.tokens == smooth.tokens
        total = path.relevance.sum() + path.components["baseline"] + path.residual
        assert total == pytest.approx(path.value, abs=1e-6 * abs(path.relevance).sum())
        assert abs(path.value - path.components["baseline"]) > 1e-3
        if len(path.tokens) < 30:
            hidden = explainer(given, method="occlusion", **asked)
            assert hidden.tokens == smooth.tokens
            assert np.count_nonzero(hidden.relevance) > 1


def generated_at_pixels_is_one_by_one(model, given):
    """The second generated token, from one pass over all, is what a call for the longer text gives."""
    explainer = lrpx.Explainer(model)
    row = explainer.generate(given, continuation=[30, 31], method="attnlrp", at="pixels")[1]
    longer = dict(given)
    for key in ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "image_embeds_position_mask"):
        if key in given:
            last = torch.tensor([[{"input_ids": 30, "attention_mask": 1}.get(key, given[key][0, -1])]])
            longer[key] = torch.cat([given[key], last], 1)
    for key in ("cross_attention_mask", "image_attention_mask"):  # as when the model generates
        if key in given:
            longer[key] = torch.cat([given[key], given[key][:, -1:]], 1)
    one = explainer(longer, target=31, method="attnlrp", at="pixels")
    assert row.tokens == one.tokens
    assert row.images == one.images
    size = abs(one.relevance).max()
    np.testing.assert_allclose(row.relevance, one.relevance, rtol=0, atol=1e-5 * size)  # norms in float32


PREFIX = [2, 20]


@pytest.mark.filterwarnings("ignore:target_prefix= begins with id 2:lrpx.errors.LrpxWarning")
@families(PAIRS)
def test_encoder_decoder_models(name):
    """What enters the encoder's first block, image patches and text, and the decoder's: values untouched, all accounted for."""
    model = tiny_images.zero_constants(tiny_image_text.build(name))
    given = tiny_image_text.inputs(model)
    source = ModelSignature.of(model).source
    plain_inputs = {key: t.to(model.dtype) if t.is_floating_point() else t for key, t in given.items()}
    if source.features:
        given = {source.features: given[source.features]}
        plain_inputs = {key: plain_inputs[key] for key in given}
    plain_inputs["decoder_input_ids"] = torch.tensor([PREFIX])
    with torch.no_grad():
        plain = model(**plain_inputs, use_cache=False).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(model(**plain_inputs, use_cache=False).logits, plain)
    asked = {"target": 11, "contrast": 13, "target_prefix": PREFIX}
    explainer = lrpx.Explainer(model)
    e = explainer(given, **asked, method="lrp")
    size = abs(e.relevance).sum()
    assert e.value == pytest.approx(float(plain[0, -1, 11] - plain[0, -1, 13]), rel=1e-9)
    assert abs(e.residual) < TOLERANCE * size
    assert (
        abs(explainer(given, **asked, method="gradient-x-input").residual) > 50 * TOLERANCE * size
    )  # one that can miss
    [image] = e.images
    assert abs(e.relevance[list(image.tokens)]).sum() > 0.01 * size
    assert [part.name for part in e.segments] == ["source", "target"]

    other = tiny_image_text.inputs(model, seed=1)
    other = {key: other[key] for key in given}
    together = explainer([given, other], **asked, method="lrp")
    np.testing.assert_allclose(together[0].relevance, e.relevance, rtol=0, atol=1e-12 * size)
    assert abs(together[1].relevance - e.relevance).max() > 1e-6 * size

    g = explainer.generate(given, continuation=[11, 12], target_prefix=PREFIX, method="attnlrp")
    one = explainer(given, target=12, target_prefix=[*PREFIX, 11], method="attnlrp")
    np.testing.assert_allclose(g[1].relevance, one.relevance, rtol=0, atol=1e-9 * abs(one.relevance).max())
    assert g.images == e.images
    assert len(explainer.generate(given, max_new_tokens=2, target_prefix=PREFIX)) == 2
    with pytest.raises(InputError, match="changes word embeddings"):
        explainer(given, **asked, method="integrated-gradients")


@pytest.mark.filterwarnings("ignore:target_prefix= begins with id 2:lrpx.errors.LrpxWarning")
@families(PAIRS)
def test_encoder_decoder_models_at_pixels(name):
    """Text, target and pixels are the value, but for constants; pixels are those of plain autograd; generated is one by one."""
    model = tiny_images.zero_constants(tiny_image_text.build(name))
    given = tiny_image_text.inputs(model)
    source = ModelSignature.of(model).source
    if source.features:
        given = {source.features: given[source.features]}
    encoded = (
        encode_source(model, None, given)
        if source.features
        else encode_with_images(model, None, given, None, encoder(None))
    )
    encoded = read_pair(model, None, encoded, PREFIX)
    batch = pad([item_of(ModelSignature.of(model), None, encoded, target=11, contrast=13)], model)
    asked = {"target": 11, "contrast": 13, "target_prefix": PREFIX, "at": "pixels"}
    explainer = lrpx.Explainer(model)

    e = explainer(given, **asked, method="lrp")
    size = abs(e.relevance).sum()
    accounted = run(model, batch, "lrp", ["input", "pixels"], mode=Accounting)
    assert abs(e.residual - accounted.mode.absorbed) < TOLERANCE * size
    assert abs(explainer(given, **asked, method="gradient-x-input").residual) > 50 * TOLERANCE * size
    [image] = e.images
    assert abs(e.relevance[list(image.tokens)]).sum() > 0.01 * size
    assert e.layers["pixels"].sum() == pytest.approx(e.relevance[list(image.tokens)].sum(), rel=1e-6)
    assert [part.name for part in e.segments] == ["source", "target"]
    assert e.segments[0].end == len(e.tokens) - len(PREFIX) == e.segments[1].start

    key = "pixel_values" if "pixel_values" in given else "flattened_patches"
    leaf = batch.inputs[key].clone().requires_grad_()
    logits = model(**{**batch.inputs, key: leaf * 1.0}, use_cache=False).logits[0, -1]
    (slope,) = torch.autograd.grad(logits[11] - logits[13], leaf)
    plain = explainer(given, **asked, method="gradient-x-input")
    expected = (leaf * slope).detach().numpy()
    np.testing.assert_allclose(plain.layers["pixels"].sum(), expected.sum(), rtol=1e-6)
    if key == "pixel_values":
        np.testing.assert_allclose(plain.layers["pixels"], expected[0], rtol=0, atol=1e-6 * abs(expected).max())

    other = {key: tiny_image_text.inputs(model, seed=1)[key] for key in given}
    together = explainer([given, other], **asked, method="lrp")
    np.testing.assert_allclose(together[0].relevance, e.relevance, rtol=0, atol=1e-12 * size)
    assert abs(together[1].relevance - e.relevance).max() > 1e-6 * size

    g = explainer.generate(given, continuation=[11, 12], target_prefix=PREFIX, method="attnlrp", at="pixels")
    one = explainer(given, target=12, target_prefix=[*PREFIX, 11], method="attnlrp", at="pixels")
    assert g[1].tokens == one.tokens
    assert (g.images, g.source) == (one.images, one.segments[0].end)
    np.testing.assert_allclose(g[1].relevance, one.relevance, rtol=0, atol=1e-6 * abs(one.relevance).max())
    [both] = explainer(given, target=[[11, 12]], target_prefix=PREFIX, method="attnlrp", at="pixels")
    np.testing.assert_allclose(both.relevance, g.relevance.sum(0), rtol=0, atol=1e-6 * abs(one.relevance).max())


@families(REFUSED)
def test_refuses_by_name(name):
    model = tiny_image_text.build(name)
    with pytest.raises((UnsupportedModelError, InputError), match=f"{type(model).__name__} {REFUSED[name]}"):
        run(model, batch_of(model, tiny_image_text.inputs(model))[1], "lrp")
