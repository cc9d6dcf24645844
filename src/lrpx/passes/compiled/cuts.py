"""Where a traced pass is cut: where a block begins or ends, and where the gradient of its output arrives.

A cut is noted while the model runs, and is found again on the nodes of the finished graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..._torch_internals import tracer
from ..aside import Aside, T

CUT = "lrpx_cut"  # on a node's meta: (kind, block) of what begins after it; "block", "between", "backward" or ASIDE
ASIDE = "aside"  # what nothing waits for until the pass ends


class Cuts(Aside):
    """Where a block begins or ends in a trace, and where the gradient of a block's output arrives; and what is done aside."""

    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._cuts: list[tuple[int, tuple[str, int]]] = []  # after how many nodes, and what begins there
        self._names: list[str] = []

    def add(self, kind: str, block: int) -> None:
        """Cut here: what is traced from now on belongs to something else."""
        self._cuts.append((len(self._graph.nodes), (kind, block)))

    def __call__(self, work: Callable[[], T]) -> T:
        """Do ``work`` and note that it is done aside."""
        self.add(ASIDE, 0)
        result = work()
        self.add("between", 0)
        return result

    @contextmanager
    def noted(self, blocks: Sequence[nn.Module]) -> Iterator[None]:
        """While a pass is traced, note where blocks begin and end, and where gradients arrive."""
        thread = threading.get_ident()
        running: list[nn.Module] = []
        begun = {"block": 0, "backward": 0}

        def elsewhere() -> bool:
            # In the backward pass blocks are recomputed.
            return begun["backward"] > 0 or threading.get_ident() != thread

        def before(module: nn.Module, args: Any) -> None:
            if not running and not elsewhere():
                running.append(module)
                self.add("block", begun["block"])

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if running != [module] or elsewhere():
                return
            running.clear()
            number = begun["block"]
            begun["block"] += 1
            self.add("between", number)

            def arrives(_: Tensor) -> None:
                begun["backward"] += 1
                self.add("backward", number)

            state = output[0] if isinstance(output, tuple | list) else output
            if isinstance(state, Tensor) and state.requires_grad:
                state.register_hook(arrives)

        with ExitStack() as stack, self.tracing():
            for module in blocks:
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
            yield

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Inside the block, cuts belong to the trace that is running."""
        self._graph = tracer().graph
        yield
        self._names = [node.name for node in self._graph.nodes]

    def place(self, graph: fx.Graph) -> None:
        """Note the cuts on the nodes of the finished graph, which lacks some that were traced."""
        nodes = {node.name: node for node in graph.nodes}
        for count, what in self._cuts:
            last = next((nodes[name] for name in reversed(self._names[:count]) if name in nodes), None)
            if last is not None:
                last.meta[CUT] = what


def functional(graph: fx.GraphModule, cuts: Cuts, *inputs: Tensor) -> Any:
    """Run a traced graph once more, to trace it without in-place operations; cuts stay where they were."""

    class Again(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if CUT in n.meta:
                cuts.add(*n.meta[CUT])
            return result

    with cuts.tracing():
        return torch.func.functionalize(Again(graph).run, remove="mutations")(*inputs)
