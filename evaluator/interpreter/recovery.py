"""Evaluates again what a task file records.

`resume` starts an interrupted run again and takes its first answers from the record. `replay`
evaluates a run from its record alone, and finds differences: no call is made and no tool runs.
`record.recorded_steps` decides which recorded steps may be used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from evaluator.errors import (
    ConfigurationError,
    CorruptRecord,
    RecordError,
    RecordIncomplete,
    StepChanged,
    TaskNotBegun,
    ToolError,
    UsageError,
)
from evaluator.errors.messages import visible
from evaluator.errors.results import Outcome, TaskError
from evaluator.files.trust import is_trusted
from evaluator.handler.tracing import UNTRACED
from evaluator.interpreter.background import BACKGROUND_SAFE
from evaluator.interpreter.evaluation import EVALUATION_REQUEST
from evaluator.interpreter.frame import NO_OPTIONS, RunOptions, Services, Shots
from evaluator.interpreter.requests import recorded_options, recorded_run, recorded_services
from evaluator.interpreter.runs import (
    record_run,
    recorded_outcome,
    recorded_shots,
    reopen_in_thread,
)
from evaluator.interpreter.subtasks import SUBTASK
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.limits.budget import Budget
from evaluator.record.journal import Journal
from evaluator.record.recorded_steps import (
    ChangedStep,
    Decide,
    RecordedSteps,
    ReplayedSteps,
    ResumedSteps,
    Unfinished,
    stops_at,
    unfinished_error,
)
from evaluator.record.step_log import StepLog
from evaluator.record.steps import Header, Recording, Scrub, Step
from evaluator.record.store import TaskStore
from evaluator.tools import Asker

OnUnfinished = Literal["ask", "repeat", "tell", "stop"]
ON_UNFINISHED: tuple[OnUnfinished, ...] = ("ask", "repeat", "tell", "stop")
_MAX_SHOWN_CHARS = 2_000
_MAX_ASKED = 5
# The fields of a result that a caller uses.
_COMPARED = ("status", "type", "reason", "message", "content", "parsed_content")


async def resume(
    services: Services,
    task_id: int,
    inputs: Mapping[str, Any],
    unfinished: OnUnfinished,
    allow_changed: bool,
    callbacks: RunOptions,
    trust: bool = False,
    above: Budget | None = None,
    *,
    repair: bool = False,
) -> Outcome:
    """The outcome of the run, as if it had not been interrupted. A completed run gives its recorded
    result.

    `callbacks` has what receives text and events of the resumed run, and its `shots` where the
    record lacks them because they hold a secret; the other options are recorded. The limits of
    `above` apply to it too, and then also those of `services` on subtasks and decompositions.
    `trust`: what somebody else wrote is used too. `repair`: see `TaskStore.reopen`; it applies to
    subtasks too.

    Raises: RecordError, UsageError, TemplateError, if the run cannot be resumed; nothing is changed
    then.
    """
    allowed = None
    if allow_changed:
        allowed = "any change"
    async with reopened(services, task_id, allowed, repair=repair, trust=trust) as (
        journal,
        recording,
        store,
    ):
        header = recording.known_header()
        await asyncio.to_thread(_refuse_subtask, store, header)
        if recording.status == "completed":
            journal.settle("completed")
            return recorded_outcome(recording)
        values = _inputs_of(header, inputs)
        _check_shots(header, callbacks.shots, store.redactor)
        decide = _decider(unfinished, services.asker)
        await _ask_in_advance(services, store, recording=recording, decide=decide, repair=repair)
        earlier = ResumedSteps(
            recording,
            decide,
            allow_changed=allow_changed,
            edited=lambda r: _edited_templates(r, services.library),
            repair=repair,
            trust=trust or trusts_foreign(services),
        )
        recorded = recorded_services(header, services)
        if above is not None:
            # It has at most what the task that asks for it has.
            recorded = replace(
                recorded,
                max_depth=min(recorded.max_depth, services.max_depth),
                reparse=recorded.reparse and services.reparse,
            )
        run = recorded_run(recorded, header, values=values)
        run.options = recorded_options(header, recorded, callbacks)
        return await record_run(run, StepLog(journal, earlier, scrub=store.redactor), above)


async def resume_within(services: Services, task_id: int, above: Budget) -> Outcome:
    """Resumes a run for a task with the budget `above`; stops at a side effect that may have taken
    place.
    """
    return await resume(
        services,
        task_id,
        inputs={},
        unfinished="stop",
        allow_changed=False,
        callbacks=NO_OPTIONS,
        above=above,
    )


@asynccontextmanager
async def reopened(
    services: Services,
    task_id: int,
    allowed: str | None = None,
    *,
    repair: bool = False,
    trust: bool = False,
) -> AsyncGenerator[tuple[Journal, Recording, TaskStore]]:
    """The task file opened for writing, until the block ends; `allowed` and `repair` as for
    `TaskStore.reopen`, `trust` as for `resume`.

    Raises: UsageError, without a folder of task files; RecordError, as `TaskStore.reopen`, and if
    somebody else wrote a part of the file, which this user does not trust.
    """
    store = services.store
    if store is None:
        raise UsageError(
            "there is no folder of task files to resume from: the evaluator was made with "
            "tasks_dir=None"
        )
    journal, recording = await reopen_in_thread(
        lambda: store.reopen(task_id, allowed=allowed, repair=repair)
    )
    try:
        recording.check_signed(trust or trusts_foreign(services))
        yield journal, recording, store
    finally:
        journal.abandon()


def trusts_foreign(services: Services) -> bool:
    """Whether the user trusts task files that somebody else wrote."""
    return services.trust or is_trusted(services.root)


def _refuse_subtask(store: TaskStore, header: Header) -> None:
    """Raises: UsageError, for a subtask, which is resumed with the run that asked for it."""
    root = header.parent
    parent = header.parent
    seen = {header.task_id}
    while parent is not None and parent not in seen:
        root = parent
        seen.add(parent)
        above = store.read(parent).header
        parent = None
        if above is not None:
            parent = above.parent
    if root is not None:
        raise UsageError(
            f"TASK-{header.task_id} is a subtask; resume the task that asked for it: {root}"
        )


def _inputs_of(header: Header, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded inputs of the run, and those in `inputs`, which the record lacks because they
    hold a secret.

    Raises: UsageError, if one is missing, or given though it is recorded.
    """
    redacted = list(header.extra.get("redacted_inputs", ()))
    for name in inputs:
        if name not in redacted:
            raise UsageError(
                f"input {name!r} is recorded and cannot be changed; start a new run for other "
                "inputs"
            )
    missing = [name for name in redacted if name not in inputs]
    if missing:
        names = ", ".join(missing)
        raise UsageError(
            f"secret inputs are not recorded: give {names} again, as --input {missing[0]}=VALUE"
        )
    return {**header.inputs, **inputs}


