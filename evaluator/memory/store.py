"""The database of a `GlobalIndex`: paths with their descriptions, and a full-text index (FTS5) of
their words.

SQLite in WAL mode, readable and writable by its owner only. Several processes may read and write at
once. Each batch of files is one transaction, so a process that is killed leaves whole files behind
and nothing else. No column holds text of a file beyond its description.

    root        an indexed folder; `place` is relative to the database if that is in the folder
    file        path below its root, its `stat` when it was read, hash, description; or the reason
                it was skipped
    search      the stems of a file by field, for FTS5; the rowid is the file's id
    vocabulary  how many files hold each stem (a view that FTS5 provides)
    vector      the embedding of a file, by the embedder's name

Ranks files for a request with SQLite's FTS5: by the share of the request's words in a file's
description.

FTS5 gives BM25 for each word, weighted by column (`FIELDS`). The score of a file is the sum over
the request's words, weighted by rarity and divided by the most that a file could reach. So it lies
in [0, 1] and can be compared between requests, as the score of templates can (see
`library.matching`).

FTS5 stores stems, not words: its own tokenizers neither split identifiers nor stem as matching
does.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from heapq import nlargest
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.errors import ConfigurationError, ContextError
from evaluator.lazy_dataclass import frozen
from evaluator.library.matching import Reason
from evaluator.library.words import QueryTerm, idf, stem, words
from evaluator.memory.describe import Description
from evaluator.store import database
from evaluator.store.database import transaction

FIELDS = ("name", "folder", "summary", "heading", "definition", "language")
_WEIGHTS = (4.0, 0.5, 1.0, 0.7, 0.7, 0.25)
_COLUMN_WEIGHTS = ", ".join(map(str, _WEIGHTS))
# FTS5's bm25() of one word is its idf times a number below this, k1 + 1.
_BM25_MOST = 2.2
# A field of a thousand words is not a description.
_MAX_WORDS = 2_000
_MAX_WORD_CHARS = 40
# In a smaller index rarity says nothing about a word.
_SMALL_INDEX = 20
# The weight of a word that no file has, how many of them count, and what is added to the most that
# a file could reach.
_UNKNOWN_FACTOR = 0.4
_UNKNOWN_CAP = 2.0
_PRIOR = 0.5
# Of a long request only the most telling words are looked up.
_MAX_TERMS = 24
# A word in nearly every file adds less than a score is rounded to.
_LEAST_PART = 0.00005
MAX_RESULTS = 1_000
"""The most files that one request returns."""
# Scores are rounded to four places: files this close to the last one may have the same score.
_ROUNDING = 0.0001


def stems_of(path: str, description: Description) -> list[str]:
    """Returns the stems of a file's path and description for FTS5, one text for each of
    `FIELDS`.
    """
    folder, _, name = path.rpartition("/")
    base, extension = os.path.splitext(name)
    texts = (
        base,
        folder,
        description.summary,
        "\n".join(description.headings),
        "\n".join(description.names),
        f"{extension} {description.language}",
    )
    stems = [
        [stem(word) for word in words(text)[:_MAX_WORDS] if len(word) <= _MAX_WORD_CHARS]
        for text in texts
    ]
    # A definition that repeats a word says no more about the file.
    stems[FIELDS.index("definition")] = list(dict.fromkeys(stems[FIELDS.index("definition")]))
    return [" ".join(field) for field in stems]


@frozen
class _FileTerm:
    """A word of the request that files hold: how many, the most that it adds to a score, and by
    file its impact.
    """

    shown: str
    stem: str
    files: int
    weight: float
    impacts: dict[int, float] = field(default_factory=dict[int, float])


def rank(
    connection: sqlite3.Connection,
    terms: Sequence[QueryTerm],
    limit: int,
    also: Collection[int] = (),
) -> dict[int, list[Reason]]:
    """Returns the `limit` best files, those equal to the last of them, and the files in `also`.

    Each has the terms that it holds, with their parts of the score. Of more than `MAX_RESULTS`
    files those that were indexed first are returned. Called within one transaction.
    """
    (size,) = connection.execute("SELECT count(*) FROM search_docsize").fetchone()
    known, total = _weighted(connection, terms, size=size)
    scores: dict[int, float] = {}
    least = 0.0
    left = sum(term.weight for term in known)
    for term in known:
        # Once the terms that are left cannot bring a new file among the best, they are looked up
        # for the others only.
        if least > left:
            hopeful = {file for file, score in scores.items() if score >= least - left}.union(also)
        else:
            hopeful = ()
        term.impacts.update(_impacts(connection, term, size=size, files=hopeful))
        for file, impact in term.impacts.items():
            scores[file] = scores.get(file, 0.0) + term.weight * impact
        left -= term.weight
        if len(scores) >= limit:
            least = nlargest(limit, scores.values())[-1] - _ROUNDING * total
    found = [file for file, score in scores.items() if score >= least]
    found = nlargest(MAX_RESULTS, found, key=lambda file: (scores[file], -file))
    return {file: _reasons(connection, file, terms=known, total=total) for file in {*found, *also}}


def _weighted(
    connection: sqlite3.Connection, terms: Sequence[QueryTerm], size: int
) -> tuple[list[_FileTerm], float]:
    """Returns the terms that files hold, heaviest first, and the most that a file could reach."""

    size = max(size, _SMALL_INDEX)
    known: list[_FileTerm] = []
    unknown = 0.0
    for term in terms:
        row = connection.execute(
            "SELECT doc FROM vocabulary WHERE term = ?", (term.stem,)
        ).fetchone()
        if row is None:
            unknown += term.weight * _UNKNOWN_FACTOR
        else:
            known.append(
                _FileTerm(
                    term.shown, term.stem, files=row[0], weight=term.weight * idf(row[0], size)
                )
            )
    known = sorted(known, key=lambda each: (-each.weight, each.shown))[:_MAX_TERMS]
    total = sum(term.weight for term in known)
    total += (min(unknown, _UNKNOWN_CAP * _UNKNOWN_FACTOR) + _PRIOR) * idf(0, size)
    return [term for term in known if term.weight >= _LEAST_PART * total], total


def _impacts(
    connection: sqlite3.Connection, term: _FileTerm, size: int, files: Collection[int]
) -> Iterator[tuple[int, float]]:
    """Yields the files that hold a term, each with its impact in [0, 1); if `files` are given, only
    those of them.
    """
    # The plus keeps SQLite from searching the index once for each file.
    among = ""
    if files:
        among = f"AND +rowid IN ({', '.join(map(str, files))})"
    # FTS5 multiplies by its own idf, which is about 0 for a word that half of the files have.
    idf = max(math.log((size - term.files + 0.5) / (term.files + 0.5)), 0.0) or 1e-6
    scale = 1 / (idf * _BM25_MOST)
    for file, score in connection.execute(
        f"SELECT rowid, -bm25(search, {_COLUMN_WEIGHTS}) FROM search WHERE search MATCH ? {among}",
        (f'"{term.stem}"',),
    ):
        yield file, score * scale


def _reasons(
    connection: sqlite3.Connection, file: int, terms: Sequence[_FileTerm], total: float
) -> list[Reason]:
    held = [term for term in terms if file in term.impacts]
    (*fields,) = (
        connection.execute("SELECT * FROM search WHERE rowid = ?", (file,)).fetchone() or ()
    )
    reasons: list[Reason] = []
    for term in held:
        counted = [
            weight * text.split().count(term.stem)
            for weight, text in zip(_WEIGHTS, fields, strict=True)
        ]
        best = FIELDS[counted.index(max(counted))]
        reasons.append(Reason(term.shown, best, weight=term.weight * term.impacts[file] / total))
    return reasons


_BUSY_S = 30.0
_CACHE_KIB = 32_768
# The oldest SQLite takes 999 parameters in one statement.
_MANY = 500

_TABLES = f"""
CREATE TABLE root (
    id INTEGER PRIMARY KEY, place TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, describers INTEGER NOT
    NULL
);
CREATE TABLE file (
    id INTEGER PRIMARY KEY, root INTEGER NOT NULL REFERENCES root(id), path TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, seen_ns INTEGER
    NOT NULL,
    hash TEXT, language TEXT, summary TEXT, headings TEXT, names TEXT, skipped TEXT,
    UNIQUE (root, path)
);
CREATE VIRTUAL TABLE search USING fts5({", ".join(FIELDS)}, tokenize = 'ascii');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(search, 'row');
CREATE TABLE vector (file INTEGER PRIMARY KEY, embedder TEXT NOT NULL, numbers BLOB NOT NULL)
"""
FORMAT = database.Format("index", 0x45766D31, 2, _TABLES, "delete the file and index again")
_INSERT_FILE = f"INSERT INTO file VALUES ({', '.join('?' * 13)})"
_INSERT_STEMS = (
    f"INSERT INTO search (rowid, {', '.join(FIELDS)}) VALUES ({', '.join('?' * (len(FIELDS) + 1))})"
)


class Stamp(NamedTuple):
    """A file's size and times, and when they were read (nanoseconds since the epoch)."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    seen_ns: int


