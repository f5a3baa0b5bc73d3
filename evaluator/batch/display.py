"""The displays of a running batch and of other long work, for a terminal, a notebook, a log or a
program.

A display gets every result and, every TICK_S seconds, a Snapshot.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from math import ceil
from typing import IO, Any, Literal, Protocol, cast

from evaluator import clock
from evaluator.batch.progress import Snapshot
from evaluator.batch.records import SampleResult
from evaluator.errors.messages import LOGGER, amount, fields, minutes_text, visible

DisplayName = Literal["auto", "live", "plain", "none"]
PLAIN_EVERY_S = 10.0


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


class NotebookDisplay(NoDisplay):
    """A table in the output of a notebook's cell that is updated in place."""

    def __init__(self) -> None:
        self._name = self._state = ""
        self._notices: list[str] = []
        self._snapshot: Snapshot | None = None
        self._handle: Any = None

    def start(self, name: str, snapshot: Snapshot) -> None:
        self._name = name
        self._snapshot = snapshot
        self._handle = import_module("IPython.display").display(self, display_id=True)

    def progress(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._handle is not None:
            self._handle.update(self)

    def notice(self, line: str) -> None:
        self._notices.append(line)

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._state = state
        self.progress(snapshot)

    def _repr_html_(self) -> str:
        snapshot = self._snapshot
        if snapshot is None:
            return ""
        counts = {name: f"{count:,}" for name, count in snapshot.verdicts.items()}
        errors = {f"error: {kind}": f"{count:,}" for kind, count in snapshot.errors.items()}
        share = (
            f'<progress value="{snapshot.done}" '
            f'max="{snapshot.total or snapshot.done or 1}"></progress>'
        )
        values = {
            "done": of_total(snapshot),
            **counts,
            **errors,
            "now": self._state or " · ".join(figures(snapshot)),
        }
        return share + fields(self._name, values | {"notices": "\n".join(self._notices)})


def make_display(display: Display | DisplayName) -> Display:
    """The display that `run_batch` was given. "auto" is a table in a notebook, else live on a
    terminal, else none.
    """
    stream = cast("IO[str] | None", sys.stderr)
    if display == "auto":
        if _is_notebook():
            return NotebookDisplay()
        if stream is not None and stream.isatty():
            display = "live"
        else:
            display = "none"
    if isinstance(display, str):
        kinds: dict[str, Callable[[IO[str]], Display]] = {
            "live": LiveDisplay,
            "plain": PlainDisplay,
        }
        if stream is None or display == "none":
            return NoDisplay()
        return kinds[display](stream)
    return display


def _is_notebook() -> bool:
    """Whether a Jupyter kernel runs this program; a shell of IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        shell = None
    else:
        shell = ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


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
        f"only {amount(connections, 'connection')} to {visible(host)}"
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
        parts.append(f"{amount(snapshot.interrupted_calls, 'call')} interrupted")
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
