"""Integrated gradients, SmoothGrad and occlusion of images, against Captum and against loops over the model's own calls."""

import numpy as np
import pytest
import tiny_images
import tiny_processors
import torch
from transformers import CLIPProcessor, ViTImageProcessor

import lrpx

captum = pytest.importorskip("captum.attr")
ASKED = {"target": 2, "contrast": 3}
SIDE, PATCH = 16, 4


@pytest.fixture(scope="module")
def vit():
    return tiny_images.build("image:vit")


@pytest.fixture(scope="module")
def explainer(vit):
    return lrpx.Explainer(vit)


@pytest.fixture(scope="module")
def pixels(vit):
    return tiny_images.inputs(vit)["pixel_values"]


def score(model):
    """The difference of two logits as a function of pixel values."""
    return lambda x: (logits := model(pixel_values=x).logits)[:, 2] - logits[:, 3]


def by_patch(values):
    """Sums of pixel values ``[channels, height, width]`` by patch."""
    rows = SIDE // PATCH
    return values.sum(0).reshape(rows, PATCH, rows, PATCH).sum((1, 3)).ravel()


def blurred(image):
    """A loop over all pixels and weights; the deviation is a twentieth of the side."""
    deviation = image.shape[1] / 20
    reach = max(1, round(3 * deviation))
    found = np.zeros_like(image)
    for row, column in np.ndindex(image.shape[1:]):
        total = 0
        for i in range(-reach, reach + 1):
            for j in range(-reach, reach + 1):
                weight = np.exp(-(i * i + j * j) / (2 * deviation**2))
                there = min(max(row + i, 0), SIDE - 1), min(max(column + j, 0), SIDE - 1)
                found[:, row, column] += weight * image[:, there[0], there[1]]
                total += weight
        found[:, row, column] /= total
    return found


def baseline_for(name, pixels):
    """What is given, and the image ``[1, 3, height, width]`` that it stands for."""
    image = pixels[0].numpy()
    colour = np.array([-1.0, 0.5, 2.0])[:, None, None]
    other = np.random.default_rng(0).normal(size=image.shape)
    made = {
        "zero": ("zero", 0 * image),
        "mean": ("mean", image.mean((1, 2), keepdims=True) + 0 * image),
        "blur": ("blur", blurred(image)),
        "a colour": (torch.tensor(colour), colour + 0 * image),
        "an image": (other, other),
    }
    given, start = made[name]
    return given, torch.tensor(start)[None]


