"""Evaluates one node: binds its inputs, resolves its texts, assembles its context, runs its
operator.

Every exception becomes a TaskError here, with the usage of the task. Only cancellation is raised.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from evaluator.errors import LimitReached, MachineError
from evaluator.errors.results import Outcome, TaskError
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter import reparse
from evaluator.interpreter.calls import functions_in_text, run_call, run_cond, usable_schema
from evaluator.interpreter.context import assemble, policy_of
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Frame, Run, Services
from evaluator.interpreter.notes import advice_for, summary_of
from evaluator.interpreter.operators import RUNNERS
from evaluator.interpreter.prepared import Bound, PreparedTask, bind_task
from evaluator.interpreter.sandboxing import sandbox_of
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import render_prompt
from evaluator.language.scopes import Scope
from evaluator.limits.budget import Budget, out_of_time
from evaluator.nodes import Call, HandlerSpec, Node, Task
from evaluator.nodes.declare import fields_with


async def evaluate_node(run: Run, node: Node, frame: Frame) -> Outcome:
    """The result of `node` in `frame`; a failure is returned, not raised."""
    if isinstance(node, Task):
        return await _evaluate_task(run, node, frame=frame)
    try:
        if isinstance(node, Call):
            return await run_call(run, node, frame=frame)
        return await run_cond(run, node, frame=frame)
    except Exception as error:
        return to_task_error(error, location=node.span)


async def _evaluate_task(run: Run, task: Task, frame: Frame) -> Outcome:
    prepared: PreparedTask | None = None
    try:
        frame = _frame_of(run, task, frame=frame)
        task = _with_schema(run.services, task)
        bound = await bind_task(run, task, frame)
        if not isinstance(bound, Bound):
            return bound
        prepared = await _prepare(run, task, frame=frame, bound=bound)
        outcome = await _within_time(run, task, prepared=prepared)
        if isinstance(outcome, TaskError):
            return _with_advice(task, outcome)
        return outcome
    except Exception as error:
        failed = to_task_error(error, location=task.span)
    if isinstance(failed.cause, MachineError):
        run.budget.refuse(failed.cause)
    if prepared is not None:
        # Usage and partial content are kept, however the task ended.
        budget = prepared.budget
        failed = replace(
            failed,
            usage=budget.usage,
            content=failed.content or budget.partial,
            maybe_billed=failed.maybe_billed or budget.maybe_billed,
            notes={**prepared.notes(), **failed.notes},
            details={**prepared.details, **failed.details},
        )
    if prepared is not None and reparse.is_recoverable(run, task, prepared, failed):
        return await reparse.recover(run, task, prepared, failed)
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


def _frame_of(run: Run, task: Task, frame: Frame) -> Frame:
    """The frame of `task` and of everything inside it, with its authority and its sandbox.

    Every path that starts a task comes through here. Raises: NotAllowed, if the task needs more
    than its authority.
    """
    frame.authority.check(task)
    config = _profile(run, task)
    authority = frame.authority.under(config)
    sandbox = sandbox_of(run.services, config, task=task, above=frame.sandbox)
    if authority is frame.authority and sandbox == frame.sandbox:
        return frame
    return replace(frame, authority=authority, sandbox=sandbox)


def _with_schema(services: Services, task: Task) -> Task:
    """`task` with the content of its schema file in place of the path. Raises: TemplateError."""
    output = task.output
    if output is None or output.schema is None:
        return task
    schema = usable_schema(services, output.schema, span=output.span)
    if schema is output.schema:
        return task
    return replace(task, output=replace(output, schema=schema))


async def _prepare(run: Run, task: Task, frame: Frame, bound: Bound) -> PreparedTask:
    scope = bound.scope
    config = frame.authority.limited(handler_config(run, task, scope=scope))
    if frame.sandbox != config.sandbox:
        config = replace(config, sandbox=frame.sandbox)
    functions = functions_in_text(run, frame, field="description")
    description = await render_prompt(task.description, scope, functions=functions)
    policy = policy_of(task, is_subtask=frame.is_subtask)
    if not frame.path and not frame.is_subtask:
        # Nothing is inherited here: the context was given with the request.
        policy = replace(policy, inherit_context="full")
    context = await assemble(
        run,
        task,
        policy=policy,
        inherited=frame.context,
        description=description,
        scope=scope,
        path=frame.path,
        config=config,
        authority=frame.authority,
    )
    budget = _budget(task, config, frame=frame, run=run)
    return PreparedTask(
        task,
        scope,
        description=description,
        policy=policy,
        context=context,
        config=config,
        budget=budget,
        frame=frame,
        values=bound.values,
    )


def handler_config(run: Run, task: Task, scope: Scope) -> HandlerConfig:
    """The task's profile with the template's overrides, placeholders resolved.

    Raises: ExpressionError, if a placeholder's value does not fit; ConfigurationError, for an
    unknown profile.
    """
    spec = task.handler
    config = _profile(run, task)
    if spec is None:
        return config
    settings = [field.name for field in fields_with(HandlerSpec, "setting")]
    if spec.extra_body is None:
        extra = None
    else:
        extra = {**config.extra_body, **spec.extra_body}
    return config.override(
        **{name: resolve_setting(spec, name, scope=scope) for name in settings},
        stop=spec.stop,
        extra_body=extra,
    )


def _profile(run: Run, task: Task) -> HandlerConfig:
    ref = None if task.handler is None else task.handler.ref
    return run.services.profile(run.options.handler or ref)


async def _within_time(run: Run, task: Task, prepared: PreparedTask) -> Outcome:
    budget = prepared.budget
    runner = RUNNERS[type(task)]
    if budget.timeout_s is None:
        return await runner(run, task, prepared)
    limit: asyncio.Timeout | None = None
    try:
        async with budget.deadline() as limit:
            return await runner(run, task, prepared)
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise
        message = f"{budget.owner} {out_of_time(budget.timeout_s)}"
        raise LimitReached(
            "time", round(budget.elapsed_s(), 3), limit=budget.timeout_s, message=message
        ) from error


def _budget(task: Task, config: HandlerConfig, frame: Frame, run: Run) -> Budget:
    """A budget for the task below its parent's. A task that asks no model has only the limits that
    it states itself.
    """
    stated = task.handler

    def limit(name: str) -> Any:
        is_stated = stated is not None and getattr(stated, name) is not None
        if task.asks_model or is_stated:
            return getattr(config, name)
        return None

    return Budget(
        task.name or frame.path or task.type,
        max_turns=limit("max_turns"),
        max_cost_usd=limit("max_cost_usd"),
        timeout_s=limit("timeout_s"),
        parent=frame.budget or run.budget,
    )
