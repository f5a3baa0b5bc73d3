"""One model at one endpoint: its limits on concurrent calls and on rates, and its measurements."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from urllib.parse import urlsplit

from evaluator.errors import ProviderError
from evaluator.errors.results import Usage
from evaluator.limits.call_limiter import Permit, PlannedCall
from evaluator.limits.concurrency import ConcurrencyLimit
from evaluator.limits.token_bucket import RateBucket

_OVERLOADED = frozenset({429, 503, 529})
# The first guess at the length of answers; the answers correct it.
_GUESSED_OUTPUT_TOKENS = 256.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Limits of one model at one endpoint: calls at once, and rates per minute; a rate of None is
    no limit.

    Concurrency adapts from 1 to `concurrency`, where it begins. Tokens are input and output
    together. The options of a batch check the values.
    """

    concurrency: int = 16
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One model at one endpoint, for display. `held_s`: how long a `Retry-After` still holds the
    endpoint, else 0.
    """

    label: str
    endpoint: str
    in_flight: int
    limit: int
    waiting: int
    held_s: float


def host_of(endpoint: str) -> str:
    """The host and port of an endpoint that is an address; else the endpoint."""
    return urlsplit(endpoint).netloc.rpartition("@")[2] or endpoint


@dataclass(slots=True)
class CallInFlight:
    """A permitted call: when it began, and how many tokens it was expected to use."""

    call: PlannedCall
    endpoint: Endpoint
    began: float
    tokens: float


class Endpoint:
    """One model at one endpoint: its limits, the calls in flight and those that wait, in order, for
    a slot.

    Decides without waiting and without a clock: times are seconds of one clock that does not go
    back.
    """

    __slots__ = (
        "_has_rates",
        "_label",
        "_limit",
        "_mean_output",
        "_name",
        "_request_bucket",
        "_token_bucket",
        "in_flight",
        "timer",
        "waiting",
    )

    def __init__(self, label: str, name: str, pace: Pace) -> None:
        self._label = label
        self._name = name
        self._limit = ConcurrencyLimit(pace.concurrency)
        self._has_rates = pace.requests_per_minute is not None or pace.tokens_per_minute is not None
        self._request_bucket = RateBucket(pace.requests_per_minute or inf)
        self._token_bucket = RateBucket(pace.tokens_per_minute or inf)
        self._mean_output: float | None = None
        self.in_flight = 0
        self.waiting: OrderedDict[asyncio.Future[Permit], PlannedCall] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """The number of calls that may run at once now."""
        return self._limit.value

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
        if not self._has_rates:
            return CallInFlight(call, self, began=now, tokens=0.0)
        tokens = self._expected_tokens(call)
        self._request_bucket.take(1, now)
        self._token_bucket.take(tokens, now)
        return CallInFlight(call, self, began=now, tokens=tokens)

    def end(
        self,
        call: CallInFlight,
        usage: Usage | None,
        error: ProviderError | None,
        latency_s: float,
        now: float,
    ) -> None:
        """Counts the end of `call`, as reported to `Permit.release`."""
        is_full = self.in_flight >= self._limit.value
        self.in_flight -= 1
        if usage is not None and not usage.turns:
            self._request_bucket.give(1, now)
            self._token_bucket.give(call.tokens, now)
            return
        if usage is not None:
            self._count(call, usage, now=now)
            self._limit.answered(call.began, now, latency_s, usage.output_tokens, is_used=is_full)
        elif error is not None:
            self._fail(call, error, now=now)

    def _expected_tokens(self, call: PlannedCall) -> float:
        """An estimate of the tokens of `call`: its answer is expected to be as long as earlier
        ones.
        """
        if self._mean_output is None:
            usual = _GUESSED_OUTPUT_TOKENS
        else:
            usual = self._mean_output
        if call.output_tokens is None:
            output = usual
        else:
            output = min(usual, call.output_tokens)
        return (call.input_tokens or 0) + output

    def _count(self, call: CallInFlight, usage: Usage, now: float) -> None:
        output = usage.output_tokens
        if output is not None:
            mean = self._mean_output
            if mean is None:
                self._mean_output = float(output)
            else:
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
        )
