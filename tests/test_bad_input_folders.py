"""The folder of task files cannot be used, or the disk is full: an error before a call, or a result that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from evaluator import TaskError, TaskStore

ASK = '<task name="ask" type="atomic"><description>d</description><instructions>Q</instructions></task>'


def a_file(path: Path) -> None:
    path.write_text("")


def a_link(path: Path) -> None:
    path.parent.joinpath("elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def a_file_inside(path: Path) -> None:
    path.mkdir()
    (path / "active").write_text("")


def open_to_everybody(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def a_folder_for_a_counter(path: Path) -> None:
    path.mkdir()
    (path / ".last-id").mkdir()


@pytest.mark.parametrize(
    "spoil", [a_file, a_link, a_file_inside, open_to_everybody, a_folder_for_a_counter]
)
def test_a_task_folder_that_cannot_be_used_is_an_error_before_a_call(
    spoil: Any, make_evaluator: Any, scripted: Any, tmp_path: Path
) -> None:
    spoil(tmp_path / "tasks")
    model = scripted()
    error = make_evaluator(ASK, script=model).evaluate_sync("ask")
    assert isinstance(error, TaskError)
    assert error.reason == "execution_halted"
    assert str(tmp_path / "tasks") in error.message
    assert any(word in error.message for word in ("choose", "chmod", "name the folder")), (
        error.message
    )
    assert model.seen == []


def limited(tmp_path: Path, limit: int, answer: int) -> dict[str, Any]:
    """One evaluation in a process that may write files of at most `limit` bytes, answered by `answer` characters."""
    source = f"""
    import json, resource, signal
    from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
    library = TemplateLibrary(); library.add({ASK!r})
    calls = []
    def script(request):
        calls.append(1)
        return "x" * {answer}
    evaluator = Evaluator(library, "offline", backend=SimulatedBackend(script=script), tasks_dir="tasks")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    outcome = evaluator.evaluate_sync("ask")
    shown = outcome.to_dict() | {{"calls": len(calls), "length": len(outcome.content)}}
    shown.pop("content")
    print(json.dumps(shown, default=str))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def test_no_space_for_the_beginning_is_an_error_before_a_call(tmp_path: Path) -> None:
    outcome = limited(tmp_path, 100, 10)
    assert outcome["status"] == "FAILED"
    assert outcome["reason"] == "execution_halted"
    assert outcome["calls"] == 0
    assert "free space" in outcome["message"]
    assert "tasks" in outcome["message"]


def test_no_space_for_an_answer_is_an_error_and_the_file_stays_whole(tmp_path: Path) -> None:
    outcome = limited(tmp_path, 20_000, 100_000)
    assert (outcome["calls"], outcome["reason"]) == (1, "execution_halted")
    assert "free space" in outcome["message"]
    (summary,) = TaskStore(tmp_path / "tasks").list()
    assert summary.status == "interrupted"
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.tail == "clean"
    assert recording.steps[-1].start.kind == "model"
    assert os.path.getsize(tmp_path / "tasks" / "active" / "TASK-1.md") <= 20_000


def test_an_answer_that_cannot_be_recorded_still_reaches_the_caller(tmp_path: Path) -> None:
    outcome = limited(tmp_path, 20_000, 100_000)
    assert outcome["length"] == 100_000
    assert outcome["usage"]["turns"] == 1
