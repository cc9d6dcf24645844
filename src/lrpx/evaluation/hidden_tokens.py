"""Faithfulness of the records of an evaluation: what the value loses when tokens are hidden in the order of their relevance.

The measures are those of ``curves.py``, with mean word embeddings in place of hidden tokens and 20 steps. All texts and methods
of a batch are perturbed together; what several of them hide is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from ..benchmark import TokenizedSample
from ..errors import InputError, NonFiniteError, in_one_line, nearest
from ..methods.baselines import baseline_of
from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import task_of
from ..passes.edits import values_without, width_of
from ..text.batching import Item, pad
from .curves import NAMES, Removals, area_over, removals
from .records import Record

STEPS = 20
_AREAS = NAMES[:3]


def faithfulness_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """The measures asked for, each once, in the order of ``curves.NAMES``; ``"faithfulness"`` stands for all.

    Raises:
        InputError: There is none of that name.
    """
    known = (*NAMES, "faithfulness")
    for name in names:
        if name not in known:
            raise InputError(
                f"metric={name!r} is unknown. {nearest(name, known)} PG2, MRR, RMA and PTA are always there."
            )
    return tuple(name for name in NAMES if name in names or "faithfulness" in names)


class HiddenTokens:
    """Adds measures to records.

    Args:
        model: In eval mode.
        metrics: From ``faithfulness_metrics``, at least one.
    """

    def __init__(self, model: PreTrainedModel, metrics: Sequence[str]) -> None:
        self._model, self._metrics = model, tuple(metrics)
        self._baseline = baseline_of(model, "mean")
        self._masked = task_of(model) == "masked"

    def __call__(self, samples: Sequence[TokenizedSample], records: Sequence[Record]) -> list[Record]:
        """The records of these samples, as many of each, with the measures of those that are explanations.

        A sample for which there are none, since a value is not finite, fails.
        """
        explained = [n for n, record in enumerate(records) if record.error is None]
        found = list(records)
        try:
            measures = self._measures([records[n] for n in explained])
        except (NonFiniteError, RuntimeError, MemoryError) as error:
            if len(samples) > 1:  # find out whose fault it is, in less memory
                half, each = (len(samples) + 1) // 2, len(records) // len(samples)
                parts = ((samples[:half], records[: half * each]), (samples[half:], records[half * each :]))
                return [record for some, theirs in parts for record in self(some, theirs)]
            reason = in_one_line(f"{type(error).__name__}: {error}", 500)
            return [_failed(record, f"faithfulness: {reason}") for record in records]
        for n, values in zip(explained, measures, strict=True):
            found[n] = Record(**{**records[n]._asdict(), **values})
        return found

    def _measures(self, records: Sequence[Record]) -> list[dict[str, float]]:
        """Of each record, those asked for."""
        if not records:
            return []
        curves, shares = (any(name in some for name in self._metrics) for some in (_AREAS, NAMES[3:]))
        texts: dict[tuple[int, int | None], int] = {}
        items: list[Item] = []
        chosen: list[Removals] = []
        of_text: list[int] = []
        for record in records:
            known = record.sample_id, record.predicted_id
            if known not in texts:
                texts[known] = len(items)
                items.append(Item(tuple(record.token_ids), record.position, record.predicted_id, record.other_id))
            of_text.append(texts[known])
            kept = record.position if self._masked else None
            assert record.relevance is not None
            chosen.append(removals(np.asarray(record.relevance), STEPS, kept=kept, curves=curves, shares=shares))
        values = self._values(items, chosen, of_text)
        return [self._of_one(which, some, whole) for which, (some, whole) in zip(chosen, values, strict=True)]

    def _values(
        self, items: Sequence[Item], chosen: Sequence[Removals], of_text: Sequence[int]
    ) -> list[tuple[np.ndarray, float]]:
        """For each explanation, the values of its rows, and of the text as it is."""
        batch = pad(items, self._model)
        width = width_of(batch)
        rows: dict[tuple[int, bytes], int] = {}  # of a text, what is hidden -> its row

        def row_of(text: int, mask: np.ndarray) -> int:
            padded = np.zeros(width, bool)
            padded[: len(mask)] = mask
            return rows.setdefault((text, padded.tobytes()), len(rows))

        whole = [row_of(text, np.zeros(0, bool)) for text in range(len(items))]
        each = [[row_of(text, mask) for mask in some.masks] for text, some in zip(of_text, chosen, strict=True)]
        masks = np.array([np.frombuffer(mask, bool) for _, mask in rows])
        with lock_of(self._model), fresh_rotations(self._model):
            found = values_without(self._model, batch, [text for text, _ in rows], masks, self._baseline)
        return [(found[some], float(found[whole[text]])) for text, some in zip(of_text, each, strict=True)]

    def _of_one(self, chosen: Removals, values: np.ndarray, whole: float) -> dict[str, float]:
        most, least, without, only = chosen.groups(values)
        found = {}
        if len(most):
            areas = area_over(most), area_over(least)
            found = {"area_most": areas[0], "area_least": areas[1], "difference": areas[0] - areas[1]}
        if len(without):
            found |= {"comprehensiveness": float((whole - without).mean()), "sufficiency": float((whole - only).mean())}
        return {name: found[name] for name in self._metrics}


def _failed(record: Record, reason: str) -> Record:
    """A record of an explanation that could not be measured; one that failed before keeps its reason."""
    if record.error is not None:
        return record
    return record._replace(
        relevance=None, value=None, residual=None, pg2=None, mrr=None, rma=None, pta=None, error=reason
    )
