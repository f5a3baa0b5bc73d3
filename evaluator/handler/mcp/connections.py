"""The sessions of one Evaluator with MCP servers: opened when first needed, shared, closed together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluator.errors import MissingExtra, ToolError
from evaluator.handler.backend import ToolSpec
from evaluator.handler.mcp.content import answer_of_result, find, text_of_contents
from evaluator.handler.mcp.servers import McpServer
from evaluator.handler.tools.registry import Tool, ToolAnswer, ToolContext

if TYPE_CHECKING:
    from mcp import Client

    from evaluator.handler.mcp.connection import Connection

MAX_RESTARTS = 3

T = TypeVar("T")


class McpConnections:
    """One session for each server and event loop, safe for any number of evaluations of that loop.

    A server that ended is started again for the next request, at most 3 times with no tool call or resource answered
    in between; then it is given up until `aclose`. A request that was in flight is never repeated. Programs start in
    `cwd`. `notice` is told once for each tool that cannot be offered.
    """

    def __init__(
        self,
        cwd: Path | None = None,
        *,
        notice: Callable[[str], None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._cwd = cwd
        self._notice = notice
        self._environ = os.environ if environ is None else environ
        self._open: dict[asyncio.AbstractEventLoop, dict[McpServer, Connection]] = {}
        self._unanswered: dict[McpServer, int] = {}
        self._told: set[str] = set()

    def check(self, servers: Iterable[McpServer]) -> None:
        """What can be known without starting anything.

        Raises: MissingExtra, where there are servers and no SDK; ConfigurationError, for a variable that is not set.
        """
        for server in servers:
            if find_spec("mcp") is None:
                raise MissingExtra("mcp", "mcp")
            server.secrets(self._environ)

    async def describe(self, server: McpServer, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """What the server says of its tools of these names, as JSON values: `tools_of` makes tools of them.

        Raises: ToolError, where the server cannot be used; ConfigurationError, for a name that it does not have or a
        tool that cannot be offered; MissingExtra.
        """
        connection = await self._connection(server)
        listing = await connection.listing(server.timeout_s)
        for name, reason in listing.skipped.items():
            if self._notice is not None and name not in self._told:
                self._told.add(name)
                self._notice(f"the tool {name} cannot be offered: {reason}")
        return find(listing, server, names)

    def tools_of(self, server: McpServer, described: Iterable[Mapping[str, Any]]) -> list[Tool]:
        """Tools with the policy ask, since a server's tool may do anything. Nothing is started before one is called.

        A call counts as one with an effect that must not be repeated, unless the server is trusted and says otherwise.
        """
        return [self._tool(server, said) for said in described]

    def _tool(self, server: McpServer, said: Mapping[str, Any]) -> Tool:
        name, original = said["name"], said["tool"]

        async def run(arguments: dict[str, Any], context: ToolContext) -> ToolAnswer:
            # A little less than is left, so that the model hears which server it was.
            timeout_s = min(server.timeout_s, context.remaining_s - min(1.0, context.remaining_s / 20))
            result = await self._request(
                server, name, lambda client: client.call_tool(original, arguments), timeout_s, is_call=True
            )
            return answer_of_result(result, name)

        return Tool(
            ToolSpec(name, said["description"], said["parameters"]),
            run,
            policy="ask",
            retryable=server.trusted and said["repeatable"],
            effect=not (server.trusted and said["reads_only"]),
        )

    async def read_resource(self, server: McpServer, uri: str) -> str:
        """The text of a resource.

        Raises: ToolError, where the server cannot be used, refuses, or has no text of that URI, or more than a million
        characters; MissingExtra.
        """
        result = await self._request(server, uri, lambda client: client.read_resource(uri), server.timeout_s)
        try:
            return text_of_contents(result)
        except ToolError as error:
            raise ToolError(f"MCP server {server.name!r}: {uri} was not read: {error}") from error

    async def aclose(self) -> None:
        """Closes every session, those of other event loops too, and forgets which servers were given up."""
        here = asyncio.get_running_loop()
        closing: list[Any] = []
        for loop, connections in list(self._open.items()):
            for connection in connections.values():
                if loop is here:
                    closing.append(connection.aclose())
                elif loop.is_running():
                    closing.append(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(connection.aclose(), loop)))
        self._open.clear()
        self._unanswered.clear()
        await asyncio.gather(*closing)

    async def _request(
        self, server: McpServer, what: str, send: Callable[[Client], Any], timeout_s: float, *, is_call: bool = False
    ) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until):
                connection = await self._connection(server)
        except TimeoutError as error:
            raise ToolError(f"MCP server {server.name!r} was not asked: it does not answer what went before") from error
        answer = await connection.request(what, send, max(0.0, until - loop.time()), is_call=is_call)
        self._unanswered[server] = 0
        return answer

    async def _connection(self, server: McpServer) -> Connection:
        from evaluator.handler.mcp.connection import Connection

        for loop in [loop for loop in self._open if loop.is_closed()]:
            self._open.pop(loop, None)  # its tasks ended with it, and so did its servers
        connections = self._open.setdefault(asyncio.get_running_loop(), {})
        former = connections.get(server)
        if former is not None:
            await former.settle()
        current = connections.get(server)
        if current is not None and not current.is_over:
            return current
        starts = self._unanswered.get(server, 0)
        if starts > MAX_RESTARTS:
            why = current.why if current is not None else "see the errors before"
            raise ToolError(
                f"MCP server {server.name!r} is given up: started {starts} times, it answered no call; "
                f"the last time: {why}"
            )
        connections[server] = connection = Connection(server, self._environ, self._cwd)
        self._unanswered[server] = starts + 1
        return connection
