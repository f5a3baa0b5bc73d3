"""The record of a run: its task file, new or as an earlier run left it, and the step in the record
of the run above that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator import clock
from evaluator.errors import (
    CallParked,
    CallRejected,
    ConfigurationError,
    CorruptRecord,
    EvaluatorError,
    ExpressionError,
    MachineError,
    RecordError,
    RecordNotWritten,
    TaskNotBegun,
    TemplateError,
    UsageError,
)
from evaluator.errors.results import Outcome, Status, TaskError, TaskId, outcome_from_dict
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import (
    DEFAULT_MAX_DEPTH,
    NO_OPTIONS,
    RECORDED_OPTIONS,
    Run,
    Services,
    Shots,
)
from evaluator.interpreter.plan import planned_steps
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import RecordedSteps, ResumedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import FinalStatus, Recording, Summary, cut_off_reason

# Errors in the configuration of a run: after the profile, template or input is fixed, the run can
# be resumed.
_FIXABLE = (ConfigurationError, TemplateError, ExpressionError, UsageError)


class RunRecord:
    """An async context manager around the evaluation of a run, after `open`. An exception that
    leaves it aborts the records.
    """

    __slots__ = ("_link", "_outcome", "_run", "_started")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started = 0.0
        # The step in the parent's record; None: it is not begun, or an earlier run ended it.
        self._link: int | None = None
        self._outcome: Outcome | None = None

    @property
    def task_id(self) -> TaskId | None:
        """The id of the task file that is written or read; None if it was never written."""
        steps = self._run.steps
        if steps.journal is not None:
            if steps.journal.never_began:
                return None
            return TaskId(steps.journal.id)
        if steps.earlier is None or steps.earlier.recording.header is None:
            return None
        return TaskId(steps.earlier.recording.header.task_id)

    async def open(self, steps: StepLog | None) -> Outcome | None:
        """Opens the task file unless there are `steps`, and begins the step that names it, before
        the run has any effect.

        Returns: the outcome, where there is nothing to evaluate: the subtask ended before its
        parent was interrupted, or it cannot be recorded.
        """
        run = self._run
        try:
            if steps is None:
                opened = await _open_task_file(run)
                if isinstance(opened, Recording):
                    return await self._use_recorded(opened)
                steps = opened
            run.steps = steps
            task_id = self.task_id
            if run.options.on_begin is not None and task_id is not None:
                run.options.on_begin(task_id)
            self._started = clock.monotonic()
            try:
                await self._begin_link(task_id)
            except BaseException:
                if run.steps.journal is not None:
                    run.steps.journal.discard()
                raise
        except EvaluatorError as error:
            failed = to_task_error(error)
            if isinstance(failed.cause, MachineError):
                # The tasks above do not continue without this one's answer.
                run.budget.refuse(failed.cause)
            return failed
        return None

    async def __aenter__(self) -> RunRecord:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        run = self._run
        budget = run.budget
        duration_s = clock.monotonic() - self._started
        if error is not None:
            _abort_task_file(run, error, duration_s)
            self._abort_link(duration_s, cut_off_reason(error, is_late=budget.is_late()))
        elif budget.refused is not None:
            self._abort_link(duration_s, str(budget.refused))
        elif run.steps.halted is None and self._outcome is not None:
            await self._end_link(self._outcome, duration_s)

    async def close(self, outcome: Outcome) -> Outcome:
        """Closes the task file. Returns: the outcome, changed if the run was halted or its end
        cannot be written.
        """
        duration_s = clock.monotonic() - self._started - self._run.budget.waited_s()
        self._outcome = await self._close_task_file(outcome, max(0.0, duration_s))
        return self._outcome

    async def _close_task_file(self, outcome: Outcome, duration_s: float) -> Outcome:
        run = self._run
        journal = run.steps.journal
        steps = run.steps
        is_root = run.parent is None
        was_not_resumed = False
        if journal is not None and journal.is_untouched and isinstance(outcome, TaskError):
            was_not_resumed = isinstance(outcome.cause, _FIXABLE)
            if was_not_resumed and steps.earlier is not None and not is_root:
                # The parent's model must not read this as an answer.
                steps.earlier.progress.halt(
                    RecordError(f"a subtask cannot be resumed: {outcome.message}")
                )
        if steps.earlier is not None and steps.halted is not None:
            if journal is not None:
                journal.abandon()
            error = to_task_error(steps.halted, outcome.usage)
            warnings = [
                *outcome.notes.get("warnings", ()),
                *steps.earlier.progress.context_warnings,
            ]
            return replace(
                error, task_id=outcome.task_id, notes={**outcome.notes, "warnings": warnings}
            )
        if journal is None:
            return outcome
        if was_not_resumed:
            journal.abandon()
            return outcome
        if isinstance(outcome, TaskError) and isinstance(outcome.cause, CallParked):
            journal.abandon()
            return outcome
        if isinstance(steps.earlier, ResumedSteps):
            duration_s += steps.earlier.duration_s()
        status: FinalStatus = "completed"
        reason = None
        if isinstance(outcome, TaskError):
            reason = outcome.message
            if isinstance(outcome.cause, (CallRejected, MachineError)):
                status = "aborted"
            else:
                status = "failed"
        usage = outcome.usage.non_zero()
        result = outcome.to_dict()
        try:
            await steps.close(
                _summary(
                    run,
                    journal,
                    status=status,
                    duration_s=duration_s,
                    reason=reason,
                    usage=usage,
                    result=result,
                )
            )
        except RecordError as error:
            journal.abandon()
            if not is_root:
                # The parent's model must not read an answer that the record of the subtask lacks.
                run.budget.refuse(RecordNotWritten(str(error)))
                return replace(
                    to_task_error(error, outcome.usage), task_id=self.task_id, notes=outcome.notes
                )
            warning = f"the end of this run is not in its task file: {error}"
            return replace(
                outcome,
                task_id=self.task_id,
                notes={**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]},
            )
        return outcome

    async def _use_recorded(self, recording: Recording) -> Outcome:
        """The outcome of a subtask that has ended. Also ends the step that names it."""
        outcome = recorded_outcome(recording)
        caller = self._run.caller
        if caller is not None and caller.budget is not None:
            caller.budget.charge(outcome.usage)
            for model in outcome.notes.get("models", ()):
                caller.budget.add_model(model)
            caller.budget.count_cached(outcome.notes.get("cached_calls", 0))
        if recording.header is not None and recording.summary is not None:
            await self._begin_link(TaskId(recording.header.task_id))
            await self._end_link(outcome, recording.summary.duration_s)
        return outcome

    async def _begin_link(self, task_id: TaskId | None) -> None:
        run = self._run
        if run.parent is None or run.caller is None:
            return
        steps = run.parent.steps
        path = f"{run.caller.path}/subtask"
        request = {
            "template": run.template,
            "description": run.request,
            "inputs": dict(run.inputs),
        }
        fingerprint = steps.fingerprint(request)
        args = {
            "status": Status.CONTINUATION.value,
            "task_id": task_id,
            "template": run.template,
            "description": run.request,
        }
        end = steps.recorded(path, "subtask", fingerprint, args)
        # Where the task that the record names is lost, another one takes its place.
        if end is None or (task_id is not None and end.output["task_id"] != task_id):
            self._link = await steps.begin(
                path, "subtask", run.template or "subtask", args, fingerprint
            )

    async def _end_link(self, outcome: Outcome, duration_s: float) -> None:
        if self._run.parent is None or self._link is None:
            return
        steps = self._run.parent.steps
        output = {"task_id": outcome.task_id, "status": outcome.status.value}
        usage = outcome.usage.to_dict()
        if outcome.ok:
            await steps.succeed(self._link, output, duration_s, usage=usage)
        else:
            await steps.fail(self._link, output, duration_s, "the subtask failed", usage=usage)

    def _abort_link(self, duration_s: float, error: str) -> None:
        if self._run.parent is not None and self._link is not None:
            self._run.parent.steps.abort(self._link, "", duration_s, error)


async def _open_task_file(run: Run) -> StepLog | Recording:
    """A new task file, or that of the subtask which an earlier run began: as its recording, if it
    has ended.
    """
    try:
        return await _open(run)
    except (OSError, ValueError) as error:
        # The path cannot be that of a file: it is too long, or contains a NUL.
        if run.services.store is not None:
            place = ascii(str(run.services.store.root))[:200]
        else:
            place = "the task folder"
        why = getattr(error, "strerror", None) or error
        message = f"{place}: no task file can be created: {why}; choose another folder"
        raise RecordNotWritten(message) from error


async def _open(run: Run) -> StepLog | Recording:
    above = None
    if run.parent is not None:
        above = run.parent.steps
    if above is not None and above.earlier is not None and run.caller is not None:
        opened = await _open_child(run.services, run.caller.path, earlier=above.earlier)
        if opened is not None:
            return opened
    store = run.services.store
    if store is None:
        return StepLog(None)
    parent = None
    if above is not None and above.journal is not None:
        parent = above.journal.id
    journal = store.create(
        template=run.template,
        template_sha256=run.template_sha256,
        template_version=run.template_version,
        request=run.request,
        inputs=run.inputs,
        model=run.options.model,
        parent=parent,
        extra=_header_extra(run),
    )
    if above is None or above.earlier is None:
        earlier = None
    else:
        earlier = above.earlier.child(Recording(None))
    steps = StepLog(journal, earlier, scrub=store.redactor)
    if above is not None:
        await steps.begin_file()
    return steps


def _header_extra(run: Run) -> dict[str, Any]:
    """Further header fields: those of the run and, except for a subtask, which is resumed with its
    parent, the non-default options that are needed to start the run again.
    """
    extra = dict(run.extra)
    if run.parent is None:
        _add_options(run, extra)
    if run.match_score is not None:
        extra["match_score"] = run.match_score
    return extra


def _add_options(run: Run, extra: dict[str, Any]) -> None:
    """Adds the options that are needed to start the run again."""
    services = run.services
    options = run.options
    for name in RECORDED_OPTIONS:
        value = getattr(options, name)
        if value != {} and value != getattr(NO_OPTIONS, name):
            extra[name] = value
    if services.max_depth != DEFAULT_MAX_DEPTH:
        extra["max_depth"] = services.max_depth
    if services.reparse:
        extra["reparse"] = True
    extra["root"] = str(services.root)
    if options.labels:
        extra["labels"] = dict(options.labels)
    if options.shots:
        extra["shots"] = recorded_shots(options.shots)


def recorded_shots(shots: Shots) -> list[Any]:
    """Few-shot examples as a header has them."""
    return [[dict(inputs), answer] for inputs, answer in shots]


async def _open_child(
    services: Services, path: str, earlier: RecordedSteps
) -> StepLog | Recording | None:
    """The task file of the subtask that the earlier run began at `path`; None if a new one is
    needed, also if the subtask never began.
    """
    store = services.store
    task_id = earlier.child_id(f"{path}/subtask")
    if store is None or task_id is None:
        if earlier.may_run():
            return None
        return StepLog(None, earlier.child(Recording(None)))
    if not earlier.may_run():
        return StepLog(
            None, earlier.child(await asyncio.to_thread(store.read, task_id)), scrub=store.redactor
        )
    try:
        journal, recording = await asyncio.to_thread(
            lambda: store.reopen(task_id, repair=earlier.repair)
        )
    except TaskNotBegun:
        # A kill or a loss of power left a file without a header, or none.
        earlier.progress.warnings.append(
            f"{path}: TASK-{task_id} never began, or its file is gone; the subtask is run again"
        )
        return None
    except RecordError as error:
        if earlier.repair and isinstance(error, CorruptRecord):
            earlier.progress.warnings.append(
                f"{path}: the header of TASK-{task_id} is damaged; the subtask is run again"
            )
            return None
        # A second run would cost money twice, and the parent's model must not read this as an
        # answer.
        raise earlier.progress.halt(error) from error
    if recording.known_header().parent != earlier.task_id:
        # After a loss of power the id was given a second time.
        journal.abandon()
        return None
    try:
        recording.check_signed(earlier.trust)
    except RecordError as error:
        journal.abandon()
        raise earlier.progress.halt(error) from error
    if recording.status == "completed" or recording.status == "failed":
        journal.settle(recording.status)
        return recording
    return StepLog(journal, earlier.child(recording), scrub=store.redactor)


def recorded_outcome(recording: Recording) -> Outcome:
    """The outcome of a run that has ended. Raises: RecordError, if its file does not contain
    one.
    """
    try:
        return outcome_from_dict({} if recording.summary is None else recording.summary.result)
    except (LookupError, TypeError, ValueError) as error:
        if recording.header is None:
            number = "?"
        else:
            number = recording.header.task_id
        raise RecordError(
            f"TASK-{number} has ended, but its file holds no result; run it again instead of "
            "resuming it"
        ) from error


def _abort_task_file(run: Run, error: BaseException, duration_s: float) -> None:
    """Closes the task file of a run that an exception ends."""
    journal = run.steps.journal
    if journal is None:
        return
    if run.steps.halted is None:
        is_stopped = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
        is_late = run.budget.is_late()
        if is_stopped and not is_late and not str(error):
            reason = "interrupted"
        else:
            reason = cut_off_reason(error, is_late=is_late)
        # Without a summary the file reads as interrupted, which is true.
        with contextlib.suppress(RecordError):
            journal.close(
                _summary(
                    run,
                    journal,
                    status="aborted",
                    duration_s=duration_s,
                    reason=reason,
                    usage=run.budget.usage.to_dict(),
                )
            )
    journal.abandon()


def _summary(
    run: Run,
    journal: Journal,
    status: FinalStatus,
    duration_s: float,
    reason: str | None,
    usage: Mapping[str, Any],
    result: Any = None,
) -> Summary:
    planned = None
    if status != "completed" and run.node is not None:
        planned = planned_steps(run.node, run.services.library, inputs=run.inputs)
        if planned is not None and planned < journal.steps:
            planned = None
    return Summary(
        status,
        journal.steps,
        journal.retries,
        duration_s,
        usage,
        result,
        reason,
        planned,
        tuple(journal.models),
    )
