"""Workers of a queue that are killed (SIGKILL) at random, and what has to be true in the end.

Every entry ends once, with attempts that add up; no entry runs twice at the same time; each task
file belongs to one attempt; every published file that was seen is a state that the queue had at one
moment. `killed` raises AssertionError otherwise. The database logs each version of each entry for
that, with a trigger.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.jobs.document import document_bytes, read_document
from evaluator.jobs.entries import QueueDocument, entry_id
from evaluator.queue import QueueEntry, TaskQueue

TEXT = "write the daily report"
TEMPLATE = (
    '<task name="do"><description>Write the daily '
    "report</description><instructions>DO</instructions></task>"
)
WORKER = """
import asyncio, fcntl, os, sys
from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
from evaluator.queue import TaskQueue

folder, entries_at_once, latency = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

async def exclusively(result):
    # Another attempt of this entry that is between its start and its end holds the lock.
    descriptor = os.open(f"{folder}/locks/{result.entry.id}", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.open(f"{folder}/locks/TWICE", os.O_CREAT | os.O_RDWR)
    await asyncio.sleep(latency / 10)
    os.close(descriptor)
    return None

evaluator = Evaluator(
    TemplateLibrary.load(f"{folder}/t.xml", shipped=False), "offline",
    backend=SimulatedBackend(script=lambda request: "fine", latency_s=latency), tasks_dir=f"{folder}/tasks",
)
with TaskQueue(f"{folder}/queue") as queue:
    queue.work_sync(evaluator, workers=entries_at_once, until_empty=True, verifiers=[exclusively])
"""
_RESULT = re.compile(
    r"(?P<task>TASK-\d+): fine \(simulated\)(?: \(interrupted (?P<times>once|\d+)(?: times)?\))?"
)
LOG = """
CREATE TABLE version (sequence INTEGER PRIMARY KEY, document TEXT);
CREATE TRIGGER first_version AFTER INSERT ON entry
BEGIN INSERT INTO version (document) VALUES (new.document); END;
CREATE TRIGGER entry_version AFTER UPDATE OF document ON entry
WHEN new.document IS NOT old.document BEGIN INSERT INTO version (document) VALUES (new.document); END;
"""


@dataclass(frozen=True)
class Killed:
    """How many workers were killed, the attempts that this cost, and the published files that were
    checked.
    """

    kills: int
    attempts_lost: int
    files_checked: int
    seconds: float


def fill(folder: Path, entries: int, workers: int, *, log: bool = False) -> TaskQueue:
    """A queue with pending entries; with `log`, its database logs their versions."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.xml").write_text(TEMPLATE, encoding="utf-8")
    queue = TaskQueue(folder / "queue")
    if log:
        with closing(sqlite3.connect(folder / "queue" / "queue.sqlite")) as database:
            database.executescript(LOG)
    text = document_bytes(
        QueueDocument(
            last_id=entry_id(entries),
            tasks=tuple(
                QueueEntry(
                    id=entry_id(n),
                    description=TEXT,
                    goal=TEXT,
                    type="unknown",
                    status="pending",
                    retries=0,
                    max_retries=1000,
                    added_at="2026-03-08T09:00:00Z",
                )
                for n in range(1, entries + 1)
            ),
            max_concurrent=workers,
        )
    )
    (folder / "in.json").write_bytes(text)
    queue.import_file(folder / "in.json")
    queue.publish()
    return queue


