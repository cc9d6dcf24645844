"""Gradients at changed inputs, added up: what integrated gradients and SmoothGrad do with texts and with images alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..passes.attribution import Pass, run
from ..passes.dispatch import PassRunner
from ..passes.edits import at_once, decided, selected_items
from ..text.batching import Attribution, Batch

GradientAt = Callable[[Batch, np.ndarray, np.ndarray], Tensor]  # a part's batch, its items, its points -> [R, ...]


def as_given(
    model: PreTrainedModel, batch: Batch, at: Sequence[str], runner: PassRunner | None
) -> tuple[Pass, Batch, PassRunner]:
    """The pass of the inputs as they are, the batch with the targets that it found, and a runner for changed ones.

    That one captures and compiles nothing: such a pass would not run the hooks that change embeddings, and numbers of images
    differ among passes, so that each would be compiled anew.
    """
    given = PassRunner(model) if runner is None else runner
    own = PassRunner(model, replace(given.execution, fast=False, compile=False))
    plain = run(model, batch, {}, at, runner=own)
    return plain, decided(batch, plain.targets), own


def over_points(batch: Batch, shares: np.ndarray, gradient_at: GradientAt) -> Tensor:
    """The gradients at the points of each item, added up with the points' shares, float64 ``[B, ...]``."""
    count, points = len(batch.spans), len(shares)
    items, numbers = np.repeat(np.arange(count), points), np.tile(np.arange(points), count)
    total: Tensor | None = None
    for part in at_once(batch, count * points):
        gradient = gradient_at(selected_items(batch, items[part].tolist()), items[part], numbers[part]).double()
        share = torch.from_numpy(shares[numbers[part]]).to(gradient).view(-1, *[1] * (gradient.ndim - 1))
        total = gradient.new_zeros(count, *gradient.shape[1:]) if total is None else total
        total.index_add_(0, torch.from_numpy(items[part]).to(gradient.device), gradient * share)
    assert total is not None
    return total


def with_baseline(found: Sequence[Attribution], starts: Iterable[float]) -> list[Attribution]:
    """Each with the value at its baseline as a component, and what is missing to completeness as its residual."""
    return [
        replace(one, residual=one.value - start - float(one.relevance.sum()), components={"baseline": float(start)})
        for one, start in zip(found, starts, strict=True)
    ]
