"""The time limit of a model call.

A timer of asyncio costs as much as reading an answer, and a stream would move it at each piece. The
calls of one event loop share one instead.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import Context
from types import TracebackType
from typing import Any, Protocol

from evaluator.errors import ProviderError

# A timer that fired looks at all limits: not for each of many that end one after the other.
_STEP_S = 0.005


class PartialAnswer(Protocol):
    """An answer that arrives in pieces."""

    @property
    def partial(self) -> str | None:
        """The text that came so far."""
        ...


class TimeLimit:
    """A context that bounds a call of the current task to `timeout_s`; `reset_idle` allows
    `idle_timeout_s` more of silence.

    `answer` is what arrives, where it is streamed. A call that takes longer is cancelled, as by
    `asyncio.timeout`. Raises: ProviderError, when the time is up.
    """

    __slots__ = (
        "_answer",
        "_cancelling",
        "_deadline",
        "_idle_timeout_s",
        "_is_expired",
        "_task",
        "_timeout_s",
        "_timer",
        "until",
    )

    def __init__(
        self, timeout_s: float, idle_timeout_s: float, answer: PartialAnswer | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timer = _timers.get(loop) or _new_timer(loop)
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._answer = answer
        self._is_expired = False
        self._deadline = loop.time() + timeout_s
        self.until = self._deadline

    def reset_idle(self) -> None:
        timer = self._timer
        self.until = min(self._deadline, timer.loop.time() + self._idle_timeout_s)
        if self.until < timer.at:
            timer.set(self.until)

    def expire(self) -> None:
        self._is_expired = True
        self._task.cancel()

    def __enter__(self) -> TimeLimit:
        task: Any = asyncio.current_task()
        self._task = task
        self._cancelling: int = task.cancelling()
        timer = self._timer
        timer.limits.add(self)
        if self.until < timer.at:
            timer.set(self.until)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_expired:
            self._timer.limits.discard(self)
            return
        # More requests to cancel than before are not from this limit.
        is_own = self._task.uncancel() <= self._cancelling
        if not isinstance(error, TimeoutError) and not (
            is_own and isinstance(error, asyncio.CancelledError)
        ):
            return
        message = f"no complete answer within {self._timeout_s:g} s"
        if self.until < self._deadline:
            message = f"the stream was silent for {self._idle_timeout_s:g} s"
        if self._answer is None:
            partial = None
        else:
            partial = self._answer.partial
        raise ProviderError(
            message, kind="timeout", retryable=True, maybe_billed=True, partial=partial
        ) from error


class _Timer:
    """The timer of one event loop, set to `at`. No limit ends earlier; some were moved or are over
    when it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.limits: set[TimeLimit] = set()
        self.at = math.inf
        self._handle: asyncio.TimerHandle | None = None
        # The context of the call that sets it would live as long as the timer.
        self._context = Context()

    def set(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.at = at
        self._handle = self.loop.call_at(at, self._fire, context=self._context)

    def _fire(self) -> None:
        # The loop may be early by the resolution of its clock.
        now = max(self.loop.time(), self.at)
        self.at = math.inf
        self._handle = None
        for limit in [limit for limit in self.limits if limit.until <= now]:
            self.limits.discard(limit)
            limit.expire()
        if self.limits:
            self.set(max(min(limit.until for limit in self.limits), now + _STEP_S))


_timers: dict[asyncio.AbstractEventLoop, _Timer] = {}


def _new_timer(loop: asyncio.AbstractEventLoop) -> _Timer:
    # Other threads may have event loops too.
    for other in list(_timers):
        if other.is_closed():
            _timers.pop(other, None)
    timer = _timers[loop] = _Timer(loop)
    return timer
