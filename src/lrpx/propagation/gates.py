"""Read off PyTorch's autograd graph what the factors of a product came out of.

1. Which factor is the gate (``rank``): looking back through reshapes, casts, selections, bounds and constant factors, 2 is a
   softmax or a sigmoid, 1 a SiLU, GELU, ReLU or a relative, 0 anything else, -1 the magnitude of a hidden state.
2. Is a factor a constant (``is_constant``): do all its ways back end in gates that rules made constant?

A node's ``metadata`` holds what its name does not say, and goes with the node.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .operations import GATING, operation_of_node

CONSTANT, ACTIVATION, SIGNAL, MAGNITUDE = 2, 1, 0, -1
MIXED = None  # a part of a concatenation of gates and signals: which part is a gate is no longer known
_KEY = "lrpx"
_BOUNDS = ("slope", "activation", "power", "division")  # relevance passes, and so does the rank
Edge = tuple[Any, int]  # a node and the number of its output


def edge_of(tensor: Tensor) -> Edge:
    """Where a tensor that carries gradient came out of."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else (get_gradient_edge(tensor).node, 0)


def edges_of(node: Any) -> list[Edge]:
    """Where a node's operands that carry gradient came out of."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    return edges[-1:] if node.name().endswith("CopyBackwards") else edges  # what was there before is gone


def parents_of(node: Any) -> list[Any]:
    """The nodes of ``edges_of``."""
    return [parent for parent, _ in edges_of(node)]


def set_rank(tensor: Tensor, rank: int) -> None:
    """Note what a tensor came out of, where its node's name does not say it."""
    if tensor.grad_fn is not None:
        tensor.grad_fn.metadata[_KEY] = rank  # type: ignore[index]


def rank_of(tensor: Tensor, *, elementwise: bool = False) -> int | None:
    """What the tensor came out of; ``elementwise``: by a way on which every element stays where it is."""
    return _rank(edge_of(tensor)[0], elementwise)


def _rank(node: Any, elementwise: bool) -> int | None:
    noted = node.metadata.get(_KEY)
    if noted is not None:
        return noted
    name, kind, _ = operation_of_node(node.name())
    if kind in ("softmax", "sigmoid") or name == "gate":
        return CONSTANT
    if name in GATING:
        return ACTIVATION
    inputs = parents_of(node)[::-1]  # a block's branch before the residual stream, which is long
    mixes = kind == "structure"
    if not inputs or (mixes and elementwise):
        return SIGNAL
    if kind == "product" and len(inputs) > 1:
        return CONSTANT if all(_rank(i, elementwise) == CONSTANT for i in inputs) else SIGNAL
    if kind == "division":
        inputs = inputs[-1:]  # the numerator, where it carries gradient
    if not mixes and kind not in ("elementwise", "product") and name not in _BOUNDS and kind not in _BOUNDS:
        return SIGNAL
    found = _rank(inputs[0], elementwise)
    for other in inputs[1:]:
        if found == SIGNAL and not mixes:
            return SIGNAL
        if (rank := _rank(other, elementwise)) != found:
            found = MIXED if mixes or MIXED in (rank, found) else min(rank, found)  # type: ignore[type-var]
    return found


def is_mean_of_squares(tensor: Tensor) -> bool:
    """Whether the tensor is a sum or mean of squares, bounded or with a constant added at most: its root is a magnitude."""
    node = edge_of(tensor)[0]
    for _ in range(8):
        name, kind, _ = operation_of_node(node.name())
        parents = parents_of(node)
        if name in ("sum", "mean"):
            return operation_of_node(parents[0].name()).name in ("pow", "square", "mul")
        if len(parents) != 1 or (kind not in ("elementwise", "structure") and name != "slope"):
            return False
        node = parents[0]
    return False


def is_constant(tensor: Tensor) -> bool:
    """Whether all ways back from a tensor end in gates, so that no gradient passes through it."""
    start = edge_of(tensor)[0]
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node in seen or node is None or operation_of_node(node.name()).name == "gate":
            continue
        if not node.next_functions or node.metadata.get("lrpx live"):
            start.metadata["lrpx live"] = True  # the next product need not look beyond this one
            return False
        seen.add(node)
        stack.extend(parent for parent, _ in node.next_functions)
    return True
