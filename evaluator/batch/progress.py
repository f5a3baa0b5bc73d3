"""The progress of a running batch and of other long work, shown to a person, a log or a program.

A display gets every result and, every TICK_S seconds, a Snapshot. Snapshots contain ids, counts and
kinds of errors, never text of a model or a row.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, field
from math import ceil
from typing import IO, Any, Literal, Protocol

from evaluator import clock
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.totals import Remaining, Totals
from evaluator.errors.messages import LOGGER, minutes_text, visible
from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import dataclass, frozen

TICK_S = 0.5
PLAIN_EVERY_S = 10.0
_RATE_OVER_S = 30.0


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
            f"{visible(self.node)} ({self.samples:,} samples)"
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
        usage = Usage.from_dict(self._used)
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


class Display(Protocol):
    """Shows a running batch. Its methods are called in the event loop and must not block for
    long.
    """

    def start(self, name: str, snapshot: Snapshot) -> None: ...

    def result(self, result: SampleResult) -> None: ...

    def progress(self, snapshot: Snapshot) -> None: ...

    def notice(self, line: str) -> None: ...

    def end(self, snapshot: Snapshot, state: str) -> None: ...


class NoDisplay:
    """Shows nothing. The base class of other displays."""

    def start(self, name: str, snapshot: Snapshot) -> None: ...

    def result(self, result: SampleResult) -> None: ...

    def progress(self, snapshot: Snapshot) -> None: ...

    def notice(self, line: str) -> None: ...

    def end(self, snapshot: Snapshot, state: str) -> None: ...


class SafeDisplay:
    """Calls a display whose failure does not end the batch: it is logged once, and the display is
    not called again.
    """

    def __init__(self, display: Display) -> None:
        self._display: Display = display
        # Whether the display does anything with a result.
        result = getattr(display, "result", None)
        self.shows_results = getattr(result, "__func__", None) is not NoDisplay.result

    def show(
        self, event: Literal["start", "result", "progress", "notice", "end"], *arguments: Any
    ) -> None:
        try:
            getattr(self._display, event)(*arguments)
        except Exception as error:
            name = type(self._display).__name__
            self._display = NoDisplay()
            self.shows_results = False
            reason = visible(f"{type(error).__name__}: {error}")
            LOGGER.warning(
                "the display %s of the batch failed and is not called again: %s", name, reason
            )


class PlainDisplay(NoDisplay):
    """A line every ten seconds, for a log."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._last = 0.0

    def start(self, name: str, snapshot: Snapshot) -> None:
        if snapshot.done:
            done = f", {snapshot.done} from earlier sessions"
        else:
            done = ""
        self._print(f"{visible(name)}: {of_total(snapshot)} samples{done}")
        self._last = clock.monotonic()

    def progress(self, snapshot: Snapshot) -> None:
        if clock.monotonic() - self._last >= PLAIN_EVERY_S:
            self._last = clock.monotonic()
            self._print(line_of(snapshot))

    def notice(self, line: str) -> None:
        self._print(visible(line))

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._print(f"{line_of(snapshot)} · {state}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class JsonDisplay:
    """One JSON object per line: `begun`, `result` (each), `progress` (twice a second), `notice`,
    `ended`.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def start(self, name: str, snapshot: Snapshot) -> None:
        self._print({"event": "begun", "name": name, **snapshot.to_dict()})

    def result(self, result: SampleResult) -> None:
        self._print(
            {
                "event": "result",
                "sample_id": result.sample_id,
                "epoch": result.epoch,
                "template": result.template,
                "variant": result.variant,
                "verdict": result.verdict.value,
                "error": None if result.failure is None else result.failure.kind,
                "scores": {name: score.value for name, score in result.scores.items()},
                "duration_s": round(result.duration_s, 3),
                "task_id": result.task_id,
            }
        )

    def progress(self, snapshot: Snapshot) -> None:
        self._print({"event": "progress", **snapshot.to_dict()})

    def notice(self, line: str) -> None:
        self._print({"event": "notice", "message": line})

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._print({"event": "ended", "state": state, **snapshot.to_dict()})

    def _print(self, event: dict[str, Any]) -> None:
        print(json.dumps(event, allow_nan=True), file=self._stream, flush=True)


class LiveDisplay(NoDisplay):
    """A bar and three lines that are redrawn in place, for a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._name = ""

    def start(self, name: str, snapshot: Snapshot) -> None:
        self._name = visible(name)
        self._live.start()
        self.progress(snapshot)

    def progress(self, snapshot: Snapshot) -> None:
        self._live.update(self._render(snapshot), refresh=True)

    def notice(self, line: str) -> None:
        self._console.print(visible(line), markup=False, highlight=False)

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._live.stop()
        self._console.print(f"{line_of(snapshot)} · {state}", markup=False, highlight=False)

    def _render(self, snapshot: Snapshot) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        verdicts = Text()
        for name, style in _STYLES.items():
            verdicts.append(f"{snapshot.verdicts.get(name, 0):,} {name}  ", style=style)
        lines: list[Any] = [
            Text(f"{self._name}  {of_total(snapshot)}", style="bold"),
            ProgressBar(
                total=snapshot.total or None,
                completed=snapshot.done,
                pulse=snapshot.total is None,
                width=60,
            ),
            verdicts,
            Text(" · ".join(figures(snapshot)), style="dim"),
        ]
        if snapshot.errors:
            lines.append(Text(f"errors: {_error_kinds(snapshot)}", style="yellow"))
        return Group(*lines)


_STYLES = {"passed": "green", "failed": "red", "error": "yellow", "unscored": "dim"}


def line_of(snapshot: Snapshot) -> str:
    """The snapshot on one line."""
    verdicts = (
        ", ".join(f"{count:,} {name}" for name, count in snapshot.verdicts.items()) or "none yet"
    )
    if snapshot.errors:
        errors = f" · errors: {_error_kinds(snapshot)}"
    else:
        errors = ""
    return f"{of_total(snapshot)}: {verdicts} · {' · '.join(figures(snapshot))}{errors}"


def of_total(snapshot: Snapshot) -> str:
    """The samples that are done, of all."""
    return f"{snapshot.done:,} of {'?' if snapshot.total is None else format(snapshot.total, ',')}"


def _error_kinds(snapshot: Snapshot) -> str:
    return ", ".join(f"{count:,} {visible(kind)}" for kind, count in snapshot.errors.items())


def figures(snapshot: Snapshot) -> list[str]:
    """Rate, time, tokens, cost and calls, a text each."""
    usage = snapshot.usage
    if usage.input_tokens is None or usage.output_tokens is None or snapshot.interrupted_calls:
        known = snapshot.known_usage
        tokens = at_least((known.input_tokens or 0) + (known.output_tokens or 0), "{:,}")
    else:
        tokens = f"{usage.input_tokens + usage.output_tokens:,}"
    parts = [
        f"{snapshot.rate:,.1f}/s",
        _time_left_text(snapshot),
        f"{tokens} tokens",
        _cost_text(snapshot),
        f"{snapshot.in_flight} running",
    ]
    for endpoint in snapshot.endpoints:
        if endpoint.limit is None:
            limit = ""
        else:
            limit = f" of {endpoint.limit}"
        if endpoint.waiting:
            waiting = f", {endpoint.waiting} waiting"
        else:
            waiting = ""
        parts.append(f"{visible(endpoint.name)} {endpoint.in_flight}{limit}{waiting}")
    held = {
        endpoint.host: endpoint.held_s for endpoint in snapshot.endpoints if endpoint.held_s > 0
    }
    calls = Counter[str]()
    for endpoint in snapshot.endpoints:
        calls[endpoint.host] += endpoint.in_flight
    capped = {
        endpoint.host: endpoint.connections
        for endpoint in snapshot.endpoints
        if endpoint.connections is not None and calls[endpoint.host] > endpoint.connections
    }
    parts += [
        f"only {connections:,} connections to {visible(host)}"
        for host, connections in capped.items()
    ]
    if usage.cached_tokens and usage.input_tokens:
        share = usage.cached_tokens / usage.input_tokens
        saved = usage.cache_saved_usd
        if saved is None:
            dollars = "$?"
        else:
            dollars = f"${saved:,.4f}"
        parts.append(f"prompt caches: {share:.0%} of input, saved {dollars}")
    parts += [f"held {ceil(seconds):,} s by {visible(host)}" for host, seconds in held.items()]
    if snapshot.cached_calls:
        parts.append(f"{snapshot.cached_calls:,} from the cache")
    if snapshot.interrupted_calls:
        parts.append(f"{snapshot.interrupted_calls:,} calls interrupted")
    return parts + [str(process) for process in snapshot.silent]


def _time_left_text(snapshot: Snapshot) -> str:
    if snapshot.eta_s is None:
        return "ETA ?"
    text = f"ETA {minutes_text(snapshot.eta_s)}"
    left = snapshot.time_left_s
    if left is not None:
        text += f" ({minutes_text(left.low)} to {minutes_text(left.high)})"
    return text


def _cost_text(snapshot: Snapshot) -> str:
    cost = snapshot.usage.cost_usd
    if cost is None or snapshot.interrupted_calls:
        return at_least(snapshot.known_usage.cost_usd, "${:,.4f}")
    text = f"${cost:,.4f}"
    left = snapshot.cost_left_usd
    if left is not None and left.high:
        text += f", ${left.mean:,.4f} left (${left.low:,.4f} to ${left.high:,.4f})"
    return text


def at_least(known: float | None, form: str) -> str:
    """A figure that is not known in full: its known part, "?" where nothing is known."""
    if not known:
        return form.partition("{")[0] + "?"
    return f"at least {form.format(known)}"
