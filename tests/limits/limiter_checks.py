"""The conformance suite of CallLimiters: an implementation runs each check with `await check.demand(case)`.

A check makes its limiter with `case.make(pace, budget)`. Where it says that a call still waits, it gives the limiter
`case.pause()` to answer first: a limiter in another process needs real time for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from evaluator import ProviderError, Usage
from evaluator.errors import LimitReached
from evaluator.limits.call_limiter import UNUSED, CallLimiter, Permit, PlannedCall
from evaluator.limits.rate_limiter import BatchBudget, Pace

ANSWERED = Usage(100, 10, 0, 0, 0.01, 1)
BUSY = ProviderError("busy", kind="rate_limit", status=429, retryable=True)
LOST = ProviderError("lost", kind="connection", retryable=True, maybe_billed=True)


@dataclass(slots=True)
class Case:
    make: Callable[[Pace, BatchBudget], CallLimiter]
    pause: Callable[[], Awaitable[None]]

    async def waits(self, call: asyncio.Task[Permit]) -> bool:
        await self.pause()
        return not call.done()


@dataclass(frozen=True, slots=True)
class LimiterCheck:
    name: str
    demand: Callable[[Case], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


CHECKS: list[LimiterCheck] = []


def _check(demand: Callable[[Case], Awaitable[None]]) -> None:
    CHECKS.append(LimiterCheck(demand.__name__.replace("_", " "), demand))


def planned(
    label: str = "m", endpoint: str = "e", cost_usd: float | None = 0.1, **more: Any
) -> PlannedCall:
    return PlannedCall(
        label, endpoint, **{"input_tokens": 100, "output_tokens": 100, **more}, cost_usd=cost_usd
    )


def acquiring(limiter: CallLimiter, call: PlannedCall | None = None) -> asyncio.Task[Permit]:
    return asyncio.ensure_future(limiter.acquire(call or planned()))


@_check
async def no_more_calls_run_than_may(case: Case) -> None:
    limiter = case.make(Pace(concurrency=2), BatchBudget())
    first, second = await limiter.acquire(planned()), await limiter.acquire(planned())
    third = acquiring(limiter)
    assert await case.waits(third)
    first.release(ANSWERED, None, 1.0)
    (await third).release(ANSWERED, None, 1.0)
    second.release(ANSWERED, None, 1.0)


@_check
async def calls_begin_in_the_order_of_their_requests(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    permit = await limiter.acquire(planned())
    begun: list[int] = []

    async def one(number: int) -> None:
        permit = await limiter.acquire(planned())
        begun.append(number)
        permit.release(ANSWERED, None, 1.0)

    calls: list[asyncio.Task[None]] = []
    for number in range(5):
        calls.append(asyncio.ensure_future(one(number)))
        await case.pause()
    permit.release(ANSWERED, None, 1.0)
    await asyncio.gather(*calls)
    assert begun == [0, 1, 2, 3, 4]


@_check
async def models_and_endpoints_do_not_wait_for_each_other(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    for call in (planned("m", "e"), planned("other", "e"), planned("m", "elsewhere")):
        await limiter.acquire(call)


@_check
async def a_second_release_has_no_effect(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    permit = await limiter.acquire(planned())
    for _ in range(3):
        permit.release(ANSWERED, None, 1.0)
    await limiter.acquire(planned())
    assert await case.waits(acquiring(limiter))


@_check
async def a_failed_or_cancelled_call_frees_its_slot(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    for usage, error in ((None, BUSY), (None, LOST), (None, None), (UNUSED, None)):
        permit = await limiter.acquire(planned())
        permit.release(usage, error, 1.0)
    await limiter.acquire(planned())


@_check
async def a_cancelled_wait_is_skipped(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    permit = await limiter.acquire(planned())
    cancelled, stays = acquiring(limiter), acquiring(limiter)
    await case.pause()
    cancelled.cancel()
    await case.pause()
    permit.release(ANSWERED, None, 1.0)
    await stays
    assert cancelled.cancelled()


@_check
async def a_call_cancelled_while_it_gets_its_permit_keeps_no_slot(case: Case) -> None:
    limiter = case.make(Pace(concurrency=1), BatchBudget())
    permit = await limiter.acquire(planned())
    cancelled = acquiring(limiter)
    await case.pause()
    permit.release(ANSWERED, None, 1.0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    if not cancelled.cancelled():
        cancelled.result().release(UNUSED, None, 0.0)
    await limiter.acquire(planned())


@_check
async def a_budget_is_not_passed_by_any_number_of_calls(case: Case) -> None:
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_cost_usd=0.35))
    calls = [acquiring(limiter) for _ in range(10)]
    await case.pause()
    begun = [call for call in calls if call.done()]
    assert len(begun) == 3, "0.1 each are reserved: three fit in 0.35"
    for call in begun:
        call.result().release(Usage(100, 100, 0, 0, 0.1, 1), None, 1.0)
    for call in calls[3:]:
        assert (await refusal(call)).resource == "cost"


@_check
async def a_reservation_that_was_not_used_goes_to_other_calls(case: Case) -> None:
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_cost_usd=0.15))
    permit = await limiter.acquire(planned())
    second = acquiring(limiter)
    assert await case.waits(second)
    permit.release(ANSWERED, None, 1.0)
    await second


@_check
async def a_call_that_may_have_been_billed_counts_in_full(case: Case) -> None:
    for usage, error in ((None, LOST), (None, None), (Usage(100, None, 0, 0, None, 1), None)):
        limiter = case.make(Pace(concurrency=100), BatchBudget(max_cost_usd=0.15))
        (await limiter.acquire(planned())).release(usage, error, 1.0)
        assert (await refusal(acquiring(limiter))).resource == "cost"


@_check
async def a_call_that_was_certainly_not_billed_does_not_count(case: Case) -> None:
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_cost_usd=0.15))
    (await limiter.acquire(planned())).release(None, BUSY, 1.0)
    (await limiter.acquire(planned())).release(UNUSED, None, 0.0)
    await limiter.acquire(planned())


@_check
async def an_unknown_price_with_a_budget_is_rejected_before_the_first_call(case: Case) -> None:
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_cost_usd=1.0))
    error = await refusal(acquiring(limiter, planned(cost_usd=None)))
    assert "price is unknown" in error.message
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_tokens=1000))
    error = await refusal(acquiring(limiter, planned(output_tokens=None)))
    assert (error.resource, "max_output_tokens" in error.message) == ("tokens", True)


@_check
async def tokens_are_reserved_like_cost(case: Case) -> None:
    limiter = case.make(Pace(concurrency=100), BatchBudget(max_tokens=350))
    permit = await limiter.acquire(planned())
    second = acquiring(limiter)
    assert await case.waits(second)
    permit.release(ANSWERED, None, 1.0)
    (await second).release(Usage(150, 100, 0, 0, 0.1, 1), None, 1.0)
    assert (await refusal(acquiring(limiter))).used == 360


async def refusal(call: asyncio.Task[Permit]) -> LimitReached:
    try:
        await call
    except LimitReached as error:
        return error
    raise AssertionError("the call was permitted")
