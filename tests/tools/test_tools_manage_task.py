"""`manage_task`, called as a model calls it."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from evaluator.errors import RecordError
from evaluator.record.task_lists import MAX_BYTES, TaskLists
from evaluator.tools import FileAccess, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.manage_task import manage_task_tool

PLAN = "# Plan\n\n## [PLANNER] Think\n\n- [ ] think\n\n## [WORKER] Do\n\n- [ ] do\n"


@pytest.fixture
def tasks(tmp_path: Path) -> TaskLists:
    return TaskLists(tmp_path / "tasks")


def call(tasks: TaskLists, role: str | None = "worker", interrupted: Any = None, **arguments: Any) -> ToolOutcome:
    registry = ToolRegistry([manage_task_tool(tasks, role, interrupted)])
    return asyncio.run(registry.call("manage_task", json.dumps(arguments), ToolContext(FileAccess([]))))


def value(outcome: ToolOutcome) -> Any:
    assert outcome.ok, outcome
    return json.loads(outcome.content)


def test_it_has_an_effect_is_not_repeated_by_itself_and_tells_the_model_its_role(tasks: TaskLists) -> None:
    tool = manage_task_tool(tasks, "worker")
    assert (tool.name, tool.kind, tool.policy, tool.effect, tool.retryable) == (
        "manage_task",
        "direct",
        "allow",
        True,
        False,
    )
    assert "You are worker" in tool.spec.description
    assert "You are" not in manage_task_tool(tasks, None).spec.description


def test_a_model_finds_a_task_marks_its_step_and_closes_it(tasks: TaskLists) -> None:
    assert value(call(tasks, action="list_active")) == {"tasks": []}
    made = value(call(tasks, "planner", action="create", name="2026-03-02-plan", content=PLAN))
    assert made == {
        "name": "2026-03-02-plan",
        "path": str(tasks.root / "active" / "2026-03-02-plan.md"),
        "state": "active",
        "done": 0,
        "total": 2,
        "next": {"line": 5, "text": "think", "section": "Think", "role": "PLANNER"},
        "next_of_role": {"line": 5, "text": "think", "section": "Think", "role": "PLANNER"},
        "version": made["version"],
    }
    [listed] = value(call(tasks, action="list_active"))["tasks"]
    assert listed["next_of_role"] == {"line": 9, "text": "do", "section": "Do", "role": "WORKER"}
    read = value(call(tasks, action="read", name="plan"))
    assert read == {**listed, "content": PLAN}
    assert list(read)[-1] == "version"

    done = PLAN.replace("- [ ] do", "- [x] do")
    changed = value(call(tasks, action="update", name="plan", content=done, version=read["version"]))
    assert (changed["done"], changed["next_of_role"]) == (1, None)
    assert (
        "1 step is open, the first at line 5 [PLANNER] Think: think" in call(tasks, action="close", name="plan").content
    )
    every = done.replace("- [ ]", "- [x]")
    value(call(tasks, "planner", action="update", name="plan", content=every, version=changed["version"]))
    assert value(call(tasks, action="close", name="plan"))["state"] == "done"
    assert value(call(tasks, action="read", name="2026-03-02-plan"))["content"] == every


# arguments, what the model is told
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'action' is a required property"),
    ({"action": "delete", "name": "plan"}, "'delete' is not one of"),
    ({"action": "read"}, "read needs name"),
    ({"action": "create", "name": "x"}, "create needs content"),
    ({"action": "update", "name": "plan", "content": "x"}, "update needs version; read returns it"),
    ({"action": "update", "name": "plan", "content": "x", "version": ""}, "update needs version; read returns it"),
    (
        {"action": "close", "name": "plan", "content": "x"},
        "close does not take content; it takes name; nothing was done",
    ),
    ({"action": "close", "name": "plan", "force": True}, "'force' was unexpected"),
    ({"action": "list_active", "name": "plan"}, "list_active does not take name; it takes no other argument"),
    ({"action": "read", "name": "../../etc/passwd"}, "expected YYYY-MM-DD-name"),
    ({"action": "read", "name": "TASK-1"}, "the file of a run"),
    ({"action": "read", "name": "other"}, "no active task is called 'other'"),
    ({"action": "create", "name": "2026-03-02-plan", "content": "x"}, "there is a task '2026-03-02-plan' already"),
    ({"action": "create", "name": "x", "content": "x\ud800"}, "half a surrogate pair"),
    ({"action": "create", "name": "x", "content": "## [BOSS] a\n- [x] agreed"}, "marked as done"),
    ({"action": "update", "name": "plan", "content": "x", "version": "0" * 16}, "changed since it was read"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_failed_action_returns_the_reason_and_changes_nothing(
    tasks: TaskLists, arguments: dict[str, Any], says: str
) -> None:
    before = tasks.create("plan", PLAN, today=date(2026, 3, 2))
    outcome = call(tasks, **arguments)
    assert not outcome.ok
    assert says in outcome.content
    assert tasks.list_active() == [before]


def test_a_model_cannot_change_a_section_of_another_role(tasks: TaskLists) -> None:
    version = tasks.create("plan", PLAN).version
    outcome = call(tasks, action="update", name="plan", content=PLAN.replace("[ ]", "[x]"), version=version)
    assert "'## [PLANNER] Think' belongs to PLANNER" in outcome.content
    assert "as worker you may change only sections of worker" in outcome.content
    without_role = call(tasks, None, action="update", name="plan", content="all new", version=version)
    assert value(without_role)["total"] == 0


def test_the_list_tells_of_runs_that_were_cut_off(tasks: TaskLists) -> None:
    runs = [(n, "summarise" if n % 2 else None, f"2026-03-02T10:00:{n:02}Z") for n in range(30)]
    few = value(call(tasks, None, lambda: runs[:2], action="list_active"))
    assert few == {
        "tasks": [],
        "interrupted_runs": [
            {"id": 0, "template": None, "created": "2026-03-02T10:00:00Z"},
            {"id": 1, "template": "summarise", "created": "2026-03-02T10:00:01Z"},
        ],
    }
    many = value(call(tasks, None, lambda: iter(runs), action="list_active"))
    assert (len(many["interrupted_runs"]), many["more_interrupted_runs"]) == (20, True)

    def broken() -> Any:
        raise RecordError("tasks: cannot list the task folder")

    assert call(tasks, None, broken, action="list_active").content == "Error: tasks: cannot list the task folder"


def test_long_texts_and_many_tasks_are_cut_in_the_list(tasks: TaskLists) -> None:
    for n in range(103):
        tasks.create(f"t{n:03}", "# " + "s" * 2000 + "\n- [ ] " + "x" * 2000)
    listed = value(call(tasks, action="list_active"))
    assert (len(listed["tasks"]), listed["tasks_left_out"]) == (100, 3)
    step = listed["tasks"][0]["next"]
    assert (step["text"], step["section"]) == ("x" * 500, "s" * 500)


def test_a_text_that_was_cut_lacks_the_version_needed_for_an_update(tasks: TaskLists) -> None:
    version = tasks.create("large", "x\n" * (MAX_BYTES // 2)).version
    outcome = call(tasks, action="read", name="large")
    assert outcome.truncated
    assert version not in outcome.content
