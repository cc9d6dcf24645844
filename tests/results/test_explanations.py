"""Several explanations together."""

import json
from dataclasses import replace

import numpy as np
import pytest

import lrpx
from lrpx import Explanation, Explanations, InputError
from lrpx.errors import NonFiniteError
from lrpx.results.explanations import Failure
from lrpx.results.tokens import Token, Unit


def explanation(text, method="lrp"):
    tokens = text.split()
    return Explanation(
        tokens=tokens,
        token_ids=list(range(len(tokens))),
        units=[Unit(i, i + 1, token) for i, token in enumerate(tokens)],
        relevance=np.arange(float(len(tokens))),
        value=1.0,
        residual=0.0,
        target=Token(7, "x"),
        contrast=None,
        position=len(tokens) - 1,
        method=method,
    )


@pytest.fixture
def three():
    return [explanation("a b"), explanation("c d e", "attnlrp"), explanation("f")]


def test_a_sequence(three):
    found = Explanations(three)
    assert len(found) == 3
    assert list(found) == three
    assert found[1] is found[-2] is three[1]
    assert isinstance(found[1:], Explanations)
    assert list(found[1:]) == three[1:]
    assert three[2] in found
    assert repr(found).count("<Explanation") == 3


def test_all_are_shown(three, capsys):
    Explanations(three).show()
    printed = capsys.readouterr().out
    assert all(word in printed for word in "abcdef")


def test_one_page(three):
    page = Explanations(three).to_html()
    assert "attnlrp" in page
    assert Explanations(three)._repr_html_() in page


def test_one_table(three):
    frame = Explanations(three).to_frame()
    assert frame.columns.tolist() == [
        *("explanation", "input", "method", "position", "text", "token", "token_id", "relevance")
    ]
    assert frame["explanation"].tolist() == [0, 0, 1, 1, 1, 2]
    assert frame["input"].isna().all()  # these are of no call
    assert frame["position"].tolist() == [0, 1, 0, 1, 2, 0]
    assert frame["token"].tolist() == list("abcdef")
    assert frame["method"].tolist() == ["lrp"] * 2 + ["attnlrp"] * 3 + ["lrp"]
    assert frame.columns.tolist() == Explanations([]).to_frame().columns.tolist()


# Side by side.


def test_those_of_one_text_stand_together(tmp_path):
    a, b, c, d = (
        explanation(text, method) for text, method in [("a b", "lrp"), ("c", "lrp"), ("a b", "alti"), ("c", "x")]
    )
    found = lrpx.compare(Explanations([a, b]), [c], d)
    assert isinstance(found, Explanations)
    assert list(found) == [a, c, b, d]


def test_files_of_one_and_of_several(tmp_path):
    explanation("a b").save(tmp_path / "one.json")
    Explanations([explanation("a b", "attnlrp"), explanation("c")]).save(tmp_path / "several.json")
    found = lrpx.compare(tmp_path / "one.json", str(tmp_path / "several.json"))
    assert [e.method for e in found] == ["lrp", "attnlrp", "lrp"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "no explanations are given"),
        ((explanation("a"), explanation("b c")), "no text is explained twice: 'a', 'bc'"),
        ((explanation("a"), 3), "give explanations, or paths of saved ones. This is of the type int"),
        (("missing.json",), "'missing.json' is no file"),
    ],
)
def test_what_cannot_be_compared(given, message):
    with pytest.raises(InputError, match=message):
        lrpx.compare(*given)


def test_failures_are_counted_in_the_repr():
    failure = Failure(0, "", InputError("it is empty."))
    assert repr(Explanations([], [failure])) == "Explanations([], 1 failure)"
    assert repr(Explanations([], [failure] * 2)) == "Explanations([], 2 failures)"


FAILED = (Failure(1, "", InputError("it is empty.")), Failure(3, 7, NonFiniteError("NaN in layer 1.")))


def test_every_view_says_what_failed(three, tmp_path, capsys):
    found, said = Explanations(three, FAILED), "2 texts could not be explained; .failures says which and why."
    found.show()
    latex = found.to_latex().replace("\\ ", " ")
    texts = (" ".join(capsys.readouterr().out.split()), found.to_html(), found._repr_html_(), latex)
    assert [text.count(said) for text in texts] == [1, 1, 1, 1]
    inside = [replace(e, by_layer=np.ones((2, len(e.tokens)))) for e in three]
    assert Explanations(inside, FAILED).to_html(of="layers").count(said) == 1
    assert all(e.notes == () for e in found)


def test_what_failed_is_not_said_of_one_method_alone(three, capsys):
    Explanations([three[0], replace(three[0], method="attnlrp"), three[2]], FAILED).show()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "could not be explained" in line]
    assert lines == ["note: 2 texts could not be explained; .failures says which and why."]


def test_where_all_failed():
    found = Explanations([], FAILED)
    with pytest.raises(InputError, match=r"no explanation to draw: 2 texts could not be explained; \.failures says"):
        found.show()
    assert found._repr_html_() is None  # a notebook shows the repr, which counts them


@pytest.mark.parametrize("count", [0, 3])
def test_failures_are_saved(three, tmp_path, count):
    Explanations(three[:count], FAILED).save(tmp_path / "es.json")
    found = Explanations.load(tmp_path / "es.json")
    assert len(found) == count
    assert [(f.index, f.text, type(f.error), str(f.error)) for f in found.failures] == [
        (1, "", InputError, "it is empty."),
        (3, None, NonFiniteError, "NaN in layer 1."),
    ]


def test_failures_are_kept_side_by_side(three, tmp_path, capsys):
    """Of a list, of its file and of JSON lines, each text once."""
    Explanations(three, FAILED).save(tmp_path / "es.json")
    lines = [json.dumps(each.to_dict()) for each in (*three, *FAILED[:1])]
    (tmp_path / "es.jsonl").write_text("\n".join(lines))
    for given in ([Explanations(three, FAILED), three], [tmp_path / "es.json", tmp_path / "es.jsonl"]):
        found = lrpx.compare(*given)
        assert len(found) == 2 * len(three)
        assert [failure.index for failure in found.failures] == [1, 3]
    (tmp_path / "es.jsonl").write_text("\n".join([*lines, '{"kind": "failure"}']))
    with pytest.raises(InputError, match=rf"es\.jsonl, line {len(lines) + 1}: not a saved failure"):
        lrpx.compare(tmp_path / "es.jsonl")


def test_a_saved_failure_that_is_none(tmp_path):
    (tmp_path / "es.json").write_text('[{"kind": "failure", "index": "x"}]')
    with pytest.raises(InputError, match=r"es\.json\[0\]: not a saved failure"):
        Explanations.load(tmp_path / "es.json")
