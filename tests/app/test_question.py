"""JSON from the network becomes a question, or an error that says what is wrong with it."""

import base64

import pytest

from lrpx.app.question import MOST_CHARACTERS, MOST_IMAGES, Question, question_of
from lrpx.errors import InputError
from lrpx.heatmap import Look

IMAGE = "data:image/png;base64," + base64.b64encode(b"picture").decode()


def test_what_is_left_out_has_its_default():
    assert question_of({"text": "A"}) == Question("text", "A")
    assert question_of({"text": "A", "target": None, "methods": ["lrp", "lrp"]}).methods == ("lrp",)


def test_everything_together():
    found = question_of(
        {
            "kind": "chat", "messages": [{"role": "user", "content": "Hi"}], "images": [IMAGE], "target": 5, "contrast": " is",
            "position": -1, "continuation": [1, 2, 3], "span": [1, 3], "methods": ["lrp", "attnlrp"], "hide": ["first"],
            "group": "words", "scale": 2.5, "shared_scale": True, "choices": ["a", "b"], "question": "q", "text_pair": "p",
        }
    )  # fmt: skip
    assert found.look == Look(2.5, ("first",), "words")
    assert (found.messages, found.images, found.span) == ((("user", "Hi"),), (b"picture",), (1, 3))
    assert (found.target, found.contrast, found.choices, found.shared_scale) == (5, " is", ("a", "b"), True)
    assert hash(found) == hash(found.by("lrp").by("lrp")) or found.by("lrp") == found.by("lrp")


def test_how_it_is_drawn_changes_no_explanation():
    plain, other = question_of({"text": "A"}), question_of({"text": "A", "group": "words", "shared_scale": True})
    assert plain != other
    assert plain.by("lrp") == other.by("lrp") != plain.by("attnlrp")
    assert plain.by("lrp") != question_of({"text": "A", "contrast": " is"}).by("lrp")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a question is a JSON object"),
        ({"txt": "A"}, "unknown option 'txt'. Did you mean 'text'"),
        ({"look": {}}, "unknown option 'look'"),
        ({"kind": "file"}, "the kind is 'file'"),
        ({"kind": ["text"]}, "the kind is"),
        ({"text": 5}, "text is int, expected a string"),
        ({"text": "A", "methods": []}, "no method is chosen"),
        ({"text": "A", "methods": "lrp"}, "methods is str, expected a list"),
        ({"text": "A", "methods": ["lrb"]}, "unknown method 'lrb'. Did you mean 'lrp'"),
        ({"text": "A", "target": True}, "target is 'True', expected a whole number"),
        ({"text": "A", "target": 1.5}, "target is '1.5', expected a whole number"),
        ({"text": "A", "target": [1]}, "expected a whole number"),
        ({"text": "A", "position": 1 << 50}, "position is .* expected a whole number"),
        ({"text": "A", "continuation": [1, "2"]}, r"continuation\[1\] is '2'"),
        ({"text": "A", "span": [0, 1]}, "the continuation has 0 tokens"),
        ({"text": "A", "continuation": [1], "span": [1, 0]}, "the continuation has 1 token[.]"),
        ({"text": "A", "continuation": [1], "span": [1]}, "expected start and stop"),
        ({"text": "A", "hide": ["last"]}, "hide='last'"),
        ({"text": "A", "scale": "big"}, "scale='big'"),
        ({"text": "A", "shared_scale": 1}, "shared_scale is int"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] is no message"),
        ({"messages": [{"role": "boss", "content": ""}]}, "the role 'boss'"),
        ({"images": ["/etc/passwd"]}, r"images\[0\] is no image"),
        ({"images": ["data:text/html;base64,AAAA"]}, r"images\[0\] is no image"),
        ({"images": ["data:image/png;base64,A*"]}, "not base64"),
        ({"images": [IMAGE] * (MOST_IMAGES + 1)}, "9 images, and at most 8"),
        ({"text": "A" * (MOST_CHARACTERS + 1)}, "200,001 characters, and at most 200,000"),
    ],
)
def test_what_cannot_be_used(data, message):
    with pytest.raises(InputError, match=message):
        question_of(data)
