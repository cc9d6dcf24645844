"""One at a time, first come, first served; who leaves loses the place, and nobody else does."""

from functools import partial

import anyio
import pytest

from lrpx.app.queue import Queue
from lrpx.errors import LrpxError


async def visit(queue, name, told, gate):
    async def tell(ahead):
        told.append((name, ahead))

    async with queue.turn(tell):
        told.append((name, "runs"))
        await gate.wait()
        told.append((name, "done"))


def test_places_in_the_queue_and_who_leaves():
    told = []

    async def main():
        queue, gates, scopes = Queue(), [anyio.Event() for _ in range(4)], [anyio.CancelScope() for _ in range(4)]

        async def visitor(n):
            with scopes[n]:
                await visit(queue, n, told, gates[n])

        async with anyio.create_task_group() as tasks:
            for n in range(4):
                tasks.start_soon(visitor, n)
                await anyio.wait_all_tasks_blocked()
            assert told == [(0, "runs"), (1, 1), (2, 2), (3, 3)]
            scopes[1].cancel()  # leaves while waiting
            await anyio.wait_all_tasks_blocked()
            assert told[4:] == [(2, 1), (3, 2)]
            scopes[0].cancel()  # leaves while it is its turn
            await anyio.wait_all_tasks_blocked()
            assert told[6:] == [(2, 0), (2, "runs"), (3, 1)]
            gates[2].set()
            await anyio.wait_all_tasks_blocked()
            gates[3].set()
        assert told[9:] == [(2, "done"), (3, 0), (3, "runs"), (3, "done")]
        assert len(queue) == 0

    anyio.run(main)


def test_an_error_frees_the_place():
    async def main():
        queue = Queue()
        with pytest.raises(ZeroDivisionError):
            async with queue.turn(None):
                raise ZeroDivisionError
        async with queue.turn(None):
            assert len(queue) == 1

    anyio.run(main)


def test_a_queue_that_is_full():
    async def main():
        queue, gate = Queue(longest=2), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for n in range(2):
                tasks.start_soon(partial(visit, queue, n, [], gate))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(LrpxError, match="2 questions are waiting already"):
                await visit(queue, 2, [], gate)
            gate.set()

    anyio.run(main)
