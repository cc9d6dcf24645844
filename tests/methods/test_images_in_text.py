"""Integrated gradients, SmoothGrad and occlusion of texts with images, against loops over the model's own calls, and Captum.

The loops know nothing of lrpx: ``Plain`` puts embeddings, features and pixels where transformers hands them on, by hooks of its
own, and calls the model.
"""

import functools
import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import tiny
import tiny_image_text
import tiny_processors
import torch
from pictures import photo

import lrpx
from lrpx.errors import InputError, UnsupportedModelError

ASKED = {"target": 11, "contrast": 13}
FAMILIES = ["llava", "qwen2_vl", "qwen3_vl", "paligemma", "smolvlm", "blip-2", "mllama"]
IG, SMOOTH, HIDE = "integrated-gradients", "smoothgrad", "occlusion"


class Plain:
    """A model and one text with an image: what its language model is given, and its value with something else.

    Attributes:
        given: ``"embeds"`` ``[1, T, width]``, ``"later"`` features of DeepStack, ``"states"`` of cross-attention, ``"pixels"``.
        image: bool ``[T]``, the tokens that stand for the image.
    """

    def __init__(self, family):
        self.model, self.family = tiny_image_text.build(family), family
        self.inputs = tiny_image_text.inputs(self.model)
        image = tiny_image_text.image_token(self.model)
        self.image = (self.inputs["input_ids"][0] == image) & (family != "mllama")
        self.given = {"pixels": self.inputs["pixel_values"]}
        self.value({}, noting=True)

    @property
    def table(self):
        return self.model.get_input_embeddings()

    def value(self, put, noting=False, rows=None):
        """The value with other tensors in place of those ``given``; of embeddings only these ``rows``."""

        def swap(name, tensor, where=None):
            if noting:
                self.given[name] = tensor.detach().clone()
            if name not in put:
                return tensor
            new = put[name]
            return new if where is None else torch.where(where[None, :, None], new, tensor)

        def handed(_, args, kwargs):
            new = dict(kwargs)
            if new.get("inputs_embeds") is not None:
                new["inputs_embeds"] = swap("embeds", new["inputs_embeds"], rows)
            if new.get("deepstack_visual_embeds") is not None:
                old = new["deepstack_visual_embeds"]
                new["deepstack_visual_embeds"] = list(swap("later", torch.stack(list(old))))
            if new.get("cross_attention_states") is not None:
                new["cross_attention_states"] = swap("states", new["cross_attention_states"])
            return args, new

        def embedded(_, __, output):
            return swap("embeds", output, rows)

        hook = self.table.register_forward_hook(embedded) if self.family == "mllama" else None
        other = self.model.get_decoder().register_forward_pre_hook(handed, with_kwargs=True)
        try:
            logits = self.model(
                **{**self.inputs, "pixel_values": put.get("pixels", self.inputs["pixel_values"])}
            ).logits
        finally:
            other.remove()
            if hook is not None:
                hook.remove()
        return logits[0, -1, 11] - logits[0, -1, 13]

    def gradients(self, put, rows=None):
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in put.items()}
        found = torch.autograd.grad(self.value(leaves, rows=rows), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    def number(self, put, rows=None):
        with torch.no_grad():
            return self.value(put, rows=rows).item()

    @property
    def at_input(self):
        """What is changed at ``"input"``."""
        return {name: tensor for name, tensor in self.given.items() if name != "pixels"}

    def row(self, numbers):
        """``[T]``: numbers like ``at_input`` added up at the tokens."""
        found = numbers["embeds"][0].sum(-1).clone()
        if "later" in numbers:
            found[self.image] += numbers["later"].sum((0, 2))
        return found.detach().numpy()


@contextmanager
def watching(one):
    """Inside the block, note what enters the first block and later ones, and the pixels; by hooks that run after all others."""
    seen, hooks = {name: [] for name in one.given}, []
    names = {"later": "deepstack_visual_embeds", "states": "cross_attention_states"}
    decoder = one.model.get_decoder()
    block = next(m for m in decoder.modules() if isinstance(m, torch.nn.ModuleList))[0]

    def note(name, tensor):
        if name in seen:
            seen[name].append(tensor.detach().clone())

    def entered(_, args, kwargs):
        note("embeds", args[0] if args else kwargs["hidden_states"])

    def handed(_, __, kwargs):
        for name, key in names.items():
            if kwargs.get(key) is not None:
                note(name, torch.stack(list(kwargs[key])) if name == "later" else kwargs[key])

    def begins(_, __, kwargs):
        note("pixels", kwargs["pixel_values"])
        while hooks:
            hooks.pop().remove()
        for module, hook in ((block, entered), (decoder, handed)):
            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    outer = one.model.register_forward_pre_hook(begins, with_kwargs=True)
    try:
        yield seen
    finally:
        for hook in (outer, *hooks):
            hook.remove()


@functools.cache
def plain(family):
    return Plain(family)


def start_of(one, name="mean"):
    """The baseline at ``"input"``."""
    words = one.table(torch.arange(one.table.weight.shape[0]))  # some scale them
    vector = {"mean": words.mean(0), "zero": torch.zeros_like(words[0]), 12: words[12]}
    return {
        key: vector[name].detach().expand_as(x) if key == "embeds" else torch.zeros_like(x)
        for key, x in one.at_input.items()
    }


def path_sum(one, x, b, steps, rows=None):
    """``(x - b)`` times the mean gradient between the two, by name."""
    total = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        found = one.gradients({name: b[name] + (node + 1) / 2 * (x[name] - b[name]) for name in x}, rows)
        total = {name: total[name] + weight / 2 * found[name] for name in x}
    return {name: (x[name] - b[name]) * total[name] for name in x}


def compare(e, one, expected, tolerance=1e-9):
    """The tokens' relevance, and of mllama that of the image's states, which stand beside them."""
    size = abs(e.relevance).max()
    tokens = [n for n, i in enumerate(e.token_ids) if i >= 0]
    np.testing.assert_allclose(e.relevance[tokens], one.row(expected), rtol=0, atol=tolerance * size)
    if "states" in expected:
        beside = np.delete(e.relevance, tokens)
        states = expected["states"].sum(-1).flatten().detach().numpy()
        np.testing.assert_allclose(beside, states[: len(beside)], rtol=0, atol=tolerance * size)
        assert not states[len(beside) :].any()  # of tiles that are padding


# At the first block.


@pytest.mark.parametrize("family", FAMILIES)
def test_integrated_gradients_are_the_sum_written_out(family):
    one = plain(family)
    e = lrpx.explain(one.model, None, one.inputs, method=IG, steps=5, **ASKED)
    b = start_of(one)
    expected = path_sum(one, one.at_input, b, 5)
    # mllama computes its norms in float32
    compare(e, one, expected, 1e-5 if family == "mllama" else 1e-6)
    value, start = one.number({}), one.number(b)
    assert e.value == pytest.approx(value, rel=1e-6)
    assert e.components["baseline"] == pytest.approx(start, rel=1e-5, abs=1e-6)
    gap = value - start - sum(each.sum().item() for each in expected.values())
    assert e.residual == pytest.approx(gap, abs=1e-5 * abs(e.relevance).sum())
    assert (e.at, e.provenance["options"]["at"]) == ("input", ["input"])


@pytest.mark.parametrize("baseline", ["zero", 12])
def test_the_baseline_is_the_same_vector_for_text_and_image(baseline):
    one = plain("qwen2_vl")
    e = lrpx.explain(one.model, None, one.inputs, method=IG, steps=3, baseline=baseline, at="input", **ASKED)
    compare(e, one, path_sum(one, one.at_input, start_of(one, baseline), 3), 1e-6)


@pytest.mark.parametrize("at", ["input", "pixels"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_more_steps_close_the_gap(family, at):
    one = plain(family)
    explainer = lrpx.Explainer(one.model)
    found = [explainer(one.inputs, method=IG, steps=steps, at=at, **ASKED) for steps in (2, 32)]
    gaps = [abs(e.residual) for e in found]
    assert gaps[1] < 0.05 * gaps[0]
    assert gaps[1] < 1e-2 * abs(found[1].value - found[1].components["baseline"])
    for e in found:
        assert e.relevance.sum() + e.components["baseline"] + e.residual == pytest.approx(e.value, abs=1e-9)


@pytest.mark.parametrize("family", ["llava", "blip-2", "qwen3_vl", "mllama"])
def test_smoothgrad_is_the_mean_gradient_at_what_the_model_was_given(family):
    """What enters the first block, and is handed to later ones, is noted while it runs; then gradients are taken there."""
    one, samples, noise = plain(family), 3, 0.2
    explain = functools.partial(
        lrpx.Explainer(one.model), one.inputs, method=SMOOTH, samples=samples, noise=noise, **ASKED
    )
    with watching(one) as seen:
        e = explain()
    assert len({len(each) for each in seen.values()}) == 1
    assert all(torch.equal(each, one.given["pixels"]) for each in seen.pop("pixels"))
    x = {name: each[0] for name, each in seen.items()}  # before the noise
    total = dict.fromkeys(x, 0)
    for n in range(-samples, 0):
        # Positions of blip-2 are added between what is handed and the first block.
        point = {name: one.at_input[name] + each[n] - x[name] for name, each in seen.items()}
        found = one.gradients(point)
        total = {name: total[name] + found[name] / samples for name in x}
    expected = {name: each.abs() for name, each in total.items()}
    compare(e, one, expected, 1e-4 if family == "mllama" else 1e-6)
    added = seen["embeds"][-1] - x["embeds"]
    for rows in (one.image, ~one.image) if one.image.any() else (~one.image,):
        spread = (x["embeds"][0, rows].max() - x["embeds"][0, rows].min()).item()
        if "later" not in x:
            assert added[0, rows].std().item() == pytest.approx(noise * spread, rel=0.25)
    assert np.array_equal(explain().relevance, e.relevance)
    assert not np.allclose(explain(seed=1).relevance, e.relevance)
    assert (e.residual, e.measures) == (None, "sensitivity")


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "mllama"])
def test_occlusion_is_the_difference_of_plain_forward_passes(family):
    one = plain(family)
    e = lrpx.explain(one.model, None, one.inputs, method=HIDE, **ASKED)
    x, b = one.at_input, start_of(one)
    value, losses = one.number({}), []
    images = torch.nonzero(one.image)[:, 0].tolist()
    for token in range(x["embeds"].shape[1]):
        point = {name: tensor.clone() for name, tensor in x.items()}
        point["embeds"][:, token] = b["embeds"][:, token]
        if token in images and "later" in x:
            point["later"][:, images.index(token)] = 0
        losses.append(value - one.number(point))
    tokens = [n for n, i in enumerate(e.token_ids) if i >= 0]
    np.testing.assert_allclose(e.relevance[tokens], losses, rtol=0, atol=1e-5 * np.abs(losses).max())
    for n, found in enumerate(np.delete(e.relevance, tokens)):
        point = {"states": x["states"].clone()}
        point["states"].view(-1, x["states"].shape[-1])[n] = 0
        assert found == pytest.approx(value - one.number(point), abs=1e-5 * np.abs(losses).max())
    assert (e.residual, e.measures, e.at) == (None, "scores", "input")


def test_windows_are_neighbours_in_the_text_and_squares_in_the_image():
    """Two tokens, an image of two by two patches, and three tokens, which were hidden one or two at a time."""
    one = plain("llava")
    e = lrpx.explain(one.model, None, one.inputs, method=HIDE, window=2, baseline="zero", **ASKED)
    tokens, image = range(len(e.tokens)), torch.nonzero(one.image)[:, 0].tolist()
    assert e.images[0].tokens == range(image[0], image[-1] + 1)
    before, after = list(range(image[0])), list(tokens[image[-1] + 1 :])
    windows = [image]
    for run in (before, after):
        windows += [run[n : n + 2] for n in range(len(run) - 1)] if len(run) > 1 else [run] * len(run)
    scores, counts = np.zeros(len(tokens)), np.zeros(len(tokens))
    for window in windows:
        put = one.given["embeds"].clone()
        put[:, window] = 0
        scores[window] += (one.number({}) - one.number({"embeds": put})) / len(window)
        counts[window] += 1
    np.testing.assert_allclose(e.relevance, scores / counts, rtol=0, atol=1e-6 * np.abs(scores).max())


# At the pixels.


def colour_of(one):
    """The mean colour of the picture where each pixel is; of what its patches cover."""
    x = one.given["pixels"]
    if one.family == "mllama":  # patches of 14 x 14 leave out the last 8 of 64
        return x[..., :56, :56].mean((-2, -1), keepdim=True).expand_as(x)
    if one.family == "qwen2_vl":  # patches, each [3, copies, side, side]
        return x.view(len(x), 3, -1).mean((0, 2)).repeat_interleave(x.shape[1] // 3).expand_as(x)
    return x.mean((-2, -1), keepdim=True).expand_as(x)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "mllama"])
