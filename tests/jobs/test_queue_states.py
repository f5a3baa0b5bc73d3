"""The store follows the published transitions, whatever is done to it, in any order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evaluator import UsageError
from evaluator.jobs import entries
from evaluator.jobs.document import parse_entry, read_document
from evaluator.jobs.entries import EntryOptions, StrategyAttempt, entry_id, entry_number
from evaluator.jobs.queue_files import Publisher, archive
from evaluator.jobs.queue_store import QueueStore

# The published table, written down a second time.
NEXT = {
    "pending": {"running", "skipped"},
    "running": {"done", "pending", "blocked"},
    "blocked": {"pending"},
    "done": set(),
    "skipped": set(),
}
LEASE_S = 60.0
picks = st.integers(0, 9)


class Queue(RuleBasedStateMachine):
    """The model is the status and the number of attempts of each entry, and the leases that are held."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder, self.now = Path(self.home.name), 1e9
        self.wall = patch("evaluator.clock.wall", lambda: self.now)
        self.wall.start()
        self.store = QueueStore(self.folder / "queue.sqlite")
        self.store.configure(max_concurrent=2)
        self.publisher = Publisher(self.store, self.folder, lambda line: None)
        self.status: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.leases: dict[int, object] = {}
        self.lost: list[object] = []
        self.archived: set[int] = set()

    def teardown(self) -> None:
        self.store.close()
        self.wall.stop()
        self.home.cleanup()

    def move(self, number: int, status: str, attempts: int = 0) -> None:
        assert status in NEXT[self.status[number]]
        self.status[number] = status
        self.attempts[number] += attempts

    def attempt(self, claim) -> StrategyAttempt:
        return StrategyAttempt(
            claim.attempt_number, "s", "evaluator", entries.timestamp(self.now), "r"
        )

    @rule(priority=st.integers(0, 2), retries=st.integers(1, 2), needs=st.none() | picks)
    def add(self, priority, retries, needs):
        number = len(self.status) + 1
        needed = (
            () if needs is None or not self.status else (entry_id(needs % len(self.status) + 1),)
        )
        entry = self.store.add(
            "t", "t", "unknown", EntryOptions(priority=priority, needs=needed), retries
        )
        assert entry.id == entry_id(number)
        self.status[number], self.attempts[number] = "pending", 0

    @rule()
    def claim(self):
        self.store.recover()
        claim = self.store.claim(LEASE_S)
        if claim is None:
            return
        number = entry_number(claim.entry.id)
        self.move(number, "running")
        assert number not in self.leases and len(self.leases) < 2
        assert all(self.status[entry_number(needed)] == "done" for needed in claim.options.needs)
        self.leases[number] = claim

    @precondition(lambda self: self.leases)
    @rule(pick=picks, end=st.sampled_from(["complete", "fail", "release", "block"]))
    def end(self, pick, end):
        number = sorted(self.leases)[pick % len(self.leases)]
        claim = self.leases.pop(number)
        now, attempt = entries.timestamp(self.now), self.attempt(claim)
        changes = {
            "complete": lambda e: entries.complete(e, attempt, now, deliverable="d", path=None),
            "fail": lambda e: entries.fail(e, attempt, now, reason="r", action="a"),
            "release": lambda e: entries.release(e, attempt),
            "block": lambda e: entries.block(e, now, reason="r", action="a"),
        }
        ended = self.store.end(claim, changes[end])
        assert ended is not None  # also after its time: nobody else has taken it yet
        self.move(number, ended.status, 0 if end == "block" else 1)
        self.lost.append(claim)

    @precondition(lambda self: self.lost)
    @rule(pick=picks)
    def end_without_a_lease(self, pick):
        claim = self.lost[pick % len(self.lost)]
        assert self.store.end(claim, lambda e: entries.release(e, self.attempt(claim))) is None
        assert not self.store.extend(claim, LEASE_S)

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def lose(self, pick):
        number = sorted(self.leases)[pick % len(self.leases)]
        claim = self.leases.pop(number)
        with self.store.transaction() as db:
            db.execute("DELETE FROM lease WHERE token = ?", (claim.lease,))
        self.store.recover()
        self.lost.append(claim)
        self.move(number, self.store.get(number).entry.status, 1)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S, 8 * 86_400.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def extend(self, pick):
        number = sorted(self.leases)[pick % len(self.leases)]
        claim = self.leases[number]
        assert self.store.extend(claim, LEASE_S)
        self.leases[number] = claim

    @precondition(lambda self: self.status)
    @rule(pick=picks, verb=st.sampled_from(["skip", "retry"]))
    def ask(self, pick, verb):
        number = pick % len(self.status) + 1
        wanted = {"skip": "skipped", "retry": "pending"}[verb]
        allowed = {"skip": "pending", "retry": "blocked"}[verb] == self.status[
            number
        ] and number not in self.archived
        try:
            getattr(self.store, verb)(number)
        except UsageError:
            assert not allowed
        else:
            assert allowed
            self.move(number, wanted)

    @rule()
    def archive(self):
        for ids in archive(self.store, self.folder).values():
            for number in map(entry_number, ids):
                assert (
                    self.status[number] in ("done", "blocked", "skipped")
                    and number not in self.archived
                )
                self.archived.add(number)

    @invariant()
    def is_as_the_model_says(self):
        found = {entry_number(e.id): e for e in map(parse_entry, self.store.documents())}
        assert found.keys() == self.status.keys() - self.archived
        for number, entry in found.items():
            assert (entry.status, len(entry.strategies_tried)) == (
                self.status[number],
                self.attempts[number],
            )
            assert [a.attempt for a in entry.strategies_tried] == list(
                range(1, self.attempts[number] + 1)
            )
            assert (entry.completed_at is not None) == (
                entry.status in ("done", "blocked", "skipped")
            )
            assert (entry.subagent_session is not None) == (entry.status == "running")

    @rule()
    def publish(self):
        assert self.publisher.publish()
        data = (self.folder / "task-queue.json").read_bytes()
        document = read_document(data, "q")
        assert document.tasks == tuple(map(parse_entry, self.store.documents()))
        assert json.loads(data)["lastId"] == (entry_id(len(self.status)) if self.status else None)


def test_the_transitions_are_the_published_ones():
    assert {status: set(following) for status, following in entries.TRANSITIONS.items()} == NEXT


Queue.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestQueueStates = Queue.TestCase
