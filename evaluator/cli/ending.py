"""The end of `evaluator batch`: the lines about the result and the next command, on standard error.

With `--progress json` a program finds the same in the last `ended` event, which follows when
everything is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.cli.echo import echo, json_stderr
from evaluator.errors.messages import agree, amount, listed, visible

if TYPE_CHECKING:
    from evaluator.batch import BatchOptions, BatchPlan, BatchResult, Display, Snapshot

_SHOWN = 20
_CHANGED = {
    "leave": ("it was left out", "they were left out"),
    "run": ("it is run again", "they are run again"),
    "keep": ("it is kept", "they are kept"),
}


class DeferredEnd:
    """A display whose `ended` event waits until everything is written, and that knows whether the
    session started.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self.result = display.result
        self.progress = display.progress
        self.notice = display.notice
        self._last: Snapshot | None = None
        self._state = "incomplete"

    @property
    def has_started(self) -> bool:
        """Whether this process locked the batch's folder and started to work on it."""
        return self._last is not None

    def start(self, name: str, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._display.start(name, snapshot)

    def end(self, snapshot: Snapshot, state: str) -> None:
        self._last = snapshot
        self._state = state
        if json_stderr() is None:
            self._display.end(snapshot, state)

    def close(self, folder: Path, reason: str, command: str | None, **more: Any) -> None:
        """Prints the last event, also after an interruption; nothing if the session did not start.
        `command` resumes the batch.
        """
        stream = json_stderr()
        if stream is not None and self._last is not None:
            stream.print_event(
                "ended",
                state=self._state,
                reason=reason,
                folder=str(folder),
                go_on=command,
                **more,
                **self._last.to_dict(),
            )


def report_ending(plan: BatchPlan, result: BatchResult, display: DeferredEnd, code: int) -> None:
    """Prints on standard error what the summary does not say, where the results are, and how to
    resume.
    """
    folder = Path(plan.options.output or result.folder)
    options = plan.options
    for line in _remarks(plan, result, folder=folder):
        echo(line, err=True)
    command = None
    if not result.is_complete:
        command = resume_command(
            replace(options, on_changed="run") if _lacks_only_changed(result) else options
        )
    reason = _reason(plan, result)
    if json_stderr() is None:
        echo(f"results: {folder}", err=True)
        if command is not None:
            echo(f"{result.ended.state}: {reason}" if reason else result.ended.state, err=True)
            echo(f"resume with: {command}", err=True)
    display.close(folder, reason, command, exit_code=code)


def _remarks(plan: BatchPlan, result: BatchResult, folder: Path) -> Iterator[str]:
    from evaluator.batch.folder import CHANGED

    on_changed = plan.options.on_changed
    counts = result.ended.counts
    ended = result.ended
    if counts.changed:
        yield (
            f"{amount(counts.changed, 'result')} {agree(counts.changed, 'answers', 'answer')} a "
            f"question that has changed since; {agree(counts.changed, *_CHANGED[on_changed])}:"
        )
        for changed in counts.explained[:_SHOWN]:
            yield f"  {visible(str(changed))}"
        if counts.changed > _SHOWN:
            yield f"  and {counts.changed - _SHOWN:,} more, see {folder / CHANGED}"
        if on_changed == "leave":
            yield "--changed run runs them again, --changed keep counts them as they are"
    # If the rows were not read to their end, it is unknown which results no row asks for.
    if ended.orphans and ended.total is not None:
        orphans = len(ended.orphans)
        yield (
            f"{amount(orphans, 'result')} in the folder {agree(orphans, 'belongs', 'belong')} to "
            f"other rows or epochs; {agree(orphans, 'it is', 'they are')} not counted"
        )
    calls_models = plan.call_bound.max_calls != 0
    if calls_models and any(cell.is_simulated for cell, _ in plan.cells):
        yield "note: answers are simulated"
    if has_only_errors(result):
        yield "every sample ended with an error, so there is nothing to evaluate"
    if (fields := _fields_without_target(result)) is not None:
        if fields:
            known = f" (the rows have: {listed(fields)})"
        else:
            known = ""
        yield (
            f"no result is scored, because no row has a target; name its field with --target{known}"
        )


def has_only_errors(result: BatchResult) -> bool:
    counts = result.summary.counts
    return bool(counts.error) and not counts.passed and not counts.failed and not counts.unscored


def _fields_without_target(result: BatchResult) -> list[str] | None:
    """The metadata fields of the first result, if no result is scored for want of a target; else
    None.
    """
    from evaluator.batch.scorers.contract import NO_TARGET

    counts = result.summary.counts
    if not counts.unscored or counts.passed or counts.failed or counts.error:
        return None
    first = next(result.results())
    is_without = any(score.explanation == NO_TARGET.explanation for score in first.scores.values())
    if is_without:
        return sorted(first.metadata)
    return None


def _reason(plan: BatchPlan, result: BatchResult) -> str:
    ended = result.ended
    if _lacks_only_changed(result):
        stale = len(ended.stale)
        return f"{amount(stale, 'result')} {agree(stale, 'was', 'were')} left out"
    if ended.state == "budget":
        limits = plan.options.limits
        given = [
            name
            for name in ("max_cost", "max_tokens", "max_time")
            if getattr(limits, name) is not None
        ]
        if len(given) == 1:
            return f"{ended.reason} ({given[0]} applies to each session)"
        if given:
            return f"{ended.reason} ({' and '.join(given)} apply to each session)"
    return ended.reason


def _lacks_only_changed(result: BatchResult) -> bool:
    """Whether the only missing results are those that were left out because their question has
    changed.
    """
    ended = result.ended
    if ended.state != "incomplete" or ended.total is None or not ended.stale:
        return False
    return ended.snapshot.done + len(ended.stale) >= ended.total


def resume_command(options: BatchOptions, *, repair: bool = False) -> str:
    """The command that resumes the batch in `options.output` as this session did. `repair`: its
    folder is damaged.
    """
    words = ["evaluator batch --resume", shlex.quote(options.output or "")]
    words += ["--repair"] if repair else []
    words += ["--retry-errors"] if options.retry_errors else []
    words += ["--changed", options.on_changed] if options.on_changed != "leave" else []
    words += ["--unfinished", options.unfinished] if options.unfinished != "stop" else []
    words += ["--sandbox", shlex.quote(str(options.sandbox))] if options.sandbox is not None else []
    return " ".join(words)
