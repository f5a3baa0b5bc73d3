"""`evaluator tasks list` and `show`: what they find, print and refuse."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from evaluator import TaskStore
from evaluator.record.steps import StepEnd, StepStart, Summary
from tests.cli.conftest import PROGRAM

USAGE = {"input_tokens": 1000, "output_tokens": 234, "cost_usd": 0.25, "turns": 1}
LONG = "a_template_with_quite_a_long_name_indeed"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Six tasks: completed with a subtask, failed, aborted, the subtask, interrupted, and a damaged file."""
    store = TaskStore(tmp_path / "tasks")

    def run(
        status: Any, *steps: tuple[StepStart, StepEnd], reason: str | None = None, **header: Any
    ) -> None:
        journal = store.create(**header)
        for start, end in steps:
            journal.end(journal.begin(start), end)
        if status is not None:
            journal.close(Summary(status, len(steps), 0, 1.5, USAGE, {"content": "x"}, reason))
        else:
            journal.abandon()

    args = {
        "model": "local/m",
        "settings": {},
        "messages": [{"role": "user", "content": "hi \x1b[31m there"}],
    }
    call = (
        StepStart("turn[1]", "model", "local/m", args, "f"),
        StepEnd("success", {"content": "ok"}, 1.5, None, USAGE),
    )
    link = (
        StepStart("turn[1]/tool[1]/subtask", "subtask", "child", {"task_id": 4}),
        StepEnd("success", {}, 0.5),
    )
    run("completed", call, link, request="first", template="review_code", model="local/m")
    run("failed", call, reason="the server\nwas BUSY", template="review_text", model="openai/large")
    run("aborted", request="third", template=LONG)
    run("completed", call, template="child", parent=1)
    run(None, request="fifth", template="child", parent=7)
    (tmp_path / "tasks" / "active" / "TASK-6.md").write_text(
        "# TASK-6 <!-- evaluator-task damaged -->\n\n"
    )
    return tmp_path / "tasks"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], [6, 5, 4, 3, 2, 1]),
        (["--interrupted"], [5]),
        (["--status", "unreadable"], [6]),
        (["--interrupted", "--status", "interrupted"], [5]),
        (["--status", "completed", "--template", "review*"], [1]),
        (["--model", "openai/*"], [2]),
        (["--error", "busy"], [2]),
        (["--error", "TITLE"], [6]),
        (["--parent", "1"], [4]),
        (["--parent", "TASK-7", "--interrupted"], [5]),
        (["--since", "1h", "--limit", "2"], [5, 4]),
        (["--until", "2020-01-01"], []),
        (["--template", "review*", "--limit", "1"], [2]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("tasks")
def test_conditions_combine(options: list[str], ids: list[int], cli: Any) -> None:
    ran = cli("tasks", "list", "--json", *options)
    assert (ran.code, [task["id"] for task in json.loads(ran.out)]) == (0, ids)


@pytest.mark.usefixtures("tasks")
def test_json_has_all_that_is_known(cli: Any) -> None:
    by_id = {task["id"]: task for task in json.loads(cli("tasks", "list", "--json").out)}
    failed = by_id[2]
    assert (failed["status"], failed["steps"], failed["retries"], failed["duration_s"]) == (
        "failed",
        1,
        0,
        1.5,
    )
    assert failed["usage"] == USAGE
    assert failed["reason"] == "the server\nwas BUSY"
    assert failed["header"]["model"] == "openai/large"
    assert by_id[5]["usage"] is None
    assert "TASK-6.md:1: the title line" in by_id[6]["error"]


@pytest.mark.parametrize(
    ("columns", "shown", "left_out"),
    [
        (200, ["steps", "model", "duration", "tokens", "cost"], []),
        (110, ["duration", "tokens", "cost"], ["steps", "model"]),
        (
            60,
            ["id", "status", "created", "template"],
            ["steps", "model", "duration", "tokens", "cost"],
        ),
    ],
)
@pytest.mark.usefixtures("tasks")
def test_a_narrow_terminal_goes_without_some_columns(
    columns: int, shown: list[str], left_out: list[str], cli: Any
) -> None:
    ran = cli("tasks", "list", env={"COLUMNS": str(columns)})
    head, *lines = ran.out.splitlines()
    assert [name for name in (*shown, *left_out) if name in head.split()] == shown
    assert len(lines) == 6
    assert max(map(len, lines)) <= max(columns, 80)
    assert LONG not in ran.out
    if columns == 200:
        assert re.search(
            r"^2 +failed +20\S+ \S+ +1\.5 s +1 +1,234 +\$0\.25 +review_text +openai/large +the server was BUSY$",
            ran.out,
            re.M,
        ), ran.out


def test_columns_that_nothing_is_known_for_are_left_out(cli: Any, tmp_path: Path) -> None:
    TaskStore(tmp_path / "tasks").create("words").close(Summary("completed", 0, 0, 0.5))
    head, line = cli("tasks", "list").out.splitlines()
    assert head.split() == [
        "id",
        "status",
        "created",
        "duration",
        "steps",
        "template",
        "request",
        "or",
        "reason",
    ]
    assert line.split()[-1] == "words"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["list", "--since", "yesterday"], ["since", "'yesterday'", "2026-03-01", "2h"]),
        (["list", "--until", "2026-02-30"], ["until", "'2026-02-30'"]),
        (
            ["list", "--interrupted", "--status", "failed"],
            ["--interrupted", "--status failed", "exclude"],
        ),
        (["list", "--parent", "mine"], ["'mine'", "TASK-17"]),
        (["list", "--limit", "0"], ["--limit"]),
        (["show", "1", "--tree", "--messages"], ["--tree", "--messages", "exclude"]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("tasks")
def test_what_cannot_be_meant_is_refused(args: list[str], says: list[str], cli: Any) -> None:
    ran = cli("tasks", *args)
    assert (ran.code, ran.out) == (2, "")
    for words in says:
        assert words in ran.err
    error = json.loads(cli("tasks", *args, "--json").out)["error"]
    assert error["exit_code"] == 2


def test_a_tree_follows_the_links_of_the_file_wherever_the_command_runs(
    tasks: Path, cli: Any, tmp_path: Path
) -> None:
    expected = """\
TASK-1  completed  review_code  1.5 s  1,234 tokens  $0.25
  turn[1]  1  model  local/m  success  1.5 s  1,234 tokens  $0.25
    tool[1]/subtask  2  subtask  child  success  500 ms
      TASK-4  completed  child  1.5 s  1,234 tokens  $0.25
        turn[1]  1  model  local/m  success  1.5 s  1,234 tokens  $0.25
"""
    assert cli("tasks", "show", "1", "--tree").out == expected
    (tmp_path / "other").mkdir()
    assert (
        cli("tasks", "show", tasks / "done" / "TASK-1.md", "--tree", cwd=tmp_path / "other").out
        == expected
    )
    data = json.loads(cli("tasks", "show", "1", "--tree", "--json").out)
    assert data["steps"][1]["subtask"]["id"] == 4
    ran = cli("tasks", "show", "5", "--tree")
    assert "TASK-7" in ran.out.splitlines()[0]
    assert "no task 7" in ran.out


@pytest.mark.usefixtures("tasks")
def test_messages_are_what_the_model_saw(cli: Any) -> None:
    ran = cli("tasks", "show", "1", "--messages")
    assert ran.out.endswith("user\n  hi \\x1b[31m there\n\nassistant\n  ok\n")
    data = json.loads(cli("tasks", "show", "1", "--messages", "--json").out)
    assert (data["id"], data["status"]) == (1, "completed")
    assert data["conversations"][0]["messages"] == [
        {"role": "user", "content": "hi \x1b[31m there"},
        {"role": "assistant", "content": "ok"},
    ]
    assert json.loads(cli("tasks", "show", "3", "--messages", "--json").out)["conversations"] == []


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    "view", [[], ["--tree"], ["--messages"]], ids=["plain", "tree", "messages"]
)
def test_a_terminal_gets_colours_and_a_pipe_gets_none(
    view: list[str], cli: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    assert "\x1b" not in cli("tasks", "show", "1", *view).out
    primary, secondary = pty.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(primary, 4096)
            except OSError:
                return
            if not piece:
                return
            pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    command = [PROGRAM, "tasks", "show", "1", *view]
    code = subprocess.run(
        command,
        stdout=secondary,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment,
        timeout=200,
    ).returncode
    os.close(secondary)
    reader.join(timeout=200)
    os.close(primary)
    shown = b"".join(pieces).decode()
    assert code == 0
    assert "\x1b[32mcompleted\x1b[0m" in shown
    assert "\x1b[31m there" not in shown


@pytest.mark.parametrize("command", ["show", "resume", "replay"])
@pytest.mark.parametrize("task", ["9" * 5000, "TASK-" + "9" * 5000, "9" * 19, "x" * 5000, "a\tb"])
def test_what_is_no_id_is_wrong_usage(cli: Any, command: str, task: str) -> None:
    ran = cli("tasks", command, task)
    assert ran.code == 2 and "neither a task's id nor a file" in ran.err and len(ran.err) < 400


def test_tasks_of_a_segment_are_listed_shown_and_exported_as_files(
    cli: Any, tmp_path: Path
) -> None:
    store = TaskStore(tmp_path / "packed", is_packed=True)
    for request in ("first", "second"):
        journal = store.create(request)
        journal.end(journal.begin(StepStart("a", "tool", "t", {})), StepEnd("success", "x", 0.5))
        journal.close(Summary("completed", 1, 0, 1.5, USAGE, {"content": "x"}))
    store.close()
    options = ["--tasks", str(store.root)]
    listed = json.loads(cli("tasks", "list", "--json", *options).out)
    assert [(task["id"], task["status"]) for task in listed] == [(2, "completed"), (1, "completed")]
    assert "second" in cli("tasks", "show", "2", *options).out
    assert cli("tasks", "show", "3", *options).code == 3
    files = tmp_path / "files"
    exported = cli("tasks", "export", "2", "--to", str(files), *options)
    assert exported.out == f"{files / 'TASK-2.md'}\n"
    assert (files / "TASK-2.md").read_bytes() == store.content_of(2)
    assert cli("tasks", "export", "2", "--to", str(files), *options).code == 3
    everything = cli("tasks", "export", "--json", "--to", str(tmp_path / "all"), *options)
    assert len(json.loads(everything.out)) == 2
    assert cli("tasks", "show", str(tmp_path / "all" / "TASK-1.md")).code == 0
