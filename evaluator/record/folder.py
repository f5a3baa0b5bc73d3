"""The folder of task files, opened only where it can be trusted: ours, no link, not open to everybody."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from evaluator.errors import RecordError


def checked_folder(path: Path) -> int:
    """A descriptor of the folder, which is made (0700) if it is missing.

    Raises: RecordError, if it is a link, belongs to somebody else, or can be written by everybody or not at all.
    """
    try:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700, parents=True)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise RecordError(f"{path}: the task folder is a link; name the folder that it leads to") from error
        raise unusable(path, error) from error
    info = os.fstat(fd)
    problem = None
    if info.st_uid != os.geteuid():
        problem = f"belongs to user {info.st_uid}, not to this one ({os.geteuid()}); choose a folder of your own"
    elif info.st_mode & stat.S_IWOTH:
        problem = f"can be written by everybody; run: chmod o-w '{path}'"
    elif not os.access(path, os.W_OK | os.X_OK):
        problem = "is on a read-only file system; choose another folder"
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            problem = f"cannot be written; run: chmod u+wx '{path}', or choose another folder"
    if problem is not None:
        os.close(fd)
        raise RecordError(f"{path}: the task folder {problem}")
    return fd


def unusable(path: Path, error: OSError) -> RecordError:
    """The error that nothing can be written at `path`."""
    return RecordError(f"{path}: no task file can be created: {error.strerror}; free space or choose another folder")
