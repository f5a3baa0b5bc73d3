"""One recorded run: its task file is begun before anything is done, and closed with the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.errors.results import Outcome, TaskError, TaskId, TaskResult, Usage
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Frame, Run, RunOptions, Services, Shots
from evaluator.interpreter.run_record import RunRecord
from evaluator.interpreter.sandboxing import check_sandboxes
from evaluator.language.scopes import plain
from evaluator.limits.budget import Budget
from evaluator.nodes import Atomic, Function
from evaluator.output.schema import schema_imports
from evaluator.record.recorded_steps import ResumedSteps
from evaluator.record.step_log import StepLog

_MIN_NOTED_WAIT_S = 0.001
Binder = Callable[[dict[str, Any]], Run | TaskError]
"""The run of a request with these inputs, or why there is none."""


class PreparedRequest:
    """A request that was found, read or matched, with the options that its rows share."""

    __slots__ = ("_bind", "_domain", "options")

    def __init__(self, services: Services, options: RunOptions, bind: Binder | TaskError) -> None:
        self.options = options
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
            run = self._bind(values)
        except Exception as error:
            return to_task_error(error)
        if isinstance(run, TaskError):
            return run
        run.options = row_options
        run.domain = self._domain
        return await record_run(run)


def check_inputs(inputs: object) -> None:
    """Raises: UsageError, if these cannot be the inputs of a request."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise UsageError(f"inputs is {type_of(inputs)}, expected a mapping of names to values")


def _is_shot(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], Mapping)


def plain_shots(shots: Shots) -> Shots:
    """Few-shot examples as plain data.

    Raises: UsageError, for anything but pairs of inputs and answer.
    """
    for shot in shots:
        if not _is_shot(shot):
            raise UsageError(f"shots has {shot!r:.60}, expected pairs of inputs and answer")
    return tuple(
        (cast("dict[str, Any]", plain(dict(inputs))), str(answer)) for inputs, answer in shots
    )


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
    record = RunRecord(run)
    ended = await record.open(steps)
    if ended is not None:
        return ended
    async with record:
        with run.services.tracer.task(run.template, run.template_version, record.task_id) as span:
            outcome = _complete(run, await _evaluate(run), record.task_id)
            outcome = await record.close(outcome)
            span.set_result(outcome)
    return outcome


async def _evaluate(run: Run) -> Outcome:
    services = run.services
    node = run.node
    # A preview runs nothing of the project, so it imports nothing either.
    if services.dry_run:
        imports = "none"
    elif services.trust:
        imports = "all"
    else:
        imports = "allowed"
    try:
        with schema_imports(imports):
            frame = _frame_of(run)
            if node is not None and id(node) not in frame.domain.tried:
                await check_sandboxes(run, node, frame.domain)
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


def _frame_of(run: Run) -> Frame:
    """The frame of the node of a run."""
    if run.caller is not None:
        return replace(run.caller, path="", budget=run.budget)
    handler = run.options.handler
    if run.template_sha256 is not None:
        domain = run.services.domain(handler)
    else:
        domain = run.domain or run.services.new_domain(handler)
    return Frame(
        run.scope,
        domain,
        context=run.context,
        arguments=run.arguments,
        budget=run.budget,
    )


def _complete(run: Run, outcome: Outcome, task_id: TaskId | None) -> Outcome:
    """The outcome with its task id, and the usage and the notes of the run as a whole."""
    budget = run.budget
    earlier = run.steps.earlier
    if budget.refused is not None:
        stopped = to_task_error(budget.refused)
        content = stopped.content
        if isinstance(outcome, TaskError):
            content = content or outcome.content
        outcome = replace(stopped, content=content)
    if isinstance(earlier, ResumedSteps):
        for usage in earlier.unused_usage():
            budget.charge(Usage.from_dict(usage))
    notes: dict[str, Any] = {**outcome.notes}
    if run.warnings:
        notes["warnings"] = [*run.warnings, *notes.get("warnings", ())]
    if budget.cached_calls:
        notes["cached_calls"] = budget.cached_calls
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
    return replace(outcome, notes=notes, usage=budget.usage, task_id=task_id)
