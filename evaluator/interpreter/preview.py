"""Previews of model requests: an evaluation with a backend that records the requests and makes no
call.

The first task's messages are exact. If a later task depends on an earlier answer, that answer is
simulated. Scripts and commands do not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evaluator.models.backend import Message, ModelRequest, ModelResponse
from evaluator.models.prices import estimate_tokens
from evaluator.models.simulated import SimulatedBackend


@dataclass(frozen=True, slots=True)
class Preview:
    """One model request. `input_tokens` is an estimate; `exact` means that no simulated answer came
    before it.
    """

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


class PreviewBackend:
    """A Backend that records each request and answers with the simulated model."""

    def __init__(self) -> None:
        self._simulated = SimulatedBackend()
        self.seen: list[Preview] = []

    @property
    def name(self) -> str:
        return "simulated"

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        tokens = sum(estimate_tokens(message.content) for message in request.messages)
        tokens += sum(
            attached.tokens for message in request.messages for attached in message.attachments
        )
        tools = tuple(spec.name for spec in request.tools)
        exact = not self.seen
        self.seen.append(
            Preview(
                request.hints.task, request.messages, tools=tools, input_tokens=tokens, exact=exact
            )
        )
        return await self._simulated.complete(request)

    async def aclose(self) -> None:
        await self._simulated.aclose()
