"""One recorded run: its task file is begun before anything is done, and closed with the outcome.

A run is described by a `RunSpec` (what is evaluated), `RunOptions` (how) and, for a subtask, the
run and the frame of the tool call that asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from evaluator import clock
from evaluator.errors import EvaluatorError, MachineError, UsageError
from evaluator.errors.results import Outcome, Status, TaskError, TaskId, TaskResult, Usage
from evaluator.interpreter.evaluator_arguments import check_inputs, plain_shots
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Domain, Frame, Run, RunOptions, RunSpec, Services
from evaluator.interpreter.run_files import (
    abort_task_file,
    close_task_file,
    open_task_file,
    recorded_outcome,
    task_id_of,
)
from evaluator.interpreter.sandboxing import check_sandboxes
from evaluator.language.scopes import plain
from evaluator.limits.budget import Budget
from evaluator.nodes import Atomic, Function
from evaluator.output.schema import schema_imports
from evaluator.processes.sandboxes import NO_SANDBOX
from evaluator.record.recorded_steps import ResumedSteps
from evaluator.record.step_log import StepLog
from evaluator.record.steps import Recording, cut_off_reason

_MIN_NOTED_WAIT_S = 0.001
Binder = Callable[[dict[str, Any]], RunSpec | TaskError]
"""The run of a request with these inputs, or why there is none."""


class PreparedRequest:
    """A request that was found, read or matched, with the options that its rows share."""

    __slots__ = ("_bind", "_domain", "_services", "options")

    def __init__(self, services: Services, options: RunOptions, bind: Binder | TaskError) -> None:
        self.options = options
        self._services = services
        self._bind = bind
        self._domain = services.new_domain(options.handler)

    async def evaluate(self, inputs: Mapping[str, Any] | None = None, **options: Any) -> Outcome:
        """The outcome with the inputs of one row; `options` are further ones of
        `Evaluator.evaluate`.

        Raises: UsageError, for arguments of the wrong Python type.
        """
        check_inputs(inputs)
        row_options = self.options
        if options:
            if options.get("shots"):
                options["shots"] = plain_shots(options["shots"])
            row_options = replace(row_options, **options)
        epoch = row_options.epoch
        if type(epoch) is not int or epoch < 1:
            raise UsageError(f"epoch is {epoch!r}, expected an integer, 1 or more")
        try:
            values: dict[str, Any] = plain(inputs or {}, "inputs")
            if isinstance(self._bind, TaskError):
                return self._bind
            spec = self._bind(values)
        except Exception as error:
            return to_task_error(error)
        if isinstance(spec, TaskError):
            return spec
        return await record_run(self._services, spec, options=row_options, domain=self._domain)


async def record_run(
    services: Services,
    spec: RunSpec,
    options: RunOptions,
    *,
    steps: StepLog | None = None,
    parent: Run | None = None,
    caller: Frame | None = None,
    above: Budget | None = None,
    domain: Domain | None = None,
) -> Outcome:
    """Runs `spec`. Returns: the outcome with its usage and task id, after the task file is closed.

    `steps` is the log of a run that is resumed or replayed; without it a new task file is created.
    If the task file cannot be created or written, the run ends with an error before the next call.
    `parent` and `caller` are those of a subtask, see `Run`. The limits of `above`, or of the
    caller's budget, apply to the run too. `domain` is that of runs of the same node that is not a
    template of the library.
    """
    budget = Budget(
        spec.template or "the evaluation", parent=above if caller is None else caller.budget
    )
    run = Run(
        services,
        spec,
        options=options,
        budget=budget,
        steps=steps or StepLog(None),
        parent=parent,
        caller=caller,
        domain=domain,
    )
    if parent is None or caller is None:
        link = None
    else:
        link = _SubtaskLink(parent.steps, caller.path, spec=spec)
    try:
        if steps is None:
            opened = await open_task_file(run)
            if isinstance(opened, Recording):
                return await _return_recorded(opened, caller, link=link)
            run.steps = opened
        task_id = task_id_of(run.steps)
        if options.on_begin is not None and task_id is not None:
            options.on_begin(task_id)
        started = clock.monotonic()
        if link is not None:
            await _begin_link(link, run.steps, task_id=task_id)
    except EvaluatorError as error:
        failed = to_task_error(error)
        if isinstance(failed.cause, MachineError):
            # The tasks above do not continue without this one's answer.
            budget.refuse(failed.cause)
        return failed
    try:
        with services.tracer.task(spec.template, spec.template_version, task_id) as span:
            outcome = await _evaluate_and_close(run, started)
            span.set_result(outcome)
    except BaseException as error:
        duration_s = clock.monotonic() - started
        abort_task_file(run, error, duration_s)
        if link is not None:
            link.abort(duration_s, cut_off_reason(error, is_late=budget.is_late()))
        raise
    if link is not None and budget.refused is not None:
        link.abort(clock.monotonic() - started, str(budget.refused))
    elif link is not None and run.steps.halted is None:
        await link.end(outcome, clock.monotonic() - started)
    return outcome


async def _evaluate_and_close(run: Run, started: float) -> Outcome:
    steps = run.steps
    budget = run.budget
    outcome = await _evaluate(run)
    if budget.refused is not None:
        stopped = to_task_error(budget.refused)
        if isinstance(outcome, TaskError):
            content = outcome.content
        else:
            content = ""
        outcome = replace(stopped, content=stopped.content or content)
    if isinstance(steps.earlier, ResumedSteps):
        for usage in steps.earlier.unused_usage():
            budget.charge(Usage.from_dict(usage))
    outcome = _complete(run, outcome)
    duration_s = clock.monotonic() - started - budget.waited_s()
    return await close_task_file(run, outcome, duration_s=max(0.0, duration_s))


async def _begin_link(link: _SubtaskLink, steps: StepLog, task_id: TaskId | None) -> None:
    try:
        await link.begin(task_id)
    except BaseException:
        if steps.journal is not None:
            steps.journal.discard()
        raise


async def _evaluate(run: Run) -> Outcome:
    spec = run.spec
    services = run.services
    # A preview runs nothing of the project, so it imports nothing either.
    if services.dry_run:
        imports = "none"
    elif services.trust:
        imports = "all"
    else:
        imports = "allowed"
    try:
        with schema_imports(imports):
            if spec.node is not None:
                above = NO_SANDBOX if run.caller is None else run.caller.domain.sandbox
                await check_sandboxes(run, spec.node, above=above)
            frame = _frame_of(run)
            if run.options.shots and not isinstance(spec.node, Atomic):
                raise UsageError(
                    "shots are turns of the conversation of an atomic task, and this task is not "
                    "atomic"
                )
            if spec.body is not None:
                return await spec.body(run, frame)
            if spec.node is None or isinstance(spec.node, Function):
                raise TypeError(f"a run of {spec.request!r} has neither a node nor a body")
            return await services.evaluate(run, spec.node, frame)
    except Exception as error:
        return to_task_error(error, run.budget.usage)


def _frame_of(run: Run) -> Frame:
    """The frame of the node of a run."""
    if run.caller is not None:
        return replace(run.caller, path="", budget=run.budget)
    spec = run.spec
    handler = run.options.handler
    if spec.template_sha256 is not None:
        domain = run.services.domain(handler)
    else:
        domain = run.domain or run.services.new_domain(handler)
    return Frame(
        spec.scope,
        domain,
        context=spec.context,
        arguments=spec.arguments,
        budget=run.budget,
    )


def _complete(run: Run, outcome: Outcome) -> Outcome:
    """The outcome with its task id, its usage, and the notes that belong to the run as a whole."""
    spec = run.spec
    budget = run.budget
    earlier = run.steps.earlier
    task_id = task_id_of(run.steps)
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
    return replace(outcome, notes=notes, usage=budget.usage, task_id=task_id)


async def _return_recorded(
    recording: Recording, caller: Frame | None, link: _SubtaskLink | None
) -> Outcome:
    """The outcome of a subtask that ended before its parent was interrupted. Also ends the step
    that names it.
    """
    outcome = recorded_outcome(recording)
    if caller is not None and caller.budget is not None:
        caller.budget.charge(outcome.usage)
        for model in outcome.notes.get("models", ()):
            caller.budget.add_model(model)
        caller.budget.count_cached(outcome.notes.get("cached_calls", 0))
    if link is not None and recording.header is not None and recording.summary is not None:
        await link.begin(TaskId(recording.header.task_id))
        await link.end(outcome, recording.summary.duration_s)
    return outcome


class _SubtaskLink:
    """The step in the parent's record that names the subtask's own file before the subtask has any
    effect.
    """

    __slots__ = ("_number", "_path", "_spec", "_steps")

    def __init__(self, steps: StepLog, path: str, spec: RunSpec) -> None:
        self._steps = steps
        self._path = f"{path}/subtask"
        self._spec = spec
        # None: the step is not begun, or an earlier run ended it already.
        self._number: int | None = None

    async def begin(self, task_id: TaskId | None) -> None:
        spec = self._spec
        steps = self._steps
        request = {
            "template": spec.template,
            "description": spec.request,
            "inputs": dict(spec.inputs),
        }
        fingerprint = steps.fingerprint(request)
        args = {
            "status": Status.CONTINUATION.value,
            "task_id": task_id,
            "template": spec.template,
            "description": spec.request,
        }
        if steps.recorded(self._path, "subtask", fingerprint, args) is None:
            self._number = await steps.begin(
                self._path, "subtask", spec.template or "subtask", args, fingerprint
            )

    async def end(self, outcome: Outcome, duration_s: float) -> None:
        if self._number is None:
            return
        output = {"task_id": outcome.task_id, "status": outcome.status.value}
        usage = outcome.usage.to_dict()
        if outcome.ok:
            await self._steps.succeed(self._number, output, duration_s, usage=usage)
        else:
            await self._steps.fail(
                self._number, output, duration_s, "the subtask failed", usage=usage
            )

    def abort(self, duration_s: float, error: str) -> None:
        if self._number is not None:
            self._steps.abort(self._number, "", duration_s, error)
