"""The engine of processes from the command line: its output, and its processes after the loss of their parent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

from evaluator.batch import open_batch
from evaluator.record.store import TaskStore

TEMPLATE = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
SCORERS = """
import fcntl, os, threading

def talks(output):
    print("from the scorer")
    return open("relative.txt").read() == "here"

def holds(output):
    if os.path.exists("released"):
        return True
    lock = open(f"held-{os.getpid()}", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open("started", "wb", buffering=0) as started:
        started.write(b".")
    threading.Event().wait()
"""
DEFINITION = """
template = "quiz"
rows = "rows.jsonl"
handlers = ["offline"]
engine = "processes"
workers = 2
output = "b"
scorers = ["checks.py:SCORER"]
"""


def prepare(folder: Path, scorer: str, rows: int) -> None:
    (folder / "templates").mkdir()
    (folder / "templates" / "quiz.xml").write_text(TEMPLATE)
    (folder / "checks.py").write_text(SCORERS)
    (folder / "relative.txt").write_text("here")
    (folder / "batch.toml").write_text(DEFINITION.replace("SCORER", scorer))
    lines = [json.dumps({"id": f"r{n}", "question": f"question {n}"}) for n in range(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))


def test_a_definition_chooses_the_engine_and_standard_output_has_the_summary_alone(cli: Any, tmp_path: Path) -> None:
    prepare(tmp_path, "talks", 4)
    ran = cli("batch", "batch.toml", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["counts"]["passed"] == 4
    assert ran.err.count("from the scorer") == 4
    arguments = open_batch(tmp_path / "b").manifest["arguments"]
    assert (arguments["engine"], arguments["workers"]) == ("processes", 2)
    # The flag replaces the engine of the file, together with its number of processes.
    again = cli("batch", "--resume", "b", "--engine", "local", "--json")
    assert (again.code, json.loads(again.out)["ran"]) == (0, 0)


def test_workers_need_an_engine_that_has_them(cli: Any, tmp_path: Path) -> None:
    prepare(tmp_path, "talks", 1)
    ran = cli("batch", "--template", "quiz", "--rows", "rows.jsonl", "--workers", "2")
    assert ran.code == 2 and "name one as engine" in ran.err


def test_processes_end_with_a_killed_parent_and_the_batch_resumes(start: Any, cli: Any, tmp_path: Path) -> None:
    prepare(tmp_path, "holds", 6)
    os.mkfifo(tmp_path / "started")
    # Also open for writing, so that reading never ends.
    started = os.open(tmp_path / "started", os.O_RDWR)
    try:
        process = start("batch", "batch.toml", "--progress", "none")
        assert len(os.read(started, 1) + os.read(started, 1)) == 2
    finally:
        os.close(started)
    process.send_signal(signal.SIGKILL)
    held = sorted(tmp_path.glob("held-*"))
    assert len(held) == 2
    for path in held:
        with open(path) as file:
            # Returns when the process that holds the lock has ended.
            fcntl.flock(file, fcntl.LOCK_EX)
    calls = {task.id for task in TaskStore(tmp_path / "b" / "tasks").list() if task.status == "completed"}
    (tmp_path / "released").touch()
    ran = cli("batch", "--resume", "b", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["counts"]["passed"] == 6
    results = list(open_batch(tmp_path / "b").results())
    # A call that was answered before the kill is not made again.
    assert calls and calls <= {result.task_id for result in results}
