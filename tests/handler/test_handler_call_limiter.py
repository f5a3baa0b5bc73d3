"""A Handler acquires a permit for each attempt and always releases it; the wait does not count as time of the task."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    Message,
    ModelResponse,
    ProviderError,
    SimulatedBackend,
    TaskError,
    TaskStore,
    TemplateLibrary,
    Usage,
)
from evaluator.errors import LimitReached
from evaluator.handler.conversation import SessionLog, plan_session
from evaluator.handler.model_choice import ModelChoice, ModelChooser
from evaluator.handler.session import Handler
from evaluator.limits.budget import Budget
from evaluator.limits.call_limiter import PlannedCall
from evaluator.limits.rate_limiter import BatchBudget, Pace, RateLimiter
from evaluator.models.text_tools import TextToolsBackend
from evaluator.record.step_log import StepLog
from tests.limits.virtual_time import run

ASK = '<task name="ask" type="atomic"><description>d</description><instructions>Q</instructions></task>'
BUSY = ProviderError("busy", kind="rate_limit", status=429, retryable=True)


class Watched:
    """A limiter that permits everything and records the releases."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.calls: list[PlannedCall] = []
        self.ends: list[tuple[str, Usage | None]] = []
        self.inside = 0
        self.was_acquired = asyncio.Event()
        self.wait_s = wait_s

    async def acquire(self, call: PlannedCall) -> Watched:
        await asyncio.sleep(self.wait_s)
        self.calls.append(call)
        self.inside += 1
        self.was_acquired.set()
        return self

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def release(self, usage, error, latency_s):
        if self.inside:
            self.inside -= 1
            self.ends.append(
                ("failed" if error else "cut off" if usage is None else "answered", usage)
            )


def handler(limiter, *, config=None, budget=None, backend=None, steps=None):
    config = config or HandlerConfig(backoff_s=(0.0,))
    choice = ModelChoice(
        backend or SimulatedBackend(script=lambda r: "ok"),
        "m",
        "m",
        "test",
        limiter=limiter,
        endpoint="e",
    )
    log = SessionLog(steps or StepLog(None))
    return Handler(plan_session(config, choice), log, budget or Budget("t"))


def test_each_attempt_acquires_a_permit_and_releases_it_with_its_usage():
    answers = iter([BUSY, "fine"])
    limiter = Watched()
    config = HandlerConfig(backoff_s=(0.0,), max_output_tokens=50)
    one = handler(limiter, config=config, backend=SimulatedBackend(script=lambda r: next(answers)))
    asyncio.run(one.run([Message("user", "hello there")]))
    assert [end for end, _ in limiter.ends] == ["failed", "answered"]
    assert limiter.inside == 0
    call = limiter.calls[0]
    assert (call.label, call.endpoint, call.output_tokens, call.cost_usd) == ("m", "e", 50, 0.0)
    assert call.input_tokens
    used = limiter.ends[1][1]
    assert used is not None
    assert (used.turns, used.cost_usd) == (1, 0.0)


def test_a_cancelled_call_releases_its_permit():
    async def main() -> None:
        limiter = Watched()
        task = asyncio.ensure_future(
            handler(limiter, backend=SimulatedBackend(hang=1.0)).run([Message("user", "q")])
        )
        await limiter.was_acquired.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert limiter.ends == [("cut off", None)]

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError("gave up"), SystemExit(2)], ids=lambda e: type(e).__name__
)
def test_a_backend_that_raises_cancellation_or_exit_itself_fails_only_its_call(error):
    def answer(request):
        raise error

    limiter = Watched()
    with pytest.raises(
        ProviderError, match=f"the backend ended with {type(error).__name__}"
    ) as failed:
        asyncio.run(
            handler(limiter, backend=SimulatedBackend(script=answer)).run([Message("user", "q")])
        )
    assert (failed.value.kind, failed.value.retryable, failed.value.maybe_billed) == (
        "other",
        False,
        True,
    )
    assert failed.value.__cause__ is error
    assert [end for end, _ in limiter.ends] == ["failed"]


