"""Brings the index of one root up to date: what is new or changed is read, what is gone leaves.

A file is read again where its size or one of its times is another than when it was last read, and where it
had been modified so shortly before that reading that a later change could bear the same time. What was read
and has the same hash is not described again. Memory in use does not grow with the number of files: the list
of what was found is a temporary table, files go through in pages.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from evaluator.handler.tools.threads import in_thread
from evaluator.memory import describe, store, walk
from evaluator.memory.describers import Describers, Wanted, together
from evaluator.memory.store import Stamp
from evaluator.record.database import transaction

MAX_FILE_BYTES = 4_000_000
"""Larger files are skipped."""
Kind = Literal["git", "folder"]
_PAGE = 512
# The coarsest clock among file systems in use (FAT) ticks every two seconds.
_TICK_NS = 2_000_000_000
_T = TypeVar("_T")

_FOUND = """
CREATE TEMP TABLE found (
    path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, seen_ns INTEGER
) WITHOUT ROWID
"""
_WANTED = """
CREATE TEMP TABLE wanted AS
SELECT found.path, found.size, found.mtime_ns, found.ctime_ns, found.seen_ns, file.hash AS known,
       file.terms IS NOT NULL AS described
FROM found LEFT JOIN file ON file.root = :root AND file.path = found.path
WHERE file.id IS NULL OR :anew OR file.size <> found.size OR file.mtime_ns <> found.mtime_ns
   OR file.ctime_ns <> found.ctime_ns OR max(file.mtime_ns, file.ctime_ns) > file.seen_ns - :tick
ORDER BY found.path
"""
_GONE = "SELECT id FROM file WHERE root = ? AND path NOT IN (SELECT path FROM found)"


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What indexing a root came to, in files.

    `files` are in the index now. `skipped` counts what was left out, folders once, by reason; `examples` are
    the first of them with their reasons.
    """

    root: str
    kind: Kind
    files: int
    added: int
    changed: int
    removed: int
    skipped: Mapping[str, int]
    examples: tuple[tuple[str, str], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Answered:
    """A file to be read, and what came of it."""

    stamp: Stamp
    wanted: Wanted
    was_described: bool
    answer: dict[str, Any] = field(default_factory=dict[str, Any])


class _Counts:
    added = changed = removed = 0


async def index_root(
    database: Path, place: str, root: str, kind: Kind, *, max_file_bytes: int, processes: int | None
) -> IndexReport:
    """Indexes `root`, an absolute path without links, recorded as `place`.

    Raises: UsageError, if it is no folder, or for `git` in no repository; ContextError, if the database
    cannot be used.
    """
    started = time.perf_counter()
    skips = walk.Skips()
    if kind == "git":
        stamps = walk.git_stamps(root, await walk.git_paths(root), max_file_bytes, skips)
    else:
        stamps = walk.folder_stamps(root, max_file_bytes, skips)
    own = _own_files(database, root)
    run = _Run(store.connect(database), place, kind)
    describers = Describers(root, max_file_bytes, processes=processes)
    try:
        await _finished(lambda: run.find(stamp for stamp in stamps if stamp.path not in own))
        await run.read(describers)
        files = await _finished(lambda: run.finish(skips))
    finally:
        await describers.close()
        run.connection.close()
    counts = run.counts
    return IndexReport(
        root, kind, files, counts.added, counts.changed, counts.removed,
        dict(sorted(skips.counts.items())), tuple(skips.examples), time.perf_counter() - started,
    )  # fmt: skip


class _Run:
    """One pass over one root, with a connection of its own for its temporary tables."""

    def __init__(self, connection: sqlite3.Connection, place: str, kind: Kind) -> None:
        self.connection = connection
        self.counts = _Counts()
        self._place, self._kind = place, kind
        self._root = 0
        self._anew = False

    def find(self, stamps: Iterable[Stamp]) -> None:
        """Lists what is there and what of it has to be read; takes out what is gone."""
        connection = self.connection
        with transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO root (place, kind, describers) VALUES (?, ?, ?)",
                (self._place, self._kind, describe.VERSION),
            )
            self._root, version = connection.execute(
                "SELECT id, describers FROM root WHERE place = ?", (self._place,)
            ).fetchone()
            self._anew = version != describe.VERSION
        connection.execute(_FOUND)
        rows = ((s.path, s.size, s.mtime_ns, s.ctime_ns, s.seen_ns) for s in stamps)
        while page := list(islice(rows, _PAGE)):
            with transaction(connection, "DEFERRED"):
                connection.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?, ?)", page)
        connection.execute(_WANTED, {"root": self._root, "anew": self._anew, "tick": _TICK_NS})
        while gone := [row[0] for row in connection.execute(f"{_GONE} LIMIT {_PAGE}", (self._root,))]:
            with transaction(connection):
                store.forget(connection, gone)
            self.counts.removed += len(gone)

    async def read(self, describers: Describers) -> None:
        """Page after page: while one is described, the one before is written."""
        written: list[_Answered] = []
        page, last = await _finished(lambda: self._page(0))
        while page or written:
            answers, _ = await together(
                describers.describe([each.wanted for each in page]), _finished(partial(self._write, written))
            )
            written = [replace(each, answer=answer) for each, answer in zip(page, answers, strict=True)]
            page, last = await _finished(partial(self._page, last))

    def _page(self, after: int) -> tuple[list[_Answered], int]:
        rows = self.connection.execute(
            "SELECT rowid, * FROM wanted WHERE rowid > ? ORDER BY rowid LIMIT ?", (after, _PAGE)
        ).fetchall()
        page = [
            _Answered(Stamp(*row[1:6]), Wanted(row[1], None if self._anew else row[6]), bool(row[7])) for row in rows
        ]
        return page, rows[-1][0] if rows else after

    def _write(self, page: list[_Answered]) -> None:
        if not page:
            return
        store.write_files(self.connection, self._root, [(each.stamp, each.answer) for each in page])
        for each in page:
            if "terms" in each.answer:
                self.counts.added += not each.was_described
                self.counts.changed += each.was_described
            elif "skipped" in each.answer:
                self.counts.removed += each.was_described

    def finish(self, skips: walk.Skips) -> int:
        """Notes what the root is; adds what describers skipped to `skips`. Returns: files in the index."""
        connection = self.connection
        with transaction(connection):
            connection.execute(
                "UPDATE root SET kind = ?, describers = ? WHERE id = ?", (self._kind, describe.VERSION, self._root)
            )
        for reason, count in connection.execute(
            "SELECT skipped, count(*) FROM file WHERE root = ? AND skipped IS NOT NULL GROUP BY skipped", (self._root,)
        ):
            skips.counts[reason] = skips.counts.get(reason, 0) + count
        room = walk.EXAMPLES - len(skips.examples)
        skips.examples += connection.execute(
            "SELECT path, skipped FROM file WHERE root = ? AND skipped IS NOT NULL ORDER BY path LIMIT ?",
            (self._root, room),
        )
        (files,) = connection.execute(
            "SELECT count(*) FROM file WHERE root = ? AND skipped IS NULL", (self._root,)
        ).fetchone()
        return files


def _own_files(database: Path, root: str) -> frozenset[str]:
    """The database and its journals, as paths below `root`."""
    relative = os.path.relpath(os.path.realpath(database), root)
    return frozenset(relative + ending for ending in ("", "-wal", "-shm", "-journal"))


async def _finished(function: Callable[[], _T]) -> _T:
    """The function's result, from a thread; when cancelled, raises after the thread has let go of the database."""
    running = asyncio.ensure_future(in_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
