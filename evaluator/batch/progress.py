"""What is counted of results while a batch runs, the progress at one moment, and what the rest is
expected to take.

Several processes may count parts of the results; their totals are merged. Snapshots contain ids,
counts and kinds of errors, never text of a model or a row.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, field
from math import sqrt
from typing import Any

from evaluator import clock
from evaluator.batch.abandoned import RecordedUse
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors.messages import amount, visible
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import dataclass, frozen

TICK_S = 0.5
"""A snapshot is taken every so many seconds."""
EXPECTED_FROM = 20
"""After so many results the rest of the batch is expected with an interval."""
_RATE_OVER_S = 30.0
_Z = 1.96
_ERROR = Verdict.ERROR.value


@frozen
class Remaining:
    """What the samples that are left are expected to take, with a 95 % prediction interval."""

    mean: float
    low: float
    high: float


class Spread:
    """Mean and variance of values that arrive one at a time.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products",
    Technometrics 4(3), 1962.
    """

    __slots__ = ("_count", "_mean", "_squares")

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        step = value - self._mean
        self._mean += step / self._count
        self._squares += step * (value - self._mean)

    def state(self) -> tuple[int, float, float]:
        """What `merge` takes."""
        return self._count, self._mean, self._squares

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Adds the values that another Spread has got.

        Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American
        Statistician 37(3), 1983.
        """
        both = self._count + count
        if not both:
            return
        step = mean - self._mean
        self._squares += squares + step * step * self._count * count / both
        self._mean += step * count / both
        self._count = both

    def sum_of(self, further: int) -> Remaining | None:
        """The sum of `further` values like these; None while there are fewer than EXPECTED_FROM.

        The samples are taken as drawn at random: rows that are sorted by length mislead it.
        """
        if self._count < EXPECTED_FROM:
            return None
        variance = self._squares / (self._count - 1)
        # The values to come vary, and so does the mean that they are expected to have.
        half = _Z * sqrt(variance * further * (1 + further / self._count))
        mean = self._mean * further
        return Remaining(mean, max(0.0, mean - half), mean + half)


@dataclass(slots=True)
class Totals:
    """What is counted of results. `ran` is their number.

    `_known` is the sum of the known figures of their usage, `_unknown` names the figures that are
    unknown for at least one of them.
    """

    ran: int = 0
    verdicts: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    cached_calls: int = 0
    interrupted_calls: int = 0
    _known: dict[str, float] = field(default_factory=dict[str, float])
    _unknown: set[str] = field(default_factory=set[str])
    _costs: Spread = field(default_factory=Spread)
    _durations: Spread = field(default_factory=Spread)

    def add(self, result: Mapping[str, Any]) -> None:
        """Counts a result, as JSON (see `SampleResult.to_dict`)."""
        self.ran += 1
        verdict = result["verdict"]
        self.verdicts[verdict] += 1
        failure = result["failure"]
        if verdict == _ERROR:
            self.errors["a scorer failed" if failure is None else failure["kind"]] += 1
        usage = result["usage"]
        cost = usage.get("cost_usd") or 0.0
        self._use(usage)
        for score in result["scores"].values():
            if "usage" in score:
                usage = score["usage"]
                cost += usage.get("cost_usd") or 0.0
                self._use(usage)
        self._costs.add(cost)
        self._durations.add(result["duration_s"])
        self.cached_calls += result["cached_calls"]
        self.interrupted_calls += result["interrupted_calls"]

    def _use(self, usage: Mapping[str, float | None]) -> None:
        known = self._known
        for name, figure in usage.items():
            if figure is None:
                self._unknown.add(name)
                figure = 0
            known[name] = known.get(name, 0) + figure

    def _used(self) -> dict[str, float | None]:
        """The sum of the usage, None where a part of it is unknown."""
        used: dict[str, float | None] = {**self._known}
        used.update(dict.fromkeys(self._unknown))
        return used

    def state(self) -> tuple[Any, ...]:
        """What `merge` takes, as plain data."""
        return (
            self.ran,
            dict(self.verdicts),
            dict(self.errors),
            self.cached_calls,
            self.interrupted_calls,
            self._used(),
            dict(self._known),
            self._costs.state(),
            self._durations.state(),
        )

    def merge(self, state: tuple[Any, ...]) -> None:
        """Adds the results that other Totals have counted."""
        ran, verdicts, errors, cached, interrupted, used, known, costs, durations = state
        self.ran += ran
        for verdict, count in verdicts.items():
            self.verdicts[verdict] += count
        for kind, count in errors.items():
            self.errors[kind] += count
        self.cached_calls += cached
        self.interrupted_calls += interrupted
        self._unknown.update(name for name, amount in used.items() if amount is None)
        self._use(known)
        self._costs.merge(*costs)
        self._durations.merge(*durations)


@frozen
class EndpointStatus:
    """One model at one endpoint: calls in flight, their limit now, and waiting calls.

    `held_s` is how long a `Retry-After` of `host` still holds its calls, in seconds; 0 if it does
    not. `connections` is how many connections a process opens to `host` at most, None without a
    limit.
    """

    name: str
    in_flight: int
    limit: int | None
    waiting: int = 0
    host: str = ""
    held_s: float = 0.0
    connections: int | None = None


@frozen
class SilentProcess:
    """A worker process that has answered nothing for so many seconds, with its samples in
    flight.
    """

    pid: int
    node: str
    silent_s: float
    samples: int

    def __str__(self) -> str:
        return (
            f"no sign of life for {self.silent_s:,.0f} s from process {self.pid} on "
            f"{visible(self.node)} ({amount(self.samples, 'sample')})"
        )


