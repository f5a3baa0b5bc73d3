"""`manage_task`, called as a model calls it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, Tool
from evaluator.files.locations import shipped
from evaluator.record.task_lists import MAX_BYTES, TaskLists
from evaluator.tools import FileAccess, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.manage_task import RunAccess, manage_task_tool

PLAN = "# Plan\n\n## [PLANNER] Think\n\n- [ ] think\n\n## [WORKER] Do\n\n- [ ] do\n"
OWNED = PLAN.replace("# Plan\n", "# Plan\n\n- **Owner**: planner\n", 1)


@pytest.fixture
def tasks(tmp_path: Path) -> TaskLists:
    return TaskLists(tmp_path / "tasks")


def call(
    tasks: TaskLists, role: str | None = "worker", interrupted: Any = None, **arguments: Any
) -> ToolOutcome:
    runs = None if interrupted is None else RunAccess(interrupted)
    return calls(manage_task_tool(tasks, role, runs), arguments)[0]


def calls(tool: Tool, *all_arguments: dict[str, Any]) -> list[ToolOutcome]:
    """The outcomes of calls in one conversation."""
    registry, context = ToolRegistry([tool]), ToolContext(FileAccess([]))
    return [
        asyncio.run(registry.call("manage_task", json.dumps(each), context))
        for each in all_arguments
    ]


def value(outcome: ToolOutcome) -> Any:
    assert outcome.ok, outcome
    return json.loads(outcome.content)


def test_it_has_an_effect_is_not_repeated_by_itself_and_tells_the_model_its_role(
    tasks: TaskLists,
) -> None:
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


def test_a_model_creates_a_task_marks_the_steps_of_others_and_closes_it(tasks: TaskLists) -> None:
    assert value(call(tasks, action="list_active")) == {"tasks": []}
    made = value(call(tasks, "planner", action="create", name="2026-03-02-plan", content=PLAN))
    assert made == {
        "name": "2026-03-02-plan",
        "path": str(tasks.root / "active" / "2026-03-02-plan.md"),
        "state": "active",
        "owner": "planner",
        "done": 0,
        "total": 2,
        "next": {"line": 7, "text": "think", "section": "Think", "role": "PLANNER"},
        "next_of_role": {"line": 7, "text": "think", "section": "Think", "role": "PLANNER"},
        "version": made["version"],
    }
    [listed] = value(call(tasks, action="list_active"))["tasks"]
    assert listed["next_of_role"] == {"line": 11, "text": "do", "section": "Do", "role": "WORKER"}
    read = value(call(tasks, action="read", name="plan"))
    assert read == {**listed, "content": OWNED}
    assert list(read)[-1] == "version"

    done = OWNED.replace("- [ ] do", "- [x] do")
    update = {"action": "update", "name": "plan", "content": done, "version": read["version"]}
    assert (
        "belongs to planner, which alone changes it; as worker you may read it"
        in call(tasks, **update).content
    )
    changed = value(call(tasks, "planner", **update))
    assert (changed["done"], changed["next_of_role"]["text"]) == (1, "think")
    closing = call(tasks, "planner", action="close", name="plan").content
    assert "1 step is open: line 7 [PLANNER] Think: think" in closing
    every = done.replace("- [ ]", "- [x]")
    value(
        call(
            tasks,
            "planner",
            action="update",
            name="plan",
            content=every,
            version=changed["version"],
        )
    )
    assert "belongs to planner" in call(tasks, action="close", name="plan").content
    assert value(call(tasks, "planner", action="close", name="plan"))["state"] == "done"
    assert value(call(tasks, action="read", name="2026-03-02-plan"))["content"] == every


def test_an_update_replaces_the_version_that_the_conversation_has_seen(tasks: TaskLists) -> None:
    tasks.create("plan", PLAN)
    tool = manage_task_tool(tasks, "worker")
    update = {"action": "update", "name": "plan", "content": PLAN + "- [ ] more\n"}
    blind, _, seen, again = calls(tool, update, {"action": "read", "name": "plan"}, update, update)
    assert "call read for" in blind.content
    assert [value(outcome)["total"] for outcome in (seen, again)] == [3, 3]
    tasks.update("plan", PLAN)
    [late] = calls(tool, update)
    assert "changed since it was read" in late.content


def test_a_model_creates_a_task_from_a_template_and_fills_it_in(
    tasks: TaskLists, tmp_path: Path
) -> None:
    folder = tmp_path / "templates" / "task_lists"
    folder.mkdir(parents=True)
    (folder / "fix.md").write_text(
        "# {{ title }} {{cause}}\n\n## [{{ role }}] Fix\n\n- [ ] {{name}}\n"
    )
    tool = manage_task_tool(tasks, "MECHANIC", folders=[folder.parent, shipped("templates")])
    listed, made, both, none, shipped_one = calls(
        tool,
        {"action": "list_active"},
        {"action": "create", "name": "2026-03-02-a-leak", "template": "fix"},
        {"action": "create", "name": "x", "template": "fix", "content": "x"},
        {"action": "create", "name": "x", "template": "../fix"},
        {"action": "create", "name": "2026-03-02-add-search", "template": "feature"},
    )
    assert value(listed)["templates"] == ["feature", "fix"]
    assert value(made)["content"] == (
        "# A leak {{cause}}\n\n- **Owner**: MECHANIC\n\n## [MECHANIC] Fix\n\n- [ ] 2026-03-02-a-leak\n"
    )
    assert "either content or template" in both.content
    assert "no template of task lists called '../fix'" in none.content
    feature = value(shipped_one)
    assert (feature["owner"], feature["total"]) == ("MECHANIC", 10)
    assert "{{" not in feature["content"]
    parts = re.findall(r"^### \[(\w+)\]", feature["content"], re.MULTILINE)
    assert parts == ["COMPONENTS", "SKILLS", "MIGRATION", "TESTS"]
    roles = [step.role for step in tasks.read("add-search").outline.steps]
    assert roles == ["MECHANIC"] * 3 + ["WORKER"] * 4 + ["MECHANIC"] * 3


def test_a_model_closes_a_task_with_open_steps_only_by_force(tasks: TaskLists) -> None:
    tasks.create("plan", PLAN)
    assert "2 steps are open" in call(tasks, action="close", name="plan", force=False).content
    assert value(call(tasks, action="close", name="plan", force=True))["state"] == "done"


def test_runs_are_read_and_resumed_only_where_they_are_granted(tasks: TaskLists) -> None:
    async def read(number: int) -> dict[str, int]:
        return {"id": number}

    async def resume(number: int, context: ToolContext) -> str:
        if number == 9:
            raise RecordError("TASK-9 is not there")
        return f"the result of {number}"

    def outcomes(runs: RunAccess) -> list[str]:
        tool = manage_task_tool(tasks, "worker", runs)
        asked = [
            {"action": "read_run", "id": 3},
            {"action": "resume_run", "id": 3},
            {"action": "resume_run", "id": 9},
        ]
        return [outcome.content for outcome in calls(tool, *asked)]

    assert outcomes(RunAccess(list, read, resume)) == [
        '{"id": 3}',
        "the result of 3",
        "Error: TASK-9 is not there",
    ]
    assert "'resume_run' is not one of" in outcomes(RunAccess(list, read))[1]
    assert "'read_run' is not one of" in outcomes(RunAccess(list))[0]


# arguments, what the model is told
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'action' is a required property"),
    ({"action": "delete", "name": "plan"}, "'delete' is not one of"),
    ({"action": "read"}, "read needs name"),
    ({"action": "create", "name": "x"}, "create needs either content or template"),
    (
        {"action": "update", "name": "plan", "content": "x"},
        "call read for 2026-03-02-plan first, or give version",
    ),
    ({"action": "update", "name": "plan", "content": "x", "version": ""}, "call read for"),
    (
        {"action": "close", "name": "plan", "content": "x"},
        "close does not take content; it takes name, force; nothing was done",
    ),
    (
        {"action": "list_active", "name": "plan"},
        "list_active does not take name; it takes no other argument",
    ),
    ({"action": "read", "name": "../../etc/passwd"}, "expected YYYY-MM-DD-name"),
    ({"action": "read", "name": "TASK-1"}, "the file of a run"),
    ({"action": "read", "name": "other"}, "no active task is called 'other'"),
    (
        {"action": "create", "name": "2026-03-02-plan", "content": "x"},
        "there is a task '2026-03-02-plan' already",
    ),
    ({"action": "create", "name": "x", "content": "x\ud800"}, "half a surrogate pair"),
    (
        {"action": "create", "name": "x", "content": "Owner: BOSS\n- [x] agreed"},
        "names BOSS as its owner",
    ),
    (
        {"action": "update", "name": "plan", "content": "x", "version": "0" * 16},
        "changed since it was read",
    ),
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

    assert (
        call(tasks, None, broken, action="list_active").content
        == "Error: tasks: cannot list the task folder"
    )


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