def test_a_deadline_and_a_cancellation_pass_through_a_backend():
    async def hurried() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await handler(Watched(), backend=SimulatedBackend(hang=1.0)).run(
                    [Message("user", "q")]
                )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                handler(Watched(), backend=SimulatedBackend(hang=1.0)).run([Message("user", "q")]),
                0.01,
            )

    asyncio.run(hurried())


@pytest.mark.parametrize("way", ["signal", "on_text"])
def test_a_program_can_exit_inside_a_backend(way):
    source = """
import asyncio, os, signal, sys
from evaluator import Evaluator, SimulatedBackend
def end(*_):
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
def answer(request):
    if sys.argv[1] == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    return "x"
evaluator = Evaluator(backend=SimulatedBackend(script=answer), tasks_dir=None)
evaluator.library.add('<task name="ask" type="atomic"><description>d</description></task>')
asyncio.run(evaluator.evaluate("ask", on_text=end if sys.argv[1] == "on_text" else None))
"""
    ended = subprocess.run([sys.executable, "-c", source, way], capture_output=True, timeout=200)
    assert ended.returncode == 7, ended.stderr


def test_a_query_with_a_cost_limit_of_its_own_reserves_the_cost_of_its_turn():
    config = HandlerConfig(backoff_s=(), prices=(1.0, 1.0), max_output_tokens=10, max_cost_usd=1.0)
    one = handler(None, config=config, backend=Priced(script=lambda r: "ok"))
    assert (
        asyncio.run(one.say([Message("user", "q")], Budget("query", max_cost_usd=1.0))).content
        == "ok"
    )
    with pytest.raises(LimitReached, match="which would pass"):
        asyncio.run(one.say([Message("user", "q")], Budget("query", max_cost_usd=1e-9)))


def test_a_step_that_cannot_be_begun_releases_an_unused_permit():
    class Broken(StepLog):
        async def begin(self, *_, **__):
            raise LimitReached("time", 1, 1, "no")

    limiter = Watched()
    one = handler(limiter, steps=Broken(None))
    with pytest.raises(LimitReached):
        asyncio.run(one.run([Message("user", "q")]))
    assert limiter.ends == [("answered", Usage())]


def test_waiting_for_a_permit_does_not_count_as_time_of_the_task_or_of_those_above():
    async def main() -> tuple[str, float, float]:
        clock = asyncio.get_running_loop().time
        above = Budget("above", timeout_s=4)
        budget = Budget("t", timeout_s=3, parent=above)
        backend = SimulatedBackend(script=lambda r: "ok", latency_s=2.0)
        with above.deadline(), budget.deadline():
            outcome = await handler(Watched(100.0), budget=budget, backend=backend).run(
                [Message("user", "q")]
            )
        return outcome.content, budget.elapsed_s(), clock()

    assert run(main()) == ("ok", 2.0, 102.0)


def test_time_outside_the_wait_still_counts():
    async def main() -> float:
        clock = asyncio.get_running_loop().time
        above = Budget("above", timeout_s=4)
        budget = Budget("t", timeout_s=30, parent=above)
        backend = SimulatedBackend(script=lambda r: "ok", latency_s=6.0)
        one = handler(
            Watched(100.0), config=HandlerConfig(backoff_s=()), budget=budget, backend=backend
        )

        async def in_time() -> None:
            with budget.deadline():
                await one.run([Message("user", "q")])

        with pytest.raises((TimeoutError, ProviderError)):
            await in_time()
        return clock()

    assert run(main()) == 104.0


def test_a_task_beside_a_waiting_one_keeps_its_own_limit():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        above = Budget("above", timeout_s=10)
        waiting, working = (Budget("t", timeout_s=5, parent=above) for _ in range(2))
        ends: list[float] = []

        async def wait() -> None:
            with waiting.deadline():
                with waiting.paused():
                    await asyncio.sleep(50)
                await asyncio.sleep(100)

        async def work(budget: Budget) -> None:
            with budget.deadline():
                await asyncio.sleep(100)

        async def timed(main) -> None:
            try:
                await main
            except TimeoutError:
                ends.append(loop.time())

        late = Budget("late", parent=above, timeout_s=1000)
        await asyncio.gather(timed(wait()), timed(work(working)), timed(work(late)))
        return ends

    # The one that works ends by its own limit; the one that waited has all its five seconds, the last the ten above.
    assert run(main()) == [5.0, 55.0, 60.0]


