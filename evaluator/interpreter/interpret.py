"""Evaluates one node: binds its inputs, resolves its texts, assembles its context, runs its operator.

Whatever goes wrong below becomes a TaskError here, with what the task had used; only cancellation passes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from evaluator.binding.sandbox import render
from evaluator.errors import LimitReached
from evaluator.handler.config import HandlerConfig
from evaluator.handler.limits import Budget
from evaluator.interpreter import arguments, reparse
from evaluator.interpreter.context import assemble, policy_of
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Frame, Outcome, Run
from evaluator.interpreter.operators import atomic, branch, call, loop, reduce, script, sequential
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.settings import handler_config
from evaluator.nodes import (
    Atomic,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Node,
    Reduce,
    Script,
    Sequential,
    Task,
)


async def evaluate_node(run: Run, node: Node, frame: Frame) -> Outcome:
    """The result of `node` in `frame`; a failure is returned, not raised."""
    if isinstance(node, Task):
        return await _evaluate_task(run, node, frame)
    try:
        if isinstance(node, Call):
            return await call.run(run, node, frame)
        assert isinstance(node, Cond)
        return await branch.run(run, node, frame)
    except Exception as error:
        return to_task_error(error, location=node.span)


async def _evaluate_task(run: Run, task: Task, frame: Frame) -> Outcome:
    prepared: Prepared | None = None
    try:
        bound = await arguments.bind_task(run, task, frame)
        if not isinstance(bound, arguments.Bound):
            return bound
        prepared = await _prepare(run, task, frame, bound)
        return await _within_time(run, task, prepared)
    except Exception as error:
        failed = to_task_error(error, location=task.span)
    if prepared is not None:
        # What was used and what had come is kept, whatever ended the task.
        budget = prepared.budget
        failed = replace(
            failed, usage=budget.usage, content=failed.content or budget.partial,
            maybe_billed=failed.maybe_billed or budget.maybe_billed,
        )  # fmt: skip
    if prepared is not None and reparse.is_recoverable(run, task, prepared, failed):
        return await reparse.recover(run, task, prepared, failed)
    return failed


async def _prepare(run: Run, task: Task, frame: Frame, bound: arguments.Bound) -> Prepared:
    scope = bound.scope
    config = handler_config(run, task, scope)
    functions = call.functions_in_text(run, frame, "description")
    description = await render(task.description, scope, functions=functions)
    policy = policy_of(task, is_subtask=frame.is_subtask)
    context = await assemble(
        task, policy, frame.context, description, scope, run.services, run.steps, frame.path, config.mcp,
        config.script_memory_bytes,
    )  # fmt: skip
    budget = _budget(task, config, frame, run)
    return Prepared(task, scope, description, policy, context, config, budget, frame, bound.values)


async def _within_time(run: Run, task: Task, prepared: Prepared) -> Outcome:
    budget = prepared.budget
    if budget.timeout_s is None:
        return await _dispatch(run, task, prepared)
    limit: asyncio.Timeout | None = None
    try:
        async with budget.deadline() as limit:
            return await _dispatch(run, task, prepared)
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise
        message = f"{budget.owner} passed its {budget.timeout_s:g} s"
        raise LimitReached("time", round(budget.elapsed_s(), 3), budget.timeout_s, message) from error


def _budget(task: Task, config: HandlerConfig, frame: Frame, run: Run) -> Budget:
    """A budget of the task's own below its parent's. A composite has limits only where its template says so."""
    owner = task.name or frame.path or task.type
    parent = frame.budget or run.budget
    if isinstance(task, Atomic):
        return Budget(
            owner, max_turns=config.max_turns, max_cost_usd=config.max_cost_usd, timeout_s=config.timeout_s,
            parent=parent,
        )  # fmt: skip
    said = task.handler
    return Budget(
        owner,
        max_turns=config.max_turns if said is not None and said.max_turns is not None else None,
        max_cost_usd=config.max_cost_usd if said is not None and said.max_cost_usd is not None else None,
        timeout_s=config.timeout_s if said is not None and said.timeout_s is not None else None,
        parent=parent,
    )


async def _dispatch(run: Run, task: Task, prepared: Prepared) -> Outcome:
    match task:
        case Atomic():
            return await atomic.run(run, task, prepared)
        case Sequential():
            return await sequential.run(run, task, prepared)
        case Reduce():
            return await reduce.run(run, task, prepared)
        case Script():
            return await script.run(run, task, prepared)
        case DirectorEvaluatorLoop():
            return await loop.run(run, task, prepared)
        case _:
            raise TypeError(f"{type(task).__name__} is not one of the five operators")
