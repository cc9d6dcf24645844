"""Condensed records -> what was measured, model by model and place by place, as arrays over correctly predicted samples.

1. Folders of one model (name, weights, dtype, rules for layers with weights) become one ``Measured``. A sample has to be the
   same in all of them, and a method stands once at each place.
2. Only correctly predicted samples count, as in the paper. Methods may have been run on different samples: two of them are
   compared on those that both explain.
3. What kind of model it is follows from the records: masked, or gated if ``lrp`` and ``lrp-uniform-gate`` differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..benchmark.kinds import Kind, kind_in_records
from ..errors import InputError
from ..evaluation.condensed import Condensed
from ..evaluation.records import METRICS
from .results import NORMS

Columns = dict[str, np.ndarray]
ROUNDING = 1e-3  # mean difference of RMA that rounding may make


@dataclass(frozen=True, eq=False)
class Measured:
    """One model.

    Attributes:
        label: Its name, unique in the page.
        facts: The model's part of the manifests.
        kind: ``"masked"``, ``"gated"`` or ``"plain"`` (causal, without a gated MLP), or ``"causal"`` if that is not known.
        attractors: ``sample_id`` -> number of attractors, for the samples where the source says it.
        predicted: How many samples were predicted.
        correct: How many of them correctly.
        places: Where relevance is taken -> recorded name of a method -> its columns (``Condensed.of``), of correctly
            predicted samples.
        sources: The folders.
    """

    label: str
    facts: dict[str, Any]
    kind: str
    attractors: dict[int, int]
    predicted: int
    correct: int
    places: dict[str, dict[str, Columns]]
    sources: tuple[Condensed, ...]

    @property
    def benchmark(self) -> Kind:
        """How to speak of what it was evaluated on."""
        return benchmark_of([self])

    @property
    def methods(self) -> dict[str, Columns]:
        """The methods at the input."""
        return self.places.get("input", {})

    def method(self, name: str) -> Columns | None:
        """A method at the input; ``gradient`` is the norm with the better average of the four metrics."""
        norms = [self.methods[norm] for norm in NORMS if norm in self.methods]
        if name == "gradient" and norms:
            return max(norms, key=lambda columns: float(metrics(columns).mean()))
        return self.methods.get(name)

    def subset(self, columns: Columns, number: int, *, or_more: bool = False) -> Columns:
        """The rows of samples with so many attractors."""
        own = np.array([self.attractors.get(int(i), -1) for i in columns["sample_id"]])
        keep = own >= number if or_more else own == number
        return {name: values[keep] for name, values in columns.items()}


def benchmark_of(models: Sequence[Measured]) -> Kind:
    """How to speak of what all of them were evaluated on."""
    return kind_in_records(source.manifest for model in models for source in model.sources)


def measured(found: Sequence[Condensed]) -> list[Measured]:
    """One per model, in the order of the folders.

    Raises:
        InputError: Two folders have the same method of one model at the same place, or another sample of the same number.
    """
    groups: dict[tuple[Any, ...], list[Condensed]] = {}
    for one in found:
        model, rules = one.manifest["model"], one.manifest["options"].get("rules")
        groups.setdefault((model["name"], model["weights"], model["dtype"], rules), []).append(one)
    names = [key[0] for key in groups]
    return [_measured(_label(key, names), group) for key, group in groups.items()]


def _label(key: tuple[Any, ...], names: Sequence[str]) -> str:
    """The model's name, with what tells it apart from another one of the same name."""
    name, weights, dtype, rules = key
    told = [str(dtype), *([str(rules)] if rules else []), str(weights)[:8]]
    return str(name) if names.count(name) == 1 else f"{name} ({', '.join(told)})"


def _measured(label: str, group: Sequence[Condensed]) -> Measured:
    digests: dict[int, str] = {}
    correct: dict[int, bool] = {}
    attractors: dict[int, int] = {}
    places: dict[str, dict[str, Columns]] = {}
    whose: dict[tuple[str, str], Condensed] = {}
    for one in group:
        names = ("sample_id", "digest", "correct", "attractors")
        rows = list(zip(*(one.samples.column(name).to_pylist() for name in names), strict=True))
        for sample, digest, right, count in rows:
            if digests.setdefault(sample, digest) != digest:
                raise InputError(f"{one.path}: sample {sample} is not that of {group[0].path}: the benchmarks differ.")
            correct.setdefault(sample, right)
            if count is not None:
                attractors[sample] = count
        right_ones = np.array([sample for sample, _, right, _ in rows if right])
        at = one.manifest["options"]["at"]
        for method in one.manifest["methods"]:
            if (at, method) in whose:
                raise InputError(
                    f"{one.path} and {whose[at, method].path} both have {method} of {label} at {at}. Give one of them."
                )
            whose[at, method] = one
            columns = one.of(method)
            keep = np.isin(columns["sample_id"], right_ones)
            if keep.any():
                own = {name: values[keep] for name, values in columns.items()}
                places.setdefault(at, {})[method] = own
    facts = group[0].manifest["model"]
    kind = _kind(group[0].manifest["benchmark"]["input"], places)
    return Measured(label, facts, kind, attractors, len(correct), sum(correct.values()), places, tuple(group))


def _kind(input: str, places: dict[str, dict[str, Columns]]) -> str:
    if input == "masked":
        return "masked"
    pairs = [(at["lrp"], at["lrp-uniform-gate"]) for at in places.values() if {"lrp", "lrp-uniform-gate"} <= at.keys()]
    if not pairs:
        return "causal"
    return "gated" if any(np.abs(difference(*pair, "rma")).mean() > ROUNDING for pair in pairs) else "plain"


def common(*methods: Columns) -> np.ndarray:
    """The numbers of the samples that all of them explain, sorted."""
    ids = methods[0]["sample_id"]
    for columns in methods[1:]:
        ids = np.intersect1d(ids, columns["sample_id"])
    return ids


def values_of(columns: Columns, name: str, ids: np.ndarray) -> np.ndarray:
    """A column for the samples ``ids``, in their order."""
    return columns[name][np.searchsorted(columns["sample_id"], ids)]


def difference(one: Columns, other: Columns, name: str) -> np.ndarray:
    """``one - other`` of a column, for the samples that both explain."""
    ids = common(one, other)
    found: np.ndarray = values_of(one, name, ids).astype(np.float64) - values_of(other, name, ids)
    return found


def metrics(columns: Columns) -> np.ndarray:
    """The four metrics ``[N, 4]``."""
    return np.column_stack([columns[name] for name in METRICS])