def test_integrated_gradients_at_pixels_are_the_sum_written_out(family):
    one = plain(family)
    e = lrpx.explain(one.model, None, one.inputs, method=IG, steps=4, at="pixels", **ASKED)
    text = ~one.image
    x = {"embeds": one.given["embeds"], "pixels": one.given["pixels"]}
    b = {"embeds": start_of(one)["embeds"], "pixels": colour_of(one)}
    expected = path_sum(one, x, b, 4, rows=text)
    size, tokens = abs(e.relevance).max(), [n for n, i in enumerate(e.token_ids) if i >= 0]
    tolerance = (1e-4 if family == "mllama" else 1e-6) * size
    of_text = expected["embeds"][0].sum(-1)[text].detach()
    np.testing.assert_allclose(e.relevance[tokens], of_text, rtol=0, atol=tolerance)
    of_pixels = expected["pixels"].detach()
    np.testing.assert_allclose(sum(v.sum() for v in e.layers.values()), of_pixels.sum(), rtol=0, atol=10 * tolerance)
    if family == "llava":
        np.testing.assert_allclose(e.layers["pixels"], of_pixels[0], rtol=0, atol=tolerance)
    start = one.number({"pixels": b["pixels"], "embeds": b["embeds"]}, rows=text)
    assert e.components["baseline"] == pytest.approx(start, abs=tolerance)
    assert e.residual == pytest.approx(e.value - start - e.relevance.sum(), abs=tolerance)
    assert e.at == "pixels"


