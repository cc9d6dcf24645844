"""The attention weights of a running model, whatever attention code it uses.

``AttentionTap`` watches the torch functions that a model calls between ``open`` and ``take``, through a
``torch.overrides.TorchFunctionMode``, and changes none. It knows the two ways in which attention is written:

1. fused, ``F.scaled_dot_product_attention(q, k, v, ...)``: it keeps what went in (after rotary embeddings, query and key
   norms, repeated key/value heads); ``ObservedAttention.weights`` recomputes any rows of the weights from that.
2. spelled out, ``softmax``, ..., ``matmul(weights, v)``: the first operand of the product is the weights themselves,
   with soft caps, sinks, ALiBi and windows already in them.

Kernels that are no torch functions (flash-attention, flex-attention) are not seen; ``take`` then returns ``None``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}


@dataclass(frozen=True, kw_only=True)
class ObservedAttention:
    """One attention: B items, H heads, T positions that look at T positions; G groups of heads share their values.

    Attributes:
        value: ``[B, G, T, dv]``.
        probabilities: ``[B, H, T, T]`` if they are known, else ``None`` and the rest is set.
        query: ``[B, H, T, dk]``.
        key: ``[B, G, T, dk]``.
        mask: Added to the scores, broadcasts to ``[B, H, T, T]``; ``None`` for 0.
        scale: Factor of the scores.
        triangle: Whether position i sees all of 0 ... i and nothing else.
    """

    value: Tensor
    probabilities: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    scale: float = 1.0
    triangle: bool = False

    @functools.cached_property
    def form(self) -> tuple[Any, ...]:
        """What calls must agree in to be stacked: the shape, type and device of every tensor, and the numbers."""
        tensors = (self.value, self.probabilities, self.query, self.key, self.mask)
        return self.scale, self.triangle, *((x.shape, x.dtype, x.device) if x is not None else None for x in tensors)

    @classmethod
    def stack(cls, calls: Sequence[ObservedAttention]) -> ObservedAttention:
        """L calls of one ``form`` as one of L * B items; a single one as it is, without a copy."""
        first = calls[0]
        if len(calls) == 1:
            return first
        names = [name for name in ("value", "probabilities", "query", "key") if getattr(first, name) is not None]
        fields: dict[str, Any] = {name: concatenated([getattr(call, name) for call in calls]) for name in names}
        masks = [call.mask for call in calls if call.mask is not None]
        if masks and not (len(masks[0]) == 1 and all(mask is masks[0] for mask in masks)):  # not one for all
            fields["mask"] = concatenated([mask.expand(len(first.value), -1, -1, -1) for mask in masks])
        return replace(first, **fields)

    def weights(self, rows: slice | Tensor) -> Tensor:
        """Attention weights of some positions, in at least float32; 0 in a row that sees nothing.

        Args:
            rows: A slice of the T positions, or ``[B]``: one position per item.

        Returns:
            ``[B, H, R, T]``; R = 1 for one position per item.
        """
        batch, _, length, _ = self.value.shape
        if self.probabilities is not None:
            return wide(_rows(self.probabilities, rows, batch))
        assert self.query is not None
        assert self.key is not None
        query = wide(_rows(self.query, rows, batch))
        heads, count = query.shape[1:3]
        key = wide(repeat_heads(self.key, heads)).transpose(-1, -2)
        if self.mask is None:
            scores = (query @ key) * self.scale  # [B, H, R, T]
        else:
            mask = _rows(self.mask, rows, batch).to(query.dtype).expand(batch, heads, count, length)
            query, key, mask = (x.reshape(batch * heads, *x.shape[2:]) for x in (query, key, mask))
            scores = torch.baddbmm(mask, query, key, alpha=self.scale).view(batch, heads, count, length)
        weights = torch.softmax(scores, dim=-1)
        # A padded query may see nothing: -inf everywhere.
        return weights if self.mask is None or self.triangle else weights.nan_to_num_(nan=0.0)


def repeat_heads(groups: Tensor, heads: int) -> Tensor:
    """``[B, G, ...]`` -> ``[B, H, ...]``: each group serves H / G heads in a row."""
    return groups if groups.shape[1] == heads else groups.repeat_interleave(heads // groups.shape[1], dim=1)


def wide(tensor: Tensor) -> Tensor:
    """``tensor`` in at least float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """``tensors`` one after another in the first dimension; a single one as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _rows(tensor: Tensor, rows: slice | Tensor, batch: int) -> Tensor:
    """The wanted entries of the second last dimension; a size of 1 there stands for all."""
    if tensor.shape[-2] == 1:
        return tensor
    if isinstance(rows, slice):
        return tensor[..., rows, :]
    items = torch.arange(batch, device=tensor.device)
    return tensor.expand(batch, -1, -1, -1)[items, :, rows.to(tensor.device)].unsqueeze(2)


class _AttentionMode(TorchFunctionMode):
    """Hands every attention-like torch function to ``note``, and calls it as it is."""

    def __init__(self, note: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()
        self._note = note
        self._softmaxed = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` unchanged; note a fused attention, or the first product after a softmax."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention or (self._softmaxed and func in _PRODUCT):
            self._softmaxed = False
            self._note(func, args, kwargs)
        elif func in _SOFTMAX:
            self._softmaxed = True
        return func(*args, **kwargs)


class AttentionTap:
    """Notes the attention calls between ``open`` and ``take``; as a context manager, stops watching in any case."""

    def __init__(self) -> None:
        self._watch: _AttentionMode | None = None
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}  # id -> a boolean mask and the same to be added
        self._triangles: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def __enter__(self) -> AttentionTap:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def open(self) -> None:
        """Forget what was noted and start watching."""
        self._close()
        self._calls = []
        self._watch = _AttentionMode(lambda *call: self._calls.append(call))
        self._watch.__enter__()

    def take(self, batch: int, length: int, width: int) -> ObservedAttention | None:
        """Stop watching; the one call noted since ``open``, or ``None`` if there was none, several, or an unknown form.

        Args:
            batch: Number of items B.
            length: Number of positions T.
            width: Size of the output of all heads, H * dv.
        """
        self._close()
        calls, self._calls = self._calls, []
        if len(calls) != 1:
            return None
        func, args, kwargs = calls[0]
        if func is F.scaled_dot_product_attention:
            return self._fused(args, kwargs, length, width)
        return None if len(args) != 2 else _spelled_out(*args, batch, length, width)

    def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)

    def _fused(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], length: int, width: int
    ) -> ObservedAttention | None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
        if length == 1:
            # transformers packs the heads of a group into the rows of a single query, mask included; one key needs none.
            query, mask = query.reshape(query.shape[0], -1, 1, query.shape[-1]), None
        heads, size = query.shape[1], value.shape[-1]
        if query.shape[2] != length or value.shape[2] != length or heads * size != width or heads % value.shape[1]:
            return None
        scale, causal = given.get("scale"), bool(given.get("is_causal", False))
        added = None if mask is None else self._added(mask, query.dtype)
        if causal:
            triangle = self._triangle(length, query)
            added = triangle if added is None else added + triangle
        return ObservedAttention(
            value=value,
            query=query,
            key=key,
            mask=added,
            scale=1.0 / math.sqrt(query.shape[-1]) if scale is None else scale,
            triangle=causal and mask is None,
        )

    def _added(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """A mask as a term of the scores, 4 dimensions. All layers share a few masks, so each is turned only once."""
        if mask.dtype == torch.bool:
            if id(mask) not in self._masks:
                added = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
                self._masks[id(mask)] = (mask, added)  # holding the mask keeps its id from being used again
            mask = self._masks[id(mask)][1]
        return mask.reshape((1,) * (4 - mask.dim()) + mask.shape)

    def _triangle(self, length: int, like: Tensor) -> Tensor:
        """``[1, 1, T, T]``: 0 on and below the diagonal, -inf above."""
        place = (length, like.device, like.dtype)
        if place not in self._triangles:
            full = torch.full((1, 1, length, length), -torch.inf, dtype=like.dtype, device=like.device)
            self._triangles[place] = full.triu_(1)
        return self._triangles[place]


def _spelled_out(weights: Tensor, value: Tensor, batch: int, length: int, width: int) -> ObservedAttention | None:
    """From ``matmul(weights, value)``; some families (BLOOM) fold the heads into the batch."""
    if weights.shape[-2:] != (length, length) or value.shape[-2] != length:
        return None
    weights = weights.reshape(batch, -1, length, length)
    value = value.reshape(batch, -1, length, value.shape[-1])
    heads = weights.shape[1]
    if heads * value.shape[-1] != width or heads % value.shape[1]:
        return None
    return ObservedAttention(value=value, probabilities=weights)
