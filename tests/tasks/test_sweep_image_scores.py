"""How well image and text fit, for every family that transformers lists: half of the score to each side, and no padding."""

import numpy as np
import pytest
import tiny_images
import tiny_processors
import torch
import transformers
from packaging.version import Version
from support import families
from transformers import CLIPProcessor, ViTImageProcessor

import lrpx
from lrpx.errors import InputError
from lrpx.passes.hidden_states import first_blocks
from lrpx.propagation.propagate import propagate

QUICK = ("score:clip", "score:siglip")
REFUSES = ("score:blip-2",)
"""It scores by a head of its own, without a tower for the text."""
CONVNET = "score:align"  # the image tower, so that it is explained at the pixels alone

EXPLAINED = [f for f in tiny_images.SCORES if f not in REFUSES]
if Version(transformers.__version__) < Version("5.17"):  # whose mask of CLIPSeg does not fit into float64
    EXPLAINED.remove("score:clipseg")


@pytest.fixture(scope="module")
def reader():
    images = ViTImageProcessor(size={"height": 16, "width": 16})
    return CLIPProcessor(images, tiny_processors.words(20))


@families(EXPLAINED, QUICK)
def test_each_side_gets_half(family, reader):
    """Under LRP and without constants every step conserves relevance, so that the product alone divides it."""
    model = tiny_images.build(family, zero=True)
    if hasattr(model, "logit_bias"):
        torch.nn.init.zeros_(model.logit_bias)
    inputs = tiny_images.inputs(model)
    scores = {}
    for text, contrast in (("a cat </s>", None), ("two dog see </s>", None), ("a cat </s>", "two dog see </s>")):
        for at in ("pixels",) if family == CONVNET else ("input", "pixels"):
            e = lrpx.explain(model, reader, inputs, target=text, contrast=contrast, method="lrp", at=at)
            parts = {name: float(e.relevance[start:end].sum()) for name, start, end in e.segments}
            size = np.abs(e.relevance).sum()
            assert parts["image"] == pytest.approx(e.value / 2, abs=2e-6 * size)
            assert sum(parts.values()) == pytest.approx(e.value, abs=2e-6 * size)
            scores[text, contrast] = e.value
    assert scores["a cat </s>", "two dog see </s>"] == pytest.approx(
        scores["a cat </s>", None] - scores["two dog see </s>", None], rel=1e-9
    )
    plain = lrpx.explain(model, reader, inputs, target="a cat </s>", method="gradient-x-input", at=at)
    assert abs(plain.relevance.sum() - plain.value) > 1e-3 * np.abs(plain.relevance).sum()  # a check that can fail


@families([f for f in EXPLAINED if f != CONVNET], QUICK)
def test_against_one_side_after_the_other(family, reader):
    """The slow twin: with the other side's embedding as a constant, each side's relevance is twice what it gets of both."""
    model = tiny_images.build(family)
    inputs = tiny_images.inputs(model)
    for rules in ("lrp", "attnlrp"):
        e = lrpx.explain(model, reader, inputs, target="a dog </s>", method=rules, at="input")
        value, image, text = one_side_after_the_other(model, inputs, e, rules)
        assert e.value == pytest.approx(value, rel=1e-6)
        [first, second] = e.segments
        np.testing.assert_allclose(e.relevance[: first.end], image / 2, atol=2e-6 * np.abs(image).max())
        np.testing.assert_allclose(e.relevance[second.start :], text / 2, atol=2e-6 * np.abs(text).max())


def one_side_after_the_other(model, inputs, e, rules):
    """Score, and relevance of image and text, each with the other's embedding detached where it is multiplied."""
    ids = torch.tensor([e.token_ids[e.segments[1].start :]])
    more = {} if model.config.model_type.startswith("siglip") else {"attention_mask": torch.ones_like(ids)}
    found, states = [], {}

    def enter(name):
        def hook(_, args, kwargs):
            state = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.is_floating_point())
            if name not in states and state.ndim == 3:
                states[name] = state.detach_().requires_grad_()

        return hook

    for constant in ("text", "image"):
        states.clear()
        hooks = [
            block.register_forward_pre_hook(enter(name), with_kwargs=True)
            for name in ("image", "text")
            for block in first_blocks(
                list(getattr(model, f"{'vision' if name == 'image' else 'text'}_model").modules())
            )
        ]
        with propagate(model, rules, unknown="ignore"):
            output = model(input_ids=ids, **inputs, **more)
            image, text = output.image_embeds, output.text_embeds
            image, text = (image.detach(), text) if constant == "image" else (image, text.detach())
            cosine, bias = (image * text).sum(), getattr(model, "logit_bias", 0)
            scale = ((output.logits_per_image - bias) / cosine).detach()
            score = cosine * scale + bias
            score.sum().backward()
        for hook in hooks:
            hook.remove()
        state = states["image" if constant == "text" else "text"]
        found.append((state * state.grad).sum(-1)[0].detach().numpy())
    return float(score.detach()), *found


