"""An ``Explanation`` is plain, finite data that survives saving to the last digit."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest

from lrpx import Explanation, Explanations, RelevanceFlow
from lrpx.errors import InputError, NonFiniteError
from lrpx.results.explanation import SCHEMA
from lrpx.results.tokens import Prediction, Token, Unit


def explanation(**changes):
    """Two units over three tokens, with everything that an explanation can hold."""
    fields = {
        "tokens": ["The", "ðŁ", "¤Ĺ"],
        "token_ids": [464, 12520, 8582],
        "units": [Unit(0, 1, "The"), Unit(1, 3, " 🤗")],
        "relevance": np.array([0.1, -1 / 3, 5e-324]),
        "value": 0.1 + 0.2,
        "residual": -1e300,
        "target": Token(389, "Ġare", " are"),
        "contrast": Token(318, "Ġis"),
        "target_probability": 0.1 + 0.2,
        "target_rank": 1,
        "contrast_probability": 1 / 7,
        "contrast_rank": 2,
        "top": (Prediction(Token(389, "Ġare", " are"), 0.1 + 0.2), Prediction(Token(318, "Ġis"), 1 / 7)),
        "measures": "sensitivity",
        "notes": ("One thing.", "Another."),
        "position": 2,
        "method": "alti-logit",
        "text": "The 🤗",
        "layers": {"h.0": np.arange(6.0).reshape(3, 2) / 7},
        "by_layer": np.arange(6.0).reshape(2, 3) / 7,
        "by_attention": np.arange(6.0).reshape(2, 3) / 3,
        "by_mlp": np.arange(6.0).reshape(2, 3) / 9,
        "by_head": np.arange(12.0).reshape(2, 2, 3) / 7,
        "components": {"direct": 0.3, "mlp": np.array([0.1, 0.2])},
        "provenance": {"model": "gpt2", "options": {"at": ("input",)}, "revision": None},
    }
    return Explanation(**(fields | changes))


def same(a, b):
    """Every number is the same to the last bit, everything else is equal; tuples come back as lists."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype == np.float64 and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return list(a) == list(b) if isinstance(a, tuple | list) else a == b


CASES = {
    "everything": {},
    "no contrast": {"contrast": None},
    "no residual": {"residual": None},
    "ids only": {"text": None},
    "tokens only": {
        "layers": {},
        **dict.fromkeys(("by_layer", "by_attention", "by_mlp", "by_head")),
        "components": {},
    },
    "nothing predicted": {"top": (), "notes": (), "target_probability": None, "target_rank": None},
    "one token": {"tokens": ["a"], "token_ids": [1], "units": [Unit(0, 1, "a")], "relevance": np.array([-0.0])},
    "hostile text": {"text": '\\"\n\u2028</script>\0é', "tokens": ["<", "&", '"']},
}


@pytest.mark.parametrize("case", CASES)
def test_saving_and_loading_changes_nothing(tmp_path, case):
    original = explanation(**CASES[case])
    original.save(tmp_path / "x.json")
    loaded = Explanation.load(tmp_path / "x.json")
    for field in dataclasses.fields(Explanation):
        a, b = getattr(original, field.name), getattr(loaded, field.name)
        if field.name == "provenance":
            assert b == json.loads(json.dumps(a))
        else:
            assert same(a, b), field.name
    assert all(isinstance(token, Token) for token in (loaded.target, *(p.token for p in loaded.top)))
    assert all(isinstance(p, Prediction) for p in loaded.top)
    assert all(isinstance(unit, Unit) for unit in loaded.units)
    loaded.save(tmp_path / "y.json")
    assert (tmp_path / "x.json").read_bytes() == (tmp_path / "y.json").read_bytes()


def test_json_is_plain_with_a_schema_and_without_nan(tmp_path):
    data = explanation().to_dict()
    assert data["schema"] == SCHEMA == 1
    assert set(data) == {"schema"} | {field.name for field in dataclasses.fields(Explanation)}
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text) == json.loads(json.dumps(Explanation.from_dict(json.loads(text)).to_dict()))
    explanation().save(tmp_path / "x.json")
    assert "🤗" in (tmp_path / "x.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("method", "measures"),
    [("lrp", "parts"), ("gradient", "sensitivity"), ("alti", "mixture"), ("attention-rollout", "mixture")],
)
def test_what_an_earlier_version_saved_is_read(method, measures):
    """Without probabilities, notes, or what the method measures."""
    saved = explanation(method=method).to_dict()
    whole = set(saved)
    for later in [n for n in saved if n.startswith(("target_", "contrast_"))] + ["top", "notes", "measures"]:
        del saved[later]
    assert len(whole) == len(saved) + 7
    saved["target"] = saved["target"][:2]
    loaded = Explanation.from_dict(saved)
    assert (loaded.top, loaded.notes, loaded.measures) == ((), (), measures)
    assert loaded.target == Token(389, "Ġare")
    assert (loaded.target_probability, loaded.contrast_rank) == (None, None)


