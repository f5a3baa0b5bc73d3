"""The commands of other processes in a running session: reads them from the batch's log, carries
them out and answers them there (see `evaluator.batch.control`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from evaluator.batch.control import Command, CommandState, ControlLog, changed_limits
from evaluator.batch.display import SafeDisplay
from evaluator.batch.engines.base import Engine, ResizableEngine
from evaluator.batch.folder import BatchFolder
from evaluator.batch.options import BatchLimits, Stop
from evaluator.batch.plan import BatchPlan
from evaluator.batch.records import Failure, Verdict, key_of
from evaluator.batch.result_index import ResultEntry
from evaluator.batch.work_items import WorkItem
from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.messages import agree, amount
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.call_limiter import fit_concurrency
from evaluator.limits.rate_limiter import BatchBudget, Pace, RateLimiter

if TYPE_CHECKING:
    from evaluator.batch.waves import Waves

SKIPPED = Failure("TASK_FAILURE", "execution_halted", message="skipped: evaluator batch skip")


def pace_of(limits: BatchLimits) -> Pace:
    """The limits of calls in the limits of a batch."""
    return Pace(
        concurrency=limits.concurrency,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
    )


def budget_of(limits: BatchLimits) -> BatchBudget:
    """The budget in the limits of a batch."""
    return BatchBudget(
        max_cost_usd=limits.max_cost, max_tokens=limits.max_tokens, max_seconds=limits.max_time
    )


@dataclass(slots=True)
class Steering:
    """Carries out commands in one session. `on_limits` stores other limits in the manifest.

    `limits` are the session's limits now. `skips` are the commands that skip samples, `retrying`
    the results of samples that a command runs again, both by key. A sample that is in flight is not
    skipped, neither is one with calls in provider batches that were paid or may be.
    """

    log: ControlLog
    plan: BatchPlan
    folder: BatchFolder
    limiter: RateLimiter
    engine: Engine
    stop: Stop
    display: SafeDisplay
    on_limits: Callable[[BatchLimits], None]
    waves: Waves | None = None
    is_paused: bool = False
    limits: BatchLimits = field(init=False)
    _handled: set[int] = field(default_factory=set[int])
    _pauses: list[Command] = field(default_factory=list[Command])
    _retries: list[Command] = field(default_factory=list[Command])
    _retried: list[Command] = field(default_factory=list[Command])
    retrying: dict[str, ResultEntry] = field(default_factory=dict[str, ResultEntry])
    _retry_message: str = ""
    skips: dict[str, Command] = field(default_factory=dict[str, Command])
    _unseen: dict[int, Command] = field(default_factory=dict[int, Command])
    _in_flight: dict[int, WorkItem] = field(default_factory=dict[int, WorkItem])
    _waiting: set[str] = field(default_factory=set[str])
    _paid: Counter[int] = field(default_factory=Counter[int])
    _ignored: int = 0
    _trouble: str = ""

    def __post_init__(self) -> None:
        self.limits = self.plan.options.limits

    # -- commands ----------------------------------------------------------------------------------

    def poll(self) -> None:
        """Carries out the commands that were sent since. Its failures are shown, once each."""
        if not self.log.has_news():
            return
        try:
            commands = self.log.read()
        except EvaluatorError as error:
            self._show_trouble(error)
            return
        for command in commands:
            if not command.is_final and command.id not in self._handled:
                self._handled.add(command.id)
                self._carry_out(command)
        if self.log.ignored > self._ignored:
            self._ignored = self.log.ignored
            self.display.show(
                "notice",
                f"{self.log.path}: {amount(self._ignored, 'line')} that "
                f"{agree(self._ignored, 'is', 'are')} damaged or not signed by this user "
                "for this batch: without effect",
            )

    def _carry_out(self, command: Command) -> None:
        try:
            state, message = self._apply(command)
        except EvaluatorError as error:
            state = "refused"
            message = str(error)
        end = f": {message}" if message else ""
        self.display.show("notice", f"command {command.id}, {command}: {state}{end}")
        self._answer(command, state, message)

    def _answer(self, command: Command, state: CommandState, message: str) -> None:
        try:
            self.log.answer(command, state, message)
        except EvaluatorError as error:
            self._show_trouble(error)

    def _show_trouble(self, error: EvaluatorError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            self.display.show("notice", str(error))

    def _apply(self, command: Command) -> tuple[CommandState, str]:
        match command.action:
            case "pause":
                self.is_paused = True
                self._pauses.append(command)
                self.limiter.pause()
                return "accepted", "paused; calls in flight are finished"
            case "continue":
                return self._continue()
            case "set":
                return self._set_limits(command)
            case "retry":
                if not (self.plan.rows.is_repeatable and not self.plan.rows.is_live):
                    raise UsageError(
                        "the rows can be read only once; resume the batch with --retry-errors"
                    )
                self._retries.append(command)
                return "accepted", "run again after the other samples"
            case "skip":
                return self._skip(command)
            case "stop":
                self.stop.ask("stopped", f"stopped by command {command.id}")
                return "done", "samples in flight are finished"
            case "cancel":
                if self.waves is None:
                    raise UsageError("the batch has no provider batches")
                self.waves.cancel()
                return "done", "provider batches are cancelled; their answers are collected"

    def _continue(self) -> tuple[CommandState, str]:
        if not self.is_paused:
            return "done", "the batch was not paused"
        self.is_paused = False
        self._finish_pauses("continued")
        self.limiter.resume()
        return "done", ""

    def _finish_pauses(self, message: str) -> None:
        for pause in self._pauses:
            self._answer(pause, "done", message)
        self._pauses.clear()

    def _set_limits(self, command: Command) -> tuple[CommandState, str]:
        limits = changed_limits(self.limits, command.arguments)
        message = ""
        if limits.concurrency != self.limits.concurrency:
            if not isinstance(self.engine, ResizableEngine):
                raise UsageError(f"the engine {self.engine.name} has a fixed concurrency")
            if self.engine.name == "local":
                fitting = fit_concurrency(limits.concurrency)
                if fitting < limits.concurrency:
                    message = f"concurrency={fitting}: this process may open no more files"
                    limits = replace(limits, concurrency=fitting)
            self.engine.resize(limits.concurrency)
        self.limits = limits
        self.limiter.change(pace_of(limits), budget_of(limits))
        # Before the answer: a later session that reads this command again sets the same.
        self.on_limits(limits)
        return "done", message

    # -- samples -----------------------------------------------------------------------------------

    def places_of(self, most: int) -> Callable[[], int]:
        """How many samples the engine can start, which has asked for `most` now: fewer, once a
        command has set a lower concurrency.
        """
        before = self.limits.concurrency

        def places() -> int:
            now = self.limits.concurrency
            return most if now >= before else min(most, now - self.engine.in_flight())

        return places

    def begin(self, works: Sequence[WorkItem]) -> None:
        """Counts samples as in flight."""
        self._in_flight.update(zip(map(id, works), works, strict=True))

    def end(self, works: Sequence[WorkItem], *, have_results: bool = False) -> None:
        """Counts samples as not in flight any more. `have_results`: their results are on the disk,
        as far as a command ran them again. Without one the command stays, for the next session.
        """
        for work in works:
            self._in_flight.pop(id(work), None)
        if self._waiting:
            self._waiting.difference_update(work.identity.key for work in works)
        if have_results and self.retrying:
            for work in works:
                self.retrying.pop(work.identity.key, None)
            if not self.retrying:
                self._finish_retries()

    def wait(self, work: WorkItem) -> None:
        """Counts a sample whose calls wait for a provider batch as in flight, until the `end` of
        the work that resumes it. Only its key is kept.
        """
        self._in_flight.pop(id(work), None)
        self._waiting.add(work.identity.key)

    def _keys_in_flight(self) -> set[str]:
        return {work.identity.key for work in self._in_flight.values()} | self._waiting

    def _skip(self, command: Command) -> tuple[CommandState, str]:
        there = self.folder.index()
        in_flight = self._keys_in_flight()
        plan = self.plan
        keys = [
            key_of(sample, epoch, template=cell.template, variant=cell.variant)
            for sample in command.arguments
            for cell, _ in plan.cells
            for epoch in range(1, plan.options.epochs + 1)
        ]
        done = sum(key in there for key in keys)
        running = sum(key in in_flight for key in keys)
        left = [key for key in keys if key not in there and key not in in_flight]
        what = [f"{done:,} {agree(done, 'has', 'have')} a result"] if done else []
        what += [f"{running:,} {agree(running, 'is', 'are')} in flight"] if running else []
        if what:
            message = f"of {amount(len(keys), 'result')}, {' and '.join(what)}"
        else:
            message = ""
        if not left:
            return "refused", message
        self.skips |= dict.fromkeys(left, command)
        if not what:
            self._unseen[command.id] = command
        return "accepted", message

    def take_skip(self, work: WorkItem) -> Command | None:
        """The command that skips `work`; the caller stores the result and calls `finish_skip`."""
        command = self.skips.pop(work.identity.key, None)
        if command is None:
            return None
        self._unseen.pop(command.id, None)
        if self.waves is None or not self.waves.has_paid(work.identity.value):
            return command
        self._paid[command.id] += 1
        if command not in self.skips.values():
            self._answer(command, "refused", self._paid_message(command))
        return None

    def finish_skip(self, command: Command) -> None:
        """Answers `command`, if all its samples are skipped."""
        if command not in self.skips.values():
            self._answer(command, "done", self._paid_message(command))

    def _paid_message(self, command: Command) -> str:
        paid = self._paid[command.id]
        if not paid:
            return ""
        return f"{paid:,} {agree(paid, 'is', 'are')} in flight: provider batches have calls of them"

    def take_retries(self) -> Mapping[str, ResultEntry]:
        """The results to run again, by key, for every command since the last call."""
        commands = self._retries
        self._retries = []
        kinds = {kind for command in commands for kind in command.arguments}
        is_all = any(not command.arguments for command in commands)
        found: dict[str, ResultEntry] = {}
        in_flight = self._keys_in_flight() if commands else set[str]()
        for key, entry in self.folder.index().items() if commands else ():
            if entry.verdict is not Verdict.ERROR or key in in_flight:
                continue
            if is_all:
                failure = None
            else:
                failure = self.folder.read_at(entry.offset).failure
            if is_all or (failure is not None and kinds & {failure.kind, failure.type}):
                found[key] = entry
        if commands:
            self.retrying |= found
            self._retried += commands
            self._retry_message = (
                f"{amount(len(found), 'sample')} {agree(len(found), 'was', 'were')} run again"
            )
            self._finish_retries()
        return found

    def all_retries_begun(self) -> None:
        """Forgets results to run again that no row asks for."""
        for key in self.retrying.keys() - self._keys_in_flight():
            del self.retrying[key]
        self._finish_retries()

    def _finish_retries(self) -> None:
        """Answers the commands whose samples have all ended."""
        if not self.retrying:
            for command in self._retried:
                self._answer(command, "done", self._retry_message)
            self._retried = []

    def close(self, *, read_all: bool) -> None:
        """Answers what ends with an orderly end of the session. `read_all`: every row was read."""
        self._finish_pauses("the session ended")
        if read_all:
            for command in self._unseen.values():
                ids = " or ".join(command.arguments)
                self._answer(command, "refused", f"no row has the id {ids}")
