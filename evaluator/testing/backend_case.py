"""One backend and the server that it calls, and the form of a check in the conformance suite of
backends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from evaluator.errors import ProviderError, UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.models.backend import Backend, Message, ModelRequest, ModelResponse, ToolSpec
from evaluator.testing.loopback import Answer, HttpReply, LoopbackServer

Factory = Callable[[str], Backend]


@frozen
class CallOutcome:
    """The outcome of one call: a response or an error, the streamed pieces, and what the server
    received.
    """

    response: ModelResponse | None
    error: ProviderError | None
    pieces: tuple[str, ...]
    posts: int
    body: Mapping[str, Any]

    def ok(self) -> ModelResponse:
        assert self.response is not None, f"expected a response, got {self.error!r}"
        return self.response

    def failed(self, *kinds: str) -> ProviderError:
        assert self.error is not None, f"expected a ProviderError, got {self.response}"
        assert self.error.kind in kinds, (
            f"expected {' or '.join(kinds)}, got {self.error.kind}: {self.error}"
        )
        assert self.posts <= 1, f"one call made {self.posts} POSTs"
        assert len(self.error.message) <= 600, "the message is too long to print"
        assert KEY not in str(self.error), "the message shows the API key"
        return self.error


KEY = "sk-loopback-0123456789"
MODEL = "loopback-1"
UNBOUNDED_S = 60.0
"""A call that lasts this much longer than its timeout is taken to have no end, on a busy machine
too.
"""


def a_request(text: str = "Say ok.", **fields: Any) -> ModelRequest:
    """A small request; `fields` are those of ModelRequest."""
    values: dict[str, Any] = {
        "model": MODEL,
        "messages": (Message("user", text),),
        "timeout_s": UNBOUNDED_S,
        **fields,
    }
    return ModelRequest(**values)


class BackendCase:
    """One backend and the server that it calls."""

    def __init__(self, backend: Backend, server: LoopbackServer, model: str) -> None:
        self.backend = backend
        self.server = server
        self.model = model

    async def ask(
        self, *replies: HttpReply | Answer, stream: bool = False, **fields: Any
    ) -> CallOutcome:
        """Makes one call, answered by the first of `replies`. Exceptions other than ProviderError
        pass through.
        """
        self.server.enqueue(*replies)
        before = self.server.posts
        pieces: list[str] = []
        response: ModelResponse | None = None
        error: ProviderError | None = None
        try:
            request = a_request(**{"model": self.model, **fields})
            async with asyncio.timeout(request.timeout_s + UNBOUNDED_S):
                response = await self.backend.complete(
                    request, on_text=pieces.append if stream else None
                )
        except ProviderError as exc:
            error = exc
        posts = self.server.posts - before
        body = self.server.bodies[-1] if posts else {}
        return CallOutcome(response, error, pieces=tuple(pieces), posts=posts, body=body)


Demand = Callable[[BackendCase], Awaitable[None]]


@frozen
class Check:
    """One named requirement. Those of the `wire` need a backend that calls the given server."""

    name: str
    demand: Demand
    wire: bool

    def __str__(self) -> str:
        return self.name

    async def run(self, factory: Factory, *, model: str = MODEL) -> None:
        """Makes a backend with `factory(base_url)`, checks it and closes it. Raises:
        AssertionError.
        """
        if not __debug__:
            raise UsageError("the checks of backends use assert: run Python without -O")
        with LoopbackServer() as server:
            backend = factory(server.base_url)
            try:
                await self.demand(BackendCase(backend, server, model=model))
            finally:
                await backend.aclose()


TOOL = ToolSpec(
    "look_up",
    "Looks a word up.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)


class Checks(list[Check]):
    """Checks in the order in which they are defined."""

    def add(self, *, wire: bool = True) -> Callable[[Demand], Demand]:
        """Adds the function as a check, which is named like it."""

        def add(demand: Demand) -> Demand:
            self.append(Check(demand.__name__.replace("_", " "), demand, wire=wire))
            return demand

        return add
