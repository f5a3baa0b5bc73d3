"""The command beside other processes: closed pipes, full disks, odd encodings, other folders, two runs at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evaluator import TaskStore
from tests.cli.conftest import PROGRAM, Run

BROKEN = ("Traceback", "BrokenPipe", "Exception ignored", "fault")
RUN = ("run", "--template", "summarise", "--input", "document=x", "--handler", "offline")


def shell(
    command: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("evaluator ", f"{PROGRAM} ")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize("command", ["init", "new letter"])
def test_a_full_disk_leaves_no_part_of_a_new_file(
    tmp_path: Path, environment: dict[str, str], command: str
) -> None:
    full = shell(f"ulimit -f 0; evaluator {command}", tmp_path, environment)
    assert full.returncode == 3 and "cannot be written: " in full.stderr, full.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    again = shell(f"evaluator {command} && evaluator lint templates", tmp_path, environment)
    assert (again.returncode, "kept" in again.stderr) == (0, False), again.stderr


@pytest.mark.parametrize(
    "command",
    [
        "evaluator templates --json | head -1",
        "evaluator --help | head -1",
        "evaluator handlers | true",
        "evaluator tasks show 999 --json 2>&1 | true",
    ],
)
def test_a_reader_that_leaves_early_is_not_an_error(
    command: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = shell(command, tmp_path, environment)
    assert done.returncode == 0
    for word in BROKEN:
        assert word not in done.stderr, done.stderr


def test_a_run_whose_reader_left_is_recorded(tmp_path: Path, environment: dict[str, str]) -> None:
    done = shell(f"evaluator {' '.join(RUN)} | true", tmp_path, environment)
    assert done.returncode == 0
    for word in BROKEN:
        assert word not in done.stderr, done.stderr
    assert TaskStore(tmp_path / "tasks").read(1).status == "completed"


@pytest.mark.parametrize("command", ["templates --json", " ".join(RUN), "--help"])
def test_a_full_disk_behind_standard_output_is_reported(
    command: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = shell(f"evaluator {command} > /dev/full", tmp_path, environment)
    assert done.returncode == 3
    assert "No space left on device; free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-16"])
def test_json_is_valid_in_every_encoding_of_the_output(
    encoding: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "t.xml").write_text(
        '<task name="日本" type="atomic"><description>caf\u00e9 \u2603</description></task>'
    )
    done = subprocess.run(
        [PROGRAM, "templates", "--library", "t.xml", "--json"],
        cwd=tmp_path,
        capture_output=True,
        timeout=200,
        env=environment | {"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    assert "日本" in [row["name"] for row in json.loads(done.stdout.decode(encoding))]
    assert b"Traceback" not in done.stderr


def test_text_that_the_output_cannot_encode_is_escaped(process: Any, write: Any) -> None:
    write("t.xml", '<task name="日本" type="atomic"><description>café ☃</description></task>')
    ran = process("templates", "--library", "t.xml", env={"PYTHONIOENCODING": "latin-1"})
    assert ran.code == 0
    assert "\\u65e5" in ran.out


def test_two_processes_share_a_folder_of_task_files(start: Any, tmp_path: Path) -> None:
    processes = [start(*RUN) for _ in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    found = list(TaskStore(tmp_path / "tasks").list())
    assert [t.id for t in found] == [4, 3, 2, 1]
    assert {t.status for t in found} == {"completed"}


def test_it_works_from_any_folder(cli: Any, write: Any, tmp_path: Path) -> None:
    write(
        "project/templates/own.xml",
        '<task name="own" type="atomic"><description>d</description></task>',
    )
    write("project/data/note.md", "text")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    project = tmp_path / "project"
    ran = cli(
        "run",
        "--template",
        "own",
        "--library",
        project / "templates",
        "--root",
        project / "data",
        "--tasks",
        project / "tasks",
        "--handler",
        "offline",
        cwd=elsewhere,
    )
    assert ran.code == 0
    assert list(elsewhere.iterdir()) == []
    assert TaskStore(project / "tasks").read(1).status == "completed"
    assert cli("run", "--template", "own", "--handler", "offline", cwd=project).code == 0
    ran = cli("run", "--template", "own", "--handler", "offline", cwd=elsewhere)
    assert ran.code == 2
    assert "there is no template 'own'" in ran.err


def test_it_works_in_a_folder_that_may_not_be_written(cli: Any, tmp_path: Path) -> None:
    ran = cli(*RUN, cwd="/proc")
    assert ran.code == 3
    assert "tasks" in ran.err
    assert "another folder" in ran.err
    assert cli("match", "is this review positive?", cwd="/proc").code == 0
    assert cli("render", "summarise", "--input", "document=x", cwd="/proc").code == 0


def test_a_folder_that_was_removed_under_it_is_reported(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = shell(
        f"mkdir gone; cd gone; rmdir ../gone; evaluator {' '.join(RUN)}", tmp_path, environment
    )
    assert done.returncode in (2, 3)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_a_terminal_never_gets_control_characters_of_a_model(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    import os
    import pty

    from evaluator.testing import Answer, LoopbackServer

    hostile = "red \x1b[31m title \x1b]0;owned\x07 back\b\r\nend"
    with LoopbackServer(default=Answer(hostile)) as server:
        (tmp_path / "handlers").mkdir()
        (tmp_path / "handlers" / "wire.xml").write_text(
            f'<handler name="wire"><backend>openai_compatible</backend><model>m</model>'
            f"<base_url>{server.base_url}</base_url></handler>"
        )
        command = [
            PROGRAM,
            "run",
            "--template",
            "summarise",
            "--input",
            "document=x",
            "--handler",
            "wire",
        ]
        master, slave = pty.openpty()
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.PIPE,
            timeout=200,
        )
        os.close(slave)
        shown = os.read(master, 65536)
        os.close(master)
        piped = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert rb"\x1b[31m" in shown
    assert b"end" in shown
    # Into a file or a pipe goes what the model wrote.
    assert piped.stdout == hostile.encode() + b"\n"


def test_closed_standard_error_changes_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "t.xml").write_text(
        '<task name="two" type="sequential"><description>d</description><steps>'
        '<task name="a" type="atomic"><description>first</description></task>'
        '<task name="b" type="atomic"><description>second</description></task></steps></task>'
    )
    done = shell(
        "evaluator run --template two --library t.xml --handler offline 2>&-", tmp_path, environment
    )
    assert done.returncode == 0
    assert done.stdout.strip()
    assert TaskStore(tmp_path / "tasks").read(1).status == "completed"


def test_render_shows_what_the_model_would_see_to_the_character(cli: Any) -> None:
    value = "red \x1b[31m {{ x }} <b>"
    ran = cli("render", "summarise", "--input", f"document={value}")
    assert value in ran.out


def test_render_goes_through_a_script_that_declares_json(cli: Any) -> None:
    ran = cli("render", "count_text", "--input", "stdin=one two")
    assert (ran.code, ran.out) == (0, "")
    assert "0 model calls" in ran.err


def test_a_control_character_of_a_template_does_not_reach_the_terminal(
    cli: Any, write: Any
) -> None:
    # C1 controls are legal in XML, and some terminals act on them.
    write("lib/a.xml", '<task name="a" type="atomic"><description>\x9b31m red</description></task>')
    write(
        "lib/b.xml", '<task name="b" type="atomic"><description>\x1b[31m red</description></task>'
    )
    for args in (
        ("templates", "--library", "lib"),
        ("lint", "lib"),
        ("match", "red", "--library", "lib"),
    ):
        ran = cli(*args)
        assert "\x1b" not in ran.out + ran.err
        assert "\x9b" not in ran.out + ran.err
    assert "lib/b.xml:1:43" in cli("lint", "lib").out


def test_what_code_of_a_project_leaves_unhandled_is_told_without_a_traceback(
    process: Run, start: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "target": "2"}\n')
    (tmp_path / "checks.py").write_text(
        """
import asyncio, logging, threading

class Broken:
    def __del__(self):
        raise ValueError("while it is freed")

def fail():
    raise ValueError("in a thread")

async def fail_later():
    raise ValueError("in a task")

async def careless(output):
    asyncio.create_task(fail_later())
    await asyncio.sleep(0)
    thread = threading.Thread(target=fail, name="own")
    thread.start()
    thread.join()
    Broken()
    logging.getLogger("of.a.library").warning("%d items", "no")
    try:
        fail()
    except ValueError:
        logging.getLogger("of.a.library").exception("from a library")
    return True
"""
    )
    command = ["batch", "--template", "answer_question", "--rows", "rows.jsonl"]
    options = ["--scorer", "checks.py:careless", "--handler", "offline"]
    ran = process(*command, *options)
    assert ran.code == 0
    for line in (
        "warning: the thread own ended: ValueError: in a thread",
        "ValueError: while it is freed",
        "error: from a library",
        "warning: %d items ('no',)",
        "ValueError('in a task')",
    ):
        assert line in ran.err, line
    debugged = start(*command, *options, env={**environment, "EVALUATOR_DEBUG": "1"})
    assert debugged.communicate(timeout=200)[1].count(b"Traceback") == 5
