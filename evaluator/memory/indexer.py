"""Brings the index of one root up to date: new and changed files are read, files that are gone are
deleted.

A file is read again if its size or one of its times differs from the last reading, and if it had
been modified so shortly before that reading that a later change could bear the same time. A file
whose hash has not changed is not described again. Memory in use does not grow with the number of
files: the list of files is a temporary table, and files are described in pages. Each page is
described by supervised processes (see `describer_process`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from evaluator import clock
from evaluator.errors import ContextError
from evaluator.files.project_code import own_path_first
from evaluator.lazy_dataclass import frozen
from evaluator.memory import describe, store, walk
from evaluator.memory.describer_process import READY, Answer
from evaluator.memory.store import Stamp
from evaluator.processes.concurrency import in_thread, run_together
from evaluator.processes.scripts import ScriptResult, run_script
from evaluator.store.database import transaction

FILE_TIMEOUT_S = 10.0
"""How long one file may take to be read and described."""
_START_S = 60.0
_MEMORY_BYTES = 2_000_000_000
_ANSWER_BYTES = 100_000
# Fewer files are not worth another process.
_LEAST_PART = 32
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from evaluator.memory.describer_process import main; main(*sys.argv[2:])"
)
_Files = Sequence[tuple[str, str | None]]


async def _describe(root: str, max_bytes: int, processes: int, files: _Files) -> list[Answer]:
    """Returns one answer for each path and known hash, in order, from up to `processes` processes
    at once; see `describer_process` for what it holds.
    """
    size = max(_LEAST_PART, -(-len(files) // processes))
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    answers = await run_together(*(_describe_part(root, max_bytes, part) for part in parts))
    return [*chain.from_iterable(answers)]


async def _describe_part(root: str, max_bytes: int, files: _Files) -> list[Answer]:
    """Runs a process for `files`. A file that ends it is answered as skipped; a new process
    describes those after it.
    """
    arguments = (json.dumps(own_path_first()), root, str(max_bytes), str(FILE_TIMEOUT_S))
    answers: list[Answer] = []
    while len(answers) < len(files):
        rest = files[len(answers) :]
        ended = await run_script(
            [sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM, *arguments],
            stdin="".join(json.dumps(file) + "\n" for file in rest),
            timeout_s=_START_S + len(rest) * FILE_TIMEOUT_S,
            max_output_bytes=len(rest) * _ANSWER_BYTES,
            memory_bytes=_MEMORY_BYTES,
        )
        # What follows the last line feed is an answer that was cut off.
        ready, *lines = ended.stdout.split("\n")[:-1] or [""]
        if ready != READY:
            reason = ended.stderr.strip()[:2_000] or "it writes no error"
            raise ContextError(f"the process that describes files does not start: {reason}")
        answers += map(json.loads, lines)
        if len(lines) < len(rest):
            answers.append({"skipped": _reason(ended)})
    return answers


def _reason(ended: ScriptResult) -> str:
    if ended.signal == signal.SIGALRM or ended.timed_out:
        return f"took more than {FILE_TIMEOUT_S:g} s to describe"
    if ended.overrun == "memory":
        return "needs too much memory"
    return "its describer crashed"


MAX_FILE_BYTES = 4_000_000
"""Larger files are skipped."""
Kind = Literal["git", "folder"]
_PAGE = 2_048
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
        count = processes or min(4, os.cpu_count() or 1)
        await _finished(lambda: run.find(stamp for stamp in stamps if stamp.path not in own))
        await run.read(partial(_describe, root, max_file_bytes, count), on_progress)
        files = await _finished(lambda: run.finish(skips))
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
        self,
        describe_files: Callable[[_Files], Awaitable[list[Answer]]],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        """Reads page after page; while one is described, the one before is written."""
        described: list[tuple[_Wanted, Answer]] = []
        read = 0
        page, last = await _finished(lambda: self._page(0))
        while page or described:
            answers, _ = await run_together(
                describe_files([(each.stamp.path, each.known_hash) for each in page]),
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

    def _write(self, page: list[tuple[_Wanted, Answer]]) -> None:
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
