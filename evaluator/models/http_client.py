"""Requests to one server over kept connections: HTTP/1.1 on asyncio's transports, parsed by
httptools.

A client belongs to one event loop. It follows no redirect, repeats nothing, keeps no cookies and
takes no compressed answers. A POST costs a third of the processor time that aiohttp takes for it
(`bench/clients.py`).
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import aiohappyeyeballs
import httptools

from evaluator.errors import ProviderError
from evaluator.models.failures import clean, malformed

# A server closes idle connections by its own clock: a short wait makes that race rare.
IDLE_S = 15.0
# Addresses of a host are looked up once for many connections: name servers limit queries.
ADDRESSES_S = 300.0
# The second address is tried beside the first after this time (RFC 8305).
NEXT_ADDRESS_S = 0.25
MAX_HEAD_BYTES = 64 * 1024


class Hop(NamedTuple):
    """A server or a proxy."""

    host: str
    port: int
    is_tls: bool
    authorization: str | None

    @classmethod
    def of(cls, url: str) -> Hop:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        port = parts.port
        if port is None:
            port = 443 if is_tls else 80
        return cls(host, port, is_tls, authorization)

    @property
    def address(self) -> str:
        """Host and port, as CONNECT names them."""
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"


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


class HttpClient:
    """Keep-alive connections of the running event loop to one server, `limit` at most (0: no
    limit). `secrets` are masked in errors.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        proxy: str | None,
        limit: int,
        connect_timeout_s: float,
        secrets: tuple[str, ...],
    ) -> None:
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._server = Hop.of(url)
        self._proxy = Hop.of(proxy) if proxy is not None else None
        self._connect_timeout_s = connect_timeout_s
        self._secrets = secrets
        self._headers = headers
        self._head = self._request_head("POST", url, {})
        # A semaphore would make a coroutine for each request.
        self._free_slots = limit or inf
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._opened: set[Connection] = set()
        self._idle: list[Connection] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._addresses: asyncio.Future[Any] | None = None
        self._addresses_until = 0.0
        self._context: ssl.SSLContext | None = None
        self._at_loop_end: AsyncGenerator[None] | None = None

    def _request_head(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        """The head of a request, up to the value of Content-Length."""
        parts = urlsplit(url)
        server = self._server
        target = quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
        if parts.query:
            target += f"?{parts.query}"
        host = server.address
        if server.port == (443 if server.is_tls else 80):
            host = host.rpartition(":")[0]
        lines = {"Host": host, "Accept": "*/*"}
        if server.authorization is not None:
            lines["Authorization"] = server.authorization
        if self._proxy is not None and not server.is_tls:
            target = f"http://{host}{target}"
            if self._proxy.authorization is not None:
                lines["Proxy-Authorization"] = self._proxy.authorization
        lines.update(self._headers)
        lines.update(headers)
        fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        head = f"{method} {target} HTTP/1.1\r\n{fields}Content-Length: "
        return head.encode("utf-8", "surrogateescape")

    def post(self, body: bytes) -> Coroutine[Any, Any, Connection]:
        """Sends one request and waits for the head of the answer; `release` takes the connection
        back. Raises: ProviderError.
        """
        return self._send(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        pieces: Iterable[bytes] = (),
        length: int = 0,
    ) -> Coroutine[Any, Any, Connection]:
        """As `post`, for any URL of the server and a body of `length` bytes in pieces. It opens a
        connection of its own: one that was kept may be lost while it is used.
        """
        head = self._request_head(method, url, headers)
        return self._send(b"%b%d\r\n\r\n" % (head, length), pieces, is_new=True)

    async def _send(
        self, request: bytes, pieces: Iterable[bytes] = (), *, is_new: bool = False
    ) -> Connection:
        if self._free_slots:
            self._free_slots -= 1
        else:
            await self._wait_for_slot()
        connection: Connection | None = None
        try:
            if not is_new:
                connection = self._kept()
            connection = connection or await self._connected()
            connection.send(request)
            for piece in pieces:
                await connection.write(piece)
            await connection.head()
        except BaseException:
            self.release(connection)
            raise
        return connection

    async def _wait_for_slot(self) -> None:
        """Waits until an earlier request passes its slot on."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if not waiter.done():
                self._waiters.remove(waiter)
            elif not waiter.cancelled():  # it had the slot already
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_slots += 1

    def release(self, connection: Connection | None) -> None:
        """Keeps the connection for the next request, if its answer was read to the end."""
        self._release_slot()
        if connection is None:
            return
        if not connection.is_done:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_idle)

    def _kept(self) -> Connection | None:
        """The connection that was used last."""
        idle_from = self._loop.time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing and connection.idle_since >= idle_from:
                return connection
            connection.abort()
        return None

    def _close_idle(self) -> None:
        idle_from = self._loop.time() - IDLE_S
        self._sweep = None
        expired = [each for each in self._idle if each.idle_since <= idle_from]
        self._idle = [each for each in self._idle if each.idle_since > idle_from]
        for connection in expired:
            connection.abort()
        if self._idle:
            at = self._idle[0].idle_since + IDLE_S
            self._sweep = self._loop.call_at(at, self._close_idle)

    async def _connected(self) -> Connection:
        """A new connection. Raises: ProviderError, with nothing sent."""
        hop = self._proxy or self._server
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect(hop)
        except TimeoutError as exc:
            raise ProviderError(
                f"cannot connect to {hop.address} within {self._connect_timeout_s:g} s",
                kind="timeout",
                retryable=True,
                maybe_billed=False,
            ) from exc
        except (OSError, UnicodeError) as exc:
            # A certificate or a name that does not fit stays as it is.
            retryable = not isinstance(exc, ssl.SSLError | UnicodeError)
            reason = clean(str(exc), self._secrets) or type(exc).__name__
            raise ProviderError(
                f"cannot connect to {hop.address}: {reason}",
                kind="connection",
                retryable=retryable,
                maybe_billed=False,
            ) from exc

    async def _connect(self, hop: Hop) -> Connection:
        if self._at_loop_end is None:
            self._at_loop_end = self._close_at_loop_end()
            await anext(self._at_loop_end)
        sock = await aiohappyeyeballs.start_connection(
            await self._resolve(hop), happy_eyeballs_delay=NEXT_ADDRESS_S, loop=self._loop
        )
        _, connection = await self._loop.create_connection(
            lambda: Connection(self._opened),
            sock=sock,
            ssl=self._tls() if hop.is_tls else None,
            server_hostname=hop.host if hop.is_tls else None,
        )
        if self._proxy is None or not self._server.is_tls:
            return connection
        try:
            return await self._tunnel(connection, self._proxy)
        except BaseException:
            connection.abort()
            raise

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context

    async def _resolve(self, hop: Hop) -> Any:
        now = self._loop.time()
        if self._addresses is None or now > self._addresses_until:
            self._addresses = self._look_up(hop)
            self._addresses_until = now + ADDRESSES_S
        try:
            return await asyncio.shield(self._addresses)
        except OSError:
            self._addresses_until = 0.0
            raise

    def _look_up(self, hop: Hop) -> asyncio.Future[Any]:
        """The addresses of a host; at once, without a thread, if the host is an address."""
        try:
            addresses = socket.getaddrinfo(
                hop.host, hop.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:
            return asyncio.ensure_future(
                self._loop.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
            )
        future = self._loop.create_future()
        future.set_result(addresses)
        return future

    async def _tunnel(self, connection: Connection, proxy: Hop) -> Connection:
        """An encrypted connection to the server through `proxy`."""
        address = self._server.address
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        connection.send("\r\n".join([*lines, "", ""]).encode("ascii"))
        await connection.head()
        if not 200 <= connection.status < 300:
            reason = clean(connection.reason, self._secrets)
            raise ProviderError(
                f"the proxy answered {connection.status} {reason}".strip(),
                kind="connection",
                retryable=True,
                maybe_billed=False,
            )
        # The transport now calls the protocol of TLS, which does not tell this one of its end.
        self._opened.discard(connection)
        inside = Connection(self._opened)
        transport = await self._loop.start_tls(
            connection.transport, inside, self._tls(), server_hostname=self._server.host
        )
        assert transport is not None
        inside.connection_made(transport)
        return inside

    async def _close_at_loop_end(self) -> AsyncGenerator[None]:
        """A loop finalises its asynchronous generators when it ends (`shutdown_asyncgens`), which
        closes connections that nobody else has closed.
        """
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Closes every connection, also those in use. Call it in the client's loop."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        for connection in list(self._opened):
            connection.abort()

    async def aclose(self) -> None:
        """Closes every connection and returns when they are closed."""
        lost = [connection.lost for connection in self._opened]
        self.close()
        if lost:
            await asyncio.wait(lost)
