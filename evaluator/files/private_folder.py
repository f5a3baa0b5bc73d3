"""Opens a folder that only this user can change: owned by the user, not a link, not writable by
everybody.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from evaluator import disk
from evaluator.errors import RecordError, RecordNotWritten
from evaluator.errors.machine import advice_on
from evaluator.files.open_below import FOLDER


def open_private_folder(path: Path, noun: str = "task folder", *, sync: bool = False) -> int:
    """A descriptor of the folder, which is created (mode 0700, with the folders above it) if it is
    missing. Messages call it `noun`. `sync`: the name of a new one is on the disk.

    Raises: RecordError, if it is a link, belongs to another user, is writable by everybody, or
    cannot be written.
    """
    try:
        try:
            descriptor = os.open(path, FOLDER)
        except FileNotFoundError:
            disk.make_folders(path, 0o700, sync=sync)
            descriptor = os.open(path, FOLDER)
    except OSError as error:
        if os.path.islink(path):
            raise RecordError(
                f"{path}: the {noun} is a link; name the folder that it leads to"
            ) from error
        raise RecordNotWritten(
            f"{path}: the {noun} cannot be opened or created: {error.strerror}; {advice_on(error)}"
        ) from error
    problem = _problem(path, os.fstat(descriptor))
    if problem is not None:
        os.close(descriptor)
        raise RecordNotWritten(f"{path}: the {noun} {problem}")
    return descriptor


def _problem(path: Path, status: os.stat_result) -> str | None:
    if status.st_uid != os.geteuid():
        return (
            f"belongs to user {status.st_uid}, not to this user ({os.geteuid()}); choose a "
            "folder of your own"
        )
    if status.st_mode & stat.S_IWOTH:
        return f"can be written by everybody; run: chmod o-w '{path}'"
    if os.access(path, os.W_OK | os.X_OK):
        return None
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "is on a read-only file system; choose another folder"
    return f"cannot be written; run: chmod u+wx '{path}', or choose another folder"


def not_writable(path: Path, error: OSError) -> RecordNotWritten:
    """The error for a task file that cannot be created at `path`."""
    return RecordNotWritten(
        f"{path}: no task file can be created: {error.strerror}; {advice_on(error)}"
    )