def test_a_step_is_not_begun_while_its_call_waits_for_a_permit(tmp_path):
    seen: list[list[str]] = []

    class Looking(Watched):
        async def acquire(self, call: PlannedCall) -> Watched:
            recording = TaskStore(tmp_path / "tasks").read(1)
            seen.append([step.start.kind for step in recording.steps])
            return await super().acquire(call)

    outcome = evaluate(tmp_path, Looking(), SimulatedBackend(script=lambda r: "ok"))
    assert outcome.ok
    assert "model" not in seen[0]
    steps = TaskStore(tmp_path / "tasks").read(1).steps
    assert [step.start.kind for step in steps].count("model") == 1


def evaluate(tmp_path, limiter, backend, **config):
    library = TemplateLibrary()
    library.add(ASK)
    evaluator = Evaluator(
        library,
        HandlerConfig(backoff_s=(), **config),
        backend=backend,
        tasks_dir=tmp_path / "tasks",
        roots=[tmp_path],
    )
    return asyncio.run(evaluator.with_limiter(limiter, tmp_path / "tasks").evaluate("ask"))


class Priced(SimulatedBackend):
    """A backend that is not named simulated, hence not free."""

    @property
    def name(self):
        return "mine"


def test_a_budget_of_the_batch_ends_a_task_as_its_own_limit_would(tmp_path):
    limiter = RateLimiter(budget=BatchBudget(max_cost_usd=0.5))
    outcome = evaluate(tmp_path, limiter, Priced(), prices=(1e6, 1e6), max_output_tokens=10)
    assert isinstance(outcome, TaskError)
    assert (outcome.type, outcome.resource.name, outcome.usage.turns) == (
        "RESOURCE_EXHAUSTION",
        "cost",
        0,
    )
    assert "the batch's budget of $0.5" in outcome.message
    assert limiter.refused is outcome.cause


def test_the_wait_for_permits_is_in_the_notes_and_not_in_the_duration(tmp_path):
    started = time.perf_counter()
    outcome = evaluate(tmp_path, Watched(wait_s=0.05), SimulatedBackend(script=lambda r: "ok"))
    elapsed_s = time.perf_counter() - started
    summary = TaskStore(tmp_path / "tasks").read(outcome.task_id).summary
    assert outcome.notes["waited_s"] >= 0.05
    assert 0 < summary.duration_s <= elapsed_s - 0.05


def test_an_unknown_cost_with_a_budget_of_the_batch_is_an_error_before_the_first_call(tmp_path):
    seen = []
    backend = Priced(script=lambda r: seen.append(r))
    outcome = evaluate(tmp_path, RateLimiter(budget=BatchBudget(max_cost_usd=0.5)), backend)
    assert isinstance(outcome, TaskError)
    assert "longest answer is unknown" in outcome.message and "<prices" in outcome.message
    assert seen == []


def test_choosers_with_and_without_a_limiter_share_the_backends():
    chooser = ModelChooser(environ={}, probe_local=False)
    plain = chooser.choose("simulated/x", None, HandlerConfig())
    limiter = Watched()
    limited = chooser.with_limiter(limiter, None).choose("simulated/x", None, HandlerConfig())
    assert (plain.limiter, limited.limiter) == (None, limiter)
    assert limited.backend is plain.backend
    assert limited == plain
    assert chooser.choose("simulated/x", None, HandlerConfig()).limiter is None


