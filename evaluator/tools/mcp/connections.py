"""The sessions of an Evaluator with MCP servers: opened at first use, shared, closed together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluator.errors import MissingExtra, ToolError
from evaluator.models.backend import ToolSpec
from evaluator.tools.mcp.servers import McpServer
from evaluator.tools.tool import Tool, ToolAnswer, ToolContext

if TYPE_CHECKING:
    from mcp import Client

    from evaluator.tools.mcp.connection import Connection

MAX_RESTARTS = 3

T = TypeVar("T")


class McpConnections:
    """One session for each server and event loop, shared by any number of evaluations of that loop.

    A server that ended is started again for the next request, at most 3 times without an answered
    tool call or resource in between; then it is not used again until `aclose`. A request that was
    in flight is never repeated. Programs start in `cwd`. `notice` is called once for each tool that
    cannot be offered.
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
        """Checks what can be known without starting a server.

        Raises: MissingExtra, if there are servers but no SDK; ConfigurationError, for a variable
        that is not set.
        """
        for server in servers:
            from importlib.util import find_spec

            if find_spec("mcp") is None:
                raise MissingExtra("mcp", "mcp")
            server.secrets(self._environ)

    async def describe(self, server: McpServer, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """The server's descriptions of its tools with these names, as JSON values for `tools_of`.

        Raises: ToolError, if the server cannot be used; ConfigurationError, for a tool that it does
        not have or that cannot be offered; MissingExtra.
        """
        from evaluator.tools.mcp.content import find_tools

        connection = await self._connection(server)
        listing = await connection.listing(server.timeout_s)
        for name, reason in listing.skipped.items():
            if self._notice is not None and name not in self._told:
                self._told.add(name)
                self._notice(f"the tool {name} cannot be offered: {reason}")
        return find_tools(listing, server, names=names)

    def tools_of(self, server: McpServer, described: Iterable[Mapping[str, Any]]) -> list[Tool]:
        """Tools with the policy ask, since a server's tool may do anything. The server is started
        by the first call.

        A call counts as having an effect and is not repeated, unless the server is trusted and
        declares otherwise.
        """
        return [self._tool(server, description) for description in described]

    def _tool(self, server: McpServer, description: Mapping[str, Any]) -> Tool:
        name = description["name"]
        original = description["tool"]

        async def run(arguments: dict[str, Any], context: ToolContext) -> ToolAnswer:
            from evaluator.tools.mcp.content import answer_of_result

            # Slightly less than the remaining time, so that the error names the server.
            timeout_s = min(
                server.timeout_s, context.remaining_s - min(1.0, context.remaining_s / 20)
            )
            result = await self._request(
                server,
                name,
                send=lambda client: client.call_tool(original, arguments),
                timeout_s=timeout_s,
                is_call=True,
            )
            return answer_of_result(result, name)

        return Tool(
            ToolSpec(name, description["description"], parameters=description["parameters"]),
            run,
            policy="ask",
            retryable=server.trusted and description["repeatable"],
            effect=not (server.trusted and description["reads_only"]),
        )

    async def read_resource(self, server: McpServer, uri: str) -> str:
        """The text of a resource.

        Raises: ToolError, if the server cannot be used or refuses, or if the resource is not text
        or has more than a million characters; MissingExtra.
        """
        from evaluator.tools.mcp.content import text_of_contents

        result = await self._request(
            server, uri, send=lambda client: client.read_resource(uri), timeout_s=server.timeout_s
        )
        try:
            return text_of_contents(result)
        except ToolError as error:
            raise ToolError(f"MCP server {server.name!r}: {uri} was not read: {error}") from error

    async def aclose(self) -> None:
        """Closes all sessions, also those of other event loops, and allows servers that were given
        up again.
        """
        here = asyncio.get_running_loop()
        closing: list[Any] = []
        for loop, connections in list(self._open.items()):
            for connection in connections.values():
                if loop is here:
                    closing.append(connection.aclose())
                elif loop.is_running():
                    closing.append(
                        asyncio.wrap_future(
                            asyncio.run_coroutine_threadsafe(connection.aclose(), loop)
                        )
                    )
        self._open.clear()
        self._unanswered.clear()
        await asyncio.gather(*closing)

    async def _request(
        self,
        server: McpServer,
        what: str,
        send: Callable[[Client], Any],
        timeout_s: float,
        *,
        is_call: bool = False,
    ) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until):
                connection = await self._connection(server)
        except TimeoutError as error:
            raise ToolError(
                f"MCP server {server.name!r} was not asked: it does not answer an earlier request"
            ) from error
        answer = await connection.request(
            what, send, max(0.0, until - loop.time()), is_call=is_call
        )
        self._unanswered[server] = 0
        return answer

    async def _connection(self, server: McpServer) -> Connection:
        from evaluator.tools.mcp.connection import Connection

        for loop in [loop for loop in self._open if loop.is_closed()]:
            self._open.pop(loop, None)  # its tasks ended with it, as did its servers
        connections = self._open.setdefault(asyncio.get_running_loop(), {})
        former = connections.get(server)
        if former is not None:
            await former.settle()
        current = connections.get(server)
        if current is not None and not current.is_over:
            return current
        starts = self._unanswered.get(server, 0)
        if starts > MAX_RESTARTS:
            why = "see the errors before"
            if current is not None:
                why = current.why
            raise ToolError(
                f"MCP server {server.name!r} is given up: started {starts} times, it answered no "
                f"call; the last time: {why}",
                retryable=False,
            )
        connections[server] = connection = Connection(server, self._environ, cwd=self._cwd)
        self._unanswered[server] = starts + 1
        return connection
