"""Images, alone and with a text: the maps of the library, and what is refused."""

import base64

import app_tools
import numpy as np
import pictures
import pytest
import tiny
import tiny_images
import tiny_processors

import lrpx
from lrpx.app import desk as module
from lrpx.app.desk import Desk, Limits
from lrpx.heatmap import Look
from lrpx.heatmap.numbers import MINUS
from lrpx.heatmap.view import view

pytest.importorskip("PIL")
PICTURE = pictures.photo()
IMAGE = "data:image/png;base64," + base64.b64encode(pictures.png_of(PICTURE)).decode("ascii")


@pytest.fixture(scope="module")
def classifier():
    from transformers import ViTImageProcessor

    return lrpx.Explainer(tiny_images.build("image:vit"), ViTImageProcessor(size={"height": 16, "width": 16}))


@pytest.fixture(scope="module")
def llava():
    model = tiny.build("vision:llava")
    return lrpx.Explainer(model, tiny_processors.llava(model))


def test_an_image_classifier(classifier):
    client = app_tools.client(Desk(classifier))
    about = client.get("/api/about").json()
    assert (about["kinds"], about["reads_images"], about["generates"]) == (["image"], True, False)
    asked = {"kind": "image", "images": [IMAGE], "target": 2, "methods": ["attnlrp", "lrp"]}
    answers = app_tools.events(client, "explain", asked)
    grids = app_tools.one(answers, "maps")["grids"]
    rows = [row for grid in grids for row in grid["rows"]]
    for row, method in zip(rows, asked["methods"], strict=True):
        [image] = row["images"]
        v = view(classifier(PICTURE, target=2, method=method), Look())
        assert image["numbers"] == [v.number(float(value), MINUS) for value in v.images[0].values.ravel()]
        assert image["file"].startswith("data:image/png;base64,")
    shown = app_tools.one(answers, "predictions")
    assert shown["target"]["id"] == 2
    assert len(shown["tokens"]) == tiny_images.LABELS


@pytest.mark.parametrize("method", ["integrated-gradients", "occlusion"])
def test_methods_that_change_pixels(classifier, method):
    asked = {"kind": "image", "images": [IMAGE], "target": 2, "methods": [method]}
    [grid] = app_tools.one(app_tools.events(app_tools.client(Desk(classifier)), "explain", asked), "maps")["grids"]
    [[image]] = [row["images"] for row in grid["rows"]]
    v = view(classifier(PICTURE, target=2, method=method), Look())
    assert image["numbers"] == [v.number(float(value), MINUS) for value in v.images[0].values.ravel()]


def test_a_chat_with_an_image(llava):
    client = app_tools.client(Desk(llava, Limits(tokens=100, new_tokens=3)))
    assert client.get("/api/about").json()["kinds"] == ["text", "chat"]
    asked = {"kind": "chat", "messages": [{"role": "user", "content": "w5 w6"}], "images": [IMAGE], "methods": ["lrp"]}
    [grid] = app_tools.one(app_tools.events(client, "explain", asked), "maps")["grids"]
    content = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "w5 w6"}]
    e = llava([{"role": "user", "content": content}], method="lrp")
    assert sum(column["image"] for column in grid["columns"]) == 1
    v = view(e, Look())
    assert grid["rows"][0]["images"][0]["numbers"] == [v.number(float(x), MINUS) for x in v.images[0].values.ravel()]
    found = app_tools.one(app_tools.events(client, "generate", {"question": asked, "count": 3}), "generated")
    for span in ([1, 2], [0, 2]):
        later = asked | {"continuation": found["ids"], "span": span}
        [grid] = app_tools.one(app_tools.events(client, "explain", later), "maps")["grids"]
        assert grid["rows"][0]["images"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"images": []}, r"no image is given\. Choose one"),
        ({"images": [IMAGE, IMAGE]}, r"2 images are given\. Choose one"),
        ({"images": ["data:image/png;base64,AAAA"]}, r"image 1 cannot be read as PNG, JPEG"),
        ({"kind": "text", "text": "a cat"}, "does not read text here, but image"),
        ({"images": [IMAGE], "methods": ["alti-logit"]}, "alti-logit is for texts"),
    ],
)
def test_what_cannot_be_read(classifier, asked, message):
    answers = app_tools.events(app_tools.client(Desk(classifier)), "explain", {"kind": "image", **asked})
    [failed] = app_tools.one(answers, "failed")["methods"]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(failed["message"])


def test_an_image_that_is_too_large(classifier, monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 10)
    answers = app_tools.events(app_tools.client(Desk(classifier)), "explain", {"kind": "image", "images": [IMAGE]})
    assert "pixels: at most 10 are read" in app_tools.one(answers, "failed")["methods"][0]["message"]


def test_other_decoders_are_not_used():
    """Only formats that browsers show are opened: Pillow knows some that run programs."""
    import io

    file = io.BytesIO()
    PICTURE.save(file, "PPM")
    with pytest.raises(lrpx.InputError, match="cannot be read as PNG"):
        module._opened("images[0]", file.getvalue())
    np.testing.assert_array_equal(module._opened("i", pictures.png_of(PICTURE)), np.asarray(PICTURE.convert("RGB")))
