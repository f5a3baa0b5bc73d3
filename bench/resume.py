"""How long it takes to go on with a long run that was killed.

    python bench/resume.py [--calls 1000 5000 10000 20000] [--rounds 3] [--profile]

The run is a `reduce` of two model calls an item, made for real against the simulated model in a
process that kills itself (SIGKILL) inside the call after the last of `--calls`; each call is two
steps of its task file, the resolving of the task and the call itself. The notes of earlier items
are not in the prompts: they would make the file grow with the square of the items. Each round
copies the file, and a
fresh process resumes the copy: `Evaluator.resume` from its call to its result, which holds every
recorded step, the two or three calls that were missing, and the closing of the file.
`TaskStore.reopen` alone is timed in another process. The medians of the rounds count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import shutil
import signal
import statistics
import subprocess
import sys
import time
from cProfile import Profile
from pathlib import Path
from typing import Any

from figures import Figure, parser_for, remarks, report, work_folder

from evaluator import Evaluator, HandlerConfig, TaskStore, TemplateLibrary
from evaluator.models.backend import ModelRequest
from evaluator.models.simulated import SimulatedBackend

NAME = "fold_notes"
TEMPLATE = f"""<task type="reduce" name="{NAME}">
  <description>Fold notes into one line</description>
  <context_management><accumulate_data>false</accumulate_data></context_management>
  <inputs>
    <input name="notes" type="array" required="true">the notes</input>
  </inputs>
  <inner_task>
    <task type="atomic" name="shorten_note">
      <description>Shorten one note</description>
      <instructions>Say in a few words what this note is about.

{{{{ current_input }}}}</instructions>
    </task>
  </inner_task>
  <reduction_task>
    <task type="atomic" name="fold_note">
      <description>Take one more note in</description>
      <instructions>So far: {{{{ accumulator }}}}

New: {{{{ current_result }}}}

Give both as one line.</instructions>
    </task>
  </reduction_task>
</task>
"""
NOTE = (
    "Note {}: the ferry to the island leaves the eastern pier at six, and at eight on Sundays; "
    "dogs need a ticket."
)
ANSWER = "The ferry leaves at six from the eastern pier, later on Sundays."
# The goal is for 10,000 steps.
GOAL_CALLS, GOAL_S = 5_000, 1.0


def make(folder: Path, tasks_dir: Path, calls: int | None) -> Evaluator:
    """An evaluator whose model answers at once, and kills this process in the call after
    `calls`.
    """
    made = 0

    def answer(_: ModelRequest) -> str:
        nonlocal made
        if made == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        made += 1
        return ANSWER

    templates = folder / "templates"
    templates.mkdir(exist_ok=True)
    (templates / f"{NAME}.xml").write_text(TEMPLATE, encoding="utf-8")
    library = TemplateLibrary.load(templates, shipped=False)
    return Evaluator(
        library,
        HandlerConfig(name="bench"),
        backend=SimulatedBackend(script=answer),
        tasks_dir=tasks_dir,
        roots=[folder],
        profiles={},
        notice=lambda _: None,
    )


def run_and_die(folder: Path, tasks_dir: Path, steps: int) -> None:
    notes = [NOTE.format(number) for number in range(steps // 2 + 1)]
    asyncio.run(make(folder, tasks_dir, steps).evaluate(NAME, {"notes": notes}))
    raise SystemExit("the run was not killed")


def resume_once(
    folder: Path, tasks_dir: Path, steps: int, profiler: Profile | None = None
) -> float:
    """Seconds that `Evaluator.resume` takes. Raises: SystemExit, if it does not go on where the run
    was killed.
    """
    evaluator = make(folder, tasks_dir, None)
    if profiler is not None:
        profiler.enable()
    started = time.perf_counter()
    outcome = asyncio.run(evaluator.resume(1))
    elapsed = time.perf_counter() - started
    if profiler is not None:
        profiler.disable()
    if not outcome.ok or outcome.notes["resumed"]["steps_from_record"] != steps:
        raise SystemExit(f"the resumed run came to {outcome}")
    return elapsed


def reopen_once(tasks_dir: Path) -> float:
    """Seconds that reading and checking the file takes."""
    store = TaskStore(tasks_dir)
    started = time.perf_counter()
    journal, _ = store.reopen(1)
    elapsed = time.perf_counter() - started
    journal.abandon()
    return elapsed


def in_child(part: str, folder: Path, tasks_dir: Path, steps: int) -> float | None:
    """What `part` says it took, in a process of its own; None for one that was killed.

    Raises: SystemExit, if it fails otherwise.
    """
    argv = [
        sys.executable,
        __file__,
        "--part",
        part,
        "--at",
        str(folder),
        str(tasks_dir),
        str(steps),
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{part} of {steps} steps failed")
    return float(json.loads(done.stdout))


def copied(killed: Path, to: Path) -> Path:
    shutil.copytree(killed, to)
    return to


def measure(all_steps: list[int], rounds: int, folder: Path, say: Any) -> list[Figure]:
    figures: list[Figure] = []
    for steps in all_steps:
        killed = folder / f"killed-{steps}"
        if in_child("run", folder, killed, steps) is not None:
            raise SystemExit("the run ended before it was killed")
        size = (killed / "active" / "TASK-1.md").stat().st_size
        reopened: list[float] = []
        resumed: list[float] = []
        for number in range(rounds):
            here = copied(killed, folder / f"resumed-{steps}-{number}")
            reopened.append(in_child("reopen", folder, here, steps) or 0.0)
            resumed.append(in_child("resume", folder, here, steps) or 0.0)
            say(
                f"{steps:,} calls, {size / 1e6:.1f} MB: read {reopened[-1]:.2f} s, resumed "
                f"{resumed[-1]:.2f} s"
            )
        goal = GOAL_S if steps == GOAL_CALLS else None
        figures += [
            Figure(
                f"resume {steps:,} completed calls, {2 * steps:,} steps",
                statistics.median(resumed),
                "s",
                goal,
            ),
            Figure("  of which reading and checking its file", statistics.median(reopened), "s"),
        ]
    return figures


def profile(steps: int, folder: Path) -> None:
    """Prints the functions that take the most time of their own; the profiler makes everything
    slower.
    """
    killed = folder / "killed"
    in_child("run", folder, killed, steps)
    profiler = Profile()
    resume_once(folder, killed, steps, profiler)
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for order, title in ((2, "own time"), (3, "with what it calls")):
        print(f"{title}: us a step, calls a step, function")
        for (file, line, name), values in sorted(stats.items(), key=lambda item: -item[1][order])[
            :50
        ]:
            where = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
            print(f"{values[order] / steps * 1e6:8.1f} {values[1] / steps:7.2f}  {where}")


def run_part(part: str, folder: Path, tasks_dir: Path, steps: int) -> None:
    if part == "run":
        run_and_die(folder, tasks_dir, steps)
    print(reopen_once(tasks_dir) if part == "reopen" else resume_once(folder, tasks_dir, steps))


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--calls", type=int, nargs="+", default=[1000, GOAL_CALLS, 10_000, 20_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the task files go, and stay")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    parser.add_argument("--part", choices=("run", "reopen", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        folder, tasks_dir, steps = arguments.at
        run_part(arguments.part, Path(folder), Path(tasks_dir), int(steps))
        return
    with work_folder(arguments.folder) as folder:
        if arguments.profile:
            profile(arguments.calls[0], folder)
            return
        figures = measure(arguments.calls, arguments.rounds, folder, remarks(arguments.json))
    report(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
