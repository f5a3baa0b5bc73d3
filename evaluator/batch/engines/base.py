"""The Engine protocol, the concurrent run that engines share, and the links of a pool.

A `Link` is the connection to one process.

A call made in another process acquires its permit from the batch's one limiter, together with all
other calls, and reports its usage there; requests and answers are messages. The calls of a lost
process count as made with unknown usage, so that a budget is never exceeded by them.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, runtime_checkable

from evaluator import clock
from evaluator.batch.engines.packing import ResultLines
from evaluator.batch.progress import SilentProcess
from evaluator.batch.records import Failure, SampleResult, Verdict
from evaluator.batch.work import Worker
from evaluator.batch.work_items import WorkItem, WorkResult
from evaluator.errors import EvaluatorError, ProviderError
from evaluator.errors.results import Usage
from evaluator.limits.call_limiter import (
    UNLIMITED,
    UNUSED,
    CallLimiter,
    CallUsage,
    Permit,
    PlannedCall,
)
from evaluator.limits.rate_limiter import PlacePermit, RateLimiter
from evaluator.processes.concurrency import TASKS_A_TURN, cancel_all, run_together
from evaluator.record.journal import now

NextWork = Callable[[int], Awaitable[Sequence[WorkItem]]]
Done = WorkResult | ResultLines
OnDone = Callable[[Done], None]
IsStopping = Callable[[], bool]


class ClusterLost(EvaluatorError):
    """No process is left to evaluate in. Finished samples are stored, and the batch can be
    resumed.
    """


class Engine(Protocol):
    """Takes work until there is none, has a Worker perform it, and hands in the results.

    `next_work` returns the next works, as soon as one may start: at most as many as its argument
    says; none at the end and from then on. It is never called twice at once. `on_done` is called
    with each work that was taken, once, in the caller's event loop, soon after it is done, in any
    order; it does not block for long. Results that another process has made may come together. Work
    that has not started yet when `is_stopping` becomes true is handed in as pending. An exception
    from either of them ends the run; `run` raises it after it has cancelled everything in flight.

    No work is lost: when a node or a process dies, another does its work again, and at most the
    work that was in flight there is repeated. If none is left, `run` raises ClusterLost. Cancelling
    `run` cancels everything in flight.
    """

    @property
    def name(self) -> str: ...

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None: ...

    def in_flight(self) -> int:
        """How many samples are being evaluated now."""
        ...


@runtime_checkable
class ResizableEngine(Protocol):
    """An Engine whose concurrency can be changed while it runs."""

    def resize(self, concurrency: int) -> None:
        """From now on, at most `concurrency` samples are started at once; those in flight go on.

        Called in the event loop of `Engine.run`.
        """
        ...


@runtime_checkable
class WatchedEngine(Protocol):
    """An Engine that watches the processes which it evaluates in."""

    def silent(self) -> Sequence[SilentProcess]:
        """The processes without a sign of life. They are waited for: a sample may be at work
        there.
        """
        ...


class ConcurrentRun:
    """Performs at most `concurrency` works at once. One feeder takes the next works as soon as
    others have ended and their results are handed in: at most `portion` in a turn of the event
    loop.
    """

    def __init__(self, concurrency: int, portion: int = sys.maxsize) -> None:
        self._concurrency = concurrency
        self._portion = portion
        # Works have ended, or the concurrency is another one.
        self._has_changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._feeding: asyncio.Future[None] | None = None
        self._on_done: OnDone | None = None
        self.in_flight = 0

    def resize(self, concurrency: int) -> None:
        """Sets another concurrency."""
        self._concurrency = concurrency
        self._has_changed.set()

    async def run(
        self,
        begin: Callable[[Sequence[WorkItem]], None],
        next_work: NextWork,
        on_done: OnDone,
    ) -> None:
        """Calls `begin` with works to start, and returns when all of them were handed in. Raises
        what any of the three raises, or what `fail` was given.
        """
        self._on_done = on_done
        self._failure = None
        self.in_flight = 0
        feeding = self._feeding = asyncio.ensure_future(self._feed(begin, next_work))
        try:
            await feeding
            while self.in_flight and self._failure is None:
                self._has_changed.clear()
                await self._has_changed.wait()
        except asyncio.CancelledError:
            if self._failure is None:
                raise
        finally:
            self._on_done = None
            self.in_flight = 0
            await cancel_all([feeding])
        if self._failure is not None:
            raise self._failure

    async def _feed(self, begin: Callable[[Sequence[WorkItem]], None], next_work: NextWork) -> None:
        while True:
            while self.in_flight >= self._concurrency:
                self._has_changed.clear()
                await self._has_changed.wait()
            works = await next_work(min(self._concurrency - self.in_flight, self._portion))
            if not works:
                return
            self.in_flight += len(works)
            begin(works)
            if len(works) == self._portion:
                await asyncio.sleep(0)

    def hand_in(self, done: Done) -> None:
        """Hands in what has ended."""
        if self._on_done is None:
            return
        self.free(1 if isinstance(done, WorkResult) else len(done.works))
        try:
            self._on_done(done)
        except BaseException as error:
            self.fail(error)

    def free(self, places: int) -> None:
        """So many works have ended."""
        if self._on_done is not None:
            self.in_flight -= places
            self._has_changed.set()

    def fail(self, error: BaseException) -> None:
        """Ends the run."""
        if self._failure is None:
            self._failure = error
        if self._feeding is not None:
            self._feeding.cancel()
        self._has_changed.set()


async def perform_here(
    run: ConcurrentRun,
    perform: Callable[[WorkItem], Coroutine[Any, Any, WorkResult]],
    next_work: NextWork,
    on_done: OnDone,
) -> None:
    """Performs each work in a task of this event loop. See `ConcurrentRun.run`; everything in
    flight was cancelled and has ended when an exception is raised.
    """
    running: set[asyncio.Future[WorkResult]] = set()
    # `asyncio.ensure_future` looks for the loop again for each work.
    create_task = asyncio.get_running_loop().create_task

    def begin(works: Sequence[WorkItem]) -> None:
        for work in works:
            future = create_task(perform(work))
            running.add(future)
            future.add_done_callback(end)

    def end(future: asyncio.Future[WorkResult]) -> None:
        running.discard(future)
        if future.cancelled():
            run.free(1)
            return
        error = future.exception()
        if error is None:
            run.hand_in(future.result())
        else:
            run.fail(error)

    try:
        await run.run(begin, next_work, on_done)
    finally:
        await cancel_all(running)


class LocalEngine:
    """Evaluates `concurrency` samples at once in this process. The limiter bounds the calls to each
    endpoint.
    """

    name = "local"

    def __init__(self, concurrency: int) -> None:
        self._run = ConcurrentRun(concurrency, TASKS_A_TURN)

    def in_flight(self) -> int:
        return self._run.in_flight

    def resize(self, concurrency: int) -> None:
        """See `ResizableEngine`."""
        self._run.resize(concurrency)

    async def run(
        self, worker: Worker, next_work: NextWork, on_done: OnDone, is_stopping: IsStopping
    ) -> None:
        """See `Engine`. Work starts when it is taken, so that `is_stopping` has no effect."""
        await perform_here(self._run, worker.perform, next_work, on_done)


def unanswered_result(work: WorkItem, failure: Failure) -> SampleResult:
    """The error of a sample that no Worker has answered."""
    return work.result(Verdict.ERROR, failure=failure, started=now(), task_id=None, task_file=None)


class HostLost(Exception):
    """The process, or its node, is gone."""


class Remote(Protocol):
    """A Host in another process."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """The answer of a method of the Host. What is posted need not be answered; it arrives in
        order. Raises: HostLost, if the process is gone.
        """
        ...

    async def listen(self, deliver: Callable[[bytes], None]) -> None:
        """Calls `deliver` with each answer of the Host's `listen`, in order, until it is cancelled.
        Raises: HostLost, if the process is gone; what `deliver` raises.
        """
        ...

    def kill(self) -> None:
        """Ends the process at once."""
        ...


class Link:
    """Messages to and from `remote`. One `post` is under way at a time, and takes everything queued
    meanwhile in one pickle.

    `on_message` is called for each message, in order; `on_lost` once, with the reason; nothing is
    called after it.
    """

    def __init__(
        self,
        remote: Remote,
        on_message: Callable[[tuple[Any, ...]], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.remote = remote
        self._on_message = on_message
        self._on_lost = on_lost
        self._queued: list[tuple[Any, ...]] = []
        self._has_messages = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def send(self, message: tuple[Any, ...]) -> None:
        """Queues a message; does not wait. Messages to a lost process are dropped."""
        self._queued.append(message)
        self._has_messages.set()

    async def _run(self) -> None:
        try:
            await run_together(self._post(), self.remote.listen(self._deliver))
        except Exception as error:
            self._on_lost(error)

    async def _post(self) -> None:
        while True:
            await self._has_messages.wait()
            self._has_messages.clear()
            messages = self._queued
            self._queued = []
            await self.remote.call("post", pickle.dumps(messages, pickle.HIGHEST_PROTOCOL))

    def _deliver(self, messages: bytes) -> None:
        for message in pickle.loads(messages):
            self._on_message(message)

    async def stop(self) -> None:
        """No further message is sent or delivered."""
        await cancel_all([self._task])


Send = Callable[[tuple[Any, ...]], None]
"""Queues a message for the other process: its kind, then its contents. Does not wait."""


EndedCall = tuple[int, tuple[Any, ...], float, PlannedCall | None]
"""The number of a place that a process keeps, and how the call there has ended: the values of its
CallUsage, its seconds, and which call it was, unless it was the one that the place was acquired
for.
"""
_usage_of: Callable[[tuple[Any, ...]], CallUsage] = partial(tuple.__new__, CallUsage)
"""Makes a CallUsage of its values, as `CallUsage._make` does, in C. A pickled one is slow to read.
"""

IDLE_S = 1.0
"""A kept place is given back after at least so many seconds without a call, and at most twice."""


class RemoteLimiter:
    """A CallLimiter in a process that makes calls. It sends `acquire`, `renew` and `release`;
    `answer` takes the answers.

    A permit may come with its place: later calls to the same model begin in it without asking,
    until `recall`. Nothing else limits such calls, see `RateLimiter.may_keep`. A place in which no
    call is made for a while is given back: the limiter counts it as a call in flight.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._numbers = count(1)
        self._acquiring: dict[int, asyncio.Future[None]] = {}
        self._kept: set[int] = set()
        self._free: dict[tuple[str, str], list[int]] = {}
        # How many of the free places, from the first one on, were free since the last check.
        self._idle: dict[tuple[str, str], int] = {}
        self._check: asyncio.TimerHandle | None = None

    async def acquire(self, call: PlannedCall) -> Permit:
        """As `CallLimiter.acquire`; takes at least one round trip, unless a place is free."""
        key = (call.label, call.endpoint)
        places = self._free.get(key)
        if places:
            number = places.pop()
            if self._idle.get(key, 0) > len(places):
                self._idle[key] = len(places)
            return _RemotePermit(self, number, call)
        number = next(self._numbers)
        acquiring = self._acquiring[number] = asyncio.get_running_loop().create_future()
        self._send(("acquire", number, call))
        try:
            await acquiring
        except asyncio.CancelledError:
            # The limiter knows whether the permit was granted meanwhile.
            self._kept.discard(number)
            self._send(("release", number, UNUSED, None, 0.0, call))
            raise
        finally:
            self._acquiring.pop(number, None)
        return _RemotePermit(self, number, call)

    async def rest(self, seconds: float) -> None:
        """As `CallLimiter.rest`, except that the rejection comes only with the next `acquire`."""
        await clock.sleep(seconds)

    def answer(self, number: int, answer: Exception | bool) -> None:
        """The call of that number is rejected, or may be made; True: its place may be kept."""
        acquiring = self._acquiring.get(number)
        if acquiring is None or acquiring.done():
            return
        if isinstance(answer, Exception):
            acquiring.set_exception(answer)
            return
        # Before the caller goes on: the place may be recalled with the same messages.
        if answer:
            self._kept.add(number)
        acquiring.set_result(None)

    def release(
        self,
        number: int,
        call: PlannedCall,
        usage: Usage | None,
        error: ProviderError | None,
        latency_s: float,
    ) -> None:
        """The call in a place has ended. The place is kept, unless calls of this process wait.
        After an error no place is kept: the endpoint may have to be left alone.
        """
        if error is not None:
            self.recall()
        if usage is not None and number in self._kept and not self._acquiring:
            self._free.setdefault((call.label, call.endpoint), []).append(number)
            is_known = usage.cost_usd is not None and usage.output_tokens is not None
            used = (usage.turns, usage.input_tokens, usage.output_tokens, usage.cost_usd)
            self._send(("renew", number, used, latency_s, None if is_known else call))
            if self._check is None:
                self._check_later()
            return
        self._kept.discard(number)
        self._send(("release", number, usage, error, latency_s, call))

    def recall(self) -> None:
        """Gives back the free places now, and the others when their calls have ended."""
        for places in self._free.values():
            for number in places:
                self._send(("release", number, UNUSED, None, 0.0, None))
        self._free.clear()
        self._idle.clear()
        self._kept.clear()

    def _check_later(self) -> None:
        self._check = asyncio.get_running_loop().call_later(IDLE_S, self._give_back_idle)

    def _give_back_idle(self) -> None:
        """Gives back the places that were free since the last check."""
        self._check = None
        for key, places in self._free.items():
            idle = self._idle.get(key, 0)
            for number in places[:idle]:
                self._kept.discard(number)
                self._send(("release", number, UNUSED, None, 0.0, None))
            del places[:idle]
            self._idle[key] = len(places)
        if any(self._free.values()):
            self._check_later()


