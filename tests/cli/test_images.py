"""``lrpx explain --image`` without a text, and ``lrpx check`` of an image classifier."""

import json
import warnings

import numpy as np
import pytest
import tiny
import tiny_files
import tiny_images
import torch
from PIL import Image
from transformers import ViTImageProcessor
from typer.testing import CliRunner

import lrpx
from lrpx.check import check
from lrpx.cli.main import app
from lrpx.errors import LrpxWarning


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("vit")
    model = tiny_images.build("image:vit", dtype=torch.float32)
    model.config.id2label = {0: "cat", 1: "dog", 2: "fox", 3: "owl", 4: "hen"}
    model.save_pretrained(where)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(where)
    for n, name in enumerate(("a.png", "b.png")):
        pixels = np.random.default_rng(n).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(where / name)
    return where


def lrpx_explain(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_loaded_by_name(folder):
    model, processor = lrpx.load(folder)
    assert type(model).__name__ == "ViTForImageClassification"
    assert type(processor).__name__.startswith("ViTImageProcessor")
    e = lrpx.Explainer(folder)(folder / "a.png", target="fox")
    assert e.target.text == "fox"


def test_one_image_and_several(folder):
    done = lrpx_explain("--image", folder / "a.png", "--target", "fox", "-m", folder, "--format", "json")
    assert done.exit_code == 0, done.output
    [saved] = json.loads(done.stdout)
    expected = lrpx.Explainer(folder)(folder / "a.png", target="fox")
    np.testing.assert_allclose(saved["relevance"], expected.relevance, rtol=1e-5, atol=1e-6)
    shown = lrpx_explain("--image", folder / "a.png", "-m", folder)
    assert "4 x 4 patches" in " ".join(shown.output.split())
    several = lrpx_explain(
        *("--image", folder / "a.png", "--image", folder / "no.png", "--image", folder / "b.png"),
        *("-m", folder, "--format", "json", "--at", "pixels"),
    )
    assert several.exit_code == 1
    assert "there is no file" in " ".join(several.output.split())


@pytest.mark.parametrize(
    ("method", "options"), [("integrated-gradients", {"steps": 2, "baseline": "blur"}), ("occlusion", {"window": 2})]
)
def test_methods_that_change_pixels(folder, method, options):
    given = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    asked = ("--image", folder / "a.png", "--target", "fox", "-m", folder, "--format", "json")
    done = lrpx_explain(*asked, "--method", method, *given)
    assert done.exit_code == 0, done.output
    [saved] = json.loads(done.stdout)
    expected = lrpx.Explainer(folder)(folder / "a.png", target="fox", method=method, **options)
    np.testing.assert_allclose(saved["relevance"], expected.relevance, rtol=1e-5, atol=1e-6)
    assert saved["components"] == pytest.approx(expected.components)


def test_a_text_model_is_told_what_to_type(tmp_path):
    tiny.build("causal:gpt2", dtype=torch.float32).save_pretrained(tmp_path)
    tiny_files.tokenizer().save_pretrained(tmp_path)
    done = lrpx_explain("--image", "cat.png", "-m", tmp_path)
    assert done.exit_code != 0
    assert "GPT2LMHeadModel reads no images. Leave out --image and give a text" in " ".join(
        str(done.exception or done.output).split()
    )


@pytest.mark.parametrize(
    "family", ["image:vit", "image:swin", "image:levit", "image:siglip2", "image:resnet", "image:beit"]
)
def test_check_holds(family):
    model = tiny_images.build(family)
    report = check(model)
    assert report.holds, report.lines
    assert any("at the pixels adds up" in line for _, line in report.lines)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n.endswith("weight")).fill_(torch.nan)
    assert not check(model).holds


def test_the_name_of_a_picture_is_noted_for_a_model_that_reads_texts(tmp_path, folder):
    tiny.build("causal:gpt2", dtype=torch.float32).save_pretrained(tmp_path)
    tiny_files.tokenizer().save_pretrained(tmp_path)
    with pytest.warns(LrpxWarning, match="lrpx explain --image"):
        lrpx_explain(folder / "a.png", "-m", tmp_path, "--format", "json")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LrpxWarning)
        assert lrpx_explain(folder / "a.png", "-m", folder, "--format", "json").exit_code == 0
