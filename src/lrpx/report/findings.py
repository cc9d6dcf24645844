"""What Arras et al. (2025) find, as comparisons that records can decide: section "Evaluation w.r.t. Ground Truth", Table 2.

A finding is about one kind of model and says of pairs of methods that one is ahead of the other in a metric. It holds for a
model if the 95 % interval of every difference lies above 0, it does not if that of some difference lies below 0, and else it is
open, also for want of samples or of a method. ``gradient`` is the better norm, as in the paper, and ``random`` the method of
that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..benchmark.kinds import KINDS
from ..evaluation.metrics import Interval
from .measured import Measured, difference
from .paired import intervals

HOLDS, OPEN, FAILS = "holds", "open", "does not hold"


class Pair(NamedTuple):
    """``ahead`` scores higher than ``behind`` in ``metric``."""

    ahead: str
    behind: str
    metric: str


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        claim: As a sentence.
        kinds: The kinds of models it is about.
        pairs: What it says.
    """

    claim: str
    kinds: tuple[str, ...]
    pairs: tuple[Pair, ...]


class Verdict(NamedTuple):
    """What the records of one model say to a finding; ``wanting`` are the methods that it is about and that have no records."""

    finding: Finding
    model: str
    differences: tuple[tuple[Pair, Interval], ...]
    holds: str
    wanting: tuple[str, ...] = ()


def _ahead(method: str, others: Sequence[str], *metrics: str) -> tuple[Pair, ...]:
    return tuple(Pair(method, other, metric) for metric in metrics for other in others)


FINDINGS = (
    Finding(
        "On Llama-like models AttnLRP is the strongest method, in PG2, MRR and RMA.",
        ("gated",),
        _ahead("attnlrp", ("alti-logit", "lrp", "gradient", "gradient-x-input"), "pg2", "mrr", "rma"),
    ),
    Finding(
        "On Llama-like models the gradient norm is behind LRP, in PG2 and MRR.",
        ("gated",),
        _ahead("lrp", ("gradient",), "pg2", "mrr"),
    ),
    Finding(
        "On Llama-like models AttnLRP is more focused on the subject than ALTI-Logit, which gives more to the first token.",
        ("gated",),
        (Pair("attnlrp", "alti-logit", "subject"), Pair("alti-logit", "attnlrp", "first")),
    ),
    Finding(
        "On GPT-2 ALTI-Logit is the strongest method, in PG2 and MRR.",
        ("plain",),
        _ahead("alti-logit", ("lrp", "attnlrp", "gradient", "gradient-x-input"), "pg2", "mrr"),
    ),
    Finding(
        "On GPT-2 LRP comes second in PG2 and MRR, ahead of AttnLRP, and first in RMA.",
        ("plain",),
        (*_ahead("lrp", ("attnlrp", "gradient"), "pg2", "mrr"), *_ahead("lrp", ("alti-logit", "attnlrp"), "rma")),
    ),
    Finding(
        "On BERT AttnLRP is ahead of LRP, in PG2, MRR and RMA.",
        ("masked",),
        _ahead("attnlrp", ("lrp",), "pg2", "mrr", "rma"),
    ),
    Finding("On BERT the gradient norm is ahead of LRP in MRR.", ("masked",), _ahead("gradient", ("lrp",), "mrr")),
    Finding(
        "Gradient x Input is behind LRP and AttnLRP, in PG2, MRR and RMA.",
        ("gated", "plain", "masked"),
        tuple(p for name in ("lrp", "attnlrp") for p in _ahead(name, ("gradient-x-input",), "pg2", "mrr", "rma")),
    ),
    Finding(
        "PTA prefers Gradient x Input, and finds the other methods worse than chance.",
        ("gated", "plain", "masked"),
        (
            *_ahead("gradient-x-input", ("lrp", "attnlrp", "alti-logit", "gradient"), "pta"),
            *(Pair("random", name, "pta") for name in ("lrp", "attnlrp", "alti-logit", "gradient")),
        ),
    ),
)


def verdicts(models: Sequence[Measured]) -> Iterator[Verdict]:
    """What the records say to each finding, for each model that it is about.

    Only those of subject-verb agreement, as in the paper; ALTI-Logit of masked models is not the paper's.
    """
    for finding in FINDINGS:
        for model in models:
            if _is_about(finding, model) and model.benchmark is KINDS["subject-verb"]:
                named = [p for p in finding.pairs if not (model.kind == "masked" and "alti-logit" in p)]
                sides = [(p, model.method(p.ahead), model.method(p.behind)) for p in named]
                found = [(p, difference(a, b, p.metric)) for p, a, b in sides if a is not None and b is not None]
                found = [(p, d) for p, d in found if len(d)]
                if found:
                    ends = intervals([d for _, d in found])
                    pairs = tuple((p, interval) for (p, _), interval in zip(found, ends, strict=True))
                    methods = dict.fromkeys(method for p in named for method in (p.ahead, p.behind))
                    wanting = tuple(method for method in methods if model.method(method) is None)
                    yield Verdict(finding, model.label, pairs, _verdict(ends, of=len(named)), wanting)


def _is_about(finding: Finding, model: Measured) -> bool:
    """A finding about both kinds of causal models is also about one whose MLPs are not known."""
    return model.kind in finding.kinds or (model.kind == "causal" and {"gated", "plain"} <= set(finding.kinds))


def _verdict(found: Sequence[Interval], of: int) -> str:
    """Of so many differences those are ``found``."""
    if any(interval.high < 0 for interval in found):
        return FAILS
    return HOLDS if len(found) == of and all(interval.low > 0 for interval in found) else OPEN
