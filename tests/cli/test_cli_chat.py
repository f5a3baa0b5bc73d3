"""`evaluator chat` as a real process: lines in, answers out; killed and resumed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

ARGV = [sys.executable, "-m", "evaluator", "chat", "--handler", "offline"]


def chat(folder: Path, lines: str, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*ARGV, *argv], cwd=folder, input=lines, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def read_until(descriptor: int, text: bytes, seen: bytes = b"") -> bytes:
    """What follows `text`, which is looked for in `seen` first: one read may bring what is expected next as well."""
    while text not in seen:
        piece = os.read(descriptor, 65536)
        assert piece, seen
        seen += piece
    return seen.partition(text)[2]


def test_lines_in_answers_out_until_the_input_ends_or_exit(tmp_path: Path) -> None:
    done = chat(tmp_path, "hello\n\nagain\n/exit\nnever\n")
    assert done.stdout.splitlines() == [
        "[simulated] an answer to: hello",
        "[simulated] an answer to: again",
    ]
    assert "task file: tasks/done/TASK-1.md" in done.stderr
    last = chat(tmp_path, "no line end")
    assert last.stdout == "[simulated] an answer to: no line end\n"


def test_a_killed_session_shows_its_replies_and_continues(tmp_path: Path) -> None:
    with subprocess.Popen(
        ARGV, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"[simulated] an answer to: hello\n"
        process.send_signal(signal.SIGKILL)
    done = chat(tmp_path, "and now\n", "--resume", "1")
    assert done.stdout.splitlines() == [
        "> hello",
        "[simulated] an answer to: hello",
        "[simulated] an answer to: and now",
    ]


def test_ctrl_c_at_the_prompt_ends_the_session(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ARGV, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    rest = read_until(master, b"> ")
    os.write(master, b"hello\n")
    rest = read_until(master, b"an answer to: hello", rest)
    rest = read_until(master, b"> ", rest)
    process.send_signal(signal.SIGINT)
    read_until(master, b"task file: tasks/done/TASK-1.md", rest)
    assert process.wait(200) == 0
    os.close(master)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--resume", "4"), 3, "there is no task 4"),
        (("--memory", "nowhere"), 2, "there is no such index"),
        (("--resume", "x"), 2, "not a task's id"),
    ],
)
def test_wrong_usage_is_reported(
    cli: Run, tmp_path: Path, argv: tuple[str, ...], code: int, message: str
) -> None:
    ran = cli("chat", "--handler", "offline", "--tasks", "nope", *argv)
    assert ran.code == code and message in ran.err
    assert not (tmp_path / "nope").exists()


def test_background_tasks_that_cannot_be_read_are_reported(cli: Run, tmp_path: Path) -> None:
    """A session with an index consolidates it in the background."""
    (tmp_path / "docs").mkdir()
    index = tmp_path / "memory.sqlite"
    assert cli("memory", "index", "docs", "--db", index).code == 0
    argv = ("--memory", str(index))
    chat(tmp_path, "hello\n", *argv)
    index.with_name(f"{index.name}.consolidated").unlink()  # it is due again
    database = tmp_path / "tasks" / "background" / "background.sqlite"
    database.write_bytes(b"this is not a database")
    refused = chat(tmp_path, "hello\n", *argv, code=3)
    assert "the background tasks cannot be opened: file is not a database" in refused.stderr
