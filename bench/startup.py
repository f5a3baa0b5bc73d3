"""How long the package and its command take to start, beyond an interpreter that does nothing.

    python bench/startup.py [--runs 15]

Whole processes, in turn, so that what disturbs the machine disturbs all alike; medians, minus that
of `python -c pass`. The command runs as its console script does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, parser_for, report

COMMAND = [sys.executable, "-c", "from evaluator.cli import main; main()"]
BASE = [sys.executable, "-c", "pass"]
MEASURED: tuple[tuple[str, list[str], float], ...] = (
    ("import evaluator", [sys.executable, "-c", "import evaluator"], 0.1),
    ("evaluator --help", [*COMMAND, "--help"], 0.2),
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
        0.5,
    ),
)


def seconds(argv: list[str], folder: Path) -> float:
    """Raises: SystemExit, if the process fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")
    }
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    elapsed = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}: {done.stderr[-500:]}")
    return elapsed


def measure(runs: int) -> list[Figure]:
    commands = [BASE, *(argv for _, argv, _ in MEASURED)]
    times: list[list[float]] = [[] for _ in commands]
    with tempfile.TemporaryDirectory(prefix="evaluator-startup-") as folder:
        for turn in range(runs + 1):
            for kept, argv in zip(times, commands, strict=True):
                elapsed = seconds(argv, Path(folder))
                if turn:  # the first turn fills the caches of files and of bytecode
                    kept.append(elapsed)
    base, *medians = map(statistics.median, times)
    figures = [
        Figure(what, median - base, "s", goal)
        for (what, _, goal), median in zip(MEASURED, medians, strict=True)
    ]
    return [*figures, Figure("  python -c pass, subtracted above", base, "s")]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    report(measure(arguments.runs), as_json=arguments.json)


if __name__ == "__main__":
    main()
