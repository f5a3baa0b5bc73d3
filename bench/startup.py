"""How long the package and its command take to start, beyond an interpreter that does nothing.

    python bench/startup.py [--runs 15]

Whole processes, in turn, so that what disturbs the machine disturbs all alike; medians, minus that
of `python -c pass`. The command runs as its console script does. The processor time of a busy
machine is up to twice that of an idle one; its ratio to that of `python -c pass` changes less.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, parser_for, report

COMMAND = [sys.executable, "-c", "from evaluator.__main__ import main; main()"]
BASE = [sys.executable, "-c", "pass"]
MEASURED: tuple[tuple[str, list[str], float], ...] = (
    ("import evaluator", [sys.executable, "-c", "import evaluator"], 0.1),
    ("evaluator --help", [*COMMAND, "--help"], 0.06),
    (
        "evaluator run, simulated",
        [
            *COMMAND,
            "run",
            "--template",
            "summarise",
            "--input",
            "document=A short text.",
            "--handler",
            "offline",
        ],
        0.15,
    ),
)


def seconds(argv: list[str], folder: Path) -> tuple[float, float]:
    """Wall time and processor time. Raises: SystemExit, if the process fails."""
    # Bytecode is kept, as it is where the package is installed.
    left_out = ("PYTHONDONTWRITEBYTECODE",)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_API_KEY") and name not in left_out
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}: {done.stderr[-500:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return elapsed, processor


def measure(runs: int) -> list[Figure]:
    commands = [BASE, *(argv for _, argv, _ in MEASURED)]
    times: list[list[tuple[float, float]]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory(prefix="evaluator-startup-") as folder:
        for turn in range(runs + 1):
            for kept, argv in zip(times, commands, strict=True):
                elapsed = seconds(argv, Path(folder))
                if turn:  # the first turn fills the caches of files and of bytecode
                    kept.append(elapsed)
    base, *others = times
    base_s = statistics.median(wall for wall, _ in base)
    figures: list[Figure] = []
    for (what, _, goal), own in zip(MEASURED, others, strict=True):
        median = statistics.median(wall for wall, _ in own)
        ratios = [each[1] / bare[1] for each, bare in zip(own, base, strict=True)]
        figures.append(Figure(what, median - base_s, "s", goal))
        figures.append(
            Figure("  its processor time : python -c pass", statistics.median(ratios), "")
        )
    return [*figures, Figure("  python -c pass, subtracted above", base_s, "s")]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    report(measure(arguments.runs), as_json=arguments.json)


if __name__ == "__main__":
    main()
