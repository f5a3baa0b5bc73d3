"""The process that forks one process for each session of a batch that is killed, after it has run one itself.

It reads jobs as lines of JSON and answers each with the exit code, negative for a signal.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from recovery_child import Effects, settle

from evaluator import (
    Evaluator,
    ProviderError,
    RecordError,
    SimulatedBackend,
    TaskStore,
    TemplateLibrary,
    disk,
    run_batch,
)
from evaluator.batch import open_batch

LIBRARY = """<library>
  <task name="ask"><description>Answer.</description><inputs><input name="what"/></inputs>
    <instructions>About {{ what }}</instructions><output_format type="json" schema="object"/></task>
  <task name="judge"><description>Judge.</description><inputs><input name="reply"/></inputs>
    <instructions>Judge {{ reply }}</instructions>
    <output_format type="json" schema="boolean"/></task>
</library>"""
ROWS = [{"id": name, "what": name, "target": "kept"} for name in ("tin", "refused", "lead", "zinc")]


class BatchEffects(Effects):
    """Also the lines of results, and links."""

    def install(self) -> None:
        super().install()
        write = disk.write
        disk.link = self._simple("link", disk.link)
        disk.write = lambda fd, data: self.happen(
            "results", len(data), lambda: write(fd, data), lambda: write(fd, data[: len(data) // 2])
        )


class Model:
    """Notes each call in a file, and answers: `refused` is an error, a judge says true."""

    def __init__(self, folder: str) -> None:
        self.calls = os.open(f"{folder}/calls.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, request: Any) -> Any:
        prompt = request.messages[-1].content
        os.write(self.calls, f"{json.dumps(prompt)}\n".encode())
        if "refused" in prompt:
            return ProviderError("no such model", kind="bad_request")
        if prompt.startswith("Judge"):
            return "true"
        return json.dumps({"answer": f"{prompt.split()[1]} is kept"})


def recorded(path: Path) -> dict[str, list[Any]]:
    """What the tasks on the disk say of each prompt: how often it was begun, and how it ended."""
    found: dict[str, list[Any]] = {}
    store = TaskStore(path / "tasks")
    for task in store.list():
        try:
            recording = store.read(task.id)
        except RecordError as error:
            return {"damaged": [str(error)]}
        for step in recording.steps:
            if step.start.kind == "model":
                prompt = step.start.args["messages"][-1]["content"]
                found.setdefault(prompt, []).append([recording.status, step.status])
    return found


def results(path: Path) -> list[Any]:
    return sorted(
        [
            each.sample_id,
            each.verdict.value,
            each.content,
            each.parsed,
            each.failure and each.failure.kind,
            {name: score.value for name, score in each.scores.items()},
            each.usage.to_dict(),
        ]
        for each in open_batch(path).results()
    )


async def batch(folder: str, *, resume: bool, sync: str) -> Any:
    library = TemplateLibrary()
    library.add(LIBRARY)
    evaluator = Evaluator(
        library,
        model="simulated/x",
        backend=SimulatedBackend(script=Model(folder)),
        tasks_dir=None,
        sync=sync,
        notice=lambda _: None,
    )
    return await run_batch(
        "ask",
        ROWS,
        evaluator=evaluator,
        inputs={"what": "what"},
        scorers=[
            "includes",
            {"type": "graded", "template": "judge", "inputs": {"reply": "output"}},
        ],
        limits={"concurrency": 2},
        output=f"{folder}/batch",
        task_files="packed",
        display="none",
        resume=resume,
    )


def session(job: dict[str, Any]) -> None:
    folder = job["folder"]
    path = Path(folder) / "batch"
    effects = BatchEffects(f"{folder}/batch", job.get("crash"), None, lambda: None)
    before = recorded(path) if job.get("resume") else {}
    effects.install()
    done = asyncio.run(batch(folder, resume=bool(job.get("resume")), sync=job["sync"]))
    said = {
        "complete": done.is_complete,
        "before": before,
        "results": results(path),
        "lines": len((path / "results.jsonl").read_bytes().splitlines()),
        "effects": effects.seen,
    }
    Path(job["out"]).write_text(json.dumps(said))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # What a process imports, reads and compiles once would else be done by each of hundreds.
        asyncio.run(batch(folder, resume=False, sync="off"))
    settle()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            try:
                session(json.loads(line))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answers.write(json.dumps(code).encode() + b"\n")


if __name__ == "__main__":
    main()
