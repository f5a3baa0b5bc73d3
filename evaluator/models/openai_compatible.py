"""Any endpoint that speaks chat completions, over kept connections: the fast path.

One POST a call, no redirect followed, no retry. The answer is bounded in bytes and in time: the
whole call by `request.timeout_s`, silence inside a stream by `idle_timeout_s`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import resource
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from typing import Any
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError, ProviderError
from evaluator.models.backend import ModelRequest, ModelResponse
from evaluator.models.batch_api import BatchApi
from evaluator.models.chat_wire import (
    decode_json,
    echo_body,
    encode_json,
    expect_logprobs,
    read_completion,
    read_echo,
)
from evaluator.models.failures import (
    MAX_ERROR_BODY,
    MAX_RESPONSE_BYTES,
    clean,
    failure,
    malformed,
    message_of,
    retry_after,
)
from evaluator.models.http_client import HttpClient
from evaluator.models.http_connection import Connection, too_large
from evaluator.models.key_transport import check_port, proxy_of, refuse_plain_http
from evaluator.models.openai_batches import OpenAIBatches
from evaluator.models.provider_batches import ProviderBatches
from evaluator.models.request_encoder import RequestEncoder
from evaluator.models.stream import Assembly, EventParser
from evaluator.models.time_limit import TimeLimit


class OpenAICompatibleBackend:
    """Chat completions at `base_url` (the part before `/chat/completions`, `…/v1` as a rule).

    `connections` bounds the open connections of one event loop; further calls wait inside their own
    timeout. None: half of the files that this process may open; a batch raises that limit to fit
    its concurrency. Usable from several event loops, each with a pool of its own; pickling excludes
    the pools. `api_key` and the values of `headers` are secrets: no error message and no repr holds
    them, but the pickled backend does. `await aclose()` closes the pools; the owner of a backend
    that was given to an Evaluator closes it.

    A proxy that the environment names is used, except for this machine.

    Raises: ConfigurationError, for a URL, a header or a proxy that cannot be used, and for a key
    that would be sent over plain http to another machine.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        connections: int | None = None,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        host = _checked_host(base_url)
        refuse_plain_http(base_url, bool(api_key), headers=headers or ())
        all_headers = {"Content-Type": "application/json"}
        if api_key:
            all_headers["Authorization"] = f"Bearer {api_key}"
        all_headers.update(headers or {})
        for name, value in all_headers.items():
            if any(ord(c) < 32 or ord(c) == 127 for c in name + value):
                raise ConfigurationError(f"the header {clean(name)!r} holds a control character")
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._headers = all_headers
        self._proxy = proxy_of(base_url)
        self._secrets = _secrets((base_url, self._proxy or ""), api_key, headers=headers)
        self._max_bytes = max_response_bytes
        self._connections = connections
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        # OpenAI's newer models reject the old name; most other servers know only the old one.
        if host == "api.openai.com":
            self._encoder = RequestEncoder("max_completion_tokens")
        else:
            self._encoder = RequestEncoder("max_tokens")
        self._clients: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._completions: OpenAICompatibleBackend | None = None
        _live.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clients": {}, "_completions": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _live.add(self)

    @property
    def name(self) -> str:
        return "openai_compatible"

    @property
    def endpoint(self) -> str:
        """The base URL, without secrets."""
        return clean(self._url.removesuffix("/chat/completions"), self._secrets)

    def batches(self, model: str) -> ProviderBatches:
        """The batch API of the server, which not every server has."""
        api = BatchApi(
            self._url.removesuffix("/chat/completions"), self._headers, self._secrets, self._proxy
        )
        return OpenAIBatches(api, self._encoder.max_tokens_field)

    @property
    def connections(self) -> int | None:
        """The most open connections of the running event loop; None if there is no limit."""
        client = self._clients.get(asyncio.get_running_loop())
        if client is None:
            limit = self._connection_limit()
        else:
            limit = client.limit
        return limit or None

    def _connection_limit(self) -> int:
        """For a new pool; 0 is no limit."""
        if self._connections is not None:
            return self._connections
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if open_files == resource.RLIM_INFINITY:
            return 0
        return max(1, open_files // 2)

    def __repr__(self) -> str:
        url = self.endpoint
        if "Authorization" in self._headers:
            key = ", api_key='***'"
        else:
            key = ""
        return f"{type(self).__name__}({url!r}{key})"

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        """One POST. Raises: ProviderError; an exception of `on_text` passes through."""
        if request.echo:
            return await self._for_completions().echo(request)
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop) or self._open(loop)
        body = self._encoder.encode(request, stream=on_text is not None)
        if on_text is None:
            assembly = None
        else:
            assembly = Assembly(on_text, self._secrets)
        with TimeLimit(request.timeout_s, self._idle_timeout_s, assembly) as limit:
            response = await client.post(body)
            try:
                if not 200 <= response.status < 300:
                    raise await self._status_error(response)
                if assembly is None:
                    answer = self._completion(response, await response.body(self._max_bytes))
                else:
                    reset_idle = limit.reset_idle
                    answer = await self._stream(response, assembly, reset_idle=reset_idle)
            finally:
                client.release(response)
        return expect_logprobs(request, answer)

    async def echo(self, request: ModelRequest) -> ModelResponse:
        """The prompt of `request` with its log probabilities, in one POST of a completion."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop) or self._open(loop)
        with TimeLimit(request.timeout_s, self._idle_timeout_s, answer=None):
            response = await client.post(encode_json(echo_body(request)))
            try:
                if not 200 <= response.status < 300:
                    raise await self._status_error(response)
                data = decode_json(await response.body(self._max_bytes))
                return read_echo(data, request.messages[0].content, self._secrets)
            finally:
                client.release(response)

    def _for_completions(self) -> OpenAICompatibleBackend:
        """This backend with the path of completions without a chat."""
        if self._completions is None:
            self._completions = copy(self)
            self._completions._url = self._url.removesuffix("/chat/completions") + "/completions"
        return self._completions

    def abandon(self) -> list[threading.Event]:
        """Closes every connection at once, for when nobody awaits `aclose`.

        Returns: an event for each loop that still runs, set when its connections are closed.
        """
        clients = self._clients
        self._clients = {}
        pending: list[threading.Event] = []
        for loop, client in clients.items():
            if loop.is_running():
                closed = threading.Event()
                loop.call_soon_threadsafe(_close, client, closed)
                pending.append(closed)
        return pending

    def __del__(self) -> None:
        # While the interpreter ends, modules may be gone already; the exit hook has run before
        # that.
        with contextlib.suppress(Exception):
            self.abandon()

    async def aclose(self) -> None:
        """Closes the pools. A later call opens a new one."""
        own = self._clients.pop(asyncio.get_running_loop(), None)
        self.abandon()
        if self._completions is not None:
            await self._completions.aclose()
        if own is not None:
            await own.aclose()

    def _open(self, loop: asyncio.AbstractEventLoop) -> HttpClient:
        # A loop that ended has closed its connections.
        for other in [other for other in self._clients if other.is_closed()]:
            del self._clients[other]
        client = HttpClient(
            self._url,
            self._headers,
            proxy=self._proxy,
            limit=self._connection_limit(),
            connect_timeout_s=self._connect_timeout_s,
            secrets=self._secrets,
        )
        self._clients[loop] = client
        return client

    def _completion(self, response: Connection, body: bytes) -> ModelResponse:
        try:
            data = decode_json(body)
        except ProviderError as exc:
            if "json" in response.content_type:
                raise
            raise malformed(
                f"the response is {clean(response.content_type)}, not JSON (is the base URL "
                "right?)",
                retryable=False,
            ) from exc
        return read_completion(data, self._secrets)

    async def _pieces(self, response: Connection) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises: ProviderError, past the cap or when it breaks off."""
        room = self._max_bytes
        while piece := await response.piece():
            yield piece[:room]
            room -= len(piece)
            if room < 0:
                raise too_large(self._max_bytes)

    async def _stream(
        self, response: Connection, assembly: Assembly, reset_idle: Callable[[], None]
    ) -> ModelResponse:
        if response.content_type != "text/event-stream":
            return await self._unstreamed(response, assembly)
        events = EventParser()
        try:
            async for piece in self._pieces(response):
                reset_idle()
                for payload in events.feed(piece):
                    assembly.add_event(payload)
                if assembly.done:
                    break
            if not assembly.finished:
                assembly.add_event(events.rest())
        except ProviderError as exc:
            # The answer was whole before the connection broke.
            if not (exc.kind == "connection" and assembly.finished):
                exc.partial = assembly.partial
                raise
        return assembly.response()

    async def _unstreamed(self, response: Connection, assembly: Assembly) -> ModelResponse:
        """The answer of a server that does not stream, as one piece of text."""
        answer = self._completion(response, await response.body(self._max_bytes))
        if answer.content:
            assembly.add_text(answer.content)
        return answer

    async def _status_error(self, response: Connection) -> ProviderError:
        body = bytearray()
        # The status is what counts; the text is additional.
        with contextlib.suppress(ProviderError):
            async for piece in self._pieces(response):
                body += piece
                if len(body) >= MAX_ERROR_BODY:
                    break
        message, code = message_of(bytes(body[:MAX_ERROR_BODY]))
        if 300 <= response.status < 400:
            message = (
                f"redirected to {response.headers.get('location', 'nowhere')}; set the base "
                "URL to that"
            )
        return failure(
            response.status,
            message or response.reason,
            code=code,
            retry_after_s=retry_after(response.headers),
            secrets=self._secrets,
        )


def _checked_host(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
    except ValueError as exc:
        raise ConfigurationError(f"the base URL cannot be read: {exc}") from exc
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigurationError(
            "the base URL must look like http://host:port/v1, without a query or a fragment"
        )
    check_port(base_url, "the base URL")
    return host


def _secrets(
    urls: Sequence[str], api_key: str | None, headers: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Texts that no message may hold, longest first, so that no part of one remains."""
    found = {api_key or "", *(urlsplit(url).password or "" for url in urls)}
    for value in (headers or {}).values():
        found.add(value)
        found.update(word for word in value.split() if len(word) >= 8)
    return tuple(sorted((text for text in found if text), key=len, reverse=True))


def _close(client: HttpClient, closed: threading.Event) -> None:
    client.close()
    closed.set()


# Backends that were not closed: a script that just ends leaves no connection open, and prints no
# warning.
_live: weakref.WeakSet[OpenAICompatibleBackend] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    for backend in list(_live):
        for closed in backend.abandon():
            closed.wait(1.0)
