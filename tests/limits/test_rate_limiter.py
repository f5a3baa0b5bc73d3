"""The RateLimiter in virtual time: concurrency that adapts to a server, rates, Retry-After, budgets, room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import ProviderError, Usage
from evaluator.errors import CallRejected, LimitReached
from evaluator.limits.call_limiter import UNUSED
from evaluator.limits.endpoints import ConcurrencyLimit, Endpoint, RateBucket
from evaluator.limits.rate_limiter import BatchBudget, Pace, RateLimiter
from tests.limits.limiter_checks import ANSWERED, BUSY, acquiring, planned
from tests.limits.virtual_time import run


class Server:
    """Answers in `latency_s`; more than `room` calls at once get 429, or, if it queues, wait longer."""

    def __init__(self, room: int, latency_s: float = 1.0, *, queues: bool = False) -> None:
        self.room, self.latency_s, self.queues = room, latency_s, queues
        self.at_once = self.most_at_once = self.answers = self.refusals = 0
        self._slots = asyncio.Semaphore(room)

    async def call(self, tokens: int = 10) -> Usage:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if not self.queues and self.at_once > self.room:
                await asyncio.sleep(0.05)
                self.refusals += 1
                raise BUSY
            async with self._slots:
                await asyncio.sleep(self.latency_s * random.uniform(0.8, 1.2))
            self.answers += 1
            return Usage(100, tokens, 0, 0, 0.01, 1)
        finally:
            self.at_once -= 1


async def call(limiter: RateLimiter, server: Server, tokens: int = 10) -> bool:
    """One call, retried until it is answered."""
    loop = asyncio.get_running_loop()
    while True:
        permit = await limiter.acquire(planned())
        began = loop.time()
        try:
            usage = await server.call(tokens)
        except ProviderError as error:
            permit.release(None, error, loop.time() - began)
        else:
            permit.release(usage, None, loop.time() - began)
            return True


# -- concurrency ----------------------------------------------------------------------------------------------------


def test_concurrency_shrinks_to_what_the_server_can_take_and_stays_near_it():
    async def main() -> tuple[Server, int]:
        random.seed(1)
        limiter, server = RateLimiter(Pace(concurrency=200)), Server(50)
        await asyncio.gather(*(call(limiter, server) for _ in range(200)))
        server.answers = server.refusals = 0
        await asyncio.gather(*(call(limiter, server) for _ in range(3000)))
        return server, limiter.state()[0].limit

    server, limit = run(main())
    assert server.answers == 3000
    assert 20 <= limit <= 60
    assert server.refusals < 0.05 * server.answers


def test_concurrency_grows_back_to_the_most_without_errors():
    async def main() -> tuple[Server, int]:
        limiter, server = RateLimiter(Pace(concurrency=64)), Server(1000)
        (await limiter.acquire(planned())).release(None, BUSY, 0.1)
        assert limiter.state()[0].limit == 32
        await asyncio.gather(*(call(limiter, server) for _ in range(3000)))
        return server, limiter.state()[0].limit

    server, limit = run(main())
    assert (limit, server.most_at_once) == (64, 64)


def test_concurrency_that_is_not_used_does_not_grow():
    async def main() -> int:
        limiter, server = RateLimiter(Pace(concurrency=8)), Server(1000)
        (await limiter.acquire(planned())).release(None, BUSY, 0.1)
        for _ in range(500):
            await call(limiter, server)
        return limiter.state()[0].limit

    assert run(main()) == 4


def test_growing_latency_shrinks_concurrency_at_most_to_half_of_the_most():
    async def main() -> int:
        random.seed(2)
        limiter, server = RateLimiter(Pace(concurrency=64)), Server(4, queues=True)
        # Answers are slow from the first one on, so a few quick ones show what is usual.
        for _ in range(20):
            await call(limiter, server)
        await asyncio.gather(*(call(limiter, server) for _ in range(4000)))
        return limiter.state()[0].limit

    assert 32 <= run(main()) < 64


def test_long_answers_are_not_slow_answers():
    async def main() -> int:
        random.seed(3)
        limiter, server = RateLimiter(Pace(concurrency=128)), Server(1000)

        async def one(number: int) -> None:
            tokens = 10 if number < 2000 else 4000
            server.latency_s = tokens / 20
            await call(limiter, server, tokens)

        for start in range(0, 4000, 1000):
            await asyncio.gather(*(one(number) for number in range(start, start + 1000)))
        return limiter.state()[0].limit

    assert run(main()) == 128


def test_overloads_of_one_round_trip_halve_the_limit_once():
    limit = ConcurrencyLimit(64)
    for _ in range(50):
        limit.overloaded(0.0, 1.0)
    assert limit.value == 32
    limit.answered(0.5, 1.5, 1.0, 10, is_used=True)
    assert limit.value == 32, "calls that began before a change do not count"
    limit.overloaded(1.0, 2.0)
    assert limit.value == 16
    for number in range(20):
        limit.overloaded(3.0 + number, 3.5 + number)
    assert limit.value == 1


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (ProviderError("x", kind="rate_limit", status=429, retryable=True), 32),
        (ProviderError("x", kind="server", status=529, retryable=True), 32),
        (ProviderError("x", kind="server", status=503, retryable=True), 32),
        (ProviderError("x", kind="server", status=500, retryable=True, maybe_billed=True), 64),
        (ProviderError("no credit", kind="rate_limit", status=429), 64),
        (ProviderError("x", kind="bad_request", status=400), 64),
        (ProviderError("x", kind="connection", retryable=True), 64),
    ],
    ids=lambda value: f"{value.kind} {value.status}" if isinstance(value, ProviderError) else None,
)
def test_only_an_overload_halves_the_limit(error, limit):
    endpoint = Endpoint("m", "e", Pace(concurrency=64))
    endpoint.end(endpoint.begin(planned(), 0.0), None, error, 1.0, 1.0)
    assert endpoint.limit == limit


# -- Retry-After ----------------------------------------------------------------------------------------------------


def test_retry_after_holds_the_whole_endpoint_and_no_other():
    async def main() -> list[tuple[str, float]]:
        limiter, loop = RateLimiter(), asyncio.get_running_loop()
        permit = await limiter.acquire(planned("a", "one"))
        permit.release(
            None,
            ProviderError("x", kind="rate_limit", status=429, retryable=True, retry_after_s=30.0),
            0.1,
        )
        begun: list[tuple[str, float]] = []

        async def one(label: str, endpoint: str) -> None:
            await limiter.acquire(planned(label, endpoint))
            begun.append((f"{label} {endpoint}", loop.time()))

        assert limiter.state()[0].held_s == 30.0
        await asyncio.gather(one("a", "one"), one("b", "one"), one("a", "two"))
        return begun

    assert run(main()) == [("a two", 0.0), ("a one", 30.0), ("b one", 30.0)]


def test_a_retry_after_of_years_rejects_the_calls_of_its_endpoint_only():
    async def main() -> str:
        limiter = RateLimiter()
        waiting = [await limiter.acquire(planned("a", "https://user@host:1/v1")) for _ in range(16)]
        late = asyncio.ensure_future(limiter.acquire(planned("a", "https://user@host:1/v1")))
        await asyncio.sleep(0)
        error = ProviderError("x", kind="rate_limit", status=429, retryable=True, retry_after_s=3e8)
        waiting[0].release(None, error, 0.1)
        with pytest.raises(CallRejected):
            await late
        with pytest.raises(CallRejected):
            await limiter.acquire(planned("b", "https://user@host:1/v1"))
        await limiter.acquire(planned("a", "other"))
        assert limiter.refused is not None and asyncio.get_running_loop().time() == 0.0
        return limiter.refused.message

    assert run(main()) == (
        "host:1 answered with a Retry-After: no call for 300,000,000 s, and a session waits at most 3,600 s; resume the batch later"
    )


def test_a_later_shorter_retry_after_does_not_shorten_the_wait():
    async def main() -> float:
        limiter = RateLimiter()
        permits = [await limiter.acquire(planned()) for _ in range(2)]
        for permit, wait_s in zip(permits, (30.0, 1.0), strict=True):
            error = ProviderError(
                "x", kind="rate_limit", status=429, retryable=True, retry_after_s=wait_s
            )
            permit.release(None, error, 0.1)
        await limiter.acquire(planned())
        return asyncio.get_running_loop().time()

    assert run(main()) == 30.0


# -- rates ----------------------------------------------------------------------------------------------------------


@given(
    st.floats(1, 600),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0.1, 5)), min_size=1, max_size=60),
)
def test_a_bucket_allows_at_most_its_rate_and_one_second_more(per_minute, asked):
    bucket, now, taken = RateBucket(per_minute), 0.0, []
    for pause, amount in asked:
        now = max(now + pause, bucket.ready(amount, now + pause))
        assert bucket.ready(amount, now) <= now
        bucket.take(amount, now)
        taken.append((now, amount))
    full = max(1.0, per_minute / 60)
    for place, (began, _) in enumerate(taken):
        through = 0.0
        for at, amount in taken[place:]:
            # The last of a stretch may be larger than the bucket: what follows waits for it.
            assert through <= (at - began) * per_minute / 60 + full + 1e-3
            through += amount


def test_requests_a_minute_are_kept():
    async def main() -> list[float]:
        limiter, times = RateLimiter(Pace(concurrency=100, requests_per_minute=60)), []

        async def one() -> None:
            permit = await limiter.acquire(planned())
            times.append(asyncio.get_running_loop().time())
            permit.release(ANSWERED, None, 0.0)

        await asyncio.gather(*(one() for _ in range(120)))
        return times

    times = run(main())
    assert 118 <= times[-1] <= 120
    assert max(Counter(int(time) for time in times).values()) <= 2


def test_tokens_a_minute_are_corrected_to_the_usage():
    async def main(used: int) -> float:
        limiter = RateLimiter(Pace(concurrency=100, tokens_per_minute=6000))
        for _ in range(60):
            permit = await limiter.acquire(planned(output_tokens=100_000))
            permit.release(Usage(used, 0, 0, 0, 0.0, 1), None, 0.0)
        return asyncio.get_running_loop().time()

    assert run(main(100)) == pytest.approx(60, abs=4)
    assert run(main(400)) == pytest.approx(240, abs=8)


def test_an_unused_permit_does_not_count_against_the_rates():
    endpoint = Endpoint("m", "e", Pace(requests_per_minute=1, tokens_per_minute=60))
    for _ in range(5):
        assert endpoint.earliest(planned(), 0.0) <= 0.0
        endpoint.end(endpoint.begin(planned(), 0.0), UNUSED, None, 0.0, 0.0)


# -- budgets --------------------------------------------------------------------------------------------------------


def test_waiting_calls_end_when_the_batch_time_is_up():
    async def main() -> tuple[list[str], float]:
        limiter = RateLimiter(Pace(concurrency=1), budget=BatchBudget(max_seconds=10))
        await limiter.acquire(planned())
        ended = await asyncio.gather(acquiring(limiter), acquiring(limiter), return_exceptions=True)
        return [
            getattr(error, "resource", "none") for error in ended
        ], asyncio.get_running_loop().time()

    assert run(main()) == (["time", "time"], 10.0)


def test_nothing_waits_for_a_retry_after_past_the_batch_time():
    async def main() -> float:
        limiter = RateLimiter(budget=BatchBudget(max_seconds=10))
        error = ProviderError(
            "x", kind="rate_limit", status=429, retryable=True, retry_after_s=3600
        )
        (await limiter.acquire(planned())).release(None, error, 0.1)
        with pytest.raises(
            LimitReached, match="Retry-After: no call for 3,600 s, and the session has 10 s left"
        ):
            await limiter.acquire(planned())
        assert limiter.refused is not None
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


@settings(max_examples=60)
@given(
    st.floats(0.05, 3),
    st.lists(
        st.tuples(
            st.floats(0, 1), st.floats(0, 1), st.sampled_from(["answer", "lost", "busy", "cut"])
        ),
        max_size=40,
    ),
)
def test_a_budget_is_never_passed(max_cost_usd, calls):
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=7), budget=BatchBudget(max_cost_usd=max_cost_usd))
        bill = 0.0

        async def one(most: float, part: float, how: str) -> None:
            nonlocal bill
            try:
                permit = await limiter.acquire(planned(cost_usd=most))
            except LimitReached:
                return
            if how != "busy":
                bill += most * part
            await asyncio.sleep(part)
            if how == "answer":
                permit.release(Usage(1, 1, 0, 0, most * part, 1), None, part)
            else:
                lost = ProviderError(how, retryable=True, maybe_billed=how == "lost")
                permit.release(None, None if how == "cut" else lost, part)

        await asyncio.gather(*(one(*call) for call in calls))
        assert bill <= max_cost_usd * (1 + 1e-6)
        assert bill <= limiter.spending.cost_usd + 1e-9

    run(main())


# -- waiting --------------------------------------------------------------------------------------------------------


def test_no_slot_is_lost_however_calls_end():
    async def main() -> None:
        random.seed(4)
        limiter = RateLimiter(
            Pace(concurrency=20, requests_per_minute=600), budget=BatchBudget(max_cost_usd=1e6)
        )

        async def one() -> None:
            permit = await limiter.acquire(planned(random.choice("ab")))
            try:
                await asyncio.sleep(random.random())
            except asyncio.CancelledError:
                permit.release(None, None, 0.1)
                raise
            permit.release(*random.choice([(ANSWERED, None), (None, BUSY), (UNUSED, None)]), 0.5)

        tasks = [asyncio.ensure_future(one()) for _ in range(400)]
        for task in random.sample(tasks, 200):
            await asyncio.sleep(random.random() / 10)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for state in limiter.state():
            assert (state.in_flight, state.waiting) == (0, 0)

    run(main())


def test_a_stop_rejects_waiting_calls_and_lets_running_ones_end():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=2))
        first, _second = [await limiter.acquire(planned()) for _ in range(2)]
        waiting = [asyncio.ensure_future(limiter.acquire(planned())) for _ in range(3)]
        await asyncio.sleep(0)
        limiter.stop("the batch was asked to stop")
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in found] == ["the batch was asked to stop"] * 3
        assert str(limiter.refused) == "the batch was asked to stop"
        with pytest.raises(LimitReached, match="asked to stop"):
            await limiter.acquire(planned())
        first.release(ANSWERED, None, 1.0)
        (await limiter.acquire(planned())).release(ANSWERED, None, 1.0)
        assert [(state.in_flight, state.waiting) for state in limiter.state()] == [(1, 0)]

    run(main())


def test_a_stop_does_not_wait_for_a_retry_after():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=2))
        held = ProviderError(
            "later", kind="rate_limit", status=429, retryable=True, retry_after_s=3600.0
        )
        (await limiter.acquire(planned())).release(None, held, 0.1)
        waiting = asyncio.ensure_future(limiter.acquire(planned()))
        await asyncio.sleep(0)
        limiter.stop("the batch was asked to stop")
        with pytest.raises(LimitReached, match="asked to stop"):
            await waiting

    run(main())


def test_samples_start_only_where_there_is_room_for_their_calls():
    async def main() -> tuple[int, int]:
        limiter, server = RateLimiter(Pace(concurrency=16)), Server(1000)
        running = most = most_waiting = 0

        async def sample() -> None:
            nonlocal most_waiting
            for _ in range(2):
                await call(limiter, server)
                most_waiting = max(most_waiting, *(state.waiting for state in limiter.state()))

        async def bounded() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await sample()
            finally:
                running -= 1
                limiter.end_samples()

        tasks: list[asyncio.Task[None]] = []
        for _ in range(500):
            await limiter.start_samples()
            tasks.append(asyncio.ensure_future(bounded()))
        await asyncio.gather(*tasks)
        assert limiter.room() == 24
        return most, most_waiting

    most, waiting = run(main())
    assert most == 24
    assert 0 < waiting <= 8


def test_several_samples_start_together_as_far_as_there_is_room():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        assert await limiter.start_samples(2) == 2
        assert await limiter.start_samples(100) == 4
        first, second = (asyncio.ensure_future(limiter.start_samples(3)) for _ in range(2))
        await asyncio.sleep(0)
        limiter.end_samples(2)
        # Each that waits gets one, in the order of the requests.
        assert (await first, await second, limiter.room()) == (1, 1, 0)
        third = asyncio.ensure_future(limiter.start_samples(3))
        await asyncio.sleep(0)
        limiter.end_samples(5)
        assert (await third, limiter.room()) == (3, 2)

    run(main())


def test_fewer_samples_start_if_there_are_fewer_places_after_the_wait():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        places = 6
        assert await limiter.start_samples(6, lambda: places) == 6
        start = asyncio.ensure_future(limiter.start_samples(4, lambda: places))
        await asyncio.sleep(0)
        places = 0
        limiter.end_samples(4)
        await asyncio.sleep(0)
        assert (start.done(), limiter.room()) == (False, 4)
        places = 2
        limiter.end_samples()
        assert (await start, limiter.room()) == (2, 3)

    run(main())


def test_callers_without_a_place_do_not_wake_each_other():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=4))
        free = {"a": 0, "b": 0}
        asked = 0

        def places_of(name: str) -> int:
            nonlocal asked
            asked += 1
            return free[name]

        assert await limiter.start_samples(6) == 6
        first, second = (
            asyncio.ensure_future(limiter.start_samples(1, partial(places_of, name)))
            for name in free
        )
        await asyncio.sleep(0)
        # Both had a place when there was no room, and have none where there is room again.
        limiter.end_samples(4)
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked < 20 and not first.done() and not second.done()
        # Who has no place keeps nobody waiting.
        assert await limiter.start_samples() == 1
        free["b"] = 1
        limiter.end_samples()
        assert await second == 1 and not first.done()
        free["a"] = 1
        limiter.end_samples()
        assert await first == 1

    run(main())


def test_a_cancelled_start_takes_no_room():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=2))
        for _ in range(3):
            await limiter.start_samples()
        cancelled, stays = (asyncio.ensure_future(limiter.start_samples()) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        limiter.end_samples()
        await stays
        assert limiter.room() == 0

    run(main())


def test_the_state_has_what_a_display_needs():
    async def main() -> None:
        limiter = RateLimiter(Pace(concurrency=1))
        permit = await limiter.acquire(planned("m", "e"))
        waiting = acquiring(limiter, planned("m", "e"))
        await asyncio.sleep(1)
        (state,) = limiter.state()
        assert (state.label, state.endpoint, state.in_flight, state.limit, state.waiting) == (
            "m",
            "e",
            1,
            1,
            1,
        )
        permit.release(None, BUSY, 1.0)
        (await waiting).release(ANSWERED, None, 1.0)
        await asyncio.sleep(5)
        (state,) = limiter.state()
        assert (state.in_flight, state.waiting, state.held_s) == (0, 0, 0.0)

    run(main())


@pytest.mark.parametrize(
    ("budget", "resource"),
    [
        (BatchBudget(max_cost_usd=0.15), "cost"),
        (BatchBudget(max_tokens=250), "tokens"),
        (BatchBudget(max_seconds=4), "time"),
    ],
    ids=["cost", "tokens", "time"],
)
def test_a_limit_that_a_running_batch_gets_counts_what_was_used_before(
    budget: BatchBudget, resource: str
) -> None:
    async def main() -> CallRejected:
        limiter = RateLimiter(Pace(concurrency=2))
        permit = await limiter.acquire(planned())
        await asyncio.sleep(5)
        permit.release(Usage(100, 100, 0, 0, 0.1, 1), None, 5.0)
        limiter.change(Pace(concurrency=2), budget)
        with pytest.raises(CallRejected) as rejected:
            await limiter.acquire(planned())
        return rejected.value

    assert run(main()).resource == resource


def test_a_limit_may_be_raised_and_removed_while_a_batch_runs() -> None:
    async def main() -> None:
        limiter = RateLimiter(budget=BatchBudget(max_cost_usd=0.15))
        (await limiter.acquire(planned())).release(Usage(100, 100, 0, 0, 0.1, 1), None, 1.0)
        limiter.change(Pace(), BatchBudget(max_cost_usd=0.25))
        (await limiter.acquire(planned())).release(Usage(100, 100, 0, 0, 0.1, 1), None, 1.0)
        limiter.change(Pace(), BatchBudget())
        await limiter.acquire(planned())

    run(main())
