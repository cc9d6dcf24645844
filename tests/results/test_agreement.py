"""Rank correlation against known numbers, and averages of it."""

import dataclasses

import numpy as np
import pytest
import tiny

import lrpx
from lrpx.results.agreement import agreements, rank_correlation


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([1, 2, 3], [10, 20, 30], 1), ([1, 2, 3], [3, 2, 1], -1), ([1, 2, 2, 3], [1, 3, 2, 4], 0.9486832980505138)],
)
def test_rank_correlation(first, second, expected):
    assert rank_correlation(np.array(first), np.array(second)) == pytest.approx(expected)


def test_rank_correlation_of_a_constant_is_not_defined():
    assert rank_correlation(np.ones(4), np.arange(4)) is None
    assert rank_correlation(np.arange(2), np.arange(2)) is None


def test_averages_over_what_both_explain():
    rows = {0: ([1, 2, 3], [10, 20, 30]), 1: ([1, 2, 3], [3, 2, 1]), 2: ([1, 1, 1], [1, 2, 3]), 3: ([1, 2, 3], None)}
    each = [(what, "ab"[i], np.array(r)) for what, both in rows.items() for i, r in enumerate(both) if r is not None]
    assert agreements(each) == {("a", "b"): 0}
    assert np.isnan(agreements([(0, "a", np.arange(3)), (1, "b", np.arange(3))])["a", "b"])


def test_of_explanations(tmp_path):
    """Also of saved ones; what asks something else is not compared."""
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    texts = [[10, 30, 12, 45, 14], [11, 31, 13]]
    es = explainer(texts, target=20, method=["attnlrp", "lrp", "random"])
    found = es.agreement()
    assert list(found) == [("attnlrp", "lrp"), ("attnlrp", "random"), ("lrp", "random")]
    each = [rank_correlation(es[3 * i].relevance, es[3 * i + 1].relevance) for i in range(2)]
    assert found["attnlrp", "lrp"] == pytest.approx(np.mean(each))
    assert found == lrpx.faithfulness(explainer, es).agreement()
    es.save(tmp_path / "es.json")
    assert lrpx.Explanations.load(tmp_path / "es.json").agreement() == found
    other = lrpx.Explanations([es[0], dataclasses.replace(es[1], position=3)])
    assert np.isnan(other.agreement()["attnlrp", "lrp"])
    with pytest.raises(lrpx.InputError, match="agreement of methods needs two"):
        es[:1].agreement()
