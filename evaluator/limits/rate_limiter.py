"""The CallLimiter of a batch: rates, concurrency and a budget for all calls of one event loop.

Calls of one model at one endpoint begin in the order in which they were requested. A waiting call
costs nothing and can be cancelled. Nothing polls: the end of another call wakes a waiting one, or a
timer at the time at which it may begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from evaluator.errors import CallRejected, ProviderError
from evaluator.errors.results import Usage
from evaluator.limits.batch_budget import BatchBudget, BatchSpending
from evaluator.limits.call_limiter import UNUSED, CallUsage, Permit, PlannedCall
from evaluator.limits.endpoints import CallInFlight, Endpoint, EndpointState, Pace, host_of

__all__ = ["BatchBudget", "EndpointState", "Pace", "RateLimiter"]

MAX_HOLD_S = 3600.0
"""So long a `Retry-After` may hold an endpoint where the session has no time limit."""


class RateLimiter:
    """A CallLimiter for the calls of one batch, in one event loop. Not thread-safe.

    `pace` holds for each model of each endpoint; a `Retry-After` holds all models of its endpoint,
    and calls there are rejected if it is longer than what the budget's time has left (without one:
    an hour). `budget` is for all calls together, `spending` what counts against it; its time counts
    from the first call. A call that runs when the time is up continues under its own limits.
    `refused` is why a call was first rejected, None until then; a smaller call may still fit.
    """

    def __init__(self, pace: Pace | None = None, *, budget: BatchBudget | None = None) -> None:
        self.refused: CallRejected | None = None
        self.keepers: set[Callable[[], None]] = set()
        """Called when those who keep places have to give them back, see `may_keep`."""
        self._pace = pace or Pace()
        self.spending = BatchSpending(budget or BatchBudget())
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._held_until: dict[str, float] = {}
        self._stopped: str | None = None
        self._is_paused = False
        self._resting: set[asyncio.Future[None]] = set()
        self._samples = 0
        self._starting: dict[asyncio.Future[None], Callable[[], int] | None] = {}

    # -- calls -------------------------------------------------------------------------------------

    async def acquire(self, call: PlannedCall) -> Permit:
        """As `CallLimiter.acquire`."""
        permit = self.acquire_now(call)
        if permit is not None:
            return permit
        loop = asyncio.get_running_loop()
        endpoint = self._endpoints[call.label, call.endpoint]
        self._check_stopped()
        slot: asyncio.Future[Permit] = loop.create_future()
        endpoint.waiting[slot] = call
        self._recall_places()
        self._permit_waiting(endpoint, loop)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled() and slot.exception() is None:
                slot.result().release(UNUSED, None, 0.0)
            elif endpoint.waiting.pop(slot, None) is not None:
                self._permit_waiting(endpoint, loop)
            raise

    def acquire_now(self, call: PlannedCall) -> Permit | None:
        """As `acquire`; None if the call has to wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        key = call.label, call.endpoint
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints[key] = Endpoint(*key, self._pace)
        if not endpoint.waiting and self._earliest(endpoint, call, now=now) <= now:
            return self._permit(endpoint, call, now=now, loop=loop)
        return None

    def _earliest(self, endpoint: Endpoint, call: PlannedCall, now: float) -> float:
        """The time from which `call` may begin: at most `now`, if at once; inf, if another call has
        to end first.

        A time in the future is when to ask again, not a promise.

        Raises: CallRejected, if the budget rejects the call now or later.
        """
        spending = self.spending
        try:
            spending.check_time(now, now)
            if self._is_paused:
                return spending.ends_at(now)
            held_until = self._held_until.get(call.endpoint, now)
            if held_until > now:
                self._check_hold(call, held_until, now=now)
            if not spending.has_shared_limit or spending.fits(call):
                begins_at = endpoint.earliest(call, now)
            else:
                begins_at = inf
            if begins_at == inf:
                return spending.ends_at(now)
            begins_at = max(begins_at, held_until)
            if begins_at > now:
                spending.check_time(begins_at, now)
            return begins_at
        except CallRejected as error:
            self.refused = self.refused or error
            raise

    def _check_hold(self, call: PlannedCall, held_until: float, now: float) -> None:
        """Raises: CallRejected, if a `Retry-After` holds the endpoint for longer than the session
        may wait.
        """
        wait = held_until - now
        left = self.spending.ends_at(now) - now
        why = f"the session has {left:,.0f} s left"
        if left == inf:
            left = MAX_HOLD_S
            why = f"a session waits at most {MAX_HOLD_S:,.0f} s"
        if wait > left:
            message = (
                f"{host_of(call.endpoint)} answered with a Retry-After: no call for "
                f"{wait:,.0f} s, and {why}"
            )
            raise CallRejected(
                "time",
                round(wait, 3),
                limit=round(left, 3),
                message=f"{message}; resume the batch later",
            )

    def _permit(
        self, endpoint: Endpoint, call: PlannedCall, now: float, loop: asyncio.AbstractEventLoop
    ) -> PlacePermit:
        self.spending.reserve(call)
        return PlacePermit(self, endpoint.begin(call, now), loop=loop)

    # -- places that another process keeps ---------------------------------------------------------

    def may_keep(self, call: PlannedCall) -> bool:
        """Whether a process may keep the place of a permitted call for its next calls to the same
        model, without asking: until `keepers` are called. Nothing but the number of calls at once
        limits them then, and there is room for more.
        """
        endpoint = self._endpoints[call.label, call.endpoint]
        return (
            not self.spending.has_limit
            and not self._is_paused
            and self._stopped is None
            and not endpoint.waiting
            and endpoint.has_free_place
            and self._held_until.get(call.endpoint, 0.0) <= asyncio.get_running_loop().time()
        )

    def plan(self, place: CallInFlight, call: PlannedCall) -> None:
        """Another call was made in a kept place than the one that was permitted there."""
        self.spending.settle(place.call, UNUSED, None)
        self.spending.reserve(call)
        place.call = call

    def renew(self, place: CallInFlight, usage: CallUsage, latency_s: float, now: float) -> None:
        """Counts how the call in a kept place ended, and begins the next one there. Where it was a
        slow one, there may be fewer places from now on.
        """
        endpoint = place.endpoint
        self.spending.renew(place.call, usage)
        if endpoint.renew(place, usage, latency_s, now):
            self._recall_places()

    def _recall_places(self) -> None:
        for recall in self.keepers:
            recall()

    def _permit_waiting(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        """Permits the waiting calls that may begin by now, and sets the timer for the next one."""
        if endpoint.timer is not None:
            endpoint.timer.cancel()
            endpoint.timer = None
        now = loop.time()
        while endpoint.waiting:
            slot, call = next(iter(endpoint.waiting.items()))
            if not slot.done():
                try:
                    begins_at = self._earliest(endpoint, call, now=now)
                except CallRejected as error:
                    slot.set_exception(error)
                else:
                    if begins_at > now:
                        if begins_at < inf:
                            endpoint.timer = loop.call_at(
                                begins_at, self._permit_waiting, endpoint, loop
                            )
                        return
                    slot.set_result(self._permit(endpoint, call, now=now, loop=loop))
            del endpoint.waiting[slot]

    def end_call(
        self,
        ended: CallInFlight,
        usage: Usage | None,
        error: ProviderError | None,
        latency_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Called by a released permit: counts how the call ended, and permits what may begin
        now.
        """
        name = ended.call.endpoint
        endpoint = ended.endpoint
        now = loop.time()
        self.spending.settle(ended.call, usage, error)
        endpoint.end(ended, usage, error, latency_s, now)
        if error is not None:
            self._recall_places()
        if error is not None and error.retryable and error.retry_after_s is not None:
            self._held_until[name] = max(self._held_until.get(name, now), now + error.retry_after_s)
        # If calls share a budget, the unused part of this call's reservation may permit a call of
        # any endpoint.
        for other in self._endpoints.values() if self.spending.has_shared_limit else (endpoint,):
            if other.waiting:
                self._permit_waiting(other, loop)
        if self._starting:
            self._start_samples()

    async def rest(self, seconds: float) -> None:
        """As `CallLimiter.rest`."""
        self._check_stopped()
        loop = asyncio.get_running_loop()
        try:
            self.spending.check_time(loop.time() + seconds, loop.time())
        except CallRejected as error:
            self.refused = self.refused or error
            raise
        rest: asyncio.Future[None] = loop.create_future()
        self._resting.add(rest)
        try:
            async with asyncio.timeout(seconds):
                await rest
        except TimeoutError:
            pass
        finally:
            self._resting.discard(rest)

    def change(self, pace: Pace, budget: BatchBudget) -> None:
        """Sets other limits for the calls that begin from now on. Call it in the event loop."""
        self._recall_places()
        self._pace = pace
        self.spending.change(budget)
        now = asyncio.get_running_loop().time()
        for endpoint in self._endpoints.values():
            endpoint.change(pace, now)
        self._permit_all()

    def pause(self) -> None:
        """Lets calls and samples wait that have not begun, until `resume` or `stop`. The budget's
        time goes on.
        """
        self._is_paused = True
        self._recall_places()

    def resume(self) -> None:
        """Ends a pause. Call it in the event loop."""
        self._is_paused = False
        self._permit_all()

    def _permit_all(self) -> None:
        loop = asyncio.get_running_loop()
        for endpoint in self._endpoints.values():
            if endpoint.waiting:
                self._permit_waiting(endpoint, loop)
        self._start_samples()

    def stop(self, reason: str) -> None:
        """Rejects the calls that wait, and from now on every call that would have to wait.

        A call that may begin at once still may, so that running tasks can end without waiting. A
        pause ends.
        """
        self._stopped = reason
        self._is_paused = False
        self._recall_places()
        waiting = [slot for endpoint in self._endpoints.values() for slot in endpoint.waiting]
        for future in (*waiting, *self._resting):
            if not future.done():
                future.set_exception(self._rejection(reason))
        for endpoint in self._endpoints.values():
            endpoint.waiting.clear()
        self._start_samples()

    def reserve(self, call: PlannedCall) -> bool:
        """Reserves what a call may use that is not made now; False, if it does not fit while others
        have reserved more than they may use.

        Raises: CallRejected, if it would pass a limit whatever others use.
        """
        try:
            fits = self.spending.fits(call)
        except CallRejected as error:
            self.refused = self.refused or error
            raise
        if fits:
            self.spending.reserve(call)
        return fits

    def start_again(self) -> None:
        """Permits calls again after `stop` or a rejection; what was spent stays."""
        self._stopped = None
        self.refused = None

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise self._rejection(self._stopped)

    def _rejection(self, reason: str) -> CallRejected:
        error = CallRejected("time", 0.0, limit=0.0, message=reason)
        self.refused = self.refused or error
        return error

    # -- whole samples -----------------------------------------------------------------------------

    def room(self) -> int:
        """The number of further samples that may start now without only waiting for their calls.

        Up to 1.5 times as many samples as calls may run: a sample does not call all the time, and a
        few samples have to wait so that the concurrency limit can grow. None during a pause.
        """
        if self._is_paused:
            return 0
        calls = 0
        for endpoint in self._endpoints.values():
            calls += endpoint.limit
        calls = calls or self._pace.concurrency
        return max(0, calls + (calls + 1) // 2 - self._samples)

    async def start_samples(self, most: int = 1, places: Callable[[], int] | None = None) -> int:
        """Returns when there is room for one more sample, in the order of the requests. Takes it,
        and as much as there is for others, for at most so many. `places` returns how many more the
        caller can start now: it may become less while this waits.

        Returns: the number of samples that may start.
        """
        if not self._starting:
            taken = min(most, self.room())
            if places is not None:
                taken = min(taken, places())
            if taken > 0:
                self._samples += taken
                return taken
        while True:
            start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._starting[start] = places
            self._start_samples()
            try:
                await start
            except asyncio.CancelledError:
                if start.done() and not start.cancelled():
                    self.end_samples()
                self._starting.pop(start, None)
                raise
            if places is not None and places() <= 0:
                # It became less since. The next end of a sample, or other limits, wake it again.
                self._samples -= 1
                continue
            if self._starting:
                return 1
            if places is not None:
                most = min(most, places())
            further = min(most - 1, self.room())
            self._samples += further
            return 1 + further

    def end_samples(self, count: int = 1) -> None:
        """Releases the room that `start_samples` took for so many."""
        self._samples -= count
        if self._starting:
            self._start_samples()

    def _start_samples(self) -> None:
        for start, places in list(self._starting.items()):
            if not self.room():
                return
            # Who cannot start a sample now is not woken for it, and keeps nobody waiting.
            if places is not None and places() <= 0:
                continue
            del self._starting[start]
            if not start.done():
                self._samples += 1
                start.set_result(None)

    # -- for display -------------------------------------------------------------------------------

    def state(self) -> list[EndpointState]:
        """Each model at each endpoint that was called. Call it in the event loop."""
        now = asyncio.get_running_loop().time()
        return [
            endpoint.state(max(0.0, self._held_until.get(name, now) - now))
            for (_, name), endpoint in self._endpoints.items()
        ]


class PlacePermit:
    """A Permit whose place may be kept for a further call."""

    __slots__ = ("_call", "_limiter", "_loop")

    def __init__(
        self, limiter: RateLimiter, call: CallInFlight, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._limiter = limiter
        self._loop = loop
        self._call: CallInFlight | None = call

    def release(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """As `Permit.release`."""
        call = self._call
        self._call = None
        if call is not None:
            self._limiter.end_call(call, usage, error, latency_s, self._loop)

    def plan(self, call: PlannedCall) -> None:
        """`call` was made in the place, which was kept, and not the one that was permitted."""
        if self._call is not None and self._call.call is not call:
            self._limiter.plan(self._call, call)

    def renew(
        self, usage: CallUsage, latency_s: float, call: PlannedCall | None, now: float
    ) -> None:
        """Reports an answered call, as `release`, and keeps the place. `call`: see `plan`."""
        if call is not None:
            self.plan(call)
        if self._call is not None:
            self._limiter.renew(self._call, usage, latency_s, now)
