"""``GenerationExplanation``: rows, spans and hops of plain numbers, and saving them."""

import dataclasses
import json

import numpy as np
import pytest

import lrpx
from lrpx.errors import InputError, NonFiniteError
from lrpx.results.generation import GenerationExplanation
from lrpx.results.spans import checked_span, explained, hop
from lrpx.results.tokens import Token, Unit

TOKENS = ["a", "b", "c", "d", "e"]  # two of the prompt, three generated


def rows(conserved=True, seed=0):
    """A random lower triangle; ``conserved``: rows add up to their values."""
    generator = np.random.default_rng(seed)
    relevance = np.zeros((3, 4))
    for i in range(3):
        relevance[i, : 2 + i] = generator.normal(size=2 + i)
    values = relevance.sum(1) if conserved else np.array([1.0, 2.0, 3.0])
    signs = np.sign(values)
    return relevance * signs[:, None], values * signs


def generation(conserved=True, **changes):
    relevance, values = rows(conserved)
    given = {
        "tokens": TOKENS, "token_ids": [5, 6, 7, 8, 9], "units": [Unit(i, i + 1, t) for i, t in enumerate(TOKENS)],
        "prompt_length": 2, "spans": [(0, 1), (1, 2), (2, 3)], "relevance": relevance, "values": values,
        "residuals": values - relevance.sum(1), "method": "lrp", "contrast": "mean",
        "probabilities": np.array([0.5, 0.25, 0.5]),
    }  # fmt: skip
    return GenerationExplanation(**given | changes)


def test_rows_are_explanations_of_the_tokens_before():
    g = generation()
    assert [len(e.tokens) for e in g] == [2, 3, 4]
    assert [e.target for e in g] == [Token(7, "c", "c"), Token(8, "d", "d"), Token(9, "e", "e")]
    assert [e.target_probability for e in g] == [0.5, 0.25, 0.5]
    np.testing.assert_array_equal(g[-1].relevance, g.relevance[2])
    assert g.span(0).target_probability == pytest.approx(0.0625)
    for row in (3, -4):
        with pytest.raises(IndexError, match="there are 3"):
            g[row]
    assert [e.position for e in g[1:]] == [g[1].position, g[2].position]
    np.testing.assert_array_equal(g[-2:][0].relevance, g[1].relevance)


def test_a_span_with_weights():
    g = generation(conserved=False)
    e = g.span(-2, None, [2, -1])
    np.testing.assert_allclose(e.relevance, 2 * g.relevance[1] - g.relevance[2])
    assert e.value == pytest.approx(2 * g.values[1] - g.values[2])
    assert e.residual == pytest.approx(e.value - e.relevance.sum())
    assert e.explains == "weighted sum of logits minus mean logit, of"
    assert g.span(-2).explains == g.span(-2, None, [1, 1]).explains == "sum of logits minus mean logit, of"
    assert e.notes[-1] == "the scores of the tokens are multiplied by 2, -1"
    assert g.span(-2).notes == g.notes == g.span(-2, None, [1, 1]).notes
    rows = dataclasses.replace(g, weights=np.array([1.0, 2.0, -1.0]))
    assert [row.explains for row in rows] == ["logit minus mean logit, of", *[e.explains] * 2]


@pytest.mark.parametrize(
    ("objective", "average", "phrase"),
    [
        ("logit", None, "weighted sum of the logits of"),
        ("logprob", None, "weighted sum of the log-probabilities of"),
        ("logit", "top10", "weighted sum of logits minus mean of the 10 largest logits, of"),
    ],
)
def test_what_a_weighted_span_is_called(objective, average, phrase):
    for count in (1, 2):
        assert explained(objective, average, count, weighted=True) == phrase


@pytest.mark.parametrize("weights", [[1], [1, np.nan], ["a", "b"], 3])
def test_weights_that_are_none(weights):
    with pytest.raises(InputError, match="give 2 numbers"):
        generation().span(0, 2, weights)


# Hops


def test_what_generated_tokens_took_is_passed_on():
    """All of it arrives at the prompt in as many hops as there are generated tokens, if rows add up to their values."""
    g = generation()
    before, after = g.span(2, hops=0), g.span(2, hops=2)
    assert np.abs(before.relevance[2:]).max() > 0.1
    np.testing.assert_allclose(after.relevance[2:], 0, atol=1e-14)
    assert after.relevance.sum() == pytest.approx(before.relevance.sum())
    assert after.relevance[:2].sum() == pytest.approx(before.value)
    np.testing.assert_allclose(g.span(2, hops=9).relevance, after.relevance)
    assert after.notes == ("what generated tokens took was passed on to the tokens before them, 2 times.",)


def test_a_hop_written_out():
    g = generation(conserved=False)
    r, v = g.relevance, g.values
    expected = r[2].copy()
    expected[2:] = 0
    expected += r[2, 2] / v[0] * r[0] + r[2, 3] / v[1] * r[1]
    found = g.span(2, hops=1)
    np.testing.assert_allclose(found.relevance, expected)
    # What is missing of the value is the rows' own residuals, each by its share.
    lost = g.residuals[2] + r[2, 2] / v[0] * g.residuals[0] + r[2, 3] / v[1] * g.residuals[1]
    assert found.residual == pytest.approx(lost)


