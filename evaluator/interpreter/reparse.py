"""Recovery from exhausted resources: the model decomposes the task, and the decomposition is
evaluated.

This happens once for a task and never inside a decomposition. The decomposition is text from a
model: it is read leniently, validated like any template, and may contain no scripts, no commands,
and only the files and tools that the task had. If it cannot be used, the result is the first error
with the reason.

The decomposition shares the time and cost that the exhausted task had left. Turns, context and
output, which the task used up, start again for each of the smaller tasks. The limits of the tasks
above apply to all of it. Model and profile are those of the task, whatever the decomposition says.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evaluator.errors import ExpressionError
from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Run, join
from evaluator.interpreter.generated import (
    Allowance,
    describe,
    internal_template,
    note_generated,
    read_allowed,
)
from evaluator.interpreter.operators.atomic import choose
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import render, render_prompt
from evaluator.nodes import Atomic, HandlerSpec, Node, Task, Text
from evaluator.nodes.walk import replace_children

RECOVERABLE = frozenset({"turns", "context", "output"})
MAX_PARTIAL_CHARACTERS = 20_000


def is_recoverable(run: Run, task: Task, bound: BoundTask, error: TaskError) -> bool:
    """Whether a decomposition may help. It cannot if time or cost is exhausted, because it uses
    more of both.
    """
    if not run.services.reparse or run.services.dry_run or bound.frame.domain.is_reparsed:
        return False
    if (
        not task.asks_model
        or task.queries().most != 1
        or error.resource is None
        or error.resource.name not in RECOVERABLE
    ):
        return False
    refused = (
        resolve_setting(task, name, scope=bound.scope)
        for name in ("disable_reparsing", "manual_xml")
    )
    return not any(refused)


async def recover(run: Run, task: Task, bound: BoundTask, error: TaskError) -> Outcome:
    """The outcome of the decomposed task, or `error` with the reason why it could not be
    decomposed.
    """
    resource = error.resource
    budget = bound.budget
    if resource is None:
        return error
    budget.max_turns = (
        None  # each of the smaller tasks has its own; time and cost remain those of this task
    )
    limit = budget.deadline()
    try:
        with limit:
            outcome = await _recover(run, task, bound=bound, error=error, resource=resource.name)
    except TimeoutError:
        if limit.expired is None:
            raise
        outcome = _unrecovered(
            error, "the decomposition took longer than the time limit of the task"
        )
    return replace(outcome, usage=budget.usage)


async def _recover(
    run: Run, task: Task, bound: BoundTask, error: TaskError, resource: str
) -> Outcome:
    frame = bound.frame
    domain = frame.domain.inside(frame.domain.authority, frame.domain.sandbox, is_reparsed=True)
    inherited = await _inherited(task, bound)
    answer = await run.services.evaluate(
        run.inner(),
        _decomposer(run, inherited),
        frame.at(
            "reparse",
            domain=domain,
            budget=bound.budget,
            arguments=await _inputs(task, bound, error=error, resource=resource),
            context=(),
        ),
    )
    if isinstance(answer, TaskError):
        return _unrecovered(error, f"the decomposition failed: {answer.message}")
    authority = await _authority(run, task, bound=bound)
    generated = read_allowed(
        run.services.library,
        answer.content,
        allowance=Allowance("a decomposition", authority),
        file="<decomposition>",
    )
    # No person sees a decomposition before it runs, so one that may be incomplete is refused.
    generated = generated.with_errors(
        [replace(doubt, severity="error") for doubt in generated.doubts]
    )
    path = join(frame.path, "reparse/task")
    problem = note_generated(run, path, "decomposition", generated)
    if generated.node is None:
        return _unrecovered(error, f"the decomposition cannot be used: {problem}")
    node = _as_smaller(generated.node, inherited)
    smaller = frame.at(
        "reparsed",
        domain=domain.inside(authority, domain.sandbox),
        budget=bound.budget,
        wants_notes=frame.wants_notes,
    )
    with run.services.schema_imports(authority):
        outcome = await run.services.evaluate(run, node, smaller)
    if isinstance(outcome, TaskError):
        failed = _unrecovered(error, f"the decomposed task failed: {outcome.message}")
        return replace(failed, maybe_billed=failed.maybe_billed or outcome.maybe_billed)
    notes = {
        **outcome.notes,
        "warnings": [
            *(f"decomposition, {describe(warning)}" for warning in generated.warnings),
            *outcome.notes.get("warnings", ()),
        ],
        "reparsed_after": {"resource": resource, "message": error.message},
    }
    return TaskResult(
        outcome.status,
        outcome.content,
        parsed_content=outcome.parsed_content,
        notes=notes,
        usage=outcome.usage,
    )


def _decomposer(run: Run, inherited: dict[str, Any]) -> Atomic:
    """The template `decompose`, with the task's model and profile if it names none itself."""
    template = internal_template(run.services, "decompose")
    if (
        template.handler is not None
        or template.model is not None
        or template.model_role is not None
    ):
        return template
    ref = inherited["handler"].ref
    handler = None
    if ref is not None:
        handler = HandlerSpec(ref=ref)
    return replace(template, **inherited | {"handler": handler})


