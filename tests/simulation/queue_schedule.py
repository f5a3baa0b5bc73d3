"""One seed: a queue, several processes that work on it, faults, and what must hold after each."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Coroutine
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from evaluator import UsageError, disk
from evaluator.jobs.document import read_document
from evaluator.jobs.entries import QueueEntry
from evaluator.jobs.queue_files import CONFLICT
from evaluator.queue import TaskQueue
from tests.simulation.machine_schedule import PATIENCE_S, MachineSchedule
from tests.simulation.schedule import Plan, Violation, evaluator_of, folder
from tests.simulation.workload import QUEUE

WORKERS = 3
AT_ONCE = 2
LEASE_S = 60.0
# Each restart and each lost lease costs an attempt; none of them may block an entry here.
MAX_RETRIES = 50
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
EDITS = ("add", "goal", "done", "deliverable", "skip")
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


class QueueSchedule(MachineSchedule):
    """Runs a plan with the queue."""

    @classmethod
    def warm(cls, plan: Plan) -> None:
        reference()

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.path = Path(root) / "queue"
        self.added: dict[str, str] = {}
        self.person: list[str] = []
        self.saved = b""
        self.skipped: set[str] = set()
        self.done: dict[str, str] = {}
        self.ended = Counter[str]()

    def programs(self) -> list[Coroutine[Any, Any, None]]:
        return [self._add_all(), *(self._keep_working(n) for n in range(WORKERS))]

    async def finish(self) -> None:
        # An edit may have come after the last worker.
        await self._keep_working(WORKERS)

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
            process = await self.live(90, add)
            if process.outcome:
                return
        raise Violation("the entries cannot be added")

    def _note_added(self, entry: QueueEntry) -> None:
        known = self.added.setdefault(entry.id, entry.description)
        if known != entry.description:
            raise Violation(f"{entry.id} was given twice: {known!r} and {entry.description!r}")

    async def _keep_working(self, number: int) -> None:
        """Starts a worker again until the queue is empty."""
        while self.machine.loop.time() < PATIENCE_S:
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            await self.machine.is_on.wait()
            if self._is_empty():
                return
            await self.live(number, self._work)
            await asyncio.sleep(self.random.uniform(0.0, 20.0))
        raise Violation(f"workers end, but the queue is not empty: {self._statuses()}")

    async def _work(self) -> Any:
        with self._queue() as queue:
            summary = await queue.work(
                evaluator_of(self.world, self.files, self.plan.sync),
                workers=AT_ONCE,
                until_empty=True,
                unfinished="repeat",
                lease_s=LEASE_S,
                on_end=self._on_end,
            )
        life = self.files.life
        if summary.lost and not (self.was_paused or life.fails or life.is_dead):
            raise Violation("a process that renews its leases has lost one")
        return summary

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

    # -- a person ----------------------------------------------------------------------------------

    async def edit(self) -> None:
        """A person reads the published file, and saves it with a change some seconds later."""
        file = self.path / "task-queue.json"
        try:
            document = json.loads(file.read_bytes())
        except FileNotFoundError:
            return
        await asyncio.sleep(self.random.choice((0.0, 0.2, 3.0)))
        what = self.random.choice(EDITS)
        text = f"Answer what a person asks, number {len(self.person) + 1}"
        if what in ("add", "done"):
            number = int((document["lastId"] or "T-00")[2:]) + 1
            entry = {
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
            if what == "done":
                entry.update(status="done", deliverable=text, completed_at=entry["added_at"])
            document["tasks"].append(entry)
        else:
            status = "done" if what == "deliverable" else "pending"
            entries = [each for each in document["tasks"] if each["status"] == status]
            if what == "skip":
                # No other entry needs what it delivers.
                entries = [each for each in entries if each["description"] == ENTRIES[-1][0]]
            if not entries:
                return
            entry = self.random.choice(entries)
            if what == "skip":
                entry["status"] = "skipped"
                self.skipped.add(entry["id"])
            else:
                entry[what] = text
        if not self.path.is_dir():
            return
        temporary = f"{file}.edited"
        self.saved = json.dumps(document, indent=2).encode()
        with disk.create(temporary) as written:
            written.write(self.saved)
            disk.fsync(written.fileno())
        disk.rename(temporary, file)
        disk.sync_folder(self.path)
        self.report.counts[f"edit: {what}"] += 1
        if what != "skip":
            self.person.append(text)

    def _given_up(self) -> set[str]:
        # An attempt with a damaged record is followed by a new one.
        return self._recorded() - self._recorded(repair=False)

    # -- invariants --------------------------------------------------------------------------------

    def _entries(self) -> list[QueueEntry]:
        if not os.path.lexists(self.path / "queue.sqlite"):
            return []
        with self._queue() as queue:
            entries = {entry.id: entry for entry in queue.list()}
            for number in self.added:
                # A wall clock that jumps ahead lets old entries be archived.
                with suppress(UsageError):
                    entries.setdefault(number, queue.show(number).entry)
            return list(entries.values())

    def _statuses(self) -> dict[str, str]:
        return {entry.id: entry.status for entry in self._entries()}

    def _is_empty(self) -> bool:
        return len(self.added) >= len(ENTRIES) and all(
            entry.status in ("done", "skipped", "blocked") for entry in self._entries()
        )

    def check(self, *, is_end: bool = False) -> None:
        if self.world.known_again and not self.was_paused:
            raise Violation(f"recorded and asked for again: {self.world.known_again}")
        file = self.path / "task-queue.json"
        if file.exists() and file.read_bytes() != self.saved:
            read_document(file.read_bytes(), str(file))
        entries = {entry.id: entry for entry in self._entries()}
        for number, text in self.added.items():
            if number not in entries:
                raise Violation(f"{number} was added and is lost")
            if entries[number].description != text:
                raise Violation(f"{number} has another text: {entries[number].description!r}")
        for number, deliverable in self.done.items():
            entry = entries[number]
            is_same = entry.deliverable in (deliverable, *self.person)
            if entry.status != "done" or not is_same:
                raise Violation(f"{number} was done and is {entry.status}")
        for entry in entries.values():
            if entry.status == "done" and entry.deliverable != entry.description:
                assert entry.deliverable_path is not None
                if not Path(entry.deliverable_path).exists():
                    raise Violation(f"{entry.id} is done, and its deliverable is lost")
        if is_end:
            self._check_end(entries)

    def _check_end(self, entries: dict[str, QueueEntry]) -> None:
        not_done = {
            each.id: each.blocked_reason
            for each in entries.values()
            if each.status != "done" and not (each.status == "skipped" and each.id in self.skipped)
        }
        if not_done:
            raise Violation(f"not done: {not_done}")
        if len({each.description for each in entries.values()}) < len(entries):
            raise Violation("an entry is there twice")
        if self._is_published_behind():
            raise Violation("the published file is not the queue's last state")
        conflicts = self.path / CONFLICT
        known = json.dumps(
            [[each.description, each.goal, each.deliverable] for each in entries.values()]
        )
        known += conflicts.read_text() if conflicts.exists() else ""
        known += " ".join(self.notices)
        lost = [text for text in self.person if text not in known]
        if len(self.person) == 1 and lost:
            raise Violation(f"edits of a person are lost: {lost}")
        if self.plan.faults:
            self.check_delivered(reference())

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
        for place, (text, *_, before) in enumerate(ENTRIES):
            number = by_text[text]
            if number in self.skipped and number not in found:
                continue
            # The prompt names the entries before it, which have other ids if a person has added one.
            if before and number != f"T-{place + 1:02d}" and number in found:
                continue
            if found.get(number) != expected[f"T-{place + 1:02d}"]:
                raise Violation(
                    f"{number} delivers {found.get(number)!r}, expected "
                    f"{expected[f'T-{place + 1:02d}']!r}"
                )