def killed(
    folder: Path,
    entries: int,
    *,
    processes: int,
    at_once: int = 1,
    latency_s: float = 0.2,
    kills: int | None = None,
) -> Killed:
    """Runs `entries` with `processes` workers that are killed and replaced again and again.

    Without `kills` a random one about once a second, else that many times one that runs an entry,
    spread over the entries. Raises: AssertionError.
    """
    choose, done_kills, started = random.Random(1), 0, time.monotonic()
    files: dict[str, Mapping[str, str]] = {}
    with fill(folder, entries, processes * at_once, log=True) as queue:
        (folder / "locks").mkdir()
        command = [sys.executable, "-c", WORKER, str(folder), str(at_once), str(latency_s)]
        workers = [subprocess.Popen(command) for _ in range(processes)]
        next_kill = time.monotonic()
        while any(worker.poll() is None for worker in workers):
            read_published(folder, files)
            done = queue.stats().entries["done"]
            if kills is None:
                is_time = 0 < done < entries * 0.98 and time.monotonic() >= next_kill
            else:
                is_time = done_kills < kills and done >= (done_kills + 1) * entries // (kills + 2)
            place = choose.randrange(processes)
            if is_time and (kills is None or _stopped_while_it_runs(queue, workers[place])):
                workers[place].kill()
                workers[place].wait()
                workers[place] = subprocess.Popen(command)
                next_kill, done_kills = time.monotonic() + choose.uniform(0.2, 1.8), done_kills + 1
            time.sleep(0.02)
        assert [worker.returncode for worker in workers] == [0] * processes
        found = queue.list()
    seconds = time.monotonic() - started
    read_published(folder, files)
    last = (folder / "queue" / "task-queue.json").read_bytes()
    assert read_document(last, "task-queue.json").tasks == tuple(found)
    _check_entries(folder, found, entries)
    check_files(folder, files)
    return Killed(done_kills, sum(entry.retries for entry in found), len(files), seconds)


def _stopped_while_it_runs(queue: TaskQueue, worker: subprocess.Popen[bytes]) -> bool:
    """Stops a worker; lets it continue if no entry runs in it."""
    worker.send_signal(signal.SIGSTOP)
    if any(f":{worker.pid}:" in (entry.subagent_session or "") for entry in queue.list("running")):
        return True
    worker.send_signal(signal.SIGCONT)
    return False


def _check_entries(folder: Path, found: list[QueueEntry], entries: int) -> None:
    assert [entry.id for entry in found] == [entry_id(n) for n in range(1, entries + 1)]
    assert not (folder / "locks" / "TWICE").exists(), (
        "two attempts of an entry ran at the same time"
    )
    tasks: set[str] = set()
    for entry in found:
        attempts = entry.strategies_tried
        assert entry.status == "done", entry
        assert [attempt.attempt for attempt in attempts] == list(range(1, len(attempts) + 1)), entry
        found_result = _RESULT.fullmatch(attempts[-1].result)
        assert found_result is not None, entry
        task, interruptions = (
            found_result["task"],
            int((found_result["times"] or "0").replace("once", "1")),
        )
        # A worker that is killed between a claim and the begin of the attempt leaves an attempt
        # that cannot be resumed.
        assert entry.retries == interruptions + len(attempts) - 1, entry
        assert all(a.result == "interrupted: the worker's process ended" for a in attempts[:-1]), (
            entry
        )
        assert task not in tasks, f"{task} belongs to two entries"
        tasks.add(task)


def read_published(folder: Path, files: dict[str, Mapping[str, str]]) -> None:
    """Adds the published file, as the digests of its entries by their ids. It is valid, or this
    raises UsageError.
    """
    data = (folder / "queue" / "task-queue.json").read_bytes()
    name = hashlib.sha256(data).hexdigest()
    if name not in files:
        read_document(data, "task-queue.json")
        files[name] = {entry["id"]: _digest(entry) for entry in json.loads(data)["tasks"]}


def check_files(folder: Path, files: Mapping[str, Mapping[str, str]]) -> None:
    """Each file holds, of every entry, the version that the others had at the same time."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    current: dict[str, str] = {}
    with closing(sqlite3.connect(folder / "queue" / "queue.sqlite")) as database:
        for sequence, text in database.execute(
            "SELECT sequence, document FROM version ORDER BY sequence"
        ):
            entry = json.loads(text)
            version, before = _digest(entry), current.get(entry["id"])
            if before is not None:
                ends[before] = sequence
            current[entry["id"]] = version
            begins[version] = sequence
    for entries in files.values():
        assert entries.keys() == current.keys()
        begin = max(begins[version] for version in entries.values())
        assert begin < min(ends.get(version, sys.maxsize) for version in entries.values()), (
            "a file mixes two states"
        )


def _digest(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