def test_measures_is_one_of_three():
    with pytest.raises(InputError, match="measures='total': expected one of parts, sensitivity, mixture"):
        explanation(measures="total")


def test_numpy_numbers_become_plain():
    data = explanation(components={"direct": np.float32(0.5), "count": np.int64(3)}).to_dict()
    assert data["components"] == {"direct": 0.5, "count": 3}
    assert type(data["components"]["count"]) is int


# What is no explanation


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": ["a", "b"]},
        {"token_ids": [1, 2]},
        {"relevance": np.zeros(4)},
        {"relevance": np.zeros((3, 1))},
        {"relevance": np.float64(0)},
    ],
)
def test_one_of_each_per_token(wrong):
    with pytest.raises(InputError, match="an explanation has one of each per token"):
        explanation(**wrong)


@pytest.mark.parametrize(
    "units", [[], [Unit(0, 1, "a")], [Unit(0, 2, "a"), Unit(1, 3, "b")], [Unit(1, 3, "a")], [Unit(0, 4, "a")]]
)
def test_units_cover_the_tokens(units):
    with pytest.raises(InputError, match="do not cover the 3 tokens one after the other"):
        explanation(units=units)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("relevance", lambda x: {"relevance": np.array([0.0, x, 1.0])}),
        ("value", lambda x: {"value": x}),
        ("residual", lambda x: {"residual": x}),
        ("by_layer", lambda x: {"by_layer": np.array([[x]])}),
        ("by_attention", lambda x: {"by_attention": np.array([[x]])}),
        ("by_mlp", lambda x: {"by_mlp": np.array([[x]])}),
        ("by_head", lambda x: {"by_head": np.array([[[x]]])}),
        (r"layers\['h.0'\]", lambda x: {"layers": {"h.0": np.array([[x]])}}),
        (r"components\['mlp'\]", lambda x: {"components": {"mlp": np.array([x])}}),
        (r"components\['direct'\]", lambda x: {"components": {"direct": x}}),
    ],
)
def test_numbers_are_finite(name, wrong, bad):
    with pytest.raises(NonFiniteError, match=f"^{name} of the alti-logit explanation holds NaN or infinity"):
        explanation(**wrong(bad))


def test_a_missing_number_of_a_list_is_not_finite_either():
    with pytest.raises(NonFiniteError, match=r"^components\['mlp'\] of the"):
        explanation(components={"mlp": [1.0, None]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"schema": 2}, "schema 2: this version of lrpx reads schema 1. Upgrade lrpx to read it."),
        (
            lambda d: {k: v for k, v in d.items() if k != "schema"},
            "x.json: not a saved explanation: it has no field 'schema'",
        ),
        (lambda d: {"schema": 2, "name": "x"}, "x.json: not a saved explanation: it has no tokens with relevance"),
        (lambda d: {"$schema": "http://json-schema.org"}, "it has no field 'schema'. Give what Explanation.save"),
        (lambda d: {k: v for k, v in d.items() if k != "value"}, r"these fields differ: \['value'\]"),
        (
            lambda d: d | {"kind": "generation"},
            "x.json: not one explanation, but generated text. Type: lrpx.Generation",
        ),
        (lambda d: d | {"extra": 1}, r"these fields differ: \['extra'\]"),
        (lambda d: d | {"units": [[0]]}, "not a saved explanation: a field is not what it should be"),
        (lambda d: d | {"units": None}, "a field is not what it should be"),
        (lambda d: d | {"target": 3}, "a field is not what it should be"),
        (lambda d: d | {"relevance": ["a", "b", "c"]}, "a field is not what it should be"),
        (lambda d: d | {"relevance": [[1], [2, 3]]}, "a field is not what it should be"),
        (lambda d: d | {"layers": [1]}, "a field is not what it should be"),
        (lambda d: d | {"value": None}, "a field is not what it should be"),
        (lambda d: d | {"residual": "much"}, "a field is not what it should be"),
        (lambda d: d | {"position": "1"}, "a field is not what it should be"),
        (lambda d: d | {"provenance": "here"}, "a field is not what it should be"),
        (lambda d: d | {"tokens": ["a"]}, "an explanation has one of each per token"),
        (
            lambda d: [d],
            r"holds a list\. If it is one of explanations: lrpx.Explanations.load\(path\)",
        ),
        (lambda d: [1], "holds a JSON list, not an explanation. Give what Explanation.save"),
        (lambda d: "text", "holds a JSON str, not an explanation"),
    ],
)
def test_loading_something_else(tmp_path, change, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(change(explanation().to_dict())))
    with pytest.raises(InputError, match=message):
        Explanation.load(path)


def test_loading_what_is_not_json(tmp_path):
    path = tmp_path / "x.json"
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"x.json is not JSON: .*Give a file written by Explanation.save\(\)"):
            Explanation.load(path)


