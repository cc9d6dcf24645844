"""Work that nothing waits for until a pass ends: what the model predicts, beside the backward pass.

All logits of a vocabulary take a tenth as long as a short text's pass, and its gradient needs two of them. A CUDA graph can do
both at once: work on another stream becomes a branch of the graph. Everywhere else the work is done when it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Aside:
    """Does the work at once."""

    def __call__(self, work: Callable[[], T]) -> T:
        """Do ``work``; its result may be used by further work, and by all else after ``join``."""
        return work()

    def join(self) -> None:
        """Let all that comes now wait for what was done aside."""


class OnAStream(Aside):
    """Does the work of one pass on another stream, each piece after the one before and after what has been asked of the device.

    Args:
        device: A CUDA device.
        stream: Of this device.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._begun: list[Callable[[], object]] = []  # which hold what they read, or its memory would be used again

    def __call__(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the stream."""
        self._begun.append(work)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """As above, on the device; this thread does not wait."""
        if self._begun:  # a stream that had no work has no part in a capture
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._begun.clear()


AT_ONCE = Aside()
