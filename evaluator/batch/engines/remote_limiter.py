"""One limiter for calls that other processes make: requests and answers are messages.

A call made in another process acquires its permit from the batch's one limiter, together with all
other calls, and reports its usage there. The calls of a lost process count as made with unknown
usage, so that a budget is never exceeded by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from evaluator import clock
from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.limits.call_limiter import UNLIMITED, UNUSED, CallLimiter, Permit, PlannedCall

Send = Callable[[tuple[Any, ...]], None]
"""Queues a message for the other process: its kind, then its contents. Does not wait."""


class RemoteLimiter:
    """A CallLimiter in a process that makes calls. It sends `acquire` and `release`; `answer` takes
    the answers.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._numbers = count(1)
        self._acquiring: dict[int, asyncio.Future[None]] = {}

    async def acquire(self, call: PlannedCall) -> Permit:
        """As `CallLimiter.acquire`; takes at least one round trip."""
        number = next(self._numbers)
        acquiring = self._acquiring[number] = asyncio.get_running_loop().create_future()
        self._send(("acquire", number, call))
        try:
            await acquiring
        except asyncio.CancelledError:
            # The limiter knows whether the permit was granted meanwhile.
            self._send(("release", number, UNUSED, None, 0.0))
            raise
        finally:
            self._acquiring.pop(number, None)
        return _RemotePermit(self._send, number)

    async def rest(self, seconds: float) -> None:
        """As `CallLimiter.rest`, except that the rejection comes only with the next `acquire`."""
        await clock.sleep(seconds)

    def answer(self, number: int, rejection: Exception | None = None) -> None:
        """The call of that number may be made, or it is rejected."""
        acquiring = self._acquiring.get(number)
        if acquiring is None or acquiring.done():
            return
        if rejection is None:
            acquiring.set_result(None)
        else:
            acquiring.set_exception(rejection)


class _RemotePermit:
    __slots__ = ("_number", "_send")

    def __init__(self, send: Send, number: int) -> None:
        self._send: Send | None = send
        self._number = number

    def release(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """As `Permit.release`."""
        send = self._send
        self._send = None
        if send is not None:
            send(("release", self._number, usage, error, latency_s))


class LimiterProxy:
    """Acquires permits for one other process. Sends `acquired` and `rejected`, and calls
    `on_rejected` after a rejection.
    """

    def __init__(
        self, limiter: CallLimiter | None, send: Send, on_rejected: Callable[[], None]
    ) -> None:
        self._limiter = limiter
        self._send = send
        self._on_rejected = on_rejected
        self._acquiring: dict[int, asyncio.Task[None]] = {}
        self._permits: dict[int, Permit] = {}

    def acquire(self, number: int, call: PlannedCall) -> None:
        self._acquiring[number] = asyncio.ensure_future(self._acquire(number, call))

    async def _acquire(self, number: int, call: PlannedCall) -> None:
        try:
            if self._limiter is None:
                self._permits[number] = UNLIMITED
            else:
                self._permits[number] = await self._limiter.acquire(call)
        except Exception as error:
            self._send(("rejected", number, error))
            self._on_rejected()
        else:
            self._send(("acquired", number))
        finally:
            self._acquiring.pop(number, None)

    def release(
        self, number: int, usage: Usage | None, error: ProviderError | None, latency_s: float
    ) -> None:
        acquiring = self._acquiring.pop(number, None)
        if acquiring is not None:
            acquiring.cancel()
            return
        permit = self._permits.pop(number, None)
        if permit is not None:
            permit.release(usage, error, latency_s)

    def close(self) -> None:
        """The process is gone: its waiting calls are dropped, and the usage of its calls in flight
        is unknown.
        """
        for acquiring in self._acquiring.values():
            acquiring.cancel()
        for permit in self._permits.values():
            permit.release(None, None, 0.0)
        self._acquiring.clear()
        self._permits.clear()
