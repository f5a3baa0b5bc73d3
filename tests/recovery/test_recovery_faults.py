"""A fault at any call that writes a run's or a batch's files loses nothing that was recorded.

`faults.c`, which is compiled here, makes the N-th write, open, rename, fsync, fdatasync, ftruncate, unlink, link or mkdir
below the folder fail (ENOSPC, EIO, EMFILE, once or from then on), or kills the process there. The `evaluator` command
then resumes. Two of five N are tried with one kind of fault, the kinds in turn; EVALUATOR_FAULTS=all tries every N with
every kind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from recovery_cases import COMPOSITE, Case
from recovery_harness import Lab, ModelServer, recordings, root_of, shared_memory, snapshot

from evaluator.batch import open_batch
from evaluator.record import grammar

HERE = Path(__file__).parent
ONCE, FROM_THEN_ON, KILLED_BEFORE, KILLED_AFTER = range(4)
KINDS = [
    (FROM_THEN_ON, errno.ENOSPC),
    (KILLED_BEFORE, 0),
    (ONCE, errno.EIO),
    (KILLED_AFTER, 0),
    (ONCE, errno.EMFILE),
    (ONCE, errno.ENOSPC),
    (FROM_THEN_ON, errno.EIO),
]
PROFILE = '<handler name="wire"><backend>openai_compatible</backend><model>m</model><base_url>{url}</base_url></handler>'
RUN = Case(
    "run",
    '<task name="work" type="sequential"><description>work</description><steps>'
    '<task name="first" type="atomic"><description>first</description></task>'
    '<task name="boss" type="atomic"><description>delegate [boss]</description><tools><tool name="helper"/></tools></task>'
    '<task name="more" type="atomic"><description>more</description></task>'
    '<task name="last" type="atomic"><description>last {{ steps.boss.content }}</description></task></steps></task>'
    '<task name="helper" type="atomic"><description>help [helper]</description></task>',
    "work",
    {"[boss]": [[("helper", {})]]},
)
BATCH = Case(
    "batch",
    '<task name="quiz" type="atomic"><description>quiz</description><inputs><input name="n"/></inputs>'
    "<instructions>say {{ n }}</instructions></task>",
    "quiz",
)
ROWS = 4


@dataclass
class Ended:
    code: int
    calls: int
    out: str
    err: str


class Commands:
    """The forking process, started with the preload library."""

    def __init__(self, library: Path, first: dict[str, Any]) -> None:
        environment = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "faults_child.py"), json.dumps(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"LD_PRELOAD": str(library)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(
        self, folder: Path, root: Path, *argv: str, at: int = 0, mode: int = 0, error: int = 0
    ) -> Ended:
        assert self._process.stdin is not None and self._process.stdout is not None
        out = str(folder / "shown")
        job = {
            "argv": argv,
            "folder": str(folder),
            "root": str(root),
            "out": out,
            "at": at,
            "mode": mode,
            "error": error,
        }
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        texts = [Path(f"{out}.{name}").read_text() for name in ("out", "err")]
        ended = Ended(answer["code"], answer["calls"], *texts)
        assert "Traceback" not in ended.err and "bug of evaluator" not in ended.err, ended
        return ended


@pytest.fixture(scope="module")
def commands(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler (cc) and Linux: faults are injected by a preload library")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    built = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(HERE / "faults.c"),
        "-ldl",
    ]
    subprocess.run(built, check=True)
    with Commands(library, lab.place(COMPOSITE).job()) as made:
        yield made


@dataclass
class Try:
    """One folder in which a command meets a fault and is resumed."""

    server: ModelServer
    commands: Commands
    folder: Path
    reference: Any = None

    case: ClassVar[Case]
    root: ClassVar[str]
    tasks: ClassVar[str]
    start: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self.key = self.server.new_key(self.case)
        (self.folder / "handlers").mkdir(parents=True)
        (self.folder / "handlers" / "wire.xml").write_text(
            PROFILE.format(url=self.server.url(self.key))
        )
        (self.folder / "templates").mkdir()
        (self.folder / "templates" / "t.xml").write_text(f"<library>{self.case.xml}</library>")
        (self.folder / "rows.jsonl").write_text(
            "".join(f'{{"id": "r{n}", "n": "{n}"}}\n' for n in range(ROWS))
        )

    def do(self, *argv: str, **fault: int) -> Ended:
        return self.commands.run(self.folder, self.folder / self.root, *argv, **fault)

    def posts(self) -> Counter[str]:
        return Counter(self.server.posts[self.key])

    def answered(self) -> Counter[str]:
        """The requests whose answers are recorded."""
        return snapshot(self.case, recordings(self.folder / self.tasks)).answered

    def check(self, first: Ended, mode: int) -> None:
        """Resumes, and compares with what was recorded before."""
        answered, posts = self.answered(), self.posts()
        assert sum(posts.values()) - sum(answered.values()) <= 1, (
            "a call was made after one that is not recorded"
        )
        again = self.resume(first)
        assert again.code == 0, (first, again)
        assert not [key for key in answered if self.posts()[key] > posts[key]], (
            "a call with a recorded result was repeated"
        )
        assert not answered - self.answered(), "a recorded result was lost"
        assert (first.code == -signal.SIGKILL) == (mode in (KILLED_BEFORE, KILLED_AFTER)), first
        shutil.rmtree(self.folder)

    def resume(self, first: Ended) -> Ended:
        """Checks what a first command without an error left, and does the rest."""
        raise NotImplementedError

    def result(self, ended: Ended) -> Any:
        """The result of a command that ended without a fault."""
        raise NotImplementedError


class RunTry(Try):
    case, root, tasks = RUN, "tasks", "tasks"
    start = ("run", "--template", "work", "--handler", "wire", "--tasks", "tasks", "--sync", "step")

    def resume(self, first: Ended) -> Ended:
        task = root_of(self.folder / "tasks") if (self.folder / "tasks").exists() else None
        if first.code == 0:
            assert first.out == self.reference
        elif first.code > 0:
            assert first.code == 3 and (
                task is None or f"resume with: evaluator tasks resume {task}\n" in first.err
            ), first
        if task is None:
            again = self.do(*self.start)
        else:
            again = self.do("tasks", "resume", str(task), "--tasks", "tasks", "--sync", "step")
        assert again.out == self.reference, again
        for path in self.folder.glob("tasks/*/TASK-*.md"):
            # An empty file of a process that was killed before it began its task is no task.
            if path.stat().st_size:
                assert (
                    path.parent.name == "done"
                    and grammar.decode(path.read_bytes(), str(path)).tail == "clean"
                ), path
        return again

    def result(self, ended: Ended) -> Any:
        return ended.out


class BatchTry(Try):
    case, root, tasks = BATCH, "b", "b/tasks"
    start = (
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.jsonl",
        "--handler",
        "wire",
        "--output",
        "b",
        "--concurrency",
        "1",
        "--progress",
        "none",
    )

    def resume(self, first: Ended) -> Ended:
        batch = self.folder / "b"
        if first.code == 0:
            assert self.results() == self.reference
        elif first.code > 0:
            assert first.code in (3, 5), first
        is_there = (batch / "manifest.json").exists()
        again = (
            self.do("batch", "--resume", "b", "--progress", "none")
            if is_there
            else self.do(*self.start)
        )
        assert self.results() == self.reference, (first, again)
        return again

    def result(self, ended: Ended) -> Any:
        return self.results()

    def results(self) -> dict[str, Any]:
        found = open_batch(self.folder / "b")
        assert found.manifest["state"] == "complete"
        results = {
            result.sample_id: (result.verdict, result.content, result.usage)
            for result in found.results()
        }
        assert len(results) == ROWS
        return results


def points(calls: int) -> list[tuple[int, int, int]]:
    """Number of the call, mode and error of each fault."""
    if os.environ.get("EVALUATOR_FAULTS") == "all":
        return [(at, mode, error) for at in range(1, calls + 1) for mode, error in KINDS]
    # Of calls that alternate, as a write and its sync do, both are among these.
    tried = [at for at in range(1, calls + 1) if at % 5 in (0, 2)]
    return [(at, *KINDS[n % len(KINDS)]) for n, at in enumerate(tried)]


@pytest.mark.parametrize("tried", [RunTry, BatchTry])
def test_a_fault_at_any_call_loses_nothing_and_repeats_nothing(
    commands: Commands, tried: type[Try], tmp_path_factory: pytest.TempPathFactory
) -> None:
    problems, felt = list[str](), 0
    parent = shared_memory() or tmp_path_factory.mktemp("faults")
    with (
        ModelServer() as server,
        tempfile.TemporaryDirectory(prefix="evaluator-faults-", dir=parent) as root,
    ):
        whole = tried(server, commands, Path(root, "whole"))
        ended = whole.do(*whole.start)
        assert ended.code == 0, ended
        reference = whole.result(ended)
        assert ended.calls >= 60
        tries = points(ended.calls)
        for at, mode, error in tries:
            one = tried(server, commands, Path(root, f"{at}-{mode}-{error}"), reference)
            first = one.do(*one.start, at=at, mode=mode, error=error)
            felt += first.code != 0
            try:
                one.check(first, mode)
            except AssertionError as problem:
                problems.append(
                    f"call {at} of {ended.calls}, mode {mode}, error {error}: {problem}"
                )
    assert felt > len(tries) / 2, "most faults end the command with an error"
    assert not problems, f"{len(problems)} of {ended.calls}:\n" + "\n\n".join(problems[:8])