@pytest.mark.parametrize("name", ["zero", "mean", "blur", "a colour", "an image"])
def test_integrated_gradients_are_the_sum_written_out_and_captums(vit, explainer, pixels, name):
    given, start = baseline_for(name, pixels)
    e = explainer(pixels, method="integrated-gradients", steps=6, baseline=given, **ASKED)
    total = torch.zeros_like(pixels)
    for node, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        leaf = (start + (node + 1) / 2 * (pixels - start)).requires_grad_()
        total += weight / 2 * torch.autograd.grad(score(vit)(leaf).sum(), leaf)[0]
    expected = ((pixels - start) * total)[0].numpy()
    np.testing.assert_allclose(e.layers["pixels"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(e.relevance, by_patch(expected), rtol=0, atol=1e-11)
    theirs = captum.IntegratedGradients(score(vit)).attribute(pixels, start, n_steps=6)[0].detach().numpy()
    np.testing.assert_allclose(expected, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())  # it has weights in float32
    with torch.no_grad():
        value, at_baseline = score(vit)(pixels).item(), score(vit)(start).item()
    assert e.value == pytest.approx(value, abs=1e-12)
    assert e.components["baseline"] == pytest.approx(at_baseline, abs=1e-12)
    assert e.residual == pytest.approx(value - at_baseline - expected.sum(), abs=1e-11)
    assert e.at == "pixels"
    assert e.images[0].rows == SIDE // PATCH


def test_more_steps_close_the_gap(explainer, pixels):
    asked = {"method": "integrated-gradients", **ASKED}
    gaps = [abs(explainer(pixels, steps=steps, **asked).residual) for steps in (2, 16, 96)]
    print(gaps)
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3 * gaps[0]


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_smoothgrad_is_the_mean_gradient_at_what_the_model_was_given(vit, explainer, pixels, norm):
    seen = []
    hook = vit.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["pixel_values"].detach().clone()), with_kwargs=True
    )
    e = explainer(pixels, method="smoothgrad", samples=40, noise=0.2, norm=norm, **ASKED)
    hook.remove()
    noisy = next(each for each in seen if len(each) == 40)
    leaf = noisy.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score(vit)(leaf).sum(), leaf)
    mean = gradient.mean(0).numpy()
    expected = np.abs(mean) if norm == "l1" else mean**2
    np.testing.assert_allclose(e.layers["pixels"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(e.relevance, by_patch(expected), rtol=0, atol=1e-11)
    added = noisy - pixels
    assert added.std().item() == pytest.approx(0.2 * (pixels.max() - pixels.min()).item(), rel=0.03)
    assert (added[0] - added[1]).abs().max() > added.std()
    assert e.residual is None
    assert e.measures == "sensitivity"
    again, other = (
        explainer(pixels, method="smoothgrad", samples=40, noise=0.2, norm=norm, seed=seed, **ASKED) for seed in (0, 1)
    )
    assert np.array_equal(e.relevance, again.relevance)
    assert not np.allclose(e.relevance, other.relevance)


@pytest.mark.parametrize("name", ["mean", "blur", "a colour"])
def test_occlusion_is_captums(vit, explainer, pixels, name):
    given, start = baseline_for(name, pixels)
    e = explainer(pixels, method="occlusion", baseline=given, **ASKED)
    with torch.no_grad():
        expected = captum.Occlusion(score(vit)).attribute(
            pixels, (3, PATCH, PATCH), strides=(3, PATCH, PATCH), baselines=start
        )
    theirs = expected[0, 0, ::PATCH, ::PATCH].flatten().numpy()  # float32, also of a model in float64
    np.testing.assert_allclose(e.relevance, theirs, rtol=1e-6, atol=1e-7)
    assert e.residual is None
    assert e.measures == "scores"


def test_occlusion_of_several_patches_is_the_loop_over_windows(vit, explainer, pixels):
    e = explainer(pixels, method="occlusion", baseline="zero", window=3, **ASKED)
    scores, windows = np.zeros((4, 4)), np.zeros((4, 4))
    for row, column in np.ndindex(2, 2):
        changed = pixels.clone()
        changed[..., row * PATCH : (row + 3) * PATCH, column * PATCH : (column + 3) * PATCH] = 0
        with torch.no_grad():
            lost = e.value - score(vit)(changed).item()
        scores[row : row + 3, column : column + 3] += lost / 9
        windows[row : row + 3, column : column + 3] += 1
    np.testing.assert_allclose(e.relevance, (scores / windows).ravel(), rtol=0, atol=1e-12)


METHODS = {"integrated-gradients": {"steps": 3}, "smoothgrad": {"samples": 3}, "occlusion": {}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "family", ["image:hiera", "image:siglip2", "image:resnet"]
)  # windows, patches given, no patches
def test_an_image_in_a_batch_is_the_image_alone(family, method):
    model = tiny_images.build(family)
    explainer, inputs = lrpx.Explainer(model), tiny_images.inputs(model, batch=2)
    together = explainer(inputs, method=method, **METHODS[method], **ASKED)
    for n, e in enumerate(together):
        alone = explainer({name: t[n : n + 1] for name, t in inputs.items()}, method=method, **METHODS[method], **ASKED)
        atol = 5e-6 * np.abs(alone.relevance).max()  # norms in float32
        np.testing.assert_allclose(e.relevance, alone.relevance, rtol=0, atol=atol)
        assert len(e.relevance) == e.images[0].rows * e.images[0].columns
        if "baseline" in e.components:
            assert e.relevance.sum() + e.components["baseline"] + e.residual == pytest.approx(e.value, abs=1e-9)


def test_patches_that_are_given_are_hidden_one_by_one():
    """Each hidden by hand in what SigLIP 2 reads; the mean colour is that of the patches, without padding."""
    model = tiny_images.build("image:siglip2")
    inputs = tiny_images.inputs(model)
    inputs["pixel_values"][:, 12:] = 9
    inputs["pixel_attention_mask"][:, 12:] = 0
    inputs["spatial_shapes"] = torch.tensor([[3, 4]])
    e = lrpx.explain(model, None, inputs, method="occlusion", **ASKED)
    colour = inputs["pixel_values"][0, :12].reshape(-1, 3).mean(0).repeat(16)
    for patch in range(12):
        changed = inputs["pixel_values"].clone()
        changed[0, patch] = colour
        with torch.no_grad():
            logits = model(**{**inputs, "pixel_values": changed}).logits[0]
        assert e.relevance[patch] == pytest.approx(e.value - (logits[2] - logits[3]).item(), abs=1e-6)
    whole = tiny_images.inputs(model, seed=1)
    both = lrpx.explain(model, None, [inputs, whole], method="occlusion", **ASKED)
    alone = lrpx.explain(model, None, whole, method="occlusion", **ASKED)
    for found, expected in zip(both, (e, alone), strict=True):
        np.testing.assert_allclose(found.relevance, expected.relevance, rtol=0, atol=1e-6)
    with pytest.raises(lrpx.InputError, match='baseline=\'blur\': of an image, give "zero" or "mean" or finite'):
        lrpx.explain(model, None, inputs, method="occlusion", baseline="blur", **ASKED)


def test_the_score_of_an_image_and_a_text():
    """The texts are held fixed, so the image accounts for all of the difference to the baseline's score."""
    model = tiny_images.build("score:clip")
    reader = CLIPProcessor(ViTImageProcessor(size={"height": SIDE, "width": SIDE}), tiny_processors.words(20))
    explainer, inputs = lrpx.Explainer(model, reader), tiny_images.inputs(model)
    texts = {"target": "a cat </s>", "contrast": "two dog </s>"}
    ids = [reader.tokenizer(text)["input_ids"] for text in texts.values()]

    def difference(x):
        a, b = (
            model(pixel_values=x, input_ids=torch.tensor([i]).expand(len(x), -1)).logits_per_image[:, 0] for i in ids
        )
        return a - b

    e = explainer(inputs, method="integrated-gradients", steps=5, baseline="zero", **texts)
    x = inputs["pixel_values"]
    expected = captum.IntegratedGradients(difference).attribute(x, torch.zeros_like(x), n_steps=5)[0]
    np.testing.assert_allclose(e.layers["pixels"], expected.detach().numpy(), rtol=0, atol=1e-6)
    assert e.relevance.sum() + e.components["baseline"] + e.residual == pytest.approx(e.value, abs=1e-9)
    assert not e.relevance[16:].any()
    one = explainer(inputs, method="occlusion", target=texts["target"])
    assert np.abs(one.relevance[:16]).min() > 0
    assert not one.relevance[16:].any()
    with pytest.raises(lrpx.InputError, match="does not decompose the score"):
        explainer(inputs, method="occlusion", **texts)


def test_the_top_label_is_that_of_the_image_as_it_is(vit, explainer, pixels):
    e = explainer(pixels, method="integrated-gradients", steps=1)
    with torch.no_grad():
        assert e.target.id == int(vit(pixels).logits.argmax())
    assert e.top[0].token.id == e.target.id


def test_a_function_of_the_labels(vit, explainer, pixels):
    e = explainer(pixels, method="occlusion", baseline="zero", target=lambda logits: logits.log_softmax(0)[1])
    changed = pixels.clone()
    changed[..., :PATCH, :PATCH] = 0
    with torch.no_grad():
        a, b = (vit(x).logits[0].log_softmax(0)[1].item() for x in (pixels, changed))
    assert e.relevance[0] == pytest.approx(a - b, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"baseline": "pad"},
            'baseline=\'pad\': of an image, give "zero", "mean", "blur" or finite pixel values of shape',
        ),
        ({"baseline": 12}, "baseline=12: of an image"),
        ({"baseline": np.zeros((3, 4, 4))}, r"baseline=of shape \[3, 4, 4\]: .* of shape \[3, 16, 16\]"),
        ({"baseline": torch.full((3, 16, 16), torch.nan)}, "finite pixel values"),
        ({"at": "input"}, 'changes the pixels of an image, and its relevance is theirs: at="pixels"'),
        ({"steps": 0}, "steps=0: give a whole number"),
    ],
)
def test_bad_options_are_refused(explainer, pixels, options, said):
    with pytest.raises(lrpx.InputError, match=said):
        explainer(pixels, method="integrated-gradients", **options)


def test_the_place_may_be_named(explainer, pixels):
    found = [explainer(pixels, method="smoothgrad", samples=2, **at, **ASKED) for at in ({}, {"at": "pixels"})]
    assert np.array_equal(found[0].relevance, found[1].relevance)


def test_a_text_has_no_blurred_baseline():
    import tiny

    for baseline in (np.zeros(3), torch.zeros(3)):
        with pytest.raises(lrpx.InputError, match='of a text, give "zero", "mean", "pad" or a token id'):
            lrpx.explain(tiny.build("causal:gpt2"), None, [10, 11], method="occlusion", baseline=baseline)
