"""This machine's own trouble ends a session with samples pending; it is no sample's result."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from evaluator import disk
from evaluator.batch import Score, open_batch
from evaluator.batch.scorers import ScorerInput
from tests.batch.conftest import Calls, Run


class Failing:
    """A scorer that fails as a function of the standard library does, once and for one sample."""

    name = "failing"

    def __init__(self, code: int) -> None:
        self.code: int | None = code

    def describe(self) -> dict[str, Any]:
        return {"type": "failing"}

    async def score(self, scored: ScorerInput) -> Score:
        if scored.sample.id == "r5" and self.code is not None:
            raise OSError(self.code, os.strerror(self.code))
        return Score(1.0, True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_a_scorer_that_meets_trouble_leaves_its_sample_pending(
    run: Run, calls: Calls, code: int
) -> None:
    scorer = Failing(code)
    result = run(scorers=[scorer], limits={"concurrency": 2})
    assert result.ended.state == "incomplete" and not result.is_complete
    assert os.strerror(code) in result.ended.reason and "'failing'" in result.ended.reason
    assert result.summary.counts.error == 0 and 0 < result.summary.counts.passed < 10
    assert "r5" not in {found.sample_id for found in result.results()}
    scorer.code = None
    resumed = run(scorers=[scorer], resume=True)
    assert resumed.is_complete and resumed.summary.counts.passed == 10
    assert len(calls) == 10, "the answer was recorded, and is not asked for again"


def test_another_error_of_a_scorer_is_an_error_of_the_sample(run: Run) -> None:
    result = run(scorers=[Failing(errno.ENOENT)])
    assert result.is_complete and result.summary.counts.error == 1


def test_task_files_that_cannot_be_created_end_the_session(
    run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, created = os.open, list[str]()

    def few(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if str(path).startswith("TASK-") and flags & os.O_CREAT:
            if len(created) == 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            created.append(str(path))
        return real(path, flags, *args, **more)

    monkeypatch.setattr(disk, "open", few)
    result = run(limits={"concurrency": 2}, task_files="each")
    assert result.ended.state == "incomplete" and "ulimit -n" in result.ended.reason
    assert (
        len(calls) == 4 and result.summary.counts.passed == 4 and result.summary.counts.error == 0
    )
    monkeypatch.undo()
    resumed = run(resume=True)
    assert resumed.is_complete and len(calls) == 10


def test_a_segment_that_cannot_be_written_ends_the_session(
    run: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, frames = os.pwrite, list[bytes]()

    def few(fd: int, data: bytes, offset: int) -> int:
        if len(frames) == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        frames.append(data)
        return real(fd, data, offset)

    monkeypatch.setattr(disk, "pwrite", few)
    result = run(limits={"concurrency": 2})
    assert result.ended.state == "incomplete" and "No space left" in result.ended.reason
    counts = result.summary.counts
    # The call of the write that failed, and the one beside it.
    assert counts.error == 0 and len(calls) - 2 <= counts.passed <= len(calls) < 10
    monkeypatch.undo()
    resumed = run(resume=True)
    assert resumed.is_complete and len(calls) <= 12
    assert resumed.summary.counts.passed == 10


def test_a_batch_with_few_descriptors_completes_with_a_lower_concurrency(tmp_path: Path) -> None:
    source = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
    from evaluator.batch import NoDisplay, run_batch_sync
    library = TemplateLibrary()
    library.add('<task name="q" type="atomic"><description>d</description><inputs><input name="n"/></inputs>'
                '<instructions>{{ n }}</instructions></task>')
    class Shown(NoDisplay):
        def notice(self, line):
            print("notice:", line)
    evaluator = Evaluator(library, "offline", backend=SimulatedBackend(script=lambda r: "x"), tasks_dir=None)
    rows = [{"id": str(n), "n": n} for n in range(300)]
    result = run_batch_sync("q", rows, evaluator=evaluator, output="batch", limits={"concurrency": 150}, display=Shown())
    print(result.ended.state, result.summary.counts.error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "complete 0" in done.stdout, done
    assert "samples at once instead of 150" in done.stdout and "ulimit -Hn" in done.stdout
    assert len(list(open_batch(tmp_path / "batch").results())) == 300
    assert json.loads((tmp_path / "batch" / "manifest.json").read_text())["state"] == "complete"
