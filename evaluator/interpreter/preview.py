"""What the model would see, without a call: the same road as an evaluation, with a backend that only looks.

The first task's messages are exact. Where a later one depends on an earlier answer, that answer is the
simulated model's; scripts and commands do not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evaluator.handler.backend import Message, ModelRequest, ModelResponse
from evaluator.handler.simulated import SimulatedBackend
from evaluator.handler.tokens import estimate_tokens


@dataclass(frozen=True, slots=True)
class Preview:
    """One model request. `input_tokens` is our estimate; `exact` says that no simulated answer came before it."""

    task: str | None
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    input_tokens: int
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "messages": [message.to_dict() for message in self.messages],
            "tools": list(self.tools),
            "input_tokens": self.input_tokens,
            "exact": self.exact,
        }


class LookingBackend:
    """A Backend that keeps each request it is given and answers with the simulated model."""

    def __init__(self) -> None:
        self._simulated = SimulatedBackend()
        self.seen: list[Preview] = []

    @property
    def name(self) -> str:
        return "simulated"

    async def complete(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        tokens = sum(estimate_tokens(message.content) for message in request.messages)
        tokens += sum(attached.tokens for message in request.messages for attached in message.attachments)
        tools = tuple(spec.name for spec in request.tools)
        exact = not self.seen
        self.seen.append(Preview(request.hints.task, request.messages, tools, tokens, exact))
        return await self._simulated.complete(request)

    async def aclose(self) -> None:
        await self._simulated.aclose()
