"""Previews of model requests: an evaluation with a backend that records the requests and makes no
call.

The first task's messages are exact. If a later task depends on an earlier answer, that answer is
simulated. Scripts and commands do not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import Message, ModelRequest, ModelResponse, estimate_tokens
from evaluator.models.prompt_cache import prefix_of
from evaluator.models.simulated import SimulatedBackend

_MESSAGE_OVERHEAD_TOKENS = 16
"""More than any provider adds to a message."""


@frozen
class Preview:
    """One model request. `input_tokens` is an estimate; `exact` means that no simulated answer came
    before it.

    `max_input_tokens` is a bound, None where the request has attachments. `output_tokens` estimates
    an answer like the template's examples or of its output format, None if it declares neither.
    `prefix_tokens` estimates the beginning that other requests have too, as far as is known, and
    `prefix_key` identifies it.
    """

    task: str | None
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    input_tokens: int
    exact: bool
    model: str = ""
    max_input_tokens: int | None = None
    output_tokens: int | None = None
    prefix_tokens: int = 0
    prefix_key: bytes = b""

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
        response = await self._simulated.complete(request)
        tokens = sum(estimate_tokens(message.content) for message in request.messages)
        tokens += sum(estimate_tokens(spec.text()) for spec in request.tools)
        tokens += sum(
            attached.tokens for message in request.messages for attached in message.attachments
        )
        hints = request.hints
        is_declared = (
            hints.examples or hints.output_type not in ("text", "calls") or hints.schema is not None
        )
        prefix = prefix_of(request.messages, request.tools)
        preview = Preview(
            hints.task,
            request.messages,
            tools=tuple(spec.name for spec in request.tools),
            input_tokens=tokens,
            exact=not self.seen,
            model=request.model,
            max_input_tokens=_max_input_tokens(request),
            output_tokens=response.usage.output_tokens if is_declared else None,
            prefix_tokens=0 if prefix is None else prefix.tokens,
            prefix_key=b"" if prefix is None else prefix.key,
        )
        self.seen.append(preview)
        return response

    async def aclose(self) -> None:
        await self._simulated.aclose()


def _max_input_tokens(request: ModelRequest) -> int | None:
    """The most tokens of a request: a token has at least one byte of what is sent."""
    if request.tools or any(message.attachments for message in request.messages):
        return None
    size = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)
    if request.schema is not None:
        size += len(json.dumps(request.schema, ensure_ascii=True))
    return size + _MESSAGE_OVERHEAD_TOKENS * (len(request.messages) + 1)
