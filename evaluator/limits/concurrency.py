"""A limit on concurrent calls that adapts to the capacity of an endpoint.

It begins at its maximum. An overload (429, 503, 529) halves it, at most once a round trip: calls
that began before a change say nothing about its effect. While calls use all of it and nothing goes
wrong it grows again, by one in a round trip.

Where answers get slower the limit shrinks by a fifth, at most down to half of the most. Answers are
compared with answers of about the same length, by the median of sixteen, and with the smallest such
median of recent times: a long answer is not a slow one, and one slow answer is not a trend.

Source: congestion avoidance of TCP (RFC 5681), without its timers; the signal of growing latency as
in TCP Vegas (Brakmo, Peterson, 1995).
"""

from __future__ import annotations

from statistics import median

OVERLOAD = 0.5
SLOWER = 0.8
# A median of twice the smallest, and half a second above it, is the effect of a queue, not of
# chance.
_TOLERANCE = 2.0
_TOLERANCE_S = 0.5
_WINDOW = 16
# Within this time the smallest median rises to the later ones: latencies of long ago are not a
# measure.
_FORGET_S = 900.0


class ConcurrencyLimit:
    """The limit of one model at one endpoint, from 1 to `most`. Times are in seconds of one
    clock.
    """

    __slots__ = ("_changed_at", "_latencies", "_most", "_smallest", "_value")

    def __init__(self, most: int) -> None:
        self._most = self._value = float(most)
        self._changed_at = float("-inf")
        self._latencies: dict[int, list[float]] = {}
        self._smallest: dict[int, tuple[float, float]] = {}

    @property
    def value(self) -> int:
        """The number of calls that may run at once."""
        return int(self._value)

    def answered(
        self,
        began: float,
        now: float,
        latency_s: float,
        output_tokens: int | None,
        *,
        is_used: bool,
    ) -> None:
        """Counts an answer to a call that began at `began`. `is_used`: as many calls were running
        as may.
        """
        if began < self._changed_at:
            return
        if self._is_slower(latency_s, output_tokens, now=now):
            self._shrink_slowly(now)
        elif is_used:
            self._value = min(self._most, self._value + 1.0 / self._value)

    def overloaded(self, began: float, now: float) -> None:
        """Counts an overload that the endpoint reported."""
        if began >= self._changed_at:
            self._shrink(self._value * OVERLOAD, now)

    def timed_out(self, began: float, now: float) -> None:
        """Counts a call without an answer in time, as the slowest answer possible."""
        if began >= self._changed_at:
            self._shrink_slowly(now)

    def _shrink_slowly(self, now: float) -> None:
        # Slow answers alone do not shrink it below half of the most: they may have other causes
        # than these calls.
        self._shrink(max(self._value * SLOWER, min(self._most / 2, self._value)), now)

    def _shrink(self, value: float, now: float) -> None:
        self._value = max(1.0, value)
        self._changed_at = now
        self._latencies.clear()

    def _is_slower(self, latency_s: float, output_tokens: int | None, now: float) -> bool:
        length = (output_tokens or 0).bit_length()
        window = self._latencies.setdefault(length, [])
        window.append(latency_s)
        if len(window) < _WINDOW:
            return False
        typical = median(window)
        window.clear()
        smallest, at = self._smallest.get(length, (typical, now))
        smallest = min(typical, smallest + (typical - smallest) * min(1.0, (now - at) / _FORGET_S))
        self._smallest[length] = smallest, now
        return typical > smallest * _TOLERANCE and typical > smallest + _TOLERANCE_S
