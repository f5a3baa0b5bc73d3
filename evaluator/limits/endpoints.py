"""One model at one endpoint: its limits on concurrent calls and on rates, and its measurements.

A limit on concurrent calls that adapts to the capacity of an endpoint.
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

import asyncio
from collections import OrderedDict
from math import inf
from urllib.parse import urlsplit

from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.call_limiter import CallUsage, Permit, PlannedCall

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

    def change(self, per_minute: float, now: float) -> None:
        """Sets another rate, from `now` on."""
        self._fill(now)
        self._per_second = per_minute / 60
        self._full = max(1.0, self._per_second)
        self._level = min(self._level, self._full)

    def _fill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self._per_second)
        if self._at is None or now > self._at:
            self._at = now


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

    def __init__(self, most: int) -> None:
        # The number of calls that may run at once.
        self.value = most
        self._most = self._value = float(most)
        self._changed_at = float("-inf")
        self._latencies: dict[int, list[float]] = {}
        self._smallest: dict[int, tuple[float, float]] = {}

    def change(self, most: int) -> None:
        """Sets another maximum; a limit that was not reduced follows it."""
        if self._value == self._most:
            self._value = float(most)
        self._most = float(most)
        self._value = min(self._value, self._most)
        self.value = int(self._value)

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
            self.value = int(self._value)

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
        self.value = int(self._value)
        self._changed_at = now
        self._latencies.clear()

    def _is_slower(self, latency_s: float, output_tokens: int | None, now: float) -> bool:
        length = (output_tokens or 0).bit_length()
        window = self._latencies.setdefault(length, [])
        window.append(latency_s)
        if len(window) < _WINDOW:
            return False
        # The median. `statistics` imports fractions and decimals.
        window.sort()
        typical = (window[_WINDOW // 2 - 1] + window[_WINDOW // 2]) / 2
        window.clear()
        smallest, at = self._smallest.get(length, (typical, now))
        smallest = min(typical, smallest + (typical - smallest) * min(1.0, (now - at) / _FORGET_S))
        self._smallest[length] = smallest, now
        return typical > smallest * _TOLERANCE and typical > smallest + _TOLERANCE_S


_OVERLOADED = frozenset({429, 503, 529})
# The first guess at the length of answers; the answers correct it.
_GUESSED_OUTPUT_TOKENS = 256.0


@frozen(kw_only=True)
class Pace:
    """Limits of one model at one endpoint: calls at once, and rates per minute; a rate of None is
    no limit.

    Concurrency adapts from 1 to `concurrency`, where it begins. Tokens are input and output
    together. The options of a batch check the values.
    """

    concurrency: int = 16
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


@frozen
class EndpointState:
    """One model at one endpoint, for display. `held_s`: how long a `Retry-After` still holds the
    endpoint, else 0. `connections`: how many a process opens to the endpoint at most.
    """

    label: str
    endpoint: str
    in_flight: int
    limit: int
    waiting: int
    held_s: float
    connections: int | None = None


def host_of(endpoint: str) -> str:
    """The host and port of an endpoint that is an address; else the endpoint."""
    return urlsplit(endpoint).netloc.rpartition("@")[2] or endpoint


@dataclass(slots=True)
class CallInFlight:
    """A permitted call: when it began, and what it took of the rates: requests, and the tokens that
    it was expected to use.
    """

    call: PlannedCall
    endpoint: Endpoint
    began: float
    requests: int = 0
    tokens: float = 0.0


class Endpoint:
    """One model at one endpoint: its limits, the calls in flight and those that wait, in order, for
    a slot.

    Decides without waiting and without a clock: times are seconds of one clock that does not go
    back.
    """

    def __init__(self, label: str, name: str, pace: Pace) -> None:
        self._label = label
        self._name = name
        self._limit = ConcurrencyLimit(pace.concurrency)
        self._has_rates = pace.requests_per_minute is not None or pace.tokens_per_minute is not None
        self._request_bucket = RateBucket(pace.requests_per_minute or inf)
        self._token_bucket = RateBucket(pace.tokens_per_minute or inf)
        self._mean_output: float | None = None
        self.in_flight = 0
        self.connections: int | None = None
        self.waiting: OrderedDict[asyncio.Future[Permit], PlannedCall] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None

    def change(self, pace: Pace, now: float) -> None:
        """Sets other limits, from `now` on."""
        self._limit.change(pace.concurrency)
        self._has_rates = pace.requests_per_minute is not None or pace.tokens_per_minute is not None
        self._request_bucket.change(pace.requests_per_minute or inf, now)
        self._token_bucket.change(pace.tokens_per_minute or inf, now)

    @property
    def limit(self) -> int:
        """The number of calls that may run at once now."""
        return self._limit.value

    @property
    def has_free_place(self) -> bool:
        """Whether a further call could begin now, and no rate limits calls."""
        return not self._has_rates and self.in_flight < self._limit.value

    def earliest(self, call: PlannedCall, now: float) -> float:
        """The time from which `call` may begin: at most `now`, if at once; inf, if another call has
        to end first.
        """
        if self.in_flight >= self._limit.value:
            return inf
        if not self._has_rates:
            return now
        begins_at = self._request_bucket.ready(1, now)
        return max(begins_at, self._token_bucket.ready(self._expected_tokens(call), now))

    def begin(self, call: PlannedCall, now: float) -> CallInFlight:
        self.in_flight += 1
        self.connections = call.connections
        if not self._has_rates:
            return CallInFlight(call, self, began=now)
        tokens = self._expected_tokens(call)
        self._request_bucket.take(1, now)
        self._token_bucket.take(tokens, now)
        return CallInFlight(call, self, began=now, requests=1, tokens=tokens)

    def end(
        self,
        call: CallInFlight,
        usage: Usage | CallUsage | None,
        error: ProviderError | None,
        latency_s: float,
        now: float,
    ) -> None:
        """Counts the end of `call`, as reported to `Permit.release`."""
        is_full = self.in_flight >= self._limit.value
        self.in_flight -= 1
        if usage is not None and not usage.turns:
            self._request_bucket.give(call.requests, now)
            self._token_bucket.give(call.tokens, now)
            return
        if usage is not None:
            self._count(call, usage, now=now)
            self._limit.answered(call.began, now, latency_s, usage.output_tokens, is_used=is_full)
        elif error is not None:
            self._fail(call, error, now=now)

    def renew(self, call: CallInFlight, usage: CallUsage, latency_s: float, now: float) -> bool:
        """Counts the end of `call`, as `end`, and begins it again. Returns: whether more calls run
        than may from now on.
        """
        if self._has_rates or not usage.turns:
            self.end(call, usage, None, latency_s, now)
            begun = self.begin(call.call, now)
            call.requests = begun.requests
            call.tokens = begun.tokens
        else:
            is_full = self.in_flight >= self._limit.value
            self._count(call, usage, now=now)
            self._limit.answered(call.began, now, latency_s, usage.output_tokens, is_used=is_full)
        call.began = now
        return self.in_flight > self._limit.value

    def _expected_tokens(self, call: PlannedCall) -> float:
        """An estimate of the tokens of `call`: its answer is expected to be as long as earlier
        ones.
        """
        if self._mean_output is None:
            output = _GUESSED_OUTPUT_TOKENS
        else:
            output = self._mean_output
        if call.output_tokens is not None:
            output = min(output, call.output_tokens)
        return (call.input_tokens or 0) + output

    def _count(self, call: CallInFlight, usage: Usage | CallUsage, now: float) -> None:
        output = usage.output_tokens
        if output is not None:
            if self._mean_output is None:
                mean = float(output)
            else:
                mean = self._mean_output
            self._mean_output = mean + (output - mean) / 16
        if self._has_rates and usage.input_tokens is not None and output is not None:
            self._token_bucket.give(call.tokens - usage.input_tokens - output, now)

    def _fail(self, call: CallInFlight, error: ProviderError, now: float) -> None:
        if not error.maybe_billed:
            self._token_bucket.give(call.tokens, now)
        if error.retryable and (error.kind == "rate_limit" or error.status in _OVERLOADED):
            self._limit.overloaded(call.began, now)
        elif error.kind == "timeout":
            self._limit.timed_out(call.began, now)

    def state(self, held_s: float) -> EndpointState:
        return EndpointState(
            self._label,
            self._name,
            in_flight=self.in_flight,
            limit=self._limit.value,
            waiting=len(self.waiting),
            held_s=held_s,
            connections=self.connections,
        )
