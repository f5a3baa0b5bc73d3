"""The database of a queue: its tables, and the reading and writing of whole entries.

SQLite in WAL mode; a change that was reported as done survives a loss of power. Times are seconds
since the epoch.

An entry that this user's programs have not written is matched from its words: its template, its
inputs and its interrupted attempt are shown and not used. The first change leaves them out, and
signs the rest.

    queue       one row: the last number given, the settings of the file, what was published
    entry       `document` is the entry as the file shows it; the other columns are for choosing;
                `base` is the published document of an entry that has changed since; `begun` is the
                attempt that runs or was interrupted; `lease` is that of a running entry
    dependency  the entries that an entry waits for
    archived    the numbers, states and months of entries in the archive
    entry_key   the keys with which entries were added, archived ones included
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from evaluator.jobs.document import check_text, entry_text, parse_entry
from evaluator.jobs.entries import (
    TERMINAL,
    EntryOptions,
    EntryStatus,
    QueueDocument,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
)
from evaluator.jobs.store import JobStore
from evaluator.lazy_dataclass import frozen
from evaluator.store import database, leases
from evaluator.store.rows import Row, Table

_NOUN = "queue"
_SETTINGS = ("max_concurrent", "max_retries", "archive_days", "task_runner_dir")


def _check_queue(row: Mapping[str, Any]) -> None:
    texts = ("task_runner_dir", "published_hash", "publishing_hash")
    for name, value in row.items():
        if type(value) is not (str if name in texts else int):
            raise ValueError(f"{name} has another type")


def _check_entry(row: Mapping[str, Any]) -> None:
    entry = check_text(row["document"])
    options = EntryOptions.from_json(row["options"])
    columns = _columns(entry, options)
    if entry.id != entry_id(row["number"]) or any(row[name] != columns[name] for name in columns):
        raise ValueError("its columns differ from its text")
    if row["base"] is not None:
        check_text(row["base"])


_QUEUE = Table(
    "queue",
    _NOUN,
    (
        "id",
        "last_number",
        "max_concurrent",
        "max_retries",
        "archive_days",
        "task_runner_dir",
        "revision",
        "published_revision",
        "published_hash",
        "publishing_hash",
    ),
    name_of=lambda _key: "the row of the settings and of the last id",
    check=_check_queue,
)
_NEW_QUEUE = (1, 0, 2, 3, 7, "", 0, -1, "", "")
_SEAL = _QUEUE.checksum(dict(zip(_QUEUE.columns, _NEW_QUEUE, strict=True)))
ENTRY = Table(
    "entry",
    _NOUN,
    (
        "number",
        "status",
        "priority",
        "not_before",
        "completed",
        "document",
        "options",
        "revision",
        "base",
        "lease",
        "begun",
    ),
    name_of=lambda number: f"the entry {entry_id(number)}",
    check=_check_entry,
)
# What decides in SQL is in an index too, so that damage to one of the two shows; the checks hold
# for what somebody else has written. See `Format.is_checked`.
_TABLES = f"""
{_QUEUE.statement};
INSERT INTO queue VALUES ({", ".join(map(repr, _NEW_QUEUE))}, '{_SEAL}', NULL);
{ENTRY.statement};
CREATE INDEX entry_order ON entry (status, priority DESC, number, not_before, completed);
CREATE TABLE dependency (
    number INTEGER CHECK (typeof(number) = 'integer'), needs INTEGER CHECK (typeof(needs) =
    'integer'),
    PRIMARY KEY (number, needs)
) WITHOUT ROWID;
CREATE INDEX dependents ON dependency (needs);
CREATE TABLE archived (
    number INTEGER PRIMARY KEY, status TEXT NOT NULL CHECK (typeof(status) = 'text'),
    month TEXT NOT NULL CHECK (month GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]')
);
CREATE INDEX archived_status ON archived (status, month);
CREATE TABLE entry_key (
    key TEXT PRIMARY KEY, number INTEGER NOT NULL CHECK (typeof(number) = 'integer')
) WITHOUT ROWID;
CREATE INDEX entry_key_number ON entry_key (number, key);
{leases.TABLE}
"""
FORMAT = database.Format(
    _NOUN,
    0x45767131,
    4,
    _TABLES,
    "export it with the older version and import it into a new one",
    is_checked=True,
    is_durable=True,
)


@frozen
class Publication:
    """What was published last: `published_hash` is on the disk, `publishing_hash` is or will be."""

    revision: int
    published_revision: int
    published_hash: str
    publishing_hash: str


class QueueTables(JobStore):
    """The queue in the database at `path`, see `JobStore`. Threads share one store."""

    def __init__(self, path: Path, *, is_snapshot: bool = False) -> None:
        # The event loop of a worker that lives may hang: only its lease says that it works.
        super().__init__(path, FORMAT, trusts_living=False, is_snapshot=is_snapshot)
        self.on_change: Callable[[], None] = lambda: None
        """Called after each transaction that changed what is published."""
        self.on_unsigned: Callable[[str], None] = lambda _id: None
        """Called with an entry whose template or inputs are not used, because somebody else wrote
        them."""
        self._has_changed = False

    def _committed(self) -> None:
        if self._has_changed:
            self._has_changed = False
            self.on_change()

    def _queue(self, db: sqlite3.Connection) -> Row:
        row = _QUEUE.get(db, 1)
        if row is None:
            raise sqlite3.DatabaseError(f"{_QUEUE.name_of(1)} is missing")
        return row

    def _revise(self, db: sqlite3.Connection, **changes: Any) -> Row:
        """Counts a change of what is published; `changes` are of the row of the queue."""
        row = self._queue(db)
        self._has_changed = True
        return _QUEUE.update(db, row, revision=row["revision"] + 1, **changes)

    def documents(self, status: EntryStatus | None = None, limit: int | None = None) -> list[str]:
        """The entries as JSON texts, or the `limit` newest of them, in the order of their ids."""
        where = "" if status is None else "WHERE status = ?"
        values = [value for value in (status, limit) if value is not None]
        end = "" if limit is None else "LIMIT ?"
        with self.transaction("DEFERRED") as db:
            rows = ENTRY.each(db, f"{where} ORDER BY number DESC {end}", values)
            texts = [row["document"] for row in rows]
        texts.reverse()
        return texts

    def first_documents(self, status: EntryStatus, limit: int) -> list[str]:
        """At most `limit` entries in this state as JSON texts: of those that have not ended, the
        ones that run first; of the others, the ones that ended last.
        """
        if status in ("pending", "running"):
            order = "priority DESC, number"
        else:
            order = "completed DESC, number DESC"
        # The documents are read of the chosen entries only.
        chosen = f"SELECT number FROM entry WHERE status = ? ORDER BY {order} LIMIT ?"
        with self.transaction("DEFERRED") as db:
            rows = ENTRY.select(db, f"WHERE number IN ({chosen}) ORDER BY {order}", (status, limit))
        return [row["document"] for row in rows]

    def configure(self, **settings: int | str | None) -> None:
        """Changes those of _SETTINGS that are given."""
        with self.transaction() as db:
            row = self._queue(db)
            changes = {
                name: value for name, value in settings.items() if value not in (None, row[name])
            }
            if changes:
                self._revise(db, **changes)

    def settings(self) -> QueueDocument:
        """The fields of the file, without its entries."""
        with self.transaction("DEFERRED") as db:
            row = self._queue(db)
        last = row["last_number"]
        return QueueDocument(
            **{name: row[name] for name in _SETTINGS},
            last_id=entry_id(last) if last else None,
            tasks=(),
        )

    def raise_last_number(self, number: int) -> None:
        """Gives no id up to this number any more."""
        with self.transaction() as db:
            if self._queue(db)["last_number"] < number:
                self._revise(db, last_number=number)

    def publication(self) -> Publication:
        """What was published, and the revision of the store."""
        with self.transaction("DEFERRED") as db:
            row = self._queue(db)
        return Publication(**{field.name: row[field.name] for field in fields(Publication)})

    def begin_publication(self, on_disk: str, hash_: str, revision: int) -> None:
        """Stores that a file with `hash_`, of this revision, is about to replace the one with the
        hash `on_disk`.
        """
        with self.transaction() as db:
            _QUEUE.update(
                db,
                self._queue(db),
                published_hash=on_disk,
                publishing_hash=hash_,
                published_revision=revision,
            )

    def end_publication(self, hash_: str) -> None:
        """Stores that the file with this hash is published."""
        with self.transaction(sync=False) as db:  # until then `publishing_hash` identifies the file
            _QUEUE.update(db, self._queue(db), published_hash=hash_, publishing_hash=hash_)

    def accept_file(self, hash_: str) -> None:
        """Stores that everything in the file with this hash is in the store, so that it may be
        replaced.
        """
        with self.transaction() as db:
            row = self._queue(db)
            _QUEUE.update(db, row, publishing_hash=hash_, published_revision=row["revision"] - 1)

    def insert(self, entry: QueueEntry, options: EntryOptions, **changes: Any) -> None:
        """Adds an entry with the id that it has; `changes` are of the row of the queue."""
        number = entry_number(entry.id)
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO dependency VALUES (?, ?)",
                {(number, entry_number(needed)) for needed in options.needs},
            )
            revision = self._revise(db, **changes)["revision"]
            new = {"number": number, "base": None, "lease": None, "begun": None}
            ENTRY.put(db, {**new, **_columns(entry, options), "revision": revision})

    def put(
        self,
        number: int,
        entry: QueueEntry,
        options: EntryOptions | None = None,
        **columns: str | None,
    ) -> None:
        """Replaces an entry, and its options if they are given; remembers what was published of
        it. `columns`: its `lease` and its `begun` attempt.
        """
        with self.transaction() as db:
            row = self._entry(db, number)
            queue = self._revise(db)
            if row["revision"] <= queue["published_revision"]:
                columns["base"] = row["document"]
            options = options or EntryOptions.from_json(row["options"])
            changed = {**row, **_columns(entry, options), **columns, "revision": queue["revision"]}
            ENTRY.put(db, changed)

    def put_attempt(self, number: int, begun: str | None) -> None:
        """Replaces the attempt that an entry has begun, which is not published."""
        with self.transaction() as db:
            ENTRY.put(db, {**self._entry(db, number), "begun": begun})

    def _entry(self, db: sqlite3.Connection, number: int) -> Row:
        """The row of an entry that exists, for a change."""
        row = ENTRY.get(db, number)
        assert row is not None
        return self._usable(row)

    def _usable(self, row: Row) -> Row:
        """The row without what somebody else wrote into it and would choose what runs."""
        if row.is_own:
            return row
        options = EntryOptions.from_json(row["options"])
        if options != options.without_choices() or row["begun"] is not None:
            self.on_unsigned(entry_id(row["number"]))
        changes = {"options": options.without_choices().to_json(), "begun": None}
        return Row({**row, **changes}, is_own=False)

    def current_and_base(self, number: int) -> tuple[QueueEntry, QueueEntry | None] | None:
        """The entry and its published form (None if it was never published); None if there is no
        such entry.
        """
        with self.transaction() as db:
            row = ENTRY.get(db, number)
            if row is None:
                return None
            has_changed = row["revision"] > self._queue(db)["published_revision"]
        current = parse_entry(row["document"])
        if not has_changed:
            return current, current
        if row["base"] is None:
            return current, None
        return current, parse_entry(row["base"])

    def is_current(self, entry: QueueEntry) -> bool:
        """Whether the entry is in the store as it is given."""
        found = self.current_and_base(entry_number(entry.id))
        return found is not None and found[0] == entry

    def archived_month(self, number: int) -> str | None:
        """The month in whose file the entry is archived, as `YYYY-MM`."""
        return self._value("SELECT month FROM archived WHERE number = ?", number)

    def number_of_key(self, key: str) -> int | None:
        """The number of the entry that was added with this key, archived or not; None if there is
        none.
        """
        return self._value("SELECT number FROM entry_key WHERE key = ?", key)

    def _value(self, sql: str, key: str | int) -> Any:
        """The value that a statement selects by a key; None if there is none."""
        with self.transaction("DEFERRED") as db:
            row = db.execute(sql, (key,)).fetchone()
        return row and row[0]

    def note_key(self, key: str, number: int) -> None:
        """Stores that the entry was added with this key."""
        with self.transaction() as db:
            db.execute("INSERT INTO entry_key VALUES (?, ?)", (key, number))

    def completed_before(self, moment: float) -> list[QueueEntry]:
        """The entries in a terminal state since before this time."""
        marks = ", ".join("?" * len(TERMINAL))
        with self.transaction("DEFERRED") as db:
            rows = ENTRY.select(
                db,
                f"WHERE status IN ({marks}) AND completed < ? ORDER BY number",
                (*TERMINAL, moment),
            )
        return [parse_entry(row["document"]) for row in rows]

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


def _columns(entry: QueueEntry, options: EntryOptions) -> dict[str, Any]:
    completed = None
    if entry.completed_at is not None:
        completed = parse_timestamp(entry.completed_at).timestamp()
    return {
        "status": entry.status,
        "priority": options.priority,
        "not_before": options.not_before,
        "completed": completed,
        "document": entry_text(entry),
        "options": options.to_json(),
    }
