"""Consolidation: the index is current afterwards, one process does it at a time, and a kill makes it due again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from evaluator import GlobalIndex
from evaluator.background import BackgroundTasks
from evaluator.jobs.in_process import DUE_S, ConsolidationLock, ConsolidationWork


@pytest.fixture
def index(tmp_path):
    """An index of two folders, one of which is gone, and of a folder inside the other."""
    path = tmp_path / "index.sqlite"
    for name in ("kept/inner/a.txt", "kept/b.txt", "gone/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words")

    async def fill():
        with GlobalIndex(path) as made:
            for folder in ("kept", "kept/inner", "gone"):
                await made.add_folder(tmp_path / folder, processes=1)

    asyncio.run(fill())
    (tmp_path / "gone" / "c.txt").unlink()
    (tmp_path / "gone").rmdir()
    (tmp_path / "kept" / "b.txt").unlink()
    (tmp_path / "kept" / "new.txt").write_text("more")
    return path


def former(lock, seconds):
    descriptor = lock.acquire()
    os.utime(descriptor, (seconds, seconds))
    os.close(descriptor)


def test_it_merges_folders_and_prunes_what_is_gone(index, tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(ConsolidationWork(index), "consolidate")
            assert task.id[0] == "d" and (await tasks.wait(task.id)).status == "completed"
        with GlobalIndex(index) as found:
            return (await found.stats()).roots

    lock = ConsolidationLock(index)
    assert lock.is_due()
    assert asyncio.run(work()) == {str(tmp_path / "kept"): 2}
    assert not lock.is_due() and lock.is_due(time.time() + DUE_S + 60)
    assert lock.is_due(time.time() - DUE_S - 60)  # the clock was wrong when it completed


class Endless(ConsolidationWork):
    """Never ends by itself."""

    async def _consolidate(self) -> str:
        await asyncio.Event().wait()
        return ""


class Failing(ConsolidationWork):
    async def _consolidate(self) -> str:
        raise OSError("the disk is gone")


def test_a_kill_sets_the_time_back_and_a_second_one_is_refused_meanwhile(index, tmp_path):
    lock = ConsolidationLock(index)
    former(lock, 1_000_000.0)

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(Endless(index), "endless")
            async with asyncio.timeout(200):
                while lock.path.stat().st_mtime == 1_000_000.0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not lock.is_due()
            second = await tasks.wait(tasks.start(ConsolidationWork(index), "second").id)
            assert second.status == "failed" and "another process" in (second.reason or "")
            assert (await tasks.kill(task.id, "enough", timeout_s=200)).status == "killed"

    asyncio.run(work())
    assert lock.path.stat().st_mtime == 1_000_000.0 and lock.is_due()


def test_a_failure_sets_the_time_back(index, tmp_path):
    lock = ConsolidationLock(index)
    former(lock, 1_000_000.0)

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            return await tasks.wait(tasks.start(Failing(index), "failing").id)

    assert asyncio.run(work()).reason == "OSError: the disk is gone"
    assert lock.path.stat().st_mtime == 1_000_000.0


CRASH = """
import os, sys
from pathlib import Path
from evaluator.jobs.in_process import ConsolidationLock
lock = ConsolidationLock(Path(sys.argv[1]))
lock.begin(lock.acquire())
os.kill(os.getpid(), 9)
"""


def test_a_process_that_dies_leaves_the_index_due(index):
    lock = ConsolidationLock(index)
    former(lock, 1_000_000.0)
    assert subprocess.run([sys.executable, "-c", CRASH, index], check=False).returncode == -9
    assert lock.path.stat().st_mtime > 1_000_000.0
    assert lock.is_due() and lock.path.stat().st_mtime == 1_000_000.0
