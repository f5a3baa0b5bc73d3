"""Requests to one server over kept connections (see `http_connection.py`).

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

from evaluator.errors import ProviderError
from evaluator.models.failures import clean
from evaluator.models.http_connection import Connection

# A server closes idle connections by its own clock: a short wait makes that race rare.
IDLE_S = 15.0
# Addresses of a host are looked up once for many connections: name servers limit queries.
ADDRESSES_S = 300.0
# The second address is tried beside the first after this time (RFC 8305).
NEXT_ADDRESS_S = 0.25


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
