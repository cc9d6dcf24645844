"""Several explanations together."""

import numpy as np
import pytest

from lrpx import Explanation, Explanations
from lrpx.results.explanation import Token, Unit


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


def test_one_page(three, tmp_path):
    page = Explanations(three).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "attnlrp" in page
    assert Explanations(three)._repr_html_() in page


def test_one_table(three):
    frame = Explanations(three).to_frame()
    assert frame.columns.tolist() == ["explanation", "method", "text", "token", "token_id", "relevance"]
    assert frame["explanation"].tolist() == [0, 0, 1, 1, 1, 2]
    assert frame["token"].tolist() == list("abcdef")
    assert frame["method"].tolist() == ["lrp"] * 2 + ["attnlrp"] * 3 + ["lrp"]
    assert frame.columns.tolist() == Explanations([]).to_frame().columns.tolist()
