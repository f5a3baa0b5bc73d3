"""Scripts that hang, fork, print without end or die: stopped, told apart, with what they printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator import TaskError, TaskStore
from tests.leftovers import is_running
from tests.patience import with_enough_time

SCRIPT = """<task name="s" type="script"><description>d</description>
<inputs><input name="stdin" type="string" default=""/></inputs>
<command>{python} '{file}'</command><timeout>{timeout}</timeout></task>"""


@pytest.fixture
def run_script(make_evaluator: Any, tmp_path: Path) -> Any:
    def run(source: str, *, timeout: float = 100, inputs: dict[str, Any] | None = None) -> Any:
        file = tmp_path / "s.py"
        file.write_text(source)
        xml = SCRIPT.format(python=sys.executable, file=file, timeout=timeout)
        return make_evaluator(xml).evaluate_sync("s", inputs or {})

    return run


def recorded(tmp_path: Path, task_id: int = 1) -> Any:
    (step,) = [
        s for s in TaskStore(tmp_path / "tasks").read(task_id).steps if s.start.kind == "script"
    ]
    return step


def test_a_script_that_hangs_is_stopped_at_its_time_limit(run_script: Any, tmp_path: Path) -> None:
    limits: list[float] = []

    def attempt(limit_s: float) -> Any:
        limits.append(limit_s)
        return run_script(
            "import time; print('begun', flush=True); time.sleep(600)", timeout=limit_s
        )

    error = with_enough_time(attempt, lambda error: error.content)
    assert isinstance(error, TaskError)
    assert (error.type, error.reason) == ("RESOURCE_EXHAUSTION", "execution_timeout")
    assert f"{limits[-1]:g} s" in error.message
    assert error.content == "begun\n"
    assert recorded(tmp_path, len(limits)).end.output["stdout"] == "begun\n"


def test_a_script_that_ignores_signals_is_stopped_all_the_same(run_script: Any) -> None:
    source = """
import signal, time
for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)
time.sleep(600)
"""
    assert run_script(source, timeout=0.5).reason == "execution_timeout"


def test_processes_that_a_script_leaves_behind_are_ended_with_it(run_script: Any) -> None:
    # Ten children, every second one in a session of its own, all holding stdout open.
    source = """
import os, time
for n in range(10):
    child = os.fork()
    if child == 0:
        if n % 2: os.setsid()
        time.sleep(120)
        os._exit(0)
    print(child)
"""
    result = run_script(source, timeout=100).unwrap()
    pids = [int(p) for p in result.content.split()]
    assert len(pids) == 10
    assert [p for p in pids if is_running(p)] == []


def test_a_script_that_prints_50_MB_is_cut_with_a_warning(run_script: Any, tmp_path: Path) -> None:
    source = "import sys\nfor _ in range(50): sys.stdout.write('x' * 999_999 + '\\n')\nsys.stderr.write('done')"
    outcome = run_script(source, timeout=100)
    kept = len(outcome.content)
    assert 0 < kept < 50_000_000
    assert outcome.content.startswith("x" * 1000)
    warnings = " ".join(outcome.notes["warnings"])
    assert any(word in warnings for word in ("cut", "too much")), outcome
    assert recorded(tmp_path).end.output["truncated"] or recorded(tmp_path).end.output["overrun"]


def test_a_script_that_fails_says_its_exit_code_and_its_last_line(
    run_script: Any, tmp_path: Path
) -> None:
    error = run_script(
        "import sys; print('half'); sys.stderr.write('first\\nno disk\\n'); sys.exit(3)"
    )
    assert isinstance(error, TaskError)
    assert error.reason == "tool_failure"
    assert "exit code 3" in error.message
    assert "no disk" in error.message
    assert error.content == "half\n"
    assert (error.details["exit_code"], error.details["stderr"]) == (3, "first\nno disk\n")
    assert error.location is not None
    assert error.location.file == str(tmp_path / "templates" / "t.xml")


@pytest.mark.parametrize(("name", "number"), [("SIGKILL", 9), ("SIGSEGV", 11), ("SIGTERM", 15)])
def test_a_script_that_dies_by_a_signal_is_told_apart(
    name: str, number: int, run_script: Any
) -> None:
    error = run_script(
        f"import os, signal\nprint('half', flush=True)\nos.kill(os.getpid(), signal.{name})"
    )
    assert isinstance(error, TaskError)
    assert "signal" in error.message
    assert str(number) in error.message or name in error.message
    assert str(error.details["signal"]) in (str(number), name)
    assert error.content == "half\n"


def test_a_script_that_prints_no_text_is_kept(run_script: Any) -> None:
    result = run_script(r"import sys; sys.stdout.buffer.write(b'a\xff\xfe\x00b')").unwrap()
    assert result.content.startswith("a")
    assert result.content.endswith("b")


def test_a_script_that_reads_nothing_does_not_block_on_a_large_input(run_script: Any) -> None:
    assert run_script("print('ok')", inputs={"stdin": "x" * 5_000_000}).unwrap().content == "ok\n"


def test_a_program_that_is_missing_is_named(make_evaluator: Any) -> None:
    xml = '<task name="s" type="script"><description>d</description><command>no-such-program-here</command></task>'
    error = make_evaluator(xml).evaluate_sync("s")
    assert isinstance(error, TaskError)
    assert error.reason == "tool_failure"
    assert "no-such-program-here" in error.message
    assert error.location is not None


def test_a_value_cannot_add_an_argument_or_reach_a_shell(
    make_evaluator: Any, tmp_path: Path
) -> None:
    file = tmp_path / "argv.py"
    file.write_text("import sys; print(sys.argv[1:])")
    xml = f"""<task name="s" type="script"><description>d</description><inputs><input name="v"/></inputs>
    <command>{sys.executable} '{file}' {{{{ v }}}} last</command></task>"""
    hostile = f"a b; touch {tmp_path}/owned $(id) `id` | cat"
    result = make_evaluator(xml).evaluate_sync("s", {"v": hostile}).unwrap()
    assert result.content == f"{[hostile, 'last']}\n"
    assert not os.path.exists(tmp_path / "owned")
