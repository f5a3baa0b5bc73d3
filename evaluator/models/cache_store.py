"""The keys of a `ResponseCache`, and its database.

Identifies a request to a model: hashes of its parts, and a key that combines them.
Only hashes of the contents are stored. The model, the endpoint and the settings are stored as text.

SQLite in WAL mode, readable and writable by its owner only. Several processes may read and write at
once; the first response that was stored under a key stays. Requests are stored as hashes, responses
as they are, with a signature: a response that no program of this user stored is not used.

    response   key, the parts of the request, response and usage as JSON, their signature, when it
               was stored, how often it was used
    missed     model, how many of its requests were not found
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import Message, ModelRequest
from evaluator.nodes.sampling import settings_given
from evaluator.record.steps import json_encoder
from evaluator.store import database
from evaluator.store.database import transaction

KEY_VERSION = 1
_canonical = json_encoder((",", ":"), ascii_only=True, sort_keys=True)
_NONE = ""


@frozen
class CacheKey:
    """One request as the cache identifies it. `key` is the SHA-256 of all other fields, as 64 hex
    digits.

    `settings` is JSON text; `tools`, `schema`, `system` and `messages` are hashes, empty where
    there is none.
    """

    key: str
    epoch: int
    endpoint: str
    model: str
    settings: str
    tools: str
    schema: str
    system: str
    messages: tuple[str, ...]

    @classmethod
    def of(
        cls, request: ModelRequest, *, endpoint: str, epoch: int, tool_calling: str = "native"
    ) -> CacheKey:
        """Identifies the epoch and all parts of `request` that an answer may depend on.

        Excluded are the time limit, which decides only whether there is an answer, the marks of
        prompt caches, and the hints, which are never sent. An attachment counts with its hash.
        """
        settings = {
            **settings_given(request),
            "max_output_tokens": request.max_output_tokens,
            "tool_calling": None if tool_calling == "native" or not request.tools else tool_calling,
        }
        parts = (
            epoch,
            endpoint,
            request.model,
            _canonical({name: value for name, value in settings.items() if value is not None}),
            _hash([[t.name, t.description, t.parameters, t.native] for t in request.tools] or None),
            _hash(request.schema),
            _hash(
                [message.to_dict() for message in request.messages if message.role == "system"]
                or None
            ),
            tuple(
                _hash(_with_withheld(message))
                for message in request.messages
                if message.role != "system"
            ),
        )
        return cls(hashlib.sha256(_canonical([KEY_VERSION, *parts]).encode()).hexdigest(), *parts)

    @property
    def first(self) -> str:
        if self.messages:
            return self.messages[0]
        return _NONE

    def is_same_turn(self, other: CacheKey) -> bool:
        """Whether both may be the same turn of a conversation, in the same epoch."""
        return (self.epoch, len(self.messages)) == (other.epoch, len(other.messages))

    def differences(self, stored: CacheKey) -> list[str]:
        """Each part in which this request differs from the `stored` one, in words."""
        return list(_differences(stored, self))


def _with_withheld(message: Message) -> dict[str, Any]:
    """An attachment whose bytes are withheld differs from one that is sent."""
    data = message.to_dict()
    withheld = [
        place for place, attachment in enumerate(message.attachments) if not attachment.data
    ]
    if withheld:
        return {**data, "withheld": withheld}
    return data


def _hash(value: Any) -> str:
    if value is None:
        return _NONE
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def _differences(stored: CacheKey, now: CacheKey) -> Iterator[str]:
    for name in ("endpoint", "model"):
        if getattr(stored, name) != getattr(now, name):
            yield f"the {name} was {getattr(stored, name)} and is {getattr(now, name)}"
    old = json.loads(stored.settings)
    new = json.loads(now.settings)
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name, 'not set')} and is {new.get(name, 'not set')}"
    for name, before, after in (
        ("tools", stored.tools, now.tools),
        ("schema", stored.schema, now.schema),
        ("system message", stored.system, now.system),
    ):
        if before != after:
            yield f"{name}: " + (
                "none before" if before == _NONE else "none now" if after == _NONE else "changed"
            )
    for number, (before, after) in enumerate(zip(stored.messages, now.messages, strict=False), 1):
        if before != after:
            yield f"message {number} differs"


_NEAR = 50
_TABLES = """
CREATE TABLE response (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, endpoint TEXT NOT
    NULL,
    model TEXT NOT NULL, settings TEXT NOT NULL, tools TEXT NOT NULL, schema TEXT NOT NULL, system
    TEXT NOT NULL,
    messages TEXT NOT NULL, first TEXT NOT NULL,
    response TEXT NOT NULL, usage TEXT NOT NULL, signature TEXT,
    created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX response_first ON response (first);
CREATE TABLE missed (model TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""
FORMAT = database.Format("cache", 0x45765263, 2, _TABLES, "name another file", incremental=True)
_PARTS = "key, epoch, endpoint, model, settings, tools, schema, system, messages"
_parts_of = attrgetter(*_PARTS.split(", "))


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
    *parts, messages = _parts_of(row.request)
    return (
        *parts,
        " ".join(messages),
        row.request.first,
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
            "DELETE FROM response WHERE (:before IS NULL OR created < :before)"
            " AND (:model IS NULL OR model = :model)",
            {"before": before, "model": model},
        ).rowcount
        if before is None:
            connection.execute(
                "DELETE FROM missed WHERE :model IS NULL OR model = :model", {"model": model}
            )
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
    return removed
