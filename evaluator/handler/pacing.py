"""Waiting for one's turn in one event loop: the Gate of a batch.

Calls of one model at one endpoint enter in the order in which they came; a waiting one costs nothing, and can be
cancelled. Nothing is asked again and again: who waits is woken by a call that leaves, or by a timer at the time at
which it may enter. The decisions are those of `pacing_state`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from math import inf

from evaluator.errors import NotLetIn, ProviderError
from evaluator.handler.gate import NOT_MADE, Passage, PlannedCall
from evaluator.handler.pacing_budget import BatchBudget
from evaluator.handler.pacing_state import EndpointState, Entry, Pace, PacingState
from evaluator.results import Usage

__all__ = ["BatchBudget", "EndpointState", "Pace", "Pacer"]


class Pacer:
    """A Gate for the calls of one batch, in one event loop. Not thread-safe.

    `pace` holds for each model of each endpoint, but for those that `by_model` names by their label. `budget` is for
    all calls together; its time counts from the first of them on. A call that is under way when the time is up goes
    on under its own limits.
    """

    def __init__(
        self, pace: Pace | None = None, *, budget: BatchBudget | None = None, by_model: Mapping[str, Pace] | None = None
    ) -> None:
        self._state = PacingState(pace, budget=budget, by_model=by_model)
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._stopped: str | None = None
        self._resting: set[asyncio.Future[None]] = set()
        self._samples = 0
        self._starting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    # -- calls ----------------------------------------------------------------------------------------------

    async def enter(self, call: PlannedCall) -> Passage:
        """As `Gate.enter`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        key = call.label, call.endpoint
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        if not queue.waiting and self._state.earliest(call, now) <= now:
            return _Passage(self, queue, self._state.entered(call, now), loop)
        if self._stopped is not None:
            raise self._state.refuse(self._stopped)
        turn: asyncio.Future[_Passage] = loop.create_future()
        queue.waiting[turn] = call
        self._let_in(queue, loop)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().leave(NOT_MADE, None, 0.0)
            elif queue.waiting.pop(turn, None) is not None:
                self._let_in(queue, loop)
            raise

    async def rest(self, seconds: float) -> None:
        """As `Gate.rest`."""
        loop = asyncio.get_running_loop()
        if self._stopped is not None:
            raise self._state.refuse(self._stopped)
        self._state.check_rest(loop.time() + seconds, loop.time())
        rested: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, rested)
        self._resting.add(rested)
        try:
            await rested
        finally:
            timer.cancel()
            self._resting.discard(rested)

    def stop(self, reason: str) -> None:
        """Refuses those who wait, and from now on whoever would have to: what may be called at once still is, so that
        what is under way comes to its end without waiting."""
        self._stopped = reason
        for queue in self._queues.values():
            for turn in queue.waiting:
                if not turn.done():
                    turn.set_exception(self._state.refuse(reason))
            queue.waiting.clear()
        for rested in self._resting:
            if not rested.done():
                rested.set_exception(self._state.refuse(reason))

    def _let_in(self, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        """Lets in who may enter by now, and sets the timer for who comes next."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        now = loop.time()
        while queue.waiting:
            turn, call = next(iter(queue.waiting.items()))
            if turn.done():
                del queue.waiting[turn]
                continue
            try:
                begins_at = self._state.earliest(call, now)
            except NotLetIn as error:
                del queue.waiting[turn]
                turn.set_exception(error)
                continue
            if begins_at > now:
                if begins_at < inf:
                    queue.timer = loop.call_at(begins_at, self._let_in, queue, loop)
                return
            del queue.waiting[turn]
            turn.set_result(_Passage(self, queue, self._state.entered(call, now), loop))

    def left(
        self,
        queue: _Queue,
        entry: Entry,
        usage: Usage | None,
        error: ProviderError | None,
        latency_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """A passage says that its call has ended."""
        self._state.left(entry, usage, error, latency_s, loop.time())
        if queue.waiting:
            self._let_in(queue, loop)
        if self._state.budget.is_shared_out:
            for other in self._queues.values():
                if other.waiting and other is not queue:
                    self._let_in(other, loop)
        if self._starting:
            self._start_samples()

    # -- whole samples --------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more samples may sensibly start now, so that they do not begin only to wait for their calls."""
        return max(0, self._state.samples_at_once() - self._samples)

    async def start_sample(self) -> None:
        """Returns when there is room for one more sample, and takes it, in the order of asking."""
        if not self._starting and self.room():
            self._samples += 1
            return
        start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting[start] = None
        try:
            await start
        except asyncio.CancelledError:
            if start.done() and not start.cancelled():
                self.end_sample()
            self._starting.pop(start, None)
            raise

    def end_sample(self) -> None:
        """Gives the room back that `start_sample` took."""
        self._samples -= 1
        self._start_samples()

    def _start_samples(self) -> None:
        room = self.room()
        while self._starting and room:
            start, _ = self._starting.popitem(last=False)
            if not start.done():
                self._samples += 1
                room -= 1
                start.set_result(None)

    # -- for display ----------------------------------------------------------------------------------------

    def state(self) -> list[EndpointState]:
        """Each model at each endpoint that was asked for. To be called in the event loop."""
        waiting = {key: len(queue.waiting) for key, queue in self._queues.items()}
        return self._state.states(asyncio.get_running_loop().time(), waiting)

    def spent(self) -> Usage:
        """What answers said that they used; None in it where one did not say."""
        return self._state.budget.spent

    def in_doubt(self) -> Usage:
        """The most that calls may have used which may have been billed and did not say: cut off, or failed late."""
        return self._state.budget.in_doubt

    @property
    def refused(self) -> NotLetIn | None:
        """Why a call was first not let in; None while the budget lasts. Others may still fit."""
        return self._state.refused


def _end(rested: asyncio.Future[None]) -> None:
    if not rested.done():
        rested.set_result(None)


class _Queue:
    __slots__ = ("timer", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[asyncio.Future[_Passage], PlannedCall] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None


class _Passage:
    __slots__ = ("_entry", "_loop", "_pacer", "_queue")

    def __init__(self, pacer: Pacer, queue: _Queue, entry: Entry, loop: asyncio.AbstractEventLoop) -> None:
        self._pacer, self._queue, self._loop = pacer, queue, loop
        self._entry: Entry | None = entry

    def leave(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """As `Passage.leave`."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._pacer.left(self._queue, entry, usage, error, latency_s, self._loop)
