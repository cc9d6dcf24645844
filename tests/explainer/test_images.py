"""Images that are explained: whatever they are given as, one map; bad input is refused."""

import io

import numpy as np
import pytest
import tiny_images
import torch
from PIL import Image
from support import fingerprint
from transformers import CLIPImageProcessor, ViTImageProcessor

import lrpx
from lrpx.tasks.patches import PatchGrid, cells

SIZE = {"height": 16, "width": 16}
BYTES = (np.random.default_rng(0).random((24, 40, 3)) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def model():
    made = tiny_images.build("image:vit")
    made.config.id2label = {0: "tabby cat", 1: "dog", 2: "fox", 3: "owl", 4: "hen"}
    return made


@pytest.fixture(scope="module")
def processor():
    return ViTImageProcessor(size=SIZE)


@pytest.fixture(scope="module")
def explainer(model, processor):
    return lrpx.Explainer(model, processor)


def test_one_map_however_the_image_is_given(explainer, processor, tmp_path):
    picture = Image.fromarray(BYTES)
    picture.save(tmp_path / "cat.png")
    values = processor(images=picture, return_tensors="pt")
    expected = explainer(picture, target="fox")
    batch = values["pixel_values"]
    channels_first = torch.as_tensor(BYTES).permute(2, 0, 1)
    for given in (
        *(str(tmp_path / "cat.png"), tmp_path / "cat.png", BYTES, torch.as_tensor(BYTES), channels_first),
        *(values, dict(values), batch, batch[0], batch[0].numpy(), picture.convert("RGBA")),
    ):
        found = explainer(given, target=2)
        np.testing.assert_array_equal(found.relevance, expected.relevance)
        assert found.value == expected.value
    assert explainer(tmp_path / "cat.png").provenance["image"] == str(tmp_path / "cat.png")
    several = explainer([picture, BYTES[::-1]], target=["fox", "owl"])
    assert [e.target.text for e in several] == ["fox", "owl"]
    np.testing.assert_allclose(several[0].relevance, expected.relevance, rtol=1e-9, atol=1e-12)


def test_what_is_told(explainer, model, processor):
    e = explainer(BYTES, target="tabby cat", contrast="dog")
    logits = (
        model(**{k: v.double() for k, v in processor(images=BYTES, return_tensors="pt").items()}).logits[0].detach()
    )
    assert e.value == pytest.approx(float(logits[0] - logits[1]), rel=1e-12)
    assert (e.target.text, e.contrast.text, e.task, e.at) == ("tabby cat", "dog", "image-classification", "input")
    assert e.target_probability == pytest.approx(float(logits.softmax(0)[0]), rel=1e-6)
    assert e.top[0].token.id == int(logits.argmax())
    assert (e.tokens[0], e.tokens[1], e.tokens[-1], e.special) == ("[CLS]", "[1, 1]", "[4, 4]", (0,))
    [image] = e.images
    assert (image.start, image.rows, image.columns, image.width, image.height) == (1, 4, 4, 16, 16)
    with Image.open(io.BytesIO(image.png)) as shown:  # what the model sees
        np.testing.assert_array_equal(np.asarray(shown), np.asarray(Image.fromarray(BYTES).resize((16, 16), 2)))
    assert e.relevance.sum() + e.residual == pytest.approx(e.value, rel=1e-12)
    again = lrpx.Explanation.from_dict(e.to_dict())
    np.testing.assert_array_equal(again.relevance, e.relevance)
    assert again.images == e.images


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input", "gradient"])
def test_pixels_are_added_up_by_patch(explainer, method):
    e = explainer(BYTES, target="fox", at="pixels", method=method)
    pixels = e.layers["pixels"]
    assert pixels.shape == (3, 16, 16)
    expected = pixels.sum(0).reshape(4, 4, 4, 4).sum((1, 3)).ravel()
    np.testing.assert_allclose(e.relevance, expected, rtol=1e-12)
    assert (e.at, len(e.tokens), e.images[0].start) == ("pixels", 16, 0)
    beside = explainer(BYTES, target="fox", at=["input", "pixels"], method=method)
    np.testing.assert_allclose(beside.layers["pixels"], pixels, rtol=1e-9, atol=1e-12)
    assert len(beside.relevance) == 17


def test_gradients_of_pixels_against_finite_differences(explainer, model, processor):
    values = processor(images=BYTES, return_tensors="pt")["pixel_values"].double()
    pixels = explainer(values, target="fox", at="pixels", method="gradient-x-input").layers["pixels"]
    for place in [(0, 0, 0), (1, 7, 9), (2, 15, 3)]:
        step = torch.zeros_like(values)
        step[(0, *place)] = 1e-5
        with torch.no_grad():
            slope = (model(values + step).logits[0, 2] - model(values - step).logits[0, 2]) / 2e-5
        assert pixels[place] == pytest.approx(float(values[(0, *place)] * slope), rel=1e-5)


def test_pixels_of_zero_are_the_reference(explainer):
    """They have no relevance: grey, for a processor that subtracts the mean."""
    values = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    values[:, :8] = 0
    pixels = explainer(values, target="fox", at="pixels").layers["pixels"]
    assert not pixels[:, :8].any()
    assert pixels[:, 8:].any()


def test_what_a_crop_leaves_out_is_not_shown():
    model = tiny_images.build("image:clip")
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=SIZE)
    e = lrpx.explain(model, processor, BYTES, target=1)
    assert (e.images[0].width, e.images[0].height, len(e.tokens)) == (16, 16, 17)


