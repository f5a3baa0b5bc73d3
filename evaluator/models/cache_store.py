"""The database of a `ResponseCache`: one row for each response, with the key of its request.

SQLite in WAL mode, readable and writable by its owner only. Several processes may read and write at
once; the first response that was stored under a key stays. Requests are stored as hashes, responses
as they are, with a signature: a response that no program of this user stored is not used.

    response   key, the parts of the request, response and usage as JSON, their signature, when it
               was stored, how often it was used
    missed     model, how many of its requests were not found
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluator.models.cache_key import CacheKey
from evaluator.store import database
from evaluator.store.database import transaction

_NEAR = 50
_TABLES = """
CREATE TABLE response (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, endpoint TEXT NOT NULL,
    model TEXT NOT NULL, settings TEXT NOT NULL, tools TEXT NOT NULL, schema TEXT NOT NULL, system TEXT NOT NULL,
    messages TEXT NOT NULL, first TEXT NOT NULL,
    response TEXT NOT NULL, usage TEXT NOT NULL, signature TEXT,
    created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX response_first ON response (first);
CREATE TABLE missed (model TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""
FORMAT = database.Format("cache", 0x45765263, 2, _TABLES, "name another file", incremental=True)
_PARTS = "key, epoch, endpoint, model, settings, tools, schema, system, messages"


class CachedResponse(NamedTuple):
    """One response to be stored: JSON texts, their signature, and the time in seconds since 1970.

    `replaces`: it takes the place of a stored response that cannot be used.
    """

    request: CacheKey
    response: str
    usage: str
    created: float
    signature: str | None = None
    replaces: bool = False


def connect(path: Path, busy_s: float, *, make: bool = True) -> sqlite3.Connection:
    """Opens the database at `path`. Raises: as `database.connect`."""
    return database.connect(path, FORMAT, busy_s, make=make)


def find(connection: sqlite3.Connection, key: str) -> tuple[str, str, str | None] | None:
    """The response and its usage, as JSON texts, and their signature."""
    return connection.execute(
        "SELECT response, usage, signature FROM response WHERE key = ?", (key,)
    ).fetchone()


def signed_part(key: str, response: str, usage: str) -> bytes:
    """What the signature of a response covers."""
    return "\n".join((key, usage, response)).encode("utf-8", "surrogatepass")


def write(
    connection: sqlite3.Connection,
    rows: Iterable[CachedResponse],
    hits: Mapping[str, int],
    missed: Mapping[str, int],
    now: float,
) -> None:
    """Stores responses and counts, in one transaction."""
    with transaction(connection):
        rows = list(rows)
        connection.executemany(
            "DELETE FROM response WHERE key = ?", [(r.request.key,) for r in rows if r.replaces]
        )
        connection.executemany(
            f"INSERT OR IGNORE INTO response ({_PARTS}, first, response, usage, signature, created,"
            " used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            map(_values, rows),
        )
        connection.executemany(
            "UPDATE response SET hits = hits + ?, used = ? WHERE key = ?",
            ((n, now, key) for key, n in hits.items()),
        )
        connection.executemany(
            "INSERT INTO missed VALUES (?, ?) ON CONFLICT (model) DO UPDATE SET count = count + "
            "excluded.count",
            missed.items(),
        )


def _values(row: CachedResponse) -> Sequence[object]:
    key = row.request
    return (
        key.key,
        key.epoch,
        key.endpoint,
        key.model,
        key.settings,
        key.tools,
        key.schema,
        key.system,
        " ".join(key.messages),
        key.first,
        row.response,
        row.usage,
        row.signature,
        row.created,
        row.created,
    )


def near(connection: sqlite3.Connection, key: CacheKey) -> list[CacheKey]:
    """The newest stored requests that begin with the same message."""
    found = connection.execute(
        f"SELECT {_PARTS} FROM response WHERE first = ? ORDER BY id DESC LIMIT {_NEAR}",
        (key.first,),
    )
    return [CacheKey(*parts, messages=tuple(messages.split())) for *parts, messages in found]


def size(connection: sqlite3.Connection) -> int:
    """Bytes in use."""
    (pages,) = connection.execute(
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    ).fetchone()
    return pages


def prune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Removes what was not used for longest, until at most nine tenths of `max_bytes` are in
    use.
    """
    if size(connection) <= max_bytes:
        return
    while size(connection) > max_bytes * 0.9:
        with transaction(connection):
            removed = connection.execute(
                "DELETE FROM response WHERE id IN (SELECT id FROM response ORDER BY used LIMIT"
                " (SELECT max(1, count(*) / 20) FROM response))"
            ).rowcount
        if not removed:
            break
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page


def remove(connection: sqlite3.Connection, before: float | None, model: str | None) -> int:
    """Removes the responses that were stored before a time and are of one model; None: any.
    Returns: how many.
    """
    with transaction(connection):
        removed = connection.execute(
            "DELETE FROM response WHERE (?1 IS NULL OR created < ?1) AND (?2 IS NULL OR model "
            "= ?2)",
            (before, model),
        ).rowcount
        if before is None:
            connection.execute("DELETE FROM missed WHERE ?1 IS NULL OR model = ?1", (model,))
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
    return removed
