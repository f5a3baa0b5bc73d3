"""The backend of a replay, which makes no call."""

from __future__ import annotations

from collections.abc import Callable

from evaluator.errors import RecordError
from evaluator.models.backend import ModelRequest, ModelResponse


class NoModel:
    """A Backend that refuses every request, because a replay never needs one."""

    name = "replay"

    async def complete(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        raise RecordError("a replay makes no call")

    async def aclose(self) -> None:
        """Nothing is open."""
