"""A server that is a program: started under the launcher of scripts, with its lines read and its end known.

The launcher (`handler.tools._launcher`) is the subreaper of the server's tree and ends only when nothing of it is
left; should the evaluating process be killed, the launcher sees its socket close and kills the tree.
"""

from __future__ import annotations

import asyncio
import codecs
import marshal
import math
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.errors import ToolError
from evaluator.handler.mcp.servers import McpServer
from evaluator.handler.tools.ask import visible
from evaluator.handler.tools.script import (
    MARK,
    MEMORY_BYTES,
    _Capture,  # pyright: ignore[reportPrivateUsage]
    _check,  # pyright: ignore[reportPrivateUsage]
    _encode,  # pyright: ignore[reportPrivateUsage]
    _Run,  # pyright: ignore[reportPrivateUsage]
    _start_failure,  # pyright: ignore[reportPrivateUsage]
    scrubbed_environment,
)
from evaluator.record.redact import Redactor

MAX_LINE_BYTES = 16_000_000
MAX_PROCESSES = 512
GRACE_S = 2.0
_TAIL_BYTES = 4_000
_SHOWN_CHARS = 600


class _Tail(_Capture):
    """Keeps the last bytes of a pipe, however much comes."""

    def __init__(self) -> None:
        super().__init__(_TAIL_BYTES, lambda: None)

    def data_received(self, data: bytes) -> None:
        self.kept = (self.kept + data)[-self.bound :]

    def text(self) -> str:
        return codecs.decode(bytes(self.kept), "utf-8", "replace").strip()


class _Lines(_Capture):
    """A pipe read line by line; the pipe waits where nobody reads."""

    def __init__(self) -> None:
        super().__init__(0, lambda: None)
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
    """A running server, made by `start`. `close` has to be awaited, also where it ended by itself.

    `finished` is set when nothing more will be heard of it; after `close`, `why` says how it ended.
    """

    def __init__(self, run: _Run, lines: _Lines, tail: _Tail, redactor: Redactor) -> None:
        self.finished = asyncio.Event()
        self.why = ""
        self._garbage = 0
        self._first_garbage = ""
        self._run = run
        self._lines = lines
        self._tail = tail
        self._redactor = redactor
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, server: McpServer, environ: Mapping[str, str], cwd: Path | None) -> ServerProcess:
        """Starts the server's program in `cwd`. That it cannot be started is its end, told by `why`.

        Raises: ToolError, for a command that no system takes; ConfigurationError, for a variable that is not set.
        """
        given = server.secrets(environ)
        words = [server.command or "", *server.args]
        environment = scrubbed_environment() | given
        mark = environment[MARK] = secrets.token_hex(16)
        _check(words, words, environment, math.inf)
        order = marshal.dumps(
            {
                "argv": [_encode(word) for word in words],
                "env": {_encode(name): _encode(value) for name, value in environment.items()},
                "cwd": None if cwd is None else os.fsencode(cwd),
                "timeout_s": math.inf,
                "memory_bytes": MEMORY_BYTES,
                "max_processes": MAX_PROCESSES,
                "is_confined": True,
            }
        )
        run = _Run(mark, True, 0)
        run.stdout, run.stderr = lines, tail = _Lines(), _Tail()
        process = cls(run, lines, tail, Redactor(given))
        try:
            loop = asyncio.get_running_loop()
            run.writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, run.process.stdin)
        except BaseException:
            await run.abort()
            run.close()
            raise
        process._watch = asyncio.create_task(process._see_it_end(order, words[0], cwd))
        return process

    async def _see_it_end(self, order: bytes, program: str, cwd: Path | None) -> None:
        try:
            report = await self._run.finish(order, None, math.inf)
        except ToolError as error:
            self.why = self.why or str(error)
        else:
            self.why = self.why or _describe(report, program, cwd)
        finally:
            self.finished.set()

    async def read_line(self) -> bytes | None:
        """The next line of its standard output; None at the end of it, and at a line of more than 16 MB."""
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
        """Hands a line to its standard input; nothing happens where it has closed that."""
        writer = self._run.writer
        if writer is not None and not writer.is_closing():
            writer.write(line + b"\n")

    def note_garbage(self, line: bytes) -> None:
        """Remembers that a line of its standard output was no message."""
        if line.strip():
            self._garbage += 1
            self._first_garbage = self._first_garbage or line[:200].decode("utf-8", "replace").strip()

    def said(self) -> str:
        """What it wrote besides messages, for an error's text: bounded, escaped, without its secrets; "" if nothing."""
        parts: list[str] = []
        if self._garbage:
            lines = "line that is no message" if self._garbage == 1 else "lines that are no messages"
            parts.append(f"it wrote {self._garbage} {lines} to stdout, the first: {self._first_garbage!r}")
        tail = visible(self._tail.text())
        if tail:
            parts.append(f"its stderr ends: {tail[-_SHOWN_CHARS:]}")
        return self._redactor.redact("; ".join(parts))

    async def close(self, grace_s: float) -> None:
        """Closes its standard input, gives it `grace_s` to end, and kills what is left of its tree.

        When cancelled it kills at once, and raises CancelledError after the tree is dead.
        """
        hurry = asyncio.get_running_loop().create_future()
        stopping = asyncio.ensure_future(self._stop(grace_s, hurry))
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                cancelled = True
                if not hurry.done():
                    hurry.set_result(None)
        if cancelled:
            raise asyncio.CancelledError

    async def _stop(self, grace_s: float, hurry: asyncio.Future[None]) -> None:
        assert self._watch is not None
        writer = self._run.writer
        try:
            if writer is not None:
                writer.close()
            await asyncio.wait([self._watch, hurry], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if writer is not None and writer.get_write_buffer_size():
                writer.abort()
            # The watch reads the socket that `abort` reads; it has to be gone first.
            self._watch.cancel()
            await asyncio.wait([self._watch])
            await self._run.abort()
            self._run.close()


def _describe(report: dict[str, Any], program: str, cwd: Path | None) -> str:
    if "failure" in report:
        return str(_start_failure(program, cwd, *report["failure"]))
    if report["reason"] == "processes":
        return f"it was killed for having more than {MAX_PROCESSES} processes"
    if report["reason"] == "memory":
        return f"it was killed for holding more than {MEMORY_BYTES >> 20:,} MB of memory"
    if report["reason"] == "killed" or report["status"] is None:
        return "it was stopped"
    code = os.waitstatus_to_exitcode(report["status"])
    if code < 0:
        return f"it was ended by {_signal_name(-code)}"
    return f"it ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
