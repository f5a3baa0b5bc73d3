"""Time of the persistent queue: entries per second through workers, a large list, and workers that are killed.

    python bench/task_queue.py [--entries 400] [--listed 100000] [--killed 2000]

Workers are processes with one entry at a time and a simulated model that answers at once. In the last part, workers are
killed (SIGKILL) at random while they work; every entry has to end once, with attempts that add up.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from figures import Figure, parser_for, report, work_folder

from evaluator.queue import TaskQueue
from evaluator.queue.document import document_bytes
from evaluator.queue.entries import QueueDocument, QueueEntry, entry_id

TEXT = "write the daily report"
TEMPLATE = '<task name="do"><description>Write the daily report</description><instructions>DO</instructions></task>'
WORKER = """
import sys
from evaluator import Evaluator, SimulatedBackend, TemplateLibrary
from evaluator.queue import TaskQueue

folder = sys.argv[1]
evaluator = Evaluator(
    TemplateLibrary.load(f"{folder}/t.xml", shipped=False), "offline",
    backend=SimulatedBackend(script=lambda request: "fine"), tasks_dir=f"{folder}/tasks",
)
print("ready", flush=True)
sys.stdin.readline()
with TaskQueue(f"{folder}/queue") as queue:
    queue.work_sync(evaluator, workers=1, until_empty=True)
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


def begin(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()


def fill(folder: Path, entries: int, workers: int) -> TaskQueue:
    folder.mkdir()
    (folder / "t.xml").write_text(TEMPLATE, encoding="utf-8")
    queue = TaskQueue(folder / "queue")
    text = document_bytes(QueueDocument("", entry_id(entries), tuple(
        QueueEntry(entry_id(n), TEXT, TEXT, "unknown", "pending", 0, 1000, "2026-03-08T09:00:00Z")
        for n in range(1, entries + 1)
    ), workers))  # fmt: skip
    (folder / "in.json").write_bytes(text)
    queue.import_file(folder / "in.json")
    queue.publish()
    return queue


def throughput(folder: Path, entries: int) -> float:
    with fill(folder, entries, 4) as queue:
        workers = [start(folder) for _ in range(4)]
        started = time.perf_counter()
        begin(workers)
        for worker in workers:
            worker.wait()
        seconds = time.perf_counter() - started
        assert queue.stats().entries["done"] == entries
    return entries / seconds


def listing_s(folder: Path, entries: int) -> float:
    with fill(folder, entries, 2) as queue:
        started = time.perf_counter()
        assert len(queue.list()) == entries
        return time.perf_counter() - started


def killed(folder: Path, entries: int, processes: int = 20) -> tuple[int, int]:
    """How many workers were killed, and how many attempts that cost; raises if an entry is lost or ends twice."""
    choose, kills = random.Random(1), 0
    with fill(folder, entries, processes) as queue:
        workers = [start(folder) for _ in range(processes)]
        begin(workers)
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
            if queue.stats().ready > processes:
                place = choose.randrange(processes)
                workers[place].kill()
                workers[place].wait()
                workers[place] = start(folder)
                begin([workers[place]])
                kills += 1
        found = queue.list()
    assert [entry.id for entry in found] == [entry_id(n) for n in range(1, entries + 1)]
    for entry in found:
        assert entry.status == "done" and entry.retries == len(entry.strategies_tried) - 1, entry
    return kills, sum(entry.retries for entry in found)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--entries", type=int, default=400, help="entries through 4 workers")
    parser.add_argument("--listed", type=int, default=100_000, help="entries to list")
    parser.add_argument(
        "--killed", type=int, default=2000, help="entries for 20 workers that are killed; 0 leaves it out"
    )
    options = parser.parse_args()
    with work_folder(None) as folder:
        figures = [
            Figure("entries per second, 4 workers", throughput(folder / "a", options.entries), "/s"),
            Figure(f"listing {options.listed:,} entries", listing_s(folder / "b", options.listed), "s"),
        ]
        if options.killed:
            kills, attempts = killed(folder / "c", options.killed)
            figures += [Figure("workers killed", kills, ""), Figure("attempts lost with them", attempts, "")]
    report(figures, as_json=options.json)


if __name__ == "__main__":
    main()
