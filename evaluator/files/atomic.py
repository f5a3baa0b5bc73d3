"""Publishes whole files: a file is written under a temporary name, then gets its final name in one
step.

A reader, and a process that starts after a crash, sees the complete old file or the complete new
one. A crash leaves at most a temporary file `.NAME.….tmp`, which nothing reads and
`remove_unfinished` removes. A symbolic link with the final name is replaced; its target is not
touched.

Advisory file locks between processes (flock).

A lock belongs to the open file description: it ends when the last descriptor that shares it is
closed, so a crash releases it. A child process that inherited the descriptor keeps it. Threads that
open the file separately exclude each other too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from evaluator import disk, randomness
from evaluator.errors import EvaluatorError, RecordError, advice_on
from evaluator.patterns import Pattern


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


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""The errors of file systems without hard links: FAT, some network and FUSE file systems."""

NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `disk.open` for a file that must not exist yet: never another process's file, never
through a link.
"""

_TEMPORARY = Pattern(r"\..{1,50}\.[0-9a-f]{16}\.tmp", "s")


@contextlib.contextmanager
def atomic_file(
    path: str | Path,
    *,
    dir_fd: int | None = None,
    mode: int = 0o600,
    sync: bool = True,
    replace: bool = True,
    under_lock: bool = False,
    error: type[EvaluatorError] | None = RecordError,
) -> Generator[BinaryIO]:
    """An empty binary file, open for writing, that is published as `path` when the block ends
    without an exception.

    After an exception in the block nothing is published and the temporary file is removed. `path`
    is relative to the folder with the descriptor `dir_fd`, if one is given. `mode` is subject to
    the umask. `sync`: contents and name are on the disk when the block ends (fsync of the file and
    its folder). `replace=False`: an existing file stays.
    `under_lock`: a lock of the caller keeps other writers out, so a temporary file that a killed
    one left is removed.

    Raises: `error`, if the file cannot be written, also if `path` is a folder, a device or a pipe;
    OSError itself where `error` is None. FileExistsError, without `replace`, if `path` exists.
    """
    folder, name = os.path.split(os.fspath(path))
    temporary = ""
    exists = False
    try:
        if replace:
            _refuse_special(path, dir_fd)
        if under_lock:
            temporary = os.path.join(folder, f".{name[:50]}.tmp")
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(temporary, dir_fd=dir_fd)
            descriptor = disk.open(temporary, NEW_FILE, mode, dir_fd=dir_fd)
        else:
            temporary, descriptor = _new_temporary(folder, name, mode=mode, dir_fd=dir_fd)
        exists = True
        with disk.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if sync:
                disk.fsync(file.fileno())
        if replace:
            disk.rename(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            exists = False
        else:  # unlike a rename, a link never takes the place of a file
            disk.link(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        if sync:
            disk.sync_folder(folder or ".", dir_fd)
    except FileExistsError:
        raise
    except OSError as failure:
        if error is None:
            raise
        reason = f"{failure.strerror or failure}; {advice_on(failure)}"
        raise error(f"{path}: cannot be written: {reason}") from failure
    finally:
        if exists:
            # The disk may refuse even that; the first error is the one to report.
            with contextlib.suppress(OSError):
                disk.unlink(temporary, dir_fd=dir_fd)


def write_atomic(
    path: str | Path,
    data: bytes,
    *,
    dir_fd: int | None = None,
    sync: bool = True,
    replace: bool = True,
    under_lock: bool = False,
    error: type[EvaluatorError] | None = RecordError,
) -> None:
    """Publishes a file (mode 0600) with the content `data`. Arguments and exceptions are those of
    `atomic_file`.
    """
    with atomic_file(
        path, dir_fd=dir_fd, sync=sync, replace=replace, under_lock=under_lock, error=error
    ) as file:
        file.write(data)


def remove_unfinished(folder: Path) -> None:
    """Removes the temporary files of `atomic_file` that killed processes left in `folder`, if it
    exists.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                remove_if_free(entry.path)


def remove_if_free(path: str | Path) -> None:
    """Removes a file that no process has locked. Does nothing if that fails."""
    with contextlib.suppress(OSError):
        descriptor = disk.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if try_lock(descriptor):
                disk.unlink(path)
        finally:
            disk.close(descriptor)


def _new_temporary(folder: str, name: str, mode: int, dir_fd: int | None) -> tuple[str, int]:
    """The path and the descriptor of a new file, locked so that `remove_unfinished` leaves it."""
    while True:
        path = os.path.join(folder, f".{name[:50]}.{randomness.token_hex(8)}.tmp")
        descriptor = disk.open(path, NEW_FILE, mode, dir_fd=dir_fd)
        with contextlib.suppress(OSError):  # a file system without locks: nothing is removed there
            lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        # It was removed before it was locked.
        disk.close(descriptor)


def _refuse_special(path: str | Path, dir_fd: int | None) -> None:
    """Raises: OSError, for a path at which a rename would remove a device or a pipe."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "a device or a pipe is not replaced; name a file")
