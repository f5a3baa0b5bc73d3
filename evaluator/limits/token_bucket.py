"""Rates per minute: a token bucket."""

from __future__ import annotations

# A difference of one part in a million of an amount is rounding; no call waits for it.
_ROUNDING = 1e-6


class RateBucket:
    """A token bucket of `per_minute`, in any unit: in any `t` seconds it allows at most `t / 60 *
    per_minute` and one second's worth more (at least one whole unit). With `per_minute` inf it
    allows everything.

    An amount larger than the bucket is allowed when the bucket is full, and later amounts wait for
    it. Times are in seconds of one clock that does not go back.

    Source: Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986.
    """

    __slots__ = ("_at", "_full", "_level", "_per_second")

    def __init__(self, per_minute: float) -> None:
        self._per_second = per_minute / 60
        self._full = max(1.0, self._per_second)
        self._level = self._full
        self._at: float | None = None

    def ready(self, amount: float, now: float) -> float:
        """The time from which `amount` may be taken; `now`, if at once."""
        self._fill(now)
        needed = min(amount, self._full)
        missing = needed - self._level
        if missing <= needed * _ROUNDING:
            return now
        return now + missing / self._per_second

    def take(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def give(self, amount: float, now: float) -> None:
        """Returns what was taken and not used; a negative amount takes what was used in
        addition.
        """
        self._fill(now)
        self._level = min(self._full, self._level + amount)

    def _fill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self._per_second)
        if self._at is None or now > self._at:
            self._at = now
