"""Relevance through the vision tower down to the pixels, and at images that enter by cross-attention."""

import numpy as np
import pytest
import tiny
import tiny_image_inputs
import tiny_image_text
import tiny_processors
import torch
from pictures import photo

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.propagation.propagate import propagate
from lrpx.tasks.pixel_maps import pixel_maps, unpacked_pictures

PLACED = "user : <image> What is in the picture ? assistant :"
CAT, DOG = 20, 21


@pytest.fixture(scope="module")
def llava():
    model = tiny.build("vision:llava")
    return model, tiny_processors.llava(model)


@pytest.fixture(scope="module")
def explainer(llava):
    return lrpx.Explainer(*llava)


@pytest.fixture(scope="module")
def mllama():
    model = tiny_image_text.build("mllama")
    return model, tiny_image_text.inputs(model)


def value_of(model, inputs):
    with torch.no_grad():
        return float(model(**inputs).logits[0, -1, 11])


# That the numbers are right.


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "mllama"])
def test_gradients_at_pixels_are_those_of_finite_differences(family):
    """Gradient x input of a patch: the change of the logit when its pixels are scaled."""
    model = tiny_image_text.build(family)
    inputs = tiny_image_text.inputs(model)
    e = lrpx.explain(model, None, inputs, target=11, method="gradient-x-input", at="pixels")
    rows = sum(image.rows for image in e.images)
    found = np.concatenate([e.relevance[list(image.tokens)] for image in e.images])
    step, slopes = 3e-2 if family == "mllama" else 3e-3, []  # norms are computed in float32
    _, height, width = e.layers["pixels" if len(e.images) == 1 else "pixels[0]"].shape
    down, right = height // e.images[0].rows, width // e.images[0].columns
    for n in range(0, len(found), 1 if len(found) < 8 else 3):
        image, place = divmod(n, e.images[0].rows * e.images[0].columns)
        row, column = divmod(place, e.images[0].columns)

        def scaled(factor, image=image, row=row, column=column):
            pixels = inputs["pixel_values"].clone()
            if family == "qwen2_vl":  # two by two patches are a token, and follow one another
                first = 4 * (2 * row + column)
                pixels[first : first + 4] *= factor
            else:
                each = pixels.view(-1, *pixels.shape[-3:])
                each[image, :, row * down : (row + 1) * down, column * right : (column + 1) * right] *= factor
            return value_of(model, {**inputs, "pixel_values": pixels})

        slopes.append((scaled(1 + step) - scaled(1 - step)) / (2 * step))
    assert rows > 1
    found = found[:: 1 if len(found) < 8 else 3]
    np.testing.assert_allclose(found, slopes, rtol=5e-3, atol=2e-3 * np.abs(slopes).max())


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "idefics"])
def test_pixels_and_text_are_the_gradients_of_the_whole_model_under_the_rules(family, method):
    """The same without hooks of lrpx: a leaf for the pixels, one for the embedding of the text, and a plain backward pass."""
    model = tiny_image_text.build(family)
    inputs = tiny_image_text.inputs(model)
    e = lrpx.explain(model, None, inputs, target=11, method=method, at="pixels")
    pixels = inputs["pixel_values"].clone().requires_grad_()
    words = []

    def embedded(_, __, output):
        words.append(output.detach().requires_grad_())
        return words[0] * 1.0

    handle = model.get_input_embeddings().register_forward_hook(embedded)
    with propagate(model, {} if method == "gradient-x-input" else method):
        value = model(**{**inputs, "pixel_values": pixels * 1.0}).logits[0, -1, 11]
        of_pixels, of_words = torch.autograd.grad(value, [pixels, words[0]])
    handle.remove()
    text = (words[0] * of_words).sum(-1)[0]
    image = tiny_image_text.image_token(model)
    own = [n for n, i in enumerate(e.token_ids) if i >= 0]
    real = [n for n, i in enumerate(inputs["input_ids"][0].tolist()) if i != image]
    np.testing.assert_allclose(e.relevance[own], text[real].detach(), rtol=1e-6, atol=1e-9)
    whole = (pixels * of_pixels).detach()
    np.testing.assert_allclose(e.layers["pixels"].sum(), whole.sum(), rtol=1e-6)
    np.testing.assert_allclose(np.delete(e.relevance, own).sum(), whole.sum(), rtol=1e-6)
    size = e.layers["pixels"].shape[-1]  # less where the last pixels are not enough for a patch
    if family != "qwen3_vl":  # which packs them in another order
        np.testing.assert_allclose(e.layers["pixels"], whole.view(3, 64, 64)[:, :size, :size], rtol=1e-6, atol=1e-12)


