"""One endpoint decides: what is given back, what late answers mean, and who gets the room of a cancelled sample."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from evaluator import ProviderError, Usage
from evaluator.errors import CallRejected
from evaluator.limits.call_limiter import PlannedCall
from evaluator.limits.endpoints import ConcurrencyLimit, Endpoint, Pace, RateBucket
from evaluator.limits.rate_limiter import RateLimiter
from tests.limits.virtual_time import run


def test_what_is_given_back_does_not_fill_a_bucket_beyond_its_size() -> None:
    bucket = RateBucket(600)
    bucket.give(1_000, 0.0)
    bucket.take(10, 0.0)
    assert bucket.ready(10, 0.0) == pytest.approx(1.0)


def test_an_answer_to_a_call_that_began_before_an_overload_does_not_raise_the_limit() -> None:
    limit = ConcurrencyLimit(8)
    limit.overloaded(0.0, 1.0)
    assert limit.value == 4
    for _ in range(50):
        limit.answered(0.5, 2.0, 1.0, 10, is_used=True)
    assert limit.value == 4
    for _ in range(50):
        limit.answered(1.5, 2.0, 1.0, 10, is_used=True)
    assert limit.value == 8


def test_the_expected_length_of_answers_follows_a_sixteenth_of_each_difference() -> None:
    endpoint = Endpoint("m", "e", Pace(tokens_per_minute=6_000_000))
    call = PlannedCall("m", "e", input_tokens=10)

    def expected(output: int) -> float:
        begun = endpoint.begin(call, 0.0)
        endpoint.end(begun, Usage(10, output, turns=1), None, 1.0, 0.0)
        return endpoint.begin(call, 0.0).tokens

    assert expected(100) == 110
    assert expected(1_700) == 210


@pytest.mark.parametrize("maybe_billed", [False, True])
def test_tokens_of_a_failed_call_are_given_back_unless_they_may_have_been_used(
    maybe_billed: bool,
) -> None:
    endpoint = Endpoint("m", "e", Pace(tokens_per_minute=6_000))
    call = PlannedCall("m", "e", input_tokens=90, output_tokens=10)
    begun = endpoint.begin(call, 0.0)
    assert endpoint.earliest(call, 0.0) > 0
    error = ProviderError("down", kind="server", maybe_billed=maybe_billed)
    endpoint.end(begun, None, error, 1.0, 0.0)
    assert (endpoint.earliest(call, 0.0) > 0) == maybe_billed
    assert endpoint.earliest(call, 1.0) < inf


def test_a_sample_that_is_cancelled_when_it_gets_its_room_gives_it_back() -> None:
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=1))
        room = limiter.room()
        for _ in range(room):
            await limiter.start_samples()
        waiting = asyncio.ensure_future(limiter.start_samples())
        await asyncio.sleep(0)
        limiter.end_samples()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert limiter.room() == 1
        async with asyncio.timeout(1):
            await limiter.start_samples()

    run(main())


def test_a_stop_ends_waits_between_retries() -> None:
    async def main() -> None:
        limiter = RateLimiter(Pace())
        resting = asyncio.ensure_future(limiter.rest(1_000))
        await asyncio.sleep(0)
        limiter.stop("it was asked to stop")
        with pytest.raises(CallRejected, match="it was asked to stop"):
            await resting
        assert asyncio.get_running_loop().time() < 1_000

    run(main())
