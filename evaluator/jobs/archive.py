"""Moves entries that ended long ago into `archive/YYYY-MM.json`, by the month of their
`completed_at`.

A file of the archive has the form of `task-queue.json`. It is written before the entries leave the
store, so a crash in between leaves them in both, and the next run replaces them in the file.
`lastId` does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from evaluator import clock, disk
from evaluator.errors import RecordError
from evaluator.files.atomic import write_atomic
from evaluator.jobs.document import document_bytes, read_document, read_limited
from evaluator.jobs.entries import (
    QueueDocument,
    QueueEntry,
    entry_id,
    entry_number,
    parse_timestamp,
)
from evaluator.jobs.queue_tables import QueueTables

FOLDER = "archive"
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
        path = folder / FOLDER / f"{month}.json"
        with store.transaction():  # no worker and no user changes an entry meanwhile
            still = [entry for entry in group if store.is_current(entry)]
            if still:
                _write(path, store, added=still)
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
    path = folder / FOLDER / f"{month}.json"
    found = next((entry for entry in _read(path).tasks if entry_number(entry.id) == number), None)
    if found is None:
        raise RecordError(f"{path}: lacks the entry {entry_id(number)}, which was archived there")
    return found


def archived_documents(folder: Path) -> Iterator[tuple[str, QueueDocument]]:
    """The months of the archive and their files. Raises: RecordError or UsageError, for a file that
    cannot be read.
    """
    for path in sorted((folder / FOLDER).glob("[0-9][0-9][0-9][0-9]-[0-9][0-9].json")):
        yield path.stem, _read(path)


def _month(entry: QueueEntry) -> str:
    assert entry.completed_at is not None
    completed = parse_timestamp(entry.completed_at)
    return f"{completed.year:04d}-{completed.month:02d}"


def _read(path: Path) -> QueueDocument:
    try:
        return read_document(read_limited(path), str(path))
    except OSError as error:
        raise RecordError(
            f"{path}: the archive cannot be read: {error.strerror or error}"
        ) from error


def _write(path: Path, store: QueueTables, added: list[QueueEntry]) -> None:
    try:
        disk.make_folders(path.parent, 0o700, sync=True)
    except OSError as error:
        raise RecordError(
            f"{path}: the archive cannot be written: {error.strerror or error}"
        ) from error
    before = _read(path).tasks if path.exists() else ()
    merged = {entry.id: entry for entry in (*before, *added)}
    tasks = tuple(sorted(merged.values(), key=lambda entry: entry_number(entry.id)))
    write_atomic(path, document_bytes(replace(store.settings(), tasks=tasks)))
