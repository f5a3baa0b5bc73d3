"""The database of a `GlobalIndex`: paths with what was described of them, and postings by term.

SQLite in WAL mode, readable and writable by its owner only. Several processes may read and write at once;
each batch of files is one transaction, so a process that is killed leaves whole files behind and nothing
else. No column holds text of a file beyond its description.

    root      a folder that was indexed; `place` is relative to the database where the folder holds it
    file      path below its root, what `stat` said when it was read, hash, description; or why it was skipped
    term      a stem and how many files hold it
    posting   term, file, packed impact
    vector    a file's embedding, by the embedder's name
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.errors import ContextError
from evaluator.record import database
from evaluator.record.database import transaction

_BUSY_S = 30.0
_CACHE_KIB = 32_768
# Parameters in one statement; 999 is what the oldest SQLite takes.
_MANY = 500

_TABLES = """
CREATE TABLE root (
    id INTEGER PRIMARY KEY, place TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, describers INTEGER NOT NULL
);
CREATE TABLE file (
    id INTEGER PRIMARY KEY, root INTEGER NOT NULL REFERENCES root(id), path TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, seen_ns INTEGER NOT NULL,
    hash TEXT, language TEXT, summary TEXT, headings TEXT, names TEXT, terms BLOB, skipped TEXT,
    UNIQUE (root, path)
);
CREATE TABLE term (id INTEGER PRIMARY KEY, stem TEXT NOT NULL UNIQUE, files INTEGER NOT NULL);
CREATE TABLE posting (
    term INTEGER NOT NULL, file INTEGER NOT NULL, impact INTEGER NOT NULL, PRIMARY KEY (term, file)
) WITHOUT ROWID;
CREATE TABLE vector (file INTEGER PRIMARY KEY, embedder TEXT NOT NULL, numbers BLOB NOT NULL);
CREATE TABLE total (described INTEGER NOT NULL);
INSERT INTO total VALUES (0);
"""
FORMAT = database.Format("index", 0x45766D31, 1, _TABLES, "delete the file and index again")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What `stat` said of a file, and when it was asked (nanoseconds since the epoch)."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    seen_ns: int


def connect(path: Path) -> sqlite3.Connection:
    """Opens the database at `path`, made where it is missing, with its folder.

    The connection commits by itself; several threads may use it in turn.

    Raises: ConfigurationError, for a database of a newer version or of another program; ContextError, if
    it cannot be opened or is damaged.
    """
    try:
        connection = database.connect(path, FORMAT, _BUSY_S)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except (OSError, sqlite3.Error) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise ContextError(f"{path}: the index cannot be opened: {said}") from error
    return connection


def write_files(connection: sqlite3.Connection, root: int, batch: Sequence[tuple[Stamp, dict[str, Any]]]) -> None:
    """Records the answers of describers, in one transaction. An answer without terms leaves the description."""
    described = [(stamp, answer) for stamp, answer in batch if "terms" in answer]
    with transaction(connection):
        for stamp, answer in batch:
            if "terms" not in answer and "hash" in answer:
                connection.execute(
                    "UPDATE file SET size = ?, mtime_ns = ?, ctime_ns = ?, seen_ns = ? WHERE root = ? AND path = ?",
                    (stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.seen_ns, root, stamp.path),
                )
        replaced = [stamp.path for stamp, answer in batch if "terms" in answer or "hash" not in answer]
        forget(connection, _ids(connection, root, replaced))
        for stamp, answer in batch:
            if "skipped" in answer:
                _insert(connection, root, stamp, answer, None)
        _describe(connection, root, described)


def _describe(connection: sqlite3.Connection, root: int, described: Sequence[tuple[Stamp, dict[str, Any]]]) -> None:
    counts = Counter(stem for _, answer in described for stem in answer["terms"])
    stems = sorted(counts)
    connection.executemany("INSERT OR IGNORE INTO term (stem, files) VALUES (?, 0)", ((stem,) for stem in stems))
    ids = dict(
        row
        for part in _parts(stems)
        for row in connection.execute(f"SELECT stem, id FROM term WHERE stem IN ({_marks(part)})", part)
    )
    connection.executemany("UPDATE term SET files = files + ? WHERE id = ?", ((counts[s], ids[s]) for s in stems))
    postings: list[tuple[int, int, int]] = []
    for stamp, answer in described:
        terms = array("I", sorted(ids[stem] for stem in answer["terms"]))
        file = _insert(connection, root, stamp, answer, terms.tobytes())
        postings += ((ids[stem], file, impact) for stem, impact in answer["terms"].items())
    postings.sort()
    connection.executemany("INSERT INTO posting VALUES (?, ?, ?)", postings)
    connection.execute("UPDATE total SET described = described + ?", (len(described),))


def _insert(
    connection: sqlite3.Connection, root: int, stamp: Stamp, answer: dict[str, Any], terms: bytes | None
) -> int:
    cursor = connection.execute(
        "INSERT INTO file (root, path, size, mtime_ns, ctime_ns, seen_ns, hash, language, summary, headings, names,"
        " terms, skipped) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            root, stamp.path, stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.seen_ns, answer.get("hash"),
            answer.get("language"), answer.get("summary"), "\n".join(answer.get("headings", ())),
            "\n".join(answer.get("names", ())), terms, answer.get("skipped"),
        ),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _ids(connection: sqlite3.Connection, root: int, paths: Sequence[str]) -> list[int]:
    return [
        row[0]
        for part in _parts(paths)
        for row in connection.execute(f"SELECT id FROM file WHERE root = ? AND path IN ({_marks(part)})", [root, *part])
    ]


def forget(connection: sqlite3.Connection, files: Sequence[int]) -> None:
    """Takes files out, with the terms that no other file holds. Within a transaction of the caller's."""
    counts: Counter[int] = Counter()
    described = 0
    for part in _parts(files):
        for file, terms in connection.execute(f"SELECT id, terms FROM file WHERE id IN ({_marks(part)})", part):
            if terms is None:
                continue
            described += 1
            held = array("I", terms)
            counts.update(held)
            connection.executemany("DELETE FROM posting WHERE term = ? AND file = ?", ((term, file) for term in held))
        connection.execute(f"DELETE FROM vector WHERE file IN ({_marks(part)})", part)
        connection.execute(f"DELETE FROM file WHERE id IN ({_marks(part)})", part)
    connection.executemany("UPDATE term SET files = files - ? WHERE id = ?", ((n, term) for term, n in counts.items()))
    connection.executemany("DELETE FROM term WHERE id = ? AND files = 0", ((term,) for term in counts))
    connection.execute("UPDATE total SET described = described - ?", (described,))


