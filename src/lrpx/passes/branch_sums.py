"""Relevance of heads, attentions, MLPs and blocks: state times gradient of what ``branches.py`` noted, summed over the width.

Of short texts, launching an operation costs more than the operation, so tensors of one shape are stacked and multiplied
together. The sums of a pass are the rows of one tensor ``[K, B, T]``, and ``Rows`` says which is what.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn.functional import pad

from .._torch_internals import no_function_modes
from ..models.modules import modules_of
from ..recognition.gates import Edge
from ..recognition.mixers import known_mixers
from .blocks import Block, Noted

logger = logging.getLogger("lrpx")

STACKED = 1 << 18  # numbers in all, up to which tensors are stacked


@dataclass(frozen=True)
class Rows:
    """What the K rows are: all heads, block by block; then each block's attention; each one's MLP; what each added in all.

    Attributes:
        blocks: L.
        heads: How many heads each block has; ``()``: not known.
        branches: Attention and MLP are known.
        layers: What each block added is known.
    """

    blocks: int = 0
    heads: tuple[int, ...] = ()
    branches: bool = False
    layers: bool = False

    @property
    def count(self) -> int:
        """K."""
        return sum(self.heads) + self.blocks * (2 * self.branches + self.layers)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """``[K, T]`` as ``by_head`` ``[L, H, T]``, ``by_attention``, ``by_mlp`` and ``by_layer`` ``[L, T]``, as far as known."""
        several = self.blocks * self.branches
        heads, attention, mlp, layers = cut(numbers, sum(self.heads), several, several)
        found = {}
        if self.heads:  # blocks with fewer heads than others get rows of zeros
            found["by_head"] = np.zeros((self.blocks, max(self.heads), numbers.shape[1]))
            found["by_head"][np.arange(max(self.heads)) < np.array(self.heads)[:, None]] = heads
        if self.branches:
            found |= {"by_attention": attention, "by_mlp": mlp}
        return found | ({"by_layer": layers} if self.layers else {})


NOTHING = Rows()


def cut(numbers: np.ndarray, *sizes: int) -> list[np.ndarray]:
    """Parts of these sizes along the first dimension, and what remains; ``np.split`` takes ten times as long."""
    ends = [0, *accumulate(sizes)]
    return [*(numbers[start:end] for start, end in pairwise(ends)), numbers[ends[-1] :]]


def rows_of(model: torch.nn.Module, blocks: Sequence[Block]) -> Rows:
    """What is known of all blocks of a pass; what is known of some of them only is left out."""
    name = type(model).__name__
    with no_function_modes():
        layers = bool(blocks) and all(block.followed and _hold(_ends(block)) for block in blocks)
        both = all(block.heads and block.attention and block.mlp for block in blocks)
        third = bool(known_mixers(modules_of(model)))  # a scan beside the attention would count as MLP
        branches = layers and both and not third and all(_hold((*b.attention, *b.mlp)) for b in blocks)
        written = all(_hold(block.heads) and bool(block.heads) >= block.attends for block in blocks)
    heads = tuple(sum(noted.shape[1] for noted in block.heads) for block in blocks) if written else ()
    if not layers:
        logger.debug("%s: what its blocks add to the residual stream was not found", name)
    elif not branches:
        logger.debug("%s: not all of its blocks add an attention and an MLP alone, so these are not told apart", name)
    if not any(heads):
        logger.debug("%s: what its heads write was not found", name)
    return Rows(len(blocks), heads if any(heads) else (), branches, layers)


def edges_to(blocks: Sequence[Block], rows: Rows) -> dict[Edge, GradientEdge]:
    """Where gradients are needed, for ``torch.autograd.grad``, each once."""
    return {other.edge: GradientEdge(*other.edge) for _, other in _pairs(blocks, rows)}


def rows_inside(model: torch.nn.Module, blocks: Sequence[Block], lengths: Sequence[int]) -> Rows:
    """What is known of all blocks of a pass, whose stacks read so many tokens each."""
    seen = {block.of.stack for block in blocks} == set(range(len(lengths)))
    fits = seen and all(block.of.length == lengths[block.of.stack] for block in blocks)
    whole = all(block.kind not in block.left_out for block in blocks)
    return rows_of(model, blocks) if fits and whole else NOTHING


def sums_of(
    blocks: Sequence[Block], rows: Rows, gradients: Mapping[Edge, Tensor | None], like: Tensor, at_once: int | None
) -> Tensor:
    """The rows ``[K, B, T]``, on the device and in the dtype of ``like``.

    Args:
        blocks: Of the pass.
        rows: What is known of them.
        gradients: At the edges.
        at_once: How many numbers are multiplied at once; ``None``: all of one shape.
    """
    pairs = _pairs(blocks, rows)
    found = dict(zip(((id(a), id(b)) for a, b in pairs), _products(pairs, gradients, like, at_once), strict=True))

    def total(block: Block, noted: Sequence[Noted]) -> Tensor:
        each = [found[id(n), id(n)][:, 0] for n in noted]
        return among_all(block, each[0] if len(each) == 1 else torch.stack(each).sum(0))

    def at_the_end(state: str) -> Tensor:
        each = [(block, found[id(getattr(block, state)), id(block.left)][:, 0]) for block in blocks]
        return torch.stack([among_all(*one) for one in each])

    parts = []
    if rows.heads:
        parts += [among_all(block, found[id(n), id(n)]).transpose(0, 1) for block in blocks for n in block.heads]
    if rows.branches:
        parts += [torch.stack([total(block, block.attention) for block in blocks])]
        parts += [torch.stack([total(block, block.mlp) for block in blocks])]
    if rows.layers:
        parts += [at_the_end("left") - at_the_end("entered")]
    return torch.cat(parts)


def among_all(block: Block, of_tokens: Tensor) -> Tensor:
    """``[..., T]`` of the tokens that a block reads, with zeros for those of the model's other stacks."""
    before, after = block.of.before, block.of.after
    return pad(of_tokens, (before, after)) if before or after else of_tokens


