"""Findings of the paper: each agrees with its own table, and the verdicts can come out either way."""

import numpy as np
import pytest

from lrpx.report.findings import FAILS, FINDINGS, HOLDS, OPEN, verdicts
from lrpx.report.measured import Measured
from lrpx.report.paper import MODELS

KINDS = {"bert": "masked", "gpt2": "plain", "llama": "gated"}
METRIC = {"pg2": 0, "mrr": 1, "rma": 2, "pta": 3}


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.claim)
def test_a_finding_is_one_of_the_paper(finding):
    """For most of the paper's models of that kind its figures say so; the shares of relevance are not in its tables."""
    checked = 0
    for model in MODELS:
        kind = next(kind for name, kind in KINDS.items() if name in model.hub.lower())
        if kind not in finding.kinds:
            continue
        scores = {**model.scores, "random": model.random[0]}
        for pair in finding.pairs:
            if pair.metric in METRIC and {pair.ahead, pair.behind} <= scores.keys():
                ahead, behind = (scores[name][METRIC[pair.metric]] for name in (pair.ahead, pair.behind))
                assert ahead >= behind, (model.name, pair)
                checked += 1
    assert checked or all(pair.metric not in METRIC for pair in finding.pairs)


def model(kind, **means):
    """Methods whose metrics are the given means with a little noise."""
    rng = np.random.default_rng(0)
    names = ("pg2", "mrr", "rma", "pta", "first", "subject")
    methods = {}
    for name, mean in means.items():
        values = {metric: mean + 0.1 * rng.normal(size=300) for metric in names}
        methods[name.replace("_", "-")] = {"sample_id": np.arange(300), **values}
    return Measured("made-up", {}, kind, {}, 300, 300, {"input": methods}, ())


@pytest.mark.parametrize(("lrp", "attnlrp", "holds"), [(0.5, 0.7, HOLDS), (0.7, 0.5, FAILS), (0.5, 0.5, OPEN)])
def test_verdicts(lrp, attnlrp, holds):
    found = list(verdicts([model("masked", lrp=lrp, attnlrp=attnlrp)]))
    (verdict,) = [v for v in found if "AttnLRP is ahead of LRP" in v.finding.claim]
    assert verdict.holds == holds
    assert [pair.metric for pair, _ in verdict.differences] == ["pg2", "mrr", "rma"]


def test_a_finding_is_open_where_a_method_was_not_evaluated():
    """That PTA finds methods worse than chance cannot hold without chance; that one is ahead can fail without it."""
    known = {"gradient_x_input": 0.9, "lrp": 0.5, "attnlrp": 0.5, "alti_logit": 0.5, "gradient_l1": 0.5}
    for methods, holds, wanting in (
        (known, OPEN, ("random",)),
        (known | {"random": 0.7}, HOLDS, ()),
        (known | {"lrp": 1.2}, FAILS, ("random",)),
    ):
        (verdict,) = [v for v in verdicts([model("plain", **methods)]) if "chance" in v.finding.claim]
        assert (verdict.holds, verdict.wanting) == (holds, wanting)


def test_findings_about_all_models_are_checked_where_the_mlps_are_not_known():
    kinds = {v.finding.kinds for v in verdicts([model("causal", lrp=0.5, attnlrp=0.6, gradient_x_input=0.1)])}
    assert kinds == {("gated", "plain", "masked")}


def test_what_cannot_be_checked_is_left_out():
    assert list(verdicts([model("gated", lrp=0.5)])) == []
    found = list(verdicts([model("masked", lrp=0.5, alti_logit=0.1, random=0.4)]))
    named = {name for verdict in found for pair, _ in verdict.differences for name in pair[:2]}
    assert "alti-logit" not in named  # of masked models it is not the paper's
    assert "random" in named