def test_the_row_has_patches_in_place_of_the_tokens_that_stand_for_the_image(explainer):
    e, at_input = (explainer(PLACED, images=[photo()], target=CAT, contrast=DOG, at=at) for at in ("pixels", "input"))
    assert e.tokens == ["user", ":", "[1, 1]", "[1, 2]", "[2, 1]", "[2, 2]", *PLACED.split()[3:]]
    assert e.token_ids[:3] == [*at_input.token_ids[:2], -1]
    assert (e.at, e.position, e.value) == ("pixels", len(e.tokens) - 1, at_input.value)
    assert e.residual == pytest.approx(e.value - e.relevance.sum())
    by_patch = e.layers["pixels"].reshape(3, 2, 32, 2, 32).sum((0, 2, 4))
    np.testing.assert_allclose(e.relevance[2:6], by_patch.ravel(), rtol=1e-9)
    text = [0, 1, *range(6, len(e.tokens))]
    np.testing.assert_allclose(
        e.relevance[text], at_input.relevance[text], rtol=1e-9
    )  # taken at the first block both times
    assert list(e.segments) == []


def test_heads_and_layers_of_the_language_model_are_at_the_patches_that_its_tokens_stand_for(explainer):
    asked = {"images": [photo()], "target": CAT, "contrast": DOG, "heads": True}
    e, at_input = (explainer(PLACED, at=at, **asked) for at in ("pixels", "input"))
    assert len(e.tokens) == len(at_input.tokens)  # two by two patches, two by two tokens
    for name in ("by_head", "by_attention", "by_mlp", "by_layer"):
        np.testing.assert_allclose(getattr(e, name), getattr(at_input, name), rtol=1e-9, atol=1e-12)
    assert abs(e.by_head[:, :, list(e.images[0].tokens)]).max() > 0
    rows = e.to_frame("heads")
    assert {"[1, 1]", "[2, 2]"} <= set(rows["text"])


def test_heads_at_tokens_that_stand_for_several_patches_have_no_place():
    model = tiny_image_text.build("gemma3")
    asked = {"target": 11, "at": "pixels"}
    with pytest.raises(
        UnsupportedModelError, match=r'heads=True: .* stand for no patch, or for several. Take at="input"'
    ):
        lrpx.explain(model, None, tiny_image_text.inputs(model), **asked, heads=True)
    assert lrpx.explain(model, None, tiny_image_text.inputs(model), **asked).by_head is None


def test_each_image_of_a_chat_is_where_it_was(explainer):
    images = [photo(), photo(128, 64, seed=1)]
    e = explainer("<image> see <image> ?", images=images, target=CAT, at="pixels")
    assert [image.start for image in e.images] == [0, 5]
    assert e.tokens[4] == "see"
    assert [layer.shape for layer in e.layers.values()] == [(3, 64, 64)] * 2
    assert list(e.layers) == ["pixels[0]", "pixels[1]"]


