"""Runs scorers that compute in a thread, with values that user code may keep.

make progress.

Values from and for user code: containers are copied, numbers of other libraries converted, types
named.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from numbers import Real
from typing import Any, cast
from weakref import WeakKeyDictionary

from evaluator.processes.concurrency import in_thread


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


def copied(value: Any) -> Any:
    """A copy of the lists and dicts in `value`, at any depth; other values are shared."""
    if not isinstance(value, dict | list):
        return value
    whole = cast("dict[Any, Any] | list[Any]", value).copy()
    filled: list[Any] = [whole]
    while filled:
        inner = filled.pop()
        for key, item in inner.items() if isinstance(inner, dict) else enumerate(inner):
            if isinstance(item, dict | list):
                inner[key] = cast("dict[Any, Any] | list[Any]", item).copy()
                filled.append(inner[key])
    return whole


def plain_scalar(value: Any) -> Any:
    """A number or boolean of NumPy, PyTorch, `decimal`, `fractions` and others as a bool, int or
    float.

    Any other value is returned unchanged.

    Raises: ValueError or OverflowError, for a number outside the range of floats.
    """
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Real | Decimal):
        return float(value)
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        found = item()
    except Exception:
        # For example an array of several numbers: the caller reports it.
        return value
    if type(found) in (bool, int, float):
        return found
    return value


def type_name(value: object) -> str:
    """The type of a value with its module, except for built-in types: `numpy.ndarray`, `list`."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
