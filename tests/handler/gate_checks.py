"""What every Gate holds to, as checks that another implementation can run: `await check.demand(case)`.

A check makes its gate with `case.make(pace, budget)`. Where it says that a call still waits, it gives the gate
`case.pause()` to answer first: a gate in another process needs real time for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from evaluator.errors import LimitReached, ProviderError
from evaluator.handler.gate import NOT_MADE, Gate, Passage, PlannedCall
from evaluator.handler.pacing import BatchBudget, Pace
from evaluator.results import Usage

ANSWERED = Usage(100, 10, 0, 0, 0.01, 1)
BUSY = ProviderError("busy", kind="rate_limit", status=429, retryable=True)
LOST = ProviderError("lost", kind="connection", retryable=True, maybe_billed=True)


@dataclass(slots=True)
class Case:
    make: Callable[[Pace, BatchBudget], Gate]
    pause: Callable[[], Awaitable[None]]

    async def waits(self, call: asyncio.Task[Passage]) -> bool:
        await self.pause()
        return not call.done()


@dataclass(frozen=True, slots=True)
class GateCheck:
    name: str
    demand: Callable[[Case], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


CHECKS: list[GateCheck] = []


def _check(demand: Callable[[Case], Awaitable[None]]) -> None:
    CHECKS.append(GateCheck(demand.__name__.replace("_", " "), demand))


def planned(label: str = "m", endpoint: str = "e", cost_usd: float | None = 0.1, **more: Any) -> PlannedCall:
    return PlannedCall(label, endpoint, **{"input_tokens": 100, "output_tokens": 100, **more}, cost_usd=cost_usd)


def entering(gate: Gate, call: PlannedCall | None = None) -> asyncio.Task[Passage]:
    return asyncio.ensure_future(gate.enter(call or planned()))


@_check
async def no_more_enter_than_may(case: Case) -> None:
    gate = case.make(Pace.fixed(2), BatchBudget())
    first, second = await gate.enter(planned()), await gate.enter(planned())
    third = entering(gate)
    assert await case.waits(third)
    first.leave(ANSWERED, None, 1.0)
    (await third).leave(ANSWERED, None, 1.0)
    second.leave(ANSWERED, None, 1.0)


@_check
async def who_came_first_enters_first(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    passage = await gate.enter(planned())
    entered: list[int] = []

    async def one(number: int) -> None:
        passage = await gate.enter(planned())
        entered.append(number)
        passage.leave(ANSWERED, None, 1.0)

    calls: list[asyncio.Task[None]] = []
    for number in range(5):
        calls.append(asyncio.ensure_future(one(number)))
        await case.pause()
    passage.leave(ANSWERED, None, 1.0)
    await asyncio.gather(*calls)
    assert entered == [0, 1, 2, 3, 4]


@_check
async def models_and_endpoints_do_not_wait_for_each_other(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    for call in (planned("m", "e"), planned("other", "e"), planned("m", "elsewhere")):
        await gate.enter(call)


@_check
async def leaving_twice_is_leaving_once(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    passage = await gate.enter(planned())
    for _ in range(3):
        passage.leave(ANSWERED, None, 1.0)
    await gate.enter(planned())
    assert await case.waits(entering(gate))


@_check
async def a_failed_or_broken_off_call_leaves_room(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    for usage, error in ((None, BUSY), (None, LOST), (None, None), (NOT_MADE, None)):
        passage = await gate.enter(planned())
        passage.leave(usage, error, 1.0)
    await gate.enter(planned())


@_check
async def who_stops_waiting_is_passed_over(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    passage = await gate.enter(planned())
    gone, stays = entering(gate), entering(gate)
    await case.pause()
    gone.cancel()
    await case.pause()
    passage.leave(ANSWERED, None, 1.0)
    await stays
    assert gone.cancelled()


@_check
async def who_is_cancelled_while_let_in_takes_no_room(case: Case) -> None:
    gate = case.make(Pace.fixed(1), BatchBudget())
    passage = await gate.enter(planned())
    gone = entering(gate)
    await case.pause()
    passage.leave(ANSWERED, None, 1.0)
    gone.cancel()
    await asyncio.wait([gone])
    if not gone.cancelled():
        gone.result().leave(NOT_MADE, None, 0.0)
    await gate.enter(planned())


@_check
async def a_budget_is_not_passed_however_many_ask(case: Case) -> None:
    gate = case.make(Pace.fixed(100), BatchBudget(max_cost_usd=0.35))
    calls = [entering(gate) for _ in range(10)]
    await case.pause()
    entered = [call for call in calls if call.done()]
    assert len(entered) == 3, "0.1 each are reserved: three fit in 0.35"
    for call in entered:
        call.result().leave(Usage(100, 100, 0, 0, 0.1, 1), None, 1.0)
    for call in calls[3:]:
        assert (await refusal(call)).resource == "cost"


@_check
async def what_was_reserved_and_not_used_goes_to_others(case: Case) -> None:
    gate = case.make(Pace.fixed(100), BatchBudget(max_cost_usd=0.15))
    passage = await gate.enter(planned())
    second = entering(gate)
    assert await case.waits(second)
    passage.leave(ANSWERED, None, 1.0)
    await second


@_check
async def what_may_have_been_billed_counts_in_full(case: Case) -> None:
    for usage, error in ((None, LOST), (None, None), (Usage(100, None, 0, 0, None, 1), None)):
        gate = case.make(Pace.fixed(100), BatchBudget(max_cost_usd=0.15))
        (await gate.enter(planned())).leave(usage, error, 1.0)
        assert (await refusal(entering(gate))).resource == "cost"


@_check
async def what_was_surely_not_billed_does_not_count(case: Case) -> None:
    gate = case.make(Pace.fixed(100), BatchBudget(max_cost_usd=0.15))
    (await gate.enter(planned())).leave(None, BUSY, 1.0)
    (await gate.enter(planned())).leave(NOT_MADE, None, 0.0)
    await gate.enter(planned())


@_check
async def an_unknown_price_with_a_budget_is_refused_before_the_first_call(case: Case) -> None:
    gate = case.make(Pace.fixed(100), BatchBudget(max_cost_usd=1.0))
    error = await refusal(entering(gate, planned(cost_usd=None)))
    assert "price is unknown" in error.message
    gate = case.make(Pace.fixed(100), BatchBudget(max_tokens=1000))
    error = await refusal(entering(gate, planned(output_tokens=None)))
    assert (error.resource, "max_output_tokens" in error.message) == ("tokens", True)


@_check
async def tokens_are_reserved_as_money_is(case: Case) -> None:
    gate = case.make(Pace.fixed(100), BatchBudget(max_tokens=350))
    passage = await gate.enter(planned())
    second = entering(gate)
    assert await case.waits(second)
    passage.leave(ANSWERED, None, 1.0)
    (await second).leave(Usage(150, 100, 0, 0, 0.1, 1), None, 1.0)
    assert (await refusal(entering(gate))).used == 360


async def refusal(call: asyncio.Task[Passage]) -> LimitReached:
    try:
        await call
    except LimitReached as error:
        return error
    raise AssertionError("the call was let in")