def connect(path: Path, *, is_snapshot: bool = False) -> sqlite3.Connection:
    """Opens the database at `path`; creates it, with its folder, if it is missing. With
    `is_snapshot`, a copy of it for reading.

    The connection commits by itself; several threads may use it in turn.

    Raises: ConfigurationError, for a database of another version or of another program, or if this
    Python's SQLite has no FTS5; ContextError, if the database cannot be opened or is damaged.
    """
    try:
        if is_snapshot:
            return database.snapshot(path, FORMAT)
        connection = database.connect(path, FORMAT, _BUSY_S)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except (OSError, sqlite3.Error) as error:
        if "no such module" in str(error):
            raise ConfigurationError(
                f"{path}: the index needs SQLite's full-text search, and this Python's SQLite was "
                f"built without it ({error}); use a Python with FTS5, such as one from python.org "
                "or a Linux distribution"
            ) from error
        raise ContextError(f"{path}: the index cannot be opened: {problem_of(error)}") from error
    return connection


def problem_of(error: OSError | sqlite3.Error) -> str:
    """The text of an error of an index, and what to do about it."""
    return database.problem_of(error, damaged="name another file, or delete it and index again")


def write_files(
    connection: sqlite3.Connection, root: int, batch: Sequence[tuple[Stamp, dict[str, Any]]]
) -> None:
    """Writes the answers of describers, in one transaction. An answer with a hash alone keeps the
    description.
    """
    with transaction(connection):
        for stamp, answer in batch:
            if "stems" not in answer and "skipped" not in answer:  # the content is as before
                connection.execute(
                    "UPDATE file SET size = ?, mtime_ns = ?, ctime_ns = ?, seen_ns = ? WHERE root "
                    "= ? AND path = ?",
                    (*stamp[1:], root, stamp.path),
                )
            else:
                _replace(connection, root, stamp=stamp, answer=answer)


