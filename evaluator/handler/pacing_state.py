"""What is decided about calls of models, without waiting and without a clock: who may enter now, or from when.

Concurrency and rates are kept for each model of each endpoint; a `Retry-After` holds the whole endpoint; the budget
is the batch's. Whoever waits on behalf of callers (`pacing.Pacer` in an event loop, another in a process of its own)
asks `earliest`, then says `entered` and `left`, each with the time: seconds of one clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from evaluator.errors import ConfigurationError, NotLetIn, ProviderError
from evaluator.handler.gate import PlannedCall
from evaluator.handler.pacing_budget import BatchBudget, SharedBudget
from evaluator.handler.pacing_concurrency import ConcurrencyLimit
from evaluator.handler.pacing_rates import Meter, RateBucket
from evaluator.results import Usage

_OVERLOADED = frozenset({429, 503, 529})
# A first guess at how long answers are; those that come correct it.
_GUESSED_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many calls at once and how much a minute, of one model at one endpoint; a rate of None is no limit.

    Concurrency begins at `start` and adapts within `least` and `most`; all three equal fix it. Tokens are input and
    output together.

    Raises: ConfigurationError, for what is not in that order, or a rate that is not above 0.
    """

    start: int = 16
    least: int = 1
    most: int = 256
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        if any(type(value) is not int for value in (self.start, self.least, self.most)):
            raise ConfigurationError(f"concurrency is {self.start!r}, {self.least!r}, {self.most!r}, expected integers")
        if not 1 <= self.least <= self.start <= self.most:
            raise ConfigurationError(
                f"concurrency starts at {self.start}, least {self.least}, most {self.most}: expected "
                "1 <= least <= start <= most"
            )
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 0 < value < inf):
                raise ConfigurationError(f"{name} is {value!r}, expected a number above 0")

    @classmethod
    def fixed(cls, concurrency: int) -> Pace:
        """Always as many at once."""
        return cls(start=concurrency, least=concurrency, most=concurrency)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One model at one endpoint, for display.

    `requests_per_minute` and `tokens_per_minute` are those of the last half minute or so; `requests` and
    `overloads` (429, 503, 529) count from the beginning; `overloaded_s` is how long ago the last one was (None:
    there was none), `held_s` how long a `Retry-After` still holds the endpoint (0: it does not).
    """

    label: str
    endpoint: str
    in_flight: int
    limit: int
    waiting: int
    requests: int
    requests_per_minute: float
    tokens_per_minute: float
    overloads: int
    overloaded_s: float | None
    held_s: float


class _Lane:
    __slots__ = (
        "endpoint", "in_flight", "label", "limit", "mean_output", "overloaded_at", "overloads", "request_bucket",
        "request_meter", "requests", "token_bucket", "token_meter",
    )  # fmt: skip

    def __init__(self, label: str, endpoint: str, pace: Pace) -> None:
        self.label, self.endpoint = label, endpoint
        self.limit = ConcurrencyLimit(pace.start, pace.least, pace.most)
        requests, tokens = pace.requests_per_minute, pace.tokens_per_minute
        self.request_bucket = None if requests is None else RateBucket(requests)
        self.token_bucket = None if tokens is None else RateBucket(tokens)
        self.request_meter, self.token_meter = Meter(), Meter()
        self.mean_output: float | None = None
        self.in_flight = self.requests = self.overloads = 0
        self.overloaded_at: float | None = None

    def expected_tokens(self, call: PlannedCall) -> float:
        """About what `call` will use: its answer about as long as those that came."""
        usual = _GUESSED_OUTPUT_TOKENS if self.mean_output is None else self.mean_output
        output = usual if call.output_tokens is None else min(usual, call.output_tokens)
        return (call.input_tokens or 0) + output


@dataclass(slots=True)
class Entry:
    """A call that is under way."""

    call: PlannedCall
    lane: _Lane
    began: float
    tokens: float


class PacingState:
    """The decisions. `pace` holds for every model that `by_model` has no other for."""

    def __init__(
        self, pace: Pace | None = None, *, budget: BatchBudget | None = None, by_model: Mapping[str, Pace] | None = None
    ) -> None:
        self._pace = pace or Pace()
        self._by_model = dict(by_model or {})
        self.budget = SharedBudget(budget or BatchBudget())
        self.refused: NotLetIn | None = None
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._held: dict[str, float] = {}

    def earliest(self, call: PlannedCall, now: float) -> float:
        """The time from which `call` may enter: at most `now`, if at once; inf, if when another call has left.

        A time in the future is when to ask again: it is no promise.

        Raises: NotLetIn, if the budget does not let it in, now or later. The first is kept in `refused`.
        """
        try:
            return self._earliest(call, now)
        except NotLetIn as error:
            if self.refused is None:
                self.refused = error
            raise

    def refuse(self, reason: str) -> NotLetIn:
        """That nobody is to wait any more; kept in `refused`, if it is the first."""
        error = NotLetIn("time", 0.0, 0.0, reason)
        if self.refused is None:
            self.refused = error
        return error

    def check_rest(self, until: float, now: float) -> None:
        """Raises: NotLetIn, where a call that waits `until` then could not begin in the batch's time."""
        try:
            self.budget.check_time(until, now)
        except NotLetIn as error:
            if self.refused is None:
                self.refused = error
            raise

    def _earliest(self, call: PlannedCall, now: float) -> float:
        budget, lane = self.budget, self._lane(call)
        budget.check_time(now, now)
        if not budget.fits(call) or lane.in_flight >= lane.limit.value:
            return budget.ends_at(now)
        begins_at = self._held.get(call.endpoint, now)
        if lane.request_bucket is not None:
            begins_at = max(begins_at, lane.request_bucket.ready(1, now))
        if lane.token_bucket is not None:
            begins_at = max(begins_at, lane.token_bucket.ready(lane.expected_tokens(call), now))
        if begins_at > now:
            budget.check_time(begins_at, now)
        return begins_at

    def entered(self, call: PlannedCall, now: float) -> Entry:
        """Takes what `call` needs; it is under way until `left`."""
        lane = self._lane(call)
        tokens = lane.expected_tokens(call) if lane.token_bucket is not None else 0.0
        lane.in_flight += 1
        self.budget.reserve(call)
        if lane.request_bucket is not None:
            lane.request_bucket.take(1, now)
        if lane.token_bucket is not None:
            lane.token_bucket.take(tokens, now)
        return Entry(call, lane, now, tokens)

    def left(
        self, entry: Entry, usage: Usage | None, error: ProviderError | None, latency_s: float, now: float
    ) -> None:
        """How the call of `entry` ended, as `Passage.leave` was told."""
        lane = entry.lane
        is_used = lane.in_flight >= lane.limit.value
        lane.in_flight -= 1
        self.budget.settle(entry.call, usage, error)
        if usage is not None and not usage.turns:
            if lane.request_bucket is not None:
                lane.request_bucket.give(1, now)
            self._correct(entry, 0, now)
            return
        lane.requests += 1
        lane.request_meter.add(1, now)
        if usage is not None:
            self._count(entry, usage, now)
            lane.limit.answered(entry.began, now, latency_s, usage.output_tokens, is_used=is_used)
        elif error is not None:
            self._failed(entry, error, now)

    def _count(self, entry: Entry, usage: Usage, now: float) -> None:
        lane, output = entry.lane, usage.output_tokens
        if output is not None:
            mean = lane.mean_output
            lane.mean_output = float(output) if mean is None else mean + (output - mean) / 16
        if usage.input_tokens is not None and output is not None:
            used = usage.input_tokens + output
            lane.token_meter.add(used, now)
            self._correct(entry, used, now)

    def _failed(self, entry: Entry, error: ProviderError, now: float) -> None:
        lane, endpoint = entry.lane, entry.call.endpoint
        if not error.maybe_billed:
            self._correct(entry, 0, now)
        if error.retry_after_s is not None and error.retryable:
            self._held[endpoint] = max(self._held.get(endpoint, now), now + error.retry_after_s)
        if error.retryable and (error.kind == "rate_limit" or error.status in _OVERLOADED):
            lane.overloads += 1
            lane.overloaded_at = now
            lane.limit.overloaded(entry.began, now)
        elif error.kind == "timeout":
            lane.limit.timed_out(entry.began, now)

    def _correct(self, entry: Entry, used: float, now: float) -> None:
        """Puts what was used in the place of what was expected."""
        bucket = entry.lane.token_bucket
        if bucket is not None:
            bucket.give(entry.tokens - used, now)

    def samples_at_once(self) -> int:
        """How many samples may sensibly run at once: half as many again as calls may, since a sample is not always
        calling, and a few must wait for the limit to be tried."""
        limits = [lane.limit.value for lane in self._lanes.values()] or [self._pace.start]
        return sum(limits) + (sum(limits) + 1) // 2

    def states(self, now: float, waiting: Mapping[tuple[str, str], int]) -> list[EndpointState]:
        """Each model of each endpoint that was asked for, with how many wait by label and endpoint."""
        return [
            EndpointState(
                lane.label, lane.endpoint, lane.in_flight, lane.limit.value, waiting.get(key, 0), lane.requests,
                lane.request_meter.per_minute(now), lane.token_meter.per_minute(now), lane.overloads,
                None if lane.overloaded_at is None else now - lane.overloaded_at,
                max(0.0, self._held.get(lane.endpoint, now) - now),
            )
            for key, lane in self._lanes.items()
        ]  # fmt: skip

    def _lane(self, call: PlannedCall) -> _Lane:
        key = call.label, call.endpoint
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(*key, self._by_model.get(call.label, self._pace))
        return lane
