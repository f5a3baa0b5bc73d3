"""Brings the index of one root up to date: new and changed files are read, files that are gone are
deleted.

A file is read again if its size or one of its times differs from the last reading, and if it had
been modified so shortly before that reading that a later change could bear the same time. A file
whose hash has not changed is not described again. Memory in use does not grow with the number of
files: the list of files is a temporary table, and files are described in pages.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from evaluator import clock
from evaluator.memory import describe, store, walk
from evaluator.memory.describer_pool import DescriberPool
from evaluator.memory.store import Stamp
from evaluator.processes.concurrency import in_thread, run_together
from evaluator.store.database import transaction

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
SELECT found.path, found.size, found.mtime_ns, found.ctime_ns, found.seen_ns,
       CASE WHEN :all THEN NULL ELSE file.hash END AS known, file.id IS NOT NULL AND file.skipped
       IS NULL AS described
FROM found LEFT JOIN file ON file.root = :root AND file.path = found.path
WHERE file.id IS NULL OR :all OR file.size <> found.size OR file.mtime_ns <> found.mtime_ns
   OR file.ctime_ns <> found.ctime_ns OR max(file.mtime_ns, file.ctime_ns) > file.seen_ns - :tick
ORDER BY found.path
"""
_GONE = "SELECT id FROM file WHERE root = ? AND path NOT IN (SELECT path FROM found)"


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of indexing a root, in files.

    `files` are in the index now. `skipped` counts what was left out, folders once, by reason;
    `examples` are the first of them with their reasons.
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


class _Wanted(NamedTuple):
    """A file to read: the hash that spares describing it, if it has not changed, and whether it was
    described.
    """

    stamp: Stamp
    known_hash: str | None
    was_described: bool


async def index_root(
    database: Path,
    place: str,
    root: str,
    kind: Kind,
    *,
    max_file_bytes: int,
    processes: int | None,
    on_progress: Callable[[int], None] | None = None,
) -> IndexReport:
    """Indexes `root`, an absolute path without links, recorded as `place`. `on_progress` receives
    the number of files that were read.

    Raises: UsageError, if it is not a folder, or for `git` not in a repository; ContextError, if
    the database cannot be used.
    """
    started = clock.monotonic()
    skips = walk.Skips()
    if kind == "git":
        stamps = walk.git_stamps(root, await walk.git_paths(root), max_file_bytes, skips)
    else:
        stamps = walk.folder_stamps(root, max_file_bytes, skips)
    own = _own_files(database, root)
    with closing(store.connect(database)) as connection:
        run = _IndexPass(connection, place, kind=kind)
        describers = DescriberPool(root, max_file_bytes, processes=processes)
        try:
            await _finished(lambda: run.find(stamp for stamp in stamps if stamp.path not in own))
            await run.read(describers, on_progress)
            files = await _finished(lambda: run.finish(skips))
        finally:
            await describers.close()
    return IndexReport(
        root,
        kind,
        files=files,
        added=run.added,
        changed=run.changed,
        removed=run.removed,
        skipped=dict(sorted(skips.counts.items())),
        examples=tuple(skips.examples),
        seconds=clock.monotonic() - started,
    )


class _IndexPass:
    """One pass over one root, with a connection of its own for its temporary tables."""

    def __init__(self, connection: sqlite3.Connection, place: str, kind: Kind) -> None:
        self.connection = connection
        self.added = self.changed = self.removed = 0
        self._place = place
        self._kind = kind
        self._root = 0

    def find(self, stamps: Iterable[Stamp]) -> None:
        """Lists the files that exist and those that have to be read; deletes those that are
        gone.
        """
        connection = self.connection
        with transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO root (place, kind, describers) VALUES (?, ?, ?)",
                (self._place, self._kind, describe.VERSION),
            )
            self._root, version = connection.execute(
                "SELECT id, describers FROM root WHERE place = ?", (self._place,)
            ).fetchone()
        connection.execute(_FOUND)
        rows = iter(stamps)
        while page := list(islice(rows, _PAGE)):
            with transaction(connection, "DEFERRED"):
                connection.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?, ?)", page)
        connection.execute(
            _WANTED, {"root": self._root, "all": version != describe.VERSION, "tick": _TICK_NS}
        )
        while gone := [
            row[0] for row in connection.execute(f"{_GONE} LIMIT {_PAGE}", (self._root,))
        ]:
            with transaction(connection):
                store.forget(connection, gone)
            self.removed += len(gone)

    async def read(
        self, describers: DescriberPool, on_progress: Callable[[int], None] | None
    ) -> None:
        """Reads page after page; while one is described, the one before is written."""
        described: list[tuple[_Wanted, dict[str, Any]]] = []
        read = 0
        page, last = await _finished(lambda: self._page(0))
        while page or described:
            answers, _ = await run_together(
                describers.describe([(each.stamp.path, each.known_hash) for each in page]),
                _finished(partial(self._write, described)),
            )
            described = list(zip(page, answers, strict=True))
            read += len(page)
            if on_progress is not None:
                on_progress(read)
            page, last = await _finished(partial(self._page, last))

    def _page(self, after: int) -> tuple[list[_Wanted], int]:
        rows = self.connection.execute(
            "SELECT rowid, * FROM wanted WHERE rowid > ? ORDER BY rowid LIMIT ?", (after, _PAGE)
        ).fetchall()
        return [
            _Wanted(Stamp(*row[1:6]), row[6], was_described=bool(row[7])) for row in rows
        ], rows[-1][0] if rows else after

    def _write(self, page: list[tuple[_Wanted, dict[str, Any]]]) -> None:
        if page:
            store.write_files(
                self.connection, self._root, [(wanted.stamp, answer) for wanted, answer in page]
            )
        for wanted, answer in page:
            if "stems" in answer:
                self.added += not wanted.was_described
                self.changed += wanted.was_described
            elif "skipped" in answer:
                self.removed += wanted.was_described

    def finish(self, skips: walk.Skips) -> int:
        """Records the root's kind; adds what describers skipped to `skips`. Returns: files in the
        index.
        """
        connection = self.connection
        with transaction(connection):
            connection.execute(
                "UPDATE root SET kind = ?, describers = ? WHERE id = ?",
                (self._kind, describe.VERSION, self._root),
            )
        for path, reason in connection.execute(
            "SELECT path, skipped FROM file WHERE root = ? AND skipped IS NOT NULL ORDER BY path",
            (self._root,),
        ):
            skips.add(path, reason)
        (files,) = connection.execute(
            "SELECT count(*) FROM file WHERE root = ? AND skipped IS NULL", (self._root,)
        ).fetchone()
        return files


def _own_files(database: Path, root: str) -> frozenset[str]:
    """Returns the database and its journals, as paths below `root`; they are not indexed."""
    relative = os.path.relpath(os.path.realpath(database), root)
    return frozenset(relative + ending for ending in ("", "-wal", "-shm", "-journal"))


async def _finished(function: Callable[[], _T]) -> _T:
    """Returns the function's result, from a thread; if cancelled, raises after the thread has
    ended.
    """
    running = asyncio.ensure_future(in_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
