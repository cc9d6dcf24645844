"""Condensed records -> the page of results, as Markdown. Every figure and every sentence with one is computed from the records.

    lrpx results results --output docs/results.md

Sections: what the figures are from; per model all methods and metrics, with paired tests; per number of attractors; by layer;
the gap between LRP and AttnLRP on gated models; which findings of the paper hold.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..evaluation.condensed import TOPS, find_condensed
from ..evaluation.metrics import Interval
from ..files import check_output, write_text
from .findings import FAILS, FINDINGS, HOLDS, OPEN, verdicts
from .gap import STEPS, gaps, lost_to, tops, without_first
from .measured import ROUNDING, Columns, Measured, common, difference, measured, metrics, values_of
from .paired import compared, intervals
from .results import NAMES, method_label

LEVEL = 0.05  # of the tests
KINDS = {
    "masked": "masked",
    "gated": "causal, with gated MLPs",
    "plain": "causal, without gated MLPs",
    "causal": "causal",
}
Row = Sequence[str]


def write_results(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> None:
    """What ``lrpx results`` does: check the records in or below ``paths``, and write the page.

    Raises:
        InputError: Records do not hold or do not go together, or ``output`` cannot be written.
    """
    path = Path(output)
    if path.suffix.lower() not in ("", ".md", ".markdown"):
        raise InputError(f"--output {path}: the page is Markdown. Give a name that ends in .md.")
    check_output(path, "--output")
    write_text(path, results_page(paths, in_docs=(path.absolute().parent / "evaluate.md").is_file()))


def results_page(paths: Sequence[str | os.PathLike[str]], *, in_docs: bool = True) -> str:
    """The page.

    Args:
        paths: Of condensed records, or of folders of them.
        in_docs: Whether it is the page of the documentation: about the records that are stored with lrpx, with links.

    Raises:
        InputError: Records do not hold or do not go together.
    """
    models = measured(find_condensed([os.fspath(path) for path in paths]))
    if not any(model.places for model in models):
        raise InputError("no scores: only those of correctly predicted samples count, and these records have none.")
    if not any(model.methods for model in models):
        raise InputError("no records with relevance at the input: --at input of lrpx evaluate is what the tables show.")
    told = [model for model in models if model.methods]
    parts = [_head(in_docs), _sources(models), *map(_methods, told), _attractors(told), _layers(models), _gap(told)]
    return "\n\n".join(part for part in [*parts, _findings(told)] if part) + "\n"


def _head(in_docs: bool) -> str:
    whose = "whose records are stored with lrpx" if in_docs else "whose records were given"
    more = (
        "[evaluate.md](evaluate.md) says what is measured, and how to [hand in records](evaluate.md#records-to-hand-in) of "
        "another model."
        if in_docs
        else "`docs/evaluate.md` of lrpx says what is measured."
    )
    return _prose(
        "# Results",
        f"How well do the methods find the subject, on the models {whose}? This page is made by `lrpx results`; nothing on it "
        f"is written by hand but the words around the numbers. {more}",
        "All scores are means over correctly predicted samples, with bootstrap 95 % intervals over samples: the value, ± half "
        "the width of its interval. Whether one method is ahead of another is tested on the samples that both explain "
        "(randomisation of signs, Holm's correction over all pairs of the model).",
    )


def _sources(models: Sequence[Measured]) -> str:
    head = [
        "model",
        "kind",
        "predicted correctly",
        "dtype",
        "computed on",
        "torch",
        "transformers",
        "lrpx",
        "sentences",
        "subjects by",
    ]
    rows: list[Row] = [head]
    for model in models:
        for facts in dict.fromkeys(_made_with(model)):
            share = f"{model.correct:,} of {model.predicted:,} ({model.correct / model.predicted:.1%})"
            rows.append([model.label, KINDS[model.kind], share, *facts])
    return f"## What the figures are from\n\n{_table(rows)}"


def _made_with(model: Measured) -> Iterator[tuple[str, ...]]:
    for source in model.sources:
        versions, benchmark = source.manifest["versions"], source.manifest["benchmark"]
        card = source.manifest["counts"]["card"] or source.manifest["model"]["device"]
        packages = (str(versions[name]) for name in ("torch", "transformers", "lrpx"))
        dtype = str(source.manifest["model"]["dtype"])
        yield (dtype, _processor(str(card)), *packages, str(benchmark["source"]), str(benchmark["ground_truth"]))


def _processor(card: str) -> str:
    """The name of a GPU as it is; of a processor its kind, said to be one."""
    return f"CPU ({card})" if card in ("x86_64", "AMD64", "aarch64", "arm64") else card


def _methods(model: Measured) -> str:
    """All methods of one model, the best first, each with what it is ahead of."""
    order = _by_mrr(model)
    tests = compared({name: model.methods[name] for name in order}, "mrr")
    head = ["method", "samples", "PG2", "MRR", "RMA", "PTA", "MRR ahead of the next", "p", "not told apart from"]
    rows: list[Row] = [head]
    best = [max(_mean(model.methods[name])[m] for name in order) for m in range(4)]
    for place, name in enumerate(order):
        columns = model.methods[name]
        found = intervals(list(metrics(columns).T))
        cells = [_bold(_pm(interval), interval.mean > high - 1e-9) for interval, high in zip(found, best, strict=True)]
        following = tests.get((name, order[place + 1])) if place + 1 < len(order) else None
        ahead = ["", ""] if following is None else [_pm(following.difference), _p(following.adjusted)]
        alike = [
            method_label(b) for b in order if b != name and (name, b) in tests and tests[name, b].adjusted >= LEVEL
        ]
        rows.append([method_label(name), f"{len(columns['rank']):,}", *cells, *ahead, "; ".join(alike)])
    told = (
        f"{len(order)} methods, by MRR. p: of the difference to the next, corrected; below {LEVEL} they are told apart."
    )
    return f"## {model.label}\n\n{told}\n\n{_table(rows)}"


def _attractors(models: Sequence[Measured]) -> str:
    """MRR per number of attractors, for every method."""
    most = 4
    parts = []
    for model in models:
        if not model.attractors:
            continue
        numbers = sorted({min(n, most) for n in model.attractors.values() if n > 0})
        rows: list[Row] = [["method", *(f"{n}{' or more' * (n == most)}" for n in numbers), "from fewest to most"]]
        for name in _by_mrr(model):
            groups = [model.subset(model.methods[name], n, or_more=n == most)["mrr"] for n in numbers]
            if all(map(len, groups)):
                change = float(groups[-1].mean() - groups[0].mean())
                rows.append([method_label(name), *(_pm(interval) for interval in intervals(groups)), f"{change:+.3f}"])
        if len(rows) > 1:
            parts.append(f"**{model.label}**\n\n{_table(rows)}")
    if not parts:
        return ""
    about = (
        "Attractors are nouns of the other number between subject and verb. The more there are, the longer the text, so chance "
        "falls too: see the row Random. MRR:"
    )
    return "\n\n".join([_prose("## Per number of attractors", about), *parts])


def _layers(models: Sequence[Measured]) -> str:
    """MRR by where relevance is taken, on the samples that are there at every place."""
    parts = []
    for model in models:
        places = sorted(model.places, key=_depth)
        if len(places) < 2:
            continue
        rows: list[Row] = [["method", *(_place(at) for at in places)]]
        names = _told(model, (name for name in NAMES if sum(name in model.places[at] for at in places) > 1))
        for name in names:
            there = [model.places[at].get(name) for at in places]
            ids = common(*(columns for columns in there if columns is not None))
            scores = ([] if columns is None else intervals([values_of(columns, "mrr", ids)]) for columns in there)
            rows.append([method_label(name), *("".join(map(_pm, found)) for found in scores)])
        sizes = {len(common(*(model.places[at][name] for at in places if name in model.places[at]))) for name in names}
        parts.append(f"**{model.label}**, {' or '.join(f'{n:,}' for n in sorted(sizes))} samples\n\n{_table(rows)}")
    if not parts:
        return ""
    about = (
        "The relevance of a token at its word embedding, at the input of the first block (positions added), and at the output "
        "of a block. The deeper, the more of the subject may have moved to other tokens. MRR:"
    )
    return "\n\n".join([_prose("## By layer", about), *parts])


def _depth(at: str) -> tuple[int, str]:
    numbers = [int(part) for part in at.split(".") if part.isdigit()]
    return ({"embedding": -2, "input": -1}.get(at, numbers[0] if numbers else 0), at)


def _place(at: str) -> str:
    """A block's output by the block's number, another module by its name."""
    return f"block {_depth(at)[0] + 1}" if at.rpartition(".")[2].isdigit() else at


def _gap(models: Sequence[Measured]) -> str:
    gated = [model for model in models if model.kind == "gated" and gaps(model)]
    if not gated:
        return ""
    parts = [
        _prose(
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
            share = f"{gap.share.mean:.0%} ({gap.share.low:.0%} to {gap.share.high:.0%})"
            rows.append([gap.metric.upper(), *means, _pm(gap.gate, "+"), _pm(gap.attention, "+"), share])
        mrr = gaps(model)[1]
        told = (
            f"On {model.label}, the rule for gates makes {mrr.share.mean:.0%} of the gap of {mrr.means[2] - mrr.means[0]:.3f} in "
            f"MRR, and the rule for attention the rest."
        )
        if lost := lost_to(model):
            most = max(lost, key=lambda role: lost[role])
            told += (
                f" Where AttnLRP puts the subject first and LRP does not, LRP puts {_ROLES[most]} first in {lost[most]:.0%} of "
                "the samples."
            )
        left_out = [f"{method_label(name)} {_range(*without_first(model.methods[name]))}" for name in STEPS]
        told += f" With the first token left out of the ranking, MRR is {', '.join(left_out)}."
        parts += [f"**{model.label}**\n\n{_table(rows)}", _prose(told)]
        parts.append(_table(_spread(model)))
    parts.append(
        _prose(
            "Top: how often a token of each kind is the most relevant one. Share: mean share of the absolute relevance. The "
            "first token and the explained one (the last, or the mask) may be the subject too, and then count as such."
        )
    )
    return "\n\n".join(parts)


_ROLES = {
    "subject": "the subject",
    "first": "the first token",
    "explained": "the explained token",
    "attractor": "an attractor",
    "special": "a special token",
    "other": "another token",
}
_SHARES = ("subject", "first", "explained", "attractor")


def _spread(model: Measured) -> list[Row]:
    rows: list[Row] = [["method", *(f"top: {role}" for role in TOPS), *(f"share: {name}" for name in _SHARES)]]
    for name in (*STEPS, "alti-logit", "gradient-x-input"):
        if name in model.methods:
            columns = model.methods[name]
            shares = [f"{float(columns[share].mean()):.0%}" for share in _SHARES]
            rows.append([method_label(name), *(f"{share:.0%}" for share in tops(columns).values()), *shares])
    return rows


def _findings(models: Sequence[Measured]) -> str:
    found = list(verdicts(models))
    if not found:
        return ""
    rows: list[Row] = [["finding", "model", "", "the difference that decides"]]
    for verdict in found:
        end = 2 if verdict.holds == FAILS else 1  # high, else low
        pair, interval = min(verdict.differences, key=lambda each: each[1][end])
        what = f"share of the {pair.metric}" if pair.metric in _SHARES else pair.metric.upper()
        told = f"{method_label(pair.ahead)} − {method_label(pair.behind)}, {what}: {_pm(interval, '+')}"
        rows.append([verdict.finding.claim, verdict.model, f"**{verdict.holds}**", told])
    counts = Counter(verdict.holds for verdict in found)
    claims = {v.finding.claim for v in found}
    left = [finding.claim for finding in FINDINGS if finding.claim not in claims]
    lines = [
        "Findings of [Arras et al. (2025)](https://arxiv.org/abs/2502.15886) as comparisons of two methods in one metric. A "
        "finding holds for a model if every difference that it names is above 0 with its whole interval, it does not if one is "
        "below 0 with its whole interval, and else it is open. These are other models and other sentences than the paper's.",
        f"Of {len(found)} checks {counts[HOLDS]} hold, {counts[OPEN]} are open, and {counts[FAILS]} do not hold.",
        *([f"Not checked, for want of such a model or method: {' '.join(left)}"] if left else []),
    ]
    return f"{_prose('## Which findings of the paper hold', *lines)}\n\n{_table(rows)}"


# Words and cells


def _by_mrr(model: Measured) -> list[str]:
    """The methods at the input, the best first; LRP with a uniform gate only where there are gates."""
    return sorted(_told(model, model.methods), key=lambda name: -float(model.methods[name]["mrr"].mean()))


def _told(model: Measured, names: Iterable[str]) -> list[str]:
    same = model.kind == "plain" or (model.kind == "masked" and not _gated(model))
    return [name for name in names if not (same and name == "lrp-uniform-gate")]


def _gated(model: Measured) -> bool:
    pair = [model.methods[name] for name in STEPS[:2] if name in model.methods]
    return len(pair) < 2 or bool(np.abs(difference(pair[0], pair[1], "rma")).mean() > ROUNDING)


def _mean(columns: Columns) -> np.ndarray:
    means: np.ndarray = metrics(columns).mean(axis=0)
    return means


def _pm(interval: Interval, sign: str = "") -> str:
    return f"{interval.mean:{sign}.3f} ± {(interval.high - interval.low) / 2:.3f}"


def _range(low: float, high: float) -> str:
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"between {low:.3f} and {high:.3f}"


def _p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


_NUMBER = re.compile(r"[<−+-]? ?(\d[\d,]*)?(\.\d+)?%?( ± [\d.]+| of \d.*| \(.*\))?")


def _table(rows: Sequence[Row]) -> str:
    """A table whose columns of numbers are aligned to the right, and its texts to the left."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    columns = [[cell.strip("*") for cell in column if cell] for column in zip(*body, strict=True)]
    right = [bool(column) and all(map(_NUMBER.fullmatch, column)) for column in columns]
    lines = [head, ["---:" if numbers else "---" for numbers in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _prose(*paragraphs: str) -> str:
    """Paragraphs wrapped at 120 characters; a heading stays as it is."""
    wrap = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(p if p.startswith("#") else wrap(" ".join(p.split())) for p in paragraphs)