def test_each_tile_of_hiera_is_at_its_place():
    model = tiny_images.build("image:hiera")
    values = tiny_images.inputs(model)["pixel_values"]
    e = lrpx.explain(model, None, values, target=1, method="gradient-x-input")
    assert e.tokens[int(e.images[0].tokens[9])] == "[2, 2]"
    assert sorted(e.images[0].tokens) == list(range(64))
    assert list(e.images[0].tokens) != list(range(64))


def test_swin_and_layers_of_other_lengths():
    model = tiny_images.build("image:swin")
    values = tiny_images.inputs(model)["pixel_values"]
    e = lrpx.explain(model, None, values, target=1, at=["input", "swin.encoder.layers.*"], method="lrp")
    assert {name: r.shape for name, r in e.layers.items()} == {
        "swin.encoder.layers.0": (16, 32), "swin.encoder.layers.1": (16, 32),
    }  # fmt: skip


def test_a_network_without_patches_is_explained_at_its_pixels():
    model = tiny_images.build("image:resnet", zero=True)
    values = tiny_images.inputs(model)["pixel_values"]
    e = lrpx.explain(model, None, values, target=1, method="lrp")
    assert e.at == "pixels"
    assert (e.images[0].rows, len(e.tokens)) == (32, 1024)
    assert e.relevance.sum() == pytest.approx(e.value, rel=1e-9)


def test_patches_of_siglip2_of_different_shapes():
    model = tiny_images.build("image:siglip2")
    inputs = tiny_images.inputs(model, batch=2)
    inputs["spatial_shapes"] = torch.tensor([[2, 3], [4, 4]])
    inputs["pixel_attention_mask"][0, 6:] = 0
    two = lrpx.explain(model, None, inputs, target=1, at=["input", "pixels"])
    assert [len(e.tokens) for e in two] == [6, 16]
    assert [e.layers["pixels"].shape for e in two] == [(3, 8, 12), (3, 16, 16)]
    np.testing.assert_allclose(two[0].layers["pixels"][:, :4, 4:8].sum(), _patch_sum(model, inputs), rtol=1e-7)


def _patch_sum(model, inputs):
    """Of the second patch of the first image, read off the patches themselves."""
    alone = {name: value[:1] for name, value in inputs.items()}
    return lrpx.explain(model, None, alone, target=1, at="pixels").relevance[1]


def test_the_model_is_left_as_it_was(model, processor):
    before = fingerprint(model)
    lrpx.explain(model, processor, BYTES, at=["input", "pixels"])
    with pytest.raises(lrpx.InputError):
        lrpx.explain(model, processor, BYTES, at="nothing")
    assert fingerprint(model) == before


def test_narrow_dtypes_and_options():
    model = tiny_images.build("image:vit", dtype=torch.bfloat16)
    values = tiny_images.inputs(model)["pixel_values"].float()
    wide = lrpx.explain(tiny_images.build("image:vit"), None, values, target=1, rules="gamma=0.25")
    e = lrpx.explain(model, None, values, target=1, rules="gamma=0.25", checkpoint=True)
    np.testing.assert_allclose(e.relevance, wide.relevance, atol=0.1 * np.abs(wide.relevance).max())


def test_grids():
    assert cells(224, 224) == PatchGrid(28, 28)
    assert cells(7, 3) == PatchGrid(7, 3)
    numbers = np.arange(35.0).reshape(5, 7)
    np.testing.assert_array_equal(PatchGrid(2, 3, side=(2, 2)).sums(numbers).sum(), numbers.sum())
    np.testing.assert_array_equal(PatchGrid(5, 7).sums(numbers), numbers.ravel())


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (BYTES, {"target": "cat"}, "target='cat' is no label. Did you mean 'tabby cat'"),
        (BYTES, {"target": "fox", "contrast": 2}, "are the same label"),
        (BYTES, {"target": 7}, "target=7 is no id of a label"),
        (BYTES, {"position": 3}, "position= is for texts, and ViTForImageClassification reads images"),
        (BYTES, {"objective": "logprob"}, "objective='logprob' is for language models"),
        (BYTES, {"at": "embedding"}, "at='embedding' is for texts"),
        (BYTES.astype(int) + 200, {}, "the image"),
        (BYTES[..., :2], {}, r"an array of shape \[24, 40, 2\]"),
        ("cat.png", {}, "there is no file 'cat.png'"),
        (__file__, {}, "cannot be read as a picture"),
        ("https://example.org/cat.png", {}, "lrpx downloads no images"),
        (17, {}, "the image is of the type int"),
        ([{"role": "user", "content": "a cat"}], {}, "a dictionary without 'pixel_values'"),
        ([], {}, "the list of images is empty"),
        ({"input_ids": [1]}, {}, "has no 'pixel_values'"),
        (torch.zeros(3, 20, 24), {}, "pixel values of 20 x 24: ViTForImageClassification takes 16 x 16"),
        (torch.zeros(1, 16, 16), {}, r"pixel values of shape \[1, 16, 16\]"),
        (torch.full((3, 16, 16), torch.nan), {}, "hold NaN"),
    ],
)
def test_bad_input(explainer, given, options, message):
    with pytest.raises((lrpx.InputError, lrpx.NonFiniteError), match=message):
        explainer(given, **options)


