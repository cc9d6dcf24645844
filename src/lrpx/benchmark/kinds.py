"""The kinds of benchmark, and what predicted word, ground truth and attractors are called in each.

All have the same files and columns, whose names are those of the first kind: ``verb`` is the predicted word, ``subject``
the word that decides it. What people read says what these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

VALUE_TRUTH = "the value in the needle"  # the name of that ground truth, in manifests


class Kind(NamedTuple):
    """How to speak of a benchmark."""

    title: str  # of its card
    word: str  # what a model predicts
    predicted: str  # the same, as one of two
    other: str  # what the second of the two is
    truth: str  # what decides it
    attractors: str
    idea: str  # one sentence

    def role(self, name: str) -> str:
        """What people read for a role of tokens: ``subject`` is the ground truth, whatever that is here."""
        return self.truth if name == "subject" else name


KINDS = {
    "subject-verb": Kind(
        title="Subject-verb agreement with ground truth for attributions",
        word="verb",
        predicted="verb form",
        other="form",
        truth="subject",
        attractors="nouns of the other number between subject and verb",
        idea="Which verb form a language model predicts is decided by the subject.",
    ),
    "blimp": Kind(
        title="Agreement in BLiMP with ground truth for attributions",
        word="word",
        predicted="word form",
        other="form",
        truth="deciding word",
        attractors="nouns of the other number between subject and verb",
        idea="Which form of a word a language model predicts is decided by the word that it agrees with.",
    ),
    "haystack": Kind(
        title="A key in a haystack, with ground truth for attributions",
        word="value",
        predicted="value",
        other="value",
        truth="needle",
        attractors="values of the other needles",
        idea="Which value a language model predicts is decided by the sentence of the text that states it.",
    ),
}
_VALUE = KINDS["haystack"]._replace(
    truth="needle value",
    idea="Which value a language model predicts is decided by where a sentence of the text, the needle, states it.",
)
_MIXED = Kind(
    title="Ground truth for attributions",
    word="word",
    predicted="word",
    other="word",
    truth="ground truth",
    attractors="words that could be taken for the ground truth",
    idea="What a language model predicts is decided by a known part of the text.",
)


def kind_of(benchmarks: Iterable[tuple[str | None, str]]) -> Kind:
    """The kind of benchmarks, by task and name of the ground truth: ``task_and_truth``."""
    kinds = {
        _VALUE if (task, truth) == ("haystack", VALUE_TRUTH) else KINDS[task or "subject-verb"]
        for task, truth in benchmarks
    }
    return kinds.pop() if len(kinds) == 1 else _MIXED


def kind_in_records(manifests: Iterable[Mapping[str, Any]]) -> Kind:
    """The kind of the benchmarks that runs are of, by the runs' manifests."""
    benchmarks = [manifest["benchmark"] for manifest in manifests]
    return kind_of([(each.get("task"), each["ground_truth"]) for each in benchmarks] or [(None, "")])


def task_and_truth(manifest: Mapping[str, Any]) -> tuple[str | None, str]:
    """Of a benchmark's manifest: the task (``None``: subject-verb agreement, which does not say) and where the truth is from."""
    return manifest.get("task"), next(iter(manifest["ground_truth"].values()))["name"]
