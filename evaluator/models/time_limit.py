"""The time limit of a model call."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Protocol

from evaluator.alarms import alarms
from evaluator.errors import ProviderError


class PartialAnswer(Protocol):
    """An answer that arrives in pieces."""

    @property
    def partial(self) -> str | None:
        """The text that came so far."""
        ...


class TimeLimit:
    """A context that bounds a call of the current task to `timeout_s`; `reset_idle` allows
    `idle_timeout_s` more of silence.

    `answer` is what arrives, where it is streamed. A call that is not over at `until`, in seconds
    of the event loop's clock, is cancelled, as by `asyncio.timeout`. Raises: ProviderError, when
    the time is up.
    """

    __slots__ = (
        "_alarms",
        "_answer",
        "_cancelling",
        "_deadline",
        "_idle_timeout_s",
        "_is_expired",
        "_task",
        "_timeout_s",
        "until",
    )

    def __init__(
        self, timeout_s: float, idle_timeout_s: float, answer: PartialAnswer | None
    ) -> None:
        self._alarms = alarms()
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._answer = answer
        self._is_expired = False
        self._deadline = self._alarms.loop.time() + timeout_s
        self.until = self._deadline

    def reset_idle(self) -> None:
        if self._is_expired:
            # A library may ignore the cancellation: the call is not cancelled again.
            return
        idle_until = self._alarms.loop.time() + self._idle_timeout_s
        self.until = min(self._deadline, idle_until)
        self._alarms.set(self, self.until)

    def ring(self) -> None:
        """Cancels the call."""
        self._is_expired = True
        self._task.cancel()

    def __enter__(self) -> TimeLimit:
        task: Any = asyncio.current_task()
        self._task = task
        self._cancelling: int = task.cancelling()
        self._alarms.set(self, self.until)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_expired:
            self._alarms.clear(self)
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