@pytest.mark.parametrize(
    ("model", "config", "endpoint"),
    [
        ("simulated/x", {}, "simulated"),
        ("local/x", {"base_url": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1"),
        ("openai/x", {"base_url": "http://user:secret@127.0.0.1:1/v1"}, None),
        ("anthropic/x", {"api_key_env": "A"}, "anthropic"),
        (
            "local/x",
            {"base_url": "http://127.0.0.1:1/v1", "backend": "litellm"},
            "http://127.0.0.1:1/v1",
        ),
    ],
)
def test_an_endpoint_is_shown_without_secrets(model, config, endpoint):
    choice = ModelChooser(environ={"A": "k"}, probe_local=False).choose(
        model, None, HandlerConfig(**config)
    )
    assert "secret" not in choice.endpoint
    assert endpoint is None or choice.endpoint == endpoint


def test_tasks_side_by_side_keep_to_the_concurrency_of_the_limiter(tmp_path):
    most, at_once = [0], itertools.count()

    class Counting(SimulatedBackend):
        async def complete(self, request, *, on_text=None) -> ModelResponse:
            number = next(at_once)
            running.add(number)
            most[0] = max(most[0], len(running))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running.discard(number)
            return await super().complete(request, on_text=on_text)

    running: set[int] = set()
    limiter = RateLimiter(Pace(concurrency=3))

    async def main() -> None:
        ones = [handler(limiter, backend=Counting(script=lambda r: "ok")) for _ in range(30)]
        await asyncio.gather(*(one.run([Message("user", "q")]) for one in ones))
        (state,) = limiter.state()
        assert state.in_flight == 0

    asyncio.run(main())
    assert most == [3]


def test_a_failed_query_leaves_the_context_as_it_was():
    window = 4_000
    config = HandlerConfig(context_window=window, max_context_fraction=1.0, backoff_s=())
    answers = iter([ProviderError("down", kind="server")] * 20 + ["fine"])
    one = handler(None, config=config, backend=SimulatedBackend(script=lambda r: next(answers)))
    long = Message("user", "word " * 600)

    async def main():
        for _ in range(20):  # together, the failed queries would fill the window several times
            with pytest.raises(ProviderError):
                await one.say([long])
        return await one.say([long])

    assert asyncio.run(main()).content == "fine"


class Loading(SimulatedBackend):
    """A backend that takes long to load."""

    async def prepare(self) -> None:
        await asyncio.sleep(1000)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_time_that_a_backend_takes_to_load_is_not_the_tasks(wrapped):
    async def main() -> tuple[str, float, float]:
        clock = asyncio.get_running_loop().time
        budget = Budget("t", timeout_s=10)
        loading = Loading(script=lambda r: "ok")
        one = handler(
            None, budget=budget, backend=TextToolsBackend(loading) if wrapped else loading
        )
        with budget.deadline():
            answer = await one.run([Message("user", "hello")])
        return answer.content, budget.elapsed_s(), clock()

    assert run(main()) == ("ok", 0.0, 1000.0)


@pytest.mark.parametrize(
    "figure",
    [10**30, 10**5000, 100_000_001, -1, float("nan"), float("inf"), "5", True],
    ids=["10**30", "10**5000", "over the bound", "negative", "nan", "inf", "text", "true"],
)
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cached_tokens", "cost_usd"])
def test_an_impossible_usage_is_unknown_and_a_warning(name, figure):
    class Boasting(SimulatedBackend):
        async def complete(self, request, *, on_text=None):
            return ModelResponse(
                "ok",
                "stop",
                usage=Usage(**{"input_tokens": 3, "output_tokens": 2, "turns": 1, name: figure}),
            )

    one = handler(
        None, config=HandlerConfig(backoff_s=(0.0,), prices=(1.0, 1.0)), backend=Boasting()
    )
    answer = asyncio.run(one.run([Message("user", "hello")]))
    if name != "cost_usd":
        assert getattr(answer.usage, name) is None
    assert answer.usage.turns == 1
    assert f"m reported an impossible usage ({name}), which counts as unknown" in answer.warnings


def test_a_fraction_of_a_token_is_impossible_and_one_of_a_dollar_is_not():
    usage = Usage(2.5, 3.0, cost_usd=0.5, turns=1)
    assert usage.invalid() == ("input_tokens", "output_tokens")
    assert usage.without_invalid() == Usage(None, None, cost_usd=0.5, turns=1)


def test_a_large_usage_is_believed():
    large = Usage(100_000_000, 100_000_000, 0, 0, 100_000.0, 1)
    assert large.without_invalid() is large and large.invalid() == ()
