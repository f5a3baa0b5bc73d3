"""Limits what LiteLLM does on the wire during one of our calls, and reads its raw streams.

The limits: one request a call, no redirect, a host that the model's id does not choose, no key over
plain http, bounded responses.

LiteLLM's own HTTP handlers post a second time when a connection breaks, whatever its retries are
set to; the request may have been billed by then. They follow redirects, with the key and the
prompt, to any host. And they read every body whole.

LiteLLM accepts a client of ours for some providers only, so one process-wide change is needed: its
two functions that make HTTP clients are wrapped, and the transports of each client that they make
ask a context variable for the guard of the running call. Calls outside a guard, LiteLLM's own
included, are not affected, and neither is HTTPX. Not covered: providers that bring an SDK of their
own (boto3, google-auth).

Reads the provider's own finish reason from a raw stream, because LiteLLM ends every stream with
`stop`.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from weakref import WeakMethod

from evaluator.errors import ProviderError
from evaluator.files.project_code import import_library
from evaluator.models.failures import MAX_ERROR_BODY, MAX_RESPONSE_BYTES, clean
from evaluator.models.key_transport import is_key_header, may_carry_keys
from evaluator.models.stream import EventParser

if TYPE_CHECKING:
    import httpx

Send = Callable[["httpx.Request"], Awaitable["httpx.Response"]]
_WARNING_FILTER = ("ignore", None, UserWarning, re.compile(r"pydantic\.|litellm\."), 0)
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_lock = threading.Lock()
_loaded: list[Any] = []
NO_KEY = "no-key"
"""Sent in place of a key to an address that has none."""
_guard: ContextVar[CallGuard | None] = ContextVar("evaluator_litellm_guard", default=None)


# Every call asks for the same few addresses.
_may_carry_keys = lru_cache(maxsize=64)(may_carry_keys)


@lru_cache(maxsize=64)
def _host_of(url: str) -> str | None:
    return urlsplit(url).hostname


class ResponseRefused(Exception):
    """A response that is not read to its end, or a request that is not sent."""


class Redirected(ResponseRefused):
    """A redirect, which is not followed. The message has the address without its query, which may
    hold a key.
    """

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"redirected to {location}; set the base URL to that")
        self.status = status


class CallGuard:
    """The guard of one call, in force inside `with`. `on_bytes` gets the bytes of the answer as
    they arrive.

    The call may contact the host of `base_url` only; without one, no host that is named in the id
    `model`.

    `answered`: the status of the last response was no error; then `body` is what was read of it,
    empty for a stream of events, and `media_type` its declared type. `refused` is the first refusal
    of the call, however LiteLLM reports it. `failure` is the first refusal, or the last error of
    the transport.
    """

    def __init__(
        self,
        max_bytes: int = MAX_RESPONSE_BYTES,
        on_bytes: Callable[[bytes], None] | None = None,
        *,
        base_url: str | None = None,
        model: str = "",
    ) -> None:
        self.failure: Exception | None = None
        self.refused: ResponseRefused | None = None
        self.answered = False
        self.media_type = ""
        self._max_bytes = max_bytes
        self._on_bytes = on_bytes
        self._pieces: list[bytes] = []
        self._host = None if base_url is None else _host_of(base_url)
        self._model = model.lower()
        self._origin: str | None = None
        self._posted: set[str] = set()
        self._token: Any = None

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def __enter__(self) -> CallGuard:
        _ignore_warnings()
        self._token = _guard.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _guard.reset(self._token)

    async def send(self, send: Send, request: httpx.Request) -> httpx.Response:
        """Sends one request with `send`, the transport's own method.

        Raises: the error of the first POST to an address, for a second one; ResponseRefused, for a
        redirect, for another host than the first, and for a response that is compressed or too
        large.
        """
        address = str(request.url)
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii', 'replace')}"
        self._origin = self._origin or origin
        if origin != self._origin:
            raise self._refuse(f"LiteLLM tried to continue the call at another host: {origin}")
        self._check_host(request, origin)
        if request.method == "POST":
            if address in self._posted:
                raise self.failure or ResponseRefused(
                    "LiteLLM tried to send the same request a second time"
                )
            self._posted.add(address)
        # A compressed body can expand a thousandfold.
        request.headers["accept-encoding"] = "identity"
        try:
            response = await send(request)
        except Exception as exc:
            self.failure = exc
            raise
        try:
            self._check(response)
        except ResponseRefused:
            await response.aclose()
            raise
        if 400 <= response.status_code < 500:
            # Nothing was billed: LiteLLM may correct the request and send it again.
            self._posted.discard(address)
        is_error = response.status_code >= 400
        response.stream = _limited_stream()(self, response.stream, is_error)
        return response

    def _check_host(self, request: httpx.Request, origin: str) -> None:
        """Raises: ResponseRefused."""
        host = request.url.host.lower()
        if self._host is not None and host != self._host:
            raise self._refuse(
                f"LiteLLM tried to contact another host than the one of the base URL: {origin}"
            )
        # The part of a host's name that its owner registers: a model's id must not choose whom to
        # contact.
        if self._host is None and ".".join(host.split(".")[-2:]) in self._model:
            raise self._refuse(
                f"the model's id names the host {host}; write the address into a handler profile"
            )
        if _may_carry_keys(origin):
            return
        keys = [value for name, value in request.headers.items() if is_key_header(name)]
        if any(NO_KEY not in value for value in keys):
            raise self._refuse(
                f"a key is not sent to {host} over plain http; use https, or leave out the key"
            )

    def _check(self, response: httpx.Response) -> None:
        """Takes over the head of a response. Raises: ResponseRefused."""
        status = response.status_code
        headers = response.headers
        self.answered = status < 300
        self.media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._pieces.clear()
        if 300 <= status < 400:
            raise self._refuse(
                Redirected(status, headers.get("location", "nowhere").partition("?")[0])
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise self._refuse("the response is compressed, which was not requested")
        if status < 400 and int(headers.get("content-length") or 0) > self._max_bytes:
            raise self._too_large()

    async def read(self, body: Any, *, is_error: bool) -> AsyncIterator[bytes]:
        """The bytes of a response's body, of an error its beginning. Raises: ResponseRefused, for
        one too large.
        """
        size = 0
        try:
            async for piece in body:
                size += len(piece)
                if is_error and size > MAX_ERROR_BODY:
                    # The status is what counts; the text is additional.
                    yield piece[: max(0, len(piece) - (size - MAX_ERROR_BODY))]
                    return
                if size > self._max_bytes:
                    raise self._too_large()
                if not is_error and self.media_type != "text/event-stream":
                    self._pieces.append(piece)
                if not is_error and self._on_bytes is not None:
                    self._on_bytes(piece)
                yield piece
        except Exception as exc:
            self.failure = exc
            raise
        finally:
            await body.aclose()

    def _refuse(self, refusal: str | ResponseRefused) -> ResponseRefused:
        """Keeps the first refusal of the call."""
        if isinstance(refusal, str):
            refusal = ResponseRefused(refusal)
        self.refused = self.refused or refusal
        self.failure = self.failure or refusal
        return refusal

    def _too_large(self) -> ResponseRefused:
        return self._refuse(f"the response is larger than {self._max_bytes} bytes")


@cache
def _limited_stream() -> Callable[[CallGuard, Any, bool], httpx.AsyncByteStream]:
    """The class of a response's body that passes through its guard. Making a class takes 50 us, and
    httpx is imported with LiteLLM.
    """
    import httpx

    class Limited(httpx.AsyncByteStream):
        def __init__(self, guard: CallGuard, body: Any, is_error: bool) -> None:
            self._guard = guard
            self._body = body
            self._is_error = is_error

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._guard.read(self._body, is_error=self._is_error)

        async def aclose(self) -> None:
            await self._body.aclose()

    return Limited


def load_litellm() -> Any:
    """The litellm module, imported once with telemetry, downloads and printing off. Takes seconds;
    any thread.

    Raises: ProviderError, where it cannot be imported.
    """
    with _lock:
        if _loaded:
            return _loaded[0]
        try:
            litellm: Any = import_library("litellm")
        except Exception as exc:
            raise ProviderError(f"litellm cannot be imported: {clean(str(exc))}") from exc
        _install(litellm)
        litellm.telemetry = False
        # A model may repeat itself; LiteLLM would end the stream.
        litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1 << 62
        litellm.suppress_debug_info = True
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        _loaded.append(litellm)
        return litellm


def _ignore_warnings() -> None:
    """Hides Pydantic's warnings about LiteLLM's own models, which callers cannot change.

    LiteLLM makes some of them during a call, and pytest removes a filter at the end of the test
    that set it.
    """
    if _WARNING_FILTER not in warnings.filters:
        _, _, category, module, _ = _WARNING_FILTER
        warnings.filterwarnings("ignore", category=category, module=module.pattern)


def _install(litellm: Any) -> None:
    """Wraps the functions with which LiteLLM makes its HTTP clients. Called once a process.

    Raises: ImportError or AttributeError, for a version of LiteLLM that makes its clients
    elsewhere.
    """
    handler = import_library("litellm.llms.custom_httpx.http_handler").AsyncHTTPHandler
    handler.create_client = _guard_clients(handler.create_client)
    openai = import_library("litellm.llms.openai.common_utils").BaseOpenAILLM
    openai._get_async_http_client = staticmethod(_guard_clients(openai._get_async_http_client))
    # Clients that exist already are made again.
    litellm.in_memory_llm_clients_cache.flush_cache()
    shared = vars(litellm).get("module_level_aclient")
    if shared is not None:
        _guard_client(shared.client)


def _guard_clients(
    make_client: Callable[..., httpx.AsyncClient],
) -> Callable[..., httpx.AsyncClient]:
    @wraps(make_client)
    def make_guarded_client(*args: Any, **kwargs: Any) -> httpx.AsyncClient:
        client = make_client(*args, **kwargs)
        _guard_client(client)
        return client

    return make_guarded_client


def _guard_client(client: Any) -> None:
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None and "handle_async_request" not in vars(transport):
            transport.handle_async_request = _guard_transport(
                WeakMethod(transport.handle_async_request)
            )


def _guard_transport(method: WeakMethod[Any]) -> Send:
    async def handle_async_request(request: httpx.Request) -> httpx.Response:
        send = cast("Send", method())
        guard = _guard.get()
        return await (send(request) if guard is None else guard.send(send, request))

    return handle_async_request


_KEYS = (b'"finish_reason"', b'"finishReason"', b'"stop_reason"')
_SHAPES = ("choices", "candidates", "stop_reason", "type")


class RawStream:
    """Takes the bytes of a stream of events. `payloads` are its events so far, unread.

    `is_known`: the events have a shape that is read here. Then `reason` is the provider's finish
    reason, None while it gave none, `usage` came with it, and `model` is the model that answered.
    `is_done`: `[DONE]` came.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.is_done = False
        self.reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self.model: str | None = None
        self.payloads: list[bytes] = []
        self._lines = EventParser()

    def feed(self, piece: bytes) -> None:
        for payload in self._lines.feed(piece):
            self._event(payload)

    def end(self) -> None:
        self._event(self._lines.rest())

    def _event(self, payload: bytes) -> None:
        self.payloads.append(payload)
        if payload == b"[DONE]":
            self.is_done = True
        elif not self.is_known or any(key in payload for key in _KEYS):
            try:
                data = json.loads(payload)
            except (ValueError, RecursionError):
                return
            if isinstance(data, dict) and any(shape in data for shape in _SHAPES):
                self.is_known = True
                self.model = self.model or _model_of(data)
                self.reason = reason_of(data) or self.reason
                if isinstance(data.get("usage"), dict):
                    self.usage = data["usage"]


def reason_of(data: Mapping[str, Any]) -> str | None:
    """The provider's finish reason in an answer or event of chat completions', Anthropic's or
    Gemini's shape.
    """
    for group, name in (("choices", "finish_reason"), ("candidates", "finishReason")):
        items = data.get(group)
        if isinstance(items, list):
            if items and isinstance(items[0], dict):
                first = items[0]
            else:
                first = {}
            return _text(first.get(name))
    delta = data.get("delta")
    return _text(data.get("stop_reason")) or _text(
        delta.get("stop_reason") if isinstance(delta, dict) else None
    )


def _model_of(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    return (
        _text(data.get("model"))
        or _text(data.get("modelVersion"))
        or _text(message.get("model") if isinstance(message, dict) else None)
    )


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return value
    return None