def test_other_places_rules_and_ways_to_run(llava, explainer):
    plain = explainer(PLACED, images=[photo()], target=CAT, at="pixels")
    more = explainer(PLACED, images=[photo()], target=CAT, at=["pixels", "model.language_model.layers.*"])
    assert [name for name in more.layers if name != "pixels"] == [f"model.language_model.layers.{n}" for n in (0, 1)]
    np.testing.assert_allclose(more.relevance, plain.relevance, rtol=1e-9)
    smooth = explainer(PLACED, images=[photo()], target=CAT, at="pixels", rules="lrp+conv:gamma=0.25+gamma=0.05")
    assert abs(smooth.relevance - plain.relevance).max() > 1e-3 * abs(plain.relevance).max()
    again = lrpx.explain(*llava, PLACED, images=[photo()], target=CAT, at="pixels", checkpoint=True)
    np.testing.assert_allclose(again.relevance, plain.relevance, rtol=1e-9, atol=1e-12)
    several = explainer(PLACED, images=[photo()], target=[CAT, DOG], at="pixels")
    np.testing.assert_allclose(several[0].relevance, plain.relevance, rtol=1e-9, atol=1e-12)


def test_checkpointing_recomputes_the_blocks_of_the_vision_tower_too(llava, monkeypatch):
    model, processor = llava
    first = {name: module for name, module in model.named_modules() if name.endswith("layers.0")}
    blocks = {part: next(m for name, m in first.items() if part in name) for part in ("vision", "language")}
    runs = dict.fromkeys(blocks, 0)
    for name, block in blocks.items():

        def forward(*args, _name=name, _forward=block.forward, **kwargs):
            runs[_name] += 1
            return _forward(*args, **kwargs)

        monkeypatch.setattr(block, "forward", forward)
    lrpx.explain(model, processor, PLACED, images=[photo()], target=CAT, at="pixels", checkpoint=True)
    assert runs == {"vision": 2, "language": 2}


def test_what_images_do_not_have_is_said(llava, caplog):
    a, b = (lrpx.explain(*llava, PLACED, images=[photo()], target=CAT, at="pixels", fast=fast) for fast in (True, None))
    assert a.relevance.tolist() == b.relevance.tolist()
    assert "fast=True: LlavaForConditionalGeneration reads images: only texts alone are captured" in caplog.text


def test_it_is_saved_and_drawn(explainer, tmp_path):
    e = explainer(PLACED, images=[photo()], target=CAT, at="pixels")
    e.save(tmp_path / "e.json")
    assert lrpx.Explanation.load(tmp_path / "e.json").images == e.images
    assert "image " in e.to_html()
    e.to_png(tmp_path / "e.png")


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (PLACED, {"at": "embedding"}, "no place where images and text are together"),
        (PLACED, {"at": ["input", "pixels"]}, 'give one of "input" and "pixels"'),
        (PLACED, {"at": ["pixels", "model.vision_tower"]}, "is outside the language model"),
        (
            PLACED,
            {"at": ["pixels", "model.language_model.layers.0"], "target": " a cat"},
            'or at "pixels", one of them',
        ),
        ("see ?", {"at": "pixels"}, 'at="pixels" is for images, and the text has none'),
    ],
)
def test_what_cannot_be_asked(explainer, text, given, message):
    images = [photo()] if "<image>" in text else None
    with pytest.raises(InputError, match=message):
        explainer(text, images=images, **{"target": CAT, **given})


def test_of_several_tokens_heads_are_not_known(explainer):
    e = explainer(PLACED, images=[photo()], target=" a cat", at="pixels", heads=True)
    assert e.by_head is None
    assert any("heads are known of one explained token" in note for note in e.notes)


def test_images_that_are_read_through_a_choice_are_refused():
    model = tiny_image_text.build("ovis2")
    inputs = tiny_image_text.inputs(model)
    with pytest.raises(UnsupportedModelError, match="reads its images through a choice"):
        lrpx.explain(model, None, inputs, target=11, method="lrp", at="pixels")
    assert lrpx.explain(model, None, inputs, target=11, method="attnlrp", at="pixels").layers["pixels"].any()


# Images by cross-attention.


