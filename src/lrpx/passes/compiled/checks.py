"""What a model checks of the numbers that it is given, such as that a text has as many image tokens as an image has features.

A trace has no numbers, so PyTorch defers such a check (``torch._check``), and the pieces of a pass would run without it. So the
operations that lead to a check are kept apart, and run before the pieces. If it fails, the pass runs as usual, and the model
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn


class CheckFailed(Exception):
    """The numbers are not those for which the trace holds."""


class Checks:
    """The checks of a trace, as a graph of their own.

    Args:
        graph: The trace, before what nothing depends on is removed from it.
        is_size: Whether a node is a size, which is known beforehand.

    Attributes:
        inputs: What is given to them: inputs of the trace, constants, and sizes.
    """

    def __init__(self, graph: fx.Graph, is_size: Callable[[fx.Node], bool]) -> None:
        self.inputs: list[fx.Node] = []
        asked: list[Any] = [node.args[0] for node in _read(graph)]
        needed, queue = set(asked), list(asked)
        for node in queue:  # grows on the way
            new = [n for n in node.all_input_nodes if n not in needed]
            needed.update(new)
            queue += [n for n in new if n.op == "call_function" and not is_size(n)]
        own, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in (n for n in graph.nodes if n in needed):
            if node.op != "call_function" or is_size(node):
                self.inputs.append(node)
                copies[node] = own.placeholder(f"given_{len(self.inputs)}")
            else:
                copies[node] = own.node_copy(node, copies.__getitem__)
        own.output(tuple(copies[node] for node in asked))
        self._run = fx.GraphModule(nn.Module(), own)
        self._count = len(asked)

    def run(self, values: Mapping[str, Any]) -> None:
        """Check ``inputs``, given by name. Waits for the device if there are checks.

        Raises:
            CheckFailed: One does not hold.
        """
        if self._count and not all(self._run(*[values[node.name] for node in self.inputs])):
            raise CheckFailed


def symbols_checked(graph: fx.Graph) -> set[Any]:
    """The symbols of a trace that stand for a truth value of its tensors: what ``Checks`` can look at."""
    return {symbol for node in _read(graph) for symbol in node.meta.get("unbacked_bindings", ())}


def _read(graph: fx.Graph) -> list[fx.Node]:
    """Where the truth of a tensor is asked for."""
    read = torch.ops.aten._local_scalar_dense.default
    nodes: list[Any] = list(graph.nodes)
    return [n for n in nodes if n.target is read and n.args[0].meta["val"].dtype == torch.bool]
