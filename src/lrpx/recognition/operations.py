"""What each PyTorch function is: a kind of operation, by the function's name (``table.py``). A rule set gives each a rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .table import GATING, NAMES

CONSTANT, ACTIVATION, SIGNAL, MAGNITUDE = 2, 1, 0, -1  # ranks, see ``gates.py``
OPERATIONS: dict[str, frozenset[str]] = {kind: frozenset(names.split()) for kind, names in NAMES.items()}
_RANKS = {"softmax": CONSTANT, "sigmoid": CONSTANT, "magnitude": MAGNITUDE}
_KIND = {name: kind for kind, names in OPERATIONS.items() for name in names}


class Operation(NamedTuple):
    """A PyTorch function.

    Attributes:
        name: In the table; or else the one that PyTorch gives it, and the kind is ``"unknown"``.
        kind: See the table.
        rank: Of its result, if the name tells.
        in_place: Whether it writes into its operand.
    """

    name: str
    kind: str
    rank: int | None
    in_place: bool


@cache
def operation_named(name: str) -> Operation:
    """What a function is, by its ``__name__``."""
    in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
    bare = name.strip("_")
    candidates = (name, bare, bare[1:] if name.startswith(("__r", "__i")) else bare)
    name = next((c for c in candidates if c in _KIND), name)
    kind = _KIND.get(name, "unknown")
    return Operation(name, kind, ACTIVATION if name in GATING else _RANKS.get(kind), in_place)


def kind_of(name: str) -> str:
    """The kind of an operation by its function's ``__name__``: a key of ``OPERATIONS``, or ``"unknown"``."""
    return operation_named(name).kind


def operation_of(function: Callable[..., Any]) -> Operation:
    """What a function is that a ``TorchFunctionMode`` saw."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)  # a property: T, data, grad, ...
    return operation_named(name)


@cache
def operation_of_node(node_name: str) -> Operation:
    """The operation that left a node in the autograd graph: ``"ToCopyBackward0"`` is ``to_copy``."""
    bare = re.sub(r"Backward\d*$", "", node_name.rpartition("::")[2])
    return operation_named(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower())
