"""How tool calls are recorded: retries as sections of their own, refusals and time-outs with a reason, exact arguments."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from crashes import cut, file_of, reading

from evaluator import (
    HandlerConfig,
    SimulatedBackend,
    TaskStore,
    Tool,
    ToolCall,
    ToolError,
    ToolGrant,
    tool,
)
from evaluator.handler import tool_runner
from evaluator.handler.conversation import Session, SessionLog, plan_session
from evaluator.handler.model_choice import ModelChoice
from evaluator.handler.tool_runner import Tools, run_tools
from evaluator.limits.budget import Budget
from evaluator.record.step_log import StepLog
from evaluator.tools import CallbackAsker, FileAccess, ToolContext, ToolRegistry
from tests.patience import with_enough_time

TASK = """<task name="work" type="atomic"><description>Work</description><tools><tool name="flaky"/></tools>
  <instructions>WORK</instructions></task>"""


def flaky_tool(errors: list[Exception], calls: list[str], **settings: Any) -> Tool:
    """A tool that raises `errors` one after the other, and then succeeds."""

    @tool(name="flaky", **settings)
    async def flaky(place: str) -> str:
        """Do something elsewhere."""
        calls.append(place)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return "done"

    return flaky


def profile(waits: tuple[float, ...] = (0.001, 0.002, 0.003), **settings: Any) -> HandlerConfig:
    return HandlerConfig(name="p", backend="simulated", backoff_s=waits, **settings)


def script(told: list[str], arguments: Any = None) -> Any:
    """A model that calls `flaky` once; `told` gets the answer."""

    def answer(request: Any) -> Any:
        told[:] = [message.content for message in request.messages if message.role == "tool"]
        given = {"place": "here"} if arguments is None else arguments
        return "ended" if told else {"tool": "flaky", "arguments": given}

    return answer


def tool_steps(root: Path, task_id: int = 1) -> list[Any]:
    return [step for step in reading(root, task_id).steps if step.start.kind == "tool"]


BUSY = [ConnectionError("busy"), ToolError("still busy")]


def test_a_failed_call_of_a_retryable_tool_is_made_again_after_the_waits_of_the_profile(
    make_evaluator, tmp_path
):
    calls: list[str] = []
    told: list[str] = []
    evaluator = make_evaluator(
        TASK,
        script=script(told),
        handler=profile(),
        tools=[flaky_tool(BUSY, calls, retryable=True)],
    )
    evaluator.evaluate_sync("work").unwrap()
    assert (calls, len(told), "done" in told[0]) == (["here"] * 3, 1, True)
    steps = tool_steps(tmp_path)
    assert [
        (s.number, s.start.attempt, s.start.max_attempts, s.start.backoff_s, s.status)
        for s in steps
    ] == [
        (3, 1, 4, None, "failed"),
        (3, 2, 4, 0.001, "failed"),
        (3, 3, 4, 0.002, "success"),
    ]
    assert [s.end.error for s in steps] == [
        "flaky failed: ConnectionError: busy",
        "still busy",
        None,
    ]
    text = file_of(tmp_path, 1).read_text()
    assert "## Step 3 (retry): flaky" in text
    assert "- **Backoff**: 2ms" in text
    assert "(2 retries)" in text
    assert evaluator.replay_sync(1).ok


def test_after_the_last_retry_the_model_gets_the_error(make_evaluator, tmp_path):
    calls: list[str] = []
    told: list[str] = []
    errors = [OSError(f"failure {n}") for n in range(1, 9)]
    flaky = flaky_tool(errors, calls, retryable=True)
    evaluator = make_evaluator(TASK, script=script(told), handler=profile(), tools=[flaky])
    assert evaluator.evaluate_sync("work").unwrap().content == "ended"
    assert len(calls) == 4
    assert "failure 4" in told[0]
    assert [step.status for step in tool_steps(tmp_path)] == ["failed"] * 4
    assert evaluator.replay_sync(1).ok


# the errors of the tool, its settings, the waits → how often it is called
ONCE: list[tuple[list[Exception], dict[str, Any], tuple[float, ...], int]] = [
    ([ConnectionError("busy")], {}, (0.0,), 1),
    ([ConnectionError("busy")], {"effect": False}, (0.0,), 1),
    ([ToolError("there is no such place", retryable=False)], {"retryable": True}, (0.0,), 1),
    # A wait that would pass the time limit of the task is not begun.
    ([ConnectionError("busy")], {"retryable": True}, (3600.0,), 1),
    ([ConnectionError("busy")], {"retryable": True}, (), 1),
    ([ConnectionError("busy")], {"retryable": True}, (0.0,), 2),
]


@pytest.mark.parametrize(("errors", "settings", "waits", "count"), ONCE)
def test_a_call_is_made_again_only_where_that_may_help(
    make_evaluator, errors, settings, waits, count
):
    calls: list[str] = []
    told: list[str] = []
    flaky = flaky_tool(errors, calls, **settings)
    make_evaluator(TASK, script=script(told), handler=profile(waits), tools=[flaky]).evaluate_sync(
        "work"
    ).unwrap()
    assert len(calls) == count
    assert ("done" in told[0]) is (count == 2)


def test_a_call_of_a_tool_that_is_not_retryable_is_made_once(make_evaluator, tmp_path):
    calls: list[str] = []
    told: list[str] = []
    evaluator = make_evaluator(
        TASK,
        script=script(told),
        tools=[flaky_tool([OSError("down")] * 9, calls, effect=False)],
        handler=profile(tools=(ToolGrant("flaky", "allow"),)),
    )
    assert evaluator.evaluate_sync("work").ok
    assert calls == ["here"] and "down" in told[0]
    (step,) = tool_steps(tmp_path)
    assert (step.status, step.start.attempt, step.start.max_attempts) == ("failed", 1, 1)


def test_by_default_a_call_is_made_four_times_with_waits_of_2_6_and_18_seconds(
    tmp_path, monkeypatch
):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> str:
        registry = ToolRegistry([flaky_tool([OSError("down")] * 9, calls, retryable=True)])
        store = TaskStore(tmp_path / "tasks")
        with store.create("work") as journal:
            choice = ModelChoice(SimulatedBackend(), "m", "m", "test")
            plan = plan_session(HandlerConfig(), choice)
            session = Session(plan, SessionLog(StepLog(journal)), Budget("work"))
            session.turns = 1
            [(message, _)] = await run_tools(
                session,
                Tools(registry, ToolContext(FileAccess([]))),
                [ToolCall("1", "flaky", '{"place": "here"}')],
            )
        return message.content

    calls: list[str] = []
    monkeypatch.setattr("evaluator.clock.sleep", sleep)
    assert "down" in asyncio.run(run())
    assert (len(calls), slept) == (4, [2.0, 6.0, 18.0])
    assert [(s.start.attempt, s.start.backoff_s) for s in tool_steps(tmp_path)] == [
        (1, None),
        (2, 2.0),
        (3, 6.0),
        (4, 18.0),
    ]


def test_consent_is_asked_for_once(make_evaluator):
    asked: list[str] = []
    flaky = flaky_tool(BUSY, [], retryable=True, policy="ask")
    asker = CallbackAsker(lambda question: asked.append(question) or "yes")
    make_evaluator(
        TASK, script=script([]), handler=profile(), tools=[flaky], asker=asker
    ).evaluate_sync("work").unwrap()
    assert len(asked) == 1


@pytest.mark.parametrize("ended", [b"\n---\n\n## Step 3 (retry)", b"- **Duration**"])
def test_a_run_that_was_killed_between_the_attempts_continues_with_the_next_one(
    make_evaluator, tmp_path, ended
):
    calls: list[str] = []
    told: list[str] = []
    flaky = flaky_tool(BUSY[:1], calls, retryable=True)
    evaluator = make_evaluator(TASK, script=script(told), handler=profile(), tools=[flaky])
    evaluator.evaluate_sync("work").unwrap()
    file = file_of(tmp_path, 1)
    data = file.read_bytes()
    file.unlink()
    begun = data.index(b"## Step 3: flaky")
    (tmp_path / "tasks" / "active" / file.name).write_bytes(data[: data.index(ended, begun)])
    assert evaluator.resume_sync(1).unwrap().content == "ended"
    assert len(calls) == 3
    assert [(step.start.attempt, step.status) for step in tool_steps(tmp_path)][1:] == [
        (2, "success")
    ]
    assert "done" in told[0]


def test_a_denied_call_is_aborted_with_its_reason_and_the_run_goes_on(make_evaluator, tmp_path):
    calls: list[str] = []
    asked: list[str] = []
    told: list[str] = []
    asker = CallbackAsker(lambda question: asked.append(question) or "no")
    evaluator = make_evaluator(
        TASK,
        script=script(told),
        handler=profile(),
        tools=[flaky_tool([], calls, policy="ask")],
        asker=asker,
    )
    assert evaluator.evaluate_sync("work").unwrap().content == "ended"
    [step] = tool_steps(tmp_path)
    assert (step.status, step.end.error) == (
        "aborted",
        "safety.denied — flaky was refused by the user",
    )
    assert (
        "- **Status**: aborted\n- **Reason**: safety.denied — flaky was refused"
        in file_of(tmp_path, 1).read_text()
    )
    assert "flaky was refused by the user" in told[0]
    assert evaluator.replay_sync(1).ok
    # A resumed run takes the refusal from the record.
    file = file_of(tmp_path, 1)
    data = file.read_bytes()
    file.unlink()
    end = data.index(b"\n---\n\n## Step 4")
    (tmp_path / "tasks" / "active" / file.name).write_bytes(data[:end])
    assert evaluator.resume_sync(1).unwrap().content == "ended"
    assert (calls, len(asked)) == ([], 1)


def test_a_call_that_runs_out_of_time_is_aborted_with_its_reason_and_in_doubt(
    make_evaluator, tmp_path
):
    calls: list[str] = []

    @tool(name="flaky")
    async def flaky(place: str) -> str:
        """Never end the first time."""
        calls.append(place)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "done"

    def attempt(limit_s: float) -> Any:
        evaluator = make_evaluator(
            TASK, script=script([]), handler=profile(timeout_s=limit_s), tools=[flaky]
        )
        return evaluator.evaluate_sync("work")

    late = with_enough_time(attempt, lambda _: calls)
    assert late.resource.name == "time"
    number = int(late.task_id)
    [step] = tool_steps(tmp_path, number)
    assert (step.status, step.end.reason_word) == ("aborted", "timeout")
    evaluator = make_evaluator(TASK, script=script([]), handler=profile(), tools=[flaky])
    # The call may have had its effect: it is not made again without permission.
    stopped = evaluator.resume_sync(number, unfinished="stop")
    assert "timeout" in stopped.message
    assert len(calls) == 1
    assert evaluator.resume_sync(number, unfinished="repeat").unwrap().content == "ended"


# what the model sends → what is recorded
ARGUMENTS: list[tuple[Any, Any]] = [
    ({"place": "here", "n": [1, {"a": None}]}, {"place": "here", "n": [1, {"a": None}]}),
    ("", {}),
    ('{"place": "a", "place": "b"}', '{"place": "a", "place": "b"}'),
    ('{"place": ', '{"place": '),
    ("[1]", "[1]"),
    ('{"n": 1e999}', '{"n": 1e999}'),
]


@pytest.mark.parametrize(("arguments", "recorded"), ARGUMENTS)
def test_arguments_are_recorded_as_the_object_that_the_tool_was_called_with(
    make_evaluator, tmp_path, arguments, recorded
):
    evaluator = make_evaluator(
        TASK, script=script([], arguments), handler=profile(), tools=[flaky_tool([], [])]
    )
    evaluator.evaluate_sync("work").unwrap()
    [step] = tool_steps(tmp_path)
    assert (step.start.name, step.start.args) == ("flaky", recorded)
    assert evaluator.replay_sync(1).ok


def test_a_file_that_recorded_arguments_in_the_earlier_form_is_resumed(
    make_evaluator, tmp_path, monkeypatch
):
    calls: list[str] = []
    told: list[str] = []
    evaluator = make_evaluator(
        TASK, script=script(told), handler=profile(), tools=[flaky_tool([], calls)]
    )
    with monkeypatch.context() as earlier:
        earlier.setattr(
            tool_runner, "recorded_arguments", lambda text: {"tool": "flaky", "arguments": text}
        )
        evaluator.evaluate_sync("work").unwrap()
    assert tool_steps(tmp_path)[0].start.args == {"tool": "flaky", "arguments": '{"place": "here"}'}
    cut(tmp_path, "turn[2]", begun=True)
    assert evaluator.resume_sync(1).unwrap().content == "ended"
    assert calls == ["here"]


def test_an_aborted_run_says_why_in_its_summary(make_evaluator, tmp_path):
    async def cancel() -> None:
        started = asyncio.Event()

        @tool(name="flaky")
        async def flaky(place: str) -> str:
            """Never end."""
            started.set()
            await asyncio.Event().wait()
            return place

        evaluator = make_evaluator(TASK, script=script([]), handler=profile(), tools=[flaky])
        run = asyncio.create_task(evaluator.evaluate("work"))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancel())
    [step] = tool_steps(tmp_path)
    assert (step.status, step.end.reason_word) == ("aborted", "cancelled")
    assert "- **Final Status**: aborted\n" in file_of(tmp_path, 1).read_text()
    assert "- **Abort Reason**: interrupted\n" in file_of(tmp_path, 1).read_text()
    assert next(TaskStore(tmp_path / "tasks").list()).summary.reason == "interrupted"


def test_a_grant_may_deny_a_tool(make_evaluator, tmp_path):
    denied = profile(tools=(ToolGrant("flaky", "deny"),))
    calls: list[str] = []
    evaluator = make_evaluator(
        TASK, script=script([]), handler=denied, tools=[flaky_tool([], calls, retryable=True)]
    )
    evaluator.evaluate_sync("work").unwrap()
    [step] = tool_steps(tmp_path)
    assert (calls, step.end.error) == (
        [],
        "safety.denied — flaky is not allowed here (policy deny)",
    )
