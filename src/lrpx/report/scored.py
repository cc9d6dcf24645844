"""Records of one model as numbers: the means of each method with their intervals, and shares by the roles of tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..benchmark.folder import ROLES
from ..errors import import_optional
from ..evaluation.metrics import Interval, bootstrap
from ..evaluation.records import MEASURES, METRICS

logger = logging.getLogger("lrpx")


@dataclass(frozen=True)
class Scored:
    """One method on one model.

    Attributes:
        samples: How many correctly predicted samples it explained.
        failed: How many of all samples it did not.
        scores: Metric -> mean with interval (of the paper, or of few samples: the mean alone).
        roles: Role -> mean over samples of the share of positive and of negative relevance in all absolute relevance;
            empty if not known.
        measures: Measure of faithfulness -> mean with interval, those that were asked for.
    """

    samples: int
    failed: int
    scores: dict[str, Interval]
    roles: dict[str, tuple[float, float]]
    measures: dict[str, Interval] = field(default_factory=dict)


def metrics_of(k: int) -> tuple[str, ...]:
    """The names of the metrics, PGk first."""
    return (f"pg{k}", *METRICS[1:])


def failed_samples(table: Any) -> list[int]:
    """Which samples a method could not explain, by its records."""
    pc = import_optional("pyarrow.compute", "A report")
    return list(table.filter(pc.is_valid(table.column("error"))).column("sample_id").to_pylist())


def scored_methods(tables: dict[str, Any], k: int) -> dict[str, Scored]:
    """Means and intervals; methods that explained the same samples are resampled together."""
    pc = import_optional("pyarrow.compute", "A report")
    explained = {
        name: table.filter(pc.and_(pc.fill_null(table.column("correct"), False), pc.is_null(table.column("error"))))
        for name, table in tables.items()
    }
    together: dict[bytes, list[str]] = {}
    for name, table in explained.items():
        if len(table):
            together.setdefault(table.column("sample_id").to_numpy().tobytes(), []).append(name)
        else:
            logger.warning("%s: no correctly predicted sample was explained", name)
    found = {}
    for names in together.values():
        values = np.column_stack([column for n in names for column in _metrics(explained[n], k)])
        intervals = np.array(bootstrap(values)).reshape(3, len(names), len(METRICS))
        for n, name in enumerate(names):
            found[name] = Scored(
                samples=len(values),
                failed=len(failed_samples(tables[name])),
                scores={m: Interval(*map(float, intervals[:, n, j])) for j, m in enumerate(metrics_of(k))},
                roles=_roles(explained[name]),
                measures=_measures(explained[name]),
            )
    return {name: found[name] for name in tables if name in found}


def _metrics(table: Any, k: int) -> list[np.ndarray]:
    """The four metrics of each record. PGk follows from the reciprocal of the best rank: that is at most k if 1 / it >= 1 / k."""
    mrr = table.column("mrr").to_numpy()
    return [(mrr >= 1.0 / k).astype(np.float64), mrr, *(table.column(name).to_numpy() for name in METRICS[2:])]


def _measures(table: Any) -> dict[str, Interval]:
    """The measures of faithfulness that the records have."""
    known = [name for name in MEASURES if not table.column(name).null_count]
    if not known:
        return {}
    intervals = np.array(bootstrap(np.column_stack([table.column(name).to_numpy() for name in known])))
    return {name: Interval(*map(float, intervals[:, i])) for i, name in enumerate(known)}


def _roles(table: Any) -> dict[str, tuple[float, float]]:
    """Per role the shares of positive and of negative relevance in the sum of absolutes, averaged over samples."""
    relevance = _flat(table.column("relevance")).to_numpy()
    sample, role = _places(table)
    absolute = np.bincount(sample, np.abs(relevance), len(table))
    share = np.abs(relevance) / np.where(absolute > 0, absolute, 1.0)[sample]
    return {
        name: (
            float(share[(role == n) & (relevance > 0)].sum() / len(table)),
            float(share[(role == n) & (relevance < 0)].sum() / len(table)),
        )
        for n, name in enumerate(ROLES)
    }


def shares_of_tokens(table: Any) -> dict[str, float]:
    """Per role its share of the tokens, averaged over samples."""
    sample, role = _places(table)
    share = 1 / lengths_of(table.column("roles"))[sample]
    return {name: float(share[role == n].sum() / len(table)) for n, name in enumerate(ROLES)}


def _places(table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Per token of the concatenated samples: its sample and its role, as numbers."""
    pa, pc = import_optional("pyarrow", "A report"), import_optional("pyarrow.compute", "A report")
    column = table.column("roles")
    role = pc.index_in(_flat(column), pa.array(ROLES)).to_numpy()
    return np.repeat(np.arange(len(table)), lengths_of(column)), role


def _flat(column: Any) -> Any:
    """The elements of a column of lists, end to end."""
    return import_optional("pyarrow.compute", "A report").list_flatten(column).combine_chunks()


def lengths_of(column: Any) -> np.ndarray:
    """How many elements each row of a column of lists has."""
    lengths: np.ndarray = import_optional("pyarrow.compute", "A report").list_value_length(column).to_numpy()
    return lengths
