"""The database of a queue: its tables, and the reading and writing of whole entries.

SQLite in WAL mode; a change that was reported as done survives a loss of power. Times are seconds
since the epoch.

    queue       one row: the last number given, the settings of the file, what was published
    entry       `document` is the entry as the file shows it; the other columns are for choosing and
                for leases; `base` is the published document of an entry that has changed since;
                `begun` is the attempt that runs or was interrupted
    dependency  the entries that an entry waits for
    archived    the numbers, states and months of entries in the archive
    entry_key   the keys with which entries were added, archived ones included
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.errors import RecordError
from evaluator.store import database
from evaluator.store.database import transaction
from evaluator.queue.document import entry_text, parse_entries, parse_entry
from evaluator.queue.entries import (
    TERMINAL,
    EntryOptions,
    EntryStatus,
    EntryType,
    QueueDocument,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
)

_BUSY_S = 60.0
_TABLES = """
CREATE TABLE queue (
    last_number INTEGER NOT NULL, max_concurrent INTEGER NOT NULL, max_retries INTEGER NOT NULL,
    archive_days INTEGER NOT NULL, task_runner_dir TEXT NOT NULL, revision INTEGER NOT NULL,
    published_revision INTEGER NOT NULL, published_hash TEXT NOT NULL, publishing_hash TEXT NOT NULL
);
INSERT INTO queue VALUES (0, 2, 3, 7, '', 0, -1, '', '');
CREATE TABLE entry (
    number INTEGER PRIMARY KEY, status TEXT NOT NULL, priority INTEGER NOT NULL, not_before REAL NOT NULL,
    completed REAL, document TEXT NOT NULL, options TEXT NOT NULL, revision INTEGER NOT NULL, base TEXT,
    lease TEXT, lease_until REAL, owner TEXT, begun TEXT
);
CREATE INDEX entry_order ON entry (status, priority DESC, number);
CREATE TABLE dependency (number INTEGER, needs INTEGER, PRIMARY KEY (number, needs)) WITHOUT ROWID;
CREATE INDEX dependents ON dependency (needs);
CREATE TABLE archived (number INTEGER PRIMARY KEY, status TEXT NOT NULL, month TEXT NOT NULL);
CREATE TABLE entry_key (key TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID
"""
FORMAT = database.Format(
    "queue", 0x45767131, 3, _TABLES, "export it with the older version and import it into a new one"
)


class EntrySummary(NamedTuple):
    """What a list shows of an entry."""

    id: str
    status: EntryStatus
    type: EntryType
    retries: int
    max_retries: int
    goal: str


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published last: `published_hash` is on the disk, `publishing_hash` is or will be."""

    revision: int
    published_revision: int
    published_hash: str
    publishing_hash: str


class QueueTables:
    """The queue in the database at `path`, which is created if it is missing. Threads share one
    store.

    Raises: ConfigurationError, for a database of another program or version; RecordError, from
    every method, if the database cannot be read or written.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self.on_change: Callable[[], None] = lambda: None
        """Called after each transaction that changed what is published."""
        self._has_changed = False
        self._lock = threading.RLock()
        try:
            self._connection = database.connect(path, FORMAT, _BUSY_S)
        except (OSError, sqlite3.Error) as error:
            raise RecordError(
                f"{path}: the queue cannot be opened: {database.problem_of(error)}"
            ) from error

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(
        self, kind: str = "IMMEDIATE", *, sync: bool = True
    ) -> Generator[sqlite3.Connection]:
        """One transaction; a second one of the same thread is part of the first. Raises:
        RecordError.

        Without `sync`, a loss of power may undo it until the next one that syncs; the end of the
        process does not.
        """
        with self._lock:
            try:
                if self._connection.in_transaction:
                    yield self._connection
                    return
                self._has_changed = False
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                with transaction(self._connection, kind):
                    yield self._connection
                if self._has_changed:
                    self.on_change()
            except sqlite3.Error as error:
                raise RecordError(
                    f"{self.path}: the queue cannot be read or written: "
                    f"{database.problem_of(error)}"
                ) from error

    def _revise(self, db: sqlite3.Connection, is_changed: bool = True) -> None:
        if is_changed:
            db.execute("UPDATE queue SET revision = revision + 1")
            self._has_changed = True

    def documents(self, status: EntryStatus | None = None, limit: int | None = None) -> list[str]:
        """The entries as JSON texts, or the `limit` newest of them, in the order of their ids."""
        return [row[0] for row in self._select("document", status, limit=limit)]

    def first_documents(self, status: EntryStatus, limit: int) -> list[str]:
        """At most `limit` entries in this state as JSON texts: of those that have not ended, the
        ones that run first; of the others, the ones that ended last.
        """
        if status in ("pending", "running"):
            order = "priority DESC, number"
        else:
            order = "completed DESC, number DESC"
        with self.transaction("DEFERRED") as db:
            # The documents are read of the chosen entries only.
            chosen = f"SELECT number FROM entry WHERE status = ? ORDER BY {order} LIMIT ?"
            rows = db.execute(
                f"SELECT document FROM entry WHERE number IN ({chosen}) ORDER BY {order}",
                (status, limit),
            ).fetchall()
        return [row[0] for row in rows]

    def summaries(
        self, status: EntryStatus | None = None, limit: int | None = None
    ) -> list[EntrySummary]:
        """What a list shows of the entries, or of the `limit` newest of them, in the order of their
        ids.
        """
        # SQLite reads the fields out of the JSON texts; decoding the whole texts takes three times
        # as long.
        fields = ", ".join(
            f"json_extract(document, '$.{name}')"
            for name in ("type", "retries", "maxRetries", "goal")
        )
        rows = self._select(f"number, status, {fields}", status, limit=limit)
        return [EntrySummary(entry_id(row[0]), *row[1:]) for row in rows]

    def _select(self, columns: str, status: EntryStatus | None, limit: int | None) -> list[Any]:
        if status is None:
            where, values = ("", ())
        else:
            where, values = (" WHERE status = ?", (status,))
        with self.transaction("DEFERRED") as db:
            rows = db.execute(
                f"SELECT {columns} FROM entry{where} ORDER BY number DESC LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
        return rows[::-1]

    def totals(self) -> tuple[dict[str, int], int]:
        """How many entries there are of each type, and how many attempts they have."""
        with self.transaction("DEFERRED") as db:
            rows = db.execute(
                "SELECT json_extract(document, '$.type'), count(*),"
                " sum(json_array_length(document, '$.strategies_tried')) FROM entry GROUP BY 1"
            ).fetchall()
        return {kind: count for kind, count, _ in rows}, sum(attempts for *_, attempts in rows)

    def configure(
        self,
        *,
        max_concurrent: int | None = None,
        max_retries: int | None = None,
        archive_days: int | None = None,
        task_runner_dir: str | None = None,
    ) -> None:
        """Changes the settings that are given."""
        given = (max_concurrent, max_retries, archive_days, task_runner_dir)
        columns = ("max_concurrent", "max_retries", "archive_days", "task_runner_dir")
        with self.transaction() as db:
            for name, value in zip(columns, given, strict=True):
                if value is not None:
                    done = db.execute(
                        f"UPDATE queue SET {name} = ? WHERE {name} IS NOT ?", (value, value)
                    )
                    self._revise(db, done.rowcount > 0)

    def settings(self) -> QueueDocument:
        """The fields of the file, without its entries."""
        with self.transaction("DEFERRED") as db:
            directory, last, *limits = db.execute(
                "SELECT task_runner_dir, last_number, max_concurrent, max_retries, archive_days "
                "FROM queue"
            ).fetchone()
        return QueueDocument(directory, entry_id(last) if last else None, (), *limits)

    def raise_last_number(self, number: int) -> None:
        """Gives no id up to this number any more."""
        with self.transaction() as db:
            done = db.execute(
                "UPDATE queue SET last_number = ? WHERE last_number < ?", (number, number)
            )
            self._revise(db, done.rowcount > 0)

    def publication(self) -> Publication:
        """What was published, and the revision of the store."""
        with self.transaction("DEFERRED") as db:
            return Publication(
                *db.execute(
                    "SELECT revision, published_revision, published_hash, publishing_hash FROM "
                    "queue"
                ).fetchone()
            )

    def begin_publication(self, on_disk: str, hash_: str, revision: int) -> None:
        """Stores that a file with `hash_`, of this revision, is about to replace the one with the
        hash `on_disk`.
        """
        with self.transaction() as db:
            db.execute(
                "UPDATE queue SET published_hash = ?, publishing_hash = ?, published_revision = ?",
                (on_disk, hash_, revision),
            )

    def end_publication(self, hash_: str) -> None:
        """Stores that the file with this hash is published."""
        with self.transaction(sync=False) as db:  # until then `publishing_hash` identifies the file
            db.execute("UPDATE queue SET published_hash = ?, publishing_hash = ?", (hash_, hash_))

    def accept_file(self, hash_: str) -> None:
        """Stores that everything in the file with this hash is in the store, so that it may be
        replaced.
        """
        with self.transaction() as db:
            db.execute(
                "UPDATE queue SET publishing_hash = ?, published_revision = revision - 1", (hash_,)
            )

    def insert(self, entry: QueueEntry, options: EntryOptions) -> None:
        """Adds an entry with the id that it has."""
        number = entry_number(entry.id)
        with self.transaction() as db:
            db.execute(
                "INSERT INTO entry (number, status, priority, not_before, document, options, "
                "revision)"
                " VALUES (?, ?, 0, 0, '', '', 0)",
                (number, entry.status),
            )
            db.executemany(
                "INSERT INTO dependency VALUES (?, ?)",
                {(number, entry_number(needed)) for needed in options.needs},
            )
            self.put(number, entry, options=options)

    def current_and_base(self, number: int) -> tuple[QueueEntry, QueueEntry | None] | None:
        """The entry and its published form (None if it was never published); None if there is no
        such entry.
        """
        with self.transaction() as db:
            row = db.execute(
                "SELECT document, base, entry.revision > published_revision FROM entry, queue "
                "WHERE number = ?",
                (number,),
            ).fetchone()
        if row is None:
            return None
        current = parse_entry(row[0])
        base = row[1]
        has_changed = row[2]
        return current, (
            current if not has_changed else None if base is None else parse_entry(base)
        )

    def is_current(self, entry: QueueEntry) -> bool:
        """Whether the entry is in the store as it is given."""
        found = self.current_and_base(entry_number(entry.id))
        return found is not None and found[0] == entry

    def archived_month(self, number: int) -> str | None:
        """The month in whose file the entry is archived, as `YYYY-MM`."""
        with self.transaction("DEFERRED") as db:
            row = db.execute("SELECT month FROM archived WHERE number = ?", (number,)).fetchone()
        if row is None:
            return None
        return row[0]

    def number_of_key(self, key: str) -> int | None:
        """The number of the entry that was added with this key, archived or not; None if there is
        none.
        """
        with self.transaction("DEFERRED") as db:
            row = db.execute("SELECT number FROM entry_key WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        return row[0]

    def note_key(self, key: str, number: int) -> None:
        """Stores that the entry was added with this key."""
        with self.transaction() as db:
            db.execute("INSERT INTO entry_key VALUES (?, ?)", (key, number))

    def completed_before(self, moment: float) -> list[QueueEntry]:
        """The entries in a terminal state since before this time."""
        marks = ", ".join("?" * len(TERMINAL))
        with self.transaction("DEFERRED") as db:
            rows = db.execute(
                f"SELECT document FROM entry WHERE status IN ({marks}) AND completed < ? ORDER BY "
                "number",
                (*TERMINAL, moment),
            )
            return parse_entries(row[0] for row in rows)

    def move_to_archive(self, month: str, moved: Iterable[QueueEntry]) -> None:
        """Removes entries that are in the archive."""
        with self.transaction() as db:
            for entry in moved:
                number = entry_number(entry.id)
                db.execute("DELETE FROM entry WHERE number = ?", (number,))
                db.execute("DELETE FROM dependency WHERE number = ?", (number,))
                db.execute(
                    "INSERT OR REPLACE INTO archived VALUES (?, ?, ?)",
                    (number, entry.status, month),
                )
            self._revise(db)

    def put(self, number: int, entry: QueueEntry, options: EntryOptions | None = None) -> None:
        """Replaces an entry, and its options if they are given; remembers what was published of
        it.
        """
        with self.transaction() as db:
            if entry.completed_at is None:
                completed = None
            else:
                completed = parse_timestamp(entry.completed_at).timestamp()
            self._revise(db)
            db.execute(
                "UPDATE entry SET base = CASE WHEN document = '' THEN NULL WHEN revision <= "
                "(SELECT published_revision"
                " FROM queue) THEN document ELSE base END, status = ?, completed = ?, document = ?,"
                " revision = (SELECT revision FROM queue) WHERE number = ?",
                (entry.status, completed, entry_text(entry), number),
            )
            if options is not None:
                db.execute(
                    "UPDATE entry SET options = ?, priority = ?, not_before = ? WHERE number = ?",
                    (options.to_json(), options.priority, options.not_before, number),
                )
