"""The two ways to a server, as the SDK's sessions take them: a pair of message streams.

Over standard input and output of a program that is started here, or over streamable HTTP. Both bound what one message
may weigh. A context manager of this module is entered and left in one task, as the SDK demands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from evaluator.handler.mcp.process import MAX_LINE_BYTES, ServerProcess
from evaluator.handler.mcp.servers import McpServer

_CONNECT_S = 30.0


@asynccontextmanager
async def stdio(process: ServerProcess) -> AsyncGenerator[Any]:
    """Messages by line. The reading end closes when the server's output ends, or holds a message of over 16 MB."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with incoming:
            while (line := await process.read_line()) is not None:
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    process.note_garbage(line)
                    continue
                try:
                    await incoming.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the session is gone

    async def send() -> None:
        async with outgoing:
            async for item in outgoing:
                process.write_line(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async with read, write, anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def http(server: McpServer, environ: Mapping[str, str], refused: list[str]) -> AsyncGenerator[Any]:
    """Streamable HTTP. A response or an event of more than 16 MB is an error. `refused` holds the status of the last
    answer to a message, if that was 400 or more.

    Raises: ConfigurationError, for a header's variable that is not set.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    values = server.secrets(environ)
    headers = {"accept-encoding": "identity"}
    headers |= {header.name: header.prefix + values[header.variable] for header in server.headers}
    # No bound on reading: a stream may be silent for long, and each call has a time of its own.
    timeout = httpx2.Timeout(_CONNECT_S, read=None)

    async def look(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
            refused[:] = [status] if response.status_code >= 400 else []
        _bound(response)

    assert server.url is not None
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [look]}) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_LINE_BYTES) as streams,
    ):
        yield streams


def _bound(response: Any) -> None:
    """Bounds what is read of a response; a stream of events has a bound for each event instead."""
    import httpx2

    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    stream = response.stream

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for piece in stream:
                seen += len(piece)
                if seen > MAX_LINE_BYTES:
                    raise httpx2.StreamError(f"the response has more than {MAX_LINE_BYTES:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()
