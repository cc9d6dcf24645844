"""Paired tests: against drawn signs, a plain bootstrap, and Holm's correction done by hand."""

from itertools import product

import numpy as np
import pytest

from lrpx.evaluation.metrics import bootstrap
from lrpx.report.paired import EXACT_BELOW, compared, holm, intervals, randomisation, resamples


def drawn(differences, draws=20_000, seed=1):
    """The slow twin: signs drawn at random, and how often the sum is as large."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, len(differences)))
    return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean())


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.02])
def test_randomisation_of_signs(shift):
    rng = np.random.default_rng(0)
    differences = rng.choice([-0.5, 0.0, 0.0, 0.5, 2 / 3], size=400) * rng.random(400) + shift
    assert randomisation(differences) == pytest.approx(drawn(differences), abs=0.01)


@pytest.mark.parametrize("differing", [1, 2, 5, 9, EXACT_BELOW - 1])
def test_few_samples_are_tested_exactly(differing):
    """Against a loop over all signs; samples that do not differ do not count."""
    rng = np.random.default_rng(differing)
    for values in (rng.normal(size=differing) + 0.5, rng.choice([-0.5, 0.1, 0.2, 0.3], size=differing)):
        found = [
            abs(sum(s * d for s, d in zip(signs, values, strict=True))) for signs in product([1, -1], repeat=differing)
        ]
        expected = np.mean([each >= abs(sum(values)) - 1e-12 for each in found])
        given = np.concatenate([values, np.zeros(20)])
        assert randomisation(given) == pytest.approx(expected, abs=1e-15)


def test_the_smallest_p_of_few_samples():
    """All on one side: two of the 2^n signs; the normal approximation had 0.0047 for 8."""
    assert randomisation(np.full(8, 0.1)) == 2 / 2**8
    assert randomisation(np.ones(1)) == 1
    many = np.full(EXACT_BELOW, 0.1)
    assert randomisation(many) == pytest.approx(6.33e-5, rel=0.01)


def test_randomisation_can_tell_and_can_not():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=500)
    assert randomisation(noise - noise.mean()) == pytest.approx(1)
    assert randomisation(noise + 1) < 1e-10
    assert randomisation(np.zeros(5)) == 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_intervals_are_those_of_the_plain_bootstrap():
    rng = np.random.default_rng(0)
    columns = [rng.random(50), rng.random(30), rng.normal(size=50)]
    for values, found in zip(columns, intervals(columns), strict=True):
        expected = bootstrap(values)
        assert tuple(found) == pytest.approx((expected.mean, expected.low, expected.high), abs=1e-12)
    assert resamples(30).sum(axis=1).tolist() == [30.0] * 1000


def test_every_pair_both_ways_round():
    rng = np.random.default_rng(0)
    ids = np.arange(200)

    def columns(shift, keep):
        return {"sample_id": ids[keep], "mrr": (rng.random(200) * 0.5 + shift)[keep]}

    methods = {"a": columns(0.4, ids >= 0), "b": columns(0.0, ids >= 0), "c": columns(0.0, ids % 2 == 0)}
    found = compared(methods, "mrr")
    assert found.keys() == {(x, y) for x in "abc" for y in "abc" if x != y}
    assert found["a", "b"].difference.low > 0 > found["b", "a"].difference.high
    assert found["a", "b"].adjusted == found["b", "a"].adjusted < 1e-6
    assert found["b", "c"].samples == 100
    assert found["b", "c"].adjusted > 0.05
    d = methods["a"]["mrr"] - methods["b"]["mrr"]
    assert found["a", "b"].difference.mean == pytest.approx(d.mean())
    apart = compared({"a": methods["c"], "b": {"sample_id": np.array([1]), "mrr": np.array([1.0])}}, "mrr")
    assert apart == {}
