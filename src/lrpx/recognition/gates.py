"""Which factor of a product is the gate? PyTorch's autograd graph says what each came out of.

Looking back through reshapes, casts, selections, bounds and constant factors, the **rank** of a tensor is 2 for a softmax or a
sigmoid, 1 for a SiLU, GELU, ReLU or a relative, 0 for anything else, and -1 for the magnitude of a hidden state. A node's
``metadata`` holds a rank that its name does not tell, and goes with the node.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .operations import CONSTANT, SIGNAL, operation_of_node
from .table import MOVING

MIXED = None  # a part of a concatenation of gates and signals: which part is a gate is no longer known
_PASSING = ("structure", "elementwise", "product", "division", "activation", "power")  # kinds that keep the rank
_DEPTH = 150  # steps back: what lies further is a signal
Edge = tuple[Any, int]  # a node and the number of its output


def edge_of(tensor: Tensor) -> Edge:
    """Where a tensor that carries gradient came out of."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else get_gradient_edge(tensor)[:2]


def edges_of(node: Any) -> list[Edge]:
    """Where a node's operands that carry gradient came out of."""
    last = -1 if node.name().endswith("CopyBackwards") else 0  # what was there before is gone
    return [edge for edge in node.next_functions[last:] if edge[0] is not None]


def ranked(output: Any, rank: int | None) -> Any:
    """``output``, with its rank noted where it carries gradient."""
    if rank is not None and isinstance(output, Tensor) and output.grad_fn is not None:
        output.grad_fn.metadata["lrpx"] = rank  # type: ignore[index]
    return output


def rank_of(tensor: Tensor, *, elementwise: bool = False) -> int | None:
    """The rank of a tensor; ``elementwise``: elements may have moved, but not been summed or compared."""
    return _rank(edge_of(tensor)[0], elementwise, {}, 0)


def _rank(node: Any, elementwise: bool, known: dict[Any, int | None], depth: int) -> int | None:
    if node not in known:
        known[node] = SIGNAL if depth > _DEPTH else _found(node, elementwise, known, depth + 1)
    return known[node]


def _found(node: Any, elementwise: bool, known: dict[Any, int | None], depth: int) -> int | None:
    name, kind, rank, _ = operation_of_node(node.name())
    mixes = kind == "structure"
    if (rank := node.metadata.get("lrpx", rank)) is not None:
        return rank
    if kind not in _PASSING or (mixes and elementwise and name not in MOVING):
        return SIGNAL
    parents = [parent for parent, _ in edges_of(node)]
    ranks = set()
    for parent in parents[:1] if kind == "division" else reversed(parents):  # the residual stream, which is long, last
        ranks.add(_rank(parent, elementwise, known, depth))
        if SIGNAL in ranks and not mixes:
            return SIGNAL
    if kind == "product" and len(parents) > 1 and ranks != {CONSTANT}:
        return SIGNAL
    if len(ranks) > 1:
        return MIXED if mixes or MIXED in ranks else min(ranks)  # type: ignore[type-var]
    return ranks.pop() if ranks else SIGNAL


def is_constant(tensor: Tensor) -> bool:
    """Whether all ways back from a tensor end in gates that rules made constant, so that no gradient passes through it."""
    seen, stack = set(), [start := edge_of(tensor)[0]]
    while stack:
        node = stack.pop()
        if node in seen or node is None or operation_of_node(node.name()).name == "gate":
            continue
        if not node.next_functions or node.metadata.get("lrpx live"):
            start.metadata["lrpx live"] = True  # the next product need not look beyond this one
            return False
        seen.add(node)
        stack.extend(parent for parent, _ in edges_of(node))
    return True


def is_mean_of_squares(tensor: Tensor) -> bool:
    """Whether a tensor is a sum or mean of squares, bounded or with a constant added at most: its root is a magnitude."""
    node, summed = edge_of(tensor)[0], False
    while True:
        name, kind, *_ = operation_of_node(node.name())
        parents = edges_of(node)
        if summed and name in ("pow", "square", "mul"):
            return True
        if len(parents) != 1 or kind not in ("elementwise", "structure"):
            return False
        node, summed = parents[0][0], summed or name in ("sum", "mean")
