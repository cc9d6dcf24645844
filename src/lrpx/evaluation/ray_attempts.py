"""How often each part was started, told by a process of its own, since workers forget; it needs no torch, and starts at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .ray_cluster import import_ray


class Starts:
    """The numbers; an actor."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, number: int) -> int:
        """A part is started; returns how often it was."""
        self.counts[number] += 1
        return self.counts[number]


@dataclass(frozen=True)
class Attempt:
    """Asks ``Starts``."""

    starts: Any

    def __call__(self, number: int) -> int:
        """As ``Starts.add``."""
        return int(import_ray().get(self.starts.add.remote(number)))