def test_smoothgrad_at_pixels_is_the_mean_gradient_at_what_the_model_was_given():
    one, samples = plain("llava"), 3
    with watching(one) as seen:
        e = lrpx.explain(one.model, None, one.inputs, method=SMOOTH, samples=samples, noise=0.2, at="pixels", **ASKED)
    total = {"pixels": 0, "embeds": 0}
    for pixels, embeds in zip(seen["pixels"][-samples:], seen["embeds"][-samples:], strict=True):
        found = one.gradients({"pixels": pixels, "embeds": embeds}, rows=~one.image)
        total = {name: total[name] + found[name] / samples for name in total}
    size = abs(e.relevance).max()
    np.testing.assert_allclose(e.layers["pixels"], total["pixels"][0].abs(), rtol=0, atol=1e-6 * size)
    tokens = [n for n, i in enumerate(e.token_ids) if i >= 0]
    np.testing.assert_allclose(
        e.relevance[tokens], total["embeds"][0, ~one.image].abs().sum(-1), rtol=0, atol=1e-6 * size
    )
    x = one.given["pixels"]
    assert (seen["pixels"][-1] - x).std().item() == pytest.approx(0.2 * (x.max() - x.min()).item(), rel=0.03)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_occlusion_at_pixels_is_the_difference_of_plain_forward_passes(family):
    one = plain(family)
    e = lrpx.explain(one.model, None, one.inputs, method=HIDE, at="pixels", **ASKED)
    [image] = e.images
    value, colour = one.number({}), colour_of(one)
    for n, token in enumerate(image.tokens):
        row, column = divmod(n, image.columns)
        pixels = one.given["pixels"].clone()
        if family == "qwen2_vl":  # two by two patches are a token, and follow one another
            pixels[4 * n : 4 * n + 4] = colour[4 * n : 4 * n + 4]
        else:
            side = pixels.shape[-1] // image.columns
            there = (..., slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side))
            pixels[there] = colour[there]
        assert e.relevance[token] == pytest.approx(value - one.number({"pixels": pixels}), abs=1e-6)
    at_input = lrpx.explain(one.model, None, one.inputs, method=HIDE, **ASKED)
    text = [n for n, i in enumerate(e.token_ids) if i >= 0]
    np.testing.assert_allclose(e.relevance[text], at_input.relevance[~one.image.numpy()], rtol=0, atol=1e-6)


