"""Responses of models kept by their whole request and epoch, so that what was asked before is not paid again.

Kept are whole answers only: no error, no answer that was cut off, refused, filtered or empty, and nothing that a
simulated or replaying model said. A hit has the tokens that were recorded and costs nothing.

A cache never fails a run: where its file is locked, damaged or cannot be written, that is said once, and the run
goes on without it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluator.errors import ConfigurationError, RecordError
from evaluator.handler import cache_store
from evaluator.handler.backend import ModelResponse
from evaluator.handler.cache_key import Asked, differences
from evaluator.handler.responses import response_from_dict, response_to_dict
from evaluator.results import Usage

MAX_BYTES = 1 << 30
# A reader waits for nobody but a process that opens the file or takes it over, for moments.
_READ_BUSY_S = 0.5
_WRITE_BUSY_S = 30.0
_PRUNE_EVERY = 200


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a request was not there: in what it differs from the stored one that is nearest to it."""

    differing: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.differing)


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One model's responses. `saved` is what hits would have used; its cost is None where a price was unknown."""

    entries: int = 0
    hits: int = 0
    misses: int = 0
    saved: Usage = Usage()


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache holds. `bytes` is the file's size; `oldest` in seconds since 1970, None if it is empty."""

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    oldest: float | None = None
    by_model: Mapping[str, ModelStats] = field(default_factory=dict[str, ModelStats])