def _replace(
    connection: sqlite3.Connection, root: int, stamp: Stamp, answer: dict[str, Any]
) -> None:
    old = connection.execute(
        "SELECT id FROM file WHERE root = ? AND path = ?", (root, stamp.path)
    ).fetchone()
    if old is not None:
        forget(connection, old)
    cursor = connection.execute(
        _INSERT_FILE,
        (
            None,
            root,
            *stamp,
            answer.get("hash"),
            answer.get("language"),
            answer.get("summary"),
            "\n".join(answer.get("headings", ())),
            "\n".join(answer.get("names", ())),
            answer.get("skipped"),
        ),
    )
    if "stems" in answer:
        connection.execute(_INSERT_STEMS, (cursor.lastrowid, *answer["stems"]))


def forget(connection: sqlite3.Connection, files: Sequence[int]) -> None:
    """Deletes files. Called within a transaction."""
    for statement in (
        "DELETE FROM search WHERE rowid = ?",
        "DELETE FROM vector WHERE file = ?",
        "DELETE FROM file WHERE id = ?",
    ):
        connection.executemany(statement, ((file,) for file in files))


def forget_root(connection: sqlite3.Connection, place: str) -> bool:
    """Deletes a root with all its files. Returns: whether it was there."""
    known = connection.execute("SELECT id FROM root WHERE place = ?", (place,)).fetchone()
    if known is None:
        return False
    while files := [
        row[0]
        for row in connection.execute(
            "SELECT id FROM file WHERE root = ? LIMIT ?", (known[0], _MANY)
        )
    ]:
        with transaction(connection):
            forget(connection, files)
    with transaction(connection):
        connection.execute("DELETE FROM root WHERE id = ?", known)
    return True


def roots(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Returns the place and the kind of each root."""
    return connection.execute("SELECT place, kind FROM root ORDER BY place").fetchall()


def count_roots(connection: sqlite3.Connection) -> int:
    """Returns how many roots there are."""
    return connection.execute("SELECT count(*) FROM root").fetchone()[0]


def paths_of(
    connection: sqlite3.Connection, files: Sequence[int]
) -> Iterator[tuple[int, str, str]]:
    """Yields each file with its root's place and its path below it."""
    for start in range(0, len(files), _MANY):
        part = files[start : start + _MANY]
        yield from connection.execute(
            "SELECT file.id, place, path FROM file JOIN root ON root.id = file.root"
            f" WHERE file.id IN ({', '.join('?' * len(part))})",
            part,
        )


def description_of(
    connection: sqlite3.Connection, whole: str, folder_of: Callable[[str], str]
) -> str | None:
    """Returns the description of the file at the absolute path `whole`, or None if no root has
    it.
    """
    for root, place in connection.execute("SELECT id, place FROM root ORDER BY id").fetchall():
        folder = folder_of(place).rstrip("/") + "/"
        row = connection.execute(
            "SELECT summary, headings, names FROM file WHERE root = ? AND path = ? AND skipped "
            "IS NULL",
            (root, whole.removeprefix(folder)),
        ).fetchone()
        if row is not None and whole.startswith(folder):
            return "\n".join(part for part in row if part)
    return None


STATISTICS = {
    "roots": "SELECT place, count(file.id) FROM root LEFT JOIN file ON file.root = root.id AND "
    "skipped IS NULL"
    " GROUP BY place ORDER BY place",
    "languages": "SELECT language, count(*) FROM file WHERE skipped IS NULL GROUP BY language "
    "ORDER BY 2 DESC, 1",
    "skipped": "SELECT skipped, count(*) FROM file WHERE skipped IS NOT NULL GROUP BY skipped "
    "ORDER BY 2 DESC, 1",
    "rows": "SELECT 'terms', count(*) FROM vocabulary UNION ALL SELECT 'vectors', count(*) FROM "
    "vector"
    " UNION ALL SELECT 'bytes', page_count * page_size FROM pragma_page_count, pragma_page_size",
}
"""Queries for names and numbers, by what they count."""


def statistics(connection: sqlite3.Connection) -> dict[str, dict[str, int]]:
    """Returns the numbers of each query in `STATISTICS`, by name."""
    with transaction(connection, "DEFERRED"):
        return {counted: dict(connection.execute(query)) for counted, query in STATISTICS.items()}
