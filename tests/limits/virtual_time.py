"""An event loop whose clock jumps to the next timer when nothing else is ready, so that no test sleeps. While it runs,
`clock.monotonic` has its time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

from evaluator import clock

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and moves by timers only. Not for threads or sockets."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        patch.object(clock, "monotonic", runner.get_loop().time),
    ):
        return runner.run(main)