def _products(
    pairs: Sequence[tuple[Noted, Noted]], gradients: Mapping[Edge, Tensor | None], like: Tensor, at_once: int | None
) -> list[Tensor]:
    """Value times gradient summed over the last dimension, of each pair ``[B, H, T]``, or ``[B, 1, T]`` of a hidden state."""
    groups: dict[Any, list[int]] = {}
    values = []
    for i, (noted, other) in enumerate(pairs):
        gradient, state = gradients[other.edge], noted.by_head(noted.state.detach())
        there = state.new_zeros(()).expand_as(state) if gradient is None else other.by_head(gradient)
        values.append((state, there.to(state.device)))  # a block of a divided model may be entered from another device
        alike = str(state.shape), state.dtype, state.device  # as text: sizes may be symbols, which have no hash
        groups.setdefault(alike, []).append(i)
    found: dict[int, Tensor] = {}
    for members in groups.values():
        step = len(members) if at_once is None else max(1, STACKED // max(1, values[members[0]][0].numel()))
        for start in range(0, len(members), step):
            some = members[start : start + step]
            states, slopes = (_stack([values[i][k] for i in some]) for k in (0, 1))
            found.update(zip(some, _dot(states, slopes, at_once).to(like).unbind(0), strict=True))
    return [found[i] for i in range(len(pairs))]


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)) if len(tensors) > 1 else tensors[0].unsqueeze(0)


def _dot(states: Tensor, gradients: Tensor, at_once: int | None) -> Tensor:
    """Sums over the last dimension, in float32 at least, and in steps of so many numbers."""
    wide = torch.promote_types(states.dtype, torch.float32)
    rows = states.shape[-2] if at_once is None else max(1, at_once // max(1, states[..., :1, :].numel()))
    if rows >= states.shape[-2]:
        return (states.to(wide) * gradients.to(wide)).sum(-1)
    pairs = zip(states.split(rows, -2), gradients.split(rows, -2), strict=True)
    return torch.cat([(s.to(wide) * g.to(wide)).sum(-1) for s, g in pairs], -1)


def _pairs(blocks: Sequence[Block], rows: Rows) -> list[tuple[Noted, Noted]]:
    """Whose value is multiplied by whose gradient."""
    found = []
    for block in blocks:
        of_itself = [*(block.heads if rows.heads else ()), *((*block.attention, *block.mlp) if rows.branches else ())]
        found += [(noted, noted) for noted in of_itself]
        if rows.layers:
            found += [(end, block.left) for end in _ends(block)]
    return found


def _ends(block: Block) -> list[Noted]:
    """The stream before and after the block, if it was seen there."""
    return [block.entered, *([] if block.left is None else [block.left])]


def _hold(several: Iterable[Noted]) -> bool:
    return all(noted.holds for noted in several)
