"""Runs every benchmark, each in a process of its own, and prints one table: what, figure, goal, met
or not.

    python bench/all.py [--quick]

The exit code is 0 whatever the figures are; a benchmark that fails is a line that says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

from figures import HERE, Figure, disk, table

# script, its arguments, and those of `--quick`
BENCHMARKS: tuple[tuple[str, list[str], list[str]], ...] = (
    ("throughput.py", [], ["--n", "500", "--rounds", "3"]),
    ("throughput.py", ["--backend", "litellm"], ["--n", "200", "--rounds", "3"]),
    ("record.py", [], ["--n", "500", "--rounds", "3"]),
    (
        "segments.py",
        ["--resume", "20000"],
        ["--n", "300", "--rounds", "3", "--resume", "2000"],
    ),
    ("resume.py", [], ["--calls", "1000", "5000", "--rounds", "2"]),
    ("size.py", [], []),
    ("list_tasks.py", [], ["--n", "2000", "--rounds", "2"]),
    ("startup.py", [], ["--runs", "5"]),
    ("sandbox.py", [], ["--runs", "10"]),
    ("code_path.py", [], []),
    ("parse_output.py", [], []),
    ("load.py", [], ["--runs", "1"]),
    ("hostile.py", [], []),
    ("match.py", [], []),
    ("batch.py", [], ["--n", "1000", "--rounds", "2"]),
    (
        "batch.py",
        ["--delay-ms", "200", "--concurrency", "256"],
        ["--delay-ms", "200", "--concurrency", "256", "--rounds", "1"],
    ),
    ("batch_scale.py", [], ["--small", "2000", "--large", "20000"]),
    ("processes.py", [], ["--samples", "40"]),
    ("kill.py", [], ["--n", "400", "--kills", "10"]),
    ("background.py", ["--idle", "200"], ["--ends", "200", "--idle", "20", "--seconds", "2"]),
    ("report.py", [], []),
    ("viewer.py", [], ["--samples", "20000", "--rounds", "1", "--live-s", "10"]),
)
WRITING = ("throughput.py", "record.py", "resume.py", "size.py", "list_tasks.py")


def run(script: str, arguments: list[str]) -> list[Figure] | None:
    """The figures of one benchmark; None where it fails, which is said on standard error."""
    argv = [sys.executable, str(HERE / script), "--json", *arguments]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(
            f"{script} ended with exit code {done.returncode}: {done.stdout[-500:]}",
            file=sys.stderr,
        )
        return None
    return [Figure(**entry) for entry in json.loads(done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds: a look, not a measurement"
    )
    quick = parser.parse_args().quick
    figures: list[Figure] = []
    failed: list[str] = []
    # One folder for all, removed at the end: see `work_folder`.
    with tempfile.TemporaryDirectory(prefix="evaluator-bench-", dir=disk()) as folder:
        for script, arguments, fewer in BENCHMARKS:
            label = " ".join([script, *arguments])
            print(f"{label} ...", file=sys.stderr, flush=True)
            place = ["--folder", folder] if script in WRITING else []
            found = run(script, [*arguments, *place, *(fewer if quick else [])])
            if found is None:
                failed.append(label)
            else:
                figures += found
    print(table(figures))
    for label in failed:
        print(f"{label}: FAILED, see above")


if __name__ == "__main__":
    main()
