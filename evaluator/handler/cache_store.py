"""The database of a `ResponseCache`: one row a response, known by the key of its request.

SQLite in WAL mode, readable and writable by its owner only. Several processes may read and write at once; the
first answer that was stored under a key stays. Requests are there as hashes, responses as they came.

    response   key, the parts of the request, response and usage as JSON, when it came, how often it was used
    missed     model, how many requests to it were not there
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.handler.cache_key import Asked
from evaluator.record import database
from evaluator.record.database import transaction

_NEAR = 50
_TABLES = """
CREATE TABLE response (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, endpoint TEXT NOT NULL,
    model TEXT NOT NULL, settings TEXT NOT NULL, tools TEXT NOT NULL, schema TEXT NOT NULL, system TEXT NOT NULL,
    messages TEXT NOT NULL, first TEXT NOT NULL, task TEXT,
    response TEXT NOT NULL, usage TEXT NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX response_first ON response (first);
CREATE INDEX response_task ON response (task);
CREATE TABLE missed (model TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""
FORMAT = database.Format("cache", 0x45765263, 1, _TABLES, "name another file", incremental=True)
_NAMES = ("key", "epoch", "endpoint", "model", "settings", "tools", "schema", "system", "messages", "task")
_PARTS = ", ".join(_NAMES)


class Row(NamedTuple):
    """One response to be stored: JSON texts, seconds since the epoch of time."""

    asked: Asked
    response: str
    usage: str
    created: float


def connect(path: Path, busy_s: float, *, make: bool = True) -> sqlite3.Connection:
    """Opens the database at `path`. Raises: as `database.connect`."""
    return database.connect(path, FORMAT, busy_s, make=make)


def find(connection: sqlite3.Connection, key: str) -> tuple[str, str] | None:
    """Response and usage, as JSON texts."""
    return connection.execute("SELECT response, usage FROM response WHERE key = ?", (key,)).fetchone()


def write(
    connection: sqlite3.Connection,
    rows: Iterable[Row],
    hits: Mapping[str, int],
    missed: Mapping[str, int],
    at: float,
) -> None:
    """Stores what came in, in one transaction."""
    with transaction(connection):
        connection.executemany(
            f"INSERT OR IGNORE INTO response ({_PARTS}, first, response, usage, created, used)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (_values(row) for row in rows),
        )
        connection.executemany(
            "UPDATE response SET hits = hits + ?, used = ? WHERE key = ?", ((n, at, key) for key, n in hits.items())
        )
        connection.executemany(
            "INSERT INTO missed VALUES (?, ?) ON CONFLICT (model) DO UPDATE SET count = count + excluded.count",
            missed.items(),
        )


def _values(row: Row) -> Sequence[object]:
    asked = row.asked
    return (
        asked.key, asked.epoch, asked.endpoint, asked.model, asked.settings, asked.tools, asked.schema, asked.system,
        " ".join(asked.messages), asked.task, asked.first, row.response, row.usage, row.created, row.created,
    )  # fmt: skip


def near(connection: sqlite3.Connection, asked: Asked, *, same_first: bool) -> list[Asked]:
    """Stored requests that begin with the same message, newest first; or, not `same_first`, of the same task too."""
    where, values = "first = ?", [asked.first]
    if not same_first and asked.task is not None:
        where, values = "first = ? OR task = ?", [asked.first, asked.task]
    found = connection.execute(f"SELECT {_PARTS} FROM response WHERE {where} ORDER BY id DESC LIMIT {_NEAR}", values)
    return [_asked(**dict(zip(_NAMES, row, strict=True))) for row in found]


def _asked(messages: str, **parts: Any) -> Asked:
    return Asked(messages=tuple(messages.split()), **parts)


def size(connection: sqlite3.Connection) -> int:
    """Bytes that are in use."""
    (pages,) = connection.execute(
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    ).fetchone()
    return pages


def prune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Takes out what was not used for longest, until nine tenths of `max_bytes` are in use."""
    if size(connection) <= max_bytes:
        return
    while size(connection) > max_bytes * 0.9:
        with transaction(connection):
            gone = connection.execute(
                "DELETE FROM response WHERE id IN (SELECT id FROM response ORDER BY used LIMIT"
                " (SELECT max(1, count(*) / 20) FROM response))"
            ).rowcount
        if not gone:
            break
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page


def remove(connection: sqlite3.Connection, before: float | None, model: str | None) -> int:
    """Takes out responses that came before a time, or of one model, or all. Returns: how many."""
    with transaction(connection):
        gone = connection.execute(
            "DELETE FROM response WHERE (?1 IS NULL OR created < ?1) AND (?2 IS NULL OR model = ?2)", (before, model)
        ).rowcount
        if before is None:
            connection.execute("DELETE FROM missed WHERE ?1 IS NULL OR model = ?1", (model,))
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
    return gone
