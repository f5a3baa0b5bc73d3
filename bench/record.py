"""What a task file costs: the same batch with task files and without.

    python bench/record.py [--n 2000] [--rounds 5]

As `throughput.py`, against the same server, with `tasks_dir` a fresh folder on disk or None, in turn. Shown
are the medians of wall time and of processor time a task; the cost is the median over rounds of their
difference.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figure, parser_for, remarks, report, serving, work_folder
from throughput import CONCURRENCY, make_evaluator, rate_of_tasks


async def per_task(url: str, folder: Path, tasks_dir: Path | None, count: int) -> tuple[float, float]:
    """Microseconds of wall time and of this process's processor time for one task."""
    async with make_evaluator("openai_compatible", url, folder, tasks_dir) as evaluator:
        await rate_of_tasks(evaluator, CONCURRENCY)
        before = time.process_time()
        rate = await rate_of_tasks(evaluator, count)
        return 1e6 / rate, (time.process_time() - before) / count * 1e6


async def measure(count: int, rounds: int, folder: Path, say: Callable[[str], None]) -> list[Figure]:
    without: list[tuple[float, float]] = []
    recorded: list[tuple[float, float]] = []
    with serving() as url:
        for number in range(rounds):
            without.append(await per_task(url, folder, None, count))
            tasks_dir = folder / f"round-{number}"
            recorded.append(await per_task(url, folder, tasks_dir, count))
            sizes = [path.stat().st_size for path in (tasks_dir / "done").iterdir()]
            say(
                f"round {number + 1}: {without[-1][0]:.0f} us a task without, {recorded[-1][0]:.0f} us with "
                f"a file of {sum(sizes) / len(sizes):,.0f} bytes"
            )

    def difference(which: int) -> float:
        return statistics.median(a[which] - b[which] for a, b in zip(recorded, without, strict=True))

    return [
        Figure("a task without a task file", statistics.median(a for a, _ in without), "us"),
        Figure("a recorded task", statistics.median(a for a, _ in recorded), "us"),
        Figure("  what recording adds, wall time", difference(0), "us"),
        Figure("  what recording adds, processor time", difference(1), "us"),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = asyncio.run(measure(arguments.n, arguments.rounds, folder, remarks(arguments.json)))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
