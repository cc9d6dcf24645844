"""Curves and areas of a value that is a sum of the parts' own."""

import numpy as np
import pytest

from lrpx.evaluation.curves import SHARES, perturbed

WORTH = np.array([3.0, -1.0, 0.5, 2.0, 0.0, -2.0, 1.0, 4.0])


def without(masks):
    return WORTH.sum() - masks @ WORTH


def test_of_a_sum_the_worth_of_the_parts_is_the_best_order():
    """Of a value to which each part adds its worth, no other order has a larger area or a smaller one in reverse."""
    best = perturbed(0, "best", WORTH, without, 20)
    np.testing.assert_allclose(-np.diff(best.most), np.sort(WORTH)[::-1], atol=1e-12)
    np.testing.assert_allclose(-np.diff(best.least), np.sort(WORTH), atol=1e-12)
    for seed in range(5):
        other = perturbed(0, "other", np.random.default_rng(seed).standard_normal(8), without, 20)
        assert other.area_most < best.area_most
        assert other.area_least > best.area_least
        assert other.comprehensiveness < best.comprehensiveness
    tops = [max(1, round(share * 8)) for share in SHARES]
    ordered = np.sort(WORTH)[::-1]
    assert best.comprehensiveness == pytest.approx(np.mean([ordered[:k].sum() for k in tops]))
    assert best.sufficiency == pytest.approx(np.mean([ordered[k:].sum() for k in tops]))


def test_what_is_kept_is_in_no_set():
    seen = []

    def values(masks):
        seen.append(masks)
        return without(masks)

    found = perturbed(0, "kept", WORTH, values, 20, kept=7)
    assert found.hidden.tolist() == list(range(8))
    assert not seen[0][:, 7].any()
    assert seen[0][:, :7].any(0).all()
