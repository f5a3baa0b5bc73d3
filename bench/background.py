"""Background tasks: tasks that end while they are killed, and the memory and CPU of tasks that do
nothing.

    python bench/background.py [--ends 1000] [--idle 1000] [--seconds 10] [--stall] [--json]

Tasks that end while they are killed are in one process, and each is killed twice at a random turn
of the loop. Idle tasks are real scripts (`sleep`), each below its supervisor. Memory is the
proportional share (PSS) of this process and all that it started; CPU is what all of them used in
`--seconds`. `--stall` also waits, on the real clock, until a script that reads an answer is
noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from figures import HERE, Figure, parser_for, report

from evaluator.background import BackgroundTasks, ScriptWork

sys.path.insert(0, str(HERE.parent))

from tests.jobs.instant import Instant

_TICKS = os.sysconf("SC_CLK_TCK")


async def ends(folder: Path, count: int) -> list[Figure]:
    told: Counter[str] = Counter()
    started = time.perf_counter()
    async with BackgroundTasks(
        folder, callback=lambda notice: told.update([notice.task_id])
    ) as tasks:
        random.seed(0)
        wrong = 0
        for _ in range(0, count, 50):  # an open file each
            ids = [tasks.start(Instant(random.randrange(6)), "instant").id for _ in range(50)]
            await asyncio.gather(*(tasks.kill(each, "race") for each in ids for _ in range(2)))
            wrong += sum(told[each] != 1 for each in ids)
        states = Counter(task.status for task in tasks.store.list())
    seconds = time.perf_counter() - started
    return [
        Figure(
            f"{count:,} tasks that end while killed: without exactly one notification", wrong, "", 0
        ),
        Figure("  completed before the kill", states["completed"], ""),
        Figure("  killed", states["killed"], ""),
        Figure("  tasks per second", count / seconds, "1/s"),
    ]


def tree(root: int) -> Iterator[int]:
    """This process and its descendants."""
    yield root
    for task in Path(f"/proc/{root}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread has ended
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def pss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
    )


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def idle(folder: Path, count: int, seconds: float) -> list[Figure]:
    async with BackgroundTasks(folder) as tasks:
        alone = pss_mb(os.getpid())
        started = time.perf_counter()
        for _ in range(0, count, 20):
            ids = [
                tasks.start(ScriptWork("exec sleep 3600"), "idle").id for _ in range(min(20, count))
            ]
            while any(tasks.store.get(each).status == "pending" for each in ids):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        start_s = time.perf_counter() - started
        found = list(tree(os.getpid()))
        own, supervisors = pss_mb(os.getpid()), sum(pss_mb(pid) for pid in found[1:])
        before = {pid: cpu_s(pid) for pid in found}
        await asyncio.sleep(seconds)
        used = {pid: cpu_s(pid) - before[pid] for pid in found}
        own_cpu = used.pop(os.getpid())
        started = time.perf_counter()
    end_s = time.perf_counter() - started
    return [
        Figure(f"{count:,} idle scripts: memory of the process that runs them", own - alone, "MB"),
        Figure("  memory of supervisors and scripts", supervisors, "MB"),
        Figure("  CPU of the process that runs them", 100 * own_cpu / seconds, "% of a core"),
        Figure(
            "  CPU of supervisors and scripts", 100 * sum(used.values()) / seconds, "% of a core"
        ),
        Figure("  starting all", start_s, "s"),
        Figure("  ending all", end_s, "s"),
    ]


async def stall(folder: Path) -> list[Figure]:
    async with BackgroundTasks(folder) as tasks:
        script = ScriptWork("printf 'Overwrite? [y/N] '; read answer", has_input=True)
        started = time.perf_counter()
        task = tasks.start(script, "asks")
        while not tasks.store.notices(task.id):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return [Figure("a prompt is noticed after", time.perf_counter() - started, "s", 55)]


async def measure(
    ends_count: int, idle_count: int, seconds: float, with_stall: bool
) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="evaluator-background-", dir="/var/tmp") as place:
        folder = Path(place)
        figures = await ends(folder / "ends", ends_count)
        figures += await idle(folder / "idle", idle_count, seconds) if idle_count else []
        return figures + (await stall(folder / "stall") if with_stall else [])


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--ends", type=int, default=1_000)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--stall", action="store_true")
    options = parser.parse_args()
    report(
        asyncio.run(measure(options.ends, options.idle, options.seconds, options.stall)),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