@pytest.mark.parametrize("method", ["lrp", "gradient-x-input"])
def test_image_states_of_cross_attention_are_in_the_row(mllama, method):
    model, inputs = mllama
    e = lrpx.explain(model, None, inputs, target=11, contrast=13, method=method, heads=True)
    of_tile = ["[CLS]", *[f"[{row}, {column}]" for row in range(1, 5) for column in range(1, 5)]]
    ids = inputs["input_ids"][0].tolist()
    assert e.tokens[2 : 2 + 34] == of_tile * 2  # the third and fourth are padding
    assert [i for i in e.token_ids if i >= 0] == ids
    assert [(image.rows, image.columns, image.start) for image in e.images] == [(4, 4, 3), (4, 4, 20)]
    assert e.position == len(e.tokens) - 1
    assert e.residual == pytest.approx(e.value - e.relevance.sum())
    own = [n for n, i in enumerate(e.token_ids) if i >= 0]
    assert e.by_head.shape[-1] == len(e.tokens)
    assert not np.delete(e.by_head, own, axis=-1).any()


def test_relevance_of_image_states_is_that_of_finite_differences(mllama):
    """The change of the logit when one state is scaled, after the projector."""
    model, inputs = mllama
    e = lrpx.explain(model, None, inputs, target=11, method="gradient-x-input")
    step, slopes = 3e-3, []

    def value(tile, state, factor):
        def scale(_, __, output):
            output = output.clone()
            output[0, 0, tile, state] *= factor
            return output

        handle = model.model.multi_modal_projector.register_forward_hook(scale)
        try:
            return value_of(model, inputs)
        finally:
            handle.remove()

    states = [(tile, state) for tile in (0, 1) for state in (0, 1, 6, 16)]
    slopes = [(value(*each, 1 + step) - value(*each, 1 - step)) / (2 * step) for each in states]
    found = [e.relevance[2 + 17 * tile + state] for tile, state in states]
    np.testing.assert_allclose(found, slopes, rtol=2e-3, atol=2e-3 * np.abs(slopes).max())


def test_text_and_image_states_add_up_with_the_value_under_lrp():
    model = tiny_image_text.build("mllama", zero_biases=True)
    inputs = tiny_image_text.inputs(model)
    e = lrpx.explain(model, None, inputs, target=11, contrast=13, method="lrp")
    own = [n for n, i in enumerate(e.token_ids) if i >= 0]
    assert abs(np.delete(e.relevance, own)).sum() > 1e-3 * abs(e.relevance).sum()
    assert abs(e.residual) < 2e-6 * abs(e.relevance).sum()


@pytest.mark.parametrize("at", ["input", "pixels"])
def test_generated_text_with_images_by_cross_attention_is_as_one_by_one(mllama, at):
    model, inputs = mllama
    explainer, words = lrpx.Explainer(model), [30, 31, 32]
    g = explainer.generate(inputs, continuation=words, at=at)
    longer = dict(inputs)
    for word, row in zip(words, g, strict=True):
        one = explainer(longer, target=word, at=at)
        assert (row.tokens, row.images) == (one.tokens, one.images)
        np.testing.assert_allclose(row.relevance, one.relevance, rtol=0, atol=1e-9 * abs(one.relevance).max())
        longer["input_ids"] = torch.cat([longer["input_ids"], torch.tensor([[word]])], 1)
        longer["attention_mask"] = torch.ones_like(longer["input_ids"])
        crossing = longer["cross_attention_mask"]
        longer["cross_attention_mask"] = torch.cat([crossing, crossing[:, -1:]], 1)
    [several] = explainer(inputs, target=[words], at=at)
    np.testing.assert_allclose(several.relevance, g.relevance.sum(0)[: len(several.relevance)], atol=1e-6)


# How images are packed.


def picture_of(model, inputs):
    [seen] = unpacked_pictures(model, inputs)
    return torch.from_numpy(seen.pixels), (seen.rows, seen.columns)


