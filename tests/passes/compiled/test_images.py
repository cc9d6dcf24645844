"""Passes of images, of an image and a text, and of texts with images are compiled, and give the same to rounding in float64.

A few families: those that a trace has to treat differently. Shapes of images are part of a plan's key, lengths of texts are not.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny_image_text
import tiny_images
import torch
import transformers
from compiled_tools import assert_close
from packaging.version import Version

import lrpx
from lrpx.errors import UnsupportedModelError
from lrpx.models.signature import ModelSignature
from lrpx.passes import dispatch
from lrpx.passes.dispatch import Execution, PassRunner
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassSpec
from lrpx.tasks.image_score import IMAGE, TEXT, PairScores
from lrpx.tasks.image_text import encode_with_images
from lrpx.tasks.text_classification import LabelScores
from lrpx.text.batching import Batch, pad
from lrpx.text.items import item_of
from lrpx.text.tokenization import encoder

pytestmark = pytest.mark.usefixtures("quickly")
BOTH = ("input", "pixels")
IMAGES = [
    ("image:vit", "attnlrp", ("input",)),
    ("image:dinov2", "lrp", ("pixels",)),
    ("image:swin", "attnlrp", ("input",)),  # sets itself up for the size of an image
    ("image:resnet", {}, ("pixels",)),
]
TEXTS = [
    ("llava", "attnlrp", ("input",)),
    ("paligemma", "lrp", BOTH),  # image tokens see later ones
    ("mllama", "lrp", ("input",)),  # by cross-attention
]
traceable = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.17"), reason="older models look at the numbers of image tokens"
)


@pytest.fixture
def usual(monkeypatch):
    """The batches whose passes run as usual."""
    ran = []

    def noted(model, batch, *rest):
        ran.append(batch)
        return compute(model, batch, *rest)

    monkeypatch.setattr(dispatch, "compute", noted)
    return ran


def compiling(model):
    return PassRunner(model, Execution(compile=True))


def images(inputs, readout=None, target=2, contrast=3):
    rows = len(inputs["pixel_values"])
    first, *ids = (torch.full((rows,), i) for i in (0, target, contrast))
    readout = readout or LabelScores()
    return Batch(inputs, [slice(None)] * rows, first, *ids, True, likeliest=2, readout=readout, of_images=True)


def with_text(model, given, target=11):
    encoded = encode_with_images(model, None, given, None, encoder(None))
    return pad([item_of(ModelSignature.of(model), None, encoded, target=target, contrast=13)], model)


@pytest.mark.parametrize(("family", "rules", "at"), IMAGES, ids=[family for family, *_ in IMAGES])
def test_images(family, rules, at, as_traced, usual):
    model = tiny_images.build(family)
    runner, spec = compiling(model), PassSpec(rules, at, readout=LabelScores())
    for seed in (0, 1):
        batch = images(tiny_images.inputs(model, batch=2, seed=seed))
        assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert as_traced
    assert not usual
    assert len(runner.compiled) == 1


def test_each_number_and_size_of_images_has_a_plan(as_traced, usual):
    model = tiny_images.build("image:resnet", depths=[1], hidden_sizes=[8])
    runner, spec = compiling(model), PassSpec("lrp", ("pixels",), readout=LabelScores())
    for _ in range(2):
        for rows, size in ((1, 32), (2, 32), (1, 48)):
            batch = images({"pixel_values": torch.randn(rows, 3, size, size, dtype=torch.float64)})
            assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert len(runner.compiled) == 3
    assert not usual


def test_an_image_and_a_text(as_traced, usual):
    model = tiny_images.build("score:clip")
    runner, spec = compiling(model), PassSpec("attnlrp", (IMAGE, TEXT), readout=PairScores())
    for seed in (0, 1):
        ids = torch.tensor([[5 + seed, 6, 2]])
        inputs = {**tiny_images.inputs(model, seed=seed), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        batch = images(inputs, PairScores(), target=0, contrast=-1)
        assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert as_traced
    assert not usual


@traceable
@pytest.mark.parametrize(("name", "rules", "at"), TEXTS, ids=[name for name, *_ in TEXTS])
def test_texts_with_images(name, rules, at, as_traced, usual):
    model = tiny_image_text.build(name)
    given = tiny_image_text.inputs(model)
    runner, spec = compiling(model), PassSpec(rules, at)
    for scale, target in ((1, 11), (0.7, 17)):
        batch = with_text(model, {**given, "pixel_values": given["pixel_values"] * scale}, target)
        assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert as_traced
    assert not usual
    assert len(runner.compiled) == 1
    joined = [n for g in as_traced for n in g.graph.nodes if n.target is torch.ops.aten.cat.default]
    sizes = [tuple(part.meta["val"].shape) for node in joined for part in node.args[0]]
    assert (0,) not in sizes  # an empty cache, of which TorchInductor would lay out keys and values otherwise


@traceable
def test_one_plan_for_texts_of_any_length_and_the_checks_of_the_model_stay(as_traced, usual):
    model = tiny_image_text.build("llava")
    given = tiny_image_text.inputs(model)
    runner, spec = compiling(model), PassSpec("attnlrp")
    ids = given["input_ids"]
    for more in ([], [23, 24, 25], [30]):
        longer = torch.cat([ids, torch.tensor([more]).long()], 1)
        batch = with_text(model, {**given, "input_ids": longer, "attention_mask": torch.ones_like(longer)})
        assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert len(runner.compiled) == 1
    assert not usual
    fewer = torch.where(torch.arange(ids.shape[1]) == 2, 9, ids)  # one image token less than the image has features
    with pytest.raises(UnsupportedModelError, match="Image features and image tokens do not match"):
        runner.run(replace(batch, inputs={**batch.inputs, "input_ids": fewer, "attention_mask": fewer > 0}), spec)
    batch = with_text(model, given)
    usual.clear()
    assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert not usual


def test_what_cannot_be_traced_runs_as_usual(lenient, as_traced, usual, caplog):
    model = tiny_image_text.build("qwen2_vl")
    batch, runner, spec = with_text(model, tiny_image_text.inputs(model)), compiling(model), PassSpec("attnlrp")
    for _ in range(2):
        assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert len(usual) == 2
    said = [r.getMessage() for r in caplog.records if r.name == "lrpx" and r.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith("Qwen2VLForConditionalGeneration is not compiled and runs as usual: ")


@pytest.mark.parametrize("family", ["image:vit", "image:siglip2"])
def test_an_explainer_of_images(family, as_traced, usual):
    model = tiny_images.build(family)
    compiled, eager = lrpx.Explainer(model, compile=True), lrpx.Explainer(model)
    for seed in (0, 1):
        found, expected = (each(tiny_images.inputs(model, seed=seed), target=1) for each in (compiled, eager))
        np.testing.assert_allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)
        assert found.tokens == expected.tokens
        assert found.images == expected.images
    assert len(usual) == 2  # of the other explainer
    assert as_traced


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="TorchInductor needs a C++ compiler")
@pytest.mark.skipif(torch.__version__ < "2.7", reason="TorchInductor of torch 2.6 fails on its own cache")
def test_fused(usual):
    model = tiny_images.build("image:vit", num_hidden_layers=1)
    batch, runner = images(tiny_images.inputs(model)), compiling(model)
    spec = PassSpec("attnlrp", readout=LabelScores())
    assert_close(runner.run(batch, spec), compute(model, batch, spec))
    assert not usual
