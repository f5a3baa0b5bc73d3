"""Type `d`: brings a memory index up to date with its folders, in the background.

A lock file beside the index holds the lock of the consolidation that runs, and its modification
time says when the last one completed. The time is set when a consolidation starts, so that no other
session starts one. A consolidation that is killed or fails sets it back; one whose process died is
recognised by the former time in the file.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from evaluator import clock, disk
from evaluator.background.output import Output
from evaluator.background.tasks import End, TaskType, Work
from evaluator.files.locks import try_lock
from evaluator.memory import GlobalIndex

DUE_S = 24 * 3600.0
"""Seconds after which an index is due again."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class ConsolidationLock:
    """The lock file of the index at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.consolidated")

    def is_due(self, now: float | None = None) -> bool:
        """Whether the last consolidation completed more than a day ago and none is running.

        False also if the lock cannot be written.
        """
        try:
            descriptor = self.acquire()
        except OSError:
            return False
        if descriptor is None:
            return False
        try:
            # A time in the future is from a clock that was wrong.
            return (
                abs((clock.wall() if now is None else now) - os.fstat(descriptor).st_mtime) > DUE_S
            )
        finally:
            os.close(descriptor)

    def acquire(self) -> int | None:
        """A descriptor that holds the lock until it is closed; None if another process has it.
        Raises: OSError.

        The time that a process left behind when it died is set back.
        """
        is_new = not self.path.exists()
        descriptor = disk.open(self.path, _FLAGS, 0o600)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        former = 0.0 if is_new else _former(descriptor)
        if former is not None:
            self.rewind(descriptor, former)
        return descriptor

    def begin(self, descriptor: int) -> float:
        """Sets the time to now. Returns: the former time."""
        former = os.fstat(descriptor).st_mtime
        disk.pwrite(descriptor, json.dumps(former).encode(), 0)
        disk.utime(descriptor)
        return former

    def complete(self, descriptor: int) -> None:
        """Sets the time to now, for good."""
        disk.ftruncate(descriptor, 0)
        disk.utime(descriptor)

    def rewind(self, descriptor: int, former: float) -> None:
        """Sets the time back."""
        disk.ftruncate(descriptor, 0)
        disk.utime(descriptor, (former, former))


def _former(descriptor: int) -> float | None:
    """The time in the file of a consolidation that has not ended; None if there is none."""
    try:
        return float(json.loads(os.pread(descriptor, 100, 0)))
    except ValueError:
        return None


class ConsolidationWork(Work):
    """Consolidates the index at `path`, see `GlobalIndex.consolidate`."""

    type: TaskType = "d"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, output: Output) -> End:
        """Consolidates the index, unless another process does."""
        lock = ConsolidationLock(self._path)
        descriptor = lock.acquire()
        if descriptor is None:
            return End("failed", reason="another process consolidates this index")
        try:
            if self._is_killed:
                return End("killed")
            former = lock.begin(descriptor)
            consolidation = self._running = asyncio.ensure_future(self._consolidate())
            try:
                await asyncio.wait([consolidation])
                summary = consolidation.result()
            except BaseException:
                lock.rewind(descriptor, former)
                if consolidation.cancelled():
                    return End("killed")
                raise
            lock.complete(descriptor)
            output.write(f"{summary}\n".encode())
            return End("completed", summary=summary)
        finally:
            os.close(descriptor)

    async def _consolidate(self) -> str:
        with GlobalIndex(self._path) as index:
            return str(await index.consolidate())
