"""GlobalIndex: a `Memory` in a database, over folders and repositories of any size.

It holds paths and descriptions, never contents: names of definitions, headings, first lines of
docstrings, columns, keys. Files are read by separate processes, through the Handler's file access.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from evaluator.errors import ContextError, UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.library.matching import Reason
from evaluator.memory import embedding, store
from evaluator.memory.embedding import Embedder
from evaluator.memory.index import (
    ContextRequest,
    RelevantPath,
    relevant_path,
    request_terms,
    request_text,
)
from evaluator.memory.indexer import MAX_FILE_BYTES, IndexReport, Kind, index_root
from evaluator.memory.store import MAX_RESULTS, rank
from evaluator.processes.concurrency import in_thread
from evaluator.store.database import close_with, transaction

# With an embedder: the number of candidates by words, and the number by meaning.
_CANDIDATES = 50
_MOST_OVERLAPS = 4
_T = TypeVar("_T")


@frozen
class IndexStats:
    """Counts of the contents of an index. `languages` counts described files, "" those described by
    name alone.
    """

    files: int
    terms: int
    vectors: int
    size_bytes: int
    roots: Mapping[str, int]
    languages: Mapping[str, int]
    skipped: Mapping[str, int]


@frozen
class Consolidation:
    """The result of `GlobalIndex.consolidate`: roots that were removed because their folder is
    gone, or merged into another root; files that were added, described again or removed.
    """

    pruned: int
    merged: int
    added: int
    changed: int
    removed: int

    def __str__(self) -> str:
        return (
            f"{self.added:,} files added, {self.changed:,} described again, {self.removed:,} "
            f"removed; {self.merged:,} folders merged into another, {self.pruned:,} removed"
        )


class GlobalIndex:
    """A `Memory` over the SQLite database at `path`, created if it is missing, readable by its
    owner only.

    Paths are returned absolute, those below `relative_to` relative to it, with `/`; the order and
    scores are the same for the same files. With an `embedder`, indexing also stores vectors of
    descriptions, and requests are compared by them too (see `memory.embedding`).

    Several objects, threads and processes may use one database at once; a process that is killed
    leaves it intact. Safe to share between tasks. With `is_snapshot` it is a copy of the database
    of this moment for reading, and no file is written.

    Raises: ConfigurationError, for a database of another version or program, or if SQLite has no
    full-text search; ContextError, if the database cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        embedder: Embedder | None = None,
        relative_to: str | Path | None = None,
        is_snapshot: bool = False,
    ) -> None:
        self._path = Path(os.path.abspath(path))
        self._embedder = embedder
        self._base = None if relative_to is None else os.path.realpath(relative_to)
        self._connection = store.connect(self._path, is_snapshot=is_snapshot)
        close_with(self, self._connection)
        self._lock = Lock()

    @property
    def path(self) -> Path:
        """The file of the database. The tools of tasks that an Evaluator runs with this memory
        cannot open it.
        """
        return self._path

    def __enter__(self) -> GlobalIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database; closing it twice is not an error."""
        with self._lock:
            self._connection.close()

    async def add_folder(
        self,
        root: str | Path,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        processes: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> IndexReport:
        """Brings the index up to date with the files below `root`.

        Hidden files, links, caches, virtual environments, binary files and files larger than
        `max_file_bytes` are left out. Up to `processes` processes describe files (default: one for
        each core, at most 4). `on_progress` receives the number of files that were read so far.

        Raises: UsageError, if `root` is not a folder; ContextError, if the database cannot be
        written.
        """
        return await self._add(
            root,
            "folder",
            max_file_bytes=max_file_bytes,
            processes=processes,
            on_progress=on_progress,
        )

    async def add_git(
        self,
        root: str | Path,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        processes: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> IndexReport:
        """Does the same as `add_folder` for the files that git tracks in `root`, hidden ones too.

        `root` is a repository, a subfolder of one, or a worktree.

        Raises: UsageError also if `root` is not in a repository, or git is missing or refuses.
        """
        return await self._add(
            root, "git", max_file_bytes=max_file_bytes, processes=processes, on_progress=on_progress
        )

    async def _add(
        self,
        root: str | Path,
        kind: Kind,
        max_file_bytes: int,
        processes: int | None,
        on_progress: Callable[[int], None] | None,
    ) -> IndexReport:
        if max_file_bytes < 1 or (processes is not None and processes < 1):
            raise UsageError("max_file_bytes and processes are at least 1")
        folder = self._existing(root)
        try:
            report = await index_root(
                self._path,
                self._place(folder),
                root=folder,
                kind=kind,
                max_file_bytes=max_file_bytes,
                processes=processes,
                on_progress=on_progress,
            )
        except sqlite3.Error as error:
            raise self._failed(error) from error
        await self._add_vectors()
        return report

    async def _add_vectors(self) -> None:
        embedder = self._embedder
        if embedder is None:
            return
        while missing := await self._in_thread(
            lambda c: embedding.without_vector(c, embedder.name)
        ):
            vectors = await embedding.embed(embedder, [text for _, text in missing])
            rows = [(file, vector) for (file, _), vector in zip(missing, vectors, strict=True)]
            await self._in_thread(partial(embedding.write_vectors, name=embedder.name, rows=rows))

    async def remove_root(self, root: str | Path) -> bool:
        """Deletes `root` with all its files from the index. Returns: whether it was there."""
        return await self._in_thread(
            lambda c: store.forget_root(c, self._place(os.path.realpath(root)))
        )

    async def consolidate(self) -> Consolidation:
        """Maintains the index: describes files again that have changed, and removes those that are
        gone.

        A root whose folder is gone is removed; so is one below another root of the same kind, which
        has its files.
        Raises: ContextError, if the database cannot be written.
        """
        places = await self._in_thread(store.roots)
        roots = [(Path(self._folder(place)), kind) for place, kind in places]
        pruned = merged = added = changed = removed = 0
        for folder, kind in roots:
            if not await in_thread(folder.is_dir):
                pruned += await self.remove_root(folder)
            elif any(kind == k and folder != f and folder.is_relative_to(f) for f, k in roots):
                merged += await self.remove_root(folder)
            else:
                report = await (self.add_git(folder) if kind == "git" else self.add_folder(folder))
                added = added + report.added
                changed = changed + report.changed
                removed = removed + report.removed
        return Consolidation(pruned, merged, added=added, changed=changed, removed=removed)

    async def get_relevant_context_for(
        self, request: ContextRequest | str, limit: int = 10
    ) -> list[RelevantPath]:
        """Returns at most `limit` paths (and at most 1,000), best first, each with the words and
        fields that counted.

        Raises: ContextError, if the database cannot be read or the embedder fails.
        """
        limit = min(limit, MAX_RESULTS)
        if limit < 1:
            return []
        query = None
        if self._embedder is not None and (text := request_text(request)).strip():
            (query,) = await embedding.embed(self._embedder, [text])
        return await self._in_thread(lambda c: self._search(c, request, limit=limit, query=query))

    def _search(
        self,
        connection: sqlite3.Connection,
        request: ContextRequest | str,
        limit: int,
        query: array[float] | None,
    ) -> list[RelevantPath]:
        with transaction(connection, "DEFERRED"):
            # A file that lies below two roots is two candidates and one result.
            enough = limit * min(_MOST_OVERLAPS, store.count_roots(connection))
            near: dict[int, float] = {}
            if query is not None and self._embedder is not None:
                enough = max(enough, _CANDIDATES)
                near = embedding.meanings(connection, self._embedder.name, query, enough)
            reasons = rank(connection, request_terms(request), limit=enough, also=near)
            paths = list(store.paths_of(connection, list(reasons)))
        found: dict[str, RelevantPath] = {}
        for file, place, path in paths:
            parts = reasons[file]
            if file in near:
                lexical = min(1.0, sum(part.weight for part in parts))
                parts.append(
                    Reason(
                        "meaning", "embedding", weight=embedding.fuse(lexical, near[file]) - lexical
                    )
                )
            each = relevant_path(self._shown(place, path), parts)
            if each.score > 0 and (each.path not in found or found[each.path].score < each.score):
                found[each.path] = each
        return sorted(found.values(), key=lambda each: (-each.score, each.path))[:limit]

    async def description_of(self, path: str | Path) -> str | None:
        """Returns the description of a file as one text, or None if the index does not have the
        file.
        """
        whole = os.path.join(self._base or "", path)
        return await self._in_thread(
            lambda connection: store.description_of(connection, whole, self._folder)
        )

    async def stats(self) -> IndexStats:
        """Returns counts of the present contents.

        Raises: ContextError, if the database cannot be read.
        """

        def count(connection: sqlite3.Connection) -> IndexStats:
            counts = store.statistics(connection)
            roots = {self._folder(place): files for place, files in counts["roots"].items()}
            return IndexStats(
                sum(roots.values()),
                counts["rows"]["terms"],
                vectors=counts["rows"]["vectors"],
                size_bytes=counts["rows"]["bytes"],
                roots=roots,
                languages=counts["languages"],
                skipped=counts["skipped"],
            )

        return await self._in_thread(count)

    def _existing(self, root: str | Path) -> str:
        folder = os.path.realpath(root)
        if not os.path.isdir(folder):
            raise UsageError(f"no folder at {root}")
        return folder

    def _place(self, folder: str) -> str:
        """Returns how a root is recorded: relative to the database if that is in the root, so that
        both can move.
        """
        home = os.path.realpath(self._path.parent)
        if os.path.commonpath([home, folder]) == folder:
            return os.path.relpath(folder, home)
        return folder

    def _folder(self, place: str) -> str:
        return os.path.normpath(os.path.join(os.path.realpath(self._path.parent), place))

    def _shown(self, place: str, path: str) -> str:
        whole = os.path.join(self._folder(place), path)
        if self._base is None:
            return whole
        return whole.removeprefix(self._base.rstrip("/") + "/")

    async def _in_thread(self, use: Callable[[sqlite3.Connection], _T]) -> _T:
        """Returns the result of `use`, called with the connection in a thread, one call at a
        time.
        """

        def run() -> _T:
            with self._lock:
                return use(self._connection)

        try:
            return await in_thread(run)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> ContextError:
        return ContextError(f"{self._path}: the index cannot be used: {store.problem_of(error)}")