def test_a_missing_processor(model):
    with pytest.raises(lrpx.InputError, match="reads an image through its image processor, which is missing"):
        lrpx.explain(model, None, BYTES)


def test_of_several_images_the_bad_one_is_named(explainer):
    images = [BYTES, "nowhere.png", BYTES]
    with pytest.raises(lrpx.InputError, match=r"image\[1\]: the image: there is no file"):
        explainer(images)
    found = explainer(images, errors="collect")
    assert len(found) == 2
    assert [failure.index for failure in found.failures] == [1]


@pytest.mark.parametrize("method", ["alti-logit", "alti", "attention-rollout"])
def test_methods_of_language_models_are_refused(explainer, method):
    with pytest.raises(lrpx.UnsupportedModelError, match=r'reads images\. Type: method="attnlrp"'):
        explainer(BYTES, method=method)


def test_several_methods(explainer):
    found = explainer(BYTES, method=["lrp", "attnlrp"], target="hen")
    assert [e.method for e in found] == ["lrp", "attnlrp"]
    assert "image: 4 x 4 patches" in found.to_html()
    assert found[0].by_head is not None  # and yet no panel of layers and heads, which shows texts
    assert 'aria-label="inside the model"' not in found.to_html()


def test_what_reads_text_is_refused_for_an_image_classifier(explainer, model):
    for call in (lambda: explainer.generate([3, 4]), lambda: explainer.flow([3, 4])):
        with pytest.raises(lrpx.UnsupportedModelError, match="reads images, and this is for models that read text"):
            call()
    with pytest.raises(lrpx.UnsupportedModelError, match="has no labels"):
        lrpx.explain(tiny_images.build("image:vit", num_labels=0), None, torch.zeros(3, 16, 16))
    with pytest.raises(lrpx.UnsupportedModelError, match="ViTModel"):
        lrpx.explain(model.vit, None, torch.zeros(3, 16, 16))


def test_an_image_takes_one_label(explainer):
    with pytest.raises(lrpx.InputError, match="one image takes one target"):
        explainer(BYTES, target=["fox", "owl"])


def cat_or_dog(logits):
    return logits[:2].logsumexp(0) - logits[2:].logsumexp(0)


def test_a_function_of_the_labels(explainer, model, processor):
    """Against a backward pass by hand, a function that is a label, and among images with labels."""
    pixels = processor(images=BYTES, return_tensors="pt")["pixel_values"].double().requires_grad_()
    value = cat_or_dog(model(pixel_values=pixels).logits[0])
    (gradient,) = torch.autograd.grad(value, pixels)
    e = explainer(BYTES, target=cat_or_dog, method="gradient-x-input", at="pixels")
    assert e.value == pytest.approx(float(value.detach()))
    np.testing.assert_allclose(e.layers["pixels"], (gradient * pixels)[0].detach(), atol=1e-10)
    told = e.target.text, e.target.id, e.explains, e.target_probability, len(e.top)
    assert told == ("cat_or_dog", -1, "function", None, 5)
    same = explainer(BYTES, target=lambda logits: logits[2])
    np.testing.assert_allclose(same.relevance, explainer(BYTES, target="fox").relevance, atol=1e-10)
    several = explainer([BYTES, BYTES[::-1]], target=[cat_or_dog, "fox"], explains=["a pet", None])
    assert [each.target.text for each in several] == ["a pet", "fox"]
    np.testing.assert_allclose(several[0].relevance, explainer(BYTES, target=cat_or_dog).relevance, atol=1e-10)
    np.testing.assert_allclose(several[1].relevance, explainer(BYTES[::-1], target="fox").relevance, atol=1e-10)
    assert "a pet" in several[0].to_html()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": cat_or_dog, "contrast": "fox"}, "takes no contrast='fox'"),
        ({"contrast": cat_or_dog}, "the contrast is the function cat_or_dog"),
        ({"target": lambda logits: logits}, r"It gets the logits, \[5\]"),
        ({"target": "fox", "explains": "x"}, "a name for the function"),
    ],
)
def test_which_functions_cannot_be_used(explainer, asked, message):
    with pytest.raises(lrpx.InputError, match=message):
        explainer(BYTES, **asked)


@pytest.mark.parametrize("method", ["leave-one-out", "lime", "random"])
def test_methods_that_change_words_are_refused(explainer, method):
    with pytest.raises(lrpx.UnsupportedModelError, match=f'{method} is for texts, .* Type: method="attnlrp"'):
        explainer(BYTES, method=method)
