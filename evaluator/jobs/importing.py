"""Imports a `task-queue.json` into a store: everything in a file from elsewhere, or nothing; the
published file of the queue itself entry by entry, after a person has edited it.

An entry whose id the store does not have is added. An entry that the store has is the same one if
`added_at` is equal; a field that differs from the published file is then an edit by a person. An
edit may change texts, and the state as a user may: skip a pending entry, retry a blocked one. An
entry that changed in the store as well, or that runs, is a conflict. Entries that the file lacks
stay, and so do those in the archive. Settings are taken from the file.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from evaluator import clock, disk
from evaluator.errors import UsageError
from evaluator.jobs.archive import archived_documents
from evaluator.jobs.deliverables import DELIVERABLES
from evaluator.jobs.document import (
    FILE,
    Reading,
    highest_id,
    read_document,
    read_edit,
    read_limited,
)
from evaluator.jobs.entries import (
    TERMINAL,
    EntryOptions,
    EntryStatus,
    QueueDocument,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
    retry,
    skip,
    timestamp,
)
from evaluator.jobs.queue_tables import QueueTables
from evaluator.lazy_dataclass import frozen

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
    document = read_document(data, name)
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
        return _import(store, read_edit(data, name, store.settings()), is_edit=True)


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
    for id_ in (document.last_id, highest_id(document.tasks)):
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
        entry = retry(replace(entry, status="blocked"))
    elif current.status == "pending" and entry.status == "skipped":
        entry = skip(
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
        store.configure(task_runner_dir=f"{folder}/")
        imported = _import_published(store, folder / FILE)
        for month, document in archived_documents(folder):
            store.move_to_archive(month, document.tasks)
            _give_no_more(store, document)
        for answer in (folder / DELIVERABLES).glob("T-*.md"):
            with contextlib.suppress(UsageError):
                store.raise_last_number(entry_number(answer.stem))
    return imported


def _import_published(store: QueueTables, file: Path) -> Imported:
    try:
        data = read_limited(file)
    except FileNotFoundError:
        return Imported()
    imported = import_document(store, data, str(file))
    if not store.settings().task_runner_dir:
        store.configure(task_runner_dir=f"{file.parent}/")
    store.accept_file(hashlib.sha256(data).hexdigest())
    return imported
