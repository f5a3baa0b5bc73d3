"""The files beside the database of a queue: the published `task-queue.json` and the archive.

A `task-queue.json` from elsewhere is imported whole or not at all, the published file of the queue
itself entry by entry, after a person has edited it. An entry whose id the store does not have is
added. An entry that the store has is the same one if `added_at` is equal; a field that differs from
the published file is then an edit by a person. An edit may change texts, and the state as a user
may: skip a pending entry, retry a blocked one. An entry that changed in the store as well, or that
runs, is a conflict. Entries that the file lacks stay, and so do those in the archive. Settings are
taken from the file.

The store is published atomically, within a second of a change, and when the queue is closed. A
published file is always one committed state of the store. The hash of the last one is stored, so
that a file that somebody edited, or that another program wrote, is recognised: it is imported entry
by entry and published again. A notice names what was taken over and each conflict; a file with a
conflict is kept beside it. A file that is not a queue stays, and nothing is published until it is
corrected or removed. A lock keeps several processes from publishing at once. An editor that saves
in the milliseconds between the last look at the file and its replacement is not seen.

Entries that ended long ago are moved into `archive/YYYY-MM.json`, by the month of their
`completed_at`. A file of the archive has the form of `task-queue.json`. It is written before the
entries leave the store, so a crash in between leaves them in both, and the next run replaces them
in the file. `lastId` does not change.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path

from evaluator import clock, disk
from evaluator.errors import EvaluatorError, RecordError, UsageError
from evaluator.files.atomic import locked_file, write_atomic
from evaluator.jobs import document as documents
from evaluator.jobs import entries
from evaluator.jobs.deliverables import DELIVERABLES
from evaluator.jobs.document import FILE, Reading, read_limited
from evaluator.jobs.entries import (
    TERMINAL,
    EntryOptions,
    EntryStatus,
    QueueDocument,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
    timestamp,
)
from evaluator.jobs.queue_tables import QueueTables
from evaluator.lazy_dataclass import frozen
from evaluator.processes import starting

# Importing

_BY_USER: dict[EntryStatus, tuple[EntryStatus, ...]] = {
    "pending": ("pending", "skipped"),
    "blocked": ("blocked", "pending"),
    "done": ("done",),
    "skipped": ("skipped",),
    "running": (),
}


@frozen
class Imported:
    """The ids of a file's entries by what happened to them. `dated`: entries that have ended and
    lack `completed_at`, which is filled in with the last time that they name. `conflicts`: what of
    an edited file was not taken over, each with its place and the reason.
    """

    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    dated: Sequence[str] = ()
    conflicts: Sequence[str] = ()

    def following(self, earlier: Imported) -> Imported:
        """What happened in two imports together."""
        return Imported(
            *((*getattr(earlier, field.name), *getattr(self, field.name)) for field in fields(self))
        )


def import_document(store: QueueTables, data: bytes, name: str) -> Imported:
    """Imports the file with these bytes; `name` is for messages.

    Raises: UsageError, with the place, if the file or an entry cannot be imported; nothing is
    changed then.
    """
    document = documents.read_document(data, name)
    reading = Reading(document, range(len(document.tasks)), (), has_last_id=True)
    with store.transaction():
        imported = _import(store, reading, is_edit=False)
        if imported.conflicts:
            raise UsageError(f"{name}: {imported.conflicts[0]}; nothing was imported")
    return imported


def import_edit(store: QueueTables, data: bytes, name: str) -> Imported:
    """Imports the published file after a person has edited it, entry by entry: what cannot be
    taken over is a conflict, and the rest is imported.

    The person may have begun with an earlier publication: an entry that is behind the store, and
    whose texts are the same, was not edited. Raises: UsageError, if the file is not a queue.
    """
    with store.transaction():
        return _import(store, documents.read_edit(data, name, store.settings()), is_edit=True)


def _import(store: QueueTables, reading: Reading, *, is_edit: bool) -> Imported:
    document = reading.document
    found: dict[str, list[str]] = {"added": [], "changed": [], "unchanged": [], "dated": []}
    conflicts = list(reading.problems)
    known = store.settings().last_id
    last = 0 if known is None else entry_number(known)
    for index, entry in zip(reading.indexes, document.tasks, strict=True):
        try:
            dated = _dated(store, entry)
            what = _import_entry(store, dated, last=last, is_edit=is_edit)
        except UsageError as error:
            conflicts.append(f"$.tasks[{index}] {error}")
            continue
        found[what].append(entry.id)
        if dated is not entry and what != "unchanged":
            found["dated"].append(entry.id)
    store.configure(
        max_concurrent=document.max_concurrent,
        max_retries=document.max_retries,
        archive_days=document.archive_days,
        task_runner_dir=document.task_runner_dir,
    )
    _give_no_more(store, document)
    return Imported(**found, conflicts=conflicts)


def _give_no_more(store: QueueTables, document: QueueDocument) -> None:
    """Keeps the ids of a file from being given again."""
    for id_ in (document.last_id, documents.highest_id(document.tasks)):
        if id_ is not None:
            store.raise_last_number(entry_number(id_))


def _dated(store: QueueTables, entry: QueueEntry) -> QueueEntry:
    """The entry, with the last time that it names as `completed_at` if it has ended and lacks that.

    An entry that ends with this import ends now.
    """
    known = store.current_and_base(entry_number(entry.id))
    ends_now = known is not None and known[0].status not in TERMINAL
    if entry.status not in TERMINAL or entry.completed_at is not None or ends_now:
        return entry
    times = [
        entry.added_at,
        entry.started_at or entry.added_at,
        *(a.attempted_at for a in entry.strategies_tried),
    ]
    return replace(entry, completed_at=max(times, key=parse_timestamp))


def _import_entry(store: QueueTables, entry: QueueEntry, last: int, *, is_edit: bool) -> str:
    number = entry_number(entry.id)
    known = store.current_and_base(number)
    if known is None:
        if store.archived_month(number) is not None:
            return "unchanged"
        if number <= last:
            raise UsageError(
                f"has the id {entry.id}, which was given before; the next free id is "
                f"{entry_id(last + 1)}"
            )
        _check_consistent(entry)
        store.insert(entry, EntryOptions())
        return "added"
    current, base = known
    if entry in (current, base) or (is_edit and _is_behind(entry, current)):
        return "unchanged"
    if entry.added_at != current.added_at:
        raise UsageError(
            f"is not the {entry.id} of this queue, which was added at {current.added_at}"
        )
    if current != base:
        raise UsageError(
            f"({entry.id}) was edited and has changed in the queue too: it is {current.status}; "
            "export the queue and edit again"
        )
    if entry.status not in _BY_USER[current.status]:
        raise UsageError(f"({entry.id}) is {current.status}; an edit cannot make it {entry.status}")
    if (current.status, entry.status) == ("blocked", "pending"):
        entry = entries.retry(replace(entry, status="blocked"))
    elif current.status == "pending" and entry.status == "skipped":
        entry = entries.skip(
            replace(entry, status="pending"), entry.completed_at or timestamp(clock.wall())
        )
    store.put(number, entry)
    return "changed"


def _is_behind(entry: QueueEntry, current: QueueEntry) -> bool:
    """Whether the entry is an earlier state of the current one, which an editor still had open."""
    texts = (entry.description, entry.goal, entry.max_retries)
    if texts != (current.description, current.goal, current.max_retries):
        return False
    attempts = [attempt for attempt in entry.strategies_tried if attempt.has_ended]
    if attempts != list(current.strategies_tried[: len(attempts)]):
        return False
    was_started = entry.started_at is not None
    return len(attempts) < len(current.strategies_tried) or (
        not was_started and current.started_at is not None
    )


def _check_consistent(entry: QueueEntry) -> None:
    """Raises: UsageError, for an entry whose fields contradict each other."""
    has_ended = entry.status in TERMINAL
    if entry.retries > max(entry.max_retries, 1):
        problem = f"retries is {entry.retries}, more than maxRetries, which is {entry.max_retries}"
    elif entry.status == "done" and entry.deliverable is None:
        problem = "status is done, and deliverable is null"
    elif entry.status == "blocked" and entry.blocked_reason is None:
        problem = "status is blocked, and blocked_reason is null"
    elif not has_ended and entry.deliverable is not None:
        problem = f"status is {entry.status}, and there is a deliverable"
    elif not has_ended and entry.completed_at is not None:
        problem = f"status is {entry.status}, and there is a completed_at"
    elif entry.completed_at is not None and parse_timestamp(entry.completed_at) < parse_timestamp(
        entry.started_at or entry.added_at
    ):
        problem = "completed_at is before the entry was started"
    else:
        return
    raise UsageError(f"({entry.id}) contradicts itself: {problem}")


def create_store(database: Path) -> Imported:
    """Creates the store of a folder that has none, from the published file if there is one. The ids
    of the file, the archive and the deliverables are not given again.

    The database appears whole. Raises: UsageError, with the places, if the file or the archive
    cannot be read as a queue; RecordError.
    """
    folder = database.parent
    with disk.temporary_folder(".new-", folder) as new:
        store = QueueTables(new / database.name)
        try:
            imported = fill_store(store, folder)
        finally:
            store.close()
        for end in ("-wal", "-shm", "-journal"):
            disk.remove(database.with_name(f"{database.name}{end}"))
        disk.rename(new / database.name, database)
    return imported


def fill_store(store: QueueTables, folder: Path) -> Imported:
    """Puts what the published file, the archive and the deliverables of a folder say into a new
    store. Raises: as `create_store`.
    """
    with store.transaction():
        imported = Imported()
        data: bytes | None = None
        with contextlib.suppress(FileNotFoundError):
            data = read_limited(folder / FILE)
            imported = import_document(store, data, str(folder / FILE))
        if not store.settings().task_runner_dir:
            store.configure(task_runner_dir=f"{folder}/")
        if data is not None:
            store.accept_file(hashlib.sha256(data).hexdigest())
        for month, document in archived_documents(folder):
            store.move_to_archive(month, document.tasks)
            _give_no_more(store, document)
        for answer in (folder / DELIVERABLES).glob("T-*.md"):
            with contextlib.suppress(UsageError):
                store.raise_last_number(entry_number(answer.stem))
    return imported


# Publishing

LOCK = ".task-queue.lock"
CONFLICT = "task-queue.conflict.json"
DELAY_S = 0.5


class Publisher:
    """Publishes a store into its folder. `notice` gets a line for the user, once for each edited
    file. Without `takes_edits` an edited file stays as it is.
    """

    def __init__(
        self,
        store: QueueTables,
        folder: Path,
        notice: Callable[[str], None],
        *,
        takes_edits: bool = True,
    ) -> None:
        self.path = folder / FILE
        self.edited = Imported()
        """What was taken over of edited files since the queue was opened."""
        self._takes_edits = takes_edits
        self._store = store
        self._lock_path = folder / LOCK
        self._notice = notice
        self._noticed = ""
        self._seen: tuple[tuple[int, int, int], str] | None = None
        self._guard = threading.Lock()
        self._timer: starting.Timer | None = None

    def schedule(self) -> None:
        """Publishes in half a second, in a thread; further calls until then do nothing."""
        with self._guard:
            if self._timer is None:
                self._timer = starting.Timer(DELAY_S, self._publish_scheduled)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Publishes what is not published yet."""
        with self._guard:
            timer = self._timer
            self._timer = None
        if timer is not None:
            timer.cancel()
            timer.join()
        self.publish()

    def publish(self) -> bool:
        """Publishes the store if the file is not up to date. False: an edited file is in the way.

        Raises: RecordError, if the file cannot be read or written.
        """
        with self._locked():
            return self._publish()

    def take_edit(self) -> None:
        """Imports the file if somebody has edited it, and publishes the store then.

        Raises: RecordError, as `publish`.
        """
        if self._mark() == (self._seen and self._seen[0]):
            return
        with self._locked():
            known = self._store.publication()
            if self._hash_on_disk() not in ("", known.published_hash, known.publishing_hash):
                self._publish()

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            with locked_file(self._lock_path):
                yield
        except OSError as error:
            raise RecordError(
                f"{self.path}: cannot be published: {error.strerror or error}; the queue is "
                "stored, and the file "
                "follows with the next command"
            ) from error

    def _publish_scheduled(self) -> None:
        with self._guard:
            self._timer = None
        try:
            self.publish()
        except EvaluatorError as error:  # `close` reports it again
            self._notice(str(error))

    def _publish(self) -> bool:
        known = self._store.publication()
        on_disk = self._hash_on_disk()
        if on_disk not in ("", known.published_hash, known.publishing_hash):
            accepted = self._import_edit(on_disk)
            if accepted is None:
                return False
            on_disk = accepted
            known = self._store.publication()
        if on_disk == known.publishing_hash and known.revision == known.published_revision:
            return True
        with self._store.transaction("DEFERRED"):
            revision = self._store.publication().revision
            data = documents.join_document(self._store.settings(), self._store.documents())
        digest = hashlib.sha256(data).hexdigest()
        self._store.begin_publication(on_disk, digest, revision)
        write_atomic(self.path, data, under_lock=True, error=None)
        self._store.end_publication(digest)
        mark = self._mark()
        self._seen = None if mark is None else (mark, digest)
        return True

    def _import_edit(self, on_disk: str) -> str | None:
        """Imports the edited file, so that it may be replaced; returns its hash. None: it stays."""
        if not self._takes_edits:
            return None
        data = read_limited(self.path)
        digest = hashlib.sha256(data).hexdigest()
        try:
            imported = import_edit(self._store, data, str(self.path))
        except UsageError as error:
            if on_disk != self._noticed:
                self._noticed = on_disk
                self._notice(
                    f"{error}; the file stays as it is, and nothing is published until it is "
                    "corrected or deleted"
                )
            return None
        self._store.accept_file(digest)
        self.edited = imported.following(self.edited)
        lines = [
            f"{what} {', '.join(ids)}"
            for what, ids in (("added", imported.added), ("changed", imported.changed))
            if ids
        ]
        if lines:
            self._notice(f"{self.path} was edited: {'; '.join(lines)}")
        for conflict in imported.conflicts:
            self._notice(f"{self.path}: {conflict}; this was not taken over")
        if imported.conflicts:
            kept = self.path.with_name(CONFLICT)
            write_atomic(kept, data)
            self._notice(f"the edited file is kept as {kept}")
        return digest

    def _hash_on_disk(self) -> str:
        """The hash of the file, "" if there is none; read again only if its size or times have
        changed.
        """
        mark = self._mark()
        try:
            if mark is None:
                return ""
            if self._seen is None or self._seen[0] != mark:
                self._seen = mark, hashlib.sha256(read_limited(self.path)).hexdigest()
        except FileNotFoundError:
            return ""
        return self._seen[1]

    def _mark(self) -> tuple[int, int, int] | None:
        """Changes with every change of the file; None if there is none. Raises: OSError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


# Archiving

ARCHIVE = "archive"
_DAY_S = 86_400.0


def archive(store: QueueTables, folder: Path, days: float | None = None) -> dict[str, list[str]]:
    """Archives the entries that ended more than `days` (default: `archiveDays`) ago; returns their
    ids by month.

    Raises: RecordError or UsageError, if a file of the archive cannot be read or written; its
    entries stay then.
    """
    moved: dict[str, list[str]] = {}
    if days is None:
        days = store.settings().archive_days
    old = sorted(store.completed_before(clock.wall() - days * _DAY_S), key=_month)
    for month, group in groupby(old, key=_month):
        path = folder / ARCHIVE / f"{month}.json"
        with store.transaction():  # no worker and no user changes an entry meanwhile
            still = [entry for entry in group if store.is_current(entry)]
            if still:
                _write_archive(path, store, added=still)
                store.move_to_archive(month, still)
                moved[month] = [entry.id for entry in still]
    return moved


def archived_entry(store: QueueTables, folder: Path, number: int) -> QueueEntry | None:
    """The entry with this number from the archive; None if it is not there. Raises: RecordError or
    UsageError.
    """
    month = store.archived_month(number)
    if month is None:
        return None
    path = folder / ARCHIVE / f"{month}.json"
    found = next(
        (entry for entry in _read_archive(path).tasks if entry_number(entry.id) == number), None
    )
    if found is None:
        raise RecordError(f"{path}: lacks the entry {entry_id(number)}, which was archived there")
    return found


def archived_documents(folder: Path) -> Iterator[tuple[str, QueueDocument]]:
    """The months of the archive and their files. Raises: RecordError or UsageError, for a file that
    cannot be read.
    """
    for path in sorted((folder / ARCHIVE).glob("[0-9][0-9][0-9][0-9]-[0-9][0-9].json")):
        yield path.stem, _read_archive(path)


def _month(entry: QueueEntry) -> str:
    assert entry.completed_at is not None
    completed = parse_timestamp(entry.completed_at)
    return f"{completed.year:04d}-{completed.month:02d}"


def _read_archive(path: Path) -> QueueDocument:
    try:
        return documents.read_document(read_limited(path), str(path))
    except OSError as error:
        raise RecordError(
            f"{path}: the archive cannot be read: {error.strerror or error}"
        ) from error


def _write_archive(path: Path, store: QueueTables, added: list[QueueEntry]) -> None:
    try:
        disk.make_folders(path.parent, 0o700, sync=True)
    except OSError as error:
        raise RecordError(
            f"{path}: the archive cannot be written: {error.strerror or error}"
        ) from error
    before = _read_archive(path).tasks if path.exists() else ()
    merged = {entry.id: entry for entry in (*before, *added)}
    tasks = tuple(sorted(merged.values(), key=lambda entry: entry_number(entry.id)))
    write_atomic(path, documents.document_bytes(replace(store.settings(), tasks=tasks)))
