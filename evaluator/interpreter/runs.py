"""One recorded run: a task file is begun before anything is done, and closed with what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.binding.scopes import Scope
from evaluator.errors import (
    ConfigurationError,
    EvaluatorError,
    ExpressionError,
    NotLetIn,
    RecordError,
    TaskNotBegun,
    TemplateError,
    UsageError,
)
from evaluator.handler.limits import Budget
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import ContextItem, Frame, Outcome, Run
from evaluator.interpreter.plan import planned_steps
from evaluator.interpreter.services import Services
from evaluator.nodes import Function, Node
from evaluator.record.journal import Journal
from evaluator.record.recovery import Earlier, Resumed
from evaluator.record.steplog import StepLog
from evaluator.record.steps import FinalStatus, Recording, Summary
from evaluator.record.waiting import closed
from evaluator.results import Status, TaskError, TaskId, TaskResult, Usage, outcome_from_dict

_WORTH_TELLING_S = 0.001


@dataclass(slots=True)
class RunStart:
    """What a run starts from; put together by who starts it, and not changed after.

    `parent` is the run that asked for it, at its step `parent_path`. With `body` that is what runs, in the frame made
    here; else `node` with `arguments`. `origin` is what else the task file has to hold for the run to be started again.
    `steps` is where to go on from (see `recovery`); without it a new task file is begun.
    """

    node: Node | Function | None
    request: str
    inputs: Mapping[str, Any]
    template: str | None = None
    template_sha256: str | None = None
    template_version: str | None = None
    arguments: Mapping[str, Any] | None = None
    scope: Scope = field(default_factory=Scope)
    context: tuple[ContextItem, ...] = ()
    is_subtask: bool = False
    parent: Run | None = None
    parent_path: str = ""
    budget: Budget | None = None
    depth: int = 0
    max_depth: int = 5
    ancestors: tuple[str, ...] = ()
    match_score: float | None = None
    model: str | None = None
    profile: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str | None = None
    epoch: int = 1
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    steps: StepLog | None = None
    on_text: Callable[[str], None] | None = None
    on_event: Callable[[str, str], None] | None = None
    body: Callable[[Run, Frame], Awaitable[Outcome]] | None = None


async def record_run(services: Services, start: RunStart) -> Outcome:
    """The outcome of `start`, with its usage and task id, after its task file is closed.

    Where the task file cannot be begun or written the run ends with an error before the next call is made.
    """
    budget = Budget(start.template or "the evaluation", parent=start.budget)
    try:
        steps = start.steps or await _open(services, start)
        if not isinstance(steps, StepLog):
            return await _ended_before(start, steps)
        run = _make_run(services, start, steps, budget)
        task_id = _task_id(steps)
        started = time.perf_counter()
        number = await _link(start, task_id)
    except EvaluatorError as error:
        return to_task_error(error)
    except (OSError, ValueError) as error:
        # A path that no file can have: too long, or with a NUL.
        return to_task_error(_no_folder(services, error))
    try:
        with services.tracer.task(start.template, start.template_version, task_id) as span:
            outcome = await _evaluate(run, start)
            if budget.refused is not None:
                outcome = to_task_error(budget.refused)
            if isinstance(steps.earlier, Resumed):
                for used in steps.earlier.spent_in_vain():
                    budget.charge(Usage.from_dict(used))
            outcome = _noted(_finished(outcome, budget.usage, task_id), start, steps.earlier, budget)
            duration_s = time.perf_counter() - started - budget.waited_s()
            outcome = await _close(services, start, steps, outcome, max(0.0, duration_s))
            span.ended(outcome)
    except BaseException as error:
        _abort(services, start, run, error, time.perf_counter() - started)
        if number is not None and start.parent is not None:
            start.parent.steps.abort(number, "", time.perf_counter() - started, type(error).__name__)
        raise
    if number is not None and start.parent is not None and budget.refused is not None:
        start.parent.steps.abort(number, "", time.perf_counter() - started, str(budget.refused))
    elif number is not None and steps.halted is None:
        await _unlink(start, number, outcome, time.perf_counter() - started)
    return outcome


def _finished(outcome: Outcome, usage: Usage, task_id: TaskId | None) -> Outcome:
    if isinstance(outcome, TaskError):
        return outcome.with_task(task_id, usage)
    return TaskResult(outcome.status, outcome.content, outcome.parsed_content, outcome.notes, usage, task_id)


def _noted(outcome: Outcome, start: RunStart, earlier: Earlier | None, budget: Budget) -> Outcome:
    notes: dict[str, Any] = {**outcome.notes}
    if budget.cached_calls:
        notes["cached_calls"] = budget.cached_calls
    waited_s = budget.waited_s()
    if waited_s >= _WORTH_TELLING_S:
        notes["waited_s"] = round(waited_s, 3)
    if start.match_score is not None:
        notes["matched"] = {"template": start.template, "score": round(start.match_score, 4)}
    if isinstance(earlier, Resumed) and start.parent is None:
        progress = earlier.progress
        notes["resumed"] = {"steps_from_record": progress.reused, "steps_run": progress.ran}
        notes["warnings"] = [*notes.get("warnings", ()), *progress.warnings]
    return replace(outcome, notes=notes) if notes != outcome.notes else outcome


async def _evaluate(run: Run, start: RunStart) -> Outcome:
    try:
        frame = Frame(start.scope, "", start.context, start.arguments, is_subtask=start.is_subtask, budget=run.budget)
        if start.body is not None:
            return await start.body(run, frame)
        assert start.node is not None and not isinstance(start.node, Function)
        return await run.services.evaluate(run, start.node, frame)
    except Exception as error:
        return to_task_error(error, run.budget.usage)


def _make_run(services: Services, start: RunStart, steps: StepLog, budget: Budget) -> Run:
    parent = start.parent
    return Run(
        services, steps, budget,
        model=parent.model if parent else start.model,
        on_text=None if parent else start.on_text,
        on_event=parent.on_event if parent else start.on_event,
        target=start.target, epoch=parent.epoch if parent else start.epoch,
        depth=start.depth, max_depth=start.max_depth, ancestors=start.ancestors,
        profile=parent.profile if parent else start.profile,
        roles=parent.roles if parent else start.roles,
    )  # fmt: skip


# -- the task file ----------------------------------------------------------------------------------------------


def _task_id(steps: StepLog) -> TaskId | None:
    if steps.journal is not None:
        return TaskId(steps.journal.id)
    header = None if steps.earlier is None else steps.earlier.recording.header
    return None if header is None else TaskId(header.task_id)


async def _open(services: Services, start: RunStart) -> StepLog | Recording:
    """A new task file, or that of the subtask which an earlier run began: as its recording, if it has ended."""
    parent = start.parent.steps if start.parent else None
    if parent is not None and parent.earlier is not None:
        found = await _open_child(services, start, parent.earlier)
        if found is not None:
            return found
    store = services.store
    if store is None:
        return StepLog(None)
    extra = dict(start.origin)
    if start.match_score is not None:
        extra["match_score"] = start.match_score
    journal = store.create(
        template=start.template, template_sha256=start.template_sha256, template_version=start.template_version,
        request=start.request, inputs=start.inputs, model=start.model,
        parent=None if parent is None or parent.journal is None else parent.journal.id, extra=extra,
    )  # fmt: skip
    earlier = None if parent is None or parent.earlier is None else parent.earlier.child(Recording(None))
    return StepLog(journal, earlier, store.redactor)


async def _open_child(services: Services, start: RunStart, earlier: Earlier) -> StepLog | Recording | None:
    store = services.store
    task_id = earlier.child_id(f"{start.parent_path}/subtask")
    if store is None or task_id is None:
        return None if earlier.may_run() else StepLog(None, earlier.child(Recording(None)))
    if not earlier.may_run():
        return StepLog(None, earlier.child(await asyncio.to_thread(store.read, task_id)), store.redactor)
    try:
        journal, recording = await asyncio.to_thread(store.reopen, task_id)
    except TaskNotBegun:
        return None
    except RecordError as error:
        # Begun anew it would be paid twice; and to its parent's model this is no answer.
        raise earlier.progress.halt(error) from error
    if recording.status == "completed" or recording.status == "failed":
        journal.settle(recording.status)
        return recording
    return StepLog(journal, earlier.child(recording), store.redactor)


async def _ended_before(start: RunStart, recording: Recording) -> Outcome:
    """The outcome of a subtask that had ended when its parent was interrupted, with the link to it ended too."""
    assert recording.summary is not None and recording.header is not None
    outcome = recorded_outcome(recording)
    if start.budget is not None:
        start.budget.charge(outcome.usage)
        start.budget.count_cached(outcome.notes.get("cached_calls", 0))
    number = await _link(start, TaskId(recording.header.task_id))
    if number is not None:
        await _unlink(start, number, outcome, recording.summary.duration_s)
    return outcome


def recorded_outcome(recording: Recording) -> Outcome:
    """What an ended run came to. Raises: RecordError, if its file does not say."""
    try:
        assert recording.summary is not None
        return outcome_from_dict(recording.summary.result)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        number = "?" if recording.header is None else recording.header.task_id
        raise RecordError(f"TASK-{number} has ended, and its file does not say with what result") from error


def _no_folder(services: Services, error: Exception) -> RecordError:
    place = ascii(str(services.store.root))[:200] if services.store is not None else "the task folder"
    why = getattr(error, "strerror", None) or error
    record = RecordError(f"{place}: no task file can be created: {why}; choose another folder")
    record.__cause__ = error
    return record


async def _link(start: RunStart, task_id: TaskId | None) -> int | None:
    """The parent's record names the subtask's own file before the subtask has any effect.

    Returns: the step's number; None where an earlier run ended the step already.
    """
    if start.parent is None:
        return None
    path, name, steps = f"{start.parent_path}/subtask", start.template or "subtask", start.parent.steps
    asked = {"template": start.template, "description": start.request, "inputs": dict(start.inputs)}
    fingerprint = steps.fingerprint(asked)
    args = {"status": Status.CONTINUATION.value, "task_id": task_id, "template": start.template,
            "description": start.request}  # fmt: skip
    if steps.recorded(path, "subtask", fingerprint, args) is not None:
        return None
    return await steps.begin(path, "subtask", name, args, fingerprint)


async def _unlink(start: RunStart, number: int, outcome: Outcome, duration_s: float) -> None:
    """Ends the step that names the subtask."""
    assert start.parent is not None
    ended = {"task_id": outcome.task_id, "status": outcome.status.value}
    usage, steps = outcome.usage.to_dict(), start.parent.steps
    if outcome.ok:
        await steps.succeed(number, ended, duration_s, usage=usage)
    else:
        await steps.fail(number, ended, duration_s, "the subtask failed", usage=usage)


async def _close(services: Services, start: RunStart, steps: StepLog, outcome: Outcome, duration_s: float) -> Outcome:
    """The outcome, on disk; one whose run was halted, or whose end cannot be written, says so."""
    journal = steps.journal
    hindrance = _hindrance(journal, outcome)
    if steps.earlier is not None and hindrance is not None and start.parent is not None:
        # Its parent's model must not take it for an answer.
        steps.earlier.progress.halt(RecordError(f"a subtask cannot be gone on with: {hindrance}"))
    if steps.earlier is not None and steps.halted is not None:
        if journal is not None:
            journal.abandon()
        error = to_task_error(steps.halted, outcome.usage)
        warnings = [*outcome.notes.get("warnings", ()), *steps.earlier.progress.context_warnings]
        return replace(error, task_id=outcome.task_id, notes={**outcome.notes, "warnings": warnings})
    if journal is None:
        return outcome
    if hindrance is not None:
        journal.abandon()
        return outcome
    if isinstance(steps.earlier, Resumed):
        duration_s += steps.earlier.seconds()
    status: FinalStatus = "completed" if isinstance(outcome, TaskResult) else "failed"
    if isinstance(outcome, TaskError) and isinstance(outcome.cause, NotLetIn):
        status = "aborted"
    reason = None if isinstance(outcome, TaskResult) else outcome.message
    planned = None if isinstance(outcome, TaskResult) else _planned(services, start, journal)
    usage, result = outcome.usage.said(), outcome.to_dict()
    summary = Summary(
        status, journal.steps, journal.retries, duration_s, usage, result, reason, planned, tuple(journal.models)
    )
    try:
        await closed(journal, summary)
    except RecordError as error:
        return _unrecorded(outcome, error)
    return outcome


def _hindrance(journal: Journal | None, outcome: Outcome) -> str | None:
    """Why a reopened run came to nothing new, where that is because of what is around it: a profile, a template,
    an input. Then it stays what it was, and can be gone on with once that is mended."""
    kinds = (ConfigurationError, TemplateError, ExpressionError, UsageError)
    untouched = journal is not None and journal.is_untouched
    if untouched and isinstance(outcome, TaskError) and isinstance(outcome.cause, kinds):
        return outcome.message
    return None


def _planned(services: Services, start: RunStart, journal: Journal) -> int | None:
    """The steps of the whole run, where they are known and more than there were."""
    planned = None if start.node is None else planned_steps(start.node, services.library, start.inputs)
    return planned if planned is not None and planned >= journal.steps else None


def _abort(services: Services, start: RunStart, run: Run, error: BaseException, duration_s: float) -> None:
    journal = run.steps.journal
    if journal is None:
        return
    if run.steps.halted is not None:
        journal.abandon()
        return
    reason = "interrupted" if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) else repr(error)
    usage, planned = run.budget.usage.to_dict(), _planned(services, start, journal)
    models = tuple(journal.models)
    summary = Summary("aborted", journal.steps, journal.retries, duration_s, usage, None, reason, planned, models)
    try:
        journal.close(summary)
    except RecordError:
        # The abort itself goes on; a file without a summary reads as interrupted, which is what it is.
        journal.abandon()


def _unrecorded(outcome: Outcome, error: RecordError) -> Outcome:
    """The result is kept, and says that its summary is not on disk."""
    warning = f"the end of this run is not in its task file: {error}"
    notes = {**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]}
    return replace(outcome, notes=notes)