def test_loading_nan(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(explanation().to_dict() | {"value": math.nan}))
    with pytest.raises(NonFiniteError, match="value of the alti-logit explanation"):
        Explanation.load(path)


# Views


def test_repr_says_what_is_explained():
    assert repr(explanation()) == "<Explanation alti-logit of ' are' - 'Ġis': value 0.3, 3 tokens>"
    assert repr(explanation(contrast=None)) == "<Explanation alti-logit of ' are': value 0.3, 3 tokens>"
    raw = explanation(target=Token(389, "Ġare"), contrast=None)  # how it reads is not known
    assert repr(explanation(measures="mixture", method="alti")) == "<Explanation alti of position 2, 3 tokens>"
    assert repr(raw) == "<Explanation alti-logit of 'Ġare': value 0.3, 3 tokens>"


def test_frame():
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = explanation().to_frame()
    assert list(frame.columns) == ["position", "text", "token", "token_id", "relevance"]
    assert frame["position"].tolist() == [0, 1, 2]
    assert frame["text"].tolist() == ["The", " 🤗", ""]
    assert frame["token"].tolist() == explanation().tokens
    assert frame["relevance"].tolist() == explanation().relevance.tolist()


def test_frames_of_layers_and_heads():
    pytest.importorskip("pandas", reason="pandas is not installed")
    e = explanation()
    layers, heads = e.to_frame(of="layers"), e.to_frame(of="heads")
    assert list(layers.columns) == ["layer", "position", "text", "by_layer", "by_attention", "by_mlp"]
    assert layers[(layers.layer == 1) & (layers.position == 2)].by_mlp.item() == e.by_mlp[1, 2]
    assert list(heads.columns) == ["layer", "head", "position", "text", "relevance"]
    where = (heads["layer"] == 1) & (heads["head"] == 0) & (heads["position"] == 1)
    assert heads[where].relevance.item() == e.by_head[1, 0, 1]
    assert heads[where].text.item() == " 🤗"
    assert len(heads) == e.by_head.size


def test_frames_that_there_are_not():
    pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(InputError, match=r'no table of \'neurons\': give "tokens", "layers" or "heads"'):
        explanation().to_frame(of="neurons")


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        ({}, {}, 'which the method does not find. Take one that does: explainer(text, method="attnlrp", heads=True).'),
        (
            {"heads": None},
            {},
            "which is not computed for long texts, or while compiling. Ask for it: explainer(text, heads=True).",
        ),
        ({"heads": False}, {}, "which was not asked for. Ask for it: explainer(text, heads=True)."),
        ({"heads": True}, {}, "heads=True was asked for, and it was not found in this pass."),
        ({"heads": None}, {"at": "pixels"}, 'Take the input: explainer(..., at="input", heads=True).'),
        (
            {"heads": None},
            {"task": "zero-shot-image-classification"},
            "which is not known of scores of images and texts.",
        ),
    ],
)
def test_a_frame_of_heads_that_are_not_there_says_why(options, fields, why):
    pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(InputError, match=r"by alti-logit has no relevance of heads") as caught:
        explanation(by_head=None, provenance={"options": options, "target": 7}, **fields).to_frame(of="heads")
    assert str(caught.value).endswith(why)


def test_frame_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_frame\(\) needs pandas: pip install matplotlib pandas networkx"):
        explanation().to_frame()


def test_a_file_that_is_not_there():
    for load in (Explanation.load, Explanations.load, RelevanceFlow.load):
        with pytest.raises(InputError, match=r"'nowhere\.json' is no file\. Give one that "):
            load("nowhere.json")


def test_views_are_those_of_the_heatmap(tmp_path, capsys):
    e = explanation(method="attnlrp", components={}, by_layer=None, by_head=None)
    assert "🤗" in e.to_html()
    assert e._repr_html_() in e.to_html()
    e.show()
    assert "are" in capsys.readouterr().out


def test_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    units = [Unit(0, 1, "The"), Unit(1, 3, " é")]  # which every font has
    e = explanation(method="attnlrp", components={}, by_layer=None, by_head=None, units=units, text="The é")
    e.to_png(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation().value = 3


# Notes


def test_notes_are_strings_in_every_header_and_files_without_them_are_read(tmp_path, capsys):
    e = explanation(method="attnlrp", components={}, by_layer=None, by_head=None, notes=("Watch out.", "Twice."))
    assert Explanation.from_dict(json.loads(json.dumps(e.to_dict()))).notes == ("Watch out.", "Twice.")
    older = {k: v for k, v in e.to_dict().items() if k not in ("notes", "by_attention", "by_mlp")}
    assert Explanation.from_dict(older).notes == ()
    assert Explanation.from_dict(older).by_mlp is None
    e.show()
    for shown in (capsys.readouterr().out, e.to_html(), e._repr_html_(), e.to_latex()):
        assert "Watch out." in shown.replace("\\ ", " ")
        assert "Twice." in shown
