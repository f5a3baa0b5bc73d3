"""A queue as it is at one moment, for reading: nothing is created, published or changed.

A queue as a board: a column for each status, with the entries that come first in it.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Self

from evaluator import disk
from evaluator.errors import RecordError, UsageError
from evaluator.fields import Range, accept
from evaluator.jobs.document import FILE, array_text, join_document, parse_entry, read_limited
from evaluator.jobs.entries import (
    MAX_INTEGER,
    EntryOptions,
    EntryStatus,
    QueueEntry,
    entry_number,
    timestamp,
)
from evaluator.jobs.queue_files import archived_entry, fill_store
from evaluator.jobs.queue_store import QueueStore, StoredEntry, StuckEntry
from evaluator.lazy_dataclass import frozen

COLUMNS: tuple[EntryStatus, ...] = ("pending", "running", "blocked", "done", "skipped")


@frozen
class BoardColumn:
    """The entries in one state: the first ones, of `count`."""

    status: EntryStatus
    count: int
    entries: Sequence[QueueEntry]


@frozen
class QueueBoard:
    """`ready`: pending entries that could run now. `archived`: entries in the archive, which no
    column has.
    """

    columns: Sequence[BoardColumn]
    ready: int
    archived: int
    max_concurrent: int


def read_board(store: QueueStore, limit: int) -> QueueBoard:
    """The board at one moment, with at most `limit` entries in each column."""
    with store.transaction("DEFERRED"):
        counts = store.counts()
        columns = [
            BoardColumn(
                status,
                counts[status],
                entries=[parse_entry(text) for text in store.first_documents(status, limit)],
            )
            for status in COLUMNS
        ]
        return QueueBoard(
            columns,
            store.count_ready(),
            archived=counts["archived"],
            max_concurrent=store.settings().max_concurrent,
        )


DATABASE = "queue.sqlite"
DEFAULT_FOLDER = "queue"
FOLDER_VARIABLE = "TASK_RUNNER_DIR"


@frozen
class QueueStats:
    """Numbers of a queue. `entries`: by status, and `archived`. `types`: entries that are not
    archived, by type.

    `ready`: pending entries that could run now; `stuck`: those that cannot run, see
    `TaskQueue.stuck`. `attempts`: attempts of the entries that are not archived.
    """

    entries: Mapping[str, int]
    types: Mapping[str, int]
    ready: int
    stuck: int
    attempts: int
    last_id: str | None
    max_concurrent: int
    max_retries: int
    archive_days: int


class QueueView:
    """The queue in `folder`; the folder is `TASK_RUNNER_DIR`, or `queue` here, unless it is given.
    A queue that is missing is empty; one without its database is what its published file says.

    Raises: RecordError, if the database cannot be read; ConfigurationError, for a database of
    another program or version.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder_of_queue(folder)
        self._store = self._open_store()

    def _open_store(self) -> QueueStore:
        check_not_lost(self.folder)
        path = self.folder / DATABASE
        if os.path.lexists(path) or not (self.folder / FILE).exists():
            return QueueStore(path, is_snapshot=True)
        # As it will be once the published file has been taken over.
        with disk.temporary_folder("evaluator-") as folder:
            taken_over = folder / DATABASE
            with closing(QueueStore(taken_over)) as store:
                fill_store(store, self.folder)
            return QueueStore(taken_over, is_snapshot=True)

    def list(
        self, status: EntryStatus | None = None, *, limit: int | None = None
    ) -> list[QueueEntry]:
        """The entries that are not archived, or those in one state, in the order of their ids; with
        `limit`, the newest of them.
        """
        _check_selection(status, limit)
        return [parse_entry(text) for text in self._store.documents(status, limit)]

    def list_json(self, status: EntryStatus | None = None, *, limit: int | None = None) -> str:
        """As `list`, as the text of a JSON array of entries as `task-queue.json` has them."""
        _check_selection(status, limit)
        return array_text(self._store.documents(status, limit))

    def board(self, limit: int) -> QueueBoard:
        """The number of entries in each state, and at most `limit` of each: those that run first or
        ended last.

        Raises: UsageError, for a `limit` below 1.
        """
        check_range("limit", limit, least=1)
        return read_board(self._store, limit)

    def show(self, id: str) -> StoredEntry:
        """An entry with its options; one from the archive without them. Raises: UsageError, if
        there is none.
        """
        number = entry_number(id)
        with self._store.transaction("DEFERRED"):
            archived = archived_entry(self._store, self.folder, number=number)
            if archived is None:
                return self._store.get(number)
            return StoredEntry(archived, EntryOptions())

    def is_edited(self) -> bool:
        """Whether somebody has edited the published file since it was taken over."""
        try:
            digest = hashlib.sha256(read_limited(self.folder / FILE)).hexdigest()
        except OSError:
            return False
        known = self._store.publication()
        return digest not in (known.published_hash, known.publishing_hash)

    def stuck(self) -> Sequence[StuckEntry]:
        """The pending entries that wait, also through others, for an entry that was skipped or is
        blocked.
        """
        return self._store.stuck()

    def export(self) -> bytes:
        """The queue as `task-queue.json` has it."""
        with self._store.transaction("DEFERRED"):
            return join_document(self._store.settings(), self._store.documents())

    def stats(self) -> QueueStats:
        """Numbers of the queue."""
        with self._store.transaction("DEFERRED"):
            entries = self.list()
            settings = self._store.settings()
            return QueueStats(
                self._store.counts(),
                types=dict(Counter(entry.type for entry in entries)),
                ready=self._store.count_ready(),
                stuck=len({entry.id for entry in self._store.stuck()}),
                attempts=sum(len(entry.strategies_tried) for entry in entries),
                last_id=settings.last_id,
                max_concurrent=settings.max_concurrent,
                max_retries=settings.max_retries,
                archive_days=settings.archive_days,
            )

    def close(self) -> None:
        """Closes the database."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"


def entry_details(stored: StoredEntry) -> dict[str, Any]:
    """What is known of an entry besides the fields of the file: its options, and what it waits
    for.
    """
    options = asdict(stored.options)
    start = stored.options.not_before
    details = {
        **options,
        "not_before": timestamp(start) if start else None,
        "waits_for": list(stored.waits_for),
    }
    if not stored.is_signed:
        details["signed"] = "no: somebody else wrote it, so only its words are used"
    return details


def folder_of_queue(folder: str | Path | None) -> Path:
    """The absolute path of the folder that is meant."""
    folder = folder or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER
    return Path(os.path.abspath(Path(folder).expanduser()))


def check_not_lost(folder: Path) -> None:
    """Raises: RecordError, if the database is an empty file beside a published queue."""
    path = folder / DATABASE
    if path.is_file() and not path.stat().st_size and (folder / FILE).exists():
        raise RecordError(
            f"{path}: is empty, but {FILE} beside it was published: the queue was lost. Restore "
            f"{DATABASE} from a backup, or remove it to continue with what was published"
        )


def _check_selection(status: str | None, limit: int | None) -> None:
    accept(EntryStatus | None, status, "status", UsageError)
    check_range("limit", limit, least=1)


def check_range(name: str, value: int | None, least: int) -> None:
    """Raises: UsageError, for a value out of range."""
    accept(Annotated[int | None, Range(least, most=MAX_INTEGER)], value, name, UsageError)
