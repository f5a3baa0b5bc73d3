"""Runs the tool calls of one model response, each as a recorded step.

A call that fails is made again, after the waits of the profile, if its tool is declared retryable.
Each attempt is a step of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import field, replace
from math import inf
from typing import Any

from evaluator import clock
from evaluator.errors import RepeatedCall, ToolError
from evaluator.errors.results import Usage
from evaluator.handler.conversation import Session
from evaluator.lazy_dataclass import dataclass
from evaluator.models.attachments import Attachment, recorded_attachments
from evaluator.models.backend import Message, ToolCall
from evaluator.record.step_log import StepLog
from evaluator.record.steps import (
    DENIED,
    INTERRUPTED_CALLS,
    NOT_RUN,
    TIMEOUT,
    StepEnd,
    abort_reason,
    cut_off_reason,
)
from evaluator.tools import ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.arguments import parse_arguments
from evaluator.tools.tool import OutcomeCode

NOT_REPEATED = (
    "error: the run was interrupted while this call was running; whether it took effect is not "
    "known, and it was "
    "not repeated. Find out before you call it again"
)
TOLD_AFTER = 2
STOPPED_AFTER = 5
"""After this many equal answers to equal calls the model is told, and the task is stopped."""


# The outcomes that abort a step, each with the word that its reason begins with.
_ABORTED: dict[OutcomeCode, str] = {"denied": DENIED, "timeout": TIMEOUT, "not_run": NOT_RUN}


class RepeatedCalls:
    """Counts calls with the same arguments and the same answer. A call that may have changed
    something, of another tool or with other arguments, starts the count again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def note(self, call: ToolCall) -> str:
        """What the answer of `call` tells the model about its repetition; empty if it has not
        repeated it.

        Raises: RepeatedCall, if the model has been told often enough.
        """
        count = self._seen.get(_call_key(call), ("", 0))[1]
        if count >= STOPPED_AFTER:
            raise RepeatedCall(
                f"the model called {call.name} {count + 1} times with the same arguments, and the "
                "answer was the same "
                f"{count} times: the task was stopped; give it a tool or an instruction that "
                "helps it further"
            )
        if count < TOLD_AFTER:
            return ""
        return (
            f"\n[You have made this call with the same arguments {count + 1} times, and the last "
            f"{count} answers were "
            f"equal. Do something else, or finish: after {STOPPED_AFTER} equal answers the task "
            "is stopped.]"
        )

    def count(self, call: ToolCall, answer: str, *, has_effect: bool) -> None:
        key = _call_key(call)
        before, count = self._seen.get(key, ("", 0))
        if has_effect and count == 0:
            self._seen.clear()
        self._seen[key] = (answer, count + 1 if answer == before else 1)


