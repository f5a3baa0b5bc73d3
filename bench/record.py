"""What a task file costs: the same batch without one, and with one for each promise of what
survives.

    python bench/record.py [--n 1000] [--rounds 5]

As `throughput.py`, against the same server, each round in turn: the bare aiohttp loop, tasks that
are not recorded, then tasks recorded with `sync` off, task and step in a fresh folder on disk each.
A cost is the median over the rounds of the difference to the same round's unrecorded tasks, a ratio
that to its bare loop. What the disk takes for one fdatasync is measured beside it: alone, and with
32 threads on files of their own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from figures import Figure, parser_for, remarks, report, serving, work_folder
from throughput import (
    CONCURRENCY,
    GOALS,
    aiohttp_call,
    make_evaluator,
    rate_of_calls,
    rate_of_tasks,
)

from evaluator.record.journal import SYNC_POLICIES, Sync
from evaluator.record.step_log import DISK_THREADS

BACKEND = "openai_compatible"
BLOCK = b"x" * 400


@dataclass(frozen=True)
class Timed:
    """Microseconds a task: of wall time and of this process's processor time."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Rounds:
    """What each round gave. `bare` are calls a second; `tasks` are by policy, None for no task
    file.
    """

    bare: list[float] = field(default_factory=list[float])
    tasks: dict[Sync | None, list[Timed]] = field(default_factory=dict["Sync | None", list[Timed]])

    def ratio(self, policy: Sync) -> float:
        """Tasks for one bare call, by the same round's rates."""
        return statistics.median(
            1e6 / timed.wall / bare
            for timed, bare in zip(self.tasks[policy], self.bare, strict=True)
        )

    def cost(self, policy: Sync, which: Callable[[Timed], float]) -> float:
        without = self.tasks[None]
        return statistics.median(
            which(a) - which(b) for a, b in zip(self.tasks[policy], without, strict=True)
        )


async def per_task(url: str, folder: Path, tasks_dir: Path | None, sync: Sync, count: int) -> Timed:
    async with make_evaluator(BACKEND, url, folder, tasks_dir, sync) as evaluator:
        await rate_of_tasks(evaluator, CONCURRENCY)
        before = time.process_time()
        rate = await rate_of_tasks(evaluator, count)
        return Timed(1e6 / rate, (time.process_time() - before) / count * 1e6)


async def run_rounds(count: int, rounds: int, folder: Path, say: Callable[[str], None]) -> Rounds:
    import aiohttp

    found = Rounds()
    with serving() as url:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as session:
            call = aiohttp_call(session, f"{url}/chat/completions")
            await rate_of_calls(call, 4 * CONCURRENCY)
            for number in range(rounds):
                found.bare.append(await rate_of_calls(call, count))
                policies: tuple[Sync | None, ...] = (None, *SYNC_POLICIES)
                for policy in policies:
                    tasks_dir = None if policy is None else folder / f"round-{number}-{policy}"
                    timed = await per_task(url, folder, tasks_dir, policy or "off", count)
                    found.tasks.setdefault(policy, []).append(timed)
                rates = ", ".join(
                    f"{policy or 'no file'} {1e6 / timed[-1].wall:,.0f}/s"
                    for policy, timed in found.tasks.items()
                )
                say(f"round {number + 1}: bare {found.bare[-1]:,.0f}/s; tasks: {rates}")
    return found


def sync_us(folder: Path, threads: int, count: int) -> float:
    """Microseconds that one write of 400 bytes and its fdatasync takes, `count` in each of
    `threads` files.

    Of wall time divided by all of them: what is synced side by side counts as much the less.
    """

    def work(number: int) -> None:
        fd = os.open(
            folder / f"sync-{threads}-{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            for _ in range(count):
                os.write(fd, BLOCK)
                os.fdatasync(fd)
        finally:
            os.close(fd)

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return (time.perf_counter() - started) / (threads * count) * 1e6


def measure(count: int, rounds: int, folder: Path, say: Callable[[str], None]) -> list[Figure]:
    alone, together = sync_us(folder, 1, 200), sync_us(folder, DISK_THREADS, 20)
    found = asyncio.run(run_rounds(count, rounds, folder, say))
    figures = [
        Figure(
            "a task without a task file", statistics.median(t.wall for t in found.tasks[None]), "us"
        )
    ]
    for policy in SYNC_POLICIES:
        rate = statistics.median(1e6 / timed.wall for timed in found.tasks[policy])
        figures += [
            Figure(f"recorded tasks, sync {policy}", rate, "/s"),
            Figure("  : bare aiohttp loop", found.ratio(policy), "", GOALS[BACKEND], at_least=True),
            Figure(
                "  what recording adds to a task, wall time",
                found.cost(policy, lambda t: t.wall),
                "us",
            ),
            Figure("  the same, processor time", found.cost(policy, lambda t: t.processor), "us"),
        ]
    return [
        *figures,
        Figure("a write and its fdatasync there, one after the other", alone, "us"),
        Figure(f"  in {DISK_THREADS} files side by side, for each", together, "us"),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = measure(arguments.n, arguments.rounds, folder, remarks(arguments.json))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
