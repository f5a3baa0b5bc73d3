"""`python -m tests.simulation --seed N` runs one schedule, `--search 60s` looks for violations."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from random import SystemRandom

from tests.simulation.mutants import MUTANTS, found_after
from tests.simulation.schedule import BATCH_FORMS, plan_of, run, shrink
from tests.simulation.workload import WORKLOADS


def seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9.]+)(s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError("write a duration, such as 60s or 10m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="run this schedule only, or begin the search there"
    )
    parser.add_argument("--search", type=seconds, metavar="TIME", help="run schedules for so long")
    parser.add_argument("--workload", choices=("single", "generated", *BATCH_FORMS, *WORKLOADS))
    parser.add_argument(
        "--mutants", type=int, metavar="N", help="look for planted faults in so many schedules each"
    )
    given = parser.parse_args()
    workload = given.workload or "single"
    first = given.seed
    if first is None:
        first = SystemRandom().randrange(10**9)
    if given.mutants is not None:
        return look_for_mutants(given.seed or 0, given.mutants, given.workload)
    if given.search is None:
        report = run(plan_of(first, workload))
        print(report.plan)
        print(report.violation or "every invariant holds", dict(report.counts))
        return report.violation is not None
    return search(first, given.search, workload)


def look_for_mutants(first: int, most: int, workload: str | None) -> int:
    missed = 0
    for mutant in MUTANTS:
        if workload is not None and mutant.workload != workload:
            continue
        began = time.process_time()
        schedules = found_after(mutant, first, most)
        missed += schedules is None
        spent = time.process_time() - began
        print(f"{mutant.name} | {schedules or 'not found'} | {spent:.1f} s", flush=True)
    return missed > 0


def search(first: int, limit_s: float, workload: str) -> int:
    began, cpu = time.monotonic(), time.process_time()
    counts = Counter[str]()
    violations = 0
    seed = first
    while time.monotonic() - began < limit_s:
        report = run(plan_of(seed, workload))
        counts.update(report.counts)
        counts["schedules"] += 1
        if report.violation is not None:
            violations += 1
            print(
                f"{report.plan}\n  {report.violation[:600]}\n  files: {report.files}\n  smallest: {shrink(report.plan)}",
                flush=True,
            )
        seed += 1
    spent = time.process_time() - cpu
    print(
        f"seeds {first} to {seed - 1}: {(seed - first) / spent:.0f} schedules per CPU second, {violations} violations"
    )
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return violations > 0


if __name__ == "__main__":
    sys.exit(main())
