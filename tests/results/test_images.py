"""Images of an explanation: saved with it, and refused where they do not fit the text."""

import base64
import json

import numpy as np
import pytest
from pictures import explanation_of_image, patches

from lrpx import Explanation
from lrpx.errors import InputError

VALUES = np.arange(6.0).reshape(2, 3)


def test_the_picture_is_read_back_byte_by_byte(tmp_path):
    order = (3, 2, 4, 7, 6, 5)
    e = explanation_of_image(VALUES, images=(patches(3, 2, 3, order=order, name="in detail"),))
    e.save(tmp_path / "e.json")
    again = Explanation.load(tmp_path / "e.json")
    assert again.images == e.images
    assert type(again.images[0]) is type(e.images[0])
    assert again.images[0].tokens == order
    saved = json.loads((tmp_path / "e.json").read_text())["images"][0]
    assert base64.b64decode(saved[5]) == e.images[0].png


def test_an_older_file_has_no_images():
    saved = explanation_of_image(VALUES).to_dict()
    del saved["images"]
    assert Explanation.from_dict(saved).images == ()


def test_patches_follow_one_another_row_by_row():
    assert list(patches(4, 2, 3).tokens) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ((patches(2, 2, 5),), r"images\[0\] has tokens 2 to 11, and the text has 10"),
        ((patches(-1, 1, 2),), "tokens -1 to 0"),
        ((patches(2, 0, 3),), "rows is 0"),
        ((patches(2, 1, 2, order=(2, 3, 4)),), "has 3 tokens, from 2 on: expected 1 x 2"),
        ((patches(2, 1, 2, order=(3, 4)),), "from 3 on: expected 1 x 2, from 2 on"),
        ((patches(2, 1, 2, order=(2, 2)),), "a token is the patch of two places"),
        ((patches(2, 1, 2), patches(3, 1, 2)), r"images\[1\]: a token is the patch of two places"),
        ((patches(2, 1, 2)._replace(png=b"GIF89a"),), "does not begin like a PNG"),
        ((patches(2, 1, 2)._replace(width=True),), "width is True"),
    ],
)
def test_refuses_images_that_do_not_fit(images, message):
    with pytest.raises(InputError, match=message):
        explanation_of_image(VALUES, images=images)


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda image: [*image[:5], "é", *image[6:]], "not base64"), (lambda image: image[:4], "not what it should be")],
)
def test_refuses_a_damaged_file(change, message):
    saved = explanation_of_image(VALUES).to_dict()
    saved["images"] = [change(saved["images"][0])]
    with pytest.raises(InputError, match=message):
        Explanation.from_dict(saved)
