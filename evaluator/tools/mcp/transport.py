"""The two transports to a server, each a pair of message streams as the SDK expects it.

They are standard input and output of a local program, and streamable HTTP. Both limit the size of a
message. A context manager of this module has to be entered and left by the same task, as the SDK
requires.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from evaluator.tools.mcp.process import MAX_LINE_BYTES, ServerProcess
from evaluator.tools.mcp.servers import McpServer

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
