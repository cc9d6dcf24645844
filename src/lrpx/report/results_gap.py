"""The section of the page of results about the gap between LRP and AttnLRP on gated models, of ``gap``."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.condensed import TOPS
from .gap import STEPS, gaps, lost_to, tops, without_first
from .measured import Measured, benchmark_of
from .results import method_label
from .results_cells import Row, pm, prose, range_of, table_of


def gap_section(models: Sequence[Measured]) -> str:
    """The section, or nothing where no model has a gap."""
    gated = [model for model in models if model.kind == "gated" and gaps(model)]
    if not gated:
        return ""
    parts = [
        prose(
            "## The gap between LRP and AttnLRP on gated models",
            "The two differ in two rules: LRP treats gates of MLPs as constants, and attention weights too. `lrp-uniform-gate` "
            "differs from LRP in the first only, and from AttnLRP in the second only, so it divides the gap.",
        )
    ]
    for model in gated:
        rows: list[Row] = [
            ["", *map(method_label, STEPS), "by the rule for gates", "by the rule for attention", "share of gates"]
        ]
        for gap in gaps(model):
            means = [f"{mean:.3f}" for mean in gap.means]
            share = f"{gap.share.mean:.0%} ({gap.share.low:.0%} to {gap.share.high:.0%})" if gap.share.known else "–"
            rows.append([gap.metric.upper(), *means, pm(gap.gate, "+"), pm(gap.attention, "+"), share])
        mrr, truth = gaps(model)[1], model.benchmark.truth
        told = ""
        if mrr.share.known:
            told = (
                f"On {model.label}, the rule for gates makes {mrr.share.mean:.0%} of the gap of "
                f"{mrr.means[2] - mrr.means[0]:.3f} in MRR, and the rule for attention the rest."
            )
        if lost := lost_to(model):
            most = max(lost, key=lambda role: lost[role])
            told += (
                f" Where AttnLRP puts the {truth} first and LRP does not, LRP puts {_role(most, truth)} first in "
                f"{lost[most]:.0%} of the samples."
            )
        left_out = [f"{method_label(name)} {range_of(*without_first(model.methods[name]))}" for name in STEPS]
        told += f" With the first token left out of the ranking, MRR is {', '.join(left_out)}."
        parts += [f"**{model.label}**\n\n{table_of(rows)}", prose(told)]
        parts.append(table_of(_spread(model)))
    parts.append(
        prose(
            "Top: how often a token of each kind is the most relevant one. Share: mean share of the absolute relevance. The "
            f"first token and the explained one (the last, or the mask) may be the {benchmark_of(gated).truth} too, and then "
            "count as such."
        )
    )
    return "\n\n".join(parts)


def _role(name: str, truth: str) -> str:
    return f"the {truth}" if name == "subject" else _ROLES[name]


_ROLES = {
    "first": "the first token",
    "explained": "the explained token",
    "attractor": "an attractor",
    "special": "a special token",
    "other": "another token",
}
SHARES = ("subject", "first", "explained", "attractor")


def _spread(model: Measured) -> list[Row]:
    called = model.benchmark.role
    rows: list[Row] = [
        ["method", *(f"top: {called(role)}" for role in TOPS), *(f"share: {called(name)}" for name in SHARES)]
    ]
    for name in (*STEPS, "alti-logit", "gradient-x-input"):
        if name in model.methods:
            columns = model.methods[name]
            shares = [f"{float(columns[share].mean()):.0%}" for share in SHARES]
            rows.append([method_label(name), *(f"{share:.0%}" for share in tops(columns).values()), *shares])
    return rows
