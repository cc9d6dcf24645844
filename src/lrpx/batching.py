"""Items of different lengths -> padded batches with little waste, and back.

An item in a batch gets the relevance it would get alone: padding is masked, positions count from the first real token,
and every item's value has its own gradient because the values of a batch are summed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .devices import entry_device


@dataclass(frozen=True)
class Item:
    """One prediction to explain, as token ids."""

    token_ids: tuple[int, ...]
    position: int  # index into token_ids, not negative
    target: int | None = None  # token id; None: the model's top prediction
    contrast: int | None = None  # token id; None: the single logit is explained
    extras: dict[str, tuple[int, ...]] = field(default_factory=dict)  # per-token model inputs, e.g. token_type_ids


@dataclass(frozen=True)
class Batch:
    """Padded items as tensors, on the device of the model's embedding.

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

    def outside_inference_mode(self) -> Batch:
        """The same batch with tensors that autograd may keep, also if it was made inside ``torch.inference_mode()``."""

        def usable(tensor: Tensor) -> Tensor:
            return tensor.clone() if tensor.is_inference() else tensor

        inputs = {name: usable(tensor) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.spans, usable(self.positions), usable(self.targets), usable(self.contrasts))


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


def pad(items: Sequence[Item], model: PreTrainedModel, *, side: str = "right") -> Batch:
    """Pad ``items`` to one length on ``side`` (``"right"`` or ``"left"``).

    Padding goes to the right by default, where it moves no position. On the left the model is told the positions, if its
    ``forward`` takes ``position_ids`` and it does not find them in the ids itself.
    """
    width = max(len(item.token_ids) for item in items)
    device = entry_device(model)
    starts = [width - len(item.token_ids) if side == "left" else 0 for item in items]
    spans = [slice(s, s + len(item.token_ids)) for s, item in zip(starts, items, strict=True)]
    config = model.config.get_text_config()
    filler = getattr(config, "pad_token_id", None)
    filler = 0 if filler is None or filler < 0 else filler

    def padded(rows: list[Sequence[int]], fill: int) -> Tensor:
        table = torch.full((len(items), width), fill, dtype=torch.long)
        for row, span, values in zip(table, spans, rows, strict=True):
            row[span] = torch.tensor(values, dtype=torch.long)
        return table.to(device)

    inputs = {"input_ids": padded([item.token_ids for item in items], filler)}
    inputs["attention_mask"] = padded([[1] * len(item.token_ids) for item in items], 0)
    for name in items[0].extras:
        inputs[name] = padded([item.extras[name] for item in items], 0)
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if side == "left" and takes_positions and not counts_from_padding(model):
        inputs["position_ids"] = padded([range(len(item.token_ids)) for item in items], 0)

    def column(values: list[int | None]) -> Tensor:
        return torch.tensor([-1 if v is None else v for v in values], device=device)

    return Batch(
        inputs=inputs,
        spans=spans,
        positions=column([s + item.position for s, item in zip(starts, items, strict=True)]),
        targets=column([item.target for item in items]),
        contrasts=column([item.contrast for item in items]),
    )


def counts_from_padding(model: PreTrainedModel) -> bool:
    """Whether the model numbers its positions from ``pad_token_id + 1``, padding skipped, as RoBERTa does."""
    return any(
        "position" in name and isinstance(module, torch.nn.Embedding) and module.padding_idx is not None
        for name, module in model.named_modules()
    )


# Convolutions, Fourier transforms, pooling and landmarks reach across positions, whatever the attention mask says.
_LEAKS_PADDING = frozenset({"convbert", "fnet", "funnel", "longformer", "mobilebert", "nystromformer"})


def allowed_waste(model: PreTrainedModel) -> float:
    """How much of a batch may be padding: a tenth, or nothing where padding would change what the model predicts."""
    return 0.0 if model.config.model_type in _LEAKS_PADDING else 0.1


def buckets(lengths: Sequence[int], *, max_tokens: int, waste: float = 0.1) -> list[list[int]]:
    """Group indices so that little of a padded group is padding; longest first, so that memory runs out early or never.

    Args:
        lengths: Number of tokens of each item.
        max_tokens: A padded group has at most this many tokens (an item longer than that is alone).
        waste: At most this share of a group's tokens is padding.
    """
    groups: list[list[int]] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        group = groups[-1] if groups else []
        padded = (len(group) + 1) * (lengths[group[0]] if group else lengths[i])
        if group and padded <= max_tokens and padded - (real + lengths[i]) <= waste * padded:
            group.append(i)
            real += lengths[i]
        else:
            groups.append([i])
            real = lengths[i]
    return groups
