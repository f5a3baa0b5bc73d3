"""Publishes the store as `task-queue.json`: atomically, within a second of a change, and when the
queue is closed.

A published file is always one committed state of the store. The hash of the last one is stored, so
that a file that somebody edited, or that another program wrote, is recognised: it is imported entry
by entry and published again. A notice names what was taken over and each conflict; a file with a
conflict is kept beside it. A file that is not a queue stays, and nothing is published until it is
corrected or removed. A lock keeps several processes from publishing at once. An editor that saves
in the milliseconds between the last look at the file and its replacement is not seen.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from evaluator.errors import EvaluatorError, RecordError, UsageError
from evaluator.files.atomic import locked_file, write_atomic
from evaluator.jobs.document import FILE, join_document, read_limited
from evaluator.jobs.importing import Imported, import_edit
from evaluator.jobs.queue_tables import QueueTables
from evaluator.processes import starting

LOCK = ".task-queue.lock"
CONFLICT = "task-queue.conflict.json"
DELAY_S = 0.5


class Publisher:
    """Publishes a store into its folder. `notice` gets a line for the user, once for each edited
    file. Without `takes_edits` an edited file stays as it is.
    """

    def __init__(
        self,
        store: QueueTables,
        folder: Path,
        notice: Callable[[str], None],
        *,
        takes_edits: bool = True,
    ) -> None:
        self.path = folder / FILE
        self.edited = Imported()
        """What was taken over of edited files since the queue was opened."""
        self._takes_edits = takes_edits
        self._store = store
        self._lock_path = folder / LOCK
        self._notice = notice
        self._noticed = ""
        self._seen: tuple[tuple[int, int, int], str] | None = None
        self._guard = threading.Lock()
        self._timer: starting.Timer | None = None

    def schedule(self) -> None:
        """Publishes in half a second, in a thread; further calls until then do nothing."""
        with self._guard:
            if self._timer is None:
                self._timer = starting.Timer(DELAY_S, self._publish_scheduled)
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
        with self._locked():
            return self._publish()

    def take_edit(self) -> None:
        """Imports the file if somebody has edited it, and publishes the store then.

        Raises: RecordError, as `publish`.
        """
        if self._mark() == (self._seen and self._seen[0]):
            return
        with self._locked():
            known = self._store.publication()
            if self._hash_on_disk() not in ("", known.published_hash, known.publishing_hash):
                self._publish()

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            with locked_file(self._lock_path):
                yield
        except OSError as error:
            raise RecordError(
                f"{self.path}: cannot be published: {error.strerror or error}; the queue is "
                "stored, and the file "
                "follows with the next command"
            ) from error

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
            accepted = self._import_edit(on_disk)
            if accepted is None:
                return False
            on_disk = accepted
            known = self._store.publication()
        if on_disk == known.publishing_hash and known.revision == known.published_revision:
            return True
        with self._store.transaction("DEFERRED"):
            revision = self._store.publication().revision
            data = join_document(self._store.settings(), self._store.documents())
        digest = hashlib.sha256(data).hexdigest()
        self._store.begin_publication(on_disk, digest, revision)
        write_atomic(self.path, data, under_lock=True, error=None)
        self._store.end_publication(digest)
        mark = self._mark()
        self._seen = None if mark is None else (mark, digest)
        return True

    def _import_edit(self, on_disk: str) -> str | None:
        """Imports the edited file, so that it may be replaced; returns its hash. None: it stays."""
        if not self._takes_edits:
            return None
        data = read_limited(self.path)
        digest = hashlib.sha256(data).hexdigest()
        try:
            imported = import_edit(self._store, data, str(self.path))
        except UsageError as error:
            if on_disk != self._noticed:
                self._noticed = on_disk
                self._notice(
                    f"{error}; the file stays as it is, and nothing is published until it is "
                    "corrected or deleted"
                )
            return None
        self._store.accept_file(digest)
        self.edited = imported.following(self.edited)
        lines = [
            f"{what} {', '.join(ids)}"
            for what, ids in (("added", imported.added), ("changed", imported.changed))
            if ids
        ]
        if lines:
            self._notice(f"{self.path} was edited: {'; '.join(lines)}")
        for conflict in imported.conflicts:
            self._notice(f"{self.path}: {conflict}; this was not taken over")
        if imported.conflicts:
            kept = self.path.with_name(CONFLICT)
            write_atomic(kept, data)
            self._notice(f"the edited file is kept as {kept}")
        return digest

    def _hash_on_disk(self) -> str:
        """The hash of the file, "" if there is none; read again only if its size or times have
        changed.
        """
        mark = self._mark()
        try:
            if mark is None:
                return ""
            if self._seen is None or self._seen[0] != mark:
                self._seen = mark, hashlib.sha256(read_limited(self.path)).hexdigest()
        except FileNotFoundError:
            return ""
        return self._seen[1]

    def _mark(self) -> tuple[int, int, int] | None:
        """Changes with every change of the file; None if there is none. Raises: OSError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
