"""One seed: a batch, faults, the sessions that resume it, and what must hold after each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from evaluator import Evaluator, RecordError, TaskStore, run_batch
from evaluator.batch import merge_shards, open_batch
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import is_sealed
from evaluator.batch.work import sample_label
from evaluator.errors import BatchDamaged
from tests.simulation.schedule import Plan, Process, Schedule, Violation, folder, live
from tests.simulation.simulated_disk import MARK, SimulatedDisk
from tests.simulation.workload import BATCH, World

ROWS = [{"id": f"row-{n}", "what": f"part {n}", "target": "answer"} for n in range(8)]
EPOCHS = 2
# Where each call is told apart by its request.
EPOCHS_OF = {"workers": 1, "waves": 1, "together": 1, "fifty": 1}
FIFTY = [{"id": f"row-{n}", "what": f"part {n}", "target": "answer"} for n in range(50)]
# Each question is in two rows.
TWICE = [{**row, "what": f"part {place // 2}"} for place, row in enumerate(ROWS)]
EXAMPLES = [{"what": f"example {n}", "target": f"answer {n}"} for n in range(4)]
CONCURRENCY = 4
SHARDS = 2
ROWS_OF = {"together": TWICE, "fifty": FIFTY}
SCORERS: list[Any] = [
    "includes",
    {"type": "graded", "template": "judge", "inputs": {"reply": "output"}},
]
# Each answer that a result needs: of the task and of its judge, by the result's identity.
Needed = dict[str, Counter[str]]


# Half of the answers are expected to pass, and all do: with 8 rows this is decided at the last look but one.
DECIDE = {"detect": 0.5, "baseline": 0.5, "stop_early": True}
OPTIONS_OF: dict[str, dict[str, Any]] = {
    "decided": {"decide": DECIDE},
    "waves": {"provider_batch": True, "wait": True},
    "together": {"fewshot": {"rows": EXAMPLES, "k": 2, "seed": 1}},
}


async def act(evaluator: Evaluator, path: Path, *, repair: bool, form: str, **options: Any) -> Any:
    """What each process does: what is left of the batch, or of its shards and of their merge."""

    async def batch(path: Path, **more: Any) -> Any:
        return await run_batch(
            "ask",
            ROWS_OF.get(form, ROWS),
            evaluator=evaluator,
            inputs={"what": "what"},
            id="id",
            target="target",
            epochs=EPOCHS_OF.get(form, EPOCHS),
            scorers=SCORERS[:1] if form == "fifty" else SCORERS,
            limits={"concurrency": CONCURRENCY},
            output=path,
            task_files="each" if form == "each" else "packed",
            resume=True,
            repair=repair,
            display="none",
            **{**OPTIONS_OF.get(form, {}), **options, **more},
        )

    if form == "shards" and not is_merged(path):
        for number, shard in enumerate(shards_of(path), 1):
            await batch(shard, select={"shard": f"{number}/{SHARDS}"})
        merge_shards(shards_of(path), path)
    return await batch(path)


def is_merged(path: Path) -> bool:
    return path.exists()


def shards_of(path: Path) -> list[Path]:
    return [path.with_name(f"shard-{number}") for number in range(1, SHARDS + 1)]


def answers_of(path: Path, found: Collection[str] = ()) -> Needed:
    """The recorded answers of a batch's task files, except of samples whose results are `found`."""
    answers: Needed = {}
    seen: set[tuple[str, str]] = set()
    store = TaskStore(path / "tasks")
    for task, _, labels in store.labelled():
        label = sample_label(labels)
        identity = label.partition("/")[0]
        if identity in found:
            continue
        try:
            recording = store.read(task, repair=True)
        except RecordError:
            continue
        for step in recording.steps:
            if not step.is_answer or step.end is None:
                continue
            for mark in MARK.findall(str(step.end.output)):
                if (label, mark) not in seen:
                    seen.add((label, mark))
                    answers.setdefault(identity, Counter())[mark] += 1
    return answers


def results_of(path: Path) -> dict[str, dict[str, Any]]:
    """What is the same in each run of the results by their identities."""
    found: dict[str, dict[str, Any]] = {}
    for result in BatchFolder.reader(path).results():
        found[result.identity] = {
            "sample": result.sample_id,
            "epoch": result.epoch,
            "verdict": result.verdict.value,
            "content": result.content,
            "scores": {name: score.value for name, score in result.scores.items()},
        }
    return found


def results_found(path: Path, on_damage: Callable[[RecordError], None]) -> set[str]:
    """The identities of the results of a batch. `on_damage` gets what cannot be read."""
    if not (path / "manifest.json").exists():
        return set()
    store = TaskStore(path / "tasks")
    for file in path.glob("tasks/*/TASK-*.md"):
        try:
            store.read(file)
        except RecordError as error:
            on_damage(error)
    for error in store.damage():
        on_damage(error)
    batch = BatchFolder.reader(path)
    try:
        batch.manifest()
        return {entry.identity.decode() for entry in batch.index().values()}
    except BatchDamaged as error:
        on_damage(error)
    results = path / "results.jsonl"
    if not results.exists():  # a loss of power took its name: the new manifest's was certain first
        return set()
    lines = results.read_bytes().splitlines(keepends=True)
    return {json.loads(line)["identity"] for line in lines if is_sealed(line)}


