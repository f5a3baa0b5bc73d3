"""A model reads and resumes interrupted runs, and a resumed run never has more than the task that asks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crashes import cut, reading

from evaluator import Evaluator, HandlerConfig, ModelResponse, ToolGrant
from evaluator.errors import CallRejected
from evaluator.limits.call_limiter import Permit, PlannedCall
from evaluator.limits.rate_limiter import RateLimiter

MANAGE = """<task name="manage" type="atomic"><description>Look after runs</description>
  <instructions>MANAGE</instructions></task>"""
WORK = """<task name="work" type="atomic"><description>Work</description>{more}<instructions>WORK</instructions></task>"""


@pytest.fixture
def interrupted(make_evaluator: Any, tmp_path: Any) -> Any:
    """`make(more)`: an Evaluator whose TASK-1 was killed in its first call, and the answers that its manager is given."""

    def make(
        more: str = "", *, runs: Any = "resume", max_turns: int = 5, **options: Any
    ) -> tuple[Evaluator, list[str]]:
        grants = (ToolGrant("manage_task", None, (), None, runs),)
        profile = HandlerConfig(
            name="keeper", backend="simulated", tools=grants, max_turns=max_turns
        )
        other = HandlerConfig(name="other", backend="simulated", tools=grants)
        told: list[str] = []

        def script(request: Any) -> Any:
            if not any("MANAGE" in message.content for message in request.messages):
                return "worked"
            told[:] = [message.content for message in request.messages if message.role == "tool"]
            actions = [
                {"action": "read_run", "id": 1},
                {"action": "resume_run", "id": 1},
                {"action": "read_run", "id": 1},
            ]
            return (
                {"tool": "manage_task", "arguments": actions[len(told)]}
                if len(told) < 3
                else "managed"
            )

        evaluator = make_evaluator(
            MANAGE + WORK.format(more=more),
            script=script,
            handler=profile,
            profiles={"keeper": profile, "other": other},
        )
        evaluator.evaluate_sync("work", **options).unwrap()
        cut(tmp_path, "turn[1]", begun=True)
        return evaluator, told

    return make


def test_a_model_reads_and_resumes_a_run_within_its_own_limits(
    interrupted: Any, tmp_path: Any
) -> None:
    evaluator, told = interrupted()
    outcome = evaluator.evaluate_sync("manage").unwrap()
    shown = json.loads(told[0])
    assert (shown["id"], shown["status"], shown["template"]) == (1, "interrupted", "work")
    assert [(step["kind"], step["status"]) for step in shown["steps"]] == [
        ("resolve", "success"),
        ("model", "running"),
    ]
    assert "WORK" in shown["stopped_at"]["args"]
    assert told[1] == "worked"
    assert "TASK-1 is completed; only interrupted runs can be read and resumed" in told[2]
    assert reading(tmp_path).status == "completed"
    assert (outcome.content, outcome.usage.turns) == ("managed", 5)


def test_a_resumed_run_counts_against_the_limits_of_the_task_that_asks(interrupted: Any) -> None:
    evaluator, _ = interrupted(max_turns=4)
    outcome = evaluator.evaluate_sync("manage")
    assert (outcome.type, outcome.resource.name, outcome.resource.limit) == (
        "RESOURCE_EXHAUSTION",
        "turns",
        4,
    )


class RejectsOne(RateLimiter):
    """Rejects the third call, that of the resumed run."""

    calls = 0

    async def acquire(self, call: PlannedCall) -> Permit:
        self.calls += 1
        if self.calls == 3:
            raise CallRejected("time", 1, limit=1, message="the session has ended")
        return await super().acquire(call)


def test_nothing_continues_from_a_resumed_run_whose_call_was_rejected(
    interrupted: Any, tmp_path: Any
) -> None:
    evaluator, told = interrupted()
    limiter = RejectsOne()
    outcome = evaluator.with_limiter(limiter, tmp_path / "tasks").evaluate_sync("manage")
    assert not outcome.ok and "the session has ended" in outcome.message
    assert limiter.calls == 3 and len(told) == 1
    last = reading(tmp_path, 2).steps[-1]
    assert (last.start.name, last.status) == ("manage_task", "aborted")
    assert last.end is not None and last.end.error == "failed — the session has ended"


# what the interrupted run has that its manager has not → why it is not resumed, and whether it may be read
MORE: list[tuple[str, dict[str, str], str, bool]] = [
    (
        '<tools><tool name="list_files"/></tools>',
        {},
        "has tools that this task does not have",
        True,
    ),
    (
        '<file_paths source="command"><command>true</command></file_paths>',
        {},
        "runs a process",
        True,
    ),
    ("", {"handler": "other"}, "ran with the profile 'other', not with 'keeper'", False),
    (
        "<file_paths><path>secret</path></file_paths>",
        {},
        "reads files that it may not read",
        True,
    ),
    (
        "",
        {"model_roles": {"grader": "simulated/large"}},
        "ran with the model 'simulated/large' for 'grader', which this run does not use",
        False,
    ),
    (
        "",
        {"model": "simulated/large"},
        "ran with the model 'simulated/large', which this run does not use",
        False,
    ),
]


@pytest.mark.parametrize(
    ("more", "options", "reason", "may_read"), MORE, ids=[reason for _, _, reason, _ in MORE]
)
def test_a_run_with_more_rights_than_the_task_that_asks_is_not_resumed(
    interrupted: Any, tmp_path: Any, more: str, options: dict[str, str], reason: str, may_read: bool
) -> None:
    evaluator, told = interrupted(more, **options)
    evaluator.evaluate_sync("manage").unwrap()
    assert (reason in told[0]) is not may_read
    assert reason in told[1]
    assert f"ask the user to run: evaluator tasks resume 1 --tasks {tmp_path / 'tasks'}" in told[1]
    assert reading(tmp_path).status == "interrupted"


def test_without_a_grant_a_model_only_sees_that_a_run_was_interrupted(
    interrupted: Any, tmp_path: Any
) -> None:
    evaluator, told = interrupted(runs=None)
    evaluator.evaluate_sync("manage").unwrap()
    assert "'read_run' is not one of" in told[0]
    assert "'resume_run' is not one of" in told[1]
    assert reading(tmp_path).status == "interrupted"


DELEGATE = """<task name="delegate" type="atomic"><description>Delegate</description>
  <tools><tool name="subtask"/></tools><instructions>DELEGATE</instructions></task>"""


@pytest.mark.parametrize(("max_depth", "subtasks"), [(0, 0), (1, 1)])
def test_a_resumed_run_has_as_many_levels_of_subtasks_as_the_task_that_asks(
    make_evaluator: Any, tmp_path: Any, max_depth: int, subtasks: int
) -> None:
    grants = (ToolGrant("manage_task", None, (), None, "resume"), ToolGrant("subtask"))
    profile = HandlerConfig(name="keeper", backend="simulated", tools=grants)
    request = {"type": "atomic", "description": "part", "inputs": {}}
    told: list[str] = []

    def script(request_: Any) -> Any:
        prompt = next(m.content for m in request_.messages if m.role == "user")
        results = [m.content for m in request_.messages if m.role == "tool"]
        if "MANAGE" in prompt:
            resume = {"action": "resume_run", "id": 1}
            return "managed" if results else {"tool": "manage_task", "arguments": resume}
        if "DELEGATE" in prompt:
            told.extend(results)
            return "done" if results else {"tool": "subtask", "arguments": request}
        return "a part"

    def evaluator(depth: int) -> Evaluator:
        return make_evaluator(MANAGE + DELEGATE, script=script, handler=profile, max_depth=depth)

    evaluator(5).evaluate_sync("delegate").unwrap()
    cut(tmp_path, "turn[1]", begun=True)
    (tmp_path / "tasks" / "TASK-2.md").unlink(missing_ok=True)
    told.clear()
    evaluator(max_depth).evaluate_sync("manage").unwrap()
    assert sum("a part" in answer for answer in told) == subtasks
    assert len(told) == 1


@pytest.mark.parametrize("reparse", [True, False])
def test_a_resumed_run_is_decomposed_only_where_the_task_that_asks_may_be(
    make_evaluator: Any, tmp_path: Any, reparse: bool
) -> None:
    profile = HandlerConfig(
        name="keeper",
        backend="simulated",
        tools=(ToolGrant("manage_task", None, (), None, "resume"),),
    )
    prompts: list[str] = []

    def script(request: Any) -> Any:
        prompt = next(m.content for m in request.messages if m.role == "user")
        prompts.append(prompt)
        if "original_task" in prompt:
            return '<task type="atomic"><description>a small part</description></task>'
        if "WORK" in prompt:
            return ModelResponse("half", "length")
        if "MANAGE" in prompt and not any(m.role == "tool" for m in request.messages):
            return {"tool": "manage_task", "arguments": {"action": "resume_run", "id": 1}}
        return "done"

    def evaluator(reparse: bool) -> Evaluator:
        return make_evaluator(
            MANAGE + WORK.format(more=""), script=script, handler=profile, reparse=reparse
        )

    evaluator(True).evaluate_sync("work").unwrap()
    cut(tmp_path, "turn[1]", begun=True)
    prompts.clear()
    evaluator(reparse).evaluate_sync("manage").unwrap()
    assert any("original_task" in prompt for prompt in prompts) == reparse
