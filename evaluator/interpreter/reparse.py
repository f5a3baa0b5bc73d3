"""Recovery from exhausted resources: a task that ran out is decomposed by the model, and that is evaluated.

Once for a task, never inside a decomposition. The decomposition is text from a model: it is read leniently,
validated like any template, and may hold neither scripts, nor commands, nor files or tools that the task did not
have. Where it cannot be used the first error stands, and says why.

Its limits: of time and cost, what the exhausted task had left; turns, context and output, which the task used up,
for each of its tasks what the one task had. The limits of the tasks above hold for all of it. Model and profile
are those of the task, whatever the decomposition says.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace

from evaluator.binding.inputs import resolve_setting
from evaluator.binding.sandbox import render
from evaluator.errors import Diagnostic, ExpressionError
from evaluator.interpreter.frame import Frame, Outcome, Run, join
from evaluator.interpreter.internal import internal_template
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.written import Allowance, read_allowed, said
from evaluator.nodes import (
    Atomic,
    Cond,
    DirectorEvaluatorLoop,
    HandlerSpec,
    Node,
    Reduce,
    Sequential,
    Task,
    Text,
)
from evaluator.results import TaskError, TaskResult
from evaluator.xml.written import WrittenTask

RECOVERABLE = frozenset({"turns", "context", "output"})
MAX_PARTIAL_CHARACTERS = 20_000


def is_recoverable(run: Run, task: Task, prepared: Prepared, error: TaskError) -> bool:
    """Whether a decomposition may help: not for time and cost, which it would only use up further."""
    if not run.services.reparse or run.services.dry_run or prepared.frame.is_reparsed:
        return False
    if not isinstance(task, Atomic) or error.resource is None or error.resource.name not in RECOVERABLE:
        return False
    refused = (
        resolve_setting(setting, "bool", prepared.scope, name=name)
        for setting, name in ((task.disable_reparsing, "disable_reparsing"), (task.manual_xml, "manual_xml"))
    )
    return not any(refused)


async def recover(run: Run, task: Task, prepared: Prepared, error: TaskError) -> Outcome:
    """The outcome of the decomposed task, or `error` with the reason why there is none."""
    budget = prepared.budget
    budget.max_turns = None  # each of the smaller tasks has as many; time and cost go on being this task's
    limit: asyncio.Timeout | None = None
    try:
        async with budget.deadline() as limit:
            outcome = await _recover(run, task, prepared, error)
    except TimeoutError:
        if limit is None or not limit.expired():
            raise
        outcome = _unrecovered(error, "the decomposition passed the time limit of the task")
    return replace(outcome, usage=budget.usage)


async def _recover(run: Run, task: Task, prepared: Prepared, error: TaskError) -> Outcome:
    assert error.resource is not None
    frame = replace(prepared.frame, budget=prepared.budget, is_reparsed=True)
    settings = await _inherited(task, prepared)
    answer = await run.services.evaluate(
        replace(run, on_text=None, target=None), _decomposer(run, settings),
        frame.at("reparse", arguments=await _asked(task, prepared, error), context=()),
    )  # fmt: skip
    if isinstance(answer, TaskError):
        return _unrecovered(error, f"the decomposition failed: {answer.message}")
    written = read_allowed(run.services.library, answer.content, _allowance(task), "<decomposition>")
    written = written.refused([_too_doubtful(one) for one in written.doubts])
    problem = "; ".join(str(one) for one in written.errors)
    _note(run, frame, written, problem)
    if written.node is None:
        return _unrecovered(error, f"the decomposition cannot be used: {problem}")
    node = _as_smaller(written.node, settings)
    outcome = await run.services.evaluate(run, node, frame.at("reparsed"))
    if isinstance(outcome, TaskError):
        failed = _unrecovered(error, f"the decomposed task failed: {outcome.message}")
        return replace(failed, maybe_billed=failed.maybe_billed or outcome.maybe_billed)
    repairs = [f"decomposition, {said(warning)}" for warning in written.warnings]
    notes = {
        **outcome.notes,
        "warnings": [*repairs, *outcome.notes.get("warnings", ())],
        "reparsed_after": {"resource": error.resource.name, "message": error.message},
    }
    return TaskResult(outcome.status, outcome.content, outcome.parsed_content, notes, outcome.usage)


def _decomposer(run: Run, settings: _Settings) -> Atomic:
    """The template that decomposes; where it names neither model nor profile, with those of the task."""
    template = internal_template(run.services, "decompose")
    if template.handler is not None or template.model is not None or template.model_role is not None:
        return template
    handler = None if settings.handler.ref is None else HandlerSpec(ref=settings.handler.ref)
    return replace(template, handler=handler, model=settings.model, model_role=settings.model_role)


async def _asked(task: Task, prepared: Prepared, error: TaskError) -> dict[str, str]:
    assert error.resource is not None
    parts = [prepared.description]
    if task.instructions is not None:
        try:
            parts.append(f"Instructions: {await render(task.instructions, prepared.scope)}")
        except ExpressionError:
            pass  # they call a function: its calls are not made again to say what they were
    parts.append(f"Inputs: {json.dumps(dict(prepared.values), ensure_ascii=False, default=str)}")
    return {
        "task": "\n\n".join(parts),
        "resource": error.resource.name,
        "partial": error.content[:MAX_PARTIAL_CHARACTERS],
    }


def _allowance(task: Task) -> Allowance:
    files = () if task.file_paths is None else task.file_paths.items
    return Allowance(
        "a decomposition", tools=frozenset(task.tools), files=frozenset(item.value for item in files)
    )  # fmt: skip


def _too_doubtful(warning: Diagnostic) -> Diagnostic:
    # Nobody sees a decomposition before it runs: one that may lack its end would pass for the whole.
    return replace(warning, severity="error")


def _note(run: Run, frame: Frame, written: WrittenTask, problem: str) -> None:
    """What was read, and what is evaluated, in the record."""
    output = {"warnings": [said(warning) for warning in written.warnings], "xml": written.kept_xml}
    path = join(frame.path, "reparse/task")
    run.steps.note(path, "parse", "decomposition", None, output, error=problem or None)


@dataclass(frozen=True, slots=True)
class _Settings:
    """Those of the exhausted task that hold for each smaller one."""

    handler: HandlerSpec
    model: Text | None
    model_role: str | None


async def _inherited(task: Task, prepared: Prepared) -> _Settings:
    config, said = prepared.config, task.handler
    model = task.model
    if model is not None:
        # As a literal: what was resolved once is not resolved again, elsewhere.
        model = Text(f"{{{{ {json.dumps(await render(model, prepared.scope))} }}}}", model.span)
    handler = HandlerSpec(
        ref=None if said is None else said.ref, max_turns=config.max_turns,
        max_context_fraction=config.max_context_fraction, max_output_tokens=config.max_output_tokens, span=task.span,
    )  # fmt: skip
    return _Settings(handler, model, task.model_role)


def _as_smaller(node: Node, settings: _Settings) -> Node:
    """`node` with model, profile and limits of the task that it decomposes, in every task inside."""

    def whole(inner: Node) -> Node:
        return _as_smaller(inner, settings)

    if isinstance(node, Cond):
        cases = tuple(replace(case, body=whole(case.body)) for case in node.cases)
        return replace(node, cases=cases, default=None if node.default is None else whole(node.default))
    if not isinstance(node, Task):
        return node
    inputs = tuple(one if one.task is None else replace(one, task=whole(one.task)) for one in node.inputs)
    if isinstance(node, Atomic):
        model, role = settings.model, settings.model_role
        return replace(node, inputs=inputs, handler=settings.handler, model=model, model_role=role)
    node = replace(node, inputs=inputs, handler=None)
    if isinstance(node, Sequential):
        return replace(node, steps=tuple(whole(step) for step in node.steps))
    if isinstance(node, Reduce):
        return replace(node, inner_task=whole(node.inner_task), reduction_task=whole(node.reduction_task))
    if isinstance(node, DirectorEvaluatorLoop):
        return replace(node, director=whole(node.director), evaluator=whole(node.evaluator))
    return node


def _unrecovered(error: TaskError, why: str) -> TaskError:
    return replace(error, details={**error.details, "reparse": why})
