"""Imports a `task-queue.json` into a store: everything in the file, or nothing.

An entry whose id the store does not have is added. An entry that the store has is the same one if
`added_at` is equal; a field that differs from the published file is then an edit by a person. An
edit may change texts, and the state as a user may: skip a pending entry, retry a blocked one. An
entry that changed in the store as well, or that runs, is a conflict. Entries that the file lacks
stay, and so do those in the archive. Settings are taken from the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluator.errors import UsageError
from evaluator.queue.document import read_document
from evaluator.queue.entries import (
    TERMINAL,
    EntryOptions,
    EntryStatus,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
    retry,
    skip,
    timestamp,
)
from evaluator.queue.tables import QueueTables

_BY_USER: dict[EntryStatus, tuple[EntryStatus, ...]] = {
    "pending": ("pending", "skipped"),
    "blocked": ("blocked", "pending"),
    "done": ("done",),
    "skipped": ("skipped",),
    "running": (),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """The ids of a file's entries by what happened to them. `dated`: entries that have ended and
    lack `completed_at`, which is filled in with the last time that they name.
    """

    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    dated: Sequence[str] = ()


def import_document(store: QueueTables, data: bytes, name: str) -> Imported:
    """Imports the file with these bytes; `name` is for messages.

    Raises: UsageError, with the place, if the file or an entry cannot be imported; nothing is
    changed then.
    """
    document = read_document(data, name)
    found: dict[str, list[str]] = {"added": [], "changed": [], "unchanged": [], "dated": []}
    with store.transaction():
        if (known := store.settings().last_id) is None:
            last = 0
        else:
            last = entry_number(known)
        for index, entry in enumerate(document.tasks):
            try:
                dated = _dated(store, entry)
                what = _import_entry(store, dated, last=last)
            except UsageError as error:
                raise UsageError(
                    f"{name}: $.tasks[{index}] {error}; nothing was imported"
                ) from error
            found[what].append(entry.id)
            if dated is not entry and what != "unchanged":
                found["dated"].append(entry.id)
        store.configure(
            max_concurrent=document.max_concurrent,
            max_retries=document.max_retries,
            archive_days=document.archive_days,
            task_runner_dir=document.task_runner_dir,
        )
        if document.last_id is not None:
            store.raise_last_number(entry_number(document.last_id))
    return Imported(**found)


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


def _import_entry(store: QueueTables, entry: QueueEntry, last: int) -> str:
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
        store.insert(entry, EntryOptions())
        return "added"
    current, base = known
    if entry in (current, base):
        return "unchanged"
    if entry.added_at != current.added_at:
        raise UsageError(
            f"is not the {entry.id} of this queue, which was added at {current.added_at}"
        )
    if current != base:
        raise UsageError(
            f"({entry.id}) was edited and has changed in the queue too; export the queue and edit "
            "again"
        )
    if entry.status not in _BY_USER[current.status]:
        raise UsageError(f"({entry.id}) is {current.status}; an edit cannot make it {entry.status}")
    if (current.status, entry.status) == ("blocked", "pending"):
        entry = retry(replace(entry, status="blocked"))
    elif current.status == "pending" and entry.status == "skipped":
        entry = skip(
            replace(entry, status="pending"), entry.completed_at or timestamp(store.clock())
        )
    store.put(number, entry)
    return "changed"
