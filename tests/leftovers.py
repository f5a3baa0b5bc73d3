"""What a test leaves: open descriptors, children, and other processes.

Tests compare sets with `<=`: what an earlier test left may go at any moment, when the garbage collector runs.
"""

from __future__ import annotations

import os
from pathlib import Path


def descriptors() -> set[tuple[int, int, int]]:
    """The open descriptors, each with the device and the inode of its file."""
    found: set[tuple[int, int, int]] = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(number)
        except OSError:  # that of the listing itself
            continue
        found.add((number, status.st_dev, status.st_ino))
    return found


def children() -> set[int]:
    """The children, living or not reaped."""
    found: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(b")")[2].split()[1]) == os.getpid():
            found.add(int(name))
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