def _check_shots(header: Header, shots: Shots, redactor: Scrub | None) -> None:
    """Raises: UsageError, if `shots` are missing where the record lacks them because they hold a
    secret, or are not those of the run.
    """
    if not shots:
        if header.extra.get("redacted_shots"):
            raise UsageError(
                "few-shot examples with a secret are not recorded: resume the batch that this run "
                "belongs to, or give "
                "them again in Python, as shots of Evaluator.resume"
            )
        return
    shown = recorded_shots(shots)
    if redactor is not None:
        shown = redactor.redact_value(shown)
    if shown != header.extra.get("shots", []):
        raise UsageError("the shots are not those of this run; start a new run for other examples")


def _edited_templates(recording: Recording, library: TemplateLibrary) -> str | None:
    """A message that names the templates that changed since the run began; None if none has."""
    header = recording.header
    if header is None or header.template is None or header.template_sha256 is None:
        return None
    recorded = {header.template: header.template_sha256, **header.extra.get("calls", {})}
    changed = [
        f"the template {name!r} {'was edited' if name in library else 'was removed'}"
        for name, digest in recorded.items()
        if name not in library or library.get(name).sha256 != digest
    ]
    if changed:
        return " and ".join(changed) + " since this run began"
    return None


def _decider(unfinished: OnUnfinished, asker: Asker | None) -> Decide:
    """A decision function that asks about each step once: before the run, and not again when the
    run reaches it.
    """
    decided: dict[tuple[int, str], Unfinished] = {}

    async def decide(task_id: int, step: Step) -> Unfinished:
        if unfinished != "ask":
            return unfinished
        key = task_id, step.start.path
        if key not in decided:
            if asker is None:
                decided[key] = "stop"
            else:
                decided[key] = await _ask(asker, step)
        return decided[key]

    return decide


async def _ask_in_advance(
    services: Services, store: TaskStore, recording: Recording, decide: Decide, *, repair: bool
) -> None:
    """Asks about every side effect in doubt, of the run and of its subtasks, before anything runs.

    Otherwise steps that run concurrently with one at which the run stops would cost money for
    nothing.

    Raises: StepUnfinished, where one may not be repeated; RecordError, if a subtask's file cannot
    be read.
    """
    earlier = RecordedSteps(recording)
    for step in earlier.in_doubt():
        if _is_harmful_twice(services, step) and stops_at(
            step, await decide(earlier.task_id, step)
        ):
            raise unfinished_error(step)
    for task_id in earlier.open_children():
        try:
            child = await asyncio.to_thread(partial(store.read, task_id, repair=repair))
        except TaskNotBegun:
            continue
        except CorruptRecord:
            if repair:
                continue
            raise
        if child.header is None or child.header.parent != earlier.task_id:
            continue
        if child.status not in ("completed", "failed"):
            await _ask_in_advance(services, store, recording=child, decide=decide, repair=repair)


def _is_harmful_twice(services: Services, step: Step) -> bool:
    """Whether the step must not run a second time, by the same rule as a Handler; an unknown tool
    must not.
    """
    if step.start.kind != "tool":
        return step.start.kind == "script"
    name = step.start.name
    tool = services.tools.get(name)
    if tool is None:
        return (
            name not in (SUBTASK, EVALUATION_REQUEST, *BACKGROUND_SAFE)
            and name not in services.library
        )
    return tool.effect and not tool.retryable


