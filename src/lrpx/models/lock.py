"""A lock per model: while a model is explained it carries hooks and settings that must not meet another thread's pass."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_locks: weakref.WeakKeyDictionary[nn.Module, AbstractContextManager[bool]] = weakref.WeakKeyDictionary()
_adding = threading.Lock()


def lock_of(model: nn.Module) -> AbstractContextManager[bool]:
    """The lock of ``model``, to be held by whoever explains it. A thread that holds it can take it again."""
    with _adding:
        return _locks.setdefault(model, threading.RLock())
