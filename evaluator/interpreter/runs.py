"""One recorded run: its task file is begun before anything is done, and closed with the outcome.

A run is described by three values: a `RunSpec` (what is evaluated), `RunOptions` (how) and, for a subtask, a `Parent`
(which task asked for it).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.errors import (
    CallRejected,
    ConfigurationError,
    EvaluatorError,
    ExpressionError,
    MachineError,
    RecordError,
    RecordNotWritten,
    TaskNotBegun,
    TemplateError,
    UsageError,
)
from evaluator.errors.results import Outcome, Status, TaskError, TaskId, TaskResult, Usage, outcome_from_dict
from evaluator.files.trust import signature
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import DEFAULT_MAX_DEPTH, ContextItem, Frame, Run, RunOptions, Services, Shots
from evaluator.interpreter.plan import planned_steps
from evaluator.interpreter.sandboxing import check_sandboxes
from evaluator.language.scopes import Scope
from evaluator.limits.budget import Budget
from evaluator.nodes import Atomic, Function, Node, Task
from evaluator.output.schema import without_imports
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import RecordedSteps, ResumedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import FinalStatus, Recording, Summary, fingerprint

_MIN_NOTED_WAIT_S = 0.001
# Errors in the configuration of a run: after the profile, template or input is fixed, the run can be resumed.
_FIXABLE = (ConfigurationError, TemplateError, ExpressionError, UsageError)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The task that a run evaluates, and what its task file records about it.

    `node` is evaluated with `arguments` (values of its declared inputs) in `scope`. A `body` runs in its place.
    `warnings` are about the request. `extra` holds further fields of the header that are needed to start the run again.
    """

    request: str
    inputs: Mapping[str, Any]
    node: Node | Function | None = None
    template: str | None = None
    template_sha256: str | None = None
    template_version: str | None = None
    arguments: Mapping[str, Any] | None = None
    scope: Scope = field(default_factory=Scope)
    match_score: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Callable[[Run, Frame], Awaitable[Outcome]] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of a subtask: its run, the step at `path` that requested the subtask, and what it passes on.

    Equal subtasks have the same `identity`. `max_depth` counts levels from the root. `authority` is the subtask's.
    """

    run: Run
    path: str
    budget: Budget
    context: tuple[ContextItem, ...]
    identity: str
    max_depth: int
    sandbox: Sandbox
    authority: Authority


async def record_run(
    services: Services,
    spec: RunSpec,
    options: RunOptions,
    *,
    steps: StepLog | None = None,
    parent: Parent | None = None,
    above: Budget | None = None,
) -> Outcome:
    """Runs `spec`. Returns: the outcome with its usage and task id, after the task file is closed.

    `steps` is the log of a run that is resumed or replayed; without it a new task file is created. If the task file
    cannot be created or written, the run ends with an error before the next call. The limits of `above`, or of the
    parent's budget, apply to it too.
    """
    budget = Budget(spec.template or "the evaluation", parent=above if parent is None else parent.budget)
    link = None if parent is None else _SubtaskLink(parent, spec)
    try:
        try:
            opened = steps or await _open(services, spec, options, parent)
        except (OSError, ValueError) as error:
            # The path cannot be that of a file: it is too long, or contains a NUL.
            raise _folder_error(services, error) from error
        if isinstance(opened, Recording):
            return await _return_recorded(opened, parent, link)
        steps = opened
        run = _make_run(services, steps, budget, spec, options, parent)
        task_id = _task_id(steps)
        if options.on_begin is not None and task_id is not None:
            options.on_begin(task_id)
        started = time.perf_counter()
        if link is not None:
            await _begin_link(link, steps, task_id)
    except EvaluatorError as error:
        failed = to_task_error(error)
        if isinstance(failed.cause, MachineError):
            # The tasks above do not continue without this one's answer.
            budget.refuse(failed.cause)
        return failed
    try:
        with services.tracer.task(spec.template, spec.template_version, task_id) as span:
            outcome = await _evaluate(run, spec, parent)
            if budget.refused is not None:
                stopped = to_task_error(budget.refused)
                partial = outcome.content if isinstance(outcome, TaskError) else ""
                outcome = replace(stopped, content=stopped.content or partial)
            if isinstance(steps.earlier, ResumedSteps):
                for usage in steps.earlier.unused_usage():
                    budget.charge(Usage.from_dict(usage))
            outcome = _complete(outcome, run, spec, task_id, is_root=parent is None)
            duration_s = time.perf_counter() - started - budget.waited_s()
            outcome = await _close(run, spec, outcome, max(0.0, duration_s), is_root=parent is None)
            span.set_result(outcome)
    except BaseException as error:
        duration_s = time.perf_counter() - started
        _abort(run, spec, error, duration_s)
        if link is not None:
            link.abort(duration_s, type(error).__name__)
        raise
    if link is not None and budget.refused is not None:
        link.abort(time.perf_counter() - started, str(budget.refused))
    elif link is not None and steps.halted is None:
        await link.end(outcome, time.perf_counter() - started)
    return outcome


async def _begin_link(link: _SubtaskLink, steps: StepLog, task_id: TaskId | None) -> None:
    try:
        await link.begin(task_id)
    except BaseException:
        if steps.journal is not None:
            steps.journal.discard()
        raise


def _make_run(
    services: Services, steps: StepLog, budget: Budget, spec: RunSpec, options: RunOptions, parent: Parent | None
) -> Run:
    if parent is None:
        return Run(
            services, steps, budget, options, max_depth=services.max_depth, ancestors=lambda: _root_identities(spec)
        )
    above, identity = parent.run, parent.identity
    return Run(
        services, steps, budget, options, above.depth + 1, parent.max_depth, lambda: (*above.ancestors(), identity)
    )


def identity_of(template: str | None, description: str, inputs: Mapping[str, Any]) -> str:
    """Identifies a task by what it does. A subtask that equals one of its ancestors would never end."""
    return fingerprint({"template": template, "description": description, "inputs": dict(inputs)})


def _root_identities(spec: RunSpec) -> tuple[str, ...]:
    """The identity of a root, which may have been requested in words or by the name of its template."""
    described = spec.node.description.value if isinstance(spec.node, Task) else spec.request
    return tuple(identity_of(spec.template, text, spec.inputs) for text in (spec.request, described))


async def _evaluate(run: Run, spec: RunSpec, parent: Parent | None) -> Outcome:
    context = () if parent is None else parent.context
    authority, sandbox = (run.services.authority, NO_SANDBOX) if parent is None else (parent.authority, parent.sandbox)
    frame = Frame(
        spec.scope,
        "",
        context,
        spec.arguments,
        is_subtask=parent is not None,
        budget=run.budget,
        sandbox=sandbox,
        authority=authority,
    )
    # A preview runs nothing of the project, so it imports nothing either.
    with without_imports() if run.services.dry_run else contextlib.nullcontext():
        return await _evaluate_in(run, spec, frame)


async def _evaluate_in(run: Run, spec: RunSpec, frame: Frame) -> Outcome:
    try:
        if spec.node is not None:
            await check_sandboxes(run, spec.node, frame)
        if run.options.shots and not isinstance(spec.node, Atomic):
            raise UsageError("shots are turns of the conversation of an atomic task, and this task is not atomic")
        if spec.body is not None:
            return await spec.body(run, frame)
        if spec.node is None or isinstance(spec.node, Function):
            raise TypeError(f"a run of {spec.request!r} has neither a node nor a body")
        return await run.services.evaluate(run, spec.node, frame)
    except Exception as error:
        return to_task_error(error, run.budget.usage)


def _complete(outcome: Outcome, run: Run, spec: RunSpec, task_id: TaskId | None, *, is_root: bool) -> Outcome:
    """The outcome with its task id, its usage, and the notes that belong to the run as a whole."""
    budget, earlier = run.budget, run.steps.earlier
    notes: dict[str, Any] = {**outcome.notes}
    if spec.warnings:
        notes["warnings"] = [*spec.warnings, *notes.get("warnings", ())]
    if budget.cached_calls:
        notes["cached_calls"] = budget.cached_calls
    waited_s = budget.waited_s()
    if waited_s >= _MIN_NOTED_WAIT_S:
        notes["waited_s"] = round(waited_s, 3)
    if spec.match_score is not None:
        notes["matched"] = {"template": spec.template, "score": round(spec.match_score, 4)}
    if isinstance(earlier, ResumedSteps) and is_root:
        progress = earlier.progress
        notes["resumed"] = {"steps_from_record": progress.reused, "steps_run": progress.ran}
        notes["warnings"] = [*notes.get("warnings", ()), *progress.warnings]
    if isinstance(outcome, TaskResult):  # in full: it runs for every task
        return TaskResult(outcome.status, outcome.content, outcome.parsed_content, notes, budget.usage, task_id)
    return replace(outcome, notes=notes, usage=budget.usage, task_id=task_id)


# -- the task file ----------------------------------------------------------------------------------------------


def _task_id(steps: StepLog) -> TaskId | None:
    if steps.journal is not None:
        return TaskId(steps.journal.id)
    header = None if steps.earlier is None else steps.earlier.recording.header
    return None if header is None else TaskId(header.task_id)


async def _open(services: Services, spec: RunSpec, options: RunOptions, parent: Parent | None) -> StepLog | Recording:
    """A new task file, or that of the subtask which an earlier run began: as its recording, if it has ended."""
    above = None if parent is None else parent.run.steps
    never_began: int | None = None
    if parent is not None and above is not None and above.earlier is not None:
        try:
            found = await _open_child(services, parent, above.earlier)
        except TaskNotBegun:
            never_began, found = above.earlier.child_id(f"{parent.path}/subtask"), None
        if found is not None:
            return found
    store = services.store
    if store is None:
        return StepLog(None)
    journal = store.create(
        template=spec.template, template_sha256=spec.template_sha256, template_version=spec.template_version,
        request=spec.request, inputs=spec.inputs, model=options.model,
        parent=None if above is None or above.journal is None else above.journal.id,
        extra=_header_extra(services, spec, options if parent is None else None), reuse=never_began,
    )  # fmt: skip
    earlier = None if above is None or above.earlier is None else above.earlier.child(Recording(None))
    return StepLog(journal, earlier, store.redactor)


def _header_extra(services: Services, spec: RunSpec, options: RunOptions | None) -> dict[str, Any]:
    """Further header fields: the non-default options that are needed to start the run again.

    `options` is None for a subtask, which is resumed with its parent.
    """
    extra = dict(spec.extra)
    if options is not None:
        scrub = None if services.store is None else services.store.redactor
        redacted = [] if scrub is None else [n for n, v in spec.inputs.items() if scrub.redact_value(v) != v]
        shots = recorded_shots(options.shots)
        values = {
            "handler": options.handler,
            "target": options.target,
            "epoch": options.epoch if options.epoch != 1 else None,
            "model_roles": options.model_roles or None,
            "max_depth": services.max_depth if services.max_depth != DEFAULT_MAX_DEPTH else None,
            "reparse": services.reparse or None,
            "redacted_inputs": redacted or None,
            "root": str(services.root),
            "labels": dict(options.labels) if options.labels else None,
            "shots": shots or None,
            "redacted_shots": (scrub is not None and scrub.redact_value(shots) != shots) or None,
        }
        extra.update((name, value) for name, value in values.items() if value is not None)
    if isinstance(xml := extra.get("node"), str):
        extra["signature"] = signature(xml.encode("utf-8", "surrogatepass"))
    if spec.match_score is not None:
        extra["match_score"] = spec.match_score
    return extra


def recorded_shots(shots: Shots) -> list[Any]:
    """Few-shot examples as a header has them."""
    return [[dict(inputs), answer] for inputs, answer in shots]


async def _open_child(services: Services, parent: Parent, earlier: RecordedSteps) -> StepLog | Recording | None:
    """The task file of a subtask that the earlier run began; None if a new one is needed.

    Raises: TaskNotBegun, if that file ends inside its header.
    """
    store = services.store
    task_id = earlier.child_id(f"{parent.path}/subtask")
    if store is None or task_id is None:
        return None if earlier.may_run() else StepLog(None, earlier.child(Recording(None)))
    if not earlier.may_run():
        return StepLog(None, earlier.child(await asyncio.to_thread(store.read, task_id)), store.redactor)
    try:
        journal, recording = await asyncio.to_thread(store.reopen, task_id)
    except TaskNotBegun:
        raise
    except RecordError as error:
        # A second run would cost money twice, and the parent's model must not read this as an answer.
        raise earlier.progress.halt(error) from error
    if recording.status == "completed" or recording.status == "failed":
        journal.settle(recording.status)
        return recording
    return StepLog(journal, earlier.child(recording), store.redactor)


def recorded_outcome(recording: Recording) -> Outcome:
    """The outcome of a run that has ended. Raises: RecordError, if its file does not contain one."""
    try:
        return outcome_from_dict({} if recording.summary is None else recording.summary.result)
    except (LookupError, TypeError, ValueError) as error:
        number = "?" if recording.header is None else recording.header.task_id
        raise RecordError(
            f"TASK-{number} has ended, but its file holds no result; run it again instead of resuming it"
        ) from error


async def _return_recorded(recording: Recording, parent: Parent | None, link: _SubtaskLink | None) -> Outcome:
    """The outcome of a subtask that ended before its parent was interrupted. Also ends the step that names it."""
    outcome = recorded_outcome(recording)
    if parent is not None:
        parent.budget.charge(outcome.usage)
        for model in outcome.notes.get("models", ()):
            parent.budget.add_model(model)
        parent.budget.count_cached(outcome.notes.get("cached_calls", 0))
    if link is not None and recording.header is not None and recording.summary is not None:
        await link.begin(TaskId(recording.header.task_id))
        await link.end(outcome, recording.summary.duration_s)
    return outcome


def _folder_error(services: Services, error: Exception) -> RecordNotWritten:
    place = ascii(str(services.store.root))[:200] if services.store is not None else "the task folder"
    why = getattr(error, "strerror", None) or error
    return RecordNotWritten(f"{place}: no task file can be created: {why}; choose another folder")


class _SubtaskLink:
    """The step in the parent's record that names the subtask's own file before the subtask has any effect."""

    __slots__ = ("_number", "_path", "_spec", "_steps")

    def __init__(self, parent: Parent, spec: RunSpec) -> None:
        self._steps, self._path, self._spec = parent.run.steps, f"{parent.path}/subtask", spec
        # None: the step is not begun, or an earlier run ended it already.
        self._number: int | None = None

    async def begin(self, task_id: TaskId | None) -> None:
        spec, steps = self._spec, self._steps
        request = {"template": spec.template, "description": spec.request, "inputs": dict(spec.inputs)}
        fingerprint = steps.fingerprint(request)
        args = {
            "status": Status.CONTINUATION.value, "task_id": task_id, "template": spec.template,
            "description": spec.request,
        }  # fmt: skip
        if steps.recorded(self._path, "subtask", fingerprint, args) is None:
            self._number = await steps.begin(self._path, "subtask", spec.template or "subtask", args, fingerprint)

    async def end(self, outcome: Outcome, duration_s: float) -> None:
        if self._number is None:
            return
        output = {"task_id": outcome.task_id, "status": outcome.status.value}
        usage = outcome.usage.to_dict()
        if outcome.ok:
            await self._steps.succeed(self._number, output, duration_s, usage=usage)
        else:
            await self._steps.fail(self._number, output, duration_s, "the subtask failed", usage=usage)

    def abort(self, duration_s: float, error: str) -> None:
        if self._number is not None:
            self._steps.abort(self._number, "", duration_s, error)


async def _close(run: Run, spec: RunSpec, outcome: Outcome, duration_s: float, *, is_root: bool) -> Outcome:
    """Closes the task file. Returns: the outcome, changed if the run was halted or its end cannot be written."""
    steps, journal = run.steps, run.steps.journal
    was_not_resumed = False
    if journal is not None and journal.is_untouched and isinstance(outcome, TaskError):
        was_not_resumed = isinstance(outcome.cause, _FIXABLE)
        if was_not_resumed and steps.earlier is not None and not is_root:
            # The parent's model must not read this as an answer.
            steps.earlier.progress.halt(RecordError(f"a subtask cannot be resumed: {outcome.message}"))
    if steps.earlier is not None and steps.halted is not None:
        if journal is not None:
            journal.abandon()
        error = to_task_error(steps.halted, outcome.usage)
        warnings = [*outcome.notes.get("warnings", ()), *steps.earlier.progress.context_warnings]
        return replace(error, task_id=outcome.task_id, notes={**outcome.notes, "warnings": warnings})
    if journal is None:
        return outcome
    if was_not_resumed:
        journal.abandon()
        return outcome
    if isinstance(steps.earlier, ResumedSteps):
        duration_s += steps.earlier.duration_s()
    status: FinalStatus = "completed"
    if isinstance(outcome, TaskError):
        status = "aborted" if isinstance(outcome.cause, (CallRejected, MachineError)) else "failed"
    reason = outcome.message if isinstance(outcome, TaskError) else None
    usage, result = outcome.usage.non_zero(), outcome.to_dict()
    try:
        await steps.close(_summary(run, spec, journal, status, duration_s, reason, usage, result))
    except RecordError as error:
        journal.abandon()
        if not is_root:
            # The parent's model must not read an answer that the record of the subtask lacks.
            run.budget.refuse(RecordNotWritten(str(error)))
            return replace(to_task_error(error, outcome.usage), task_id=outcome.task_id, notes=outcome.notes)
        warning = f"the end of this run is not in its task file: {error}"
        return replace(outcome, notes={**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]})
    return outcome


def _abort(run: Run, spec: RunSpec, error: BaseException, duration_s: float) -> None:
    journal = run.steps.journal
    if journal is None:
        return
    if run.steps.halted is None:
        reason = "interrupted" if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) else repr(error)
        # Without a summary the file reads as interrupted, which is true.
        with contextlib.suppress(RecordError):
            journal.close(_summary(run, spec, journal, "aborted", duration_s, reason, run.budget.usage.to_dict()))
    journal.abandon()


def _summary(
    run: Run,
    spec: RunSpec,
    journal: Journal,
    status: FinalStatus,
    duration_s: float,
    reason: str | None,
    usage: Mapping[str, Any],
    result: Any = None,
) -> Summary:
    planned = None
    if status != "completed" and spec.node is not None:
        planned = planned_steps(spec.node, run.services.library, spec.inputs)
        if planned is not None and planned < journal.steps:
            planned = None
    return Summary(
        status, journal.steps, journal.retries, duration_s, usage, result, reason, planned, tuple(journal.models)
    )
