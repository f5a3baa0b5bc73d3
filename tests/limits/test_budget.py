"""Budgets that nest: time without pauses, reservations, and what calls of unknown usage may have cost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from evaluator import Usage
from evaluator.errors import LimitReached
from evaluator.limits.budget import Budget
from tests.limits.virtual_time import run


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that budgets see."""
    time = Clock()
    monkeypatch.setattr("evaluator.clock.monotonic", time)
    return time


def cost(usd: float) -> Usage:
    return Usage(1, 1, cost_usd=usd, turns=1)


def test_pauses_of_two_tasks_that_overlap_count_once_above_them(clock: Clock) -> None:
    root = Budget("the run", timeout_s=100)
    first = Budget("first", timeout_s=100, parent=root)
    second = Budget("second", parent=first)
    other = Budget("other", parent=root)
    clock.now += 5
    with second.paused():
        clock.now += 10
        with other.paused():
            clock.now += 10
            assert (root.elapsed_s(), root.waited_s(), root.is_paused) == (5, 20, True)
        clock.now += 10
        assert (other.elapsed_s(), other.waited_s(), other.is_paused) == (25, 10, False)
        assert root.is_paused
    assert not root.is_paused
    clock.now += 1
    assert (root.elapsed_s(), root.waited_s()) == (6, 30)
    assert (first.elapsed_s(), second.elapsed_s(), other.elapsed_s()) == (6, 6, 26)
    assert root.remaining_s() == second.remaining_s() == 94


def test_a_pause_inside_a_pause_of_the_same_task_counts_once(clock: Clock) -> None:
    budget = Budget("a task")
    with budget.paused():
        clock.now += 3
        with budget.paused():
            clock.now += 3
        clock.now += 3
    assert (budget.elapsed_s(), budget.waited_s()) == (0, 9)


def test_a_deadline_is_postponed_by_pauses_only_as_long_as_they_last() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        root = Budget("the run", timeout_s=10)
        task = Budget("a task", parent=root)

        async def work() -> None:
            with task.deadline():
                await asyncio.sleep(4)
                with task.paused():
                    await asyncio.sleep(100)
                await asyncio.sleep(1000)

        with pytest.raises(TimeoutError):
            await work()
        return loop.time()

    assert run(main()) == pytest.approx(110)


def test_a_deadline_names_the_budget_whose_time_was_up() -> None:
    async def ended(parent_s: float, own_s: float) -> str:
        parent = Budget("the parent", timeout_s=parent_s)
        limit = Budget("a task", timeout_s=own_s, parent=parent).own_deadline()
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(1000)
        assert limit.expired is not None
        return limit.expired.time_is_up().message

    assert run(ended(10, 60)).startswith("the parent has used its 10 s")
    assert run(ended(60, 10)).startswith("a task has used its 10 s")


def test_a_pause_above_may_end_while_a_task_whose_time_is_up_still_cleans_up() -> None:
    async def main() -> list[str]:
        root = Budget("the run")
        events: list[str] = []

        async def wait() -> None:
            with Budget("other", parent=root).paused():
                await asyncio.sleep(15)
            events.append("the pause ended")

        async def work() -> None:
            try:
                with Budget("a task", timeout_s=10, parent=root).deadline():
                    try:
                        await asyncio.sleep(1000)
                    finally:
                        await asyncio.sleep(10)
            except TimeoutError:
                events.append("the task ended")

        await asyncio.gather(wait(), work())
        return events

    assert run(main()) == ["the pause ended", "the task ended"]


def test_no_pause_calls_a_deadline_that_is_over() -> None:
    async def main() -> list[Budget]:
        root = Budget("the run")
        parent = Budget("parent", timeout_s=1000, parent=root)
        task = Budget("a task", timeout_s=10, parent=parent)

        async def pause(scope: Budget, start_s: int, length_s: int) -> None:
            await asyncio.sleep(start_s)
            with scope.paused():
                await asyncio.sleep(length_s)

        async def work() -> None:
            await asyncio.sleep(1)
            with task.deadline():
                # Postpones its alarm, which finds the parent paused and not only the run.
                await pause(task, 0, 5)
                await asyncio.sleep(7)

        await asyncio.gather(
            pause(Budget("other", parent=root), 0, 100),
            pause(Budget("sibling", parent=parent), 8, 6),
            work(),
        )
        return [scope for scope in (root, parent, task) if scope.resume_callbacks]

    failed: list[object] = []

    async def checked() -> list[Budget]:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: failed.append(context)
        )
        left = await main()
        await asyncio.sleep(2000)
        return left

    assert run(checked()) == []
    assert failed == []


