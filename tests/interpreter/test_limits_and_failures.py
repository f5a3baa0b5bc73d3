"""Limits of a Handler, and failures: each is a TaskError that names its cause, never an exception."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evaluator import (
    HandlerConfig,
    ModelResponse,
    ProviderError,
    SimulatedBackend,
    TaskError,
    TaskStore,
    Usage,
    UsageError,
    disk,
)
from tests.patience import with_enough_time

ASK = """<task name="ask" type="atomic"><description>d</description>{handler}
<tools><tool name="list_files"/></tools><instructions>Q</instructions></task>"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ProviderError("HTTP 401: bad key", kind="authentication"),
            "HTTP 401: bad key (simulated); check the key",
        ),
        (
            ProviderError("HTTP 503", kind="server"),
            "HTTP 503 (simulated); the provider has a fault; try again later",
        ),
        (
            ProviderError("no such model", kind="not_found"),
            "check the model's name and the profile's base_url",
        ),
        (ProviderError("mine", kind="other"), "model call failed: mine"),
    ],
)
def test_a_failed_model_call_says_where_it_failed_and_what_to_do(error, says, make_evaluator):
    def fail(_request):
        raise error

    outcome = make_evaluator(ASK.format(handler=""), script=fail).evaluate_sync("ask")
    assert says in outcome.message


def run(evaluator, name="ask", inputs=None, **options):
    return asyncio.run(evaluator.evaluate(name, inputs or {}, **options))


def test_a_turn_past_the_limit_is_not_sent(make_evaluator):
    seen = []

    def script(request):
        seen.append(request)
        return {"tool": "list_files", "arguments": {}, "text": "looking"}

    error = run(make_evaluator(ASK.format(handler='<handler max_turns="2"/>'), script=script))
    assert isinstance(error, TaskError)
    assert (error.type, error.resource.name, error.resource.used, error.resource.limit) == (
        "RESOURCE_EXHAUSTION",
        "turns",
        2,
        2,
    )
    assert len(seen) == 2
    assert error.content == "looking"


def test_eighty_per_cent_of_a_limit_is_a_warning(make_evaluator):
    answers = [{"tool": "list_files", "arguments": {}}] * 3 + ["done"]
    result = run(
        make_evaluator(ASK.format(handler='<handler max_turns="5"/>'), script=answers)
    ).unwrap()
    assert any("4 of 5 turns" in w for w in result.notes["warnings"])
    below = run(
        make_evaluator(ASK.format(handler='<handler max_turns="4"/>'), script=answers[1:])
    ).unwrap()
    assert below.usage.turns == 3
    assert not any("turns" in w for w in below.notes["warnings"])


def test_a_request_larger_than_the_window_is_not_sent(make_evaluator):
    seen = []
    config = HandlerConfig(
        name="small", backend="simulated", context_window=100, max_context_fraction=0.5
    )
    xml = '<task name="big" type="atomic"><description>d</description><inputs><input name="t"/></inputs><instructions>{{ t }}</instructions></task>'
    evaluator = make_evaluator(xml, handler=config, script=lambda r: seen.append(r))
    error = run(evaluator, "big", {"t": "word " * 500})
    assert isinstance(error, TaskError)
    assert (error.resource.name, error.resource.limit) == ("context", 50)
    assert seen == []


def test_a_task_that_takes_too_long_ends_at_its_time_limit(make_evaluator):
    evaluator = make_evaluator(
        ASK.format(handler='<handler timeout="0.2"/>'), backend=SimulatedBackend(hang=1.0)
    )
    error = run(evaluator)
    assert isinstance(error, TaskError)
    assert (error.type, error.resource.name, error.reason) == (
        "RESOURCE_EXHAUSTION",
        "time",
        "execution_timeout",
    )


def test_a_cost_limit_with_an_unknown_price_is_refused_before_the_call(make_evaluator):
    class Priced(SimulatedBackend):
        @property
        def name(self):
            return "mine"

    evaluator = make_evaluator(ASK.format(handler='<handler max_cost="1"/>'), backend=Priced())
    error = run(evaluator, model="mine/unheard-of")
    assert isinstance(error, TaskError)
    assert error.resource.name == "cost"
    assert "its price or its longest answer" in error.message


