"""The entries of a queue, their order, dependencies and leases; several processes use one store at
once.

Each transition is one transaction that holds only if the entry is still in the state, and under the
lease, that the caller saw. A lease ends with its process, or if it is not renewed: then the entry
returns to the queue with its attempt recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from evaluator import clock, randomness
from evaluator.errors import UsageError
from evaluator.jobs import entries
from evaluator.jobs.document import parse_entry
from evaluator.jobs.entries import (
    INTERRUPTED,
    BegunAttempt,
    EntryOptions,
    EntryStatus,
    EntryType,
    QueueEntry,
    entry_id,
    entry_number,
    next_time,
    timestamp,
)
from evaluator.jobs.queue_tables import ENTRY, QueueTables
from evaluator.lazy_dataclass import frozen
from evaluator.store import leases
from evaluator.store.owners import current_owner, owner_text

_STATUS_OF_NEEDED = """
    coalesce((SELECT status FROM entry WHERE entry.number = dependency.needs),
             (SELECT status FROM archived WHERE archived.number = dependency.needs))"""
_IS_READY = (
    "status = 'pending' AND not_before <= ?"
    " AND NOT EXISTS (SELECT 1 FROM dependency WHERE dependency.number = entry.number AND "
    f"{_STATUS_OF_NEEDED} IS NOT 'done')"
)
_WAITS_FOR = (
    f"SELECT needs FROM dependency WHERE number = ? AND {_STATUS_OF_NEEDED} IS NOT 'done' "
    "ORDER BY needs"
)
# From the entries that will not be done up to those that wait for them, also through others that
# wait.
_STUCK = f"""
    WITH RECURSIVE stuck (number, cause, status) AS (
        SELECT number, needs, {_STATUS_OF_NEEDED} AS status FROM dependency WHERE status IN
        ('skipped', 'blocked')
        UNION SELECT dependency.number, cause, status FROM dependency JOIN stuck ON needs =
        stuck.number
    )
    SELECT stuck.number, cause, stuck.status FROM stuck JOIN entry ON entry.number = stuck.number
    WHERE entry.status = 'pending' ORDER BY 1, 2"""


@frozen
class Claim:
    """A running entry and the lease under which its worker may change it.

    `attempt` is the one that runs under this lease; before it begins, the one that was interrupted
    and can be resumed.
    """

    entry: QueueEntry
    options: EntryOptions
    lease: str
    attempt: BegunAttempt | None = None

    @property
    def attempt_number(self) -> int:
        """The number of the attempt that runs under this lease."""
        if self.attempt is None:
            return len(self.entry.strategies_tried) + 1
        return self.attempt.number


@frozen
class StuckEntry:
    """A pending entry that cannot run, because it needs an entry, or one that this needs, that was
    skipped or is
    blocked: `cause`, which has the status `cause_status`.
    """

    id: str
    cause: str
    cause_status: EntryStatus

    def __str__(self) -> str:
        if self.cause_status == "skipped":
            is_or_was = "was"
        else:
            is_or_was = "is"
        return f"{self.id} waits for {self.cause}, which {is_or_was} {self.cause_status}"


@frozen
class StoredEntry:
    """An entry with its options, and the ids of the entries that it still waits for. `is_signed`:
    this user's programs have written it; if not, its template and its inputs are not used.
    """

    entry: QueueEntry
    options: EntryOptions
    waits_for: tuple[str, ...] = ()
    is_signed: bool = True


class QueueStore(QueueTables):
    """The entries of a queue. Threads share one store."""

    def add(
        self,
        description: str,
        goal: str,
        kind: EntryType,
        options: EntryOptions,
        max_retries: int | None = None,
    ) -> QueueEntry:
        """A new pending entry with the next id. Raises: UsageError, if it needs an entry that does
        not exist.
        """
        with self.transaction() as db:
            queue = self._queue(db)
            number = queue["last_number"] + 1
            for needed in map(entry_number, options.needs):
                if self.archived_month(needed) is None:
                    self.get(needed)  # raises if there is none
            entry = QueueEntry(
                id=entry_id(number),
                description=description,
                goal=goal,
                type=kind,
                status="pending",
                retries=0,
                max_retries=queue["max_retries"] if max_retries is None else max_retries,
                added_at=now(),
            )
            self.insert(entry, options, last_number=number)
        return entry

    def get(self, number: int) -> StoredEntry:
        """The entry with this number. Raises: UsageError, if there is none, or if it is
        archived.
        """
        with self.transaction("DEFERRED") as db:
            row = ENTRY.get(db, number)
            if row is None:
                month = self.archived_month(number)
                if month is None:
                    raise UsageError(
                        f"there is no entry {entry_id(number)}; see: evaluator queue list"
                    )
                raise UsageError(f"{entry_id(number)} is in the archive, in archive/{month}.json")
            return StoredEntry(
                parse_entry(row["document"]),
                EntryOptions.from_json(row["options"]),
                waits_for=tuple(entry_id(row[0]) for row in db.execute(_WAITS_FOR, (number,))),
                is_signed=row.is_own,
            )

    def counts(self) -> dict[str, int]:
        """How many entries are in each state, and how many are archived."""
        with self.transaction("DEFERRED") as db:
            found = dict(db.execute("SELECT status, count(*) FROM entry GROUP BY status"))
            archived = db.execute("SELECT count(*) FROM archived").fetchone()[0]
        return {status: found.get(status, 0) for status in entries.STATUSES} | {
            "archived": archived
        }

    def count_ready(self) -> int:
        """How many pending entries could run now: their time has come, and what they need is
        done.
        """
        with self.transaction("DEFERRED") as db:
            return db.execute(
                f"SELECT count(*) FROM entry WHERE {_IS_READY}", (clock.wall(),)
            ).fetchone()[0]

    def stuck(self) -> list[StuckEntry]:
        """The pending entries that wait for one that was skipped or is blocked, with each such
        cause, by their ids.
        """
        with self.transaction("DEFERRED") as db:
            rows = db.execute(_STUCK).fetchall()
        return [
            StuckEntry(entry_id(number), entry_id(cause), cause_status=status)
            for number, cause, status in rows
        ]

    def is_idle(self) -> bool:
        """Whether no entry runs and none could run now."""
        with self.transaction("DEFERRED") as db:
            running = db.execute("SELECT 1 FROM entry WHERE status = 'running' LIMIT 1").fetchone()
            return running is None and self.count_ready() == 0

    def skip(self, number: int) -> QueueEntry:
        """pending → skipped. A recurring entry does not return. Raises: UsageError, for another
        state.
        """
        return self._change(number, lambda entry: entries.skip(entry, now()))

    def retry(self, number: int, guidance: str | None = None) -> QueueEntry:
        """blocked → pending, with what the user adds for the next attempt. Raises: UsageError, for
        another state.
        """

        def options(old: EntryOptions) -> EntryOptions:
            return replace(
                old, tried=(), guidance=old.guidance + (() if guidance is None else (guidance,))
            )

        return self._change(number, entries.retry, options=options)

    # Leases

    def claim(self, lease_s: float) -> Claim | None:
        """Starts the pending entry that is next: highest priority, then lowest id; None if there is
        none.

        At most `max_concurrent` entries run at once, in all processes. Returns lost entries to the
        queue first. The claim is on the disk when `begin_attempt` returns, which is before the
        attempt begins.
        """
        with self.transaction(sync=False) as db:
            self.recover()
            (running,) = db.execute(
                "SELECT count(*) FROM entry WHERE status = 'running'"
            ).fetchone()
            if running >= self._queue(db)["max_concurrent"]:
                return None
            rows = ENTRY.select(
                db,
                f"WHERE {_IS_READY} ORDER BY priority DESC, number LIMIT 1",
                (clock.wall(),),
            )
            if not rows:
                return None
            row = self._usable(rows[0])
            owner = current_owner()
            lease = randomness.token_hex(8)
            leases.take(db, lease, owner_text(owner), length_s=lease_s)
            entry = entries.start(
                parse_entry(row["document"]), f"{owner.host}:{owner.pid}:{lease}", now()
            )
            begun = _open_attempt(row["begun"], entry)
            options = EntryOptions.from_json(row["options"])
            self.put(row["number"], entry, options, lease=lease, begun=begun and begun.to_json())
        return Claim(entry, options, lease=lease, attempt=begun)

    def extend(self, claim: Claim, lease_s: float) -> bool:
        """Renews the lease. False: it is lost, and the attempt has to stop."""
        with self.transaction(sync=False) as db:
            if not self._is_held(db, claim):
                return False
            leases.renew(db, claim.lease, lease_s)
        return True

    def begin_attempt(
        self, claim: Claim, strategy: str, tasks: str = "", after: int = 0
    ) -> Claim | None:
        """Stores the attempt that begins or is resumed, for the case that its process ends. None:
        the lease is lost.

        `tasks` and `after`: see `BegunAttempt`.
        """
        begun = claim.attempt
        if begun is None:
            number = claim.attempt_number
            key = randomness.token_hex(8)
            begun = BegunAttempt(
                number, strategy, began_at=now(), key=key, tasks=tasks, after=after
            )
        with self.transaction() as db:
            if not self._is_held(db, claim):
                return None
            self.put_attempt(entry_number(claim.entry.id), begun.to_json())
        return replace(claim, attempt=begun)

    def give_up_attempt(self, claim: Claim, reason: str) -> Claim | None:
        """Lets a new attempt follow the interrupted one, which cannot be resumed. None: the lease
        is lost.
        """
        number = entry_number(claim.entry.id)
        with self.transaction() as db:
            if not self._is_held(db, claim):
                return None
            entry = entries.give_up_attempt(self.get(number).entry, reason)
            self.put(number, entry, begun=None)
        return replace(claim, entry=entry, attempt=None)

    def end(
        self, claim: Claim, change: Callable[[QueueEntry], QueueEntry], *, tried: str | None = None
    ) -> QueueEntry | None:
        """Ends the attempt: `change` gives the entry's next state. None: the lease is lost, and
        nothing is changed.

        `tried` is a strategy that this round need not try again.
        """
        number = entry_number(claim.entry.id)

        def options(old: EntryOptions) -> EntryOptions:
            if tried is None or tried in old.tried:
                return old
            return replace(old, tried=(*old.tried, tried))

        with self.transaction() as db:
            if not self._is_held(db, claim):
                return None
            return self._change(number, change, options=options)

    def recover(self) -> list[QueueEntry]:
        """Returns entries to the queue whose lease is not renewed or whose process is gone; the
        attempt counts as failed.
        """
        found: list[QueueEntry] = []
        with self.transaction() as db:
            rows = ENTRY.select(db, "WHERE status = 'running'")
            ended = self.leases.ended(db, [row["lease"] for row in rows])
            for row in rows:
                reason = ended.get(row["lease"])
                if reason is not None:
                    begun = BegunAttempt.from_json(row["begun"] if row.is_own else None)
                    lose = partial(self._lose, what=reason, begun=begun)
                    found.append(self._change(row["number"], lose))
        return found

    def _lose(self, entry: QueueEntry, what: str, begun: BegunAttempt | None) -> QueueEntry:
        if begun is None:
            begun = BegunAttempt(len(entry.strategies_tried) + 1, "unknown", began_at=now())
        attempt = begun.stopped(f"{INTERRUPTED}: {what}")
        return entries.fail(
            entry,
            attempt,
            now(),
            reason=f"{what} in the last of {entry.retries + 1} attempts",
            action="1. Find out why workers end (memory, time limits)\n2. Run: evaluator queue "
            f"retry {entry.id}",
        )

    def _is_held(self, db: sqlite3.Connection, claim: Claim) -> bool:
        row = db.execute(
            "SELECT 1 FROM entry WHERE number = ? AND lease = ? AND status = 'running'",
            (entry_number(claim.entry.id), claim.lease),
        ).fetchone()
        return row is not None

    def _change(
        self,
        number: int,
        change: Callable[[QueueEntry], QueueEntry],
        options: Callable[[EntryOptions], EntryOptions] = lambda old: old,
    ) -> QueueEntry:
        """A transition: reads the entry, changes it, and ends its lease, in one transaction. An
        attempt that was interrupted stays open.
        """
        with self.transaction() as db:
            self.get(number)
            row = self._entry(db, number)
            before = parse_entry(row["document"])
            entry = change(before)
            kept = options(EntryOptions.from_json(row["options"]))
            if entry.status in ("done", "blocked") and kept.every is not None:
                self._recur(entry, kept)
                kept = replace(kept, every=None)
            begun = _open_attempt(row["begun"], entry)
            if begun is not None and before.status == "running":
                begun = replace(begun, interruptions=begun.interruptions + 1)
            leases.release(db, row["lease"])
            self.put(number, entry, kept, lease=None, begun=begun and begun.to_json())
        return entry

    def _recur(self, entry: QueueEntry, options: EntryOptions) -> None:
        """Adds the next occurrence of a recurring entry."""
        assert options.every is not None
        following = replace(
            options, not_before=next_time(options.every, clock.wall()), tried=(), needs=()
        )
        self.add(
            entry.description,
            entry.goal,
            kind=entry.type,
            options=following,
            max_retries=entry.max_retries,
        )


def now() -> str:
    """The present, as entries have times."""
    return timestamp(clock.wall())


def _open_attempt(text: str | None, entry: QueueEntry) -> BegunAttempt | None:
    """The attempt in the column `begun`, if it was interrupted and can be resumed."""
    begun = BegunAttempt.from_json(text)
    if begun is not None and begun.is_open(entry):
        return begun
    return None
