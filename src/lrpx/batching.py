"""Items of different lengths -> padded batches with little waste, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Item:
    """One prediction to explain, as token ids."""

    token_ids: tuple[int, ...]
    position: int  # index into token_ids, not negative
    target: int | None  # token id; None: the model's top prediction
    contrast: int | None  # token id; None: the single logit is explained
    extras: dict[str, Any] = field(default_factory=dict)  # per-token model inputs, e.g. token_type_ids


@dataclass(frozen=True)
class Batch:
    """Padded items as tensors, on the model's device.

    Attributes:
        inputs: Keyword arguments for the model: ``input_ids`` and ``attention_mask`` ``[B, T]``, and more if needed.
        spans: Per item, the slice of its real tokens in the padded row.
        positions: ``[B]`` index of the explained position in the padded row.
        targets: ``[B]`` token ids, -1 where the top prediction is asked for.
        contrasts: ``[B]`` token ids, -1 where the single logit is explained.
    """

    inputs: dict[str, Tensor]
    spans: list[slice]
    positions: Tensor
    targets: Tensor
    contrasts: Tensor


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What a method returns for one item: its real tokens only (padding is cut off), float64 arrays.

    The fields are those of ``Explanation``; ``target`` is the token id that was explained.
    """

    relevance: np.ndarray
    value: float
    residual: float | None
    target: int
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    by_layer: np.ndarray | None = None
    by_head: np.ndarray | None = None
    components: dict[str, Any] = field(default_factory=dict)


def pad(items: Sequence[Item], model: torch.nn.Module, *, side: str = "right") -> Batch:
    """Pad ``items`` to one length, on ``side``, so that every item is computed as if it were alone."""
    raise NotImplementedError


def buckets(lengths: Sequence[int], *, max_tokens: int, waste: float = 0.1) -> Iterator[list[int]]:
    """Group indices so that a padded group has at most ``max_tokens`` tokens and little padding; longest first."""
    raise NotImplementedError