def test_an_answer_cut_at_its_output_limit_is_exhaustion_with_what_there_is(make_evaluator):
    from evaluator import ModelResponse

    error = run(
        make_evaluator(ASK.format(handler=""), script=[ModelResponse("half an ans", "length")])
    )
    assert isinstance(error, TaskError)
    assert (error.resource.name, error.content) == ("output", "half an ans")


def no_wait(**more):
    return HandlerConfig(name="quick", backend="simulated", backoff_s=(0.0, 0.0), **more)


def test_transport_failures_are_retried_each_as_a_step_of_its_own(make_evaluator, tmp_path):
    answers = [ProviderError("busy", kind="rate_limit", status=429, retryable=True), "fine"]

    def script(request):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = run(make_evaluator(ASK.format(handler=""), handler=no_wait(), script=script)).unwrap()
    assert result.content == "fine"
    recording = TaskStore(tmp_path / "tasks").read(1)
    attempts = [(s.start.attempt, s.status) for s in recording.steps if s.start.kind == "model"]
    assert attempts == [(1, "failed"), (2, "success")]
    assert recording.summary.retries == 1


def test_retries_end_and_the_error_says_what_the_provider_said(make_evaluator):
    def script(request):
        raise ProviderError(
            "overloaded", kind="server", status=529, retryable=True, maybe_billed=True
        )

    error = run(make_evaluator(ASK.format(handler=""), handler=no_wait(), script=script))
    assert isinstance(error, TaskError)
    assert (error.reason, error.retryable, error.maybe_billed) == ("provider_failure", True, True)
    assert "overloaded" in error.message
    assert isinstance(error.cause, ProviderError)


def test_an_error_that_cannot_pass_is_not_retried(make_evaluator):
    calls = []

    def script(request):
        calls.append(1)
        raise ProviderError("bad key", kind="authentication", status=401)

    run(make_evaluator(ASK.format(handler=""), handler=no_wait(), script=script))
    assert len(calls) == 1


def test_a_wait_that_would_pass_the_time_limit_is_not_begun(make_evaluator):
    def script(request):
        raise ProviderError(
            "busy", kind="rate_limit", status=429, retryable=True, retry_after_s=3600
        )

    error = run(
        make_evaluator(ASK.format(handler=""), handler=no_wait(timeout_s=60.0), script=script)
    )
    assert isinstance(error, TaskError)
    assert error.resource.name == "time"


def test_a_wait_that_takes_a_little_longer_than_the_time_left_is_not_begun(make_evaluator):
    def script(request):
        raise ProviderError("busy", kind="rate_limit", retryable=True, retry_after_s=66.0)

    profile = no_wait(timeout_s=60.0)
    error = run(make_evaluator(ASK.format(handler=""), handler=profile, script=script))
    assert "waiting 66 s to retry would pass the time limit" in error.message


def test_a_backend_that_breaks_its_contract_is_an_unexpected_error_with_its_cause(make_evaluator):
    def script(request):
        raise ZeroDivisionError("inside a backend")

    error = run(make_evaluator(ASK.format(handler=""), script=script))
    assert isinstance(error, TaskError)
    assert error.reason == "unexpected_error"
    assert isinstance(error.cause, ZeroDivisionError)
    assert (
        error.message
        == "ZeroDivisionError: inside a backend, while the backend 'simulated' answered"
    )


def test_a_refusal_is_an_error_with_its_text(make_evaluator):
    from evaluator import ModelResponse

    error = run(
        make_evaluator(ASK.format(handler=""), script=[ModelResponse("I will not", "refusal")])
    )
    assert isinstance(error, TaskError)
    assert (error.reason, error.content) == ("provider_failure", "I will not")