class ResponseCache:
    """The cache in the file at `path`, which is opened when it is first used; several processes may share it.

    `max_bytes` bounds the file: what was not used for longest goes first. `notice` is told, once, why the run goes
    on without a cache. Usable from several threads and event loops.
    """

    def __init__(
        self, path: str | Path, *, max_bytes: int = MAX_BYTES, notice: Callable[[str], None] | None = None
    ) -> None:
        if not isinstance(max_bytes, int) or max_bytes < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a cache's max_bytes is {max_bytes!r}, expected an integer, 1 or more")
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._notice = notice or _log
        self._lock = threading.Lock()
        self._is_off = False
        self._reader: sqlite3.Connection | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._rows: dict[str, cache_store.Row] = {}
        self._hits: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._is_writing = False
        self._until_prune = 0
        self._flights: dict[tuple[asyncio.AbstractEventLoop, str], _Flight] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    # -- in a run: none of these raises ---------------------------------------------------------------------

    @asynccontextmanager
    async def flight(self, asked: Asked) -> AsyncGenerator[None]:
        """One at a time for equal requests of one event loop: the second then finds what the first got."""
        if self._reader is None and not self._is_off:
            await asyncio.to_thread(self._open)
        place = asyncio.get_running_loop(), asked.key
        flight = self._flights.setdefault(place, _Flight())
        flight.users += 1
        try:
            async with flight.lock:
                yield
        finally:
            flight.users -= 1
            if not flight.users:
                del self._flights[place]

    def get(self, asked: Asked) -> ModelResponse | None:
        """The stored response, at no cost; None where there is none. Counts a hit or a miss."""
        with self._lock:
            if self._is_off or self._reader is None:
                return None
            found = self._find(asked.key)
            if found is None:
                self._missed[asked.model] += 1
            else:
                self._hits[asked.key] += 1
            self._write_soon()
        return found

    def put(self, asked: Asked, response: ModelResponse) -> None:
        """Stores `response` if it is a whole answer; on disk some moments later, and at the latest with `close`."""
        if not is_kept(response):
            return
        try:
            texts = json.dumps(response_to_dict(response)), json.dumps(response.usage.said())
        except (TypeError, ValueError):
            return  # a backend of somebody's own that gives what is no JSON
        with self._lock:
            if not self._is_off:
                self._rows.setdefault(asked.key, cache_store.Row(asked, *texts, time.time()))
                self._write_soon()

    def why_missed(self, asked: Asked) -> Miss | None:
        """As `explain`, of the same conversation at the same turn only, and not for another epoch alone; quick."""
        with self._lock:
            if self._is_off or self._reader is None:
                return None
            try:
                found = cache_store.near(self._reader, replace(asked, task=None), same_first=True)
            except sqlite3.Error as error:
                self._give_up(error)
                return None
        return _nearest([one for one in found if len(one.messages) == len(asked.messages)
                         and one.epoch == asked.epoch], asked)  # fmt: skip

    def close(self) -> None:
        """Writes what waits to be written and closes the file; it is opened again when it is next used."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.shutdown(wait=True)
        with self._lock:
            reader, self._reader = self._reader, None
            self._is_off = False
            if reader is not None:
                reader.close()

    def _open(self) -> None:
        with self._lock:
            if self._reader is not None or self._is_off:
                return
            try:
                self._reader = cache_store.connect(self.path, _WRITE_BUSY_S)
                self._reader.execute(f"PRAGMA busy_timeout = {int(_READ_BUSY_S * 1000)}")
            except (OSError, sqlite3.Error, ConfigurationError) as error:
                self._give_up(error)

    def _find(self, key: str) -> ModelResponse | None:
        assert self._reader is not None
        waiting = self._rows.get(key)
        try:
            found = cache_store.find(self._reader, key) if waiting is None else (waiting.response, waiting.usage)
            if found is None:
                return None
            response = response_from_dict(json.loads(found[0]), json.loads(found[1]))
        except (sqlite3.Error, LookupError, TypeError, ValueError, AttributeError) as error:
            self._give_up(error)
            return None
        return replace(response, usage=replace(response.usage, cost_usd=0.0))

    def _write_soon(self) -> None:
        if self._is_writing or not (self._rows or self._hits or self._missed):
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="evaluator-cache")
        self._is_writing = True
        self._writer.submit(self._write)

    def _write(self) -> None:
        """In the writer's thread: what has come in, until there is no more."""
        connection: sqlite3.Connection | None = None
        try:
            connection = cache_store.connect(self.path, _WRITE_BUSY_S)
            while True:
                with self._lock:
                    rows, hits, missed = dict(self._rows), self._hits, self._missed
                    self._hits, self._missed = Counter(), Counter()
                    if self._is_off or not (rows or hits or missed):
                        self._is_writing = False
                        return
                cache_store.write(connection, rows.values(), hits, missed, time.time())
                self._until_prune -= len(rows)
                if self._until_prune < 0:
                    self._until_prune = _PRUNE_EVERY
                    cache_store.prune(connection, self._max_bytes)
                with self._lock:
                    for key in rows:
                        self._rows.pop(key, None)
        except (OSError, sqlite3.Error, ConfigurationError) as error:
            with self._lock:
                self._is_writing = False
                self._give_up(error)
        finally:
            if connection is not None:
                connection.close()

    def _give_up(self, error: Exception) -> None:
        """With the lock held. The run goes on without a cache."""
        if self._is_off:
            return
        self._is_off = True
        self._rows.clear()
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        with suppress(Exception):
            self._notice(f"the cache of responses {self.path} is not used any more in this run: {said}")

    # -- for people -----------------------------------------------------------------------------------------

    def explain(self, asked: Asked) -> Miss | None:
        """In what `asked` differs from the stored request that is nearest: with the same first message, or of
        the same task. No difference at all means that it is there; None, that there is nothing like it.

        Raises: RecordError, if the file cannot be read; ConfigurationError, if it is none of ours.
        """
        connection = self._connected()
        if connection is None:
            return None
        try:
            with closing(connection):
                return _nearest(cache_store.near(connection, asked, same_first=False), asked)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def stats(self) -> CacheStats:
        """Raises: as `explain`. A file that is not there has nothing in it, and is not made."""
        connection = self._connected()
        if connection is None:
            return CacheStats()
        by_model: dict[str, ModelStats] = {}
        try:
            with closing(connection):
                for model, usage, hits in connection.execute("SELECT model, usage, hits FROM response"):
                    before = by_model.get(model, ModelStats())
                    saved = _times(Usage.from_dict(json.loads(usage)), hits) if hits else Usage()
                    by_model[model] = ModelStats(before.entries + 1, before.hits + hits, 0, before.saved + saved)
                for model, count in connection.execute("SELECT model, count FROM missed"):
                    by_model[model] = replace(by_model.get(model, ModelStats()), misses=count)
                (oldest,) = connection.execute("SELECT min(created) FROM response").fetchone()
                used = cache_store.size(connection)
        except (sqlite3.Error, ValueError) as error:
            raise self._unreadable(error) from error
        each = by_model.values()
        return CacheStats(
            sum(m.entries for m in each), used, sum(m.hits for m in each), sum(m.misses for m in each), oldest,
            dict(sorted(by_model.items())),
        )  # fmt: skip

    def clear(self, *, older_than_s: float | None = None, model: str | None = None) -> int:
        """Takes out what is older than so many seconds, or of one model, or both; without either, everything.

        Returns: how many responses. Raises: as `explain`.
        """
        connection = self._connected()
        if connection is None:
            return 0
        try:
            with closing(connection):
                before = None if older_than_s is None else time.time() - older_than_s
                return cache_store.remove(connection, before, model)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _connected(self) -> sqlite3.Connection | None:
        """A connection of the caller's own, after what this process has still to write; None without a file."""
        writer = self._writer
        if writer is not None:
            writer.submit(lambda: None).result()
        try:
            return cache_store.connect(self.path, _WRITE_BUSY_S, make=False)
        except FileNotFoundError:
            return None
        except (OSError, sqlite3.Error) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RecordError:
        return RecordError(f"{self.path}: the cache cannot be read: {error}; delete the file to begin anew")


class _Flight:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


def is_kept(response: ModelResponse) -> bool:
    """Whether `response` is a whole answer, worth giving again."""
    if response.finish_reason not in ("stop", "tool_calls"):
        return False
    return bool(response.content.strip() or response.tool_calls)


def _nearest(found: list[Asked], asked: Asked) -> Miss | None:
    each = [differences(one, asked) for one in found]
    return Miss(min(each, key=len)) if each else None


def _times(usage: Usage, hits: int) -> Usage:
    counted: dict[str, Any] = {name: None if value is None else value * hits for name, value in usage.to_dict().items()}
    return Usage(**counted)


def _log(line: str) -> None:
    logging.getLogger("evaluator").warning(line)
