"""One recorded run: a task file is begun before anything is done, and closed with what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.binding.scopes import Scope
from evaluator.errors import EvaluatorError, RecordError
from evaluator.handler.limits import Budget
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import ContextItem, Frame, Outcome, Run
from evaluator.interpreter.services import Services
from evaluator.nodes import Node
from evaluator.record.journal import Journal
from evaluator.record.steplog import StepLog
from evaluator.record.steps import FinalStatus, Summary
from evaluator.results import TaskError, TaskId, TaskResult, Usage


@dataclass(frozen=True, slots=True)
class RunStart:
    """What a run starts from. `parent` is the run that asked for it, at its step `parent_path`.

    With `body` that is what runs, in the frame made here; else `node` with `arguments`.
    """

    node: Node | None
    request: str
    inputs: Mapping[str, Any]
    template: str | None = None
    template_sha256: str | None = None
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
    target: str | None = None
    on_text: Callable[[str], None] | None = None
    on_event: Callable[[str, str], None] | None = None
    body: Callable[[Run, Frame], Awaitable[Outcome]] | None = None


async def record_run(services: Services, start: RunStart) -> Outcome:
    """The outcome of `start`, with its usage and task id, after its task file is closed.

    Where the task file cannot be begun or written the run ends with an error before the next call is made.
    """
    budget = Budget(start.template or "the evaluation", parent=start.budget)
    try:
        journal = _open(services, start)
    except EvaluatorError as error:
        return to_task_error(error)
    except (OSError, ValueError) as error:
        # A path that no file can have: too long, or with a NUL.
        return to_task_error(_no_folder(services, error))
    run = _make_run(services, start, StepLog(journal), budget)
    task_id = None if journal is None else TaskId(journal.id)
    started = time.perf_counter()
    number = _link(start, task_id)
    try:
        outcome = await _evaluate(run, start)
        outcome = _finished(outcome, budget.usage, task_id)
        if start.match_score is not None:
            matched = {"template": start.template, "score": round(start.match_score, 4)}
            outcome = replace(outcome, notes={**outcome.notes, "matched": matched})
        try:
            _close(journal, outcome, time.perf_counter() - started)
        except RecordError as error:
            outcome = _unrecorded(outcome, error)
    except BaseException as error:
        _abort(journal, run, error, time.perf_counter() - started)
        if number is not None and start.parent is not None:
            start.parent.steps.abort(number, "", time.perf_counter() - started, type(error).__name__)
        raise
    if number is not None and start.parent is not None:
        end = start.parent.steps.succeed if outcome.ok else _failing(start.parent.steps)
        end(number, {"task_id": task_id, "status": outcome.status.value}, time.perf_counter() - started)
    return outcome


def _finished(outcome: Outcome, usage: Usage, task_id: TaskId | None) -> Outcome:
    if isinstance(outcome, TaskError):
        return outcome.with_task(task_id, usage)
    return TaskResult(outcome.status, outcome.content, outcome.parsed_content, outcome.notes, usage, task_id)


async def _evaluate(run: Run, start: RunStart) -> Outcome:
    try:
        frame = Frame(start.scope, "", start.context, start.arguments, is_subtask=start.is_subtask, budget=run.budget)
        if start.body is not None:
            return await start.body(run, frame)
        assert start.node is not None
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
        target=start.target, depth=start.depth, max_depth=start.max_depth, ancestors=start.ancestors,
        profile=parent.profile if parent else start.profile,
    )  # fmt: skip


def _open(services: Services, start: RunStart) -> Journal | None:
    if services.store is None:
        return None
    parent = start.parent.steps.journal if start.parent else None
    extra: dict[str, Any] = {"match_score": start.match_score} if start.match_score is not None else {}
    return services.store.create(
        template=start.template, template_sha256=start.template_sha256, request=start.request,
        inputs=start.inputs, model=start.model, parent=None if parent is None else parent.id, extra=extra,
    )  # fmt: skip


def _no_folder(services: Services, error: Exception) -> RecordError:
    place = ascii(str(services.store.root))[:200] if services.store is not None else "the task folder"
    why = getattr(error, "strerror", None) or error
    record = RecordError(f"{place}: no task file can be created: {why}; choose another folder")
    record.__cause__ = error
    return record


def _link(start: RunStart, task_id: TaskId | None) -> int | None:
    """The parent's record names the subtask's own file before the subtask has any effect."""
    if start.parent is None:
        return None
    args = {"task_id": task_id, "template": start.template, "description": start.request}
    steps = start.parent.steps
    return steps.begin(
        f"{start.parent_path}/subtask", "subtask", start.template or "subtask", args, steps.fingerprint(args)
    )


def _failing(steps: StepLog) -> Callable[[int, Any, float], None]:
    return lambda number, output, duration: steps.fail(number, output, duration, "the subtask failed")


def _close(journal: Journal | None, outcome: Outcome, duration_s: float) -> None:
    if journal is None:
        return
    status: FinalStatus = "completed" if isinstance(outcome, TaskResult) else "failed"
    reason = None if isinstance(outcome, TaskResult) else outcome.message
    usage, result = outcome.usage.to_dict(), outcome.to_dict()
    journal.close(Summary(status, journal.steps, journal.retries, duration_s, usage, result, reason))


def _abort(journal: Journal | None, run: Run, error: BaseException, duration_s: float) -> None:
    if journal is None:
        return
    reason = "interrupted" if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) else repr(error)
    usage = run.budget.usage.to_dict()
    try:
        journal.close(Summary("aborted", journal.steps, journal.retries, duration_s, usage, None, reason))
    except RecordError:
        # The abort itself goes on; a file without a summary reads as interrupted, which is what it is.
        journal.abandon()


def _unrecorded(outcome: Outcome, error: RecordError) -> Outcome:
    """The result is kept, and says that its summary is not on disk."""
    warning = f"the end of this run is not in its task file: {error}"
    notes = {**outcome.notes, "warnings": [*outcome.notes.get("warnings", ()), warning]}
    return replace(outcome, notes=notes)
