"""What one run of a block is noted as: the stream before and after it, what its heads wrote, and what was added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from ..recognition.gates import Edge


class Noted(NamedTuple):
    """A tensor of the forward pass, and where in the graph its gradient arrives.

    Attributes:
        state: The tensor.
        version: Of its value, when it was noted.
        edge: Where the gradient arrives; of a branch, at the sum with the stream or with another branch.
        shape: ``[B, H, T, head_dim]``; of a hidden state, ``[B, 1, T, width]``.
        order: Of the dimensions, where they stand in another one.
    """

    state: Tensor
    version: int
    edge: Edge
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the value is still that of when it was noted."""
        return self.state._version == self.version

    def by_head(self, tensor: Tensor) -> Tensor:
        """The value, or a gradient with respect to it, as ``[B, H, T, head_dim]``."""
        return (tensor.permute(self.order) if self.order else tensor).reshape(self.shape)

    def as_noted(self, by_head: Tensor) -> Tensor:
        """The inverse of ``by_head``."""
        if not self.order:
            return by_head.reshape(self.state.shape)
        permuted = by_head.reshape([self.state.shape[i] for i in self.order])
        return permuted.permute([self.order.index(i) for i in range(len(self.order))]).contiguous()


class StackTokens(NamedTuple):
    """The tokens that a stack of blocks reads, of B texts or images.

    Attributes:
        rows: B.
        length: T, padding included; 0: how many tokens an image has is seen when a block runs.
        stack: Which of the model's stacks it is, from 0.
        before: How many tokens of other stacks come before these, in a row of all.
        after: How many come after them.
    """

    rows: int
    length: int
    stack: int = 0
    before: int = 0
    after: int = 0


def tokens_of(shapes: Sequence[tuple[int, int]]) -> list[StackTokens]:
    """Of each stack, by its shape ``[B, T]``."""
    lengths = [length for _, length in shapes]
    return [StackTokens(*shape, n, sum(lengths[:n]), sum(lengths[n + 1 :])) for n, shape in enumerate(shapes)]


@dataclass
class Block:
    """One run of a block.

    Attributes:
        entered, left: The stream before and after it.
        heads: What the heads of each of its attentions wrote.
        attention, mlp: What they added to the stream.
        added: How many branches were added to the stream.
        odd: The stream, as it was before, was added to itself.
        followed: The stream was followed from its beginning to its end.
        of: The tokens that it reads.
        attends: It made attention weights, or called fused attention.
        kind: The class of its module.
        left_out: The classes of the modules that ran beside the model's blocks, and were none.
    """

    of: StackTokens
    kind: type[nn.Module]
    left_out: set[type[nn.Module]]
    entered: Noted
    left: Noted | None = None
    heads: list[Noted] = field(default_factory=list)
    attention: list[Noted] = field(default_factory=list)
    mlp: list[Noted] = field(default_factory=list)
    added: int = 0
    odd: bool = False
    followed: bool = False
    attends: bool = False