async def _ask(asker: Asker, step: Step) -> Unfinished:
    args = visible(json.dumps(step.start.args, ensure_ascii=False, default=str))
    doubt = unfinished_error(step)
    choices: dict[str, tuple[Unfinished, str]] = {
        "r": ("repeat", "run it again"),
        "t": ("tell", "tell the model that its end is not known"),
        "s": ("stop", "stop here"),
    }
    if not doubt.can_tell:
        del choices["t"]
    question = (
        f"{step.start.path}: {visible(step.start.name)} {visible(doubt.how)}. It may have taken "
        "effect. "
        f"Its arguments: {args[:_MAX_SHOWN_CHARS]}\n"
        + ", ".join(f"{key}: {label}" for key, (_, label) in choices.items())
    )
    for _ in range(_MAX_ASKED):
        try:
            answer = (await asker.ask(question)).strip().lower()[:1]
        except ToolError as error:
            raise RecordError(
                f"{step.start.path}: nobody answered what to do about it: {error}"
            ) from error
        if answer in choices:
            return choices[answer][0]
    return "stop"


@frozen
class Replay:
    """The outcome of a replay, and how it differs from the record.

    `divergence` is the first step, or the result, that differs; None if nothing does. `changes` are
    the steps whose content has changed (empty unless the replay went past changes), `gone` the
    paths of those that were not reached. `steps` counts the steps of the record, as
    `evaluator tasks show` does, `answers` those that answered a call again, also of subtasks.
    `ends_at` is the step at which the record of an interrupted run ends, None if the run
    has an end.
    """

    task_id: int | None
    outcome: Outcome
    steps: int
    answers: int
    divergence: StepChanged | None = None
    changes: tuple[ChangedStep, ...] = ()
    gone: tuple[str, ...] = ()
    ends_at: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was as recorded."""
        return self.divergence is None and not self.changes and not self.gone

    def to_dict(self) -> dict[str, Any]:
        divergence = self.divergence
        names = ("path", "message", "recorded", "now")
        return {
            "task_id": self.task_id,
            "ok": self.ok,
            "steps": self.steps,
            "answers": self.answers,
            "divergence": None
            if divergence is None
            else {name: getattr(divergence, name) for name in names},
            "changes": [asdict(change) for change in self.changes],
            "gone": list(self.gone),
            "ends_at": self.ends_at,
            "outcome": self.outcome.to_dict(),
        }


async def replay(services: Services, task: int | Path, past_changes: bool) -> Replay:
    """See `Evaluator.replay`."""
    store = services.store
    if store is None:
        raise UsageError(
            "there is no folder of task files to replay from: the evaluator was made with "
            "tasks_dir=None"
        )
    recording = await asyncio.to_thread(store.read, task)
    header = recording.known_header()
    earlier = ReplayedSteps(recording, past_changes=past_changes)
    services = replace(recorded_services(header, services), tracer=UNTRACED)
    run = recorded_run(services, header, values=dict(header.inputs))
    run.options = recorded_options(header, services)
    outcome = await record_run(run, StepLog(None, earlier, scrub=store.redactor))
    halted = earlier.progress.halted
    summary = recording.summary
    if halted is not None and not isinstance(halted, (StepChanged, RecordIncomplete)):
        raise halted
    has_failed = summary is not None and summary.status == "failed"
    if (
        isinstance(outcome, TaskError)
        and isinstance(outcome.cause, ConfigurationError)
        and not has_failed
    ):
        raise outcome.cause
    return Replay(
        header.task_id,
        outcome,
        steps=len(recording.steps) if summary is None else summary.steps,
        answers=earlier.progress.reused,
        divergence=halted
        if isinstance(halted, StepChanged)
        else _result_change(recording, outcome, services=services, halted=halted),
        changes=tuple(earlier.progress.changes),
        gone=() if halted is not None else tuple(step.start.path for step in earlier.unasked()),
        ends_at=halted.path if isinstance(halted, RecordIncomplete) else None,
    )


def _result_change(
    recording: Recording, outcome: Outcome, services: Services, halted: RecordIncomplete | None
) -> StepChanged | None:
    """The first difference between the recorded and the replayed result, in the fields that a
    caller uses.
    """
    from evaluator.record.json_difference import first_difference

    summary = recording.summary
    if summary is None or halted is not None:
        return None
    if summary.result is None:
        return StepChanged(
            "result", f"the recorded run was aborted ({summary.reason}); the replay was not"
        )
    now: Mapping[str, Any] = outcome.to_dict()
    if services.store is not None and services.store.redactor is not None:
        now = services.store.redactor.redact_value(now)
    recorded, now = (
        {name: result[name] for name in _COMPARED if name in result}
        for result in (summary.result, now)
    )
    difference = first_difference(recorded, now)
    return difference and StepChanged(
        "result",
        f"the result differs at {difference.where}",
        recorded=difference.recorded,
        now=difference.now,
    )
