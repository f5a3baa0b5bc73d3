"""How long a script takes to start and end, without a sandbox and in bubblewrap.

    python bench/sandbox.py [--runs 40]

Each round runs `true` once in each kind, through `run_script`, so that what disturbs the machine
disturbs all alike; medians. The cost of a sandbox is the median difference to the same round's
start without one.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, parser_for, report

from evaluator.errors import ConfigurationError
from evaluator.processes.sandboxes import Sandbox
from evaluator.processes.scripts import run_script, try_sandbox

GOAL_S = 0.02


def bare_start(folder: str) -> float:
    started = time.perf_counter()
    subprocess.run(["true"], cwd=folder, check=True)
    return time.perf_counter() - started


async def measure(runs: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="evaluator-sandbox-") as folder:
        kinds = {"none": Sandbox()}
        try:
            await try_sandbox(Sandbox("bubblewrap"), Path(folder))
            kinds["bubblewrap"] = Sandbox("bubblewrap")
        except ConfigurationError as error:
            print(error, file=sys.stderr)
        times: dict[str, list[float]] = {kind: [] for kind in ("fork and exec", *kinds)}
        for turn in range(runs + 1):
            found = {"fork and exec": bare_start(folder)}
            for kind, sandbox in kinds.items():
                started = time.perf_counter()
                result = await run_script(["true"], timeout_s=60, cwd=Path(folder), sandbox=sandbox)
                found[kind] = time.perf_counter() - started
                if result.exit_code != 0:
                    raise SystemExit(f"{kind}: exit code {result.exit_code}: {result.stderr}")
            if turn:  # the first turn fills the caches of files
                for kind, seconds in found.items():
                    times[kind].append(seconds)
    medians = {kind: statistics.median(each) for kind, each in times.items()}
    figures = [Figure(f"start of a script, sandbox {kind}", medians[kind], "s") for kind in kinds]
    if "bubblewrap" in kinds:
        added = [
            boxed - bare for boxed, bare in zip(times["bubblewrap"], times["none"], strict=True)
        ]
        figures.append(Figure("  added by bubblewrap", statistics.median(added), "s", GOAL_S))
    return [
        *figures,
        Figure("  subprocess.run(['true']), without supervision", medians["fork and exec"], "s"),
    ]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    report(asyncio.run(measure(arguments.runs)), as_json=arguments.json)


if __name__ == "__main__":
    main()
