"""The transports to an MCP server: a supervised local program, or HTTP.

They are standard input and output of a local program, and streamable HTTP. Both limit the size of a
message. A context manager of this module has to be entered and left by the same task, as the SDK
requires.
"""

from __future__ import annotations

import asyncio
import codecs
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evaluator.errors import ToolError
from evaluator.errors.messages import visible
from evaluator.processes.supervisor import (
    MAX_PROCESSES,
    MEMORY_BYTES,
    Command,
    OutputPipe,
    ProcessEnd,
    SupervisedProcess,
    run_to_end,
    scrubbed_environment,
)
from evaluator.record.redact import Redactor
from evaluator.tools.mcp.servers import McpServer

MAX_LINE_BYTES = 16_000_000
MAX_GARBAGE_LINES = 10_000
GRACE_S = 2.0
_TAIL_BYTES = 4_000
_SHOWN_CHARS = 600


class _Tail(OutputPipe):
    """Keeps the last bytes of a stream, however long it is."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = b""

    def data_received(self, data: bytes) -> None:
        self.kept = (self.kept + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        return codecs.decode(self.kept, "utf-8", "replace").strip()


class _Lines(OutputPipe):
    """Reads a stream line by line; the program waits while nothing is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.reader.set_transport(transport)

    def data_received(self, data: bytes) -> None:
        self.reader.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reader.feed_eof()
        super().connection_lost(exc)