PACKED = (
    *("qwen2_vl", "paddleocr_vl", "lfm2_vl", "gemma4", "minicpmv4_6", "kimi_k25", "hunyuan_vl", "hy_v4_vl"),
    *("muse_glimmer", "muse_spark", "cosmos3_edge", "inkling2", "molmo2"),
)


@pytest.mark.parametrize("family", [name for name in PACKED if name in tiny_image_text.NAMES])
def test_packed_patches_are_put_together_again(family):
    """By a picture of 4 x 4 patches that is packed as its processor packs it, written out in another way."""
    model = tiny_image_text.build(family)
    side = tiny_image_inputs._patch(model)
    picture = torch.randn(3, 4 * side, 4 * side, dtype=torch.float64)
    patch = {
        (row, column): picture[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
        for row in range(4)
        for column in range(4)
    }
    by_rows = [patch[row, column] for row in range(4) for column in range(4)]
    inputs = tiny_image_text.inputs(model)
    by_squares = [(2 * a + c, 2 * b + d) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)]
    frames = 1
    if family == "qwen2_vl":  # by squares that are merged; every patch twice, as two frames
        packed = torch.stack([torch.stack([patch[place]] * 2, 1).flatten() for place in by_squares])
        frames = 2
    elif family in ("hunyuan_vl", "hy_v4_vl", "muse_glimmer", "muse_spark"):
        size = inputs["pixel_values"].shape[1]
        frames = size // (3 * side**2)
        packed = torch.stack([torch.stack([each] * frames, 0 if "muse" in family else 1).flatten() for each in by_rows])
    elif family == "cosmos3_edge":
        packed = torch.stack([patch[place].permute(1, 2, 0).flatten() for place in by_squares])
    elif family == "inkling2":  # a block of two by two patches is a token
        halves = [each for half in picture.split(2 * side, 1) for each in half.split(2 * side, 2)]
        packed = torch.stack([each.permute(1, 2, 0) for each in halves])
    elif family in ("paddleocr_vl", "kimi_k25"):
        packed = torch.stack(by_rows)
    elif family == "minicpmv4_6":
        packed = torch.cat(by_rows, 2)[None]
    else:  # channels last
        packed = torch.stack([each.permute(1, 2, 0).flatten() for each in by_rows])[None]
    inputs["pixel_values"] = packed
    found, _ = picture_of(model, inputs)
    torch.testing.assert_close(found, picture)
    [halves] = pixel_maps(model, inputs, "pixel_values", packed.numpy() / frames)
    np.testing.assert_allclose(halves.pixels, picture)
    assert halves.patches.sum() == pytest.approx(float(picture.sum()))


# Several tokens, several predictions, and generated text: each is what calls for single tokens give.

WORDS = (20, 21, 14)  # cat, dog, in


def one_by_one(llava, method, target=lambda word: word):
    """An explanation of each of the words, after those before it: a pass of its own for each."""
    model, processor = llava
    given = dict(processor(images=[[photo()]], text=[PLACED], return_tensors="pt"))
    found = []
    for word in WORDS:
        found.append(lrpx.explain(model, processor, given, target=target(word), method=method, at="pixels"))
        given["input_ids"] = torch.cat([given["input_ids"], torch.tensor([[word]])], 1)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    return found


def alike(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * abs(expected).max())  # norms in float32


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient", "gradient-x-input"])
def test_generated_tokens_are_explained_at_the_pixels_as_one_by_one(llava, explainer, method):
    g = explainer.generate(PLACED, images=[photo()], continuation=list(WORDS), method=method, at="pixels")
    expected = one_by_one(llava, method)
    assert (g.at, g.prompt_length) == ("pixels", len(expected[0].tokens))
    for row, one in zip(g, expected, strict=True):
        assert row.tokens == one.tokens
        assert [image.tokens for image in row.images] == [image.tokens for image in one.images]
        assert row.position == one.position
        alike(row.relevance, one.relevance)
        assert row.value == pytest.approx(one.value, rel=1e-6)
        assert row.residual == pytest.approx(one.residual, rel=1e-5) if method != "gradient" else row.residual is None


