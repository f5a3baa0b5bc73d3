"""A run that is interrupted or killed: exit code 130 and a closed task file, or a file that reads as interrupted."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import TaskStore
from evaluator.testing import Answer, HttpReply, LoopbackServer
from tests.leftovers import is_running

PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>{url}</base_url><limits timeout="60"/></handler>"""
ASK = ("run", "--template", "summarise", "--input", "document=x", "--handler", "wire")


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    """A server that takes requests and never answers; the profile `wire` leads to it."""
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    with LoopbackServer(default=HttpReply(silent=True, end="hang")) as server:
        (tmp_path / "handlers").mkdir()
        (tmp_path / "handlers" / "wire.xml").write_text(PROFILE.format(url=server.base_url))
        yield server


def wait_until(true: Any, timeout_s: float = 200) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_closes_its_task_file_as_aborted(
    number: int, hanging: LoopbackServer, start: Any, tmp_path: Path
) -> None:
    process = start(*ASK)
    assert hanging.asked.wait(200)
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert b"interrupted" in err
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.status == "aborted"
    assert (tmp_path / "tasks" / "done" / "TASK-1.md").is_file()
    call = recording.steps[-1]
    assert (call.start.kind, call.status) == ("model", "aborted")
    assert recording.header is not None
    assert recording.header.inputs == {"document": "x"}


def test_an_interrupted_run_with_json_still_prints_json(
    hanging: LoopbackServer, start: Any
) -> None:
    import json

    process = start(*ASK, "--json")
    assert hanging.asked.wait(200)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    assert json.loads(out) == {"error": {"message": "interrupted", "exit_code": 130}}


def test_ctrl_c_twice_ends_at_once_without_a_traceback(hanging: LoopbackServer, start: Any) -> None:
    process = start(*ASK)
    assert hanging.asked.wait(200)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode in (130, -signal.SIGINT)
    assert b"Traceback" not in err, err


def test_a_killed_run_reads_as_interrupted_with_the_step_that_it_had_begun(
    hanging: LoopbackServer, start: Any, cli: Any, tmp_path: Path
) -> None:
    process = start(*ASK)
    assert hanging.asked.wait(200)
    running = TaskStore(tmp_path / "tasks").read(1)
    assert running.status == "running"
    process.kill()
    process.communicate(timeout=200)
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.status == "interrupted"
    assert recording.steps[-1].start.kind == "model"
    assert recording.steps[-1].end is None
    assert "x" in str(recording.steps[-1].start.args["messages"])
    ran = cli("tasks", "list", "--status", "interrupted")
    assert ran.code == 0
    assert "interrupted" in ran.out
    assert "interrupted" in cli("tasks", "show", "1").out
    assert "1 interrupted run in tasks" in cli("doctor").out


