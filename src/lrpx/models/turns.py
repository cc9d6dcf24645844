"""Threads take turns: at a model, and over the precision of float32 matrix products, which is a setting of the whole process.

While a model is explained it carries hooks and other settings, which must not meet the pass of another thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


def precision() -> str:
    """The process's setting: ``"highest"``, ``"high"`` or ``"medium"``, and from torch 2.9 on those of its backends."""
    try:
        one = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends are set one by one, and there is no one word for them
        one = "mixed"
    return " ".join([one, *(f"{name}={value}" for name, value in _backends().items())])


def _backends() -> dict[str, str]:
    """What the products of each backend are set to; torch before 2.9 has no such settings."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return {}
    return {"cuda": backends.cuda.matmul.fp32_precision, "mkldnn": backends.mkldnn.matmul.fp32_precision}


def is_exact() -> bool:
    """Whether float32 matrix products on a GPU are computed in float32."""
    if backends := _backends():
        every: Any = torch.backends
        return backends["cuda"] == "ieee" or (backends["cuda"] == "none" and every.fp32_precision != "tf32")
    return torch.get_float32_matmul_precision() == "highest"


def _set_tf32() -> Callable[[], None]:
    """Allow TF32; returns what undoes that, if nobody has set something else meanwhile."""
    before = _backends()
    every: Any = torch.backends
    if before and every.fp32_precision == before["cuda"] == "tf32":  # set for all backends
        return lambda: None
    try:
        one: str | None = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
    except RuntimeError:
        one = None
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    ours = precision()

    def undo() -> None:
        if precision() != ours:
            return
        if one is not None:
            torch.set_float32_matmul_precision(one)
        for name, value in before.items():
            matmul = getattr(every, name).matmul
            matmul.fp32_precision = "none"  # as where the setting for all backends counts
            if matmul.fp32_precision != value:
                matmul.fp32_precision = value

    return undo


class _Turns:
    """Threads that want the same are inside together; one that wants something else waits, in the order of coming."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._inside: set[int] = set()  # threads
        self._tf32 = False
        self._undo: Callable[[], None] | None = None

    @contextmanager
    def take(self, tf32: bool) -> Iterator[None]:
        me = threading.get_ident()
        if me in self._inside:  # a method that explains by another one would wait for itself
            yield
            return
        try:  # entering as well: Ctrl-C may come at any moment
            self._enter(me, tf32)
            yield
        finally:
            self._leave(me)

    def _enter(self, me: int, tf32: bool) -> None:
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] == me and (not self._inside or self._tf32 == tf32))
            if tf32 and not self._inside:
                self._undo = _set_tf32()
            self._tf32 = tf32
            self._inside.add(me)
            self._waiting.popleft()
            self._changed.notify_all()

    def _leave(self, me: int) -> None:
        with self._changed:
            if me in self._waiting:
                self._waiting.remove(me)
            self._inside.discard(me)
            if self._undo is not None and not self._inside:
                self._undo()
                self._undo = None
            self._changed.notify_all()


_turns = _Turns()


def matrix_precision(tf32: bool) -> AbstractContextManager[None]:
    """A block with TF32 matrix products, if asked for, or with the process's own setting, which is there again afterwards."""
    return _turns.take(tf32)


@contextmanager
def at_work(model: Any, tf32: bool) -> Iterator[None]:
    """A block in which this thread explains ``model``, alone, with ``matrix_precision(tf32)``."""
    with _locks_lock:
        lock = _locks.setdefault(model, threading.RLock())
    with matrix_precision(tf32), lock:  # whoever waits for a turn holds no model that others could be waiting for
        yield


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()
