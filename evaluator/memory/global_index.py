"""GlobalIndex: a `Memory` kept in a file, over folders and repositories of any size.

It holds paths with what was described of them, never contents: names of definitions, headings, first lines
of docstrings, columns, keys. Files are read by processes of its own, through the Handler's file access.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TypeVar

from evaluator.errors import ContextError, UsageError
from evaluator.handler.tools.threads import in_thread
from evaluator.library.matching import Reason
from evaluator.memory import embedding, store
from evaluator.memory.embedding import Embedder
from evaluator.memory.index import ContextRequest, RelevantPath, relevant_path, request_terms, request_text
from evaluator.memory.indexer import MAX_FILE_BYTES, IndexReport, Kind, index_root
from evaluator.memory.ranking import MOST, Ranking
from evaluator.record.database import transaction

# With an embedder: as many candidates by words, and as many by meaning.
_CANDIDATES = 50
_MOST_OVERLAPS = 4
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What an index holds. `languages` counts described files, "" those described by their names alone."""

    files: int
    terms: int
    vectors: int
    size_bytes: int
    roots: Mapping[str, int]
    languages: Mapping[str, int]
    skipped: Mapping[str, int]


class GlobalIndex:
    """A `Memory` over the SQLite database at `path`, made where it is missing, for its owner only.

    Paths are given absolute, those below `relative_to` relative to it, with `/`; the order and scores are
    the same for the same files. With an `embedder`, indexing also keeps vectors of descriptions and requests
    are compared by them too (see `memory.embedding`).

    Several objects, threads and processes may use one database at once; a process that is killed leaves it
    whole. Safe to share between tasks.

    Raises: ConfigurationError, for a database of a newer version or of another program; ContextError, if it
    cannot be opened.
    """

    def __init__(
        self, path: str | Path, *, embedder: Embedder | None = None, relative_to: str | Path | None = None
    ) -> None:
        self._path = Path(os.path.abspath(path))
        self._embedder = embedder
        self._base = None if relative_to is None else os.path.realpath(relative_to)
        self._connection = store.connect(self._path)
        self._lock = Lock()

    @property
    def path(self) -> Path:
        """The database's file; tools of a task that an Evaluator runs with this memory do not touch it."""
        return self._path

    def __enter__(self) -> GlobalIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database; closing twice is no error."""
        with self._lock:
            self._connection.close()

    async def add_folder(
        self, root: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES, processes: int | None = None
    ) -> IndexReport:
        """Brings the index up to date with the files below `root`: hidden ones, links, caches, virtual
        environments, binary files and those larger than `max_file_bytes` are left out.

        Files are described by up to `processes` processes (default: a core each, at most 4).

        Raises: UsageError, if `root` is no folder; ContextError, if the database cannot be written.
        """
        return await self._add(root, "folder", max_file_bytes, processes)

    async def add_git(
        self, root: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES, processes: int | None = None
    ) -> IndexReport:
        """`add_folder` for the files that git tracks in `root`, hidden ones too: a repository, a subfolder of
        one, or a worktree.

        Raises: UsageError also where `root` is in no repository, or git is missing or refuses.
        """
        return await self._add(root, "git", max_file_bytes, processes)

    async def _add(self, root: str | Path, kind: Kind, max_file_bytes: int, processes: int | None) -> IndexReport:
        if max_file_bytes < 1 or (processes is not None and processes < 1):
            raise UsageError("max_file_bytes and processes are at least 1")
        folder = self._existing(root)
        try:
            report = await index_root(
                self._path, self._place(folder), folder, kind, max_file_bytes=max_file_bytes, processes=processes
            )
        except sqlite3.Error as error:
            raise self._failed(error) from error
        await self._add_vectors()
        return report

    async def _add_vectors(self) -> None:
        embedder = self._embedder
        if embedder is None:
            return
        while missing := await self._apart(lambda c: embedding.without_vector(c, embedder.name)):
            vectors = await embedding.embed(embedder, [text for _, text in missing])
            rows = [(file, vector) for (file, _), vector in zip(missing, vectors, strict=True)]
            await self._apart(partial(embedding.write_vectors, name=embedder.name, rows=rows))

    async def remove_root(self, root: str | Path) -> bool:
        """Forgets all of `root`. Returns: whether it was in the index."""
        return await self._apart(lambda c: store.forget_root(c, self._place(os.path.realpath(root))))

    async def get_relevant_context_for(self, request: ContextRequest | str, limit: int = 10) -> list[RelevantPath]:
        """At most `limit` paths (and at most 1,000), most relevant first, each with the words and fields that counted.

        Raises: ContextError, if the database cannot be read or the embedder fails.
        """
        limit = min(limit, MOST)
        if limit < 1:
            return []
        query = None
        if self._embedder is not None and (text := request_text(request)).strip():
            (query,) = await embedding.embed(self._embedder, [text])
        return await self._apart(lambda c: self._search(c, request, limit, query))

    def _search(
        self, connection: sqlite3.Connection, request: ContextRequest | str, limit: int, query: array[float] | None
    ) -> list[RelevantPath]:
        with transaction(connection, "DEFERRED"):
            ranking = Ranking(connection, request_terms(request))
            # A file that lies below two roots is two candidates and one result.
            enough = limit * min(_MOST_OVERLAPS, store.count_roots(connection))
            near: dict[int, float] = {}
            if query is not None and self._embedder is not None:
                enough = max(enough, _CANDIDATES)
                near = embedding.meanings(connection, self._embedder.name, query, enough)
            files = list({*ranking.best(enough), *near})
            reasons = ranking.reasons(files)
            paths = store.paths_of(connection, files)
        found: dict[str, RelevantPath] = {}
        for file, (place, path) in paths.items():
            parts = reasons.get(file, [])
            if file in near:
                lexical = min(1.0, sum(part.weight for part in parts))
                parts.append(Reason("meaning", "embedding", embedding.fuse(lexical, near[file]) - lexical))
            each = relevant_path(self._shown(place, path), parts)
            if each.score > 0 and (each.path not in found or found[each.path].score < each.score):
                found[each.path] = each
        return sorted(found.values(), key=lambda each: (-each.score, each.path))[:limit]

    async def description_of(self, path: str | Path) -> str | None:
        """What the index holds of a file besides its path, as one text; None where it does not hold it."""
        whole = os.path.join(self._base or "", path)
        return await self._apart(lambda connection: store.description_of(connection, whole, self._folder))

    async def stats(self) -> IndexStats:
        """Counts of what is in the index now.

        Raises: ContextError, if the database cannot be read.
        """

        def count(connection: sqlite3.Connection) -> IndexStats:
            with transaction(connection, "DEFERRED"):
                counts = {question: store.count_of(connection, question) for question in store.STATISTICS}
            roots = {self._folder(place): files for place, files in counts["roots"].items()}
            return IndexStats(
                sum(roots.values()), counts["rows"]["terms"], counts["rows"]["vectors"], counts["rows"]["bytes"],
                roots, counts["languages"], counts["skipped"],
            )  # fmt: skip

        return await self._apart(count)

    def _existing(self, root: str | Path) -> str:
        folder = os.path.realpath(root)
        if not os.path.isdir(folder):
            raise UsageError(f"no folder at {root}")
        return folder

    def _place(self, folder: str) -> str:
        """How a root is recorded: relative to the database where it holds it, so that both can be moved."""
        home = os.path.realpath(self._path.parent)
        return os.path.relpath(folder, home) if os.path.commonpath([home, folder]) == folder else folder

    def _folder(self, place: str) -> str:
        return os.path.normpath(os.path.join(os.path.realpath(self._path.parent), place))

    def _shown(self, place: str, path: str) -> str:
        whole = os.path.join(self._folder(place), path)
        return whole if self._base is None else whole.removeprefix(self._base.rstrip("/") + "/")

    async def _apart(self, use: Callable[[sqlite3.Connection], _T]) -> _T:
        """Uses the connection in a thread, one at a time."""

        def run() -> _T:
            with self._lock:
                return use(self._connection)

        try:
            return await in_thread(run)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> ContextError:
        return ContextError(f"{self._path}: the index cannot be used: {error}")