def test_a_token_that_was_no_likely_choice_keeps_what_it_took():
    relevance, values = rows()
    values = values * [-1, 1, 1]
    g = generation(values=values)
    e = g.span(2, hops=3)
    assert e.relevance[2] != 0
    assert e.relevance[3] == 0
    assert "1 generated token (the first: 0) kept what they took" in e.notes[1]
    assert e.relevance.sum() == pytest.approx(relevance[2].sum())


def test_hops_end_when_nothing_is_left():
    calls = []
    passes = lambda weights: calls.append(weights) or np.zeros(4)  # noqa: E731
    hop(np.array([1.0, 1.0, 1.0, 0.0]), np.ones(3), passes, 5, 2)
    assert len(calls) == 1


def test_hops_need_a_contrast():
    with pytest.raises(InputError, match='contrast="mean"'):
        generation(contrast=None).span(0, hops=1)


def test_spans_need_rows_of_single_tokens():
    relevance, values = rows()
    g = generation(spans=[(0, 2)], relevance=relevance[1:2], values=values[1:2], residuals=None)
    with pytest.raises(InputError, match=r"spans=\[\(1, 3\)\]"):
        g.span(1)
    with pytest.raises(InputError, match="gradient does not decompose"):
        generation(method="gradient", measures="sensitivity", residuals=None).span(1)


# Units


def test_a_character_that_is_split_over_tokens_is_cut():
    units = [Unit(0, 1, "a"), Unit(1, 2, "b"), Unit(2, 4, "é"), Unit(4, 5, "e")]
    g = generation(units=units)
    assert g[1].units == [Unit(0, 1, "a"), Unit(1, 2, "b"), Unit(2, 3, "c")]
    assert g[2].units == units[:3]
    assert g.generated_text == "ée"


def test_a_row_of_part_of_a_character_shows_bytes_and_the_last_one_the_character():
    tokens = ["a", "b", "\u00c3", "\u00a9", "e"]  # the bytes of é, as byte-level vocabularies write them
    units = [Unit(0, 1, "a"), Unit(1, 2, "b"), Unit(2, 4, "é"), Unit(4, 5, "e")]
    g = generation(tokens=tokens, units=units)
    assert [g[i].target.shown for i in range(3)] == [r"\xc3", "é", "e"]
    assert g[1].units[-1] == Unit(2, 3, r"\xc3")


# Data


def test_saving(tmp_path):
    g = generation(
        contrast=(Token(1, "x"), Token(2, "y"), Token(3, "z")), notes=("n",), weights=np.ones(3), provenance={"a": 1}
    )
    g.save(tmp_path / "g.json")
    back = lrpx.GenerationExplanation.load(tmp_path / "g.json")
    assert back.to_dict() == g.to_dict()
    assert back.contrast == g.contrast
    np.testing.assert_array_equal(back.relevance, g.relevance)
    assert back.per_token
    assert json.loads((tmp_path / "g.json").read_text())["kind"] == "generation"


@pytest.mark.parametrize("span", [(np.int64(0), np.int64(2)), (-3, np.int32(-1))])
def test_spans_of_numpy_are_saved(span):
    assert json.dumps(checked_span(span, 3)) == "[0, 2]"


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "holds list"), ("{", "is not JSON"), ('{"schema": 1}', "not a saved GenerationExplanation"),
     ('{"kind": "generation", "schema": 9}', "schema 9"), ('{"kind": "generation", "schema": 1}', "these fields differ")],
)  # fmt: skip
def test_files_that_are_none(tmp_path, text, message):
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(InputError, match=message):
        GenerationExplanation.load(tmp_path / "g.json")


def test_a_field_of_another_type():
    data = generation().to_dict() | {"units": 3}
    with pytest.raises(InputError, match="a field is not what it should be"):
        GenerationExplanation.from_dict(data)


def test_a_frame():
    pytest.importorskip("pandas")
    g = generation()
    frame = g.to_frame()
    assert len(frame) == 2 + 3 + 4
    assert list(frame.columns) == [
        *("start", "stop", "explained_text", "explained"),
        *("position", "text", "token", "token_id", "relevance"),
    ]
    last = frame[frame.start == 2]
    np.testing.assert_array_equal(last.relevance, g.relevance[2])
    assert set(last.explained) == {"e"}
    assert "".join(last.text) == "".join(unit.text for unit in g.units if unit.end <= 4)


def test_numbers_that_do_not_fit():
    with pytest.raises(InputError, match=r"expected \(3, 4\) and \(3,\)"):
        generation(values=np.ones(2))
    with pytest.raises(InputError, match="prompt_length=5"):
        generation(prompt_length=5)
    with pytest.raises(NonFiniteError, match="values of the lrp explanation"):
        generation(values=np.array([1, np.nan, 2]))
