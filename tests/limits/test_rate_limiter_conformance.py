"""The RateLimiter passes the conformance suite of CallLimiters, also for the calls of other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from evaluator.batch.engines.base import IDLE_S, LimiterProxy, RemoteLimiter
from evaluator.limits.call_limiter import UNUSED, CallLimiter
from evaluator.limits.rate_limiter import BatchBudget, Pace, RateLimiter
from tests.limits.limiter_checks import (
    ANSWERED,
    BUSY,
    CHECKS,
    LOST,
    Case,
    LimiterCheck,
    planned,
)
from tests.limits.virtual_time import run

TURNS = 20


async def _run_ready_callbacks() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class OtherProcess:
    """A process that makes calls with the permits of `limiter`, and the messages between the two."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.kinds: list[str] = []
        self.remote = RemoteLimiter(self._to_batch)
        self.proxy = LimiterProxy(limiter, self._to_process, on_rejected=lambda: None)

    def _to_batch(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        self.kinds.append(kind)
        receive: dict[str, Callable[..., None]] = {
            "acquire": self.proxy.acquire,
            "renew": lambda *ended: self.proxy.renew([ended]),
            "release": self.proxy.release,
        }
        asyncio.get_running_loop().call_soon(receive[kind], *rest)

    def _to_process(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        receive = self.remote.recall if kind == "recall" else self.remote.answer
        asyncio.get_running_loop().call_soon(receive, *rest)


def here(pace: Pace, budget: BatchBudget) -> CallLimiter:
    return RateLimiter(pace, budget=budget)


def elsewhere(pace: Pace, budget: BatchBudget) -> CallLimiter:
    return OtherProcess(RateLimiter(pace, budget=budget)).remote


@pytest.mark.parametrize("make", [here, elsewhere])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_conformance(check: LimiterCheck, make: Callable[[Pace, BatchBudget], CallLimiter]) -> None:
    async def main() -> None:
        tasks = asyncio.all_tasks()
        await check.demand(Case(make, _run_ready_callbacks))
        for task in asyncio.all_tasks() - tasks:
            task.cancel()

    run(main())


async def _make_call(process: OtherProcess, outcome: Any = ANSWERED, **more: Any) -> None:
    permit = await process.remote.acquire(planned(**more))
    if outcome is ANSWERED:
        permit.release(ANSWERED, None, 0.5)
    else:
        permit.release(None, outcome, 0.5)
    await _run_ready_callbacks()


def in_flight(limiter: RateLimiter) -> int:
    return sum(state.in_flight for state in limiter.state())


def test_a_process_keeps_the_place_of_a_call_for_its_next_calls_to_the_same_model():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        for _ in range(3):
            await _make_call(process)
        assert process.kinds == ["acquire", "renew", "renew", "renew"]
        assert (limiter.spending.tokens, in_flight(limiter)) == (330, 1)
        await _make_call(process, label="other")
        assert process.kinds[4:] == ["acquire", "renew"]
        two = [await process.remote.acquire(planned()) for _ in range(2)]
        assert process.kinds[6:] == ["acquire"] and in_flight(limiter) == 3
        for permit in two:
            permit.release(None, None, 0.0)  # cancelled: nobody knows what it used
        await _run_ready_callbacks()
        assert process.kinds[7:] == ["release", "release"] and in_flight(limiter) == 1

    run(main())


def test_a_place_in_which_no_call_is_made_for_a_while_is_given_back():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        two = [await process.remote.acquire(planned()) for _ in range(2)]
        for permit in two:
            permit.release(ANSWERED, None, 0.5)
        await _run_ready_callbacks()
        assert in_flight(limiter) == 2
        # One place is used again and again, and one is not.
        for _ in range(5):
            await asyncio.sleep(IDLE_S / 2)
            await _make_call(process)
        assert in_flight(limiter) == 1
        assert limiter.spending.tokens == 7 * 110
        await asyncio.sleep(2 * IDLE_S)
        await _run_ready_callbacks()
        assert in_flight(limiter) == 0
        await _make_call(process)
        assert in_flight(limiter) == 1 and limiter.spending.tokens == 8 * 110

    run(main())


def test_what_a_call_used_at_most_counts_if_its_usage_is_unknown():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        await _make_call(process)
        await _make_call(process, LOST, input_tokens=1000, cost_usd=0.7)
        assert process.kinds == ["acquire", "renew", "release"]
        assert limiter.spending.tokens == 110 + 1100
        assert limiter.spending.cost_usd == pytest.approx(0.01 + 0.7)
        assert in_flight(limiter) == 0

    run(main())


@pytest.mark.parametrize(
    "limiter",
    [
        RateLimiter(budget=BatchBudget(max_cost_usd=10)),
        RateLimiter(budget=BatchBudget(max_tokens=10_000)),
        RateLimiter(budget=BatchBudget(max_seconds=1000)),
        RateLimiter(Pace(requests_per_minute=60_000)),
        RateLimiter(Pace(tokens_per_minute=6_000_000)),
        RateLimiter(Pace(concurrency=1)),
    ],
    ids=["cost", "tokens", "time", "requests", "rate of tokens", "one at once"],
)
def test_each_call_is_asked_for_where_another_limit_holds(limiter: RateLimiter):
    async def main() -> None:
        process = OtherProcess(limiter)
        for _ in range(2):
            await _make_call(process)
        assert process.kinds == ["acquire", "release"] * 2

    run(main())


def _pause(limiter: RateLimiter, other: OtherProcess) -> None:
    limiter.pause()


def _change(limiter: RateLimiter, other: OtherProcess) -> None:
    limiter.change(Pace(concurrency=1), BatchBudget(max_tokens=1))


def _stop(limiter: RateLimiter, other: OtherProcess) -> None:
    limiter.stop("enough")


async def _wait_elsewhere(limiter: RateLimiter, other: OtherProcess) -> None:
    """Two calls of another process, for which there is no room beside a kept place."""
    permits = await asyncio.gather(*(other.remote.acquire(planned()) for _ in range(2)))
    assert in_flight(limiter) == 2
    for permit in permits:
        permit.release(ANSWERED, None, 0.5)


async def _fail_elsewhere(limiter: RateLimiter, other: OtherProcess) -> None:
    await _make_call(other, BUSY)


@pytest.mark.parametrize("scarce", [_pause, _change, _stop, _wait_elsewhere, _fail_elsewhere])
def test_kept_places_are_given_back_when_calls_are_limited(scarce: Callable[..., Any]):
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=2))
        process = OtherProcess(limiter)
        other = OtherProcess(limiter)
        await _make_call(process)
        assert in_flight(limiter) == 1
        waiting = scarce(limiter, other)
        if waiting is not None:
            await waiting
        await _run_ready_callbacks()
        assert process.kinds == ["acquire", "renew", "release"]
        # The other process may keep a place by now.
        other.proxy.close(UNUSED)
        assert in_flight(limiter) == 0

    run(main())


