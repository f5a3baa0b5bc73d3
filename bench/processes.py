"""The engine of processes against one process, for a scorer that keeps a CPU busy: samples per
second and in total.

    python bench/processes.py [--samples 160] [--ms 100] [--workers 2]

Each sample asks a simulated model, and a scorer computes for about `--ms`. The CPUs of this
machine, and whatever else runs on it, bound what can be gained. The ratio counts everything,
including the start of the processes.
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


async def measure(samples: int, ms: float, workers: int, folder: Path, say: Any) -> list[Figure]:
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
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--samples", type=int, default=160)
    parser.add_argument("--ms", type=float, default=100.0, help="CPU time of a sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; stays")
    args = parser.parse_args()
    with work_folder(args.folder) as folder:
        found = asyncio.run(
            measure(args.samples, args.ms, args.workers, folder, remarks(args.json))
        )
    report(found, as_json=args.json)


if __name__ == "__main__":
    main()