async def _authority(run: Run, task: Task, bound: BoundTask) -> Authority:
    """The authority of the decomposition: the tools, the provider and the named files of the
    task.
    """
    if task.model is None:
        named = None
    else:
        named = (await render(task.model, bound.scope)).strip()
    choice = await choose(run, named, bound=bound, role=task.model_role)
    above = bound.frame.domain.authority
    names = frozenset((*task.tools, *(grant.name for grant in bound.config.tools)))
    if above.tools is not None:
        names &= above.tools
    authority = above.chosen_by_model(bound.config, (), choice.endpoint)
    return replace(authority, tools=names, files=await _files(run, task, bound=bound))


async def _files(run: Run, task: Task, bound: BoundTask) -> frozenset[str]:
    """The paths and patterns in the `file_paths` of the task that it may read itself."""
    above = bound.frame.domain.authority
    if task.file_paths is None:
        return frozenset()
    names = [(await render(item, bound.scope)).strip() for item in task.file_paths.items]
    if task.file_paths.source == "literal":
        access = run.services.files
        return frozenset(name for name in names if above.reading(name, access) == "allow")
    # What a pattern finds is decided for each path, unless the pattern itself is allowed.
    return frozenset(name for name in names if above.files is None or name in above.files)


async def _inputs(task: Task, bound: BoundTask, error: TaskError, resource: str) -> dict[str, str]:
    """The inputs of the template `decompose`."""
    parts = [bound.description]
    if task.instructions is not None:
        with suppress(
            ExpressionError
        ):  # the texts call a function template, whose calls are not repeated
            parts.append(f"Instructions: {await render_prompt(task.instructions, bound.scope)}")
    parts.append(f"Inputs: {json.dumps(dict(bound.values), ensure_ascii=False, default=str)}")
    return {
        "task": "\n\n".join(parts),
        "resource": resource,
        "partial": error.content[:MAX_PARTIAL_CHARACTERS],
    }


async def _inherited(task: Task, bound: BoundTask) -> dict[str, Any]:
    """The fields of the exhausted task that each smaller one has too: profile with limits, model
    and role.
    """
    config = bound.config
    model = task.model
    if model is not None:
        # As a literal, because a resolved text is never resolved again.
        model = Text(f"{{{{ {json.dumps(await render(model, bound.scope))} }}}}", model.span)
    handler = HandlerSpec(
        ref=task.profile,
        max_turns=config.max_turns,
        max_context_fraction=config.max_context_fraction,
        max_output_tokens=config.max_output_tokens,
        span=task.span,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        seed=config.seed,
        stop=config.stop or None,
        logprobs=config.logprobs,
        echo=config.echo,
        extra_body=config.extra_body or None,
    )
    return {"handler": handler, "model": model, "model_role": task.model_role}


def _as_smaller(node: Node, inherited: dict[str, Any]) -> Node:
    """`node` with model, profile and limits of the task that it decomposes, in every task
    inside.
    """
    if isinstance(node, Task):
        fields = inherited
        if not node.asks_model:
            fields = {"handler": None}
        node = replace(node, **fields)
    return replace_children(node, lambda child: _as_smaller(child, inherited))


def _unrecovered(error: TaskError, why: str) -> TaskError:
    return replace(error, details={**error.details, "reparse": why})
