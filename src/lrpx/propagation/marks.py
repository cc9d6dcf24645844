"""What is noted on a tensor while rules are active, as its attribute ``_lrpx``: it lives and dies with the tensor.

- Whether it is a **gate**: it went through an activation, softmax or sigmoid. A part of a concatenation of gates and other
  things is *mixed*: which part is a gate is no longer known.
- Its **lineage**: which tensors it is an element-wise function of, nearest first. Weak references, so that nothing is kept
  alive, each with the tensor's version, so that one that was written into meanwhile no longer counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor


class Mark(NamedTuple):
    """What is noted on a tensor."""

    gate: bool | None  # None: mixed
    ancestors: tuple[tuple[weakref.ref[Tensor], int], ...] = ()


def mark(tensor: Tensor, gate: bool | None, ancestors: Iterable[Tensor] = ()) -> None:
    """Note on ``tensor`` whether it is a gate, and what it is an element-wise function of."""
    tensor._lrpx = Mark(gate, tuple((weakref.ref(a), _version(a)) for a in ancestors))  # type: ignore[attr-defined]


def mark_of(tensor: Tensor) -> Mark | None:
    """What was noted on ``tensor``."""
    return getattr(tensor, "_lrpx", None)


def is_gate(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a gate."""
    noted = mark_of(tensor)
    return noted is not None and bool(noted.gate)


def is_mixed(tensor: Tensor) -> bool:
    """Whether ``tensor`` holds gates and other things, or is a part of such a tensor."""
    noted = mark_of(tensor)
    return noted is not None and noted.gate is None


def joined(gates: Sequence[Tensor], *, mixes: bool) -> bool | None:
    """Whether what is made of these tensors is a gate; ``mixes`` says that several of them may lie side by side in it."""
    kinds = [is_gate(t) for t in gates]
    if any(is_mixed(t) for t in gates) or (mixes and any(kinds) and not all(kinds)):
        return None
    return all(kinds)


def common_lineage(operands: Sequence[Tensor]) -> list[Tensor]:
    """What all operands are element-wise functions of, nearest first; the operands themselves count."""
    shared = _lineage(operands[0])
    for operand in operands[1:]:
        ids = {id(a) for a in _lineage(operand)}  # all are alive here, so an id names one tensor
        shared = [a for a in shared if id(a) in ids]
    return shared


def _lineage(tensor: Tensor) -> list[Tensor]:
    noted = mark_of(tensor)
    if noted is None:
        return [tensor]
    alive = ((ref(), version) for ref, version in noted.ancestors)
    return [tensor, *(a for a, version in alive if a is not None and _version(a) == version)]


def _version(tensor: Tensor) -> int:
    """How often a tensor was written into; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version
