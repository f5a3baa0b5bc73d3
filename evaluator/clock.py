"""The clocks of this process. No other module reads a clock or waits for a time.

Call them through the module (`clock.monotonic()`), so that tests and simulations can replace them.

| clock | for | jumps | stops during suspend | comparable between processes |
|---|---|---|---|---|
| `wall`, `wall_ns`, `now` | what people read | yes | no | yes |
| `monotonic` | durations and limits within one process | no | on Linux, yes | no |
| `since_boot` | leases that other processes read | no | no (macOS: yes) | until the next boot |
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime

__all__ = [
    "cpu",
    "file_tick_s",
    "monotonic",
    "now",
    "pause",
    "since_boot",
    "sleep",
    "wall",
    "wall_ns",
]

wall = time.time
"""Seconds since 1970. Never decides how long something has taken or whether it has ended."""

wall_ns = time.time_ns
"""Nanoseconds since 1970, to compare with the times of files."""

monotonic = time.monotonic
"""Seconds since an unknown moment."""

sleep = asyncio.sleep
"""Waits for that number of seconds of `monotonic`; other tasks of the event loop run meanwhile."""

pause = time.sleep
"""Waits in a thread for that number of seconds of `monotonic`."""


cpu = time.thread_time
"""Seconds of computing of this thread. It stands still while the thread waits."""


def now() -> datetime:
    """The time of `wall` in UTC."""
    return datetime.fromtimestamp(wall(), UTC)


def since_boot() -> float:
    """Seconds since this machine was started, with the time that it was suspended.

    Compare two values only if the boot id is the same. Source: clock_gettime(2), CLOCK_BOOTTIME.
    """
    return time.clock_gettime(_SINCE_BOOT)


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def file_tick_s() -> float:
    """How far the times of files may lag behind `wall`, in seconds: a tick of the kernel.

    Source: clock_getres(2), CLOCK_REALTIME_COARSE, for which Python has no name.
    """
    if sys.platform != "linux":
        return 0.02
    return max(time.clock_getres(_REALTIME_COARSE), 0.004)


_REALTIME_COARSE = 5
