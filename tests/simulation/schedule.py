"""One seed: a run, faults, the processes that resume it, and what must hold after each."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from evaluator import CorruptRecord, Evaluator, EvaluatorError, RecordError, Recording, TaskStore
from evaluator.errors import RecordNotWritten
from tests.simulation.effects import JUMPS_S, Identity, boot_of, effects
from tests.simulation.generated import NAME as GENERATED
from tests.simulation.generated import name_of
from tests.simulation.simulated_disk import (
    DISK_FAILS,
    DISK_FULL,
    MARK,
    SUBTASK,
    Dead,
    Loss,
    SimulatedDisk,
)
from tests.simulation.simulated_loop import Hang, SimulatedLoop
from tests.simulation.workload import (
    ANSWER,
    BATCH,
    CONTROLLED,
    PROFILE,
    TOOLS,
    WAVES,
    WORKLOAD,
    WORKLOADS,
    Provider,
    World,
    case_named,
    library_of,
    result_of,
)

PLACE = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")
SYNCS = ("off", "task", "step")
# Workloads that are forms of `batch`.
BATCH_FORMS = ("packed", "decided", "shards", "fifty")
# Workloads whose calls go into provider batches.
WAVE_FORMS = (WAVES.name, CONTROLLED.name)
FAULTS = ("kill", "kill", "power", "power", "full", "fails")
MACHINE_FAULTS = (*FAULTS, "pause", "pause", "jump")
FAULTS_OF = {
    "background": MACHINE_FAULTS,
    "workers": MACHINE_FAULTS,
    "together": (*MACHINE_FAULTS, "command", "command"),
    "queue": (*FAULTS, "pause", "pause", "edit", "edit", "jump"),
}


@dataclass(frozen=True)
class Plan:
    """What a seed decides. `faults` is one for each process that does not end by itself: its kind, and where in the
    run, from 0 to 1, it happens.
    """

    seed: int
    case: str
    sync: str
    provider_faults: float
    faults: tuple[tuple[str, float, str], ...]
    # Of a batch: how it is recorded, or what it does besides.
    form: str = "each"

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {how} at {at:.3f}" for kind, at, how in self.faults)
        return (
            f"seed {self.seed}: {self.case} ({self.form}); sync={self.sync}; provider faults "
            f"{self.provider_faults:g}; {faults or 'undisturbed'}"
        )


def plan_of(seed: int, workload: str = "single") -> Plan:
    random = Random(seed)
    faults = FAULTS_OF.get(workload, FAULTS)
    kinds = [random.choice(faults) for _ in range(random.choice((1, 1, 2, 3)))]
    case = random.choice(list(WORKLOAD))
    return Plan(
        seed,
        {"single": case, "generated": name_of(seed), **dict.fromkeys(BATCH_FORMS, BATCH.name)}.get(
            workload, workload
        ),
        random.choice(SYNCS),
        random.choice((0.0, 0.0, 0.0, 0.1)),
        tuple(
            (kind, random.random(), random.choice(("before", "half", "after"))) for kind in kinds
        ),
        workload if workload in BATCH_FORMS else "waves" if workload in WAVE_FORMS else "each",
    )


class Violation(Exception):
    """An invariant does not hold."""


@dataclass
class Process:
    """What one process did: its outcome, unless it was killed."""

    outcome: Any = None
    error: Exception | None = None
    died: bool = False
    changes: int = 0


@dataclass
class Report:
    """What happened in a schedule, and how it violated an invariant."""

    plan: Plan
    counts: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    # A copy of the task files after a violation.
    files: str | None = None
    # Of each process the changes of the disk and the calls, by which a repeated schedule is known.
    trace: list[tuple[int, int]] = field(default_factory=list)


def live(
    world: World, files: SimulatedDisk, sync: str, number: int, act: Callable[[Evaluator], Any]
) -> Process:
    """One process, to its end or its death."""

    def before_round() -> None:
        if files.is_dead:
            raise Dead

    world.is_dead = lambda: files.is_dead
    loop = SimulatedLoop(world.random, before_round)
    asyncio.set_event_loop(loop)
    found = Process()
    identity = Identity(
        1000 + number, number, "simulated", boot_of(files), world.random.choice(JUMPS_S)
    )
    with effects(world, files, loop, current=lambda: identity, alive=lambda: (identity,)):
        evaluator = evaluator_of(world, files, sync)
        main = loop.create_task(act(evaluator))
        try:
            found.outcome = loop.run_until_complete(main)
        except Dead:
            found.died = True
        except Hang:
            raise
        except BaseException as error:
            if files.is_dead:
                found.died = True
            elif isinstance(error, Exception):
                found.error = error.with_traceback(None)
            else:
                raise
        finally:
            found.changes = files.changes
            found.died = found.died or files.is_dead
            _end(loop, files)
            del evaluator, main, loop
            # Finalisers close files: those of this process run in it.
            gc.collect()
            files.end_process()
    return found


def evaluator_of(world: World, files: SimulatedDisk, sync: str) -> Evaluator:
    return Evaluator(
        library_of(world.case.name),
        "simulation",
        profiles={"simulation": PROFILE},
        backend=Provider(world),
        tasks_dir=f"{files.root}/tasks",
        tools=TOOLS,
        roots=[ROOTS],
        reparse=world.case.reparse,
        sync=sync,
        notice=lambda _: None,
    )


def _end(loop: SimulatedLoop, files: SimulatedDisk) -> None:
    """Ends what is left of a process; nothing that it still does reaches the disk."""
    files.life.is_dead = True
    loop._before_round = lambda: None
    # The order in which tasks are cancelled is that of a set, so that it decides nothing later.
    loop._random = Random(0)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        ended = asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Dead, asyncio.CancelledError, Hang):
            # A main task that was killed in its last round stops the loop once more.
            with suppress(RuntimeError):
                loop.run_until_complete(ended)
            if not ended.done():
                loop.run_until_complete(ended)
    loop.close()


ROOTS = PLACE / f"evaluator-simulation-{os.getpid()}-root"


@lru_cache(64)
def reference(
    case: str, sync: str
) -> tuple[dict[str, Any], dict[str, Any], int, Counter[str], Counter[str]]:
    """The undisturbed run: its result with and without usage, its changes of the disk, its calls and effects."""
    with folder() as root:
        world = World(case_named(case), Random(0), 0.0)
        files = SimulatedDisk(root)
        done = live(
            world,
            files,
            sync,
            1,
            lambda evaluator: evaluator.evaluate(world.case.request, world.case.inputs),
        )
    outcome = done.outcome.to_dict()
    assert outcome["status"] == world.case.status or not world.case.status, outcome
    return (
        result_of(outcome, with_usage=True),
        result_of(outcome, with_usage=False),
        done.changes,
        world.billed,
        world.effects,
    )


@contextmanager
def folder() -> Iterator[str]:
    ROOTS.mkdir(exist_ok=True)
    (ROOTS / "notes.txt").write_text("Tin melts at 232 degrees.\n")
    root = PLACE / f"evaluator-simulation-{os.getpid()}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(0o700)
    try:
        yield str(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Schedule:
    """Runs a plan."""

    def __init__(self, plan: Plan, root: str) -> None:
        self.plan = plan
        self.random = Random(plan.seed ^ 0x5EED)
        self.world = World(case_named(plan.case), self.random, plan.provider_faults)
        self.files = SimulatedDisk(root)
        self.report = Report(plan)
        self.task: int | None = None
        self.is_damaged = False
        self.has_lost = False
        self.recorded: set[str] = set()
        self.number = 0

    @classmethod
    def warm(cls, plan: Plan) -> None:
        """Makes the undisturbed run that a schedule is compared with."""
        reference(plan.case, plan.sync)

    def run(self) -> Report:
        try:
            for kind, at, how in self.plan.faults:
                if self._disturb(kind, at, how) is not None:
                    break
            else:
                self._finish()
        except Violation as violation:
            self.report.violation = str(violation)
        except Hang as hang:
            self.report.violation = f"hangs: {hang}"
        return self.report

    def changes(self) -> int:
        """How often the undisturbed run changes the disk."""
        return reference(self.plan.case, self.plan.sync)[2]

    def act(self) -> Callable[[Evaluator], Any]:
        """What the next process does."""
        case = self.world.case
        if self.task is None:
            return lambda evaluator: evaluator.evaluate(case.request, case.inputs)
        task, repair = self.task, self.is_damaged
        return lambda evaluator: evaluator.resume(task, unfinished="repeat", repair=repair)

    def _live(self, crash_at: int | None, how: str, fails: int = 0) -> Process:
        self.number += 1
        self.files.begin_process(crash_at, how, fails)  # type: ignore[arg-type]
        is_step = self.plan.sync == "step"
        billed = Counter(self.world.billed)
        effects = Counter(self.world.effects)
        promised = self.files.recorded if is_step else self.files.written
        self.world.is_recorded = lambda digest: self.is_recorded(f"ANS-{digest}", promised)
        done = live(self.world, self.files, self.plan.sync, self.number, self.act())
        if self.world.used_early:
            raise Violation(f"used before they were recorded: {self.world.used_early}")
        self.report.trace.append((done.changes, sum(self.world.billed.values())))
        self.check_nothing_again(billed, effects)
        return done

    def is_recorded(self, answer: str, promised: set[str]) -> bool:
        """Whether an answer that is sent to a model is where the policy promises it."""
        return answer in promised

    def check_nothing_again(self, billed: Counter[str], effects: Counter[str]) -> None:
        # Equal requests at several places of a run are not told apart.
        asked = reference(self.plan.case, self.plan.sync)[3]
        paid = [
            key
            for key, count in self.world.billed.items()
            if count > billed[key]
            and f"ANS-{key}" in self.recorded
            and asked[key] < 2
            and not self._is_of_several_places(f"ANS-{key}")
        ]
        done = [
            key
            for key, count in self.world.effects.items()
            if count > effects[key] and f"FX[{key}]" in self.recorded
        ]
        if paid or done:
            raise Violation(f"recorded and done again by process {self.number}: {paid} {done}")

    def _is_of_several_places(self, answer: str) -> bool:
        """Whether steps at several places made the request of an answer. An undisturbed run that fails may have
        cancelled all but one.
        """
        store = TaskStore(f"{self.files.root}/tasks")
        places: dict[str, set[tuple[int, str]]] = {}
        requests: set[str] = set()
        for task in store.ids():
            try:
                steps = store.read(task, repair=True).steps
            except RecordError:
                continue
            for step in steps:
                request = step.start.fingerprint
                places.setdefault(request, set()).add((task, step.start.path))
                if step.is_answer and step.end is not None and answer in str(step.end.output):
                    requests.add(request)
        return any(len(places[request]) > 1 for request in requests)

    def _disturb(self, kind: str, at: float, how: str) -> Process | None:
        """A process that is disturbed. Returns: what it did, if it ended before."""
        changes = self.changes()
        crash_at = 1 + int(at * (changes + 4 if self.task is None else changes / 2 + 8))
        fails = {"full": DISK_FULL, "fails": DISK_FAILS}.get(kind, 0)
        done = self._live(crash_at, how, fails)
        if kind in ("full", "fails"):
            self.report.counts[kind] += 1
            self.check_refusal(done)
        elif not done.died:
            self.check_end(done)
            return done
        else:
            self.report.counts[kind] += 1
        if kind == "power":
            self.files.generation += 1
            loss = Loss(
                self.random.choice(("ordered", "folders", "none")),
                self.random.choice(("prefix", "any", "zero")),
            )
            self.has_lost = True
            self.files.lose_power(self.random, loss)
        self.look()
        return None

    def check_refusal(self, done: Process) -> None:
        outcome = done.outcome
        self.check_error(done)
        if outcome is None or outcome.ok or outcome.cause is None:
            return
        if not isinstance(outcome.cause, (RecordNotWritten, EvaluatorError)):
            raise Violation(
                f"a failing disk is a {type(outcome.cause).__name__}: {outcome.message}"
            )

    def check_error(self, done: Process) -> None:
        if done.error is not None and not isinstance(done.error, EvaluatorError):
            raise Violation(f"raises {type(done.error).__name__}: {done.error}")

    def look(self) -> None:
        """What the next process finds: the task to resume, or none."""
        store = TaskStore(f"{self.files.root}/tasks")
        self.task = None
        self.is_damaged = False
        recordings: dict[int, Recording] = {}
        for path in sorted(Path(self.files.root).glob("tasks/*/TASK-*.md")):
            try:
                recording = store.read(path)
            except CorruptRecord as error:
                self._check_damage(error)
                try:
                    recording = store.read(path, repair=True)
                except CorruptRecord:
                    continue
            except RecordError as error:
                if not self.has_lost:
                    raise Violation(f"unreadable: {error}") from error
                continue
            if recording.header is None:
                continue
            recordings.setdefault(recording.header.task_id, recording)
            if recording.header.parent is None and self.task is None:
                self.task = recording.header.task_id
        self.recorded = set() if self.task is None else _answers_of(recordings, self.task)
        lost = self.promised() - self.recorded
        if lost:
            raise Violation(f"recorded answers are lost: {sorted(lost)}")
        self.files.written = set(self.recorded)
        if self.last_fault() == "power":
            # What is there now is on the disk itself.
            self.files.recorded = set(self.recorded)
        # The file of a subtask without a step is removed: it never began, and gets another id.
        self.files.recorded -= {
            f"{SUBTASK}{number}"
            for number, recording in recordings.items()
            if not recording.steps and recording.summary is None
        }
        if self.task is None:
            self.report.counts["begun anew"] += 1

    def last_fault(self) -> str:
        return self.plan.faults[self.number - 1][0]

    def promised(self) -> set[str]:
        """The answers that are still to be there after the last fault."""
        if self.last_fault() != "power":
            # A subtask that its parent names may not have begun.
            return {each for each in self.files.written if not each.startswith(SUBTASK)}
        # The results of a batch are synced whatever the policy.
        is_step = self.plan.sync == "step"
        return {each for each in self.files.recorded if is_step or each.startswith("RESULT-")}

    def _check_damage(self, error: RecordError) -> None:
        if not self.has_lost:
            raise Violation(f"unreadable without a loss of power: {error}")
        # What was synced lies before the damage.
        self.is_damaged = True
        self.report.counts["damaged"] += 1

    def _finish(self) -> None:
        done = self._live(None, "before")
        self.check_end(done)

    def check_end(self, done: Process) -> None:
        if done.error is not None:
            raise Violation(f"raises {type(done.error).__name__}: {done.error}")
        outcome = done.outcome
        with_usage, without, _, billed, _ = reference(self.plan.case, self.plan.sync)
        # In a generated run a step that fails cancels those beside it, sooner or later.
        is_cut = outcome.status != "COMPLETE" and self.plan.case.startswith(GENERATED)
        exact = self.plan.provider_faults == 0.0 and not is_cut
        found = result_of(outcome.to_dict(), with_usage=exact)
        expected = with_usage if exact else without
        if found != expected:
            different = {
                name: (value, expected[name])
                for name, value in found.items()
                if value != expected[name]
            }
            raise Violation(f"another result, found and expected: {different}")
        missing = [key for key in billed if not self.world.billed[key]]
        if missing and not is_cut:
            raise Violation(f"answers that nobody paid for: {missing}")
        self.check_ledger(Path(self.files.root) / "tasks")
        self.report.counts["completed"] += 1

    def check_ledger(self, folder: Path) -> None:
        """Each billed call is a recorded attempt, unless a loss of power or a disk that failed took the record."""
        if self.has_lost:
            return
        store = TaskStore(folder)
        attempts = 0
        for task in store.ids():
            for step in store.read(task).steps:
                attempts += step.start.kind == "model"
        billed = sum(self.world.billed.values())
        if billed > attempts:
            raise Violation(f"{billed} calls were billed, {attempts} recorded")


def _answers_of(recordings: Mapping[int, Recording], task: int) -> set[str]:
    """The answers and effects in the records of a task and of its subtasks, and which subtasks are there."""
    found: set[str] = set()
    tasks = [(task, None)]
    while tasks:
        number, parent = tasks.pop()
        recording = recordings.get(number)
        if recording is None or recording.known_header().parent != parent:
            continue
        if parent is not None:
            found.add(f"{SUBTASK}{number}")
        for step in recording.steps:
            if step.subtask_id is not None:
                tasks.append((step.subtask_id, number))
            if step.is_answer and step.end is not None:
                found |= marks_of(json.dumps(step.end.output))
    return found


def marks_of(output: str) -> set[str]:
    """The answers and effects in what a step records."""
    # A tool's answer has that of a subtask, whose file may be lost.
    return set(MARK.findall(output)) | {f"ANS-{digest}" for digest in ANSWER.findall(output)}


def run(plan: Plan) -> Report:
    gc.disable()
    try:
        return _run(plan)
    finally:
        gc.enable()


def _run(plan: Plan) -> Report:
    schedule = warm(plan)
    gc.collect()
    # The collections at the ends of the processes need not look at what is there before.
    gc.freeze()
    with folder() as root:
        report = schedule(plan, root).run()
        if report.violation is not None:
            report.files = f"{tempfile.gettempdir()}/evaluator-simulation-{plan.seed}"
            shutil.rmtree(report.files, ignore_errors=True)
            shutil.copytree(root, report.files)
        return report


def warm(plan: Plan) -> type[Schedule]:
    """Makes the undisturbed run of a plan. Returns: what runs it."""
    if plan.case in WORKLOADS:
        module = import_module(f"tests.simulation.{plan.case}_schedule")
        schedule: type[Schedule] = getattr(module, f"{plan.case.capitalize()}Schedule")
    else:
        schedule = Schedule
    schedule.warm(plan)
    return schedule


def shrink(plan: Plan) -> Plan:
    """The plan with as few faults as still violate an invariant."""
    smallest = plan
    for _ in range(3):
        for place in range(len(smallest.faults)):
            faults = smallest.faults[:place] + smallest.faults[place + 1 :]
            fewer = replace(smallest, faults=faults)
            if run(fewer).violation is not None:
                smallest = fewer
                break
        else:
            break
    if (
        smallest.provider_faults
        and run(replace(smallest, provider_faults=0.0)).violation is not None
    ):
        smallest = replace(smallest, provider_faults=0.0)
    return smallest
