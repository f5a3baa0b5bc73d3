"""Publishes the store as `task-queue.json`: atomically, within a second of a change, and when the
queue is closed.

A published file is always one committed state of the store. The hash of the last one is stored, so
that a file that somebody edited, or that another program wrote, is recognised: it stays, a notice
offers to import it, and nothing is published until it was imported or removed. A lock keeps several
processes from publishing at once. An editor that saves in the milliseconds between the last look at
the file and its replacement is not seen.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from evaluator.errors import EvaluatorError, RecordError
from evaluator.files.atomic import write_atomic
from evaluator.files.locks import locked_file
from evaluator.queue.document import MAX_BYTES, join_document
from evaluator.queue.tables import QueueTables

FILE = "task-queue.json"
LOCK = ".task-queue.lock"
DELAY_S = 0.5


class Publisher:
    """Publishes a store into its folder. `notice` gets a line for the user, once for each edited
    file.
    """

    def __init__(self, store: QueueTables, folder: Path, notice: Callable[[str], None]) -> None:
        self.path = folder / FILE
        self._store = store
        self._lock_path = folder / LOCK
        self._notice = notice
        self._noticed = ""
        self._seen: tuple[tuple[int, int, int], str] | None = None
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def schedule(self) -> None:
        """Publishes in half a second, in a thread; further calls until then do nothing."""
        with self._guard:
            if self._timer is None:
                self._timer = threading.Timer(DELAY_S, self._publish_scheduled)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Publishes what is not published yet."""
        with self._guard:
            timer = self._timer
            self._timer = None
        if timer is not None:
            timer.cancel()
            timer.join()
        self.publish()

    def publish(self) -> bool:
        """Publishes the store if the file is not up to date. False: an edited file is in the way.

        Raises: RecordError, if the file cannot be read or written.
        """
        try:
            with locked_file(self._lock_path):
                return self._publish()
        except OSError as error:
            raise RecordError(
                f"{self.path}: cannot be published: {error.strerror or error}; the queue is "
                "stored, and the file "
                "follows with the next command"
            ) from error

    def accept(self, data: bytes) -> None:
        """Lets the file with these bytes be replaced, because everything in it was imported."""
        self._store.accept_file(hashlib.sha256(data).hexdigest())

    def _publish_scheduled(self) -> None:
        with self._guard:
            self._timer = None
        try:
            self.publish()
        except EvaluatorError as error:  # `close` reports it again
            self._notice(str(error))

    def _publish(self) -> bool:
        known = self._store.publication()
        on_disk = self._hash_on_disk()
        if on_disk not in ("", known.published_hash, known.publishing_hash):
            if on_disk != self._noticed:
                self._noticed = on_disk
                self._notice(
                    f"{self.path} was edited or comes from elsewhere, so it is not replaced; to "
                    "use it: evaluator "
                    "queue import, to drop it: delete it"
                )
            return False
        if on_disk == known.publishing_hash and known.revision == known.published_revision:
            return True
        with self._store.transaction("DEFERRED"):
            revision = self._store.publication().revision
            data = join_document(self._store.settings(), self._store.documents())
        digest = hashlib.sha256(data).hexdigest()
        self._store.begin_publication(on_disk, digest, revision)
        write_atomic(self.path, data, under_lock=True, error=None)
        self._store.end_publication(digest)
        return True

    def _hash_on_disk(self) -> str:
        """The hash of the file, "" if there is none; read again only if its size or times have
        changed.
        """
        try:
            status = self.path.stat()
            mark = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._seen is None or self._seen[0] != mark:
                self._seen = mark, hashlib.sha256(read_limited(self.path)).hexdigest()
        except FileNotFoundError:
            return ""
        return self._seen[1]


def read_limited(path: Path) -> bytes:
    """The bytes of a file, at most one more than a queue may have. Raises: OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
