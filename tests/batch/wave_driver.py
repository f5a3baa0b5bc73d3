"""Runs sessions of a batch with provider batches in children that are killed (SIGKILL) at a chosen effect or time.

A `Driver` is one process that has run a session itself, and forks a child for each session: a session then costs
hundredths of a second. `python tests/batch/wave_driver.py` is that process; it reads a command a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.provider_server import ProviderServer

ROOT = Path(__file__).parents[2]
FORMATS = ("openai", "anthropic", "gemini", "mistral")
OPENAI = """<handler name="p"><backend>openai_compatible</backend><model>openai/gpt-4o-mini</model>
<base_url>{url}</base_url><limits max_output_tokens="50"/></handler>"""
LITELLM = """<handler name="p"><backend>litellm</backend><model>{model}</model><base_url>{url}</base_url>
{prices}<limits max_output_tokens="50"/></handler>"""
ANTHROPIC = LITELLM.format(model="anthropic/claude-haiku-4-5", url="{url}", prices="")
GEMINI = LITELLM.format(model="gemini/gemini-2.5-flash", url="{url}", prices="")
MISTRAL = LITELLM.format(
    model="mistral/mistral-small", url="{url}", prices='<prices input="0.05" output="0.15"/>'
)
PROFILES = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI, "mistral": MISTRAL}
ONE = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
TWO = (
    '<task name="quiz" type="sequential"><description>Ask and ask again</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs><steps>'
    '<task type="atomic" name="first"><description>First</description><instructions>{{ question }}</instructions></task>'
    '<task type="atomic" name="last"><description>Last</description>'
    "<instructions>again: {{ question }}</instructions></task></steps></task>"
)


def write_project(folder: Path, url: str, format: str, rows: int, template: str = ONE) -> None:
    """The files of a batch: rows r0, r1, … that ask `x`, `xx`, …; the right answer is the length."""
    (folder / "handlers").mkdir(parents=True)
    profile = PROFILES[format]
    url = url if format == "openai" else url.removesuffix("/v1")
    (folder / "handlers" / "p.xml").write_text(profile.format(url=url))
    (folder / "quiz.xml").write_text(template)
    lines = [{"id": f"r{n}", "question": "x" * (n + 1), "target": str(n + 1)} for n in range(rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def hurry() -> None:
    """Waits for a provider take no time."""
    from evaluator.batch import submissions, waves

    waves.POLL_S = 0.001
    submissions.SETTLE_S = 0.0
    submissions.RETRY_AFTER_S = (0.0, 0.0, 0.0)


@lru_cache(maxsize=4)
def load_library(template: str) -> Any:
    """The library of a template, loaded once for all children."""
    from evaluator import TemplateLibrary

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quiz.xml"
        path.write_text(template)
        return TemplateLibrary.load(path)


def run_session(folder: Path, **options: Any) -> Any:
    """One session of the batch in `folder`; it resumes an earlier one."""
    from evaluator import Evaluator, run_batch

    output = folder / "batch"
    os.chdir(folder)
    library = load_library((folder / "quiz.xml").read_text())
    evaluator = Evaluator(library, handler="p", tasks_dir=None, trust=True)
    options = {
        "provider_batch": True,
        "wait": True,
        "scorers": ["exact"],
        "display": "none",
        **options,
    }
    work = run_batch(
        "quiz",
        "rows.jsonl",
        evaluator=evaluator,
        output=output,
        resume=(output / "manifest.json").exists(),
        **options,
    )
    return asyncio.run(work)


def _count_effects(kill_at: int | None, every: bool) -> list[str]:
    """Counts effects from now on, and kills this process before the one with the number `kill_at`.

    `every`: each change of the disk is one, too; otherwise entries of the log, requests to the provider, and renamed
    files.
    """
    from evaluator import disk
    from evaluator.batch.wave_log import WaveLog
    from evaluator.models.batch_api import BatchApi

    seen: list[str] = []

    def effect(name: str) -> None:
        if len(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(name)

    add = WaveLog.add
    opened = BatchApi._opened

    def add_counted(self: Any, number: int, event: str, **fields: Any) -> Any:
        effect(event)
        return add(self, number, event, **fields)

    class Opened:
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            self.inner = opened(*arguments, **keywords)
            self.name = f"{arguments[1]} {arguments[2].split('/')[-1].split('?')[0]}"

        async def __aenter__(self) -> Any:
            effect(self.name)
            return await self.inner.__aenter__()

        async def __aexit__(self, *error: Any) -> Any:
            return await self.inner.__aexit__(*error)

    WaveLog.add = add_counted
    BatchApi._opened = lambda *a, **k: Opened(*a, **k)
    names = (
        ("pwrite", "write", "fsync", "fdatasync", "rename", "remove", "ftruncate")
        if every
        else ("rename",)
    )
    for name in names:
        inner = getattr(disk, name)

        def counted(*arguments: Any, name: str = name, inner: Any = inner, **keywords: Any) -> Any:
            effect(name)
            return inner(*arguments, **keywords)

        setattr(disk, name, counted)
    return seen


def _child(command: dict[str, Any]) -> None:
    seen = _count_effects(command.get("kill_at"), command.get("every", False))
    hurry()
    result = run_session(Path(command["folder"]), **command.get("options", {}))
    costs = [sample.usage.cost_usd for sample in result.results()]
    found = {
        "state": result.ended.state,
        "reason": result.ended.reason,
        "effects": seen,
        "answers": {sample.sample_id: sample.content for sample in result.results()},
        "cost": None if None in costs else sum(costs),
    }
    (Path(command["folder"]) / "result.json").write_text(json.dumps(found))


def _warm_up() -> None:
    """Runs sessions in this process, so that children find everything imported and compiled."""
    from evaluator.record import step_log

    hurry()
    with tempfile.TemporaryDirectory() as place, ProviderServer() as server:
        for format in FORMATS:
            folder = Path(place) / format
            write_project(folder, server.url, format, 1)
            run_session(folder)
        os.chdir(ROOT)
    # A child has no threads of this process.
    step_log._disk_threads().shutdown()
    step_log._disk_threads.cache_clear()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(30)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()


def main() -> None:
    _warm_up()
    for line in sys.stdin:
        command = json.loads(line)
        load_library((Path(command["folder"]) / "quiz.xml").read_text())
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _child(command)
                code = 0
            except BaseException as error:
                (Path(command["folder"]) / "error.txt").write_text(
                    f"{type(error).__name__}: {error}"
                )
            finally:
                os._exit(code)
        if command.get("kill_after_s") is not None:
            time.sleep(command["kill_after_s"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Driver:
    """Children are forked from one process, inside `with`."""

    def __enter__(self) -> Driver:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def session(self, folder: Path, **command: Any) -> int:
        """The exit code of a session: 0, 1 after an error, -9 if it was killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), **command}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


if __name__ == "__main__":
    main()
