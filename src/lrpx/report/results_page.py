"""Condensed records -> the page of results, as Markdown. Every figure and every sentence with one is computed from the records.

    lrpx results results --output docs/results.md

Sections: what the figures are from; per model all methods and metrics, with paired tests; per number of attractors; by layer;
the gap between LRP and AttnLRP on gated models; which findings of the paper hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..benchmark.kinds import KINDS as BENCHMARKS
from ..errors import InputError
from ..evaluation.condensed import find_condensed
from ..evaluation.metrics import FEWEST, Interval
from ..files import check_output, write_text
from .findings import FAILS, FINDINGS, HOLDS, OPEN, verdicts
from .gap import STEPS
from .measured import ROUNDING, Columns, Measured, benchmark_of, common, difference, measured, metrics, values_of
from .paired import compared, intervals
from .results import NAMES, method_label
from .results_cells import Row, bold, p_value, pm, prose, table_of
from .results_gap import SHARES, gap_section

LEVEL = 0.05  # of the tests
SUBJECT_VERB = BENCHMARKS["subject-verb"]
KINDS = {
    "masked": "masked",
    "gated": "causal, with gated MLPs",
    "plain": "causal, without gated MLPs",
    "causal": "causal",
}
GATE_UNKNOWN = (
    "findings about Llama-like models and about GPT-2 are not checked, since the records do not say whether the MLPs are gated. "
    "Evaluate lrp-uniform-gate too: it differs from lrp where they are."
)


def write_results(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> None:
    """What ``lrpx results`` does: check the records in or below ``paths``, and write the page.

    Raises:
        InputError: Records do not hold or do not go together, or ``output`` cannot be written.
    """
    path = Path(output)
    if path.suffix.lower() not in ("", ".md", ".markdown"):
        raise InputError(f"output={str(path)!r}: the page is Markdown. Give a name that ends in .md.")
    check_output(path, "output")
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
    parts = [
        _head(models, in_docs),
        _sources(models),
        *map(_methods, told),
        _attractors(told),
        _layers(models),
        gap_section(told),
    ]
    return "\n\n".join(part for part in [*parts, _findings(told)] if part) + "\n"


def _head(models: Sequence[Measured], in_docs: bool) -> str:
    whose = "whose records are stored with lrpx" if in_docs else "whose records were given"
    more = (
        "[evaluate.md](evaluate.md) says what is measured, and how to [hand in records](evaluate.md#records-to-hand-in) of "
        "another model."
        if in_docs
        else "`docs/evaluate.md` of lrpx says what is measured."
    )
    return prose(
        "# Results",
        f"How well do the methods find the {benchmark_of(models).truth}, on the models {whose}? This page is made by `lrpx "
        f"results`; nothing on it is written by hand but the words around the numbers. {more}",
        "All scores are means over correctly predicted samples, with bootstrap 95 % intervals over samples: the value, ± half "
        f"the width of its interval; of fewer than {FEWEST} samples there is no interval, and no best. Whether one method is "
        "ahead of another is tested on the samples that both explain (randomisation of signs, Holm's correction over all pairs "
        "of the model).",
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
        "subjects by" if benchmark_of(models) is SUBJECT_VERB else "ground truth",
    ]
    rows: list[Row] = [head]
    for model in models:
        for facts in dict.fromkeys(_made_with(model)):
            share = f"{model.correct:,} of {model.predicted:,} ({model.correct / model.predicted:.1%})"
            rows.append([model.label, KINDS[model.kind], share, *facts])
    return f"## What the figures are from\n\n{table_of(rows)}"


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
    enough = [name for name in order if len(model.methods[name]["rank"]) >= FEWEST]
    best = [max((_mean(model.methods[name])[m] for name in enough), default=np.inf) for m in range(4)]
    for place, name in enumerate(order):
        columns = model.methods[name]
        found = intervals(list(metrics(columns).T))
        cells = [
            bold(pm(interval), interval.known and interval.mean > high - 1e-9)
            for interval, high in zip(found, best, strict=True)
        ]
        following = tests.get((name, order[place + 1])) if place + 1 < len(order) else None
        ahead = ["", ""] if following is None else [pm(following.difference), p_value(following.adjusted)]
        alike = [
            method_label(b) for b in order if b != name and (name, b) in tests and tests[name, b].adjusted >= LEVEL
        ]
        rows.append([method_label(name), f"{len(columns['rank']):,}", *cells, *ahead, "; ".join(alike)])
    told = (
        f"{len(order)} methods, by MRR. p: of the difference to the next, corrected; below {LEVEL} they are told apart."
    )
    return f"## {model.label}\n\n{told}\n\n{table_of(rows)}"


def _attractors(models: Sequence[Measured]) -> str:
    """MRR per number of attractors, for every method."""
    most = 4
    told, parts = [], []
    for model in models:
        numbers = sorted({min(n, most) for n in model.attractors.values() if n > 0})
        if len(numbers) < 2:
            continue
        rows: list[Row] = [["method", *(f"{n}{' or more' * (n == most)}" for n in numbers), "from fewest to most"]]
        for name in _by_mrr(model):
            groups = [model.subset(model.methods[name], n, or_more=n == most)["mrr"] for n in numbers]
            if all(map(len, groups)):
                change = float(groups[-1].mean() - groups[0].mean())
                rows.append([method_label(name), *(pm(interval) for interval in intervals(groups)), f"{change:+.3f}"])
        if len(rows) > 1:
            told.append(model)
            parts.append(f"**{model.label}**\n\n{table_of(rows)}")
    if not parts:
        return ""
    chance = ": see the row Random" * any("random" in model.methods for model in told)
    attractors = benchmark_of(told).attractors
    about = f"Attractors are {attractors}. The more there are, the longer the text, so chance falls too{chance}. MRR:"
    return "\n\n".join([prose("## Per number of attractors", about), *parts])


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
            rows.append([method_label(name), *("".join(map(pm, found)) for found in scores)])
        sizes = {len(common(*(model.places[at][name] for at in places if name in model.places[at]))) for name in names}
        parts.append(f"**{model.label}**, {' or '.join(f'{n:,}' for n in sorted(sizes))} samples\n\n{table_of(rows)}")
    if not parts:
        return ""
    about = (
        "The relevance of a token at its word embedding, at the input of the first block (positions added), and at the output "
        f"of a block. The deeper, the more of the {benchmark_of(models).truth} may have moved to other tokens. MRR:"
    )
    return "\n\n".join([prose("## By layer", about), *parts])


def _depth(at: str) -> tuple[int, str]:
    numbers = [int(part) for part in at.split(".") if part.isdigit()]
    return ({"embedding": -2, "input": -1}.get(at, numbers[0] if numbers else 0), at)


def _place(at: str) -> str:
    """A block's output by the block's number, another module by its name."""
    return f"block {_depth(at)[0] + 1}" if at.rpartition(".")[2].isdigit() else at


def _findings(models: Sequence[Measured]) -> str:
    found = list(verdicts(models))
    if not found:
        return ""
    rows: list[Row] = [["finding", "model", "", "the difference that decides"]]
    for verdict in found:
        pair, interval = min(verdict.differences, key=lambda each: _deciding(each[1], verdict.holds))
        what = f"share of the {pair.metric}" if pair.metric in SHARES else pair.metric.upper()
        told = f"{method_label(pair.ahead)} − {method_label(pair.behind)}, {what}: {pm(interval, '+')}"
        if verdict.holds == OPEN and verdict.wanting:
            told = f"not evaluated: {', '.join(map(method_label, verdict.wanting))}"
        rows.append([verdict.finding.claim, verdict.model, f"**{verdict.holds}**", told])
    counts = Counter(verdict.holds for verdict in found)
    claims = {v.finding.claim for v in found}
    left = [finding.claim for finding in FINDINGS if finding.claim not in claims]
    unknown = [model.label for model in models if model.kind == "causal"]
    lines = [
        "Findings of [Arras et al. (2025)](https://arxiv.org/abs/2502.15886) as comparisons of two methods in one metric. A "
        "finding holds for a model if every difference that it names is above 0 with its whole interval, it does not if one is "
        "below 0 with its whole interval, and else it is open, also if a method was not evaluated. "
        "These are other models and other sentences than the paper's.",
        f"Of {len(found)} checks {counts[HOLDS]} hold, {counts[OPEN]} are open, and {counts[FAILS]} do not hold.",
        *([f"Not checked, for want of such a model or method: {' '.join(left)}"] if left else []),
        *([f"{' and '.join(unknown)}: {GATE_UNKNOWN}"] if unknown else []),
    ]
    return f"{prose('## Which findings of the paper hold', *lines)}\n\n{table_of(rows)}"


def _deciding(interval: Interval, holds: str) -> float:
    """The end that decides; without an interval a finding is open, unless another difference lets it fail."""
    if not interval.known:
        return np.inf if holds == FAILS else -np.inf
    return float(interval.high if holds == FAILS else interval.low)


# The methods of a model


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
