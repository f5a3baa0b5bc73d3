"""Changes of files and folders. No other module creates, writes, syncs, moves or removes them.

Call them through the module (`disk.pwrite(…)`), so that simulations can replace them. They are the
functions of `os` with the same names and arguments; `open` is for files that are created, written
or locked. Reading needs no function of this module, and neither do temporary files without a name.

On a loss of power a name and its file's content are separate: a new file is certain to be there
once both it and its folder were synced.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, cast

__all__ = [
    "close",
    "copy",
    "create",
    "dup",
    "fdatasync",
    "fdopen",
    "fsync",
    "ftruncate",
    "link",
    "make_folders",
    "make_temporary_folder",
    "mkdir",
    "open",
    "pwrite",
    "remove",
    "rename",
    "rmdir",
    "sync_folder",
    "temporary_folder",
    "unlink",
    "utime",
    "write",
    "write_all",
]

open = os.open
close = os.close
dup = os.dup
write = os.write
pwrite = os.pwrite
ftruncate = os.ftruncate
fsync = os.fsync
# macOS has none: its fsync does the same.
fdatasync = getattr(os, "fdatasync", os.fsync)
rename = os.rename
link = os.link
unlink = os.unlink
mkdir = os.mkdir
rmdir = os.rmdir
utime = os.utime


def create(path: str | os.PathLike[str]) -> BinaryIO:
    """A new binary file, open for writing. Raises: FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return fdopen(open(path, flags, 0o666))


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copies the content of a file into a new file. Raises: FileExistsError."""
    import shutil

    with builtins.open(source, "rb") as original, create(target) as written:
        shutil.copyfileobj(original, written)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`: a write takes only a part of it where the disk is nearly full.

    Raises: OSError; a part may be written then.
    """
    written = write(descriptor, data)
    while written < len(data):
        written += write(descriptor, data[written:])


def fdopen(descriptor: int, mode: str = "wb") -> BinaryIO:
    """A buffered binary file over a descriptor of `open`, which it closes."""
    return cast("BinaryIO", os.fdopen(descriptor, mode))


def make_folders(path: str | os.PathLike[str], mode: int = 0o777, *, sync: bool = False) -> None:
    """Creates a folder with this mode, and those above it, unless they are there.

    `sync`: the folder's name is on the disk when this returns, also where a process made the folder
    and was killed before its name was synced.
    """
    parent = os.path.dirname(os.fspath(path)) or "."
    if not os.path.isdir(path):
        make_folders(parent, sync=sync)
        try:
            mkdir(path, mode)
        except FileExistsError:
            if not os.path.isdir(path):
                reason = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, reason, os.fspath(path)) from None
    if sync:
        sync_folder(parent)


def make_temporary_folder(prefix: str, parent: str | os.PathLike[str] | None = None) -> str:
    """A new folder (mode 0700) whose name has a random end, below `parent` or in the system's place
    for temporary files.
    """
    import tempfile

    return tempfile.mkdtemp(prefix=prefix, dir=parent)


@contextlib.contextmanager
def temporary_folder(
    prefix: str, parent: str | os.PathLike[str] | None = None
) -> Generator[Path, None, None]:
    """A folder as of `make_temporary_folder`, which is removed with all that is in it."""
    import shutil

    folder = make_temporary_folder(prefix, parent)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, unless it is gone already."""
    with contextlib.suppress(FileNotFoundError):
        unlink(path)


def sync_folder(folder: str | os.PathLike[str], dir_fd: int | None = None) -> None:
    """Waits until the names in a folder are on the disk, where its file system can do that."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags, dir_fd=dir_fd)
    except PermissionError:
        return  # a folder that may be written but not read
    try:
        fsync(descriptor)
    except OSError as failure:
        if failure.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
