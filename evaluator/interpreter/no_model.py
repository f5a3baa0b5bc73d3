"""The model of a replay: there is none."""

from __future__ import annotations

from collections.abc import Callable

from evaluator.errors import RecordError
from evaluator.handler.backend import ModelRequest, ModelResponse


class NoModel:
    """A Backend that answers nothing: what a replay asks of it is a fault."""

    name = "replay"

    async def complete(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        raise RecordError("a replay makes no call")

    async def aclose(self) -> None:
        """Nothing is open."""