def test_each_of_several_deadlines_ends_its_own_task_at_its_own_time() -> None:
    async def main() -> dict[int, float]:
        loop = asyncio.get_running_loop()
        ends: dict[int, float] = {}

        async def work(limit_s: int, needed_s: int) -> None:
            with suppress(TimeoutError), Budget("a task", timeout_s=limit_s).deadline():
                await asyncio.sleep(needed_s)
            ends[limit_s] = loop.time()

        await asyncio.gather(work(30, 100), work(10, 100), work(20, 5), work(40, 100))
        await work(7, 100)  # none was left
        return ends

    assert run(main()) == {20: 5, 10: 10, 30: 30, 40: 40, 7: 47}


def test_the_deadline_of_a_task_that_has_ended_is_not_looked_at_when_a_budget_resumes() -> None:
    root = Budget("the run", timeout_s=1000)
    group = Budget("a group", timeout_s=50, parent=root)

    async def wait(budget: Budget, start_s: int, end_s: int) -> None:
        await asyncio.sleep(start_s)
        with budget.paused():
            await asyncio.sleep(end_s - start_s)

    async def work(end_s: int) -> None:
        await asyncio.sleep(1)
        with Budget("a task", timeout_s=90, parent=group).deadline():
            await asyncio.sleep(end_s - 1)

    async def main() -> None:
        # When the time of the group would be up, at 50 s, its clock stands, and so does that above.
        await asyncio.gather(wait(root, 0, 200), wait(group, 10, 100), work(60))
        # Here its own time is up before the clocks run again.
        waits = asyncio.gather(wait(root, 0, 200), wait(group, 10, 195))
        with pytest.raises(TimeoutError):
            await work(190)
        await waits
        assert not root.resume_callbacks
        assert not group.resume_callbacks

    run(main())


def test_time_that_is_exactly_used_up_is_used_up(clock: Clock) -> None:
    budget = Budget("a task", timeout_s=10)
    clock.now += 9.999
    budget.check_time()
    clock.now = 110.0
    with pytest.raises(LimitReached, match="a task has used its 10 s"):
        budget.check_time()


def test_turns_that_are_reserved_count_until_they_are_released() -> None:
    root = Budget("the run", max_turns=2)
    tasks = [Budget(name, parent=root) for name in ("first", "second")]
    for task in tasks:
        task.reserve_turn()
    with pytest.raises(LimitReached, match="the run has used its 2 turns"):
        tasks[0].reserve_turn()
    tasks[1].release_turn()
    tasks[0].reserve_turn()
    tasks[0].release_turn()
    tasks[0].charge(Usage(1, 1, turns=1))
    with pytest.raises(LimitReached):
        tasks[1].reserve_turn()


def test_costs_that_are_reserved_count_and_a_limit_may_be_used_to_its_end() -> None:
    root = Budget("the run", max_cost_usd=1.0)
    first, second = (Budget(name, parent=root) for name in ("first", "second"))
    assert first.has_cost_limit
    first.reserve_turn(0.5)
    second.reserve_turn(0.5)
    with pytest.raises(LimitReached, match=r"would pass \$1 "):
        second.reserve_turn(0.01)
    first.release_turn(0.5)
    first.charge(cost(0.25))
    with pytest.raises(LimitReached):
        second.reserve_turn(0.26)
    second.reserve_turn(0.25)


def test_a_call_of_unknown_usage_counts_as_the_most_that_it_may_have_cost() -> None:
    budget = Budget("a task", max_cost_usd=1.0)
    budget.reserve_turn(0.4)
    budget.charge_unknown(0.4)
    budget.check_reserved()
    budget.charge_unknown(0.4)
    with pytest.raises(LimitReached, match="another attempt of a task may pass"):
        budget.check_reserved()
    budget.release_turn(0.4)
    assert budget.usage.cost_usd is None and budget.warnings.keys() == {"cost"}
    budget.charge_unknown(None)
    with pytest.raises(LimitReached, match="what a turn may cost is unknown"):
        budget.reserve_turn(0.01)


def test_a_limit_warns_once_from_four_fifths_on() -> None:
    budget = Budget("a task", max_turns=5)
    for number in range(1, 6):
        budget.reserve_turn()
        budget.release_turn()
        budget.charge(Usage(1, 1, turns=1))
        assert (budget.warnings == {}) == (number < 4)
    assert budget.warnings == {"turns": "a task has used 4 of 5 turns"}
