"""How much a minute: a token bucket, which lets in what is due, and a meter, which says what went through."""

from __future__ import annotations

from math import exp

# One part in a million of an amount is rounding, not a wait.
_ROUNDING = 1e-6
_METER_S = 30.0


class RateBucket:
    """A token bucket of `per_minute`, in whatever unit: in any `t` seconds at most `t / 60 * per_minute` and one
    second's worth more (at least one whole unit) is let in.

    An amount that is larger than the bucket is let in when the bucket is full, and what follows waits for it.
    Times are in seconds of one clock that does not go back.

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
        return now if missing <= needed * _ROUNDING else now + missing / self._per_second

    def take(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def give(self, amount: float, now: float) -> None:
        """Gives back what was taken and not used; a negative amount is what was used besides."""
        self._fill(now)
        self._level = min(self._full, self._level + amount)

    def _fill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self._per_second)
        if self._at is None or now > self._at:
            self._at = now


class Meter:
    """What went through in the last half minute or so, as a rate per minute: older things count less and less."""

    __slots__ = ("_at", "_began", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = self._began = 0.0

    def add(self, amount: float, now: float) -> None:
        if not self._sum:
            self._began = self._at = now
        self._sum = self._sum * exp((self._at - now) / _METER_S) + amount
        self._at = now

    def per_minute(self, now: float) -> float:
        """0 before anything was added; of a time shorter than a second as of one second."""
        if not self._sum:
            return 0.0
        seen = max(1.0, now - self._began)
        return self._sum * exp((self._at - now) / _METER_S) / (_METER_S * (1 - exp(-seen / _METER_S))) * 60
