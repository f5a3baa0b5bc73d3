"""Peak memory of a batch of 10,000 rows against one of 100,000, and how long resuming the complete
one takes; and, by the straight line through both, against one of 1,000,000.

    python bench/batch_scale.py [--small 10000] [--large 100000] [--folder FOLDER]

`--large 1000000` measures the last one, in ten minutes or more.

Rows are read from a JSONL file; the simulated model answers in the same process; every sample has
its task file and its line of results, and is scored. Each run is a process of its own, whose peak
resident memory the system tells.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tasks
from figures import Figure, parser_for, remarks, report, work_folder

GOAL_MEMORY, GOAL_RESUME_S = 1.2, 5.0
MILLION, GOAL_MILLION = 1_000_000, 1.3
RUN = """
import asyncio, json, resource, sys, time
import tasks
from pathlib import Path
from evaluator import Evaluator, SimulatedBackend, run_batch

folder, rows, output, resume = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "resume"
calls = 0

def answer(request):
    global calls
    calls += 1
    return "The answer is 42."

class Model(SimulatedBackend):
    name = "bench"

evaluator = Evaluator(tasks.library(folder / "templates"), "offline", backend=Model(script=answer), tasks_dir=None)
started = time.perf_counter()
options = {"scorers": ["includes"], "output": output, "resume": resume}
result = asyncio.run(run_batch(tasks.NAME, rows, evaluator=evaluator, **options))
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([seconds, peak / 1024, calls, result.summary.counts.passed, result.ended.ran]))
"""


def run(
    folder: Path, rows: Path, output: Path, how: str, expected: int
) -> tuple[float, float, int]:
    """Seconds, peak MiB and calls of one process. Raises: SystemExit, if not all samples passed."""
    command = [sys.executable, "-c", RUN, str(folder), str(rows), str(output), how]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    seconds, peak, calls, passed, ran = json.loads(done.stdout)
    if passed != expected or ran != (0 if how == "resume" else expected):
        raise SystemExit(f"{passed} passed and {ran} ran, of {expected}")
    return seconds, peak, calls


def measure(arguments: Any, folder: Path) -> list[Figure]:
    say = remarks(arguments.json)
    peaks: list[float] = []
    for count in (arguments.small, arguments.large):
        rows = folder / f"rows-{count}.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            for number in range(count):
                file.write(
                    json.dumps({"id": f"row-{number}", "target": "42", **tasks.row(number)}) + "\n"
                )
        seconds, peak, _ = run(folder, rows, folder / f"batch-{count}", "run", count)
        say(f"{count:,} rows: {seconds:.1f} s, {count / seconds:,.0f}/s, {peak:.0f} MiB")
        peaks.append(peak)
    seconds, peak, calls = run(folder, rows, folder / f"batch-{count}", "resume", count)
    say(f"resumed: {seconds:.2f} s, {peak:.0f} MiB, {calls} calls")
    if calls:
        raise SystemExit(f"a complete batch was resumed with {calls} calls")
    of_a_row = (peaks[1] - peaks[0]) / (arguments.large - arguments.small)
    million = peaks[0] + of_a_row * (MILLION - arguments.small)
    return [
        Figure(f"peak memory, {arguments.small:,} rows", peaks[0], "MiB"),
        Figure(f"peak memory, {arguments.large:,} rows", peaks[1], "MiB"),
        Figure("the second : the first", peaks[1] / peaks[0], "", GOAL_MEMORY),
        Figure(f"{MILLION:,} rows, by the two : the first", million / peaks[0], "", GOAL_MILLION),
        Figure(f"resume of a complete batch of {arguments.large:,}", seconds, "s", GOAL_RESUME_S),
        Figure("calls that it made", calls, "", 0),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where everything is written, and stays")
    arguments = parser.parse_args()
    with work_folder(arguments.folder) as folder:
        figures = measure(arguments, folder)
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
