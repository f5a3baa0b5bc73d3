"""An event loop in virtual time whose ready tasks run in an order that a seed decides."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

# Nothing that is simulated takes as long.
MAX_S = 48 * 3600.0
MAX_ROUNDS = 200_000


class Hang(Exception):
    """A run that never ends: nothing is due, or virtual days have passed."""


class _Jumping(selectors.SelectSelector):
    """Moves the time to the next timer instead of waiting."""

    now = 1000.0
    rounds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.rounds += 1
        if timeout is None:
            raise Hang("every task waits, and no timer is set")
        if timeout > 0:
            self.now += timeout
        if self.now > MAX_S or self.rounds > MAX_ROUNDS:
            raise Hang(f"after {self.now:.0f} s and {self.rounds} rounds")
        return []


class SimulatedTimer:
    """Calls `work` after `seconds`, once it was started."""

    daemon = False

    def __init__(self, loop: SimulatedLoop, seconds: float, work: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._work = work
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._handle = self._loop.call_later(self._seconds, self._work)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def join(self) -> None:
        pass


class SimulatedExecutor:
    """What `ThreadPoolExecutor` is in virtual time: each work runs after a delay, at the latest at the end."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._works: list[Callable[[], object]] = []

    def submit(self, work: Callable[[], object]) -> None:
        self._works.append(work)
        self._loop.start_thread(self._run_next, "executor")

    def _run_next(self) -> None:
        if self._works:
            self._works.pop(0)()

    def shutdown(self, *, wait: bool) -> None:
        while self._works:
            self._run_next()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`before_round` is called before each round and may raise, which ends the loop there.

    Calls in threads run after a delay, one at a time.
    """

    def __init__(self, random: Random, before_round: Callable[[], None]) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self._random = random
        self._before_round = before_round
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._jumping.now

    def begin_again(self) -> None:
        """Allows as many rounds as a new loop has."""
        self._jumping.rounds = 0
        self._jumping.now = 1000.0

    def pause(self, seconds: float) -> None:
        """What `time.sleep` is in virtual time."""
        self._jumping.now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        result = self.create_future()

        def call() -> None:
            if result.done():
                return
            try:
                value = func(*args)
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)

        self.call_later(self._random.uniform(0.0001, 0.02), call)
        return result

    def start_thread(self, work: Callable[[], None], name: str) -> None:
        self.call_later(self._random.uniform(0.0001, 0.02), work)

    def timer(self, seconds: float, work: Callable[[], None]) -> SimulatedTimer:
        """What `threading.Timer` is in virtual time."""
        return SimulatedTimer(self, seconds, work)

    def executor(self, *_: Any, **__: Any) -> SimulatedExecutor:
        return SimulatedExecutor(self)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return self.call_soon(callback, *args, **more)

    def _run_once(self) -> None:
        self._before_round()
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            self._shuffle(ready)
        super()._run_once()  # type: ignore[misc]

    def _shuffle(self, ready: deque[Any]) -> None:
        """Exchanges steps of different tasks; other callbacks keep their places."""
        handles = list(ready)
        places = [
            place
            for place, handle in enumerate(handles)
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)
        ]
        mixed = places[:]
        self._random.shuffle(mixed)
        for place, other in zip(places, mixed, strict=True):
            ready[place] = handles[other]
