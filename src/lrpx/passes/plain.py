"""What a model says of texts, without gradients: one forward pass per batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..text.batching import Item, Readout, pad
from ..text.grouping import groups_of
from .dispatch import PassRunner
from .scores import read_scores
from .validation import check_model


def scores_of(runner: PassRunner, items: Sequence[Item], readout: Readout, batch_tokens: int) -> list[np.ndarray]:
    """The scores of each item, float64 ``[K]``; of its own tokens only where there is a number per token ``[T, K]``.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
    """
    model = runner.model
    found: dict[int, np.ndarray] = {}
    with lock_of(model), torch.no_grad(), fresh_rotations(model):
        check_model(model, {})
        for group in groups_of(model, items, batch_tokens):
            batch = pad([items[i] for i in group], model, readout=readout)
            scores = read_scores(model, batch, readout).cpu().double().numpy()
            for i, row, span in zip(group, scores, batch.spans, strict=True):
                found[i] = row[span] if row.ndim > 1 else row
    return [found[i] for i in range(len(items))]
