"""One seed: a queue, several processes that work on it, faults, and what must hold after each."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from evaluator import disk
from evaluator.errors import EvaluatorError, RecordError
from evaluator.queue import TaskQueue
from evaluator.queue.document import read_document
from evaluator.queue.entries import QueueEntry
from evaluator.queue.publication import CONFLICT
from evaluator.record.store import TaskStore
from tests.simulation.machine import Machine, SimulatedProcess
from tests.simulation.schedule import (
    Plan,
    Report,
    Schedule,
    Violation,
    evaluator_of,
    folder,
    marks_of,
)
from tests.simulation.simulated_disk import DISK_FAILS, DISK_FULL, Loss
from tests.simulation.simulated_loop import Hang
from tests.simulation.workload import QUEUE, World

WORKERS = 3
AT_ONCE = 2
LEASE_S = 60.0
# Each restart and each lost lease costs an attempt; none of them may block an entry here.
MAX_RETRIES = 50
# Virtual seconds in which an undisturbed queue is empty.
SPAN_S = 12.0
# About how many changes a worker makes.
CHANGES = 220
ROUNDS = 12
# Text, template, inputs, and the entries before it by their places.
ENTRIES: list[tuple[str, str | None, dict[str, Any], tuple[int, ...]]] = [
    ("Answer part one", "ask", {"what": "part one"}, ()),
    ("Deliver the parcel", None, {}, ()),
    ("Answer part two", "ask", {"what": "part two"}, (0,)),
    ("Write a long story in two chapters", "story", {}, ()),
    ("Answer part three", "ask", {"what": "part three"}, (1, 2)),
    ("Answer part four", "ask", {"what": "part four"}, ()),
]
EDITS = ("add", "goal")
_EMPTY = (
    *("subagent_session", "deliverable", "deliverable_path", "blocked_reason"),
    *("user_action_required", "started_at", "completed_at"),
)


@cache
def reference() -> dict[str, str]:
    """What each entry delivers in an undisturbed queue, by its text."""
    with folder() as root:
        schedule = QueueSchedule(Plan(0, QUEUE.name, "off", 0.0, ()), root)
        report = schedule.run()
        assert report.violation is None, report
        return schedule.delivered()


class QueueSchedule(Schedule):
    """Runs a plan with the queue. A fault's number says also when it happens and to whom."""

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.path = Path(root) / "queue"
        self.machine = Machine(self.world, self.files)
        self.is_one_host = self.random.random() < 0.5
        self.added: dict[str, str] = {}
        self.person: list[str] = []
        self.done: dict[str, str] = {}
        self.ended = Counter[str]()
        self.notices: list[str] = []
        self.was_paused = False
        self.has_failed = False
        self.working: dict[SimulatedProcess, str] = {}
        self.hosts = 0

    def run(self) -> Report:
        expected = reference() if self.plan.faults else {}
        with self.machine.running():
            main = self.machine.loop.create_task(self._run(expected))
            try:
                self.machine.loop.run_until_complete(main)
            except Violation as violation:
                self.report.violation = str(violation)
            except Hang as hang:
                self.report.violation = f"hangs: {hang}"
        return self.report

    async def _run(self, expected: dict[str, str]) -> None:
        self._promise()
        client = asyncio.create_task(self._add_all())
        keepers = [asyncio.create_task(self._keep_working(n)) for n in range(WORKERS)]
        try:
            for kind, at, how in self.plan.faults:
                await self._fault(kind, at, how)
            await client
            # Not all workers may be needed until the end.
            await asyncio.gather(*keepers)
            await self._keep_working(WORKERS)
        finally:
            for task in (client, *keepers):
                task.cancel()
        for process in list(self.machine.processes):
            self.machine.resume(process)
            await process.ended.wait()
        self.look_at_queue(is_end=True)
        if expected:
            self.check_delivered(expected)
        self.report.trace.append((len(self.world.billed), sum(self.world.billed.values())))
        self.report.counts["completed"] += 1

    # -- processes ---------------------------------------------------------------------------------

    def _place(self, number: int) -> tuple[str, int]:
        """Where a process runs: one machine with ids that differ, or containers of which each sees
        itself as the process 1 and may be started again under its host's name.
        """
        self.hosts += 1
        if self.is_one_host:
            return "simulated", 1000 + self.hosts
        if self.random.random() < 0.5 and not any(
            each.identity.host == f"host-{number}" for each in self.machine.processes
        ):
            return f"host-{number}", 1
        return f"container-{self.hosts}", 1

    async def _live(self, number: int, act: Callable[[], Any]) -> SimulatedProcess:
        host, pid = self._place(number)
        process = self.machine.start(act, host, pid)
        await process.ended.wait()
        if process.error is not None and not process.died and not process.life.fails:
            error = process.error
            raise Violation(f"a process ends with {type(error).__name__}: {error}")
        if process.error is not None and not isinstance(
            process.error, (EvaluatorError, asyncio.CancelledError)
        ):
            if not process.died:
                raise Violation(
                    f"a failing disk is a {type(process.error).__name__}: {process.error}"
                )
        return process

    async def _add_all(self) -> None:
        """The program that adds the entries, until all are added."""

        async def add() -> bool:
            with self._queue() as queue:
                ids: list[str] = []
                for place, (text, template, inputs, before) in enumerate(ENTRIES):
                    entry = queue.add(
                        text,
                        template=template,
                        inputs=inputs,
                        needs=[ids[each] for each in before],
                        max_retries=MAX_RETRIES,
                        key=f"entry-{place}",
                    )
                    ids.append(entry.id)
                    self._note_added(entry)
                    await asyncio.sleep(self.random.uniform(0.0, 0.5))
            return True

        for _ in range(ROUNDS):
            process = await self._live(90, add)
            if process.outcome:
                return
        raise Violation("the entries cannot be added")

    def _note_added(self, entry: QueueEntry) -> None:
        known = self.added.setdefault(entry.id, entry.description)
        if known != entry.description:
            raise Violation(f"{entry.id} was given twice: {known!r} and {entry.description!r}")

    async def _keep_working(self, number: int) -> None:
        """Starts a worker again until the queue is empty."""
        for _ in range(ROUNDS):
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            if self._is_empty():
                return
            await self._live(number, self._work)
        if self.plan.faults and not self._is_empty():
            raise Violation(f"workers end, but the queue is not empty: {self._statuses()}")

    async def _work(self) -> Any:
        with self._queue() as queue:
            return await queue.work(
                evaluator_of(self.world, self.files, self.plan.sync),
                workers=AT_ONCE,
                until_empty=True,
                unfinished="repeat",
                lease_s=LEASE_S,
                on_end=self._on_end,
            )

    def _on_end(self, entry: QueueEntry) -> None:
        if self.files.is_dead:
            return
        if entry.status == "done":
            self.ended[entry.id] += 1
            self.done[entry.id] = entry.deliverable or ""
            if self.ended[entry.id] > 1:
                raise Violation(f"{entry.id} ends twice as done")

    @contextmanager
    def _queue(self) -> Any:
        queue = TaskQueue(self.path, notice=self.notices.append)
        try:
            yield queue
        finally:
            queue.close()

    # -- faults ------------------------------------------------------------------------------------

    async def _fault(self, kind: str, at: float, how: str) -> None:
        self.report.counts[kind] += 1
        await asyncio.sleep(self.random.uniform(0.0, SPAN_S) * at)
        if kind == "edit":
            await self._edit()
            return
        processes = [each for each in self.machine.processes if not each.life.is_dead]
        if not processes:
            return
        process = self.random.choice(processes)
        if kind == "pause":
            self.was_paused = True
            self.machine.pause(process)
            self.machine.loop.call_later(
                self.random.choice((1.0, 70.0, 400.0)), self.machine.resume, process
            )
            return
        if kind == "jump":
            process.identity.jump_s += self.random.choice((-1e6, -3600.0, 3600.0, 1e5))
            return
        life = process.life
        life.how = how  # type: ignore[assignment]
        life.crash_at = life.changes + 1 + int(at * CHANGES)
        if kind in ("full", "fails"):
            self.has_failed = True
            life.fails = DISK_FULL if kind == "full" else DISK_FAILS
            return
        # Until it is killed; one that ends before is not.
        self.machine.resume(process)
        await process.ended.wait()
        if kind == "power":
            await self._lose_power()
        self.look_at_queue()

    async def _lose_power(self) -> None:
        await self.machine.kill_all()
        self.has_lost = True
        loss = Loss(
            self.random.choice(("ordered", "folders", "none")),
            self.random.choice(("prefix", "any", "zero")),
        )
        promised = set(self.files.recorded) if self.plan.sync == "step" else set()
        self.files.lose_power(self.random, loss)
        found = self._recorded()
        lost = promised - found
        if lost:
            raise Violation(f"recorded answers are lost: {sorted(lost)}")
        self.files.written = found
        self.files.recorded = set(found)
        self._promise()

    def _promise(self) -> None:
        """Notes calls for answers that are recorded."""
        self.world.is_known = lambda digest: f"ANS-{digest}" in self.files.written

    def _recorded(self) -> set[str]:
        """The answers in the task files."""
        found: set[str] = set()
        store = TaskStore(f"{self.files.root}/tasks")
        for path in sorted(Path(self.files.root).glob("tasks/*/TASK-*.md")):
            with suppress(RecordError):
                for step in store.read(path, repair=True).steps:
                    if step.is_answer and step.end is not None:
                        found |= marks_of(json.dumps(step.end.output))
        return found

    async def _edit(self) -> None:
        """A person reads the published file, and saves it with a change some seconds later."""
        file = self.path / "task-queue.json"
        try:
            document = json.loads(file.read_bytes())
        except FileNotFoundError:
            return
        await asyncio.sleep(self.random.choice((0.0, 0.2, 3.0)))
        what = self.random.choice(EDITS)
        text = f"Answer what a person asks, number {len(self.person) + 1}"
        if what == "add":
            number = int((document["lastId"] or "T-00")[2:]) + 1
            document["tasks"].append(
                {
                    **dict.fromkeys(_EMPTY),
                    "id": f"T-{number:02d}",
                    "description": text,
                    "goal": text,
                    "type": "unknown",
                    "status": "pending",
                    "retries": 0,
                    "maxRetries": MAX_RETRIES,
                    "strategies_tried": [],
                    "added_at": "2027-01-15T08:00:00Z",
                }
            )
        else:
            pending = [each for each in document["tasks"] if each["status"] == "pending"]
            if not pending:
                return
            self.random.choice(pending)["goal"] = text
        if not self.path.is_dir():
            return
        temporary = f"{file}.edited"
        with disk.create(temporary) as written:
            written.write(json.dumps(document, indent=2).encode())
            disk.fsync(written.fileno())
        disk.rename(temporary, file)
        disk.sync_folder(self.path)
        self.person.append(text)

    # -- invariants --------------------------------------------------------------------------------

    def _entries(self) -> list[QueueEntry]:
        if not os.path.lexists(self.path / "queue.sqlite"):
            return []
        with self._queue() as queue:
            return queue.list()

    def _statuses(self) -> dict[str, str]:
        return {entry.id: entry.status for entry in self._entries()}

    def _is_empty(self) -> bool:
        entries = self._entries()
        return len(self.added) >= len(ENTRIES) and all(
            entry.status in ("done", "skipped", "blocked") for entry in entries
        )

    def look_at_queue(self, *, is_end: bool = False) -> None:
        if self.world.known_again and not self.was_paused:
            raise Violation(f"recorded and asked for again: {self.world.known_again}")
        file = self.path / "task-queue.json"
        if file.exists():
            read_document(file.read_bytes(), str(file))
        entries = {entry.id: entry for entry in self._entries()}
        for number, text in self.added.items():
            if number not in entries:
                raise Violation(f"{number} was added and is lost")
            if entries[number].description != text:
                raise Violation(f"{number} has another text: {entries[number].description!r}")
        for number, deliverable in self.done.items():
            entry = entries[number]
            if entry.status != "done" or entry.deliverable != deliverable:
                raise Violation(f"{number} was done and is {entry.status}")
        for entry in entries.values():
            if entry.status == "done":
                assert entry.deliverable_path is not None
                if not Path(entry.deliverable_path).exists():
                    raise Violation(f"{entry.id} is done, and its deliverable is lost")
        if is_end:
            self._check_end(entries)

    def _check_end(self, entries: dict[str, QueueEntry]) -> None:
        not_done = {each.id: each.blocked_reason for each in entries.values() if each.status != "done"}
        if not_done:
            raise Violation(f"not done: {not_done}")
        if len({each.description for each in entries.values()}) < len(entries):
            raise Violation("an entry is there twice")
        if self._is_published_behind():
            raise Violation("the published file is not the queue's last state")
        conflicts = self.path / CONFLICT
        known = json.dumps([each.description + each.goal for each in entries.values()])
        known += conflicts.read_text() if conflicts.exists() else ""
        known += " ".join(self.notices)
        lost = [text for text in self.person if text not in known]
        if len(self.person) == 1 and lost:
            raise Violation(f"edits of a person are lost: {lost}")

    def _is_published_behind(self) -> bool:
        with self._queue() as queue:
            queue.publish()
            return queue.export() != (self.path / "task-queue.json").read_bytes()

    def delivered(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in sorted(self.path.glob("deliverables/*.md")):
            found[path.stem] = path.read_text()
        return found

    def check_delivered(self, expected: dict[str, str]) -> None:
        found = self.delivered()
        by_text = {text: number for number, text in self.added.items()}
        for place, (text, *_) in enumerate(ENTRIES):
            number = by_text[text]
            if found.get(number) != expected[f"T-{place + 1:02d}"]:
                raise Violation(
                    f"{number} delivers {found.get(number)!r}, expected "
                    f"{expected[f'T-{place + 1:02d}']!r}"
                )