def test_baselines_of_pixels():
    """A colour is put into pixels and the mean into the text, and a token id the other way round."""
    one = plain("llava")
    explainer, text = lrpx.Explainer(one.model), ~one.image
    black = torch.tensor([-1.5, -1.0, 0.5])[:, None, None]
    found = {
        name: explainer(one.inputs, method=IG, steps=1, at="pixels", baseline=given, **ASKED).components["baseline"]
        for name, given in {"zero": "zero", "colour": black, "blur": "blur", "id": 12}.items()
    }
    mean = start_of(one)["embeds"]
    points = {
        "zero": {"pixels": 0 * one.given["pixels"], "embeds": 0 * mean},
        "colour": {"pixels": black.double().expand_as(one.given["pixels"][0])[None], "embeds": mean},
        "id": {"pixels": colour_of(one), "embeds": start_of(one, 12)["embeds"]},
    }
    for name, point in points.items():
        assert found[name] == pytest.approx(one.number(point, rows=text), abs=1e-6)
    assert abs(found["blur"] - found["colour"]) > 1e-3
    for at, given in (("input", "blur"), ("input", black), ("pixels", "black"), ("pixels", np.zeros((3, 5, 5)))):
        with pytest.raises(InputError, match="baseline="):
            explainer(one.inputs, method=HIDE, at=at, baseline=given, **ASKED)