class _RemotePermit:
    __slots__ = ("_call", "_limiter", "_number")

    def __init__(self, limiter: RemoteLimiter, number: int, call: PlannedCall) -> None:
        self._limiter: RemoteLimiter | None = limiter
        self._number = number
        self._call = call

    def release(self, usage: Usage | None, error: ProviderError | None, latency_s: float) -> None:
        """As `Permit.release`."""
        limiter = self._limiter
        self._limiter = None
        if limiter is not None:
            limiter.release(self._number, self._call, usage=usage, error=error, latency_s=latency_s)


class LimiterProxy:
    """Acquires permits for one other process. Sends `acquired`, `rejected` and `recall`, and calls
    `on_rejected` after a rejection. A call that need not wait costs no task of the event loop.
    """

    def __init__(
        self, limiter: CallLimiter | None, send: Send, on_rejected: Callable[[], None]
    ) -> None:
        self._limiter = limiter
        self._send = send
        self._on_rejected = on_rejected
        self._acquiring: dict[int, asyncio.Task[None]] = {}
        self._permits: dict[int, Permit] = {}
        self._has_kept = False
        if isinstance(limiter, RateLimiter):
            limiter.keepers.add(self._recall)

    def acquire(self, number: int, call: PlannedCall) -> None:
        limiter = self._limiter
        permit = None
        try:
            if isinstance(limiter, RateLimiter):
                permit = limiter.acquire_now(call)
        except Exception as error:
            self._reject(number, error)
            return
        if limiter is None:
            permit = UNLIMITED
        if permit is not None:
            self._grant(number, call, permit)
        elif limiter is not None:
            waiting = asyncio.ensure_future(self._acquire(limiter, number, call=call))
            self._acquiring[number] = waiting

    async def _acquire(self, limiter: CallLimiter, number: int, call: PlannedCall) -> None:
        try:
            self._grant(number, call, await limiter.acquire(call))
        except Exception as error:
            self._reject(number, error)
        finally:
            self._acquiring.pop(number, None)

    def _grant(self, number: int, call: PlannedCall, permit: Permit) -> None:
        self._permits[number] = permit
        is_kept = isinstance(self._limiter, RateLimiter) and self._limiter.may_keep(call)
        self._has_kept = self._has_kept or is_kept
        self._send(("acquired", number, is_kept))

    def _reject(self, number: int, error: Exception) -> None:
        self._send(("rejected", number, error))
        self._on_rejected()

    def _recall(self) -> None:
        if self._has_kept:
            self._has_kept = False
            self._send(("recall",))

    def renew(self, ended: Iterable[EndedCall]) -> None:
        """Calls have ended in places that the process keeps; see `release`."""
        now = asyncio.get_running_loop().time()
        for number, used, latency_s, call in ended:
            permit = self._permits.get(number)
            if isinstance(permit, PlacePermit):
                permit.renew(_usage_of(used), latency_s, call, now)

    def release(
        self,
        number: int,
        usage: Usage | None,
        error: ProviderError | None,
        latency_s: float,
        call: PlannedCall | None,
    ) -> None:
        """The process gives a permit back. `call`: the last one that was made with it; None, if it
        is the one that it was acquired for.
        """
        acquiring = self._acquiring.pop(number, None)
        if acquiring is not None:
            acquiring.cancel()
            return
        permit = self._permits.pop(number, None)
        if isinstance(permit, PlacePermit) and call is not None:
            permit.plan(call)
        if permit is not None:
            permit.release(usage, error, latency_s)

    def close(self, usage: Usage | None) -> None:
        """The process is gone: its waiting calls are dropped. `usage` is that of each call that it
        may have made.
        """
        if isinstance(self._limiter, RateLimiter):
            self._limiter.keepers.discard(self._recall)
        for acquiring in self._acquiring.values():
            acquiring.cancel()
        for permit in self._permits.values():
            permit.release(usage, None, 0.0)
        self._acquiring.clear()
        self._permits.clear()
