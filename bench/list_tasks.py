"""How long a folder of finished tasks takes to list: all of it, its newest, and what a filter
leaves.

    python bench/list_tasks.py [--n 10000] [--rounds 5]

The files hold one call each and are written by `TaskStore` into a fresh folder on disk; medians of
rounds with the files in the system's cache. The command is a whole process, its start and its
printing included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tasks
from figures import Figure, parser_for, report, work_folder

from evaluator import TaskStore
from evaluator.record.search import find
from evaluator.record.steps import StepEnd, StepStart, Summary

MODEL = "local/small"
COMMAND = [sys.executable, "-c", "from evaluator.__main__ import main; main()"]
USAGE = {
    "input_tokens": 92,
    "output_tokens": 21,
    "cached_tokens": 0,
    "reasoning_tokens": 0,
    "cost_usd": 0.00031,
    "turns": 1,
    "tool_calls": 0,
}


def fill(store: TaskStore, count: int) -> None:
    """`count` finished tasks of one call; every tenth has failed."""
    for number in range(count):
        inputs = tasks.row(number)
        args = {"model": MODEL, "settings": {}, "messages": tasks.messages(inputs)}
        journal = store.create(
            inputs=inputs, template=tasks.NAME, template_sha256="0" * 64, model=MODEL
        )
        step = journal.begin(StepStart("turn[1]", "model", MODEL, args, "0" * 32))
        answer = {"content": "At six, from the eastern pier.", "finish_reason": "stop"}
        journal.end(step, StepEnd("success", answer, 0.8, None, USAGE))
        failed = number % 10 == 0
        reason = "the server is busy" if failed else None
        journal.close(
            Summary("failed" if failed else "completed", 1, 0, 0.8, USAGE, answer, reason)
        )


def median_s(work: Callable[[], int], expected: int, rounds: int) -> float:
    """Seconds that `work` takes. Raises: SystemExit, if it does not find as much as it should."""
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - started)
        if found != expected:
            raise SystemExit(f"{found} tasks were found, not {expected}")
    return statistics.median(times)


def listed(root: Path, *options: str) -> int:
    """Lines that the command prints below the heading."""
    argv = [*COMMAND, "tasks", "list", "--tasks", str(root), *options]
    done = subprocess.run(
        argv, capture_output=True, check=True, env={**os.environ, "COLUMNS": "120"}
    )
    return done.stdout.count(b"\n") - 1


def measure(count: int, rounds: int, folder: Path) -> list[Figure]:
    root = folder / "list"
    store = TaskStore(root)
    started = time.perf_counter()
    fill(store, count)
    written = time.perf_counter() - started
    failed, few = -(-count // 10), min(20, count)

    def counted(**conditions: object) -> Callable[[], int]:
        return lambda: sum(1 for _ in find(store, **conditions))  # type: ignore[arg-type]

    return [
        Figure(f"list {count:,} tasks", median_s(counted(), count, rounds), "s", 1.0),
        Figure("  the newest 20", median_s(counted(limit=20), few, rounds), "s"),
        Figure(
            "  those with an error that holds a text",
            median_s(counted(error="BUSY"), failed, rounds),
            "s",
            1.0,
        ),
        Figure(
            "  those of a template", median_s(counted(template="answer*"), count, rounds), "s", 1.0
        ),
        Figure("evaluator tasks list", median_s(lambda: listed(root), count, rounds), "s", 1.0),
        Figure("  --limit 20", median_s(lambda: listed(root, "--limit", "20"), few, rounds), "s"),
        Figure(
            "  --error busy",
            median_s(lambda: listed(root, "--error", "busy"), failed, rounds),
            "s",
            1.0,
        ),
        Figure("  writing the files", written, "s"),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = measure(arguments.n, arguments.rounds, folder)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