def test_spans_and_hops_of_generated_text_at_the_pixels(explainer, tmp_path):
    asked = {"images": [photo()], "continuation": list(WORDS), "contrast": "mean", "at": "pixels"}
    g = explainer.generate(PLACED, **asked)
    [whole] = explainer.generate(PLACED, **asked, spans=[(0, 3)])
    alike(whole.relevance, g.span(0, 3).relevance)
    passed = explainer.generate(PLACED, **asked, hops=1)
    alike(passed[2].relevance, g.span(2, 3, hops=1).relevance)
    g.save(tmp_path / "g.json")
    assert lrpx.GenerationExplanation.load(tmp_path / "g.json").images == g.images
    assert "image " in g[1].to_html()
    assert ">image<" in g.to_html()
    g.to_png(tmp_path / "g.png")


def test_the_model_goes_on_by_itself(explainer):
    g = explainer.generate(PLACED, images=[photo()], max_new_tokens=2, at="pixels")
    at_input = explainer.generate(PLACED, images=[photo()], max_new_tokens=2)
    assert g.token_ids[g.prompt_length :] == at_input.token_ids[at_input.prompt_length :]


@pytest.mark.parametrize("objective", ["logit", "logprob"])
def test_several_tokens_are_the_sum_of_single_ones(llava, explainer, objective):
    e = explainer(PLACED, images=[photo()], target=[list(WORDS)], objective=objective, at="pixels")[0]
    each = one_by_one(
        llava, "attnlrp", (lambda word: lambda logits: logits.log_softmax(0)[word]) if objective == "logprob" else int
    )
    length = len(each[0].tokens)
    alike(e.relevance, sum(one.relevance[:length] for one in each))
    alike(e.layers["pixels"], sum(one.layers["pixels"] for one in each))
    read = sum(one.relevance[length:].sum() for one in each)
    assert e.components["target tokens read"] == pytest.approx(read, rel=1e-5)
    assert e.value == pytest.approx(sum(one.value for one in each), rel=1e-6)
    assert e.value == pytest.approx(e.relevance.sum() + read + e.residual, rel=1e-6)


def test_a_contrast_of_several_tokens_is_subtracted(explainer):
    asked = {"images": [photo()], "objective": "logprob", "at": "pixels"}
    e = explainer(PLACED, target=[[CAT, DOG]], contrast=[[DOG]], **asked)[0]
    a, b = (explainer(PLACED, target=[each], **asked)[0] for each in ([CAT, DOG], [DOG]))
    alike(e.relevance, a.relevance - b.relevance)
    alike(e.layers["pixels"], a.layers["pixels"] - b.layers["pixels"])


def test_several_predictions_are_explained_from_one_pass(explainer, monkeypatch):
    """Targets, positions and functions of the logits; each as by itself."""
    asked = {"images": [photo()], "at": "pixels"}

    def log_probability(logits):
        return logits.log_softmax(0)[CAT]

    targets, positions = [CAT, DOG, log_probability], [-1, -2, -1]
    alone = [explainer(PLACED, target=t, position=p, **asked) for t, p in zip(targets, positions, strict=True)]
    runs, model = [], explainer.model
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    several = explainer(PLACED, target=targets, position=positions, **asked)
    handle.remove()
    assert len(runs) == 1
    for one, expected in zip(several, alone, strict=True):
        assert (one.tokens, one.position) == (expected.tokens, expected.position)
        alike(one.relevance, expected.relevance)
        alike(one.layers["pixels"], expected.layers["pixels"])
        assert one.residual == pytest.approx(expected.residual, rel=1e-5)


def test_sound_has_no_pixels():
    model = tiny.build("speech2text:whisper")
    features = torch.randn(model.config.num_mel_bins, 2 * model.config.max_source_positions)
    with pytest.raises(InputError, match=r'at="pixels" is for images, and WhisperFor.* is given input_features'):
        lrpx.explain(model, None, features, target=9, at="pixels")
