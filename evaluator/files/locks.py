"""Advisory file locks between processes (flock).

A lock belongs to the open file description: it ends when the last descriptor that shares it is
closed, so a crash releases it. A child process that inherited the descriptor keeps it. Threads that
open the file separately exclude each other too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evaluator import disk


def lock(descriptor: int) -> None:
    """Takes the exclusive lock of an open file; waits as long as another process holds it. Raises:
    OSError.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Takes the lock of an open file, or returns False at once where another process holds it.

    `shared`: any number of processes may hold the lock, but none exclusively at the same time.
    Raises: OSError, where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Releases the lock of an open file, also where a child process has inherited the
    descriptor.
    """
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def locked(descriptor: int) -> Generator[None]:
    """Holds the exclusive lock of an open file for the duration of the block; waits for it. Raises:
    OSError.
    """
    lock(descriptor)
    try:
        yield
    finally:
        unlock(descriptor)


@contextmanager
def locked_file(path: str | Path, *, dir_fd: int | None = None) -> Generator[int]:
    """A descriptor of the file `path` (created with mode 0600 if missing), locked for the duration
    of the block.

    Waits for the lock. A symbolic link is refused. Raises: OSError.
    """
    descriptor = disk.open(
        path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd
    )
    try:
        lock(descriptor)
        yield descriptor
    finally:
        disk.close(descriptor)
