"""A database of jobs: one connection that threads share, its transactions, and what this process
has seen of the leases in it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from evaluator.errors import RecordError
from evaluator.store import database
from evaluator.store.leases import LeaseObserver

_BUSY_S = 60.0


class JobStore:
    """The jobs in the database at `path`, which is created if it is missing. With `is_snapshot` it
    is a copy in memory that cannot be changed. `trusts_living`: see `LeaseObserver`.

    Raises: ConfigurationError, for a database of another program or version; RecordError, from
    every method, if the database cannot be read or written.
    """

    def __init__(
        self, path: Path, kind: database.Format, *, trusts_living: bool, is_snapshot: bool
    ) -> None:
        self.path = path
        self.leases = LeaseObserver(trusts_living=trusts_living)
        self._noun = kind.noun
        self._lock = threading.RLock()
        try:
            if is_snapshot:
                self._connection = database.snapshot(path, kind)
            else:
                self._connection = database.connect(path, kind, _BUSY_S)
        except (OSError, sqlite3.Error) as error:
            raise self._failure("opened", error) from error
        database.close_with(self, self._connection)

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(
        self, kind: str = "IMMEDIATE", *, sync: bool = True
    ) -> Generator[sqlite3.Connection]:
        """One transaction; a second one of the same thread is part of the first. Raises:
        RecordError.

        Without `sync`, a loss of power may undo it until the next one that syncs; the end of the
        process does not.
        """
        with self._lock:
            try:
                if self._connection.in_transaction:
                    yield self._connection
                    return
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                with database.transaction(self._connection, kind):
                    yield self._connection
                self._committed()
            except sqlite3.Error as error:
                raise self._failure("read or written", error) from error

    def _committed(self) -> None:
        """Called after each transaction."""

    def _failure(self, what: str, error: OSError | sqlite3.Error) -> RecordError:
        return RecordError(
            f"{self.path}: the {self._noun} cannot be {what}: {database.problem_of(error)}"
        )