def _call_key(call: ToolCall) -> tuple[str, str]:
    """Identifies a call by its tool and its arguments, whatever the order of their names."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments


@dataclass(slots=True)
class Tools:
    """The tools of a session, and the context that they run in."""

    registry: ToolRegistry
    context: ToolContext
    one_direct: asyncio.Lock = field(default_factory=asyncio.Lock)
    repeats: RepeatedCalls = field(default_factory=RepeatedCalls)


async def run_tools(
    session: Session, tools: Tools, calls: Sequence[ToolCall]
) -> list[tuple[Message, str]]:
    """The tool messages that answer `calls` of the session's current turn, in their order, each
    with the path of its step below the session.

    Subtasks run concurrently. Direct tools run one after the other, because one may depend on
    another's effect.
    """
    repeats = tools.repeats
    notes = [repeats.note(call) for call in calls]
    segments = [f"turn[{session.turns}]/tool[{number}]" for number in range(1, len(calls) + 1)]
    answers = await asyncio.gather(
        *(
            _answer(session, tools, call, segment=segment, note=note)
            for call, segment, note in zip(calls, segments, notes, strict=True)
        ),
        return_exceptions=True,
    )
    messages: list[tuple[Message, str]] = []
    for call, segment, answer, note in zip(calls, segments, answers, notes, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        content, images = answer
        shown = content.removesuffix(note) + "".join(image.sha256 for image in images)
        tool = tools.registry.get(call.name)
        repeats.count(call, shown, has_effect=tool is not None and tool.effect)
        messages.append(
            (Message("tool", content, tool_call_id=call.id, attachments=images), segment)
        )
    session.budget.charge(Usage(tool_calls=len(calls)))
    return messages


async def _answer(
    session: Session, tools: Tools, call: ToolCall, segment: str, note: str
) -> tuple[str, tuple[Attachment, ...]]:
    """The text, which ends with `note`, and the images that answer one call, from the record or
    from the tool.
    """
    steps = session.log.steps
    path = session.log.path_of(segment)
    fingerprint = steps.fingerprint({"tool": call.name, "arguments": call.arguments})
    args = recorded_arguments(call.arguments)
    recorded = steps.recorded(path, "tool", fingerprint, args)
    if recorded is not None:
        subtask = steps.end_at(f"{path}/subtask")
        if subtask is not None:
            if subtask.usage is not None:
                session.budget.charge(Usage.from_dict(subtask.usage))
            if subtask.extra is not None:
                session.budget.count_interrupted(subtask.extra.get(INTERRUPTED_CALLS, 0))
        return str(recorded.output), _recorded_images(session, recorded, path)
    tool = tools.registry.get(call.name)
    if tool is not None and tool.kind != "direct":
        return await _run(
            session, tools, call=call, path=path, args=args, fingerprint=fingerprint, note=note
        )
    async with tools.one_direct:
        return await _run(
            session, tools, call=call, path=path, args=args, fingerprint=fingerprint, note=note
        )


def _recorded_images(session: Session, recorded: StepEnd, path: str) -> tuple[Attachment, ...]:
    """The images of a recorded answer, with their bytes where these are still beside the task
    files.
    """
    steps = session.log.steps
    images: list[Attachment] = []
    for image in recorded_attachments(recorded.extra):
        data = steps.read_blob(image["sha256"])
        images.append(Attachment.from_dict(image, data or b""))
        if data is None and steps.journal is not None:
            session.warn(
                f"{path}: {image['source']} is not sent again: its bytes are not beside the "
                "task files"
            )
    return tuple(images)


async def _run(
    session: Session,
    tools: Tools,
    call: ToolCall,
    path: str,
    args: Any,
    fingerprint: str,
    note: str,
) -> tuple[str, tuple[Attachment, ...]]:
    steps = session.log.steps
    tool = tools.registry.get(call.name)
    may_run = True
    waits: Sequence[float] = ()
    if tool is not None and tool.retryable:
        waits = session.plan.config.backoff_s
    elif tool is not None and tool.kind == "direct" and tool.effect:
        may_run = await steps.may_repeat(path)
    attempt = 1
    waited = None
    while True:
        number = await steps.begin(
            path,
            "tool",
            call.name,
            args,
            fingerprint,
            attempt=attempt,
            max_attempts=len(waits) + 1,
            backoff_s=waited,
        )
        if not may_run:
            await steps.fail(number, NOT_REPEATED, 0.0, "not repeated")
            return NOT_REPEATED, ()
        started = clock.monotonic()
        outcome = await _attempt(
            session, tools, call, number=number, path=path, is_retry=attempt > 1
        )
        duration = clock.monotonic() - started
        waited = None
        if outcome.retryable and attempt <= len(waits):
            waited = waits[attempt - 1]
        remaining = session.budget.remaining_s()
        if waited is None or (remaining is not None and waited >= remaining):
            return await _end(steps, outcome, number, duration=duration, note=note)
        await steps.fail(
            number,
            _answer_of(outcome),
            duration,
            _error_of(outcome),
            extra={"retry_after_s": waited},
        )
        await clock.sleep(waited)
        attempt += 1


async def _attempt(
    session: Session, tools: Tools, call: ToolCall, number: int, path: str, *, is_retry: bool
) -> ToolOutcome:
    """One call of the tool, as the step `number`, which is ended here only if the call is cut
    off.
    """
    log = session.log
    tool = tools.registry.get(call.name)
    started = clock.monotonic()
    remaining = session.budget.remaining_s()
    if remaining is None:
        remaining = inf
    context = replace(tools.context, step_path=path, remaining_s=remaining, call_id=call.id)
    try:
        with log.tracer.tool_call(call, tool) as span:
            outcome = await tools.registry.call(
                call.name, call.arguments, context, is_retry=is_retry
            )
            span.set_result(outcome)
    except BaseException as error:
        reason = cut_off_reason(error, is_late=session.budget.is_late())
        log.steps.abort(number, "", clock.monotonic() - started, reason)
        raise
    if log.steps.halted is not None and tool is not None and tool.kind != "direct":
        # The outcome is not the subtask's answer. The step stays open, so that a resumed run
        # continues it.
        raise log.steps.halted
    return outcome


async def _end(
    steps: StepLog, outcome: ToolOutcome, number: int, duration: float, note: str
) -> tuple[str, tuple[Attachment, ...]]:
    """Ends the step `number`. Returns the text, which ends with `note`, and the images that
    answer the call.
    """
    if outcome.ok:
        for image in outcome.images:
            await steps.write_blob(image.data)
        images = [image.to_dict() for image in outcome.images]
        content = outcome.content + note
        await steps.succeed(
            number, content, duration, extra={"attachments": images} if images else None
        )
        return content, outcome.images
    answer = _answer_of(outcome) + note
    error = _error_of(outcome)
    word = _ABORTED.get(outcome.code or "failed")
    if word is None:
        # A tool's error is an answer to the model, so the step is completed; the record still
        # says that it failed.
        await steps.fail(number, answer, duration, error)
    else:
        await steps.refuse(number, answer, duration, abort_reason(word, error))
    return answer, ()


def recorded_arguments(text: str) -> Any:
    """A model's arguments as a step records them: the object, or the text if it is not one that can
    be read back.
    """
    try:
        arguments = parse_arguments(text)
        json.dumps(arguments, allow_nan=False)
    except (ToolError, ValueError, RecursionError):
        return text
    return arguments


def _answer_of(outcome: ToolOutcome) -> str:
    return f"error: {outcome.error or outcome.content}"


def _error_of(outcome: ToolOutcome) -> str:
    return outcome.error or "tool error"
