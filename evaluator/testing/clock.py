"""A clock that stands still until a test advances it."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import ExitStack
from typing import Self
from unittest.mock import patch

from evaluator import clock


class FakeClock:
    """A time in seconds that only `advance` changes.

    As a context manager it replaces `monotonic`, `wall` and `sleep` of `evaluator.clock`, which is
    the time of everything in this process; the wall clock starts at its real time.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start
        self._ahead = clock.wall() - start
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._replaced = ExitStack()

    def __enter__(self) -> Self:
        times = {
            "monotonic": self.time,
            "wall": lambda: self._ahead + self._now,
            "sleep": self.sleep,
        }
        for name, value in times.items():
            self._replaced.enter_context(patch.object(clock, name, value))
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.close()

    def time(self) -> float:
        """The current time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Waits until the clock has advanced by `seconds`."""
        self._count += 1
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._now + seconds, self._count, wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Moves the time forward, waking each sleeper at its own time, in order, and letting it
        run.
        """
        until = self._now + seconds
        while self._waiting and self._waiting[0][0] <= until:
            self._now, _, wake = heapq.heappop(self._waiting)
            if not wake.done():
                wake.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._now = until
