"""`evaluator tasks resume` and `replay` as real processes: a run that is killed, resumed, replayed, and diverges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TEMPLATE = """<library>
<task name="chain" type="sequential"><description>Two scripts and an answer</description>
  <steps>
    <task name="first" type="script"><description>first</description><command>sh -c "echo first >> effects; echo one"</command></task>
    <task name="second" type="script"><description>second</description><command>sh -c "{second}"</command></task>
    <task name="say" type="atomic"><description>say</description>
      <instructions>Say {{{{ steps.first.content }}}} {{{{ steps.second.content }}}}</instructions>
      <examples><example><output>said</output></example></examples></task>
  </steps></task>
</library>"""
SECOND = "echo second >> effects; [ -e go ] || {{ echo waiting > here; read line < pipe; }}; echo two"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.xml").write_text(TEMPLATE.format(second=SECOND.format().replace("&", "&amp;").replace("<", "&lt;")))
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def evaluator(folder: Path, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", *argv], cwd=folder, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def killed_run(folder: Path) -> None:
    """A run that is killed while its second script runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evaluator", "run", "--template", "chain", "--library", "t.xml", "--handler", "offline"],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    # Opening the other end of the pipe returns when the script has opened its own.
    with open(folder / "pipe", "w"):
        process.send_signal(signal.SIGKILL)
        process.wait(200)


def test_a_killed_run_is_listed_resumed_and_replayed(folder: Path) -> None:
    killed_run(folder)
    assert (folder / "effects").read_text() == "first\nsecond\n"
    listed = json.loads(evaluator(folder, "tasks", "list", "--interrupted", "--json").stdout)
    assert [(task["id"], task["status"]) for task in listed] == [(1, "interrupted")]

    stopped = evaluator(folder, "tasks", "resume", "1", "--library", "t.xml", code=3)
    assert "steps[2]/script: sh was begun and its end is not recorded" in stopped.stderr
    assert "--unfinished repeat" in stopped.stderr
    assert (folder / "effects").read_text() == "first\nsecond\n"

    (folder / "go").touch()
    resumed = evaluator(folder, "tasks", "resume", "TASK-1", "--library", "t.xml", "--unfinished", "repeat")
    assert resumed.stdout == "said\n"
    assert "resumed: 1 step from the record, 2 run" in resumed.stderr
    assert (folder / "effects").read_text() == "first\nsecond\nsecond\n"

    replayed = evaluator(folder, "tasks", "replay", "1", "--library", "t.xml")
    assert replayed.stdout == "TASK-1: as recorded (3 steps)\n"
    by_path = evaluator(folder, "tasks", "replay", "tasks/done/TASK-1.md", "--library", "t.xml", "--json")
    assert json.loads(by_path.stdout)["ok"] is True


def test_a_replay_of_an_edited_template_shows_both_sides_and_fails(folder: Path) -> None:
    (folder / "go").touch()
    evaluator(folder, "run", "--template", "chain", "--library", "t.xml", "--handler", "offline")
    file = folder / "t.xml"
    file.write_text(file.read_text().replace("Say {{", "Repeat {{"))
    diverged = evaluator(folder, "tasks", "replay", "1", "--library", "t.xml", code=1)
    assert "diverges at steps[3]/turn[1]" in diverged.stdout
    assert 'recorded: "Say one"' in diverged.stdout
    assert 'now: "Repeat one"' in diverged.stdout
    changes = evaluator(folder, "tasks", "replay", "1", "--library", "t.xml", "--template-changes", code=1)
    assert "-  Say one" in changes.stdout
    assert "+  Repeat one" in changes.stdout
    stopped = evaluator(folder, "tasks", "resume", "1", "--library", "t.xml")
    assert "said" in stopped.stdout, "a completed run gives its result, whatever its template has become"


def test_wrong_usage_is_reported(folder: Path) -> None:
    assert "neither a task's id nor a file" in evaluator(folder, "tasks", "resume", "x", code=2).stderr
    assert "there is no task 5" in evaluator(folder, "tasks", "resume", "5", code=3).stderr
    assert "there is no task 5" in evaluator(folder, "tasks", "replay", "5", code=3).stderr
    said = json.loads(evaluator(folder, "tasks", "resume", "5", "--json", code=3).stdout)
    assert "there is no task 5" in said["error"]["message"]
