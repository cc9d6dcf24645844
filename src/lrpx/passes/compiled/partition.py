"""A traced pass cut into pieces, each fused by TorchInductor; pieces that are alike are compiled once.

1. The graph is cut where a block begins and where the gradient of a block's output arrives. Blocks that are alike give the
   same pieces, so what has to be compiled does not grow with the number of blocks.
2. The forward and the backward piece of a block are partitioned together: what is cheap to compute again is not kept. With
   checkpointing the trace holds the recomputation, and only what enters a block is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from ..._torch_internals import fused
from .cuts import CUT
from .trace import is_size

Piece = Callable[..., Sequence[Tensor]]
Step = tuple[Piece, list[str], list[str]]  # a function, names of its inputs, names of its outputs


@dataclass
class Subgraph:
    """Consecutive nodes between two cuts."""

    kind: str  # "block", "between", "backward" or ASIDE
    block: int
    nodes: list[fx.Node]


def segments_of(nodes: Sequence[fx.Node]) -> list[Subgraph]:
    """The operations of a trace, cut."""
    segments = [Subgraph("between", -1, [])]
    for node in nodes:
        if node.op not in ("placeholder", "get_attr", "output") and not is_size(node):
            segments[-1].nodes.append(node)
        if CUT in node.meta:
            kind, block = node.meta[CUT]
            segments.append(Subgraph(kind, block, []))
    return [segment for segment in segments if segment.nodes]


def steps_of(segments: Sequence[Subgraph], pieces: dict[str, Any], wanted: set[str], *, paired: bool) -> list[Step]:
    """(function, names in, names out) of each segment, in order."""
    backward = {s.block: s for s in segments if s.kind == "backward"} if paired else {}
    waiting: dict[int, Step] = {}
    steps: list[Step] = []
    for segment in segments:
        if segment.kind == "block" and segment.block in backward:
            first, waiting[segment.block] = _pair(segment, backward[segment.block], pieces, wanted)
            steps.append(first)
        elif segment.kind == "backward" and segment.block in waiting:
            steps.append(waiting.pop(segment.block))
        else:
            steps.append(_single(segment, pieces, wanted))
    return steps


def _single(segment: Subgraph, pieces: dict[str, Any], wanted: set[str]) -> Step:
    inputs = _needs(segment.nodes)
    outputs = _leaves(segment.nodes, set(segment.nodes), wanted)
    graph = _graph_of(segment.nodes, [("primals", n) for n in inputs], outputs)
    piece = _compiled_once(graph, [n.meta["val"] for n in inputs], pieces)
    return piece, [n.name for n in inputs], [n.name for n in outputs]


def _pair(forward: Subgraph, backward: Subgraph, pieces: dict[str, Any], wanted: set[str]) -> tuple[Step, Step]:
    """Forward and backward piece of a block: the partitioner chooses what goes from one to the other."""
    inside = {*forward.nodes, *backward.nodes}
    order = {node: i for i, node in enumerate(forward.nodes[0].graph.nodes)}
    start = order[forward.nodes[0]]
    needed = _needs(forward.nodes)
    later = [n for n in _needs(backward.nodes) if n not in inside and n not in needed]
    primals = needed + [n for n in later if order[n] < start or n.op in ("placeholder", "get_attr") or is_size(n)]
    tangents = [n for n in later if n not in primals]
    out_forward = _leaves(forward.nodes, inside, wanted)
    out_backward = _leaves(backward.nodes, inside, wanted)
    roles = [("primals", n) for n in primals] + [("tangents", n) for n in tangents]
    joint = _graph_of([*forward.nodes, *backward.nodes], roles, [*out_forward, *out_backward])
    halves = _partitioned_once(joint, [n.meta["val"] for _, n in roles], len(out_forward), pieces)
    given = dict(zip(_placeholders(joint), [n.name for _, n in roles], strict=True))
    passed = {name: f"{forward.nodes[0].name}:{name}" for name in halves.kept}  # may be something given, too
    first = halves.forward, [given[n] for n in halves.taken], [*(n.name for n in out_forward), *passed.values()]
    second = halves.backward, [(given | passed)[n] for n in halves.needed], [n.name for n in out_backward]
    return first, second


def _needs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What the nodes take from outside, in the order of use."""
    inside = set(nodes)
    return list(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside))


def _leaves(nodes: Sequence[fx.Node], inside: set[fx.Node], wanted: set[str]) -> list[fx.Node]:
    """Those of the nodes whose values are used outside; sizes are computed without them."""
    return [
        n
        for n in nodes
        if n.name in wanted or any(u not in inside and u.op != "output" and not is_size(u) for u in n.users)
    ]


def _graph_of(
    nodes: Sequence[fx.Node], inputs: Sequence[tuple[str, fx.Node]], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """The nodes as a graph of their own, with names that depend on nothing but the operations."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for i, (role, node) in enumerate(inputs):
        new[node] = graph.placeholder(f"{role}_{i + 1}")
        new[node].meta["val"] = node.meta["val"]
    for node in nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: new[n])
        new[node] = graph.create_node(node.op, node.target, args, kwargs)
        if "val" in node.meta:
            new[node].meta["val"] = node.meta["val"]
    graph.output(tuple(new[n] for n in outputs))
    return fx.GraphModule(nn.Module(), graph)


def _key(graph: fx.GraphModule, examples: Sequence[Any]) -> str:
    """What a piece computes: its operations, and what its inputs look like."""
    inputs = [
        (str(e.dtype), tuple(e.shape), e.stride(), str(e.device)) if isinstance(e, Tensor) else e for e in examples
    ]
    return f"{graph.code} {inputs}"


def _compiled_once(graph: fx.GraphModule, examples: Sequence[Any], pieces: dict[str, Any]) -> Piece:
    key = _key(graph, examples)
    if key not in pieces:
        pieces[key] = _compile(graph, examples)
    return pieces[key]


class _Halves(NamedTuple):
    """A partitioned block. Tensors are known by their names in the graph of both halves."""

    forward: Piece
    taken: list[str]  # what goes into the first half
    kept: list[str]  # what it gives to the second, after its outputs
    backward: Piece
    needed: list[str]  # what goes into the second half


def _partitioned_once(
    joint: fx.GraphModule, examples: Sequence[Any], n_outputs: int, pieces: dict[str, Any]
) -> _Halves:
    key = f"{n_outputs} {_key(joint, examples)}"
    if key not in pieces:
        from functorch.compile import min_cut_rematerialization_partition

        halves = min_cut_rematerialization_partition(joint, examples, num_fwd_outputs=n_outputs)
        forward, backward = (_compile(half, list(_placeholders(half).values())) for half in halves)
        kept = [n.name for n in next(n for n in halves[0].graph.nodes if n.op == "output").args[0][n_outputs:]]
        pieces[key] = _Halves(forward, list(_placeholders(halves[0])), kept, backward, list(_placeholders(halves[1])))
    return pieces[key]


def _placeholders(graph: fx.GraphModule) -> dict[str, Any]:
    """The names of a graph's inputs, and what these look like."""
    return {n.name: n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"}


def _compile(graph: fx.GraphModule, examples: Sequence[Any]) -> Piece:
    """A piece, fused; one that computes nothing stays as it is."""
    if not any(n.op == "call_function" and n.target is not operator.getitem for n in graph.graph.nodes):
        return graph
    run = fused(graph, examples)

    def piece(*tensors: Tensor) -> Sequence[Tensor]:
        found = run(*tensors)
        return found if isinstance(found, list | tuple) else (found,)

    return piece