# Against Captum.


def test_captum_finds_the_same():
    attr = pytest.importorskip("captum.attr")
    one = plain("llava")
    explainer = lrpx.Explainer(one.model)
    x, mean = one.given["embeds"], start_of(one)["embeds"]

    def score(embeds):
        return torch.stack([one.value({"embeds": each[None]}) for each in embeds])

    e = explainer(one.inputs, method=IG, steps=6, **ASKED)
    theirs = attr.IntegratedGradients(score).attribute(x, mean, n_steps=6).sum(-1)[0].detach().numpy()
    np.testing.assert_allclose(e.relevance, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())  # weights in float32

    def score_of_pixels(pixels):
        return torch.stack([one.value({"pixels": each[None]}) for each in pixels])

    hidden = explainer(one.inputs, method=HIDE, at="pixels", **ASKED)
    [image] = hidden.images
    side = x.new_ones(one.given["pixels"].shape[-1] // image.rows, one.given["pixels"].shape[-1] // image.columns)
    of = torch.kron(torch.arange(image.rows * image.columns).view(image.rows, -1), side.long())
    with torch.no_grad():
        ablated = attr.FeatureAblation(score_of_pixels).attribute(
            one.given["pixels"], colour_of(one), feature_mask=of.expand(1, 3, -1, -1)
        )
    theirs = [ablated[0, 0][of == n][0].item() for n in range(image.rows * image.columns)]
    np.testing.assert_allclose(hidden.relevance[list(image.tokens)], theirs, rtol=0, atol=1e-6)


# What a user meets.


@pytest.fixture(scope="module")
def explainer():
    model = tiny.build("vision:llava")
    return lrpx.Explainer(model, tiny_processors.llava(model))


PLACED = "user : <image> What is in the picture ? assistant :"
METHODS = {IG: {"steps": 2}, SMOOTH: {"samples": 2}, HIDE: {}}


@pytest.mark.parametrize("method", METHODS)
def test_a_call_with_pictures_and_texts_alone(explainer, method):
    asked = {"target": 20, "contrast": 21, "method": method, **METHODS[method]}
    for at in ("input", "pixels"):
        e = explainer(PLACED, images=[photo()], at=at, **asked)
        plain = explainer(PLACED, images=[photo()], at=at, target=20, contrast=21, method="gradient-x-input")
        assert (e.tokens, e.images, e.position, e.at) == (plain.tokens, plain.images, plain.position, at)
        assert e.value == pytest.approx(plain.value)
        assert e.top == plain.top
        e.to_html()
    mixed = explainer([PLACED, "What is in the picture ?"], images=[[photo()], None], **asked)
    alone = explainer("What is in the picture ?", **asked)
    np.testing.assert_allclose(mixed[1].relevance, alone.relevance, rtol=1e-9)
    assert mixed[1].at == alone.at != "pixels"
    assert mixed[0].at == "input"
    e = explainer(PLACED, images=[photo()], **asked)
    np.testing.assert_allclose(mixed[0].relevance, e.relevance, rtol=1e-9)
    several = explainer(PLACED, images=[photo()], method=method, target=[20, 21], **METHODS[method])
    np.testing.assert_allclose(
        several[0].relevance, explainer(PLACED, images=[photo()], method=method, target=20, **METHODS[method]).relevance
    )


@pytest.mark.parametrize("at", ["input", "pixels"])
def test_float32_and_recomputed_blocks_give_the_same(at):
    found = []
    for dtype, checkpoint in ((torch.float64, None), (torch.float32, None), (torch.float64, True)):
        model = tiny_image_text.build("qwen3_vl").to(dtype)
        inputs = tiny_image_text.inputs(model)
        explainer = lrpx.Explainer(model, checkpoint=checkpoint)
        found.append(explainer(inputs, method=IG, steps=3, at=at, **ASKED).relevance)
    size = abs(found[0]).max()
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-3 * size)
    np.testing.assert_allclose(found[2], found[0], rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize("at", ["input", "pixels"])
def test_functions_of_the_logits_and_inference_mode(at):
    one = plain("llava")
    asked = {"target": lambda logits: logits.log_softmax(0)[11], "at": at}
    explainer = lrpx.Explainer(one.model)
    for method, options in ((IG, {"steps": 2}), (SMOOTH, {"samples": 2})):
        e = explainer(one.inputs, method=method, **options, **asked)
        assert e.explains == "function"
        with torch.inference_mode():
            same = explainer(one.inputs, method=method, **options, **asked)
        np.testing.assert_allclose(same.relevance, e.relevance, rtol=1e-9)
    with pytest.raises(InputError, match="the target is the function"):
        explainer(one.inputs, method=HIDE, **asked)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_and_the_inputs_are_as_before(method):
    one = plain("qwen3_vl")
    before = {name: tensor.clone() for name, tensor in one.inputs.items()}
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in one.model.modules())
    value = one.number({})
    for at in ("input", "pixels"):
        lrpx.explain(one.model, None, one.inputs, method=method, at=at, **METHODS[method], **ASKED)
    assert one.number({}) == value
    assert all(torch.equal(tensor, one.inputs[name]) for name, tensor in before.items())
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in one.model.modules()) == hooks


