"""Scorers that compute run in a thread beside the event loop, one at a time, so that other samples
make progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from evaluator.processes.threads import in_thread


class GivenBack(BaseException):
    """The computation has not started and is to be done in another process, which has nothing to
    do.

    `tasks`: the completed tasks of the sample and of its judges, by label.
    """

    def __init__(self) -> None:
        super().__init__("given back")
        self.tasks: dict[str, int] = {}


class ComputeQueue:
    """Calls functions in a thread, one after the other, in the order in which they arrive."""

    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._wanted = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """The result of `function`; raises whatever it raises. When cancelled, a function that runs
        already continues and its result is discarded.

        Raises: GivenBack, see `give_back`.
        """
        if self._is_busy:
            await self._turn()
        self._is_busy = True
        try:
            value, error = await in_thread(lambda: _outcome(function))
        finally:
            self._pass_on()
        if error is not None:
            raise error
        return value

    async def _turn(self) -> None:
        if self._wanted:
            self._wanted -= 1
            raise GivenBack
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._waiting.popleft().set_result(None)

    def give_back(self, number: int) -> None:
        """Raises GivenBack in the newest calls that wait for their turn, and, if there are fewer
        than `number`, in the next ones that would have to wait.
        """
        waiting = min(number, len(self._waiting))
        self._wanted = number - waiting
        for _ in range(waiting):
            self._waiting.pop().set_exception(GivenBack())


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error


_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, ComputeQueue] = WeakKeyDictionary()


def compute_queue() -> ComputeQueue:
    """The queue of the running event loop."""
    return _QUEUES.setdefault(asyncio.get_running_loop(), ComputeQueue())
