"""The task file of a run: opens it, new or as an earlier run left it, and closes it with the
outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.errors import (
    CallParked,
    CallRejected,
    ConfigurationError,
    CorruptRecord,
    ExpressionError,
    MachineError,
    RecordError,
    RecordNotWritten,
    TaskNotBegun,
    TemplateError,
    UsageError,
)
from evaluator.errors.results import Outcome, TaskError, TaskId, outcome_from_dict
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import DEFAULT_MAX_DEPTH, Run, Services, Shots
from evaluator.interpreter.plan import planned_steps
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import RecordedSteps, ResumedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import (
    FinalStatus,
    Recording,
    Summary,
    cut_off_reason,
)

# Errors in the configuration of a run: after the profile, template or input is fixed, the run can
# be resumed.
_FIXABLE = (ConfigurationError, TemplateError, ExpressionError, UsageError)


def task_id_of(steps: StepLog) -> TaskId | None:
    """The id of the task file that `steps` are written to or read from; None if it was never
    written.
    """
    if steps.journal is not None:
        if steps.journal.never_began:
            return None
        return TaskId(steps.journal.id)
    if steps.earlier is None:
        header = None
    else:
        header = steps.earlier.recording.header
    if header is None:
        return None
    return TaskId(header.task_id)


async def open_task_file(run: Run) -> StepLog | Recording:
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
    spec = run.spec
    above = None if run.parent is None else run.parent.steps
    if above is not None and above.earlier is not None and run.caller is not None:
        opened = await _open_child(run.services, run.caller.path, earlier=above.earlier)
        if opened is not None:
            return opened
    store = run.services.store
    if store is None:
        return StepLog(None)
    journal = store.create(
        template=spec.template,
        template_sha256=spec.template_sha256,
        template_version=spec.template_version,
        request=spec.request,
        inputs=spec.inputs,
        model=run.options.model,
        parent=None if above is None or above.journal is None else above.journal.id,
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
    """Further header fields: those of the spec and, except for a subtask, which is resumed with its
    parent, the non-default options that are needed to start the run again.
    """
    spec = run.spec
    extra = dict(spec.extra)
    if run.parent is None:
        _add_options(run, extra)
    if spec.match_score is not None:
        extra["match_score"] = spec.match_score
    return extra


def _add_options(run: Run, extra: dict[str, Any]) -> None:
    """Adds the options that are needed to start the run again."""
    services = run.services
    options = run.options
    extra |= options.recorded()
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


async def close_task_file(run: Run, outcome: Outcome, duration_s: float) -> Outcome:
    """Closes the task file. Returns: the outcome, changed if the run was halted or its end cannot
    be written.
    """
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
        warnings = [*outcome.notes.get("warnings", ()), *steps.earlier.progress.context_warnings]
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
    if isinstance(outcome, TaskError):
        if isinstance(outcome.cause, (CallRejected, MachineError)):
            status = "aborted"
        else:
            status = "failed"
    if isinstance(outcome, TaskError):
        reason = outcome.message
    else:
        reason = None
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
                to_task_error(error, outcome.usage), task_id=task_id_of(steps), notes=outcome.notes
            )
        warning = f"the end of this run is not in its task file: {error}"
        return replace(
            outcome,
            task_id=task_id_of(steps),
            notes={**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]},
        )
    return outcome


def abort_task_file(run: Run, error: BaseException, duration_s: float) -> None:
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
    spec = run.spec
    planned = None
    if status != "completed" and spec.node is not None:
        planned = planned_steps(spec.node, run.services.library, inputs=spec.inputs)
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
