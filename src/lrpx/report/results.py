"""Records -> numbers: what every table and chart of a report shows.

Per model and method, over the correctly predicted samples: the mean of each metric with a bootstrap 95 % interval, and
how the relevance is spread over the roles of tokens. Per model: prediction accuracy over all samples, and what random
relevance scores. Runs of one model on the same samples, in the same dtype, with relevance taken at the same place and the
same rules, become one ``Result``, so methods can be added by another run.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..benchmark.kinds import Kind, kind_in_records
from ..errors import InputError, import_optional
from ..evaluation.metrics import Interval, bootstrap, random_baseline
from ..evaluation.records import METRICS, Run
from ..methods import METHODS, SIGNED
from ..results.explanation import Measures
from .paper import MODELS, PaperModel, twin
from .scored import Scored, failed_samples, lengths_of, metrics_of, scored_methods, shares_of_tokens
from .set_up import choices, differences

logger = logging.getLogger("lrpx")

NORMS = ("gradient-l1", "gradient-l2")
NAMES = {
    "alti-logit": "ALTI-Logit",
    "lrp": "LRP",
    "lrp-uniform-gate": "LRP, uniform gate",
    "attnlrp": "AttnLRP",
    "gradient": "Gradient",
    "gradient-l1": "Gradient, L1",
    "gradient-l2": "Gradient, squared L2",
    "gradient-x-input": "Gradient×Input",
    "alti": "ALTI",
    "attention-rollout": "Attention rollout",
    "integrated-gradients": "Integrated gradients",
    "smoothgrad": "SmoothGrad",
    "occlusion": "Occlusion",
    "leave-one-out": "Leave-one-out",
    "lime": "LIME",
    "kernel-shap": "Kernel SHAP",
    "random": "Random",
}
CHANCE = "Chance"  # the rows of ``Result.random``; Random is a method


@dataclass(frozen=True)
class Result:
    """One model on one selection of samples, or one model of the paper.

    Attributes:
        label: Its name, unique in the report.
        of_paper: Whether these are the paper's numbers.
        facts: ``parameters``, ``layers``, ``heads``, ``width``, ``vocabulary``, ``tokenizer``.
        samples: How many samples were predicted (the paper: the size of its set).
        correct: How many of them correctly (the paper: not told).
        failed: How many samples some method could not explain.
        accuracy: Share of correct predictions with interval.
        methods: Recorded name of a method -> its scores; of the paper ``gradient`` is one of them.
        random: Metric -> mean and standard deviation over the seeds.
        token_roles: Role -> mean over samples of its share of the tokens; empty if not known.
        notes: What a reader must know, in sentences.
        runs: The runs it comes from.
        k: Of the pointing game PGk.
        source: Checksum of the sentences that the samples come from; empty if not known.
        sample_ids: Rows of the source that were predicted; empty if not known.
    """

    label: str
    of_paper: bool
    facts: dict[str, Any]
    samples: int
    correct: int | None
    failed: int
    accuracy: Interval
    methods: dict[str, Scored]
    random: dict[str, tuple[float, float]]
    token_roles: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    k: int = 2
    source: str = ""
    sample_ids: frozenset[int] = frozenset()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics, in the order of the paper: ``pg2`` (or another k), ``mrr``, ``rma``, ``pta``."""
        return metrics_of(self.k)

    @property
    def norm(self) -> str | None:
        """The better norm of the gradient, by the average over the metrics; ``None`` where there are no two to choose from."""
        found = [name for name in NORMS if name in self.methods]
        return max(found, key=lambda name: sum(i.mean for i in self.methods[name].scores.values()), default=None)

    def is_extension(self, method: str) -> bool:
        """Whether the method is known under that name, but not for such a model: ALTI-Logit of a masked one is our own."""
        masked = any(run.manifest["benchmark"]["input"] == "masked" for run in self.runs)
        return method == "alti-logit" and masked

    def reported(self, method: str) -> Scored | None:
        """The scores under a name of ``methods_in``: ``gradient`` is the better of its two norms."""
        return self.methods.get(self.norm if method == "gradient" and self.norm else method)


def methods_in(results: Sequence[Result]) -> list[str]:
    """The methods to report: the paper's in its order, then all others."""
    found = {"gradient" if name in NORMS else name for result in results for name in result.methods}
    known = [name for name in NAMES if name in found]
    return known + sorted(found - set(known))


def notes(results: Sequence[Result]) -> list[str]:
    """What a reader must know, each with the result that it is about."""
    return [f"{r.label}: {note}" for r in results for note in r.notes]


def kind_in(results: Sequence[Result]) -> Kind:
    """The kind of benchmark that the results are of, which says what predicted word and ground truth are called."""
    return kind_in_records(run.manifest for result in results for run in result.runs)


def method_label(method: str) -> str:
    """The name of a method in a table."""
    return NAMES.get(method, method)


def measures_of(method: str, result: Result) -> Measures:
    """What a recorded method measures, as ``Explanation.measures``.

    Of a method of one's own that is not registered in this process, the runs say it. Those of an older lrpx do not, nor do
    files of relevance: then it is ``"parts"``.
    """
    known = METHODS.get("gradient" if method in NORMS else method)
    if known is not None:
        return known.measures
    entries = (run.manifest.get("own_methods", {}).get(method, {}) for run in result.runs)
    return next((entry["measures"] for entry in entries if "measures" in entry), "parts")


def without_sign(methods: Sequence[str], results: Sequence[Result], consequence: str) -> str:
    """A sentence about those of the recorded methods whose relevance is never negative, and what follows; empty without any."""
    names = [method_label(m) for m in methods if any(measures_of(m, r) not in SIGNED for r in results)]
    return f" {' and '.join(names)} {'has' if len(names) == 1 else 'have'} no sign: {consequence}." if names else ""


