"""`TimeLimit`: many limits on one timer of the event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest

from evaluator import ProviderError
from evaluator.models.time_limit import TimeLimit
from tests.limits.virtual_time import run

LONG_S = 600.0


async def wait_for_ever(timeout_s: float, idle_timeout_s: float = LONG_S) -> None:
    with TimeLimit(timeout_s, idle_timeout_s, answer=None):
        await asyncio.Event().wait()


async def reason_of(call: Awaitable[Any]) -> str:
    with pytest.raises(ProviderError) as caught:
        await call
    assert (caught.value.kind, caught.value.maybe_billed) == ("timeout", True)
    return caught.value.message


def test_each_call_ends_at_its_own_limit() -> None:
    async def main() -> list[str]:
        long = asyncio.create_task(wait_for_ever(LONG_S))
        await asyncio.sleep(0)  # the timer is set to a later time first
        limits = [0.03, 0.0, 0.01, -1.0, 0.02]
        reasons = await asyncio.gather(*(reason_of(wait_for_ever(limit)) for limit in limits))
        assert not long.done()
        long.cancel()
        await asyncio.wait([long])
        assert long.cancelled()
        return reasons

    expected = ["0.03", "0", "0.01", "-1", "0.02"]
    assert asyncio.run(main()) == [f"no complete answer within {text} s" for text in expected]


def test_silence_ends_a_stream_and_pieces_extend_it() -> None:
    async def silent_stream() -> None:
        with TimeLimit(LONG_S, 0.01, answer=None) as limit:
            limit.reset_idle()
            await asyncio.Event().wait()

    async def main() -> None:
        with TimeLimit(LONG_S, 30.0, answer=None) as limit:
            whole = limit.until
            limit.reset_idle()
            first = limit.until
            assert await reason_of(silent_stream()) == "the stream was silent for 0.01 s"
            limit.reset_idle()
            assert first < limit.until < whole
        with TimeLimit(LONG_S, 2 * LONG_S, answer=None) as limit:
            whole = limit.until
            limit.reset_idle()
            assert limit.until == whole

    asyncio.run(main())


def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def cancelled_at_the_limit() -> None:
        task: Any = asyncio.current_task()
        with TimeLimit(0.001, LONG_S, answer=None) as limit:
            task.cancel()
            limit.ring()
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(cancelled_at_the_limit())
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())


def test_limits_nest_and_other_errors_pass_through() -> None:
    async def nested() -> None:
        with TimeLimit(LONG_S, LONG_S, answer=None):
            await wait_for_ever(0.01)

    async def outer() -> None:
        with TimeLimit(0.01, LONG_S, answer=None):
            await wait_for_ever(LONG_S)

    async def failing() -> None:
        with TimeLimit(LONG_S, LONG_S, answer=None):
            raise OSError("broken")

    async def main() -> None:
        assert await reason_of(nested()) == "no complete answer within 0.01 s"
        assert await reason_of(outer()) == "no complete answer within 0.01 s"
        with pytest.raises(OSError, match="broken"):
            await failing()
        task: Any = asyncio.current_task()
        assert task.cancelling() == 0

    asyncio.run(main())


def test_a_call_that_goes_on_after_its_limit_is_cancelled_once() -> None:
    async def main() -> None:
        task: Any = asyncio.current_task()
        with TimeLimit(1.0, 1.0, answer=None) as limit:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
            limit.reset_idle()
            await asyncio.sleep(5)
            assert task.cancelling() == 1
            limit.reset_idle()
        assert task.cancelling() == 0
        await asyncio.sleep(5)

    run(main())


class Answer:
    partial = "so far"


def test_what_came_so_far_is_reported_and_nothing_is_kept() -> None:
    async def main() -> None:
        answer = Answer()
        with pytest.raises(ProviderError) as caught, TimeLimit(0.01, LONG_S, answer=answer):
            await asyncio.Event().wait()
        assert caught.value.partial == "so far"
        with TimeLimit(LONG_S, LONG_S, answer=answer):
            pass
        gone = weakref.ref(answer)
        del answer, caught
        gc.collect()
        assert gone() is None

    asyncio.run(main())


def test_each_event_loop_has_its_own_timer() -> None:
    async def main() -> str:
        return await reason_of(wait_for_ever(0.01))

    assert {asyncio.run(main()) for _ in range(3)} == {"no complete answer within 0.01 s"}
