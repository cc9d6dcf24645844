"""Sentences of a built benchmark to browse: filtered by attractors, by whether a model was wrong, and by a metric.

Which predictions were wrong, and how well a method pointed at the ground truth, is read from the records of ``lrpx
evaluate``, if they are given; nothing is evaluated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..benchmark import TokenizedSample, TokenizedSet, load_benchmark
from ..benchmark.kinds import kind_of, task_and_truth
from ..errors import InputError, check_names, nearest
from ..evaluation.records import METRICS, Run, find_runs
from ..evaluation.selection import tokenized_set
from ..explainer import Explainer
from ..files import sha256
from ..models.provenance import weights_digest
from ..models.signature import task_of
from ..text.tokenization import encode
from .question import Question

PAGE = 20  # samples on a page
LONG = 200  # pieces of a text; of a longer one a part is shown
NEAR = 20  # pieces on each side of what is shown of it
MANY = 3  # as many attractors and more are one group


@dataclass(frozen=True)
class Filter:
    """Which samples are wanted, and in which order.

    Attributes:
        attractors: So many; ``MANY``: and more. ``None``: any number.
        predicted: ``"wrong"`` or ``"correct"``; ``None``: both.
        method, metric: By whose score samples are sorted, lowest first; ``None``: in the order of the source.
        text: Only sentences with this in them.
        page: From 0.
    """

    attractors: int | None = None
    predicted: str | None = None
    method: str | None = None
    metric: str | None = None
    descending: bool = False
    text: str = ""
    page: int = 0


class Samples:
    """The tokenised set that fits a model, with the records of its evaluation if there are any.

    If the benchmark was not tokenised for the model yet, this is done now, as ``lrpx evaluate`` does it.

    Args:
        explainer: Of the model.
        benchmark: The folder of ``lrpx benchmark build``.
        records: The ``--out`` folder of ``lrpx evaluate``, or ``None``.

    Raises:
        InputError: The folders are none of these, or there is nothing for this model in them.
    """

    def __init__(self, explainer: Explainer, benchmark: str | Path, records: str | Path | None = None) -> None:
        if task_of(explainer.model) not in ("causal", "masked"):
            raise InputError(
                f"--benchmark has sentences whose next word, or a masked one, is explained, and {type(explainer.model).__name__} "
                f"is for {task_of(explainer.model)}. Give a causal or masked language model."
            )
        self.tokenizer = explainer.tokenizer
        self.set = tokenized_set(benchmark, None, explainer.model, explainer.tokenizer)
        self.by_id = {sample.sample_id: sample for sample in self.set.samples}
        whole = load_benchmark(benchmark)
        self.truth = kind_of([task_and_truth(whole.manifest)]).truth
        table = whole.samples
        ids, attractors = (table.column(name).to_pylist() for name in ("sample_id", "attractors"))
        self.attractors: dict[int, int | None] = {
            i: None if each is None else len(each) for i, each in zip(ids, attractors, strict=True)
        }
        self.correct: dict[int, bool] = {}
        self.scores: dict[tuple[str, str], dict[int, float]] = {}
        if records is not None:
            self._read(_run_of(explainer, self.set, records))

    def _read(self, run: Run) -> None:
        rows = run.table(["sample_id", "method", "correct", *METRICS]).to_pylist()
        for row in rows:
            if row["correct"] is not None:
                self.correct[row["sample_id"]] = row["correct"]
            for metric in METRICS:
                if row[metric] is not None:
                    self.scores.setdefault((row["method"], metric), {})[row["sample_id"]] = row[metric]

    def about(self) -> dict[str, Any]:
        """What can be browsed, for the page."""
        return {
            "name": self.set.name,
            "count": len(self.set),
            "attractors": any(count is not None for count in self.attractors.values()),
            "records": bool(self.correct),
            "methods": list(dict.fromkeys(method for method, _ in self.scores)),
            "metrics": list(METRICS) if self.scores else [],
        }

    def asked(self, question: Question) -> dict[str, Any]:
        """A sample as arguments of a call: the verb of the sentence, compared with its other number, unless the question has
        a target. Where the model predicted the other number, that is compared with the verb: this is what is scored.

        Raises:
            InputError: There is no such sample.
        """
        sample = self.sample(question.sample)
        own = question.target is None and question.contrast is None
        forms = sample.verb_id, sample.other_id
        predicted = forms[::-1] if self.correct.get(sample.sample_id) is False else forms
        target, contrast = predicted if own else (question.target, question.contrast)
        return {"text": list(sample.input_ids), "position": sample.position, "target": target, "contrast": contrast}

    def sample(self, number: int | None) -> TokenizedSample:
        """The sample of this number.

        Raises:
            InputError: There is none.
        """
        if number not in self.by_id:
            raise InputError(f"sample {number}: the set {self.set.name} has none of this number.")
        return self.by_id[number]

    def find(self, wanted: Filter) -> dict[str, Any]:
        """A page of samples, and how many there are.

        Raises:
            InputError: A filter that needs records, or has no such method or metric.
        """
        found = [sample for sample in self.set.samples if self._fits(sample, wanted)]
        if wanted.metric is not None:
            scores = self._scores(wanted)
            found = [sample for sample in found if sample.sample_id in scores]
            found.sort(key=lambda sample: scores[sample.sample_id], reverse=wanted.descending)
        start = wanted.page * PAGE
        return {
            "count": len(found),
            "page": wanted.page,
            "pages": max(1, -(-len(found) // PAGE)),
            "truth": self.truth,
            "samples": [self.shown(sample, wanted) for sample in found[start : start + PAGE]],
        }

    def _scores(self, wanted: Filter) -> dict[int, float]:
        key = (str(wanted.method), str(wanted.metric))
        if key not in self.scores:
            known = ", ".join(f"{method} {metric}" for method, metric in self.scores) or "none, without --records"
            raise InputError(f"there are no scores of {key[0]} by {key[1]}. There are: {known}.")
        return self.scores[key]

    def _fits(self, sample: TokenizedSample, wanted: Filter) -> bool:
        if wanted.predicted is not None:
            if not self.correct:
                raise InputError(
                    "which predictions were wrong is in the records: start the app with --records RUN, of lrpx evaluate."
                )
            if self.correct.get(sample.sample_id) is not (wanted.predicted == "correct"):
                return False
        if wanted.attractors is not None:
            count = self.attractors.get(sample.sample_id)
            if count is None or min(count, MANY) != wanted.attractors:
                return False
        return wanted.text.lower() in sample.text.lower()

    def shown(self, sample: TokenizedSample, wanted: Filter | None = None) -> dict[str, Any]:
        """A sample for the page: its text in pieces, each with its role."""
        [encoded] = encode(self.tokenizer, list(sample.input_ids))
        score = None
        if wanted and wanted.metric is not None:
            score = self._scores(wanted).get(sample.sample_id)
        return {
            "id": sample.sample_id,
            "pieces": _short([(text, sample.roles[start]) for start, _, text in encoded.units]),
            "truth": list(sample.ground_truth),
            "verb": sample.verb,
            "other": sample.other,
            "attractors": self.attractors.get(sample.sample_id),
            "correct": self.correct.get(sample.sample_id),
            "score": score,
        }


def _short(pieces: list[tuple[str, str]]) -> list[list[str]]:
    """Pieces with their roles; of a long text only those around the ground truth and the attractors, and its end."""
    near = {
        n + d for n, (_, role) in enumerate(pieces) if role in ("subject", "attractor") for d in range(-NEAR, NEAR + 1)
    }
    near |= set(range(len(pieces) - NEAR, len(pieces)))
    shown: list[list[str]] = []
    for n, (text, role) in enumerate(pieces):
        if len(pieces) <= LONG or n in near:
            shown.append([text, role])
        elif not shown or n - 1 in near:
            shown.append([" … ", "other"])
    return shown


def filter_of(data: Any) -> Filter:
    """A filter from JSON.

    Raises:
        InputError: A name or a value that cannot be used.
    """
    if not isinstance(data, Mapping):
        raise InputError("a filter is a JSON object.")
    check_names(data, Filter.__annotations__)
    given = {name: value for name, value in data.items() if value is not None}
    types = {"attractors": int, "page": int, "descending": bool}
    for name, value in given.items():
        if type(value) is not types.get(name, str):
            raise InputError(f"{name} is {str(value)[:40]!r}, expected {types.get(name, str).__name__}.")
    found = Filter(**given)
    if found.predicted not in (None, "wrong", "correct"):
        raise InputError(f"predicted is {found.predicted!r}: give wrong or correct.")
    if found.metric is not None and found.metric not in METRICS:
        raise InputError(f"unknown metric {found.metric!r}. {nearest(found.metric, METRICS)}")
    if found.page < 0:
        raise InputError(f"page {found.page}: pages count from 0.")
    return found


def _run_of(explainer: Explainer, tokenized: TokenizedSet, folder: str | Path) -> Run:
    """The run of this model on this set."""
    weights, samples = weights_digest(explainer.model), sha256(tokenized.path / "samples.parquet")
    for run in find_runs([folder]):
        if run.manifest["model"]["weights"] == weights and run.manifest["benchmark"]["samples"] == samples:
            return run
    raise InputError(f"{folder} has no records of this model on this benchmark. Make them with lrpx evaluate.")
