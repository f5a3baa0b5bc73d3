"""One connection to a server: HTTP/1.1 on asyncio's transports, parsed by httptools."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from evaluator.errors import ProviderError
from evaluator.models.failures import clean, malformed

MAX_HEAD_BYTES = 64 * 1024


def too_large(max_bytes: int) -> ProviderError:
    return malformed(f"the response is larger than {max_bytes} bytes", retryable=False)


class Connection(asyncio.Protocol):
    """One connection, and the answer that is being read from it.

    After `send`, `head` waits for `status`, `reason` and `headers` (lower-case names), and `piece`
    or `body` for the body. They raise ProviderError.
    """

    def __init__(self, opened: set[Connection]) -> None:
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._error: ProviderError | None = None
        self._is_asked = False
        self._is_last = False
        self._has_head = False
        self._is_complete = False
        self._without_body = 0
        self._room: asyncio.Future[None] | None = None
        self.lost = self._loop.create_future()
        self.idle_since = 0.0
        self.status = 0
        # The parser checks the head, and is not asked for its fields: servers send 30 of them, of
        # which two are read. Without trailers, the fields behind the body.
        self._received: list[bytes] = []
        self._interim_heads = 0
        self._head = b""
        self._lower_head = b""
        self._parser: Any = httptools.HttpResponseParser(self)

    @property
    def transport(self) -> Any:
        return self._transport

    @property
    def reason(self) -> str:
        """The words behind the status."""
        line = self._head.partition(b"\r\n")[0].decode("latin-1")
        return line.partition(" ")[2].partition(" ")[2]

    @property
    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in self._head.decode("latin-1").split("\r\n")[1:-1]:
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        return found

    @property
    def content_type(self) -> str:
        """The media type, without parameters."""
        value = self._field(b"\r\ncontent-type:") or b"application/octet-stream"
        return value.decode("latin-1").partition(";")[0].strip()

    def _field(self, name: bytes) -> bytes | None:
        """The first field of this name, in lower case; None without one."""
        head = self._lower_head
        place = head.find(name)
        if place < 0:
            return None
        start = place + len(name)
        return head[start : head.index(b"\r\n", start)].strip()

    def _combined(self, name: bytes) -> bytes | None:
        """The values of all fields of this name as one list, in lower case; None without one.

        Source: RFC 9110, section 5.3.
        """
        if name not in self._lower_head:
            return None
        values = self._lower_head.split(name)[1:]
        return b", ".join(value.partition(b"\r\n")[0].strip() for value in values)

    @property
    def is_done(self) -> bool:
        """Whether the request was sent and its answer read, on a connection that can be kept."""
        return not (
            self._is_asked
            or self._is_last
            or self._error is not None
            or self._transport.get_write_buffer_size()
        )

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def send(self, request: bytes) -> None:
        self._is_asked = True
        self._has_head = False
        self._is_complete = False
        self._without_body = 0
        self._received = []
        self._interim_heads = 0
        self._parts = []
        self._body_bytes = 0
        self._transport.write(request)

    async def write(self, piece: bytes) -> None:
        """Sends more of the request, as fast as the server takes it."""
        self._transport.write(piece)
        if self._room is not None:
            await self._room

    async def head(self) -> None:
        """Waits for the head of the answer."""
        while not self._has_head:
            await self._more()

    async def piece(self) -> bytes:
        """What has arrived of the body; empty at its end."""
        while not self._parts:
            if self._is_complete:
                return b""
            await self._more()
        parts = self._parts
        self._parts = []
        if len(parts) == 1:
            return parts[0]
        return b"".join(parts)

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises: ProviderError, without reading on, if it is larger than
        `max_bytes`.
        """
        if not self._is_complete:
            length = self._field(b"\r\ncontent-length:")
            if length is not None and length.isdigit() and int(length) > max_bytes:
                raise too_large(max_bytes)
        while not self._is_complete and self._body_bytes <= max_bytes:
            await self._more()
        if self._body_bytes > max_bytes:
            raise too_large(max_bytes)
        parts = self._parts
        self._parts = []
        return b"".join(parts)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _more(self) -> asyncio.Future[None]:
        """What to await until more of the answer has arrived. Raises: ProviderError."""
        if self._error is not None:
            raise self._error
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiter = waiter
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: ProviderError) -> None:
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:
            # Nobody asked: it would be read as the answer to the next request.
            self.abort()
            return
        self._without_body += len(data)
        if not self._has_head:
            self._received.append(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(malformed(f"the response is not HTTP: {clean(str(exc))}"))
        except httptools.HttpParserUpgrade:
            self._fail(malformed("the server changes to another protocol", retryable=False))
        if self._without_body > MAX_HEAD_BYTES:
            self._fail(malformed("the headers of the response are too large", retryable=False))
        self._wake()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def eof_received(self) -> None:
        if self._is_asked and self._has_head and self._ends_with_connection():
            self._complete()
            self._wake()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self.resume_writing()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._is_asked and not self._is_complete:
            text = "the server closed the connection before the end of its answer"
            if exc is not None:
                text = clean(str(exc)) or type(exc).__name__
            self._fail(ProviderError(text, kind="connection", retryable=True, maybe_billed=True))

    def _ends_with_connection(self) -> bool:
        length = self._field(b"\r\ncontent-length:")
        return length is None and self._field(b"\r\ntransfer-encoding:") is None

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self._is_complete:
            # A second answer: the connection is not used again.
            self.abort()

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._interim_heads += 1
            return
        received = b"".join(self._received).lstrip()
        self._received = []
        for _ in range(self._interim_heads):
            received = received.partition(b"\r\n\r\n")[2].lstrip()
        self._head = received[: received.index(b"\r\n\r\n") + 2]
        self._lower_head = self._head.lower()
        encoding = self._combined(b"\r\ncontent-encoding:")
        if encoding is None or all(
            coding.strip() == b"identity" for coding in encoding.split(b",")
        ):
            self._has_head = True
        else:
            shown = clean(encoding.decode("latin-1"))
            self._fail(malformed(f"the response is compressed ({shown})"))

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        if not self._is_complete:
            self._parts.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.status < 200 or self._is_complete:
            return
        if not self._parser.should_keep_alive():
            self._is_last = True
            self._transport.close()
        self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self._is_asked = False