class ServerProcess:
    """A running server, made by `start`. `close` has to be awaited, even if the server ended by
    itself.

    `finished` is set when the server sends no more messages; after `close`, `why` says how it
    ended.
    """

    def __init__(self, server: McpServer, environ: Mapping[str, str], cwd: Path | None) -> None:
        given = server.secrets(environ)
        words = (server.command or "", *server.args)
        self.finished = asyncio.Event()
        self.why = ""
        self._garbage = 0
        self._first_garbage = ""
        self._redactor = Redactor(given)
        self._lines = _Lines()
        self._tail = _Tail()
        command = Command(words, cwd=cwd, env=scrubbed_environment() | given)
        self._process = SupervisedProcess(command, self._lines, stderr=self._tail, has_input=True)
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, server: McpServer, environ: Mapping[str, str], cwd: Path | None
    ) -> ServerProcess:
        """Starts the server's program in `cwd`. If it cannot be started, it has ended, and `why` is
        the reason.

        Raises: ToolError, for a command that no system accepts; ConfigurationError, for a variable
        that is not set.
        """
        server_process = cls(server, environ, cwd)
        try:
            await server_process._process.open_input()
        except BaseException:
            await server_process._process.end()
            raise
        server_process._watch = asyncio.create_task(server_process._wait_for_end())
        return server_process

    async def _wait_for_end(self) -> None:
        try:
            end = await self._process.run()
        except ToolError as error:
            self.why = self.why or str(error)
        else:
            self.why = self.why or _describe(end)
        finally:
            self.finished.set()

    async def read_line(self) -> bytes | None:
        """The next line of its standard output; None at its end, and for a line of more than 16
        MB.
        """
        try:
            return await self._lines.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError:
            self.why = f"it sent a message of more than {MAX_LINE_BYTES:,} bytes"
            line = b""
        if not line:
            self.finished.set()
        return line or None

    def write_line(self, line: bytes) -> None:
        """Writes a line to its standard input; does nothing if the server has closed it."""
        pipe = self._process.input
        if pipe is not None and not pipe.is_closing():
            pipe.write(line + b"\n")

    def note_garbage(self, line: bytes) -> None:
        """Remembers that a line of its standard output was not a message; too many end it."""
        if self._garbage == MAX_GARBAGE_LINES:
            self.why = f"it wrote more than {MAX_GARBAGE_LINES:,} lines that are not messages"
            self.finished.set()
        if line.strip():
            self._garbage += 1
            self._first_garbage = (
                self._first_garbage or line[:200].decode("utf-8", "replace").strip()
            )

    def other_output(self) -> str:
        """Its output that was not messages, for the text of an error: limited, escaped, redacted;
        "" if none.
        """
        parts: list[str] = []
        if self._garbage:
            lines = "lines that are not messages"
            if self._garbage == 1:
                lines = "line that is not a message"
            parts.append(
                f"it wrote {self._garbage} {lines} to stdout, the first: {self._first_garbage!r}"
            )
        tail = visible(self._tail.text())
        if tail:
            parts.append(f"its stderr ends: {tail[-_SHOWN_CHARS:]}")
        return self._redactor.redact("; ".join(parts))

    async def close(self, grace_s: float) -> None:
        """Closes its standard input, waits up to `grace_s` for its end, and kills what is left of
        its process tree.

        When cancelled, it kills at once and raises CancelledError after the tree is dead.
        """
        hurry = asyncio.Event()
        await run_to_end(self._stop(grace_s, hurry), hurry.set)

    async def _stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        if self._watch is None:
            return
        pipe = self._process.input
        hurrying = asyncio.create_task(hurry.wait())
        try:
            if pipe is not None:
                pipe.close()
            await asyncio.wait(
                [self._watch, hurrying], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if pipe is not None and pipe.get_write_buffer_size():
                pipe.abort()
            # `run` reads the socket that `end` reads; it has to be stopped first.
            for task in (self._watch, hurrying):
                task.cancel()
            await asyncio.wait([self._watch, hurrying])
            await self._process.end()


def _describe(end: ProcessEnd) -> str:
    if end.reason == "processes":
        return f"it was killed for having more than {MAX_PROCESSES} processes"
    if end.reason == "memory":
        return f"it was killed for using more than {MEMORY_BYTES >> 20:,} MB of memory"
    if end.reason == "killed":
        return "it was stopped"
    if end.signal is not None:
        return f"it was ended by {_signal_name(end.signal)}"
    return f"it ended with exit code {end.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_CONNECT_S = 30.0


@asynccontextmanager
async def stdio(process: ServerProcess) -> AsyncGenerator[Any]:
    """One message per line. The reading end closes at the end of the server's output or at a
    message above 16 MB.
    """
    import anyio
    import anyio.lowlevel
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with incoming:
            while (line := await process.read_line()) is not None:
                # A line that is read already suspends nothing: other tasks get their turn here.
                await anyio.lowlevel.checkpoint()
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    process.note_garbage(line)
                    if process.finished.is_set():
                        return
                    continue
                try:
                    await incoming.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the session is gone

    async def send() -> None:
        async with outgoing:
            async for item in outgoing:
                process.write_line(
                    item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                )

    async with read, write, anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def http(
    server: McpServer, environ: Mapping[str, str], refused: list[str]
) -> AsyncGenerator[Any]:
    """Streamable HTTP. A response or an event of more than 16 MB is an error. `refused` has the
    status of the last answer to a message, if it was 400 or above.

    Raises: ConfigurationError, for a header's variable that is not set.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    values = server.secrets(environ)
    headers = {"accept-encoding": "identity"}
    headers |= {header.name: header.prefix + values[header.variable] for header in server.headers}
    # No limit on reading: a stream may be silent for a long time, and each request has its own time
    # limit.
    timeout = httpx2.Timeout(_CONNECT_S, read=None)

    async def look(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
            refused[:] = [status] if response.status_code >= 400 else []
        _limit_size(response)

    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=timeout, event_hooks={"response": [look]}
        ) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=MAX_LINE_BYTES
        ) as streams,
    ):
        yield streams


def _limit_size(response: Any) -> None:
    """Limits the size of a response; for a stream of events, the SDK limits each event instead."""
    import httpx2

    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    stream = response.stream

    class LimitedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for piece in stream:
                seen += len(piece)
                if seen > MAX_LINE_BYTES:
                    raise httpx2.StreamError(f"the response has more than {MAX_LINE_BYTES:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = LimitedStream()