@frozen
class Snapshot:
    """The progress at one moment. `done` counts results, of `total` samples (None: not known yet).

    `rate` is results per second over the last half minute; `eta_s` seconds to the end at that rate,
    None if unknown. `usage` is this session's, judges included; its cost is None once the cost of
    one call is unknown. `known_usage` is the sum of the known figures, a lower bound.
    `interrupted_calls`, as in `SampleResult`, are in neither.
    `cost_left_usd` and `time_left_s` are what the rest is expected to take, None while too few
    results are there to tell. `silent` are worker processes without a sign of life.
    """

    done: int
    total: int | None
    verdicts: Mapping[str, int]
    errors: Mapping[str, int]
    in_flight: int
    elapsed_s: float
    rate: float
    eta_s: float | None
    usage: Usage
    cached_calls: int = 0
    interrupted_calls: int = 0
    endpoints: tuple[EndpointStatus, ...] = ()
    cost_left_usd: Remaining | None = None
    time_left_s: Remaining | None = None
    silent: tuple[SilentProcess, ...] = ()
    known_usage: Usage = Usage()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "verdicts": dict(self.verdicts),
            "errors": dict(self.errors),
            "elapsed_s": round(self.elapsed_s, 3),
            "rate": round(self.rate, 3),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "usage": self.usage.to_dict(),
            "known_usage": self.known_usage.to_dict(),
            "endpoints": [asdict(endpoint) for endpoint in self.endpoints],
        }


@dataclass(slots=True)
class Tally(Totals):
    """Counts results: those that are kept from an earlier session (`keep`), and new ones (`add`).

    `earlier`: results of earlier sessions that are expected to stay. They count as done from the
    start; which of them stay is known as their rows are read. `replaced`: counted results that new
    ones have replaced.
    """

    total: int | None = None
    earlier: int = 0
    before: int = 0
    replaced: int = 0
    started: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def __post_init__(self) -> None:
        self.started = clock.monotonic()
        self._recent.append((self.started, 0))

    def keep(self, verdict: Verdict) -> None:
        self.before += 1
        self.verdicts[verdict.value] += 1

    @property
    def done(self) -> int:
        """The number of results, each sample once."""
        return self.before + self.ran - self.replaced

    def replace(self, result: SampleResult) -> None:
        """Takes back a counted result, which a new one replaces."""
        self.replaced += 1
        self.verdicts[result.verdict.value] -= 1
        if result.failure is not None and self.errors[result.failure.kind]:
            self.errors[result.failure.kind] -= 1

    def take_back(self, result: SampleResult, before: RecordedUse) -> None:
        """Takes back what earlier sessions used of a counted result, as far as it is known."""
        self.cached_calls -= min(result.cached_calls, before.cached_calls)
        self.interrupted_calls -= min(result.interrupted_calls, before.interrupted_calls)
        parts = [each.to_dict() for each in (result.usage, result.scoring_usage)]
        for name, figure in before.usage.to_dict().items():
            if figure is None:
                continue
            counted = sum(part.get(name) or 0 for part in parts)
            # Nothing where it had used nothing, and not more than is counted.
            taken = sorted((0, counted, figure))[1]
            self._known[name] = self._known.get(name, 0) - taken

    def snapshot(
        self,
        in_flight: int,
        endpoints: tuple[EndpointStatus, ...] = (),
        silent: tuple[SilentProcess, ...] = (),
    ) -> Snapshot:
        now = clock.monotonic()
        while len(self._recent) > 1 and now - self._recent[1][0] > _RATE_OVER_S:
            self._recent.popleft()
        since, then = self._recent[0]
        if now > since:
            rate = (self.ran - then) / (now - since)
        else:
            rate = 0.0
        if now - self._recent[-1][0] >= TICK_S:
            self._recent.append((now, self.ran))
        done = max(self.before, self.earlier) + self.ran - self.replaced
        left = None
        if self.total is not None:
            done = min(done, max(self.total, self.done))
            left = max(0, self.total - done)
        if left == 0:
            eta_s = 0.0
        elif left is not None and rate > 0:
            eta_s = left / rate
        else:
            eta_s = None
        usage = Usage.from_dict(self._used())
        cost_left = None
        time_left = None
        if left:
            if usage.cost_usd is not None:
                cost_left = self._costs.sum_of(left)
            time_left = self._durations.sum_of(left)
            if time_left is not None and eta_s is not None and time_left.mean:
                # The time at the rate of now varies as the durations of the samples do.
                share = eta_s / time_left.mean
                time_left = Remaining(eta_s, time_left.low * share, time_left.high * share)
            else:
                time_left = None
        return Snapshot(
            done,
            self.total,
            verdicts={
                verdict.value: self.verdicts[verdict.value]
                for verdict in Verdict
                if verdict.value in self.verdicts
            },
            errors={kind: count for kind, count in self.errors.items() if count},
            in_flight=in_flight,
            elapsed_s=now - self.started,
            rate=rate,
            eta_s=eta_s,
            usage=usage,
            cached_calls=self.cached_calls,
            interrupted_calls=self.interrupted_calls,
            endpoints=endpoints,
            cost_left_usd=cost_left,
            time_left_s=time_left,
            silent=silent,
            known_usage=Usage.from_dict(self._known),
        )