def forget_root(connection: sqlite3.Connection, place: str) -> bool:
    """Takes out a root with all its files. Returns: whether it was there."""
    known = connection.execute("SELECT id FROM root WHERE place = ?", (place,)).fetchone()
    if known is None:
        return False
    while files := [
        row[0] for row in connection.execute("SELECT id FROM file WHERE root = ? LIMIT ?", (known[0], _MANY))
    ]:
        with transaction(connection):
            forget(connection, files)
    with transaction(connection):
        connection.execute("DELETE FROM root WHERE id = ?", known)
    return True


def count_roots(connection: sqlite3.Connection) -> int:
    """How many roots there are."""
    return connection.execute("SELECT count(*) FROM root").fetchone()[0]


def paths_of(connection: sqlite3.Connection, files: Sequence[int]) -> dict[int, tuple[str, str]]:
    """For each file its root's place and its path below it."""
    return {
        file: (place, path)
        for part in _parts(files)
        for file, place, path in connection.execute(
            f"SELECT file.id, place, path FROM file JOIN root ON root.id = file.root WHERE file.id IN ({_marks(part)})",
            part,
        )
    }


def description_of(connection: sqlite3.Connection, whole: str, folder_of: Callable[[str], str]) -> str | None:
    """The description of the file at the absolute path `whole`, below one of the roots."""
    for root, place in connection.execute("SELECT id, place FROM root ORDER BY id").fetchall():
        folder = folder_of(place).rstrip("/") + "/"
        row = connection.execute(
            "SELECT summary, headings, names FROM file WHERE root = ? AND path = ? AND skipped IS NULL",
            (root, whole.removeprefix(folder)),
        ).fetchone()
        if row is not None and whole.startswith(folder):
            return "\n".join(part for part in row if part)
    return None


def count_of(connection: sqlite3.Connection, question: str) -> dict[str, int]:
    """Numbers by name: the rows of one of `STATISTICS`, by its key."""
    return dict(connection.execute(STATISTICS[question]))


STATISTICS = {
    "roots": "SELECT place, count(terms) FROM root LEFT JOIN file ON file.root = root.id GROUP BY place ORDER BY place",
    "languages": "SELECT language, count(*) FROM file WHERE skipped IS NULL GROUP BY language ORDER BY 2 DESC, 1",
    "skipped": "SELECT skipped, count(*) FROM file WHERE skipped IS NOT NULL GROUP BY skipped ORDER BY 2 DESC, 1",
    "rows": "SELECT 'terms', count(*) FROM term UNION ALL SELECT 'vectors', count(*) FROM vector"
    " UNION ALL SELECT 'bytes', page_count * page_size FROM pragma_page_count, pragma_page_size",
}
"""What can be counted, each a query for names and numbers."""


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _MANY] for start in range(0, len(items), _MANY))


def _marks(items: Iterable[Any]) -> str:
    return ",".join("?" for _ in items)
