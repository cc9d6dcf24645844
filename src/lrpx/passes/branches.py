"""What each head wrote, and what attention and MLP of each block added to the residual stream: noted while a model runs.

It shows in the operations, so no name of a module and no family has to be known.

1. A block is a module in one of the model's outermost lists of modules. What enters it is the residual stream.
2. A head wrote what fused attention returned, or the product of attention weights (what came out of a softmax) with values.
3. In ``x + f(x)``, ``x`` is the stream, and goes on as the sum. ``f(x)`` is a branch: the attention if a head is among what it
   was made of, the MLP otherwise. A sum of several branches (attention and MLP in parallel) is taken apart.
4. If a block returns something else than the stream, it has added in another way, and what its branches are is not known.

Relevance is state times gradient, summed over the width, as for tokens; ``branch_sums.py`` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._torch_internals import no_function_modes
from ..propagation.propagate import Propagation
from ..recognition.gates import Edge, edge_of, edges_of
from ..recognition.operations import Operation, operation_of_node
from .attention_weights import CONTRACTION, KEEPS_WEIGHTS, SOFTMAX, are_weights, mark, order_in_einsum
from .blocks import Block, Noted, StackTokens, tokens_of
from .checkpointing import Recomputation, outer_blocks
from .hidden_states import items_of

Function = Callable[..., Any]
HeadEdit = Callable[[int, int, Tensor], Tensor]
"""Number of the block, number of its first head here, what these heads wrote ``[B, H, T, head_dim]`` -> the same, changed."""

_ADD = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_NORM = (functional.layer_norm, torch.layer_norm, functional.rms_norm)
_STEPS = 8  # back from what may be the stream, cast, reshaped, or with a constant added or multiplied


class _Branch(NamedTuple):
    """What was added to the stream or to another branch, and the edge of the operation that made it."""

    noted: Noted
    made_by: Edge


@contextmanager
def branches_of(
    roots: Sequence[nn.Module],
    shapes: Sequence[tuple[int, int]],
    active: Propagation,
    again: Recomputation,
    edit: HeadEdit | None = None,
) -> Iterator[list[Block]]:
    """While the block runs, note what the model's blocks do, in the order in which they run. Everything is removed on exit.

    Args:
        roots: The model, which runs inside, in this thread; or its encoder and its decoder.
        shapes: ``[B, T]`` of the tokens that each reads; T is 0 for images.
        active: The mode under which it runs, rules or none.
        again: Says when a block is computed once more; it was noted before.
        edit: The model goes on with what this makes of what heads wrote.
    """
    watch = _StreamFollower(again, edit)
    active.added.update(watch.handlers())
    with ExitStack() as stack:
        for root, tokens in zip(roots, tokens_of(shapes), strict=True):
            for module in outer_blocks(root):
                enter = partial(watch.enter, tokens)
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(watch.leave).remove)
        yield watch.blocks


class _StreamFollower:
    """Follows the stream through the block that runs."""

    def __init__(self, again: Recomputation, edit: HeadEdit | None = None) -> None:
        self.blocks: list[Block] = []
        self._edit = edit
        self._again = again
        self._left_out: set[type[nn.Module]] = set()
        self._shape = (0, 0)  # [B, T] of what the module that runs reads
        self._running: nn.Module | None = None
        self._block: Block | None = None  # if the module that runs is one
        self._stream: Tensor | None = None
        self._before: dict[Edge, Any] = {}  # where the stream came out of, from its beginning to now
        self._same: set[Edge] = set()  # the stream as it is now, or normalised
        self._heads: set[Any] = set()  # nodes of heads that belong to no branch yet
        self._softmax = False  # whether there was one
        self._sums: dict[Edge, list[_Branch]] = {}  # of branches, which may be added to the stream together

    def handlers(self) -> dict[Function, Any]:
        """What ``Propagation`` calls instead of some functions."""
        kinds = (
            (_ADD, self._add),
            (_NORM, self._norm),
            (SOFTMAX, self._weights),
            (KEEPS_WEIGHTS, self._still_weights),
            (CONTRACTION, self._contraction),
            ((functional.scaled_dot_product_attention,), self._attention),
        )
        return {function: handler for functions, handler in kinds for function in functions}

    # Blocks

    def enter(self, tokens: StackTokens, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block runs that reads these tokens."""
        if self._again.elsewhere() or self._running is not None:
            return
        self._running = module
        with no_function_modes():  # which would see each look at a tensor
            values = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
            if not tokens.length and values and values[0].ndim == 3:  # of an image
                tokens = tokens._replace(length=values[0].shape[1])
            self._shape = tokens.rows, tokens.length
            if values and self._is_stream(values[0]):
                entered = self._hidden(values[0], edge_of(values[0]))
                self._block = Block(tokens, type(module), self._left_out, entered)
                self._before, self._heads, self._sums = {}, set(), {}
                self._goes_on(values[0])

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """After a block has run."""
        if self._again.elsewhere() or self._running is not module:
            return
        block, self._block, self._running = self._block, None, None
        if block is None or not (block.heads or block.added):  # a norm, say
            self._left_out.add(type(module))
            return
        state = next((v for v in (output, *items_of(output)) if isinstance(v, Tensor)), None)
        with no_function_modes():
            if state is not None and self._is_stream(state):
                block.left = self._hidden(state, edge_of(state))
                block.followed = block.added > 0 and not block.odd and not self._heads and self._is_now(state)
        self._stream = None
        self.blocks.append(block)

    def _hidden(self, tensor: Tensor, edge: Edge) -> Noted:
        """Note the stream or a branch."""
        return Noted(tensor, tensor._version, edge, (*self._shape[:1], 1, *self._shape[1:], tensor.shape[-1]))

    def _is_stream(self, value: Tensor) -> bool:
        return value.ndim == 3 and tuple(value.shape[:2]) == self._shape and value.requires_grad

    def _goes_on(self, stream: Tensor) -> None:
        """This is the stream from now on."""
        edge = edge_of(stream)
        self._stream, self._same = stream, {edge}
        self._before[edge] = None

    def _is_now(self, value: Tensor) -> bool:
        """Whether this is the stream, perhaps normalised, cast, reshaped or multiplied by a number."""
        if value is self._stream:
            return True
        return value.requires_grad and _back(edge_of(value), self._same) is not None

    # Functions

    def _watching(self) -> bool:
        return self._block is not None and not self._again.elsewhere()

    def _add(
        self, mode: Propagation, _: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if not self._watching() or len(args) != 2 or kwargs or not (self._fits(args[0]) and self._fits(args[1])):
            return func(*args, **kwargs)
        a, b = args
        if b is self._stream or a is self._stream:
            place = int(b is self._stream)
        else:
            place = 0 if self._is_now(a) else 1 if self._is_now(b) else -1
        branches = [(t, edge_of(t)) for i, t in enumerate(args) if i != place]
        if func is Tensor.add_ and place != 0:  # writes into a branch
            branches[0] = a.detach().clone(), branches[0][1]
        output = func(a, b)
        at = edge_of(output)
        parts = [_Branch(self._hidden(t, at), made_by) for t, made_by in branches]
        if place < 0:
            self._sums[at] = parts
        else:
            self._added(*parts)
            self._goes_on(output)
        return output

    def _fits(self, value: Any) -> bool:
        """Whether this may be the stream or a branch: as wide, and of as many tokens; some models flatten batch and tokens."""
        if not isinstance(value, Tensor) or not 1 < value.ndim < 4 or not value.requires_grad:
            return False
        assert self._block is not None
        *tokens, width = value.shape
        return width == self._block.entered.shape[-1] and (
            tuple(tokens) == self._shape or math.prod(tokens) == math.prod(self._shape)
        )

    def _added(self, branch: _Branch) -> None:
        """A branch is added to the stream."""
        block = self._block
        assert block is not None
        block.added += 1
        if _back(branch.made_by, self._before) is not None:  # the stream as it was before
            block.odd = True
        found = set()
        for part in self._taken_apart(branch):
            heads = self._heads_of(part)
            (block.attention if heads else block.mlp).append(part.noted)
            found |= heads
        self._heads -= found

    def _taken_apart(self, branch: _Branch) -> list[_Branch]:
        at = _back(branch.made_by, self._sums)
        return [branch] if at is None else [part for one in self._sums[at] for part in self._taken_apart(one)]

    def _heads_of(self, branch: _Branch) -> set[Any]:
        """Which of the heads that belong to no branch yet are among what this one was made of."""
        found, seen = set(), {node for node, _ in self._before}
        nodes = [branch.made_by[0]] if self._heads else []
        for node in nodes:  # which grows meanwhile
            if node in self._heads:
                found.add(node)
            elif node not in seen:
                seen.add(node)
                nodes.extend(parent for parent, _ in edges_of(node))
        return found

    def _norm(
        self, mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        output = _usual(mode, operation, func, args, kwargs)
        if self._watching() and args and isinstance(args[0], Tensor) and output.requires_grad and self._is_now(args[0]):
            self._same.add(edge_of(output))
        return output

    # Attention

    def _weights(
        self, mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        output = _usual(mode, operation, func, args, kwargs)
        if self._watching():
            mark(output)
            self._softmax = True
            assert self._block is not None
            self._block.attends |= output.ndim > 3  # a router's weights have fewer dimensions
        return output

    def _still_weights(
        self, mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        output = func(*args, **kwargs)
        if self._softmax and self._watching() and are_weights(args[0]) and isinstance(output, Tensor):
            mark(output)
        return output

    def _contraction(
        self, mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        output = _usual(mode, operation, func, args, kwargs)
        if not self._softmax or not self._watching() or not isinstance(output, Tensor):
            return output
        if func is torch.einsum:
            if len(args) == 3 and are_weights(args[1]) and args[1].shape[-2] == self._shape[1]:
                order = order_in_einsum(args[0])
                return output if order is None else self._note_heads(output, order)
        elif len(args) == 2 and are_weights(args[0]) and args[0].shape[-2] == self._shape[1]:
            return self._note_heads(output)
        return output

    def _attention(
        self, mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        output = _usual(mode, operation, func, args, kwargs)
        return self._note_heads(output) if self._watching() else output

    def _note_heads(self, output: Tensor, order: tuple[int, ...] = ()) -> Tensor:
        """Note the result of an attention, in this order ``[B, ..., T, head_dim]``, or ``[B * H, T, head_dim]``.

        What the model goes on with.
        """
        assert self._block is not None
        self._block.attends = True
        rows, tokens = self._shape
        shape = [output.shape[i] for i in order] if order else list(output.shape)
        if shape[-2] != tokens or not (shape[0] == rows if len(shape) > 3 else shape[0] % rows == 0):
            return output
        heads = math.prod(shape[1:-2]) if len(shape) > 3 else shape[0] // rows
        if not output.requires_grad:
            return output
        noted = self._noted_heads(output, (rows, heads, tokens, shape[-1]), order)
        if self._edit is not None:
            first = sum(before.shape[1] for before in self._block.heads)
            with no_function_modes():
                output = noted.as_noted(self._edit(len(self.blocks), first, noted.by_head(output)))
            noted = self._noted_heads(output, noted.shape, order)
        self._heads.add(noted.edge[0])
        self._block.heads.append(noted)
        return output

    def _noted_heads(self, output: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Noted:
        return Noted(output, output._version, edge_of(output), shape, order)


def _usual(
    mode: Propagation, operation: Operation, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What happens to a function of a kind for which there may be a rule."""
    return mode.look(operation, func, args, kwargs) if mode.rules else func(*args, **kwargs)


_SAME_ELEMENTS = frozenset(
    "view unsafe_view reshape reshape_alias squeeze unsqueeze to_copy clone alias contiguous mul div add sub".split()
)


def _back(edge: Edge, known: Any) -> Edge | None:
    """The first of the known edges on the way back through operations that keep the elements, up to a factor."""
    for _ in range(_STEPS):
        if edge in known:
            return edge
        parents = edges_of(edge[0])
        if len(parents) != 1 or operation_of_node(edge[0].name()).name not in _SAME_ELEMENTS:
            return None
        edge = parents[0]
    return None
