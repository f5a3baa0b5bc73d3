"""Evaluates one node: prepares its task, binds it to its values, runs its operator.

Every exception becomes a TaskError here, with the usage of the task. Only cancellation is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from evaluator.errors import MachineError
from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.binding import BoundTask, bind, prepare
from evaluator.interpreter.calls import run_call, run_cond
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Frame, Run
from evaluator.interpreter.notes import advice_for, summary_of
from evaluator.interpreter.operators import RUNNERS
from evaluator.nodes import Call, Cond, Node, Task


def evaluate_node(run: Run, node: Node, frame: Frame) -> Awaitable[Outcome]:
    """The result of `node` in `frame`; a failure is returned, not raised."""
    if isinstance(node, Task):
        return _evaluate_task(run, node, frame=frame)
    return _evaluate_step(run, node, frame=frame)


async def _evaluate_step(run: Run, node: Call | Cond, frame: Frame) -> Outcome:
    try:
        if isinstance(node, Call):
            return await run_call(run, node, frame=frame)
        return await run_cond(run, node, frame=frame)
    except Exception as error:
        return to_task_error(error, location=node.span)


async def _evaluate_task(run: Run, task: Task, frame: Frame) -> Outcome:
    bound: BoundTask | None = None
    try:
        prepared = prepare(task, frame)
        outcome = await bind(run, prepared, frame)
        if isinstance(outcome, TaskError):
            return outcome
        bound = outcome
        task = prepared.task
        limit = bound.budget.own_deadline()
        try:
            with limit:
                outcome = await RUNNERS[type(task)](run, task, bound)
        except TimeoutError as error:
            if limit.expired is None:
                raise
            raise limit.expired.time_is_up() from error
        if isinstance(outcome, TaskError):
            return _with_advice(task, outcome)
        return outcome
    except Exception as error:
        failed = to_task_error(error, location=task.span)
    if isinstance(failed.cause, MachineError):
        run.budget.refuse(failed.cause)
    if bound is not None:
        # Usage and partial content are kept, however the task ended.
        budget = bound.budget
        failed = replace(
            failed,
            usage=budget.usage,
            content=failed.content or budget.partial,
            maybe_billed=failed.maybe_billed or budget.maybe_billed,
            notes={**bound.notes(), **failed.notes},
            details={**bound.details, **failed.details},
        )
        from evaluator.interpreter import reparse

        if reparse.is_recoverable(run, task, bound, failed):
            return await reparse.recover(run, task, bound, failed)
    return _with_advice(task, failed)


def _with_advice(task: Task, failed: TaskError) -> TaskError:
    """`failed` with the notes that every error has."""
    if "recovery" in failed.notes:
        return failed
    notes = {
        "template": task.name,
        "data_usage": [],
        "context": [],
        "models": [],
        "warnings": [],
        **failed.notes,
    }
    return replace(
        failed,
        notes={**notes, "recovery": advice_for(failed), "summary": summary_of(failed.content)},
    )
