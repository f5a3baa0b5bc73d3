"""Functions that compute run one after the other beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from evaluator.batch import Score
from evaluator.batch.scorers import make_scorer, run_scorer
from evaluator.batch.scorers.contract import ComputeQueue
from tests.batch.scorers.scorer_inputs import seen


def test_the_event_loop_runs_while_a_function_computes() -> None:
    async def run() -> Score:
        loop, may_end = asyncio.get_running_loop(), threading.Event()

        def waits_for_the_loop(output: str) -> bool:
            loop.call_soon_threadsafe(may_end.set)
            return may_end.wait(200)

        return await run_scorer(make_scorer(waits_for_the_loop), seen("x"))

    assert asyncio.run(run()).passed is True


def test_an_async_function_runs_on_the_event_loop() -> None:
    async def own_thread(output: str) -> bool:
        return threading.current_thread() is threading.main_thread()

    class Callable:
        async def __call__(self, output: str) -> bool:
            return await own_thread(output)

    for function in (own_thread, Callable(), lambda output: own_thread(output)):
        assert asyncio.run(run_scorer(make_scorer(function, name="own"), seen("x"))).passed is True


class Held:
    """A queue with one call that runs until `release`, and others that wait."""

    def __init__(self, waiting: int) -> None:
        self.queue, self.order, self._may_end = ComputeQueue(), list[int](), threading.Event()
        self.first = asyncio.ensure_future(self.queue.call(self._may_end.wait))
        self.others = [
            asyncio.ensure_future(self.queue.call(lambda n=n: self._note(n)))
            for n in range(waiting)
        ]

    def _note(self, number: int) -> int:
        self.order.append(number)
        return number

    async def release(self) -> list[Any]:
        self._may_end.set()
        await self.first
        return await asyncio.gather(*self.others, return_exceptions=True)


def test_calls_wait_for_their_turn_and_a_cancelled_one_is_left_out() -> None:
    async def run() -> None:
        held = Held(4)
        await asyncio.sleep(0)
        held.others[1].cancel()
        results = await held.release()
        assert isinstance(results[1], asyncio.CancelledError)
        assert held.order == [0, 2, 3] and await held.queue.call(lambda: 7) == 7

    asyncio.run(run())
