"""How a batch's command ends: its display told so last, and the lines that say what came of it and what helps.

For a person these are lines on standard error; with `--progress json` what a program wants to know is in the last
`ended` event, which comes when everything is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.stderr import events
from evaluator.record.render import visible

if TYPE_CHECKING:
    from evaluator.batch import BatchResult, BatchSettings, Display
    from evaluator.batch.plan import BatchPlan
    from evaluator.batch.progress import Snapshot
    from evaluator.batch.records import SampleResult

_SHOWN = 20
_DONE_WITH_CHANGED = {"leave": "were left alone", "run": "are run again", "keep": "count as they are"}


@dataclass(slots=True)
class Shown:
    """A display that knows whether the batch was begun. Its `ended` event waits until everything is written."""

    display: Display
    _last: Snapshot | None = field(default=None, init=False)
    _state: str = field(default="incomplete", init=False)

    @property
    def has_begun(self) -> bool:
        """Whether this process had the batch's folder and began to work on it."""
        return self._last is not None

    def begun(self, name: str, snapshot: Snapshot) -> None:
        self._last = snapshot
        self.display.begun(name, snapshot)

    def result(self, result: SampleResult) -> None:
        self.display.result(result)

    def progress(self, snapshot: Snapshot) -> None:
        self.display.progress(snapshot)

    def notice(self, line: str) -> None:
        self.display.notice(line)

    def ended(self, snapshot: Snapshot, state: str) -> None:
        self._last, self._state = snapshot, state
        if events() is None:
            self.display.ended(snapshot, state)

    def close(self, folder: Path, reason: str, go_on: str | None, **more: Any) -> None:
        """The last event: how the session ended, also where it was broken off; none if it was not begun."""
        stream = events()
        if stream is not None and self._last is not None:
            stream.event(
                "ended", state=self._state, reason=reason, folder=str(folder), go_on=go_on, **more,
                **self._last.to_dict(),
            )  # fmt: skip


def report_ending(
    plan: BatchPlan, result: BatchResult, folder: Path, settings: BatchSettings, shown: Shown, code: int
) -> None:
    """Says on standard error what a reader of the numbers has to know besides, where all is, and how to go on.

    `folder` is the batch's as the user named it.
    """
    for line in _remarks(plan, result, folder, settings):
        click.echo(line, err=True)
    go_on = None
    if not result.is_complete:
        go_on = resuming(folder, replace(settings, on_changed="run") if _is_only_changed(result) else settings)
    if events() is None:
        click.echo(f"results: {folder}", err=True)
        if go_on is not None:
            reason = _reason(plan, result)
            click.echo(f"{result.ended.state}: {visible(reason)}" if reason else result.ended.state, err=True)
            click.echo(f"go on with: {go_on}", err=True)
    shown.close(folder, _reason(plan, result), go_on, exit_code=code)


def _remarks(plan: BatchPlan, result: BatchResult, folder: Path, settings: BatchSettings) -> Iterator[str]:
    from evaluator.batch.folder import CHANGED

    ended, counts = result.ended, result.ended.counts
    if counts.changed:
        said = _DONE_WITH_CHANGED[settings.on_changed]
        yield f"{counts.changed:,} results answer another question than the one asked now, and {said}:"
        for changed in counts.explained[:_SHOWN]:
            yield f"  {visible(str(changed))}"
        if counts.changed > _SHOWN:
            yield f"  and {counts.changed - _SHOWN:,} more, see {folder / CHANGED}"
        if settings.on_changed == "leave":
            yield "--changed run runs them again, --changed keep counts them as they are"
    # Where the rows were not read to their end, nobody knows which results none of them asks for.
    if ended.orphans and ended.total is not None:
        count = len(ended.orphans)
        yield f"{count:,} results in the folder are of rows or epochs that were not asked for; they do not count"
    if any(cell.is_simulated for cell, _ in plan.cells):
        yield "note: answers are simulated"
    if is_nothing_but_errors(result):
        yield "every sample ended with an error: nothing can be said"


def is_nothing_but_errors(result: BatchResult) -> bool:
    counts = result.summary.counts
    return bool(counts.error) and not counts.passed and not counts.failed and not counts.unscored


def _reason(plan: BatchPlan, result: BatchResult) -> str:
    ended = result.ended
    if _is_only_changed(result):
        return f"{len(ended.stale):,} results were left alone"
    if ended.state == "budget":
        limits = plan.limits
        given = [name for name in ("max_cost", "max_tokens", "max_time") if getattr(limits, name) is not None]
        return f"{ended.reason} ({' and '.join(given)} count{'s' if len(given) == 1 else ''} for each session)"
    return ended.reason


def _is_only_changed(result: BatchResult) -> bool:
    """Whether nothing is missing but what was left alone since its question has changed."""
    ended = result.ended
    if ended.state != "incomplete" or ended.total is None or not ended.stale:
        return False
    return ended.snapshot.done + len(ended.stale) >= ended.total


def resuming(folder: Path, settings: BatchSettings | None = None) -> str:
    """The command that goes on with the batch in `folder`, as the session with `settings` did."""
    options = [shlex.quote(str(folder))]
    if settings is not None:
        options += ["--retry-errors"] if settings.retry_errors else []
        options += ["--changed", settings.on_changed] if settings.on_changed != "leave" else []
        options += ["--unfinished", settings.unfinished] if settings.unfinished != "stop" else []
    return " ".join(("evaluator batch --resume", *options))