def results_of(runs: Sequence[Run], *, compare_paper: bool = False, k: int = 2) -> list[Result]:
    """One result per model and selection of samples, in the order of the runs.

    Args:
        runs: From ``records.find_runs``.
        compare_paper: Put the paper's numbers after a model that is one of its six, and its other models last. The notes
            of one's own say in what their set-up differs.
        k: Of the pointing game PGk.

    Raises:
        InputError: A run has no records yet, or ``k`` is no number of tokens.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"k={k!r}: PGk looks at a whole number of tokens, 1 or more.")
    groups: dict[tuple[str | None, ...], list[Run]] = {}
    for run in runs:
        model, benchmark, plan = (run.manifest[part] for part in ("model", "benchmark", "plan"))
        options = run.manifest["options"]
        facts = (model["name"], model["weights"], model["dtype"], benchmark["samples"], plan["selection"])
        groups.setdefault((*facts, options["at"], options.get("rules")), []).append(run)
    results = [_result(group, k, compare_paper) for group in groups.values()]
    for place in (lambda run: run.path.name, lambda run: str(run.path)):
        shared = {label for label, n in Counter(r.label for r in results).items() if n > 1}
        results = [
            replace(r, label=f"{r.runs[0].name} ({place(r.runs[0])})") if r.label in shared else r for r in results
        ]
    if not compare_paper:
        return results
    twins = [twin(r.runs[0].name) for r in results]
    beside = [x for r, t in zip(results, twins, strict=True) for x in (r, *([_of_paper(t, k)] if t else []))]
    return beside + [_of_paper(m, k) for m in MODELS if m not in twins]


def _result(runs: Sequence[Run], k: int, compare_paper: bool) -> Result:
    """Runs of one model on the same samples."""
    tables: dict[str, Any] = {}
    for run in runs:
        table = run.table()
        for method in run.manifest["methods"]:
            if method in tables:
                logger.warning("%s: %s is in an earlier run already, which is used", run.path, method)
                continue
            tables[method] = _rows_of(table, method)
    predicted = _union(list(tables.values()))
    if not len(predicted):
        raise InputError(f"{runs[0].path}: no sample could be explained. The column error of its records says why.")
    correct = predicted.column("correct").to_numpy(zero_copy_only=False).astype(bool)
    truths = [np.asarray(g) for g in predicted.column("ground_truth").to_pylist()]
    lengths = lengths_of(predicted.column("roles"))
    baseline = random_baseline(truths, lengths, k=k)
    failures = {i for table in tables.values() for i in failed_samples(table)}
    return Result(
        label=runs[0].name,
        of_paper=False,
        facts=runs[0].manifest["model"],
        samples=len(predicted),
        source=str(runs[0].manifest["benchmark"]["source"]),
        sample_ids=frozenset(predicted.column("sample_id").to_pylist()),
        correct=int(correct.sum()),
        failed=len(failures),
        accuracy=bootstrap(correct.astype(np.float64)),
        methods=scored_methods(tables, k),
        random={name: (baseline.mean[name], baseline.std[name]) for name in metrics_of(k)},
        token_roles=shares_of_tokens(predicted.filter(correct)) if correct.any() else {},
        notes=(*_notes(runs, tables), *(differences(runs, len(predicted)) if compare_paper else choices(runs))),
        runs=tuple(runs),
        k=k,
    )


def _rows_of(table: Any, method: str) -> Any:
    """The records of one method, by sample."""
    pc = import_optional("pyarrow.compute", "A report")
    return table.filter(pc.equal(table.column("method"), method)).sort_by("sample_id")


def _union(tables: Sequence[Any]) -> Any:
    """One record of each sample whose prediction is known, from any of the methods."""
    pa, pc = import_optional("pyarrow", "A report"), import_optional("pyarrow.compute", "A report")
    known = pa.concat_tables([t.filter(pc.is_valid(t.column("correct"))) for t in tables]).sort_by("sample_id")
    ids = known.column("sample_id").to_numpy()
    first = np.ones(len(ids), dtype=bool)
    first[1:] = ids[1:] != ids[:-1]
    return known.filter(first)


def _notes(runs: Sequence[Run], tables: dict[str, Any]) -> list[str]:
    """Sentences about what is missing."""
    notes = []
    for run in runs:
        parts = run.manifest["plan"]["parts"]
        if not run.finished:
            notes.append(
                f"The run {run.path.name} is not finished: {len(run.parts)} of {parts} parts. Long sentences come first, so "
                "its numbers are not those of the whole set."
            )
    for method, table in tables.items():
        if failed := failed_samples(table):
            notes.append(
                f"{method_label(method)} failed on {len(failed)} of {len(table)} samples, which it is not scored on."
            )
    return notes


def _of_paper(model: PaperModel, k: int) -> Result:
    """The paper's numbers; its pointing game is PG2, so that another PGk is not known."""

    def exact(value: float) -> Interval:
        return Interval(value, math.nan, math.nan)

    means, deviations = model.random

    def named(values: Sequence[Any]) -> dict[str, Any]:
        return {name: value for name, value in zip(METRICS, values, strict=True) if name in metrics_of(k)}

    return Result(
        label=f"{model.name} (paper)",
        of_paper=True,
        facts={
            name: getattr(model, name) for name in ("parameters", "layers", "heads", "width", "vocabulary", "tokenizer")
        },
        samples=model.samples,
        correct=None,
        failed=0,
        accuracy=exact(model.accuracy),
        methods={name: Scored(0, 0, named([*map(exact, values)]), {}) for name, values in model.scores.items()},
        random=named([*zip(means, deviations, strict=True)]),
        k=k,
    )
