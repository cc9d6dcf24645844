"""What a ``TorchFunctionMode`` does not see: autograd functions of others, TorchScript and kernels, by the nodes they leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..models.quantised import KERNELS

_KNOWN_NODES = re.compile(
    r"(torch::autograd::(AccumulateGrad|Copy\w+)|GeneratedBackwardFor_transformers_grouped_mm\w*|\w*Backward\d*)$"
)

# Ours, those of quantised linear layers, whose gradients ``models.quantised`` has tried, and a root with a bounded gradient.
_KNOWN_FUNCTIONS = ("lrpx.propagation.", *(f"{p}." for p in KERNELS), "transformers.models.recurrent_gemma.")


def nodes_above(values: Tensor | Sequence[Tensor], *stop: Any) -> list[Any]:
    """The nodes of the autograd graph above one or several tensors, their own included; not beyond ``stop``."""
    nodes = list(dict.fromkeys(t.grad_fn for t in ([values] if isinstance(values, Tensor) else values)))
    seen = {None, *stop, *nodes}
    for node in nodes:  # which grows meanwhile
        for parent, _ in node.next_functions:  # type: ignore[union-attr]
            if parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return nodes


def foreign_nodes(values: Tensor | Sequence[Tensor]) -> list[str]:
    """Names of autograd nodes that come neither from PyTorch's own operations nor from our rules."""
    nodes = nodes_above(values)
    kinds: dict[Any, Any] = dict(zip(map(type, nodes), nodes, strict=True))  # one look for each, of thousands of nodes
    if any(kind.__name__ == "CppFunction" for kind in kinds):  # which nodes of C++ extensions share
        kinds |= {node.name(): node for node in nodes if type(node).__name__ == "CppFunction"}
    found = set()
    for node in kinds.values():
        made_by = getattr(type(node), "_forward_cls", None)  # of an autograd.Function
        known = made_by is None or made_by.__module__.startswith(_KNOWN_FUNCTIONS)
        if not known or not _KNOWN_NODES.match(node.name()):
            found.add(node.name())
    return sorted(found)


def note_foreign(unknown: Counter[str], module: nn.Module, args: Any, output: Any) -> None:
    """A forward hook: counts in ``unknown`` the foreign nodes behind what a model returned."""
    carrying = [tensor for tensor in _tensors_within(output, set()) if tensor.grad_fn is not None]
    unknown.update(foreign_nodes(carrying) if carrying else ())


def _tensors_within(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors of what a model returned, however deep in dictionaries, lists and objects."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, nn.Module | type):
        seen.add(id(value))
        inside = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
        for part in (*inside, *(value.values() if isinstance(value, Mapping) else ())):
            yield from _tensors_within(part, seen)
