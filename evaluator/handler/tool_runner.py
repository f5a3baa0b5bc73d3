"""Runs the tool calls of one model response, each as a recorded step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from evaluator.errors.results import Usage
from evaluator.handler.model_caller import SessionLog
from evaluator.limits.budget import Budget
from evaluator.models.attachments import Attachment, recorded_attachments
from evaluator.models.backend import Message, ToolCall
from evaluator.record.steps import StepEnd
from evaluator.tools import ToolContext, ToolRegistry

NOT_REPEATED = (
    "error: the run was interrupted while this call was running; whether it took effect is not known, and it was "
    "not repeated. Find out before you call it again"
)


class ToolRunner:
    """Runs the tools of `registry` for one session. `warn` receives warnings for the result of the task."""

    def __init__(
        self, registry: ToolRegistry, context: ToolContext, log: SessionLog, warn: Callable[[str], None]
    ) -> None:
        self._registry = registry
        self._context = context
        self._log = log
        self._warn = warn
        self._one_direct_tool = asyncio.Lock()

    async def run(self, calls: Sequence[ToolCall], turn: int, budget: Budget) -> list[tuple[Message, str]]:
        """The tool messages that answer `calls`, in their order, each with the path of its step below the session.

        Subtasks run concurrently. Direct tools run one after the other, because one may depend on another's effect.
        """
        segments = [f"turn[{turn}]/tool[{number}]" for number in range(1, len(calls) + 1)]
        answers = await asyncio.gather(
            *(self._answer(call, segment, budget) for call, segment in zip(calls, segments, strict=True)),
            return_exceptions=True,
        )
        messages: list[tuple[Message, str]] = []
        for call, segment, answer in zip(calls, segments, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            content, images = answer
            messages.append((Message("tool", content, tool_call_id=call.id, attachments=images), segment))
        budget.charge(Usage(tool_calls=len(calls)))
        return messages

    async def _answer(self, call: ToolCall, segment: str, budget: Budget) -> tuple[str, tuple[Attachment, ...]]:
        """The text and the images that answer one call, from the record or from the tool."""
        steps, path = self._log.steps, self._log.path_of(segment)
        args = {"tool": call.name, "arguments": call.arguments}
        fingerprint = steps.fingerprint(args)
        recorded = steps.recorded(path, "tool", fingerprint, args)
        if recorded is not None:
            spent = steps.usage_at(f"{path}/subtask")
            if spent is not None:
                budget.charge(Usage.from_dict(spent))
            return str(recorded.output), self._recorded_images(recorded, path)
        if not self._is_direct(call.name):
            return await self._run(call, path, args, fingerprint, budget)
        async with self._one_direct_tool:
            return await self._run(call, path, args, fingerprint, budget)

    def _recorded_images(self, recorded: StepEnd, path: str) -> tuple[Attachment, ...]:
        """The images of a recorded answer, with their bytes where these are still beside the task files."""
        images: list[Attachment] = []
        for image in recorded_attachments(recorded.extra):
            data = self._log.steps.read_blob(image["sha256"])
            images.append(Attachment.from_dict(image, data or b""))
            if data is None and self._log.steps.journal is not None:
                self._warn(f"{path}: {image['source']} is not sent again: its bytes are not beside the task files")
        return tuple(images)

    def _is_direct(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is None or tool.kind == "direct"

    async def _run(
        self, call: ToolCall, path: str, args: Mapping[str, Any], fingerprint: str, budget: Budget
    ) -> tuple[str, tuple[Attachment, ...]]:
        steps, tool = self._log.steps, self._registry.get(call.name)
        has_lasting_effect = tool is not None and tool.kind == "direct" and tool.effect and not tool.retryable
        may_run = not has_lasting_effect or await steps.may_repeat(path)
        number = await steps.begin(path, "tool", call.name, args, fingerprint)
        if not may_run:
            await steps.fail(number, NOT_REPEATED, 0.0, "not repeated")
            return NOT_REPEATED, ()
        started = time.perf_counter()
        remaining = budget.remaining_s()
        context = replace(self._context, step_path=path, remaining_s=inf if remaining is None else remaining)
        try:
            with self._log.tracer.tool_call(call, tool) as span:
                outcome = await self._registry.call(call.name, call.arguments, context)
                span.set_result(outcome)
        except BaseException as error:
            steps.abort(number, "", time.perf_counter() - started, f"{type(error).__name__}: {error}")
            raise
        if steps.halted is not None and not self._is_direct(call.name):
            # The outcome is not the subtask's answer. The step stays open, so that a resumed run continues it.
            raise steps.halted
        duration = time.perf_counter() - started
        if outcome.ok:
            for image in outcome.images:
                await steps.write_blob(image.data)
            images = [image.to_dict() for image in outcome.images]
            await steps.succeed(number, outcome.content, duration, extra={"attachments": images} if images else None)
            return outcome.content, outcome.images
        answer = f"error: {outcome.error or outcome.content}"
        # A tool's error is an answer to the model, so the step is completed; the record still says that it failed.
        await steps.fail(number, answer, duration, outcome.error or "tool error")
        return answer, ()
