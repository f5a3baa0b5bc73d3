"""An MCP server that is a local program: a supervised process that is read line by line."""

from __future__ import annotations

import asyncio
import codecs
import signal
from collections.abc import Mapping
from pathlib import Path

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
            if self._garbage == 1:
                lines = "line that is not a message"
            else:
                lines = "lines that are not messages"
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
