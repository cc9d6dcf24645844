"""The gap between LRP and AttnLRP: its two parts, on numbers where they are known."""

import numpy as np
import pytest

from lrpx.report.gap import gaps, lost_to, tops, without_first
from lrpx.report.measured import Measured


def columns(rank, tops=None):
    rank = np.array(rank * 50)  # so many that every resample has some of each
    tops = (tops or ["subject"] * 4) * 50
    return {
        "sample_id": np.arange(len(rank)),
        "rank": rank,
        "pg2": (rank <= 2).astype(float),
        "mrr": 1 / rank,
        "rma": 1 / rank,
        "top": np.array(tops, dtype=object),
    }


def model(**methods):
    places = {"input": {name.replace("_", "-"): found for name, found in methods.items()}}
    return Measured("made-up", {}, "gated", {}, 4, 4, places, ())


def test_the_parts_add_up_to_the_gap():
    found = model(lrp=columns([4, 4, 2, 1]), lrp_uniform_gate=columns([2, 2, 2, 1]), attnlrp=columns([1, 2, 1, 1]))
    pg2, mrr, rma = gaps(found)
    assert [g.metric for g in (pg2, mrr, rma)] == ["pg2", "mrr", "rma"]
    assert mrr.means == pytest.approx((0.5, 0.625, 0.875))
    assert (mrr.gate.mean, mrr.attention.mean) == pytest.approx((0.125, 0.25))
    assert mrr.share.mean == pytest.approx(1 / 3)
    assert mrr.share.low <= mrr.share.mean <= mrr.share.high
    assert pg2.share.mean == pytest.approx(1)  # the gate alone


def test_no_gap_has_no_share():
    same = columns([1, 2, 1, 2])
    assert all(np.isnan(gap.share.mean) for gap in gaps(model(lrp=same, lrp_uniform_gate=same, attnlrp=same)))
    assert gaps(model(lrp=same, attnlrp=same)) == []


def test_where_relevance_goes_instead():
    lrp = columns([3, 2, 2, 1], ["first", "first", "attractor", "subject"])
    attnlrp = columns([1, 1, 1, 1])
    assert lost_to(model(lrp=lrp, attnlrp=attnlrp)) == pytest.approx({"first": 2 / 3, "attractor": 1 / 3})
    assert lost_to(model(lrp=attnlrp, attnlrp=lrp)) == {}
    assert lost_to(model(lrp=lrp)) == {}
    assert tops(lrp) == {"subject": 0.25, "first": 0.5, "attractor": 0.25} | dict.fromkeys(
        ("explained", "special", "other"), 0.0
    )


def test_the_first_token_left_out():
    """Of relevance with the first token, which is no subject: what can be known lies between the bounds."""
    rng = np.random.default_rng(0)
    rank, top, left_out = [], [], []
    for _ in range(200):
        relevance = rng.normal(size=6)
        relevance[0] += 1
        subject = int(rng.integers(1, 6))
        rank.append(int((relevance >= relevance[subject]).sum()))
        best = int(relevance.argmax())
        top.append("subject" if best == subject else "first" if best == 0 else "other")
        left_out.append(int((relevance[1:] >= relevance[subject]).sum()))
    low, high = without_first({"rank": np.array(rank), "top": np.array(top, dtype=object)})
    assert low < (1 / np.array(left_out)).mean() < high
    assert low > (1 / np.array(rank)).mean()
