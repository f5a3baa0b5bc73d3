"""Several processes from the command line: the engine, its processes after the loss of their parent, and shards."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from evaluator import TaskStore
from evaluator.batch import open_batch
from tests.cli.conftest import PROGRAM

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "use-several-machines.md"

TEMPLATE = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
SCORERS = """
import fcntl, os, pathlib, threading

def talks(output):
    print("from the scorer")
    return pathlib.Path("relative.txt").read_text() == "here"

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


def test_a_definition_chooses_the_engine_and_standard_output_has_the_summary_alone(
    process: Any, tmp_path: Path
) -> None:
    prepare(tmp_path, "talks", 4)
    ran = process("batch", "batch.toml", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["counts"]["passed"] == 4
    assert ran.err.count("from the scorer") == 4
    arguments = open_batch(tmp_path / "b").manifest["arguments"]
    assert (arguments["engine"], arguments["workers"]) == ("processes", 2)
    # The flag replaces the engine of the file, together with its number of processes.
    again = process("batch", "--resume", "b", "--engine", "local", "--json")
    assert (again.code, json.loads(again.out)["ran"]) == (0, 0)


def test_workers_need_an_engine_that_has_them(cli: Any, tmp_path: Path) -> None:
    prepare(tmp_path, "talks", 1)
    ran = cli("batch", "--template", "quiz", "--rows", "rows.jsonl", "--workers", "2")
    assert ran.code == 2 and "name one as engine" in ran.err


def test_processes_end_with_a_killed_parent_and_the_batch_resumes(
    start: Any, process: Any, tmp_path: Path
) -> None:
    prepare(tmp_path, "holds", 6)
    os.mkfifo(tmp_path / "started")
    # Also open for writing, so that reading never ends.
    started = os.open(tmp_path / "started", os.O_RDWR)
    try:
        killed = start("batch", "batch.toml", "--progress", "none")
        assert len(os.read(started, 1) + os.read(started, 1)) == 2
    finally:
        os.close(started)
    killed.send_signal(signal.SIGKILL)
    held = sorted(tmp_path.glob("held-*"))
    assert len(held) == 2
    for path in held:
        with open(path) as file:
            # Returns when the process that holds the lock has ended.
            fcntl.flock(file, fcntl.LOCK_EX)
    calls = {
        task.id for task in TaskStore(tmp_path / "b" / "tasks").list() if task.status == "completed"
    }
    (tmp_path / "released").touch()
    ran = process("batch", "--resume", "b", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["counts"]["passed"] == 6
    results = list(open_batch(tmp_path / "b").results())
    # A call that was answered before the kill is not made again.
    assert calls and calls <= {result.task_id for result in results}


def test_the_documented_job_array_and_its_merge_give_the_numbers_of_one_batch(
    cli: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    prepare(tmp_path, "talks", 10)
    (tmp_path / "quiz.toml").write_text(
        'template = "quiz"\nrows = "rows.jsonl"\nhandlers = ["offline"]\nscorers = ["checks.py:talks"]\n'
        'thresholds = ["accuracy >= 0.5"]\n'
    )
    [script] = re.findall(
        r"```bash\n(#!/bin/bash\n.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "quiz.sbatch").write_text(script)
    # Stands in for Slurm's: runs the step here.
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text('#!/bin/sh\nexec "$@"\n')
    srun.chmod(0o755)
    path = os.pathsep.join(
        [str(srun.parent), str(Path(PROGRAM).parent), environment.get("PATH", os.defpath)]
    )

    def task(number: int) -> subprocess.Popen[bytes]:
        slurm = {"PATH": path, "SLURM_ARRAY_TASK_ID": str(number)}
        return subprocess.Popen(
            ["bash", "quiz.sbatch"],
            cwd=tmp_path,
            env=environment | slurm,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(process: subprocess.Popen[bytes]) -> str:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err.decode()
        return out.decode()

    for process in [task(number) for number in (1, 2, 3)]:
        end(process)
    early = cli("batch", "merge", *sorted((tmp_path / "shards").iterdir()), "-o", "early", "--json")
    assert early.code == 5 and "incomplete: missing shards: 4/4" in early.err
    for process in [task(4), task(2)]:
        # The second one is a job that Slurm has requeued.
        end(process)
    merged = cli(
        "batch", "merge", *sorted((tmp_path / "shards").iterdir()), "-o", "merged", "--json"
    )
    assert cli("batch", "quiz.toml", "--output", "whole").code == 0
    whole = cli("summary", "whole", "--json")
    assert (merged.code, whole.code) == (0, 0), merged.err
    counts = [json.loads(ran.out)["summary"]["counts"] for ran in (merged, whole)]
    assert counts[0] == counts[1] and counts[0]["passed"] == 10
    assert [each["status"] for each in json.loads(merged.out)["thresholds"]] == ["met"]
