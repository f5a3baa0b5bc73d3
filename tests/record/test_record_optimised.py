"""Damaged task files give the same errors with `python -O`, which removes assertions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evaluator import TaskStore
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.record.task_lists import TaskLists

# Reads, lists and resumes every file, and prints how each attempt ended.
READ_ALL = """
import sys
from pathlib import Path
from evaluator import Evaluator, TaskStore
from evaluator.record.conversation import conversations
from evaluator.record.render import render_text
from evaluator.record.task_lists import TaskLists
from evaluator.record.tree import read_tree, render_tree

for folder in sorted(Path(sys.argv[1]).iterdir()):
    store = TaskStore(folder)
    for task in store.list():
        try:
            recording = store.read(task.id)
            shown = render_text(recording), render_tree(read_tree(store, recording)), conversations(recording)
            print(folder.name, task.status, recording.status, len(recording.steps), len(shown))
        except Exception as error:
            print(folder.name, task.status, type(error).__name__)
    evaluator = Evaluator(handler="offline", tasks_dir=folder, notice=lambda line: None)
    outcome = evaluator.resume_sync(1)
    cause = getattr(outcome, "cause", None)
    print(folder.name, outcome.status, type(cause).__name__)
    try:
        print(evaluator.replay_sync(1).ok)
    except Exception as error:
        print(folder.name, type(error).__name__)
    for task in TaskLists(folder).list_active():
        try:
            print(TaskLists(folder).update(task.name, "# [B] x\\n", role="A", if_unchanged=task.version).version)
        except Exception as error:
            print(folder.name, type(error).__name__)
"""
FAULTS_OF_CODE = ("AttributeError", "AssertionError", "TypeError", "KeyError", "IndexError")


def write_record(folder: Path, *, result: object) -> bytes:
    with TaskStore(folder).create("r", {"x": "y"}, template="summarise") as journal:
        number = journal.begin(
            StepStart("turn[1]", "model", "m", {"model": "m", "messages": []}, "f")
        )
        journal.end(number, StepEnd("success", {"content": "fine"}, 0.1))
        journal.close(Summary("completed", 1, 0, 0.1, None, result))
        path = journal.path
    return path.read_bytes()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder of task folders, each with one record that is damaged in another way."""
    root = tmp_path / "damaged"
    whole = write_record(root / "no-result", result=None)
    write_record(root / "odd-result", result={"status": "COMPLETE"})
    for at in range(97, len(whole), 97):
        variants = {f"cut-{at}": whole[:at], f"changed-{at}": whole[:at] + b"?" + whole[at + 1 :]}
        for name, data in variants.items():
            (root / name / "active").mkdir(parents=True, mode=0o700)
            (root / name / "active" / "TASK-1.md").write_bytes(data)
    TaskLists(root / "no-result").create("plan", "# Plan\n\n## [B] Theirs\n\n- [ ] x\n")
    return root


def run(flags: list[str], root: Path) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", READ_ALL, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_damaged_records_give_the_same_errors_with_and_without_assertions(
    damaged: Path, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(damaged, copy, copy_function=shutil.copy2)
    plain, optimised = run([], damaged), run(["-O"], copy)
    assert optimised == plain
    assert not [line for line in plain.splitlines() if line.endswith(FAULTS_OF_CODE)]
    assert "CorruptRecord" in plain and "no-result FAILED RecordError" in plain
