"""Trouble of the machine that a run is on: no space, no file descriptors, no memory, a disk that
fails.

Such an error says nothing about a model or a task. It is never a tool's answer to a model and never
the result of a
sample: it ends the run, which can be resumed when the cause is removed.
"""

from __future__ import annotations

import errno

from evaluator.errors import MachineError

_ADVICE: dict[int, str] = {
    errno.ENOSPC: "free space or choose another folder",
    errno.EDQUOT: "free space within your quota or choose another folder",
    errno.EFBIG: "free space or raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n) or lower the concurrency",
    errno.ENFILE: "the whole system has no file descriptor left: end other programs or raise its "
    "limit",
    errno.ENOMEM: "free memory or lower the concurrency",
    errno.EIO: "the disk or its file system fails: check it (dmesg) or choose another folder",
    errno.EROFS: "choose a folder on a file system that can be written",
}
_MAX_CAUSES = 20


def machine_trouble(error: BaseException) -> OSError | None:
    """The OSError among `error` and its causes that is this machine's own trouble; None if there is
    none.
    """
    seen: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        # Subclasses have error numbers of their own: 5 is EIO, and the number of a broken TLS
        # connection.
        if type(seen) is OSError and seen.errno in _ADVICE:
            return seen
        if seen is None:
            return None
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def machine_error(error: BaseException) -> MachineError | None:
    """`error` as a MachineError with advice, if this machine's own trouble is its cause; else
    None.
    """
    if isinstance(error, MachineError):
        return error
    trouble = machine_trouble(error)
    if trouble is None:
        return None
    found = MachineError(f"{error}; {advice_on(trouble)}")
    found.__cause__ = error
    return found


def advice_on(error: OSError) -> str:
    """What to do about a file that cannot be written or created because of `error`."""
    return _ADVICE.get(error.errno or 0, "choose another folder")
