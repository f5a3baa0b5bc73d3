"""One timer of an event loop for many deadlines.

Nearly no deadline is reached: most are minutes away, and a stream moves its own at each piece. With
a timer for each, the event loop would make, sort and throw away them all.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from math import inf
from typing import Protocol

__all__ = ["Alarm", "Alarms", "alarms"]

# A timer that fired looks at all deadlines: not for each of many that end one after the other.
_STEP_S = 0.005


class Alarm(Protocol):
    """What has a deadline."""

    def ring(self) -> None:
        """The deadline is reached."""
        ...


class Alarms:
    """The deadlines of one event loop, in seconds of its clock. For use in its thread."""

    __slots__ = ("_at", "_context", "_deadlines", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._deadlines: dict[Alarm, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # No deadline is earlier. The one that the timer was set for may be over, or moved.
        self._at = inf
        # The context of the task that sets the timer would live as long as the timer.
        self._context = Context()

    def set(self, alarm: Alarm, at: float) -> None:
        """Calls `alarm.ring` once at the time `at`, or up to 5 ms later; replaces its earlier
        deadline.
        """
        self._deadlines[alarm] = at
        if at < self._at:
            self._set_timer(at)

    def clear(self, alarm: Alarm) -> None:
        """`alarm` has no deadline any more, if it had one. The timer stays set for the next one."""
        self._deadlines.pop(alarm, None)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        if at < inf:
            self._timer = self.loop.call_at(at, self._ring, context=self._context)

    def _ring(self) -> None:
        # The loop may be early by the resolution of its clock.
        now = max(self.loop.time(), self._at)
        due = [alarm for alarm, at in self._deadlines.items() if at <= now]
        for alarm in due:
            del self._deadlines[alarm]
        self._set_timer(max(min(self._deadlines.values(), default=inf), now + _STEP_S))
        due.reverse()
        try:
            while due:
                due.pop().ring()
        finally:
            # An exception is the event loop's; the others ring at once.
            for alarm in reversed(due):
                if alarm not in self._deadlines:
                    self.set(alarm, now)


_of_loops: dict[asyncio.AbstractEventLoop, Alarms] = {}


def alarms() -> Alarms:
    """The deadlines of the running event loop."""
    loop = asyncio.get_running_loop()
    return _of_loops.get(loop) or _new(loop)


def _new(loop: asyncio.AbstractEventLoop) -> Alarms:
    # Other threads may have event loops too.
    for other in list(_of_loops):
        if other.is_closed():
            _of_loops.pop(other, None)
    made = _of_loops[loop] = Alarms(loop)
    return made
