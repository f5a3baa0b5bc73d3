"""`evaluator tasks resume` and `replay` of a run whose process is killed: it is listed, resumed, replayed, and diverges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run

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
SECOND = (
    "echo second >> effects; [ -e go ] || {{ echo waiting > here; read line < pipe; }}; echo two"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.xml").write_text(
        TEMPLATE.format(second=SECOND.format().replace("&", "&amp;").replace("<", "&lt;"))
    )
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.fixture
def tasks(cli: Run, folder: Path) -> Run:
    """`tasks(*argv, code=0)`: `evaluator tasks` in the folder, which ends with this code."""

    def run(*argv: str, code: int = 0) -> Ran:
        ran = cli("tasks", *argv)
        assert ran.code == code, ran
        return ran

    return run


def killed_run(folder: Path) -> None:
    """A run that is killed while its second script runs."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "evaluator",
            "run",
            "--template",
            "chain",
            "--library",
            "t.xml",
            "--handler",
            "offline",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    # Opening the other end of the pipe returns when the script has opened its own.
    with open(folder / "pipe", "w"):
        process.send_signal(signal.SIGKILL)
        process.wait(200)


def test_a_killed_run_is_listed_resumed_and_replayed(tasks: Run, folder: Path) -> None:
    killed_run(folder)
    assert (folder / "effects").read_text() == "first\nsecond\n"
    listed = json.loads(tasks("list", "--interrupted", "--json").out)
    assert [(task["id"], task["status"]) for task in listed] == [(1, "interrupted")]

    stopped = tasks("resume", "1", "--library", "t.xml", code=3)
    assert "steps[2]/script: sh was begun and its end is not recorded" in stopped.err
    assert "--unfinished repeat" in stopped.err
    assert (folder / "effects").read_text() == "first\nsecond\n"

    (folder / "go").touch()
    resumed = tasks("resume", "TASK-1", "--library", "t.xml", "--unfinished", "repeat")
    assert resumed.out == "said\n"
    assert "resumed: 1 step from the record, 2 run" in resumed.err
    assert (folder / "effects").read_text() == "first\nsecond\nsecond\n"

    replayed = tasks("replay", "1", "--library", "t.xml")
    assert replayed.out == "TASK-1: as recorded (4 steps, 3 answers from the record)\n"
    assert "\n  4 steps" in tasks("show", "1").out
    by_path = tasks("replay", "tasks/done/TASK-1.md", "--library", "t.xml", "--json")
    assert json.loads(by_path.out)["ok"] is True


def test_a_replay_of_an_edited_template_shows_both_sides_and_fails(
    cli: Run, tasks: Run, folder: Path
) -> None:
    (folder / "go").touch()
    assert cli("run", "--template", "chain", "--library", "t.xml", "--handler", "offline").code == 0
    file = folder / "t.xml"
    file.write_text(file.read_text().replace("Say {{", "Repeat {{"))
    diverged = tasks("replay", "1", "--library", "t.xml", code=1)
    assert "diverges at steps[3]/turn[1]" in diverged.out
    assert 'recorded: "Say one"' in diverged.out
    assert 'now: "Repeat one"' in diverged.out
    changes = tasks("replay", "1", "--library", "t.xml", "--template-changes", code=1)
    assert "-  Say one" in changes.out
    assert "+  Repeat one" in changes.out
    stopped = tasks("resume", "1", "--library", "t.xml")
    assert "said" in stopped.out, (
        "a completed run gives its result, whatever its template has become"
    )


def test_wrong_usage_is_reported(tasks: Run) -> None:
    assert "neither a task's id nor a file" in tasks("resume", "x", code=2).err
    assert "there is no task 5" in tasks("resume", "5", code=3).err
    assert "there is no task 5" in tasks("replay", "5", code=3).err
    said = json.loads(tasks("resume", "5", "--json", code=3).out)
    assert "there is no task 5" in said["error"]["message"]
