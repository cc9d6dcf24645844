"""The precision of float32 matrix products. It is a setting of the whole process: threads that want different ones take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


def precision() -> str:
    """The process's setting: ``"highest"``, ``"high"`` or ``"medium"``, or what its backends are set to one by one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch.backends.*.fp32_precision (torch 2.9 and newer); there is no one word for these
        backends: Any = torch.backends
        return f"cuda={backends.cuda.matmul.fp32_precision} cpu={backends.mkldnn.matmul.fp32_precision}"


def is_exact() -> bool:
    """Whether float32 matrix products on a GPU are computed in float32."""
    return precision() == "highest" or precision().startswith(("cuda=ieee", "cuda=none"))


def _set_tf32() -> Callable[[], None]:
    """Allow TF32; returns what undoes that."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul: Any = torch.backends.cuda.matmul
        each = matmul.fp32_precision
        matmul.fp32_precision = "tf32"
        return lambda: setattr(matmul, "fp32_precision", each)
    torch.set_float32_matmul_precision("high")
    return lambda: torch.set_float32_matmul_precision(before)


class _Turns:
    """Threads that want the same are inside together; one that wants something else waits, in the order of coming."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._inside = 0
        self._tf32 = False
        self._undo: Callable[[], None] | None = None
        self._mine = threading.local()

    @contextmanager
    def take(self, tf32: bool) -> Iterator[None]:
        if getattr(self._mine, "inside", False):  # a method that explains by another one would wait for itself
            yield
            return
        self._enter(tf32)
        self._mine.inside = True
        try:
            yield
        finally:
            self._mine.inside = False
            self._leave()

    def _enter(self, tf32: bool) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is ticket and (not self._inside or self._tf32 == tf32))
                if tf32 and not self._inside:
                    self._undo = _set_tf32()
                self._tf32 = tf32
                self._inside += 1
            finally:  # also where Ctrl-C ends the waiting
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self._undo is not None and not self._inside:
                self._undo()
                self._undo = None
            self._changed.notify_all()


_turns = _Turns()


def matrix_precision(tf32: bool) -> AbstractContextManager[None]:
    """A block with TF32 matrix products, if asked for, or with the process's own setting, which is there again afterwards."""
    return _turns.take(tf32)
