"""The example of a complete workflow: a feature from the first question to the closed task list, also after a kill."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evaluator import ProviderError, TaskStore
from evaluator.record.task_lists import TaskList, TaskLists

EXAMPLE = Path(__file__).parents[2] / "examples" / "mechanic" / "run.py"
NAME = "2026-02-20-greeting"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mechanic_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool_calls(folder: Path, task_id: int) -> list[str]:
    """The names of the tools that a run called, with the action of manage_task."""
    recording = TaskStore(folder / "tasks").read(task_id)
    calls = [
        (call["name"], json.loads(call["arguments"]))
        for step in recording.steps
        if step.start.kind == "model" and step.end is not None
        for call in step.end.output.get("tool_calls", ())
    ]
    return [arguments.get("action", name) for name, arguments in calls]


def closed(folder: Path) -> TaskList:
    task = TaskLists(folder / "tasks").read(NAME)
    assert (task.state, task.owner, task.done) == ("done", "MECHANIC", task.total)
    assert TaskLists(folder / "tasks").list_active() == []
    assert (folder / "src" / "greeting.py").read_text() == "print('Good morning')\n"
    return task


def test_the_workflow_runs_from_the_first_question_to_the_closed_list(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(tmp_path)
    asked = "? Which greeting shall the program print?\n? The greeting is written. Do you confirm the result?\n"
    assert capsys.readouterr().out.startswith(asked)
    assert tool_calls(tmp_path, 1) == [
        "list_active",
        "ask_user",
        "create",
        "update",
        "subtask",
        "update",
        "ask_user",
        "update",
        "close",
    ]
    assert tool_calls(tmp_path, 2) == ["write_file"]
    closed(tmp_path)
    # The worker, a task with another profile, was given the file; it has no tool that could change it.
    worker = next(
        step for step in TaskStore(tmp_path / "tasks").read(2).steps if step.start.kind == "model"
    )
    sent = worker.start.args["messages"][-1]["content"]
    assert "### [COMPONENTS]" in sent
    assert "print the greeting 'Good morning'" in sent
    assert worker.start.args["settings"]["tools"] == ["write_file"]


KILLED = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("mechanic_example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
calls = []
def before_call(request):
    calls.append(request)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
from pathlib import Path
example.make_evaluator(Path(sys.argv[2]), before_call).evaluate_sync("build_feature")
"""

# the model call at which the process is killed → the tools of the second run, and how often it calls the worker's model
KILLS: list[tuple[int, list[str], int]] = [
    (
        4,
        [
            "list_active",
            "read_run",
            "read",
            "ask_user",
            "update",
            "subtask",
            "update",
            "ask_user",
            "update",
            "close",
        ],
        2,
    ),
    (7, ["list_active", "read_run", "read", "subtask", "update", "ask_user", "update", "close"], 2),
    (9, ["list_active", "read_run", "read", "ask_user", "update", "close"], 0),
    (11, ["list_active", "read_run", "read", "close"], 0),
]


@pytest.mark.parametrize(
    ("number", "tools", "worker_calls"), KILLS, ids=[f"call {n}" for n, _, _ in KILLS]
)
def test_killed_in_the_middle_it_continues_from_the_list(
    example: ModuleType, tmp_path: Path, number: int, tools: list[str], worker_calls: int
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(EXAMPLE), str(tmp_path), str(number)], check=False
    )
    assert child.returncode == -signal.SIGKILL
    seen: list[Any] = []
    outcome = example.make_evaluator(tmp_path, seen.append).evaluate_sync("build_feature").unwrap()
    assert outcome.content.startswith("The feature is done: ")
    assert tool_calls(tmp_path, outcome.task_id) == tools
    of_worker = [request for request in seen if "You are the MECHANIC" not in str(request.messages)]
    assert len(of_worker) == worker_calls
    closed(tmp_path)


def test_after_a_model_call_that_failed_the_work_continues_from_the_list(
    example: ModuleType, tmp_path: Path
) -> None:
    calls: list[Any] = []

    def fail(request: Any) -> None:
        calls.append(request)
        if len(calls) == 8:  # the answer after the worker has ended
            raise ProviderError("no answer in time", kind="timeout")

    failed = example.make_evaluator(tmp_path, fail).evaluate_sync("build_feature")
    assert failed.reason == "provider_failure"
    assert TaskLists(tmp_path / "tasks").read(NAME).next_step().role == "WORKER"
    example.make_evaluator(tmp_path).evaluate_sync("build_feature").unwrap()
    closed(tmp_path)


@pytest.mark.parametrize(
    "spelling", ["tasks/active/2026-02-20-x.md", "./tasks//active/2026-02-20-x.md", "absolute"]
)
def test_a_template_reads_a_task_list_that_its_file_paths_name(
    make_evaluator: Any, tmp_path: Path, spelling: str
) -> None:
    lists = TaskLists(tmp_path / "tasks")
    path = lists.create("2026-02-20-x", "# X\n\n- [ ] the step\n").path
    name = str(path) if spelling == "absolute" else spelling
    xml = f"""<task name="work" type="atomic"><description>Work</description><file_paths><path>{name}</path></file_paths>
      <tools><tool name="read_file"/></tools><instructions>WORK</instructions></task>"""
    seen: list[Any] = []

    def script(request: Any) -> Any:
        seen.append([message.content for message in request.messages])
        return "done" if len(seen) > 1 else {"tool": "read_file", "arguments": {"path": name}}

    evaluator = make_evaluator(xml, script=script)
    assert evaluator.evaluate_sync("work").unwrap().notes["warnings"] == []
    assert any("- [ ] the step" in content for content in seen[0])
    # The tools of the task cannot open the folder of task files.
    assert "belongs to the program itself" in seen[1][-1]
    # A list that was closed is still read.
    lists.close("x", force=True)
    seen.clear()
    evaluator.evaluate_sync("work").unwrap()
    assert any("- [ ] the step" in content for content in seen[0])
