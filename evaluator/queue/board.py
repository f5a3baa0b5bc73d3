"""A queue as a board: a column for each status, with the entries that come first in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.queue.document import parse_entries
from evaluator.queue.entries import EntryStatus, QueueEntry
from evaluator.queue.store import QueueStore

COLUMNS: tuple[EntryStatus, ...] = ("pending", "running", "blocked", "done", "skipped")


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """The entries in one state: the first ones, of `count`."""

    status: EntryStatus
    count: int
    entries: Sequence[QueueEntry]


@dataclass(frozen=True, slots=True)
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
                status, counts[status], entries=parse_entries(store.first_documents(status, limit))
            )
            for status in COLUMNS
        ]
        return QueueBoard(
            columns,
            store.count_ready(),
            archived=counts["archived"],
            max_concurrent=store.settings().max_concurrent,
        )