@families(EXPLAINED, QUICK)
def test_texts_and_images_together_give_what_they_give_alone(family, reader):
    model = tiny_images.build(family)
    inputs = tiny_images.inputs(model, batch=2)
    texts = [("a cat </s>", "two dog see </s>"), ("a cat and two dog </s>", None)]
    targets, contrasts = zip(*texts, strict=True)
    together = lrpx.explain(model, reader, inputs, target=list(targets), contrast=list(contrasts))
    for n, (target, contrast) in enumerate(texts):
        alone = {name: value[n : n + 1] for name, value in inputs.items()}
        e = lrpx.explain(model, reader, alone, target=target, contrast=contrast)
        assert e.tokens == together[n].tokens
        atol = 5e-6 * np.abs(e.relevance).max()
        np.testing.assert_allclose(together[n].relevance, e.relevance, rtol=0, atol=atol)
        assert together[n].value == pytest.approx(e.value, abs=1e-6)


def test_a_score_without_two_towers_is_refused_by_name(reader):
    config = transformers.Blip2Config(
        vision_config={**tiny_images._VIT}, qformer_config={**tiny_images._TEXT, "encoder_hidden_size": 32},
        text_config={"model_type": "opt", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16,
                     "word_embed_proj_dim": 16, "vocab_size": 20},
    )  # fmt: skip
    model = transformers.Blip2ForImageTextRetrieval(config).eval()
    with pytest.raises(lrpx.UnsupportedModelError, match="Blip2ForImageTextRetrieval has no towers text_model and"):
        lrpx.explain(model, reader, torch.zeros(3, 16, 16), target="a cat")


def test_a_convnet_has_no_patches(reader):
    model = tiny_images.build(CONVNET)
    inputs = tiny_images.inputs(model)
    assert lrpx.explain(model, reader, inputs, target="a cat").at == "pixels"
    with pytest.raises(lrpx.InputError, match="Use at='pixels'"):
        lrpx.explain(model, reader, inputs, target="a cat", at="input")


def test_what_is_told(reader):
    model = tiny_images.build("score:clip")
    picture = np.full((20, 20, 3), 99, np.uint8)
    e = lrpx.Explainer(model, reader)(picture, target="a cat </s>", contrast="two dog </s>")
    assert [name for name, _, _ in e.segments] == ["image", "text", "contrast"]
    assert (e.target.text, e.contrast.text, e.explains) == ("a cat </s>", "two dog </s>", "image-text score of")
    assert e.tokens[e.segments[1].start :] == ["a", "cat", "</s>", "two", "dog", "</s>"]
    assert e.images[0].rows == 4
    assert lrpx.Explanation.from_dict(e.to_dict()).segments == e.segments
    assert "image-text score" in e.to_html()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "scores how well an image and a text fit, and no text is given"),
        ({"target": "a cat </s>", "contrast": "a cat </s>"}, "their difference is 0"),
        ({"target": 3}, "target=3: give a text"),
        ({"target": " "}, "give a text"),
        ({"target": "a " * 20}, "target has 20 tokens, and CLIPModel reads 16"),
        ({"target": "a cat </s>", "position": 1}, "position= is for texts"),
        ({"target": "a cat </s>", "contrast": "dog", "method": "gradient"}, "does not decompose the score"),
    ],
)
def test_bad_input(reader, options, message):
    model = tiny_images.build("score:clip")
    with pytest.raises(lrpx.InputError, match=message):
        lrpx.explain(model, reader, tiny_images.inputs(model), **options)


def test_a_missing_tokenizer():
    model = tiny_images.build("score:clip")
    with pytest.raises(lrpx.InputError, match="reads a text through its tokenizer, which is missing"):
        lrpx.explain(model, None, tiny_images.inputs(model), target="a cat </s>")


def test_a_function_of_the_scores_with_several_texts(reader):
    """Linear ones by what the texts give alone; others by the slope at the scores, and finite differences at the pixels."""
    model = tiny_images.build("score:clip")
    explainer, inputs = lrpx.Explainer(model, reader), tiny_images.inputs(model)
    texts = ["a cat </s>", "two dog see </s>", "images </s>"]
    pair = explainer(inputs, target=texts[0], contrast=texts[1])
    e = explainer(inputs, choices=texts[:2], target=lambda scores: scores[0] - scores[1])
    assert e.value == pytest.approx(pair.value, rel=1e-9)
    np.testing.assert_allclose(e.relevance, pair.relevance, atol=1e-12)
    assert [part.name for part in e.segments] == ["image", "text 1", "text 2"]

    def log_share(scores):
        return scores.log_softmax(0)[0]

    e = explainer(inputs, choices=texts, target=log_share, method="gradient-x-input", at="pixels", explains="log p")
    alone = [explainer(inputs, target=text, method="gradient-x-input", at="pixels") for text in texts]
    assert e.value == pytest.approx(float(log_share(torch.tensor([one.value for one in alone]))), abs=1e-6)
    assert (e.target.text, e.explains) == ("log p", "function")
    ids = [reader.tokenizer(text)["input_ids"] for text in texts]

    def value(scale):
        pixels = {name: scale * t for name, t in inputs.items()}
        with torch.no_grad():
            scores = [model(**pixels, input_ids=torch.tensor([each])).logits_per_image[0, 0] for each in ids]
        return float(log_share(torch.stack(scores)))

    slope = (value(1 + 1e-5) - value(1 - 1e-5)) / 2e-5
    assert e.layers["pixels"].sum() == pytest.approx(slope, rel=1e-5)
    with pytest.raises(InputError, match=r"gets the scores of the image with several texts: choices="):
        explainer(inputs, target=log_share)
    with pytest.raises(InputError, match=r"choices= are the texts whose scores a function gets"):
        explainer(inputs, target="a cat </s>", choices=texts)
