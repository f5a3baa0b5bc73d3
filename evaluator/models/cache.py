"""The response cache: stores answers by their whole request and epoch, so that no call is billed
twice.

It stores whole answers only: no error, no answer that was cut off, refused, filtered or empty, and
nothing that a simulated or replaying backend said. A hit has the recorded tokens and costs nothing.

A cache never fails a run: where its file is locked, damaged or cannot be written, it says so once,
and the run continues without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from evaluator import clock
from evaluator.errors import ConfigurationError, RecordError
from evaluator.errors.messages import LOGGER
from evaluator.errors.results import Usage
from evaluator.fields import Count, accept
from evaluator.files.trust import is_signed, is_trusted, signature
from evaluator.lazy_dataclass import frozen
from evaluator.models import cache_store
from evaluator.models.backend import ModelResponse
from evaluator.models.cache_store import CacheKey
from evaluator.store import database
from evaluator.store.database import close_with

T = TypeVar("T")

MAX_BYTES = 1 << 30
# A reader waits only for a process that creates or takes over the file, which takes moments.
_READ_BUSY_S = 0.5
_WRITE_BUSY_S = 30.0
_PRUNE_EVERY = 200


@frozen
class ModelStats:
    """One model's responses. `saved` is the usage that hits saved; its cost is None where a price
    was unknown.
    """

    entries: int = 0
    hits: int = 0
    misses: int = 0
    saved: Usage = Usage()


@frozen
class CacheStats:
    """The contents of a cache. `bytes` is the file's size; `oldest` is in seconds since 1970, None
    if it is empty.
    """

    bytes: int = 0
    oldest: float | None = None
    by_model: Mapping[str, ModelStats] = field(default_factory=dict[str, ModelStats])

    @property
    def entries(self) -> int:
        return sum(model.entries for model in self.by_model.values())

    @property
    def hits(self) -> int:
        return sum(model.hits for model in self.by_model.values())

    @property
    def misses(self) -> int:
        return sum(model.misses for model in self.by_model.values())


class ResponseCache:
    """The cache in the file at `path`, which is opened at its first use; several processes may
    share it.

    `max_bytes` bounds the file: what was not used for longest is removed first. `notice` is called
    once with a line that says why the run continues without a cache. Usable from several threads
    and event loops.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = MAX_BYTES,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        accept(Count, max_bytes, "a cache's max_bytes", ConfigurationError)
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._notice = notice or LOGGER.warning
        self._lock = threading.Lock()
        self._is_off = False
        self._refused: set[str] = set()
        self._is_trusted = is_trusted(self.path.absolute().parent)
        self._reader: sqlite3.Connection | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._is_writing = False
        # What the writer has still to write.
        self._rows: dict[str, cache_store.CachedResponse] = {}
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._until_prune = 0
        # Locks of requests that are being made, by event loop and key.
        self._in_flight: WeakValueDictionary[
            tuple[asyncio.AbstractEventLoop, str], asyncio.Lock
        ] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    # -- in a run: none of these raises ------------------------------------------------------------

    @asynccontextmanager
    async def one_at_a_time(self, key: CacheKey) -> AsyncGenerator[None]:
        """Lets one of several equal requests of an event loop run: the next one then finds its
        answer.
        """
        if self._reader is None and not self._is_off:
            await asyncio.to_thread(self._open)
        async with self._in_flight.setdefault(
            (asyncio.get_running_loop(), key.key), asyncio.Lock()
        ):
            yield

    def get(self, key: CacheKey) -> ModelResponse | None:
        """The stored response, at no cost; None where there is none. Counts a hit or a miss."""
        with self._lock:
            response = self._read(lambda reader: self._find(reader, key.key))
            if self._reader is not None:
                if response is None:
                    self._misses[key.model] += 1
                else:
                    self._hits[key.key] += 1
                self._write_soon()
        return response

    def explain_miss(self, key: CacheKey) -> str | None:
        """The differences between `key` and the nearest stored request of the same conversation,
        turn and epoch.

        None where there is none.
        """
        with self._lock:
            stored = self._read(lambda reader: cache_store.near(reader, key)) or []
        differences = [key.differences(other) for other in stored if key.is_same_turn(other)]
        if differences:
            return "; ".join(min(differences, key=len))
        return None

    def put(self, key: CacheKey, response: ModelResponse) -> None:
        """Stores `response` if it is a whole answer; it is on disk some moments later, at the
        latest after `close`.
        """
        is_whole = response.finish_reason in ("stop", "tool_calls")
        if not is_whole or not (response.content.strip() or response.tool_calls):
            return
        try:
            texts = json.dumps(response.to_dict()), json.dumps(response.usage.non_zero())
        except (TypeError, ValueError):
            return  # a user's own backend returned what is not JSON
        mark = signature(cache_store.signed_part(key.key, *texts))
        with self._lock:
            if not self._is_off:
                row = cache_store.CachedResponse(
                    key,
                    *texts,
                    signature=mark,
                    created=clock.wall(),
                    replaces=key.key in self._refused,
                )
                self._rows.setdefault(key.key, row)
                self._write_soon()

    def close(self) -> None:
        """Writes what has still to be written and closes the file; the next use opens it again."""
        with self._lock:
            writer = self._writer
            self._writer = None
        if writer is not None:
            writer.shutdown(wait=True)
        with self._lock:
            reader = self._reader
            self._reader = None
            self._is_off = False
            if reader is not None:
                reader.close()

    def _open(self) -> None:
        with self._lock:
            if self._reader is not None or self._is_off:
                return
            try:
                self._reader = database.connect(self.path, cache_store.FORMAT, _WRITE_BUSY_S)
                close_with(self, self._reader)
                self._reader.execute(f"PRAGMA busy_timeout = {int(_READ_BUSY_S * 1000)}")
            except (OSError, sqlite3.Error, ConfigurationError) as error:
                self._turn_off(error)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """With the lock held. None where the cache is off, or the file cannot be read."""
        if self._is_off or self._reader is None:
            return None
        try:
            return read(self._reader)
        except (sqlite3.Error, LookupError, TypeError, ValueError, AttributeError) as error:
            self._turn_off(error)
            return None

    def _find(self, reader: sqlite3.Connection, key: str) -> ModelResponse | None:
        row = self._rows.get(key)
        if row is not None:
            texts = (row.response, row.usage)
        else:
            found = cache_store.find(reader, key)
            if found is None:
                return None
            *texts, mark = found
            if not self._may_use(key, texts, mark):
                return None
        response = ModelResponse.from_dict(json.loads(texts[0]), json.loads(texts[1]))
        return replace(response, usage=replace(response.usage, cost_usd=0.0, cache_saved_usd=0.0))

    def _may_use(self, key: str, texts: Sequence[str], mark: object) -> bool:
        """Whether a stored response is this user's own; says once that others are not used."""
        if self._is_trusted or is_signed(cache_store.signed_part(key, *texts), mark):
            return True
        if not self._refused:
            self._notice(
                f"responses in the cache {self.path} that no program of yours stored are not used; "
                "to use the caches of a folder that you trust, set EVALUATOR_TRUST to it"
            )
        self._refused.add(key)
        return False

    def _write_soon(self) -> None:
        if self._is_writing or not (self._rows or self._hits or self._misses):
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="evaluator-cache")
        self._is_writing = True
        self._writer.submit(self._write)

    def _write(self) -> None:
        """Writes until nothing is left to write. Runs in the writer's thread."""
        try:
            with closing(
                database.connect(self.path, cache_store.FORMAT, _WRITE_BUSY_S)
            ) as connection:
                while self._write_once(connection):
                    pass
        except (OSError, sqlite3.Error, ConfigurationError) as error:
            with self._lock:
                self._is_writing = False
                self._turn_off(error)

    def _write_once(self, connection: sqlite3.Connection) -> bool:
        with self._lock:
            rows = dict(self._rows)
            hits = self._hits
            misses = self._misses
            self._hits = Counter()
            self._misses = Counter()
            if self._is_off or not (rows or hits or misses):
                self._is_writing = False
                return False
        cache_store.write(connection, rows.values(), hits, misses, clock.wall())
        self._until_prune -= len(rows)
        if self._until_prune < 0:
            self._until_prune = _PRUNE_EVERY
            cache_store.prune(connection, self._max_bytes)
        with self._lock:
            for key in rows:
                self._rows.pop(key, None)
        return True

    def _turn_off(self, error: Exception) -> None:
        """With the lock held. The run continues without a cache."""
        if self._is_off:
            return
        self._is_off = True
        self._rows.clear()
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        else:
            reason = str(error)
        with suppress(Exception):
            self._notice(f"the run continues without the response cache {self.path}: {reason}")

    # -- for people --------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """What the cache holds. A missing file is empty, and is not created.

        Raises: RecordError, if the file cannot be read; ConfigurationError, if it is not a cache of
        this version.
        """
        with self._connection(database.snapshot) as connection:
            if connection is None:
                return CacheStats()
            by_model: dict[str, ModelStats] = {}
            for model, usage, hits in connection.execute("SELECT model, usage, hits FROM response"):
                before = by_model.get(model, ModelStats())
                saved = Usage()
                if hits:
                    counts: dict[str, Any] = {
                        name: None if count is None else count * hits
                        for name, count in Usage.from_dict(json.loads(usage)).to_dict().items()
                    }
                    saved = Usage(**counts)
                by_model[model] = ModelStats(
                    before.entries + 1, before.hits + hits, misses=0, saved=before.saved + saved
                )
            for model, count in connection.execute("SELECT model, count FROM missed"):
                by_model[model] = replace(by_model.get(model, ModelStats()), misses=count)
            (oldest,) = connection.execute("SELECT min(created) FROM response").fetchone()
            return CacheStats(
                cache_store.size(connection), oldest, by_model=dict(sorted(by_model.items()))
            )

    def clear(self, *, older_than_s: float | None = None, model: str | None = None) -> int:
        """Removes what is older than so many seconds, or of one model, or both; without either,
        everything.

        Returns: how many responses. Raises: as `stats`.
        """
        if older_than_s is None:
            before = None
        else:
            before = clock.wall() - older_than_s
        connect = partial(database.connect, busy_s=_WRITE_BUSY_S, make=False)
        with self._connection(connect) as connection:
            if connection is None:
                return 0
            return cache_store.remove(connection, before, model)

    @contextmanager
    def _connection(
        self, connect: Callable[[Path, database.Format], sqlite3.Connection]
    ) -> Generator[sqlite3.Connection | None]:
        """A connection of the caller's own, after this process has written what it had to; None
        without a file.
        """
        writer = self._writer
        if writer is not None:
            writer.submit(lambda: None).result()
        if not os.path.lexists(self.path):
            yield None
            return
        try:
            with closing(connect(self.path, cache_store.FORMAT)) as connection:
                yield connection
        except (OSError, sqlite3.Error, ValueError) as error:
            raise RecordError(
                f"{self.path}: the cache cannot be read: {error}; delete the file to start again"
            ) from error