def test_a_task_folder_that_cannot_be_written_is_an_error_before_the_call(make_evaluator, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    seen = []
    evaluator = make_evaluator(
        ASK.format(handler=""), tasks_dir=tmp_path / "file", script=lambda r: seen.append(r)
    )
    error = run(evaluator)
    assert isinstance(error, TaskError)
    assert error.reason == "execution_halted"
    assert seen == []


def test_a_cancelled_run_is_recorded_as_aborted(make_evaluator, tmp_path):
    began = asyncio.Event()

    class Slow(SimulatedBackend):
        @property
        def name(self):
            return "mine"  # answers of simulated models are not cached

        async def complete(self, request, *, on_text=None):
            began.set()
            await asyncio.Event().wait()

    evaluator = make_evaluator(ASK.format(handler=""), backend=Slow())

    async def cancel():
        task = asyncio.ensure_future(evaluator.evaluate("ask"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.status == "aborted"
    assert recording.summary.reason == "interrupted"
    assert [s.status for s in recording.steps if s.start.kind == "model"] == ["aborted"]


@pytest.mark.parametrize("bad", [{"inputs": ["x"]}, {"request": 3}])
def test_arguments_of_the_wrong_python_type_are_usage_errors(make_evaluator, bad):
    evaluator = make_evaluator(ASK.format(handler=""))
    with pytest.raises(UsageError):
        asyncio.run(evaluator.evaluate(**{"request": "ask", **bad}))


def test_inputs_that_are_not_plain_data_are_an_error(make_evaluator):
    xml = '<task name="t" type="atomic"><description>{{ x }}</description><inputs><input name="x"/></inputs></task>'
    error = run(make_evaluator(xml), "t", {"x": object()})
    assert isinstance(error, TaskError)
    assert "x" in error.message


def test_tools_of_one_turn_run_one_after_the_other_in_the_order_of_the_calls(make_evaluator):
    from evaluator import tool

    log = []

    @tool
    async def note(text: str) -> str:
        """Notes a text.

        text: what to note
        """
        log.append(f"begin {text}")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"end {text}")
        return text

    xml = ASK.replace("list_files", "note").format(handler="")
    calls = [{"tool": "note", "arguments": {"text": name}} for name in "ab"]
    run(make_evaluator(xml, script=[calls, "done"], tools=[note])).unwrap()
    assert log == ["begin a", "end a", "begin b", "end b"]


class Flaky(SimulatedBackend):
    """Fails as often as is said, perhaps billed, and then answers; each answer costs a dollar."""

    def __init__(self, *failures: ProviderError) -> None:
        super().__init__()
        self.failures = list(failures)
        self.calls = 0

    @property
    def name(self) -> str:
        return "mine"

    async def complete(self, request, *, on_text=None):
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return ModelResponse("done", "stop", usage=Usage(10, 5, 0, 0, 1.0, 1))


def billed(*, retryable: bool = True) -> ProviderError:
    return ProviderError(
        "no answer in time", kind="timeout", retryable=retryable, maybe_billed=True
    )


def refused() -> ProviderError:
    return ProviderError("HTTP 429", kind="rate_limit", retryable=True)


def flaky(make_evaluator, *failures, limit=None):
    config = HandlerConfig(
        name="p",
        prices=(0.0, 1e6),
        max_output_tokens=1,
        backoff_s=(0.0, 0.0),
        max_cost_usd=limit,
        context_window=10**6,
    )
    backend = Flaky(*failures)
    xml = '<task name="ask" type="atomic"><description>d</description><instructions>Q</instructions></task>'
    return run(make_evaluator(xml, backend=backend, handler=config), model="mine/x"), backend


def test_what_a_failed_call_may_have_cost_is_unknown_and_never_zero(make_evaluator):
    error, _ = flaky(make_evaluator, billed(retryable=False))
    assert (error.usage.cost_usd, error.usage.input_tokens, error.usage.turns) == (None, None, 0)
    assert error.maybe_billed


def test_after_a_failed_call_that_may_have_been_billed_the_cost_of_a_success_is_unknown(
    make_evaluator, tmp_path
):
    outcome, backend = flaky(make_evaluator, billed())
    result = outcome.unwrap()
    assert (result.content, backend.calls) == ("done", 2)
    assert (result.usage.cost_usd, result.usage.output_tokens, result.usage.turns) == (
        None,
        None,
        1,
    )
    assert [w for w in result.notes["warnings"] if "may have been billed" in w]
    ends = [
        step.end
        for step in TaskStore(tmp_path / "tasks").read(1).steps
        if step.start.kind == "model"
    ]
    assert [end.usage["cost_usd"] for end in ends] == [None, 1.0]


def test_a_failed_call_that_was_not_billed_costs_nothing(make_evaluator):
    result = flaky(make_evaluator, refused())[0].unwrap()
    assert (result.usage.cost_usd, result.usage.output_tokens) == (1.0, 5)
    assert not [w for w in result.notes["warnings"] if "billed" in w]


@pytest.mark.parametrize(
    ("failures", "limit", "calls"),
    [
        # A turn may cost a dollar at most.
        ([billed()], 1.5, 1),
        ([billed()], 2.5, 2),
        ([refused()], 1.5, 2),
        ([billed(), billed()], 2.5, 2),
    ],
)
def test_a_cost_limit_counts_the_most_that_failed_calls_may_have_cost(
    make_evaluator, failures, limit, calls
):
    outcome, backend = flaky(make_evaluator, *failures, limit=limit)
    assert backend.calls == calls
    if len(failures) == calls:
        assert isinstance(outcome, TaskError)
        assert (outcome.resource.name, outcome.resource.limit) == ("cost", limit)
        assert outcome.resource.used == len(failures)
    else:
        assert outcome.unwrap().content == "done"


def test_the_wait_for_the_same_answer_of_another_task_is_not_this_tasks_time(
    make_evaluator, tmp_path
):
    """The second task has half a second, and waits a second for the call that the first has begun."""
    tasks = "".join(
        f'<task name="{name}" type="atomic"><description>d</description><handler timeout="{timeout}"/>'
        "<instructions>the same</instructions></task>"
        for name, timeout in (("patient", 60), ("hasty", 0.5))
    )

    class Slow(SimulatedBackend):
        @property
        def name(self):
            return "mine"  # answers of simulated models are not cached

        async def complete(self, request, *, on_text=None):
            begun.set()
            await answered.wait()
            return await super().complete(request, on_text=on_text)

    begun = asyncio.Event()
    answered = asyncio.Event()

    async def scene():
        profile = HandlerConfig(prices=(1, 1))
        evaluator = make_evaluator(
            tasks, backend=Slow(), handler=profile, cache=tmp_path / "cache.sqlite"
        )
        first = asyncio.ensure_future(evaluator.evaluate("patient"))
        await begun.wait()
        second = asyncio.ensure_future(evaluator.evaluate("hasty"))
        asyncio.get_running_loop().call_later(1.0, answered.set)
        return await asyncio.gather(first, second)

    patient, hasty = asyncio.run(scene())
    assert hasty.unwrap().content == patient.unwrap().content
    assert hasty.notes["cached_calls"] == 1


NESTED = """
<task name="outer" type="sequential"><description>outer</description><steps>
  <task name="first"><description>FIRST</description></task>
  <call template="middle"/>
</steps></task>
<template name="middle" params=""><task name="body" type="sequential"><description>body</description><steps>
  <task name="reads"><description>READS</description><file_paths><path>data.md</path></file_paths></task>
  <task name="each" type="reduce"><description>each</description>
    <inputs><input name="words" type="string[]" default='["a", "b"]'/></inputs>
    <initial_value>0</initial_value>
    <inner_task><description>INNER {{ current_input }}</description></inner_task>
    <reduction_task><description>REDUCE</description></reduction_task></task>
</steps></task></template>
<task name="all" type="sequential"><description>all</description><steps>
  <call template="middle"/><task name="last"><description>LAST</description></task>
</steps></task>
"""


def test_what_nested_composites_and_functions_had_done_is_kept(make_evaluator, tmp_path, scripted):
    def script(request):
        if "INNER b" in request.messages[-1].content:
            raise ProviderError("gone", kind="bad_request", retryable=False)
        return "fine"

    (tmp_path / "data.md").write_text("the data")
    failed = make_evaluator(NESTED, script=script).evaluate_sync("outer")
    details = failed.details
    assert details["failed_step"] == {"index": 1, "name": "2"}
    assert [each["step"] for each in details["partial_results"]] == ["first"]
    middle = details["inner"]
    assert middle["failed_step"] == {"index": 1, "name": "each"}
    assert [each["step"] for each in middle["partial_results"]] == ["reads"]
    each = middle["inner"]
    assert (each["processed_inputs"], each["failed_input"]["value"]) == ([0], "b")
    assert each["accumulator"] == "fine" and len(each["partial_results"]) == 1
    assert failed.notes["data_usage"] == ["file:data.md"]
    done = make_evaluator(NESTED, script=scripted()).evaluate_sync("all")
    assert done.notes["data_usage"] == ["file:data.md"]


@pytest.mark.parametrize("how", ["late", "killed", "stopped"])
def test_the_reasons_in_a_task_file_are_words(make_evaluator, tmp_path, how):
    async def run(evaluator, began):
        task = asyncio.ensure_future(evaluator.evaluate("ask"))
        if how != "late":
            await began.wait()
            task.cancel("the user killed it" if how == "killed" else None)
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.wait([task])

    def attempt(limit_s):
        began = asyncio.Event()

        class Slow(SimulatedBackend):
            async def complete(self, request, *, on_text=None):
                began.set()
                await asyncio.Event().wait()

        handler = f'<handler timeout="{limit_s}"/>' if how == "late" else ""
        folder = tmp_path / f"tasks within {limit_s} s"
        evaluator = make_evaluator(ASK.format(handler=handler), backend=Slow(), tasks_dir=folder)
        asyncio.run(run(evaluator, began))
        return TaskStore(folder).read(1), folder / "done" / "TASK-1.md"

    recording, file = with_enough_time(
        attempt, lambda read: any(step.start.kind == "model" for step in read[0].steps), 0.2
    )
    (step,) = [step for step in recording.steps if step.start.kind == "model"]
    assert step.status == "aborted"
    expected = {
        "late": ("timeout", None),
        "killed": ("cancelled — the user killed it",) * 2,
        "stopped": ("cancelled", "interrupted"),
    }
    reason, summary = expected[how]
    assert step.end.error == reason
    assert summary is None or recording.summary.reason == summary
    assert "Error" not in file.read_text()


def test_a_call_that_was_answered_counts_also_if_the_task_is_cancelled_while_it_is_recorded(
    make_evaluator, tmp_path, monkeypatch
):
    answered, recording, go_on = threading.Event(), threading.Event(), threading.Event()

    def script(request):
        answered.set()
        return "answer"

    def slow(fd):
        if answered.is_set():
            recording.set()
            assert go_on.wait(200)

    monkeypatch.setattr(disk, "fdatasync", slow)
    evaluator = make_evaluator(ASK.format(handler=""), script=script, sync="step")

    async def run():
        task = asyncio.ensure_future(evaluator.evaluate("ask"))
        try:
            assert await asyncio.to_thread(recording.wait, 200)
            task.cancel()
            await asyncio.sleep(0)
        finally:
            go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())
    read = TaskStore(tmp_path / "tasks").read(1)
    assert [step.end.usage["turns"] for step in read.steps if step.start.kind == "model"] == [1]
    assert (read.summary.status, read.summary.usage["turns"]) == ("aborted", 1)


def test_a_subtask_that_its_parents_time_ends_names_the_limit_of_the_parent(
    make_evaluator, tmp_path
):
    tasks = (
        '<task name="outer" type="sequential"><description>d</description><handler timeout="0.2"/>'
        '<steps><task name="inner" type="atomic"><description>d</description>'
        '<handler timeout="60"/><instructions>go</instructions></task></steps></task>'
    )
    evaluator = make_evaluator(tasks, backend=SimulatedBackend(hang=1.0))
    error = asyncio.run(evaluator.evaluate("outer"))
    assert isinstance(error, TaskError) and error.resource is not None
    assert (error.resource.name, error.resource.limit) == ("time", 0.2)
    assert "has used its 0.2 s" in error.message and "60 s" not in str(error.to_dict())


def test_a_timeout_of_the_provider_is_an_aborted_attempt_with_its_reason(make_evaluator, tmp_path):
    outcome, _ = flaky(make_evaluator, billed(), refused())
    assert outcome.unwrap().content == "done"
    steps = TaskStore(tmp_path / "tasks").read(1).steps
    ends = [step.end for step in steps if step.start.kind == "model"]
    assert [(end.status, end.error) for end in ends] == [
        ("aborted", "timeout — no answer in time"),
        ("failed", "rate_limit: HTTP 429"),
        ("success", None),
    ]


def test_a_timeout_of_the_provider_is_replayed_as_one(make_evaluator):
    evaluator = make_evaluator(ASK.format(handler=""), backend=Flaky(billed(retryable=False)))
    error = run(evaluator, model="mine/x")
    replayed = asyncio.run(evaluator.replay(1)).outcome
    assert error.details["kind"] == replayed.details["kind"] == "timeout"
    assert replayed.message.startswith("model call failed: no answer in time")
