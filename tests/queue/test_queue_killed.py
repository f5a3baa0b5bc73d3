"""Workers that are killed at any moment: every entry ends once, attempts add up, and published files are states."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from evaluator.queue import TaskQueue
from evaluator.queue.document import read_document
from evaluator.queue.entries import TERMINAL, entry_number

WORKERS, ENTRIES, KILLS = 4, 80, 8
WORKER = """
import asyncio, os, sys
from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
from evaluator.queue import TaskQueue

folder = sys.argv[1]

async def exclusively(result):
    # Fails if another attempt of this entry is between its start and its end.
    path = f"{folder}/locks/{result.entry.id}"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    import fcntl
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.open(f"{folder}/locks/TWICE", os.O_CREAT | os.O_RDWR)
    await asyncio.sleep(0.005)
    os.close(descriptor)
    return None

evaluator = Evaluator(
    TemplateLibrary.load(f"{folder}/t.xml", shipped=False), "offline",
    backend=SimulatedBackend(script=lambda request: "fine"), tasks_dir=f"{folder}/tasks",
)
with TaskQueue(f"{folder}/queue") as queue:
    queue.work_sync(evaluator, workers=2, until_empty=True, verifiers=[exclusively])
"""


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, tmp_path])


def test_every_entry_ends_once_although_workers_are_killed(tmp_path):
    (tmp_path / "locks").mkdir()
    (tmp_path / "t.xml").write_text(
        '<task name="do"><description>Do it</description><instructions>DO</instructions></task>'
    )
    published = tmp_path / "queue" / "task-queue.json"
    with TaskQueue(tmp_path / "queue") as queue:
        queue.configure(max_concurrent=2 * WORKERS)
        for _ in range(ENTRIES):
            queue.add("do it", template="do", max_retries=KILLS)
        queue.publish()
        choose, kills, states = random.Random(1), 0, set()
        workers = [start(tmp_path) for _ in range(WORKERS)]
        while any(worker.poll() is None for worker in workers):
            states.add(published.read_bytes())
            done = queue.stats().entries["done"]
            if kills < KILLS and done >= (kills + 1) * ENTRIES // (KILLS + 2):
                kills += 1
                place = choose.randrange(WORKERS)
                workers[place].kill()
                workers[place].wait()
                workers[place] = start(tmp_path)
            time.sleep(0.01)
        entries = queue.list()
    assert kills == KILLS and [worker.returncode for worker in workers] == [0] * WORKERS
    assert not (tmp_path / "locks" / "TWICE").exists()
    assert [entry_number(entry.id) for entry in entries] == list(range(1, ENTRIES + 1))
    for entry in entries:
        results = [attempt.result for attempt in entry.strategies_tried]
        assert entry.status == "done" and [a.attempt for a in entry.strategies_tried] == list(
            range(1, len(results) + 1)
        )
        assert results[-1].endswith(": fine") and entry.retries == len(results) - 1
        assert all(result.startswith("interrupted: the worker's process ended") for result in results[:-1])
    assert sum(entry.retries for entry in entries) > 0
    # Every published file is valid, and later files do not take an entry back from a terminal state.
    documents = sorted((read_document(data, "q") for data in states), key=_done)
    for earlier, later in pairwise(documents):
        ended = {e.id for e in earlier.tasks if e.status in TERMINAL}
        assert ended <= {e.id for e in later.tasks if e.status in TERMINAL}
    assert read_document(published.read_bytes(), "q").tasks == tuple(entries)


def _done(document) -> int:
    return sum(len(entry.strategies_tried) for entry in document.tasks)