@pytest.mark.parametrize("method", METHODS)
def test_a_pass_in_another_thread_is_the_models_own(method):
    """While a model is explained, each of its passes waits for one of another thread."""
    one = Plain("qwen3_vl")
    value, found = one.number({}), []
    expected = lrpx.explain(one.model, None, one.inputs, method=method, **METHODS[method], **ASKED).relevance

    def aside(_, __):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: found.append(logits_of(one)))
            other.start()
            other.join()

    hook = one.model.get_decoder().register_forward_pre_hook(aside)
    e = lrpx.explain(one.model, None, one.inputs, method=method, **METHODS[method], **ASKED)
    hook.remove()
    np.testing.assert_allclose(e.relevance, expected, rtol=1e-9)
    assert set(found) == {value}
    assert len(found) >= 5


def logits_of(one):
    with torch.no_grad():
        logits = one.model(**one.inputs).logits
    return (logits[0, -1, 11] - logits[0, -1, 13]).item()


def test_what_cannot_be_explained_is_refused(explainer):
    asked = {"images": [photo()], "target": 20}
    for at in ("embedding", "model.language_model.layers.0", ["pixels", "model.language_model.layers.0"]):
        with pytest.raises(InputError, match='"input"'):
            explainer(PLACED, method=IG, at=at, **asked)
    for method in ("leave-one-out", "random", "lime", "alti-logit"):
        with pytest.raises(InputError, match=f"{method} explains texts without images"):
            explainer(PLACED, method=method, **asked)
    with pytest.raises(InputError, match="smoothgrad explains one prediction of a text with images, and no generated"):
        explainer.generate(PLACED, images=[photo()], continuation=[20], method=SMOOTH)
    with pytest.raises(InputError, match="explains the logit of one token"):
        explainer(PLACED, images=[photo()], target=[[20, 21]], method=IG)
    with pytest.raises(InputError, match="occlusion hides tokens of a text"):
        explainer("What is in the picture ?", method=HIDE, at="model.language_model.layers.0")
    model = tiny_image_text.build("chameleon")
    with pytest.raises(UnsupportedModelError, match="through a choice"):
        lrpx.explain(model, None, tiny_image_text.inputs(model), method=HIDE, at="pixels", **ASKED)
    pair = tiny_image_text.build("florence2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpx.LrpxWarning)
        with pytest.raises(InputError, match="changes word embeddings"):
            lrpx.explain(pair, None, tiny_image_text.inputs(pair), target_prefix=[2], method=IG, **ASKED)
