"""What segments change for a batch: CPU time, system calls, resuming, merging.

    python bench/segments.py [--n 2000] [--rounds 5] [--resume 100000] [--merge 8000] [--shards 4]

A sample is one call of the simulated model and the scorer `includes`, 64 at once; nothing goes over
the network. Rounds alternate between a file for each task and segments; the ratio is the median of
the rounds. System calls are counted with strace: those of a batch of 2 N rows less those of N rows,
for each further row. Resuming is a batch that is complete already: its rows and its results are
read again. Merging links the segments of `--shards` shards with `--merge` samples together, copies
the lines of their results and summarises them; then a new process would summarise the merged folder.
With `--rounds 0` only resuming and merging are measured, with `--resume 0` or `--merge 0` not that.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, remarks, report, work_folder

from evaluator import Evaluator, TemplateLibrary, run_batch
from evaluator.batch import merge_shards, open_batch

TEMPLATE = """<task name="ask"><description>Ask.</description>
<inputs><input name="question"/></inputs>
<instructions>Answer in a word: {{ question }}</instructions></task>"""
GOAL_CALLS = 12.0
GOAL_RESUME_US = 20.0
GOAL_MERGE_US = 30.0
GOAL_SUMMARY_US = 15.0


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "question": f"What is {number} + 1? " * 10, "target": "a"}
        for number in range(count)
    ]


def evaluator() -> Evaluator:
    library = TemplateLibrary()
    library.add(TEMPLATE)
    return Evaluator(library, model="simulated/bench", tasks_dir=None, notice=lambda _: None)


def run(count: int, task_files: str, output: Path, **options: Any) -> float:
    """CPU seconds of a batch."""
    own = evaluator()
    given = rows(count)
    began = time.process_time()
    batch = run_batch(
        "ask",
        given,
        evaluator=own,
        scorers=["includes"],
        output=output,
        task_files=task_files,  # type: ignore[arg-type]
        display="none",
        **options,
    )
    assert asyncio.run(batch).ended.total is not None
    return time.process_time() - began


def system_calls(count: int, task_files: str, folder: Path) -> dict[str, float]:
    """The system calls of one further row, by name."""
    found: list[dict[str, int]] = []
    for size in (count, 2 * count):
        output = folder / f"strace-{task_files}-{size}"
        log = folder / "strace.txt"
        command = [sys.executable, __file__, "--only", task_files, str(size), str(output)]
        subprocess.run(
            ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", str(log), *command], check=True
        )
        lines = (re.fullmatch(r"\s*([0-9]+) (\w+)", line) for line in log.read_text().splitlines())
        found.append({line[2]: int(line[1]) for line in lines if line and line[2] != "total"})
    less, more = found
    return {name: (more[name] - less.get(name, 0)) / count for name in more}


def cost_of_samples(count: int, rounds: int, folder: Path, remark: Any) -> list[Figure]:
    ratios: list[float] = []
    costs: dict[str, list[float]] = {"each": [], "packed": []}
    for number in range(rounds):
        for task_files in ("each", "packed"):
            output = folder / f"{task_files}-{number}"
            costs[task_files].append(run(count, task_files, output) / count * 1e6)
            shutil.rmtree(output)
        ratios.append(costs["packed"][-1] / costs["each"][-1])
        remark(f"round {number}: {costs['each'][-1]:.0f}, {costs['packed'][-1]:.0f} us")
    figures = [
        Figure(f"CPU of a sample, {task_files}", statistics.median(values), "us")
        for task_files, values in costs.items()
    ]
    figures.append(Figure("CPU, packed : each", statistics.median(ratios), "x"))
    for task_files in ("each", "packed") if shutil.which("strace") else ():
        calls = system_calls(300, task_files, folder)
        most = sorted(calls.items(), key=lambda entry: -entry[1])[:8]
        remark(task_files + " " + json.dumps({name: round(value, 2) for name, value in most}))
        goal = GOAL_CALLS if task_files == "packed" else None
        figures.append(
            Figure(f"system calls of a sample, {task_files}", sum(calls.values()), "", goal)
        )
    return figures


def cost_of_resuming(count: int, folder: Path, remark: Any) -> list[Figure]:
    output = folder / "resumed"
    run(count, "packed", output)
    began = time.perf_counter()
    cpu = run(count, "packed", output, resume=True)
    remark(f"resume of {count:,}: {time.perf_counter() - began:.1f} s")
    shutil.rmtree(output)
    return [Figure("resume of a complete sample", cpu / count * 1e6, "us", GOAL_RESUME_US)]


def cost_of_merging(count: int, shards: int, folder: Path, remark: Any) -> list[Figure]:
    parts = [folder / f"shard-{number}" for number in range(1, shards + 1)]
    for number, part in enumerate(parts, 1):
        run(count, "packed", part, select={"shard": f"{number}/{shards}"})
    cpu = time.process_time()
    began = time.perf_counter()
    merged = merge_shards(parts, folder / "merged")
    merging = time.process_time() - cpu
    remark(f"merge of {count:,} from {shards} shards: {time.perf_counter() - began:.1f} s")
    cpu = time.process_time()
    counts = open_batch(merged.folder).summarise().counts
    summary = time.process_time() - cpu
    if (counts.results, counts.pending) != (count, 0):
        raise SystemExit(f"the merged batch has {counts}")
    return [
        Figure(
            f"merge of a sample, {count:,} from {shards}",
            merging / count * 1e6,
            "us",
            GOAL_MERGE_US,
        ),
        Figure("summary of a merged sample", summary / count * 1e6, "us", GOAL_SUMMARY_US),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--only"]:
        run(int(sys.argv[3]), sys.argv[2], Path(sys.argv[4]))
        return
    parser = parser_for(__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resume", type=int, default=100_000)
    parser.add_argument("--merge", type=int, default=8_000)
    parser.add_argument("--shards", type=int, default=4)
    given = parser.parse_args()
    figures: list[Figure] = []
    remark = remarks(given.json)
    remark(f"load {os.getloadavg()[0]:.1f}")
    with work_folder(None) as folder:
        if given.rounds:
            figures += cost_of_samples(given.n, given.rounds, folder, remark)
        if given.resume:
            figures += cost_of_resuming(given.resume, folder, remark)
        if given.merge:
            figures += cost_of_merging(given.merge, given.shards, folder, remark)
    report(figures, as_json=given.json)


if __name__ == "__main__":
    main()
