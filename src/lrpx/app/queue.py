"""A queue: one computation at a time, first come, first served. Who leaves loses the place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from ..errors import LrpxError

LONGEST = 20


class Queue:
    """Who waits for the model.

    Args:
        longest: How many may wait, the one whose turn it is included.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._tickets: list[object] = []
        self._moved = anyio.Event()

    def __len__(self) -> int:
        return len(self._tickets)

    @asynccontextmanager
    async def turn(self, tell: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait for one's turn, and keep it for the block. ``tell`` is called with how many are ahead, whenever that changes.

        Whoever need not wait is told nothing.

        Raises:
            LrpxError: Too many are waiting.
        """
        if len(self._tickets) >= self.longest:
            raise LrpxError(f"{len(self._tickets)} questions are waiting already. Try again in a moment.")
        ticket = object()
        self._tickets.append(ticket)
        waited = False
        try:
            while True:
                moved = self._moved  # taken first, so that no move is missed meanwhile
                ahead = self._tickets.index(ticket)
                if ahead or waited:
                    await tell(ahead)
                if not ahead:
                    break
                waited = True
                await moved.wait()
            yield
        finally:
            self._tickets.remove(ticket)
            self._moved.set()
            self._moved = anyio.Event()
