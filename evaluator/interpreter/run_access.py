"""Interrupted runs for a model that may read or resume them with `manage_task`.

A resumed run never has more than the task that asks for it: each of its tasks has the same profile,
its model options and root are the same, it runs no process, it names only tools that this task has
and files that it may read, and its time, turns and cost count against this task's limits. It may
have as many levels of subtasks as this task, and is decomposed only where this task may be. A run
that is read had the same profile and models too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from evaluator.errors import ToolError
from evaluator.handler.config import RunGrant
from evaluator.interpreter.generated import Allowance, may_call
from evaluator.interpreter.spawning import Spawner, answer_to_model
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

    def interrupted() -> Iterator[tuple[int, str | None, str | None]]:
        for task in store.interrupted():
            if task.header is None:
                yield task.id, None, None
            else:
                yield task.id, task.header.template, task.header.created

    def check(task_id: int, refusal: str | None) -> None:
        if refusal is not None:
            command = f"evaluator tasks resume {task_id}{store.option}"
            raise ToolError(f"TASK-{task_id} {refusal}; ask the user to run: {command}")

    async def load(task_id: int) -> Recording:
        recording = await asyncio.to_thread(store.read, task_id)
        if recording.status != "interrupted":
            raise ToolError(
                f"TASK-{task_id} is {recording.status}; only interrupted runs can be read and "
                "resumed"
            )
        check(task_id, _other_settings(spawner, recording))
        return recording

    async def read(task_id: int) -> dict[str, Any]:
        return _outline(await load(task_id))

    async def resume(task_id: int, _: ToolContext) -> str:
        header = (await load(task_id)).known_header()
        check(task_id, _more_rights(spawner, header))
        return answer_to_model(await spawner.resume(task_id), {"task_id": task_id})

    return RunAccess(
        interrupted,
        read=None if grant == "list" else read,
        resume=resume if grant == "resume" else None,
    )


def _other_settings(spawner: Spawner, recording: Recording) -> str | None:
    """Why what is recorded may be more than the task that asks could see; None if it is not."""
    header = recording.known_header()
    options = spawner.run.options
    profile = spawner.bound.config.name
    outputs = (
        step.end.output
        for step in recording.steps
        if step.start.kind == "resolve" and step.end is not None
    )
    profiles = {str(output.get("profile")) for output in outputs if isinstance(output, dict)}
    others = sorted(profiles - {profile})
    if others:
        return f"ran with the profile {others[0]!r}, not with {profile!r}"
    if header.model is not None and header.model != options.model:
        return f"ran with the model {header.model!r}, which this run does not use"
    roles: Mapping[str, str] = header.extra.get("model_roles") or {}
    for role, model in roles.items():
        if (options.model_roles or {}).get(role) != model:
            return f"ran with the model {model!r} for {role!r}, which this run does not use"
    return None


def _more_rights(spawner: Spawner, header: Header) -> str | None:
    """Why the run of this header could do more than the task that asks; None if it could not."""
    services = spawner.run.services
    library = services.library
    own_profile = spawner.bound.config.name
    name = header.template
    if name is None or name not in library or "node" in header.extra:
        return "evaluates no template of the library"
    if not may_call(library, name, Allowance("a resumed run", spawner.authority())):
        return (
            "runs a process, has tools that this task does not have, or reads files that it may "
            "not read"
        )
    fixed = header.extra.get("handler")
    for template in (name, *library.called_by(name)):
        for task in tasks(library.get(template).node):
            # What is resumed here without a profile of its own has that of the task.
            profile = fixed or task.profile or own_profile
            if task.asks_model and profile != own_profile:
                return f"has the profile {profile!r}, not {own_profile!r}"
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
