"""Time of the persistent queue: entries per second through workers, a large list, and workers that
are killed.

    python bench/task_queue.py [--entries 400] [--listed 100000] [--killed 2000]

Workers are processes with one entry at a time and a simulated model that answers at once. In the
last part, 20 workers have a model that takes 0.2 s and are killed (SIGKILL) at random;
`queue_kills.py` says what is checked.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from figures import Figure, parser_for, report, work_folder
from queue_kills import fill, killed

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


def throughput(folder: Path, entries: int) -> float:
    """Entries per second through 4 workers, from the moment at which all of them are loaded."""
    with fill(folder, entries, 4) as queue:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(4)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        for worker in workers:
            worker.wait()
        seconds = time.perf_counter() - started
        assert queue.stats().entries["done"] == entries
    return entries / seconds


def listing_s(folder: Path, entries: int) -> float:
    """Seconds to list entries."""
    with fill(folder, entries, 2) as queue:
        started = time.perf_counter()
        assert len(queue.list()) == entries
        return time.perf_counter() - started


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--entries", type=int, default=400, help="entries through 4 workers")
    parser.add_argument("--listed", type=int, default=100_000, help="entries to list")
    parser.add_argument(
        "--killed",
        type=int,
        default=2000,
        help="entries for 20 workers that are killed; 0 leaves it out",
    )
    options = parser.parse_args()
    with work_folder(None) as folder:
        listed_s = listing_s(folder / "b", options.listed)
        figures = [
            Figure(
                "entries per second, 4 workers", throughput(folder / "a", options.entries), "/s"
            ),
            Figure(f"listing {options.listed:,} entries", listed_s, "s", 1.5),
        ]
        if options.killed:
            found = killed(folder / "c", options.killed, processes=20)
            figures += [
                Figure(
                    f"workers killed during {options.killed:,} entries of 20 workers",
                    found.kills,
                    "",
                ),
                Figure("attempts lost with them", found.attempts_lost, ""),
                Figure("published files checked", found.files_checked, ""),
                Figure("time of that part", found.seconds, "s"),
            ]
    report(figures, as_json=options.json)


if __name__ == "__main__":
    main()
