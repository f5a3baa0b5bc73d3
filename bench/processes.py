"""The engine of processes against one process, for a scorer that keeps a CPU busy: samples per
second and in total; and what a sample costs the process that hands out work.

    python bench/processes.py [--samples 160] [--ms 100] [--workers 2] [--further 8000]

Each sample asks a simulated model, and a scorer computes for about `--ms`. The CPUs of this
machine, and whatever else runs on it, bound what can be gained. The ratio counts everything,
including the start of the processes.

The processor time of this process for a further sample is that of a batch of `--further` and 500
rows less that of one of 500 rows, with a simulated model that answers at once and the scorer
`includes`. It has everything that this process does: rows are checked and read, samples are handed
out, calls get their permits, lines are appended and counted, the summary is made.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from busy import busy_for, rounds_for
from figures import Figure, parser_for, remarks, report, work_folder

from evaluator import Evaluator, SimulatedBackend, TemplateLibrary, run_batch

CONCURRENCY = 16
GOAL_PARENT_US = 30.0
TEMPLATE = """<task name="ask" type="atomic"><description>Ask</description>
<inputs><input name="n" required="true">n</input></inputs><instructions>{{ n }}</instructions></task>"""


async def seconds(
    evaluator: Evaluator, rounds: int, samples: int, folder: Path, **options: Any
) -> float:
    """The wall time of one batch."""
    started = time.perf_counter()
    batch = await run_batch(
        "ask",
        [{"id": str(n), "n": str(n)} for n in range(samples)],
        evaluator=evaluator,
        scorers=[busy_for(rounds)],
        output=folder,
        limits={"concurrency": CONCURRENCY},
        **options,
    )
    assert batch.is_complete and batch.summary.counts.passed == samples
    return time.perf_counter() - started


async def parent_us(evaluator: Evaluator, further: int, workers: int, folder: Path) -> float:
    """Microseconds of this process for a further sample."""
    costs: list[float] = []
    for count in (500, 500 + further):
        rows = folder / f"rows-{count}.jsonl"
        rows.write_text("".join(f'{{"id": "{n}", "n": "{n}"}}\n' for n in range(count)))
        began = time.process_time()
        batch = await run_batch(
            "ask",
            rows,
            evaluator=evaluator,
            scorers=["includes"],
            output=folder / f"further-{count}",
            limits={"concurrency": 64},
            engine="processes",
            workers=workers,
        )
        costs.append(time.process_time() - began)
        assert batch.is_complete
    return (costs[1] - costs[0]) / further * 1e6


async def measure(
    samples: int, ms: float, workers: int, further: int, folder: Path, say: Any
) -> list[Figure]:
    rounds = rounds_for(ms)
    (folder / "ask.xml").write_text(TEMPLATE)
    library = TemplateLibrary.load(folder / "ask.xml", shipped=False)
    evaluator = Evaluator(
        library, "offline", backend=SimulatedBackend(), tasks_dir=None, roots=[folder]
    )
    one = await seconds(evaluator, rounds, samples, folder / "one")
    several = await seconds(
        evaluator, rounds, samples, folder / "several", engine="processes", workers=workers
    )
    parent = await parent_us(evaluator, further, workers, folder)
    await evaluator.aclose()
    say(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {samples} samples of {ms:g} ms")
    return [
        Figure("one process", one, "s"),
        Figure(f"{workers} workers", several, "s"),
        Figure(
            f"{workers} workers against one process",
            one / several,
            "x",
            goal=0.9 * workers,
            at_least=True,
        ),
        Figure("CPU of the parent for a further sample", parent, "us", GOAL_PARENT_US),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--samples", type=int, default=160)
    parser.add_argument("--ms", type=float, default=100.0, help="CPU time of a sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--further", type=int, default=8000)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; stays")
    args = parser.parse_args()
    with work_folder(args.folder) as folder:
        found = asyncio.run(
            measure(
                args.samples,
                args.ms,
                args.workers,
                further=args.further,
                folder=folder,
                say=remarks(args.json),
            )
        )
    report(found, as_json=args.json)


if __name__ == "__main__":
    main()
