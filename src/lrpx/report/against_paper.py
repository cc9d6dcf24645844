"""Our figures beside the paper's: where they differ, and by how many standard errors.

The standard error is that of our mean: the standard deviation of 1,000 bootstrap means over samples. The paper prints figures
without one, and to three digits. Where sentences and models are the paper's, both figures are of the same samples, so a
difference of more than about two standard errors is a difference of the set-up or of the method, not chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..evaluation.condensed import Condensed
from ..evaluation.metrics import FEWEST
from ..evaluation.records import METRICS, Run
from .measured import Measured, measured
from .paired import resamples
from .paper import PaperModel
from .results import method_label
from .set_up import differences


class Beside(NamedTuple):
    """One figure."""

    model: str
    method: str
    metric: str
    ours: float
    error: float
    paper: float

    @property
    def errors(self) -> float:
        """The difference in standard errors; infinite or NaN if there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.divide(self.ours - self.paper, self.error))


class EvaluatedModel(NamedTuple):
    """One model of the paper, evaluated: where it was loaded from, the run, and its condensed records."""

    paper: PaperModel
    place: str
    run: Run
    records: Condensed

    @property
    def differences(self) -> list[str]:
        """In what the model that was loaded has another size than the paper's."""
        own = self.run.manifest["model"]
        found = [
            f"{own[name]} {told} (paper: {getattr(self.paper, name)})"
            for name, told in (("layers", "layers"), ("width", "wide"))
            if own.get(name) not in (None, getattr(self.paper, name))
        ]
        count, theirs = own.get("parameters"), parameter_count(self.paper)
        if count is not None and not 0.7 < count / theirs < 1.4:  # the paper says 1B of 1.24 billion
            found.append(f"{count:,} parameters (paper: {self.paper.parameters})")
        return found


def parameter_count(model: PaperModel) -> int:
    """How many, from ``"110M"`` or ``"1.5B"``."""
    return int(float(model.parameters[:-1]) * {"M": 10**6, "B": 10**9}[model.parameters[-1]])


def standard_error(values: np.ndarray) -> float:
    """The standard deviation of the bootstrap means of ``values [N]``; NaN of too few."""
    if len(values) < FEWEST:
        return float("nan")
    return float((resamples(len(values)) @ values.astype(np.float64) / len(values)).std())


def beside(model: PaperModel, records: Condensed) -> list[Beside]:
    """Accuracy of the predictions, and every metric of every method of the paper that the records have."""
    (own,) = measured([records])
    correct = records.samples.column("correct").to_numpy(zero_copy_only=False).astype(np.float64)
    found = [Beside(model.name, "", "accuracy", float(correct.mean()), standard_error(correct), model.accuracy)]
    for method, figures in model.scores.items():
        found += _of_method(model.name, own, method, figures)
    return found


def _of_method(name: str, own: Measured, method: str, figures: Sequence[float]) -> Iterator[Beside]:
    columns = own.method(method)
    if columns is None:
        return
    for metric, paper in zip(METRICS, figures, strict=True):
        values = columns[metric]
        yield Beside(name, method, metric, float(values.mean()), standard_error(values), paper)


def comparison(models: Sequence[EvaluatedModel], missing: dict[str, str]) -> str:
    """The comparison as Markdown: a table per model, and what speaks against comparing."""
    parts = [
        "# The figures of the paper, and ours",
        "SE: standard error of our mean, by bootstrap over samples. The paper prints none for its figures.",
    ]
    for done in models:
        model, place, run, records = done
        rows = beside(model, records)
        far = sum(abs(row.errors) > 2 for row in rows)
        told = f"{far} of {len(rows)} figures differ by more than two standard errors."
        notes = differences([run], len(records.samples))
        card = records.manifest["counts"]["card"]
        parts += [f"## {model.name}"]
        if other := done.differences:
            parts += [
                f"**This is another model than the paper's {model.name}: {'; '.join(other)}. Its figures cannot be compared "
                "with the paper's.**"
            ]
        about = f"Loaded from `{place}`, computed on {card}."
        parts += [f"{about} {told} {' '.join(notes)}".strip(), _table(rows)]
    parts += [f"## {name}\n\nNot evaluated: {reason}" for name, reason in missing.items()]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Beside]) -> str:
    lines = ["| figure | ours | SE | paper | difference | in SE |", "|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        name = f"{method_label(row.method)}, {row.metric.upper()}" if row.method else "Accuracy of the predictions"
        apart = f"{round(row.errors, 1) + 0.0:+.1f}" if np.isfinite(row.errors) else "–"
        difference = round(row.ours - row.paper, 3) + 0.0  # not -0.0
        error = f"{row.error:.3f}" if np.isfinite(row.error) else "–"
        numbers = f"{row.ours:.3f} | {error} | {row.paper:.3f} | {difference:+.3f} | {apart}"
        lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)
