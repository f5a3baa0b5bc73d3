"""Interrupted runs for a model that may read or resume them with `manage_task`.

A resumed run never has more than the task that asks for it: each of its tasks has the same profile,
its model option and root are the same, it runs no process, it names only tools that this task has,
and its time, turns and cost count against this task's limits. A run that is read had the same
profile too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from evaluator.errors import ToolError
from evaluator.errors.results import TaskResult
from evaluator.handler.config import RunGrant
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Run
from evaluator.interpreter.generated import Allowance, may_call
from evaluator.interpreter.subtasks import Spawner
from evaluator.nodes.walk import tasks
from evaluator.record.conversation import json_text
from evaluator.record.steps import Header, Recording, Step
from evaluator.record.store import TaskStore
from evaluator.tools import ToolContext
from evaluator.tools.manage_task import RunAccess

_MAX_STEPS = 50
_MAX_SHOWN_CHARS = 1_000


def run_access(spawner: Spawner, store: TaskStore, grant: RunGrant) -> RunAccess:
    """What the task of `spawner` may do with interrupted runs."""
    run = spawner.run
    bound = spawner.bound

    def interrupted() -> Iterator[tuple[int, str | None, str | None]]:
        for task in store.interrupted():
            if task.header is None:
                yield task.id, None, None
            else:
                yield task.id, task.header.template, task.header.created

    def resume_command(task_id: int) -> str:
        return f"evaluator tasks resume {task_id}{store.option}"

    async def load(task_id: int) -> Recording:
        recording = await asyncio.to_thread(store.read, task_id)
        if recording.status != "interrupted":
            raise ToolError(
                f"TASK-{task_id} is {recording.status}; only interrupted runs can be read and "
                "resumed"
            )
        refusal = _other_settings(run, bound, recording=recording)
        if refusal is not None:
            raise ToolError(
                f"TASK-{task_id} {refusal}; ask the user to run: {resume_command(task_id)}"
            )
        return recording

    async def read(task_id: int) -> dict[str, Any]:
        return _outline(await load(task_id))

    async def resume(task_id: int, _: ToolContext) -> str:
        header = (await load(task_id)).known_header()
        refusal = _more_rights(run, bound, header=header)
        if refusal is not None:
            raise ToolError(
                f"TASK-{task_id} {refusal}; ask the user to run: {resume_command(task_id)}"
            )
        if run.services.resume is None:
            raise ToolError("runs cannot be resumed here")
        services = replace(
            run.services, least_sandbox=bound.frame.domain.sandbox, authority=spawner.authority()
        )
        outcome = await run.services.resume(services, task_id, bound.budget)
        spawner.check_not_refused()
        if isinstance(outcome, TaskResult):
            return outcome.content
        error = {"type": outcome.type, "reason": outcome.reason, "message": outcome.message}
        raise ToolError(
            json.dumps({"task_id": task_id, "error": error, "partial_output": outcome.content})
        )

    return RunAccess(
        interrupted,
        read=None if grant == "list" else read,
        resume=resume if grant == "resume" else None,
    )


def _other_settings(run: Run, bound: BoundTask, recording: Recording) -> str | None:
    """Why what is recorded may be more than the task that asks could see; None if it is not."""
    header = recording.known_header()
    outputs = (
        step.end.output
        for step in recording.steps
        if step.start.kind == "resolve" and step.end is not None
    )
    profiles = {str(output.get("profile")) for output in outputs if isinstance(output, dict)}
    others = sorted(profiles - {bound.config.name})
    if others:
        return f"ran with the profile {others[0]!r}, not with {bound.config.name!r}"
    if header.model is not None and header.model != run.options.model:
        return f"ran with the model {header.model!r}, which this run does not use"
    return None


def _more_rights(run: Run, bound: BoundTask, header: Header) -> str | None:
    """Why the run of this header could do more than the task that asks; None if it could not."""
    library = run.services.library
    name = header.template
    if name is None or name not in library or "node" in header.extra:
        return "evaluates no template of the library"
    tools = {grant.name for grant in bound.config.tools} | set(bound.task.tools)
    if not may_call(
        library,
        name,
        allowance=Allowance("a resumed run", Authority(frozenset(tools), processes=False)),
    ):
        return "runs a process, or has tools that this task does not have"
    fixed = header.extra.get("handler")
    default = run.services.default_profile.name
    for template in (name, *library.called_by(name)):
        for task in tasks(library.get(template).node):
            profile = fixed or task.profile or default
            if task.asks_model and profile != bound.config.name:
                return f"has the profile {profile!r}, not {bound.config.name!r}"
    return None


def _outline(recording: Recording) -> dict[str, Any]:
    """What a run did and where it stopped, without the texts of its completed steps."""
    header = recording.known_header()
    steps = recording.steps
    shown: dict[str, Any] = {
        "id": header.task_id,
        "status": recording.status,
        "template": header.template,
        "request": header.request,
        "created": header.created,
        "steps": [_step(step) for step in steps[-_MAX_STEPS:]],
    }
    if len(steps) > _MAX_STEPS:
        shown["earlier_steps"] = len(steps) - _MAX_STEPS
    if steps and steps[-1].status != "success":
        last = steps[-1]
        shown["stopped_at"] = {**_step(last), "args": json_text(last.start.args)[:_MAX_SHOWN_CHARS]}
    return shown


def _step(step: Step) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "number": step.number,
        "kind": step.start.kind,
        "name": step.start.name,
        "status": step.status,
    }
    if step.start.attempt > 1:
        shown["attempt"] = step.start.attempt
    if step.end is not None and step.end.error is not None:
        shown["error"] = step.end.error[:_MAX_SHOWN_CHARS]
    return shown
