"""Which factor of a product is the gate? PyTorch's autograd graph says what each came out of.

Looking back through reshapes, casts, selections, bounds and constant factors, the **rank** of a tensor is 2 for a softmax or a
sigmoid, 1 for a SiLU, GELU, ReLU or a relative, 0 for anything else, and -1 for the magnitude of a hidden state. A node's
``metadata`` holds a rank that its name does not tell, and goes with the node.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .operations import GATING, Operation, operation_of_node

CONSTANT, ACTIVATION, SIGNAL, MAGNITUDE = 2, 1, 0, -1
MIXED = None  # a part of a concatenation of gates and signals: which part is a gate is no longer known
_PASSING = ("structure", "elementwise", "product", "division", "activation", "power")  # kinds that keep the rank
_DEPTH = 150  # steps back: what lies further is a signal
SAME = Operation("alias", "elementwise", False)
Edge = tuple[Any, int]  # a node and the number of its output


def edge_of(tensor: Tensor) -> Edge:
    """Where a tensor that carries gradient came out of."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else (get_gradient_edge(tensor).node, 0)


def edges_of(node: Any) -> list[Edge]:
    """Where a node's operands that carry gradient came out of."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    return edges[-1:] if node.name().endswith("CopyBackwards") else edges  # what was there before is gone


def same(tensor: Tensor) -> Tensor:
    """The tensor as a new one, of which the graph shows that no element has moved."""
    output = tensor.view_as(tensor)
    output.grad_fn.metadata["lrpx same"] = True  # type: ignore[index, union-attr]
    return output


def operation_at(node: Any) -> Operation:
    """The operation that left a node in the graph."""
    operation = operation_of_node(node.name())
    return SAME if operation.name == "view" and node.metadata.get("lrpx same") else operation


def ranked(output: Any, rank: int | None) -> Any:
    """``output``, with its rank noted where it carries gradient."""
    if rank is not None and isinstance(output, Tensor) and output.grad_fn is not None:
        output.grad_fn.metadata["lrpx"] = rank  # type: ignore[index]
    return output


def rank_of(tensor: Tensor, *, elementwise: bool = False) -> int | None:
    """The rank of a tensor; ``elementwise``: looking back only where every element stays where it is."""
    return _rank(edge_of(tensor)[0], elementwise, {}, 0)


def _rank(node: Any, elementwise: bool, known: dict[Any, int | None], depth: int) -> int | None:
    if node not in known:
        known[node] = SIGNAL if depth > _DEPTH else _found(node, elementwise, known, depth + 1)
    return known[node]


def _found(node: Any, elementwise: bool, known: dict[Any, int | None], depth: int) -> int | None:
    noted = node.metadata.get("lrpx")
    if noted is not None:
        return noted
    name, kind, _ = operation_at(node)
    if kind in ("softmax", "sigmoid") or name == "gate":
        return CONSTANT
    if name in GATING:
        return ACTIVATION
    inputs = [parent for parent, _ in edges_of(node)][
        ::-1
    ]  # a block's branch before the residual stream, which is long
    mixes = kind == "structure"
    if not inputs or (mixes and elementwise) or (kind not in _PASSING and name != "scale"):
        return SIGNAL
    if kind == "product" and len(inputs) > 1:
        return CONSTANT if all(_rank(i, elementwise, known, depth) == CONSTANT for i in inputs) else SIGNAL
    found = _rank(inputs[-1] if kind == "division" else inputs[0], elementwise, known, depth)
    for other in inputs[1:] if kind != "division" else ():
        if found == SIGNAL and not mixes:
            return SIGNAL
        if (rank := _rank(other, elementwise, known, depth)) != found:
            found = MIXED if mixes or MIXED in (rank, found) else min(rank, found)  # type: ignore[type-var]
    return found


def is_constant(tensor: Tensor) -> bool:
    """Whether all ways back from a tensor end in gates that rules made constant, so that no gradient passes through it."""
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
        stack.extend(parent for parent, _ in edges_of(node))
    return True