def check_batch(path: Path, outcome: Any, expected: Mapping[str, Any], cost: float | None) -> None:
    """Checks a batch that has ended. `cost`: that of an undisturbed one, if it must be the same.

    Raises: Violation.
    """
    if not outcome.is_complete:
        raise Violation(f"the batch ended {outcome.ended}")
    try:
        found = results_of(path)
    except RecordError as error:
        raise Violation(f"unreadable: {error}") from error
    if found != expected:
        different = {
            key: (found.get(key), expected.get(key))
            for key in {*found, *expected}
            if found.get(key) != expected.get(key)
        }
        raise Violation(f"other results, found and expected: {different}")
    lines = Counter(line.identity for line in BatchFolder.reader(path).lines())
    twice = [identity for identity, count in lines.items() if count > 1]
    if twice:
        raise Violation(f"results that were written twice: {twice}")
    again = open_batch(path).summarise()
    if again.to_dict() != outcome.summary.to_dict():
        raise Violation("the summary recomputed from the results is another one")
    total = outcome.summary.spending.cost_usd.total
    if cost is not None and abs(total - cost) > 1e-9:
        raise Violation(f"the batch cost {total}, an undisturbed one {cost}")


@cache
def reference(
    sync: str, form: str
) -> tuple[dict[str, dict[str, Any]], int, Needed, Counter[str], float]:
    """The undisturbed batch: its results, changes of the disk, answers by result, calls, cost."""
    with folder() as root:
        world = World(BATCH, Random(0), 0.0)
        path = Path(root) / "batch"
        done = live(
            world,
            SimulatedDisk(root),
            sync,
            1,
            lambda evaluator: act(evaluator, path, repair=False, form=form),
        )
        assert done.outcome.is_complete, done.outcome
        cost = done.outcome.summary.spending.cost_usd.total
        return results_of(path), done.changes, answers_of(path), world.billed, cost


class BatchSchedule(Schedule):
    """Runs a plan with the batch."""

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.path = Path(root) / "batch"
        # What is left to ask for: of each answer, how often.
        self.left = Counter(reference(plan.sync, plan.form)[3])

    @classmethod
    def warm(cls, plan: Plan) -> None:
        reference(plan.sync, plan.form)

    def changes(self) -> int:
        return reference(self.plan.sync, self.plan.form)[1]

    def act(self) -> Callable[[Evaluator], Any]:
        repair = self.is_damaged
        form = self.plan.form
        return lambda evaluator: act(evaluator, self.path, repair=repair, form=form)

    def check_nothing_again(self, billed: Counter[str], effects: Counter[str]) -> None:
        for digest, count in self.world.billed.items():
            asked = count - billed[digest]
            # A call that failed may have been billed.
            allowed = self.left[digest] + bool(self.plan.provider_faults)
            if asked > allowed:
                raise Violation(
                    f"process {self.number} asked {asked} times for {digest}, {allowed} were left"
                )

    def check_refusal(self, done: Process) -> None:
        self.check_error(done)

    def look(self) -> None:
        self.is_damaged = False
        self.task = 1
        found: set[str] = set()
        answers: Needed = {}
        # A merge copies what the shards have.
        folders = (*shards_of(self.path), self.path)
        for path in folders:
            found |= results_found(path, self._check_damage)
        for path in folders:
            for identity, marks in answers_of(path, found).items():
                answers[identity] = answers.get(identity, Counter()) | marks
        _, _, needed, asked, _ = reference(self.plan.sync, self.plan.form)
        recorded: Counter[str] = Counter()
        for identity, marks in needed.items():
            recorded += marks if identity in found else answers.get(identity, Counter())
        self.left = Counter(asked)
        for mark, count in recorded.items():
            self.left[mark.removeprefix("ANS-")] -= count
        kept = {*recorded, *(f"RESULT-{identity}" for identity in found)}
        lost = self.promised() - kept
        if lost:
            raise Violation(f"recorded answers or results are lost: {sorted(lost)}")
        self.files.written = set(kept)
        if self.last_fault() == "power":
            self.files.recorded = set(kept)

    def check_end(self, done: Process) -> None:
        if done.error is not None:
            raise Violation(f"{type(done.error).__name__}: {done.error}")
        expected, _, _, billed, cost = reference(self.plan.sync, self.plan.form)
        check_batch(self.path, done.outcome, expected, None if self.plan.provider_faults else cost)
        if self.plan.form == "shards":
            shards, merged = (
                {mark for path in paths for marks in answers_of(path).values() for mark in marks}
                for paths in (shards_of(self.path), [self.path])
            )
            if not shards <= merged:
                raise Violation(f"the merged batch lacks answers of the shards: {shards - merged}")
        missing = [digest for digest, count in billed.items() if self.world.billed[digest] < count]
        if missing:
            raise Violation(f"answers that nobody paid for: {missing}")
        if not self.has_lost:
            self.check_ledger(self.path / "tasks")
        self.report.counts["completed"] += 1
