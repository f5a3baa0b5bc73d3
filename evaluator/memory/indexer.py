"""Brings the index of one root up to date: new and changed files are read, files that are gone are
deleted.

A file is read again if its size or one of its times differs from the last reading, and if it had
been modified so shortly before that reading that a later change could bear the same time. A file
whose hash has not changed is not described again. Memory in use does not grow with the number of
files: the list of files is a temporary table, and files are described in pages.

A pool of processes that describe files for the indexing process: paths in, answers out.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from evaluator import clock
from evaluator.errors import ContextError
from evaluator.lazy_dataclass import frozen
from evaluator.memory import describe, store, walk
from evaluator.memory.describer_process import READY
from evaluator.memory.store import Stamp
from evaluator.processes import starting
from evaluator.processes.concurrency import in_thread, run_together
from evaluator.processes.supervisor import scrubbed_environment
from evaluator.store.database import transaction

FILE_TIMEOUT_S = 10.0
"""How long one file may take to be read and described."""
_CHUNK = 32
_LINE_BYTES = 4_000_000
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from evaluator.memory.describer_process import main; main(sys.argv[2], int(sys.argv[3]))"
)


class DescriberPool:
    """Up to `processes` processes, started when they are needed and killed by `close`.

    A file whose process dies or takes more than `FILE_TIMEOUT_S` is answered as skipped; a new
    process describes the other files.
    """

    def __init__(self, root: str, max_bytes: int, *, processes: int | None = None) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._count = processes or min(4, os.cpu_count() or 1)
        self._idle: list[Process] = []
        self._running: set[Process] = set()

    async def describe(self, files: Sequence[tuple[str, str | None]]) -> list[dict[str, Any]]:
        """Returns one answer for each path and known hash, in order; see `describer_process` for
        what it holds.
        """
        answers: list[dict[str, Any]] = [{} for _ in files]
        chunks = iter(range(0, len(files), _CHUNK))

        async def work() -> None:
            for first in chunks:
                chunk = files[first : first + _CHUNK]
                done = 0
                while done < len(chunk):
                    if self._idle:
                        process = self._idle.pop()
                    else:
                        process = await self._start()
                    async for answer in self._answers(process, chunk[done:]):
                        answers[first + done] = answer
                        done += 1

        await run_together(*(work() for _ in range(self._count)))
        return answers

    async def _answers(
        self, process: Process, files: Sequence[tuple[str, str | None]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yields the answers for all files, or for those up to the one that ended the process."""
        cast(StreamWriter, process.stdin).write(
            "".join(json.dumps(file) + "\n" for file in files).encode()
        )
        for _ in files:
            try:
                line = await asyncio.wait_for(
                    cast(StreamReader, process.stdout).readline(), FILE_TIMEOUT_S
                )
                reason = "its describer crashed"
            except TimeoutError:
                line = b""
                reason = f"took more than {FILE_TIMEOUT_S:g} s to describe"
            if not line.endswith(b"\n"):
                await self._end(process)
                yield {"skipped": reason}
                return
            yield json.loads(line)
        self._idle.append(process)

    async def _start(self) -> Process:
        process = await starting.create_subprocess(
            sys.executable,
            "-I",
            "-X",
            "utf8",
            "-c",
            _PROGRAM,
            json.dumps(sys.path),
            self._root,
            str(self._max_bytes),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=scrubbed_environment(),
            limit=_LINE_BYTES,
        )
        self._running.add(process)
        if await cast(StreamReader, process.stdout).readline() != READY:
            output = await cast(StreamReader, process.stderr).read(2_000)
            await self._end(process)
            reason = output.decode("utf-8", "replace").strip() or "it writes no error"
            raise ContextError(f"the process that describes files does not start: {reason}")
        return process

    async def _end(self, process: Process) -> None:
        self._running.discard(process)
        starting.kill(process)
        await process.wait()

    async def close(self) -> None:
        """Kills the processes that still run and waits for them."""
        for process in list(self._running):
            await self._end(process)


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


@frozen
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
        page = [_Wanted(Stamp(*row[1:6]), row[6], was_described=bool(row[7])) for row in rows]
        return page, rows[-1][0] if rows else after

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
