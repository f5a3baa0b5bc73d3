"""The clock of the background tasks of a process; tests replace it by
`evaluator.testing.FakeClock`.
"""

from __future__ import annotations

from typing import Protocol

from evaluator import clock


class Clock(Protocol):
    """A monotonic time in seconds, and sleeping until a later one."""

    def time(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real time."""

    def time(self) -> float:
        return clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await clock.sleep(seconds)
