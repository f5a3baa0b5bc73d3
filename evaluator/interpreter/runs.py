"""A run and its record: the task file is begun before anything is done, and closed with the
outcome. A subtask is a step in the record of the run above it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

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
from evaluator.errors.results import (
    Outcome,
    Status,
    TaskError,
    TaskId,
    TaskResult,
    Usage,
    outcome_from_dict,
)
from evaluator.files.project_code import guarded_import
from evaluator.handler.backends import is_free_model
from evaluator.interpreter.failures import redacted, to_task_error
from evaluator.interpreter.frame import (
    DEFAULT_MAX_DEPTH,
    NO_OPTIONS,
    RECORDED_OPTIONS,
    Frame,
    Run,
    Services,
    Shots,
)
from evaluator.interpreter.preflight import check_start
from evaluator.limits.budget import Budget
from evaluator.nodes import Atomic, Function
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import RecordedSteps, ResumedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import (
    INTERRUPTED_CALLS,
    FinalStatus,
    Recording,
    StepEnd,
    Summary,
    cut_off_reason,
)

_MIN_NOTED_WAIT_S = 0.001
# Errors in the configuration of a run: after the profile, template or input is fixed, the run can
# be resumed.
_FIXABLE = (ConfigurationError, TemplateError, ExpressionError, UsageError)
_recorded_values = attrgetter(*RECORDED_OPTIONS)
_DEFAULTS = _recorded_values(NO_OPTIONS)
Binder = Callable[[dict[str, Any]], Run | TaskError]
"""The run of a request with these inputs, or why there is none."""


async def record_run(
    run: Run, steps: StepLog | None = None, above: Budget | None = None
) -> Outcome:
    """Evaluates `run`. Returns: the outcome with its usage and task id, after the task file is
    closed.

    `steps` is the log of a run that is resumed or replayed; without it a new task file is created.
    If the task file cannot be created or written, the run ends with an error before the next call.
    The limits of `above`, or of the caller's budget, apply to the run too.
    """
    if run.caller is not None:
        above = run.caller.budget
    run.budget = Budget(run.template or "the evaluation", parent=above)
    try:
        if steps is None:
            opened = await _open_task_file(run)
            if isinstance(opened, Recording):
                # The subtask ended before its parent was interrupted.
                return await _use_recorded(run, opened)
            steps = opened
        run.steps = steps
        task_id = steps.task_id
        if run.options.on_begin is not None and task_id is not None:
            run.options.on_begin(task_id)
        started = clock.monotonic()
        link = None
        if run.parent is not None:
            try:
                link = await _begin_link(run, run.parent.steps, task_id)
            except BaseException:
                if steps.journal is not None:
                    steps.journal.discard()
                raise
    except EvaluatorError as error:
        failed = to_task_error(error)
        if isinstance(failed.cause, MachineError):
            # The tasks above do not continue without this one's answer.
            run.budget.refuse(failed.cause)
        return failed
    try:
        with run.services.tracer.task(run.template, run.template_version, task_id) as span:
            try:
                outcome = await _evaluate(run)
            finally:
                if steps.earlier is not None:
                    _count_earlier(run.budget, steps.earlier)
            outcome = _complete(run, outcome, steps)
            outcome = await _close_task_file(run, outcome, started)
            span.set_result(outcome)
    except BaseException as error:
        duration_s = clock.monotonic() - started
        _abort_task_file(run, error, duration_s)
        if run.parent is not None and link is not None:
            reason = cut_off_reason(error, is_late=run.budget.is_late())
            run.parent.steps.abort(link, "", duration_s, reason)
        raise
    if run.parent is not None and link is not None:
        duration_s = clock.monotonic() - started
        if run.budget.refused is not None:
            run.parent.steps.abort(link, "", duration_s, str(run.budget.refused))
        elif steps.halted is None:
            await _end_link(run.parent.steps, link, outcome, duration_s)
    return outcome


async def _evaluate(run: Run) -> Outcome:
    services = run.services
    node = run.node
    if run.caller is None:
        authority = services.authority
    else:
        authority = run.caller.domain.authority
    try:
        if run.caller is not None:
            frame = replace(run.caller, path="", budget=run.budget)
        else:
            if run.template_sha256 is not None:
                domain = services.domain(run.options.handler)
            else:
                domain = run.domain or services.new_domain(run.options.handler)
            frame = Frame(
                run.scope,
                domain,
                context=run.context,
                arguments=run.arguments,
                budget=run.budget,
            )
        with services.schema_imports(authority), guarded_import(services.code):
            if node is not None and not frame.domain.has_tried(node):
                await check_start(run, node, frame.domain)
            if run.options.shots and not isinstance(node, Atomic):
                raise UsageError(
                    "shots are turns of the conversation of an atomic task, and this task is not "
                    "atomic"
                )
            if run.body is not None:
                return await run.body(run, frame)
            if node is None or isinstance(node, Function):
                raise TypeError(f"a run of {run.request!r} has neither a node nor a body")
            return await services.evaluate(run, node, frame)
    except Exception as error:
        return to_task_error(error, run.budget.usage)


def _count_earlier(budget: Budget, earlier: RecordedSteps) -> None:
    """Counts what an earlier process spent, and this run has not taken from its record."""
    if isinstance(earlier, ResumedSteps):
        for usage in earlier.unused_usage():
            budget.charge(Usage.from_dict(usage))
    models = earlier.interrupted_models()
    budget.count_interrupted(sum(not is_free_model(model) for model in models))


def _complete(run: Run, outcome: Outcome, steps: StepLog) -> Outcome:
    """The outcome with its task id, and the usage and the notes of the run as a whole."""
    budget = run.budget
    earlier = steps.earlier
    task_id = steps.task_id
    if budget.refused is not None:
        stopped = to_task_error(budget.refused)
        content = stopped.content
        if isinstance(outcome, TaskError):
            content = content or outcome.content
        outcome = replace(stopped, content=content)
    notes: dict[str, Any] = {**outcome.notes}
    if run.warnings:
        notes["warnings"] = [*run.warnings, *notes.get("warnings", ())]
    if budget.cached_calls:
        notes["cached_calls"] = budget.cached_calls
    if budget.interrupted_calls:
        notes[INTERRUPTED_CALLS] = budget.interrupted_calls
    waited_s = budget.waited_s()
    if waited_s >= _MIN_NOTED_WAIT_S:
        notes["waited_s"] = round(waited_s, 3)
    if run.match_score is not None:
        notes["matched"] = {"template": run.template, "score": round(run.match_score, 4)}
    if isinstance(earlier, ResumedSteps) and run.parent is None:
        progress = earlier.progress
        notes["resumed"] = {"steps_from_record": progress.reused, "steps_run": progress.ran}
        notes["warnings"] = [*notes.get("warnings", ()), *progress.warnings]
    if isinstance(outcome, TaskResult):  # in full: it runs for every task
        return TaskResult(
            outcome.status,
            outcome.content,
            parsed_content=outcome.parsed_content,
            notes=notes,
            usage=budget.usage,
            task_id=task_id,
        )
    outcome = redacted(outcome, run.services.redactor.redact)
    return replace(outcome, notes=notes, usage=budget.usage, task_id=task_id)


async def _close_task_file(run: Run, outcome: Outcome, started: float) -> Outcome:
    """Closes the task file. Returns: the outcome, changed if the run was halted or its end cannot
    be written.
    """
    duration_s = max(0.0, clock.monotonic() - started - run.budget.waited_s())
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
                to_task_error(error, outcome.usage), task_id=steps.task_id, notes=outcome.notes
            )
        warning = f"the end of this run is not in its task file: {error}"
        return replace(
            outcome,
            task_id=steps.task_id,
            notes={**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]},
        )
    return outcome


async def _use_recorded(run: Run, recording: Recording) -> Outcome:
    """The outcome of a subtask that has ended. Also ends the step that names it."""
    outcome = recorded_outcome(recording)
    caller = run.caller
    if caller is not None and caller.budget is not None:
        caller.budget.charge(outcome.usage)
        for model in outcome.notes.get("models", ()):
            caller.budget.add_model(model)
        caller.budget.count_cached(outcome.notes.get("cached_calls", 0))
        caller.budget.count_interrupted(outcome.notes.get(INTERRUPTED_CALLS, 0))
    if recording.header is not None and recording.summary is not None and run.parent is not None:
        link = await _begin_link(run, run.parent.steps, TaskId(recording.header.task_id))
        if link is not None:
            await _end_link(run.parent.steps, link, outcome, recording.summary.duration_s)
    return outcome


async def _begin_link(run: Run, above: StepLog, task_id: TaskId | None) -> int | None:
    """Begins the step of a subtask in the record of the run above. Returns: its number; None if an
    earlier run ended it.
    """
    if run.caller is None:
        return None
    path = f"{run.caller.path}/subtask"
    request = {"template": run.template, "description": run.request, "inputs": dict(run.inputs)}
    fingerprint = above.fingerprint(request)
    args = {
        "status": Status.CONTINUATION.value,
        "task_id": task_id,
        "template": run.template,
        "description": run.request,
    }
    end = above.recorded(path, "subtask", fingerprint, args)
    # Where the task that the record names is lost, another one takes its place.
    if end is not None and (task_id is None or _linked_id(end) == task_id):
        return None
    return await above.begin(path, "subtask", run.template or "subtask", args, fingerprint)


def _linked_id(end: StepEnd) -> object:
    """The id of the task in the end of a subtask's step; None where the record has something
    else.
    """
    if isinstance(end.output, Mapping):
        return cast("Mapping[str, object]", end.output).get("task_id")
    return None


async def _end_link(above: StepLog, link: int, outcome: Outcome, duration_s: float) -> None:
    output = {"task_id": outcome.task_id, "status": outcome.status.value}
    usage = outcome.usage.to_dict()
    interrupted = outcome.notes.get(INTERRUPTED_CALLS)
    extra = {INTERRUPTED_CALLS: interrupted} if interrupted else None
    if outcome.ok:
        await above.succeed(link, output, duration_s, usage=usage, extra=extra)
    else:
        await above.fail(link, output, duration_s, "the subtask failed", usage=usage, extra=extra)


async def _open_task_file(run: Run) -> StepLog | Recording:
    """A new task file, or that of the subtask which an earlier run began: as its recording, if it
    has ended.
    """
    services = run.services
    store = services.store
    above = None
    earlier = None
    parent = None
    if run.parent is not None:
        above = run.parent.steps
    try:
        if above is not None and above.earlier is not None:
            if run.caller is not None:
                opened = await _open_child(services, run.caller.path, earlier=above.earlier)
                if opened is not None:
                    return opened
            earlier = above.earlier.child(Recording(None))
        if store is None:
            return StepLog(None)
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
        steps = StepLog(journal, earlier, scrub=store.redactor)
        if above is not None:
            try:
                await steps.begin_file()
            except BaseException:
                journal.discard()
                raise
        return steps
    except (OSError, ValueError) as error:
        # The path cannot be that of a file: it is too long, or contains a NUL.
        place = "the task folder"
        if store is not None:
            place = ascii(str(store.root))[:200]
        why = getattr(error, "strerror", None) or error
        message = f"{place}: no task file can be created: {why}; choose another folder"
        raise RecordNotWritten(message) from error


def _header_extra(run: Run) -> dict[str, Any]:
    """Further header fields: those of the run and, except for a subtask, which is resumed with its
    parent, the non-default options that are needed to start the run again.
    """
    extra = dict(run.extra)
    if run.parent is None:
        services = run.services
        options = run.options
        values = _recorded_values(options)
        for name, value, default in zip(RECORDED_OPTIONS, values, _DEFAULTS, strict=True):
            if value != default and value != {}:
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
    if run.match_score is not None:
        extra["match_score"] = run.match_score
    return extra


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
        journal, recording = await reopen_in_thread(
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


async def reopen_in_thread(
    reopen: Callable[[], tuple[Journal, Recording]],
) -> tuple[Journal, Recording]:
    """Calls `TaskStore.reopen` in a thread. After a cancellation the file is released as soon as
    the thread has opened it.
    """
    reopening = asyncio.get_running_loop().run_in_executor(None, reopen)
    try:
        return await asyncio.shield(reopening)
    except asyncio.CancelledError:
        reopening.add_done_callback(_release)
        raise


def _release(reopening: asyncio.Future[tuple[Journal, Recording]]) -> None:
    if not reopening.cancelled() and reopening.exception() is None:
        reopening.result()[0].abandon()


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
        from evaluator.interpreter.plan import planned_steps

        planned = planned_steps(run.node, run.services.library, inputs=run.inputs)
        if planned is not None and planned < journal.steps:
            planned = None
    return Summary(
        status,
        journal.steps,
        retries=journal.retries,
        duration_s=duration_s,
        usage=usage,
        result=result,
        reason=reason,
        planned=planned,
        models=tuple(journal.models),
        interrupted_calls=run.budget.interrupted_calls,
    )