def test_kept_places_are_given_back_when_slow_answers_lower_the_limit():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=10))
        process = OtherProcess(limiter)
        for latency_s in (1.0, 1.0, 10.0, 10.0):
            permits = [await process.remote.acquire(planned()) for _ in range(9)]
            for permit in permits:
                permit.release(ANSWERED, None, latency_s)
            await _run_ready_callbacks()
        (state,) = limiter.state()
        assert state.limit == 8 and process.kinds.count("acquire") == 9
        calls = [asyncio.ensure_future(process.remote.acquire(planned())) for _ in range(9)]
        await _run_ready_callbacks()
        assert in_flight(limiter) == 8
        for call in calls:
            call.cancel()

    run(main())


def test_a_place_that_took_nothing_of_a_rate_gives_nothing_back():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        permits = [await process.remote.acquire(planned()) for _ in range(3)]
        for permit in permits:
            permit.release(ANSWERED, None, 0.5)
        await _run_ready_callbacks()
        assert in_flight(limiter) == 3
        limiter.change(Pace(concurrency=4, requests_per_minute=60), BatchBudget())
        waiting = [asyncio.ensure_future(limiter.acquire(planned())) for _ in range(4)]
        await _run_ready_callbacks()
        assert [call.done() for call in waiting] == [True, False, False, False]
        for call in waiting:
            call.cancel()

    run(main())


def test_the_places_of_a_lost_process_are_free():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        await _make_call(process)
        await process.remote.acquire(planned())
        process.proxy.close(None)
        assert in_flight(limiter) == 0 and not limiter.keepers
        # Its call in flight counts with the most that it may have used.
        assert limiter.spending.tokens == 110 + 200

    run(main())


def test_a_place_that_is_recalled_before_its_call_has_begun_is_not_kept():
    async def main() -> None:
        sent: list[str] = []
        remote = RemoteLimiter(lambda message: sent.append(message[0]))
        for is_recalled in (False, True):
            acquiring = asyncio.ensure_future(remote.acquire(planned(label=str(is_recalled))))
            await asyncio.sleep(0)
            remote.answer(is_recalled + 1, True)
            if is_recalled:
                remote.recall()
            (await acquiring).release(ANSWERED, None, 0.5)
        # The recall gives back the free place of the first call too.
        assert sent == ["acquire", "renew", "acquire", "release", "release"]

    run(main())


def test_a_process_whose_call_fails_begins_no_other_call_without_asking():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        process = OtherProcess(limiter)
        permits = [await process.remote.acquire(planned()) for _ in range(2)]
        permits[0].release(ANSWERED, None, 0.5)
        permits[1].release(None, BUSY, 0.5)
        acquiring = asyncio.ensure_future(process.remote.acquire(planned()))
        await asyncio.sleep(0)
        assert process.kinds == ["acquire", "acquire", "renew", "release", "release", "acquire"]
        acquiring.cancel()

    run(main())