def test_a_script_ends_with_the_run_that_is_interrupted(start: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "s.py").write_text(
        f"import os, time\nwith open({str(tmp_path / 'pid.new')!r}, 'w') as f: f.write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'pid.new')!r}, {str(pid_file)!r})\ntime.sleep(60)"
    )
    (tmp_path / "s.xml").write_text(
        '<task name="s" type="script"><description>d</description>'
        f"<command>{sys.executable} '{tmp_path / 's.py'}'</command></task>"
    )
    process = start("run", "--template", "s", "--library", "s.xml", "--handler", "offline")
    wait_until(pid_file.exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert b"Traceback" not in err
    pid = int(pid_file.read_text())
    wait_until(lambda: not is_running(pid))
    assert TaskStore(tmp_path / "tasks").read(1).status == "aborted"


def test_ctrl_c_in_evaluate_sync_is_a_keyboard_interrupt_after_the_file_is_closed(
    hanging: LoopbackServer, tmp_path: Path
) -> None:
    source = """
    from evaluator import Evaluator
    evaluator = Evaluator(handler="wire")
    try:
        evaluator.evaluate_sync("summarise", {"document": "x"})
    except KeyboardInterrupt:
        from evaluator import TaskStore
        print(TaskStore("tasks").read(1).status)
        evaluator.close()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert hanging.asked.wait(200)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert out == b"aborted\n", err
    assert err == b""


def test_ctrl_c_in_a_batch_aborts_each_task_that_runs(
    hanging: LoopbackServer, tmp_path: Path
) -> None:
    source = """
    import asyncio
    from evaluator import Evaluator
    async def main():
        async with Evaluator(handler="wire") as evaluator:
            rows = ({"document": str(n)} for n in range(100))
            async for outcome in evaluator.evaluate_batch("summarise", rows, concurrency=3):
                print(outcome)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: hanging.posts == 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert (out, err) == (b"interrupted\n", b"")
    assert [t.status for t in TaskStore(tmp_path / "tasks").list()] == ["aborted"] * 3


def test_nohup_is_respected(hanging: LoopbackServer, start: Any, tmp_path: Path) -> None:
    process = start(*ASK, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert hanging.asked.wait(200)
    process.send_signal(signal.SIGHUP)
    assert TaskStore(tmp_path / "tasks").read(1).status == "running"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 130


def test_an_interrupted_run_says_how_to_resume_it(
    hanging: LoopbackServer, start: Any, cli: Any
) -> None:
    process = start(*ASK, "--tasks", "my tasks")
    assert hanging.asked.wait(200)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    command = b"resume with: evaluator tasks resume 1 --tasks 'my tasks'\n"
    assert command in err
    hanging.asked.clear()
    process = start("tasks", "resume", "1", "--tasks", "my tasks")
    assert hanging.asked.wait(200)
    process.send_signal(signal.SIGINT)
    assert command in process.communicate(timeout=200)[1]
    hanging.default = Answer("short")
    assert cli("tasks", "resume", "1", "--tasks", "my tasks").out == "short\n"


@pytest.mark.parametrize("max_bytes", [0, 2_000])
def test_a_task_without_a_header_is_not_offered_to_be_resumed(
    max_bytes: int, start: Any, environment: dict[str, str]
) -> None:
    """A full disk: nothing of the task file can be written, or only a part of its header. The control is
    `test_recovery_faults.py`, where later writes fail."""

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

    ask = ("run", "--template", "summarise", "--input", f"document={'x' * 8_000}")
    # Python would write compiled modules that are cut off.
    env = {**environment, "PYTHONDONTWRITEBYTECODE": "1"}
    process = start(*ask, "--handler", "offline", env=env, preexec_fn=limit_files)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 3, err
    assert b"File too large" in err
    assert b"resume with" not in err and b"\ntask file: " not in err


@pytest.mark.parametrize("module", ["click", "evaluator_not_there"])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(tmp_path: Path, module: str) -> None:
    folder = tmp_path / module
    folder.mkdir()
    (folder / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if module == "click":
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    else:  # the control: nothing imports it
        assert done.returncode == 0 and done.stdout.startswith("evaluator")


INTERRUPT_AT_IMPORT = """
import os, signal, sys

class Interrupter:
    names = []

    def find_spec(self, name, path=None, target=None):
        if self.names or name == "evaluator":
            self.names.append(name)
            if len(self.names) == int(os.environ["INTERRUPT_AT"]):
                os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupter())
if os.environ["INTERRUPT_AT"] == "0":
    import atexit
    atexit.register(lambda: print(*Interrupter.names))
"""


def test_ctrl_c_at_any_import_ends_silently(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_AT_IMPORT)

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "evaluator", "templates"],
            env={**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPT_AT": str(at)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )

    whole = run(0)
    assert whole.returncode == 0, whole.stderr
    names = whole.stdout.splitlines()[-1].split()
    begin = names.index("evaluator.__main__") + 1
    # Before its first line only a process without any of our code can be interrupted.
    assert set(names[:begin]) <= {
        "evaluator",
        "__future__",
        "evaluator.lazy_names",
        "evaluator.__main__",
    }
    later = range(begin + 4, len(names), max(1, (len(names) - begin) // 10))
    for at in [*range(begin + 1, begin + 4), *later]:
        ended = run(at)
        assert ended.returncode == 130, (names[at - 1], ended.stderr)
        assert ended.stderr.strip() in ("", "interrupted"), (names[at - 1], ended.stderr)
