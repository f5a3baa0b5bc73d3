"""The commands for task lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.record.task_lists import TaskList, TaskLists

PLAN = "# Plan\n\n## [PLANNER] Think\n\n- [x] think\n\n## [WORKER] Do\n\n- [ ] do\n"


@pytest.fixture
def plan(write: Any, tmp_path: Path) -> TaskList:
    write("plan.md", PLAN)
    return TaskLists(tmp_path / "tasks").create("2026-03-02-plan", PLAN)


def test_a_task_is_created_listed_read_changed_and_closed(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    made = cli("tasks", "create", "2026-03-02-plan", "--content", "-", stdin=PLAN.encode())
    assert made.out == "tasks/active/2026-03-02-plan.md\n"
    assert cli("tasks", "list-active").out == (
        "name             steps  next\n2026-03-02-plan  1/2    line 9 [WORKER] Do: do\n"
    )
    read = cli("tasks", "read", "plan")
    assert read.out == PLAN
    version = read.err.splitlines()[0].removeprefix("version: ")
    assert read.err == f"version: {version}\nsteps: 1/2\nnext: line 9 [WORKER] Do: do\n"
    assert cli("tasks", "read", "plan", "--role", "planner").err.endswith(
        "next: none for planner\n"
    )

    write("plan.md", PLAN.replace("[ ]", "[x]"))
    changed = cli(
        "tasks", "update", "plan", "--content", "@plan.md", "--role", "worker", "--version", version
    )
    assert changed.code == 0, changed
    assert changed.err.endswith("next: none, all steps are done\n")
    assert cli("tasks", "close", "plan").out == "tasks/done/2026-03-02-plan.md\n"
    assert (tmp_path / "tasks/done/2026-03-02-plan.md").read_text() == PLAN.replace("[ ]", "[x]")
    assert cli("tasks", "read", "2026-03-02-plan").out == PLAN.replace("[ ]", "[x]")


def test_without_a_text_a_task_begins_with_headings_and_steps(cli: Any, tmp_path: Path) -> None:
    made = json.loads(cli("tasks", "create", "move-the-archive", "--tasks", "mine", "--json").out)
    assert made["name"].endswith("-move-the-archive")
    assert (made["owner"], made["next"]["role"]) == (None, None)
    text = (tmp_path / made["path"]).read_text()
    assert text.startswith("# Move the archive\n") and "role" not in text
    # Any profile may tick it; a list that a role creates belongs to that role.
    lists = TaskLists(tmp_path / "mine")
    changed = text.replace("- [ ]", "- [x]", 1)
    ticked = lists.update(made["name"], changed, role="default", if_unchanged=made["version"])
    assert ticked.done == 1
    owned = json.loads(cli("tasks", "create", "owned", "--role", "planner", "--json").out)
    assert (owned["owner"], owned["next"]["role"]) == ("planner", "planner")


def test_programs_get_json(cli: Any, plan: TaskList) -> None:
    [listed] = json.loads(cli("tasks", "list-active", "--role", "planner", "--json").out)
    assert (listed["done"], listed["next"]["line"], listed["next_of_role"]) == (1, 9, None)
    read = json.loads(cli("tasks", "read", "plan", "--json").out)
    del listed["next_of_role"]
    assert read == {**listed, "content": PLAN}
    closed = json.loads(cli("tasks", "close", "plan", "--force", "--json").out)
    assert (closed["state"], closed["path"]) == ("done", "tasks/done/2026-03-02-plan.md")


# arguments after `tasks`, exit code, what standard error says
WRONG: list[tuple[list[str], int, str]] = [
    (["create", "2026-03-02-plan"], 2, "there is a task '2026-03-02-plan' already"),
    (["create", "../plan"], 2, "expected YYYY-MM-DD-name"),
    (["create", "{title}"], 2, "expected YYYY-MM-DD-name"),
    (["create", "TASK-1"], 2, "see: evaluator tasks show"),
    (["create", "x", "--content", "words"], 2, "expected @FILE, or - for standard input"),
    (["create", "x", "--content", "@"], 2, "expected @FILE"),
    (["create", "x", "--content", "@none.md"], 2, "none.md: cannot be read"),
    (["create", "x", "--content", "-"], 2, "is empty"),
    (["create", "x", "--tasks", "plan.md"], 3, "plan.md"),
    (["read", "other"], 3, "no active task is called 'other'"),
    (["update", "plan"], 2, "--content"),
    (["update", "plan", "--content", "@plan.md", "--role", "worker"], 2, "--role needs --version"),
    (["update", "plan", "--content", "@plan.md", "--version", "0"], 3, "changed since it was read"),
    (
        ["create", "x", "--from", "none"],
        2,
        "no template of task lists called 'none'; the templates are: feature",
    ),
    (["create", "x", "--from", "./none.md"], 2, "--from ./none.md: cannot be read"),
    (
        ["create", "x", "--from", "feature", "--content", "-"],
        2,
        "--content and --from exclude each other",
    ),
    (["close", "plan"], 2, "1 step is open: line 9 [WORKER] Do: do"),
    (["list-active", "--tasks", "plan.md"], 3, "plan.md"),
]


@pytest.mark.parametrize(
    ("args", "code", "says"), WRONG, ids=[" ".join(args) for args, _, _ in WRONG]
)
def test_wrong_usage_says_what_to_do_and_changes_nothing(
    cli: Any, plan: TaskList, tmp_path: Path, args: list[str], code: int, says: str
) -> None:
    ran = cli("tasks", *args)
    assert (ran.code, ran.out) == (code, ""), ran
    assert says in ran.err
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    made = [
        ".gitignore",
        ".named-lock",
        "active/.gitkeep",
        "active/2026-03-02-plan.md",
        "done/.gitkeep",
    ]
    assert files == ["plan.md", *(f"tasks/{name}" for name in made)]


def test_the_role_that_creates_a_task_alone_changes_it(cli: Any, write: Any) -> None:
    write("plan.md", PLAN)
    made = json.loads(
        cli("tasks", "create", "plan", "--content", "@plan.md", "--role", "planner", "--json").out
    )
    assert made["owner"] == "planner"
    update = [
        "tasks",
        "update",
        "plan",
        "--content",
        "@plan.md",
        "--version",
        made["version"],
        "--role",
    ]
    for ran in (
        cli(*update, "worker"),
        cli("tasks", "close", "plan", "--role", "worker", "--force"),
    ):
        assert (ran.code, ran.out) == (2, "")
        assert "belongs to planner, which alone changes it; as worker you may read it" in ran.err
    assert cli(*update, "Planner").code == 0
    assert cli("tasks", "close", "plan", "--role", "planner", "--force").code == 0


def test_a_task_begins_from_a_template_of_the_user(cli: Any, write: Any, tmp_path: Path) -> None:
    write(
        "mine.md.tpl",
        "# {{ title }}\n\n## [{{role}}] Do {{ this }}\n\n### 1. First\n\n### 2. Second ✅\n",
    )
    made = json.loads(
        cli(
            "tasks",
            "create",
            "2026-03-02-big-fix",
            "--from",
            "mine.md.tpl",
            "--role",
            "A",
            "--json",
        ).out
    )
    assert (made["done"], made["total"], made["next"]["text"]) == (1, 2, "1. First")
    text = (tmp_path / made["path"]).read_text()
    assert text.startswith("# Big fix\n\n- **Owner**: A\n\n## [A] Do {{ this }}\n")
    (tmp_path / "templates" / "task_lists").mkdir(parents=True)
    write("templates/task_lists/feature.md", "# Our own {{ title }}\n")
    assert cli("tasks", "create", "2026-03-02-other", "--from", "feature").code == 0
    assert cli("tasks", "read", "other").out == "# Our own Other\n"
    assert "owner: A\n" in cli("tasks", "read", "big-fix").err


def test_a_task_that_cannot_be_read_is_listed_with_the_reason(
    cli: Any, plan: TaskList, tmp_path: Path
) -> None:
    (tmp_path / "tasks/active/2026-03-03-bad.md").write_bytes(b"caf\xe9")
    listed = cli("tasks", "list-active", env={"COLUMNS": "200"})
    assert listed.code == 0
    assert "2026-03-03-bad" in listed.out
    assert "not UTF-8 (byte 3)" in listed.out


def test_what_a_step_says_cannot_drive_the_terminal(cli: Any, write: Any) -> None:
    write("plan.md", "- [ ] \x1b[2Jgone\n")
    cli("tasks", "create", "plan", "--content", "@plan.md")
    for ran in (cli("tasks", "list-active"), cli("tasks", "read", "plan")):
        shown = ran.err or ran.out
        assert "\x1b" not in shown
        assert "\\x1b[2Jgone" in shown
