"""Type `m`: watches an MCP server: its resources, its lists and its log messages.

The output file has a line of JSON for each event, and one with the text of a watched resource after
each change. The task goes on until it is killed, has seen `max_events` events (completed), or the
server is lost (failed).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.background.output import Output
from evaluator.background.tasks import End, TaskType, Work
from evaluator.errors import ToolError
from evaluator.record.redact import Redactor
from evaluator.tools.mcp import McpServer
from evaluator.tools.mcp.content import EventWatch, text_of_contents

if TYPE_CHECKING:
    from evaluator.tools.mcp.connection import Connection


class WatchWork(Work):
    """Watches the resources `uris` of `server`, whose program starts in `cwd`, and what it
    announces by itself.
    """

    type: TaskType = "m"
    priority = "next"

    def __init__(
        self,
        server: McpServer,
        uris: tuple[str, ...] = (),
        *,
        cwd: Path | None = None,
        max_events: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._uris = uris
        self._cwd = cwd
        self._max_events = max_events
        self._environ = os.environ if environ is None else environ
        self._redactor = Redactor.from_environment(self._environ)
        self._is_done = False
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._failure: OSError | None = None
        self._output: Output | None = None
        self._events = 0

    async def run(self, output: Output) -> End:
        """Watches the server until its end. Its program and all that it started have ended then."""
        from evaluator.tools.mcp.connection import Connection

        if self._is_killed:
            return End("killed")
        self._output = output
        connection = Connection(
            self._server, self._environ, cwd=self._cwd, watch=EventWatch(self._uris, self._note)
        )
        following = self._running = asyncio.ensure_future(self._follow(connection))
        try:
            await asyncio.wait([following])
        finally:
            following.cancel()
            await connection.aclose("it was killed" if self._is_killed else "")
        if self._is_killed:
            return End("killed", summary=self._summary())
        if why := following.result():
            reason = self._redactor.redact(f"MCP server {self._server.name!r}: {why}")
            return End("failed", reason=reason, summary=self._summary())
        return End("completed", summary=self._summary())

    async def _follow(self, connection: Connection) -> str:
        """Reads resources that have changed. Returns: why the server is lost; "" after the last
        event.
        """
        ended = asyncio.ensure_future(connection.ended())
        while not self._is_done or self._changed:
            waking = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait([waking, ended], return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if ended.done():
                return ended.result()
            while self._changed and not ended.done():
                await self._read(connection, next(iter(self._changed)))
        return ""

    async def _read(self, connection: Connection, uri: str) -> None:
        """Writes the text of a changed resource. Changes during the read cause another one."""
        del self._changed[uri]
        try:
            answer = await connection.request(
                uri, lambda client: client.read_resource(uri), self._server.timeout_s
            )
            self._write({"event": "resource", "uri": uri, "text": text_of_contents(answer)})
        except ToolError as error:
            self._write({"event": "resource", "uri": uri, "error": str(error)})

    def _note(self, event: Mapping[str, Any]) -> None:
        if self._is_done:
            return
        self._events += 1
        self._is_done = self._events == self._max_events
        try:
            self._write(event)
        except OSError as error:
            self._failure = error
        if event.get("uri") in self._uris:
            self._changed[event["uri"]] = None
        what = self._redactor.redact(
            " ".join(str(event[key]) for key in ("event", "uri", "data") if key in event)
        )
        self._event = f"event {self._events}: {what[:500]}"
        self._wake.set()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._output is not None:
            self._output.write_record(record, self._redactor)

    def _summary(self) -> str:
        if self._events != 1:
            return f"{self._events} events"
        return "1 event"
