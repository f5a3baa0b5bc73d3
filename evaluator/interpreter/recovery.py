"""An interrupted run gone on with: the same start again, with what its task file holds as the first answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from evaluator.errors import RecordError, ToolError, UsageError
from evaluator.handler.tools import Asker
from evaluator.interpreter.evaluation_request import EVALUATION_REQUEST
from evaluator.interpreter.frame import Outcome
from evaluator.interpreter.requests import start_again
from evaluator.interpreter.runs import RunStart, record_run, recorded_outcome
from evaluator.interpreter.services import Services
from evaluator.interpreter.subtasks import SUBTASK
from evaluator.library import TemplateLibrary
from evaluator.record.recovery import Decide, Earlier, Resumed, Unfinished, stops_at, unfinished_error
from evaluator.record.render import visible
from evaluator.record.steplog import StepLog
from evaluator.record.steps import Header, Recording, Step
from evaluator.record.store import TaskStore

OnUnfinished = Literal["ask", "repeat", "tell", "stop"]
ON_UNFINISHED: tuple[OnUnfinished, ...] = ("ask", "repeat", "tell", "stop")
_MAX_SHOWN_CHARS = 2_000
_MAX_ASKED = 5


async def resume(
    services: Services,
    task_id: int,
    inputs: Mapping[str, Any],
    unfinished: OnUnfinished,
    allow_changed: bool,
    finish: Callable[[RunStart, Header], RunStart],
) -> Outcome:
    """The outcome of the run, as if it had not been interrupted; a completed one gives its recorded result.

    `finish` adds to a start what the record does not decide.

    Raises: RecordError, UsageError, TemplateError, if there is nothing to go on with; nothing is changed then.
    """
    store = services.store
    if store is None:
        raise UsageError("there is no folder of task files to resume from: the evaluator was made with tasks_dir=None")
    allowed = "any change" if allow_changed else None
    journal, recording = await asyncio.to_thread(lambda: store.reopen(task_id, allowed=allowed))
    try:
        header = recording.header
        assert header is not None
        _refuse_subtask(store, header)
        if recording.status == "completed":
            journal.settle("completed")
            return recorded_outcome(recording)
        values = values_of(header, inputs)
        decide = _decider(unfinished, services.asker)
        await _settle_doubts(services, store, recording, decide)
        earlier = Resumed(recording, decide, allow_changed=allow_changed, edited=lambda r: edited(r, services.library))
        earlier.progress.scrub = store.redactor
        services = replace(services, reparse=bool(header.extra.get("reparse")))
        start = finish(start_again(services.library, header, values), header)
        return await record_run(services, replace(start, steps=StepLog(journal, earlier, store.redactor)))
    finally:
        journal.abandon()


def _refuse_subtask(store: TaskStore, header: Header) -> None:
    """A subtask belongs to the run that asked for it, and is gone on with by that."""
    parent, root = header.parent, header.parent
    seen = {header.task_id}
    while parent is not None and parent not in seen:
        root = parent
        seen.add(parent)
        above = store.read(parent).header
        parent = None if above is None else above.parent
    if root is not None:
        raise UsageError(f"TASK-{header.task_id} is a subtask; resume the task that asked for it: {root}")


def values_of(header: Header, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the run: as recorded, but for those that hold a secret and have to be given again.

    Raises: UsageError, if one is missing, or given though it is recorded.
    """
    hidden = list(header.extra.get("redacted_inputs", ()))
    values = dict(header.inputs)
    for name in given:
        if name not in hidden:
            raise UsageError(f"input {name!r} is recorded, and cannot be changed; start a new run for other inputs")
    missing = [name for name in hidden if name not in given]
    if missing:
        names = ", ".join(missing)
        raise UsageError(f"the record holds no secrets: give {names} again, as --input {missing[0]}=VALUE")
    return {**values, **given}


def edited(recording: Recording, library: TemplateLibrary) -> str | None:
    """What of a run's templates is not what it was, in words; None if all of them are."""
    header = recording.header
    if header is None or header.template is None or header.template_sha256 is None:
        return None
    recorded = {header.template: header.template_sha256, **header.extra.get("calls", {})}
    changed = [
        f"the template {name!r} {'was edited' if name in library else 'is gone'}"
        for name, digest in recorded.items()
        if name not in library or library.get(name).sha256 != digest
    ]
    return " and ".join(changed) + " since this run began" if changed else None


def _decider(unfinished: OnUnfinished, asker: Asker | None) -> Decide:
    """Decides about each step once: when it is asked about before the run, and not again when it is come to."""
    decided: dict[tuple[int, str], Unfinished] = {}

    async def decide(task_id: int, step: Step) -> Unfinished:
        if unfinished != "ask":
            return unfinished
        key = task_id, step.start.path
        if key not in decided:
            decided[key] = "stop" if asker is None else await _ask(asker, step)
        return decided[key]

    return decide


async def _settle_doubts(services: Services, store: TaskStore, recording: Recording, decide: Decide) -> None:
    """Asks about every side effect in doubt, of the run and of its subtasks, before anything runs: steps that run
    side by side with one at which the run stops would be paid for in vain.

    Raises: StepUnfinished, where one may not be repeated; RecordError, if a subtask's file cannot be read.
    """
    earlier = Earlier(recording)
    for step in earlier.in_doubt():
        if not _does_harm_twice(services, step):
            continue
        if stops_at(step, await decide(earlier.task_id, step)):
            raise unfinished_error(step)
    for task_id in earlier.open_children():
        child = await asyncio.to_thread(store.read, task_id)
        if child.status not in ("completed", "failed"):
            await _settle_doubts(services, store, child, decide)


def _does_harm_twice(services: Services, step: Step) -> bool:
    """As a Handler decides it, of a tool whose task is not there yet; of one that is not known: yes."""
    if step.start.kind != "tool":
        return step.start.kind == "script"
    name = step.start.name
    tool = services.tools.get(name)
    if tool is None:
        return name not in (SUBTASK, EVALUATION_REQUEST) and name not in services.library
    return tool.effect and not tool.retryable


async def _ask(asker: Asker, step: Step) -> Unfinished:
    shown = visible(json.dumps(step.start.args, ensure_ascii=False, default=str))
    doubt = unfinished_error(step)
    choices = {"r": "run it again", "t": "tell the model that its end is not known", "s": "stop here"}
    if not doubt.can_tell:
        del choices["t"]
    question = (
        f"{step.start.path}: {visible(step.start.name)} {visible(doubt.how)}. It may have taken effect. "
        f"Its arguments: {shown[:_MAX_SHOWN_CHARS]}\n" + ", ".join(f"{k}: {what}" for k, what in choices.items())
    )
    decisions: dict[str, Unfinished] = {"r": "repeat", "t": "tell", "s": "stop"}
    for _ in range(_MAX_ASKED):
        try:
            answer = (await asker.ask(question)).strip().lower()[:1]
        except ToolError as error:
            raise RecordError(f"{step.start.path}: nobody answered what to do about it: {error}") from error
        if answer in choices:
            return decisions[answer]
    return "stop"
