"""The limit on open files of this process: raised for a batch, and the concurrency that fits it.

The soft limit is 256 on macOS and 1,024 on most Linux systems. A process may raise it up to the
hard limit.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

EACH_SAMPLE = 8
"""Descriptors of a sample in flight: its task file, a connection, those of a subtask or a judge, a
script's pipes.
"""
RESERVED = 64
"""Descriptors for everything else: folders, the results, the cache, libraries that are imported,
programs started.
"""


def fit_concurrency(wanted: int) -> int:
    """Raises the soft limit of open files as far as `wanted` concurrent samples need it.

    Returns: `wanted`, or how many samples fit if the hard limit is lower, at least 1.
    """
    used = _open_files() + RESERVED
    needed = used + wanted * EACH_SAMPLE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _allows(soft, needed):
        return wanted
    target = needed if _allows(hard, needed) else hard
    with suppress(ValueError, OSError):  # some systems allow less than their hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    if _allows(soft, needed):
        return wanted
    return max(1, (soft - used) // EACH_SAMPLE)


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _open_files() -> int:
    """How many descriptors this process has open; 32 where the system does not say."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 32
