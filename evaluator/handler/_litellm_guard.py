"""What LiteLLM may do on the wire during one of our calls: one POST to an address, one host, and so many bytes back.

LiteLLM's own HTTP handlers post a second time when a connection breaks, whatever its retries are set to; the
request may have been billed by then. They follow redirects, with the key and the prompt, wherever these lead. And
they read every body whole. All its providers send through one of two transports, its own or, where that is turned
off (`DISABLE_AIOHTTP_TRANSPORT`, `LITELLM_HTTP2`), HTTPX's, and there all three are held back, by a context variable:
calls that anybody else in the process makes through them are left as they are. Not covered: providers that bring an
SDK of their own (boto3, google-auth).
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from evaluator.handler._failures import MAX_ERROR_BODY

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES = 16 * 1024 * 1024

Send = Callable[[Any, Any], Awaitable[Any]]
_guard: ContextVar[CallGuard | None] = ContextVar("evaluator_litellm_guard", default=None)


class ResponseRefused(Exception):
    """A response that is not read on, or a request that is not sent."""


class Redirected(ResponseRefused):
    """A redirect, which is not followed. `location` is without its query, where some providers want the key."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"redirected to {location}; set the base URL to that")
        self.status = status
        self.location = location

    def __reduce__(self) -> tuple[type[Redirected], tuple[int, str]]:
        return Redirected, (self.status, self.location)


class CallGuard:
    """The guard of one call, in force inside `with`. `hear` is given the bytes of the answer as they come.

    `answered`: the status of the last answer was no error; then `body` is what was read of it and `media_type` what
    it says to be. `refused` is the first thing that was held back for good, whatever LiteLLM made of it.
    """

    def __init__(self, max_bytes: int = MAX_RESPONSE_BYTES, hear: Callable[[bytes], None] | None = None) -> None:
        self.max_bytes = max_bytes
        self.hear = hear
        self.failure: Exception | None = None
        self.refused: ResponseRefused | None = None
        self.answered = False
        self.media_type = ""
        self._pieces: list[bytes] = []
        self._origin: str | None = None
        self._posted: set[str] = set()
        self._token: Any = None

    @property
    def body(self) -> bytes:
        """Empty for a stream of events, which is not kept."""
        return b"".join(self._pieces)

    def __enter__(self) -> CallGuard:
        self._token = _guard.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _guard.reset(self._token)

    async def send(self, send: Send, transport: Any, request: httpx.Request) -> httpx.Response:
        """One request through LiteLLM's transport. Raises: what the first POST to an address failed with, for a
        second one; ResponseRefused, for a redirect, another host than the first, and a body that is not read."""
        address = str(request.url)
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii', 'replace')}"
        self._origin = self._origin or origin
        if origin != self._origin:
            raise self.refuse(ResponseRefused(f"the call went on to another host and was held back: {origin}"))
        if request.method == "POST":
            if address in self._posted:
                raise self.failure or ResponseRefused("a second POST of the same call was held back")
            self._posted.add(address)
        # A compressed body can be a thousand times what it seems.
        request.headers["accept-encoding"] = "identity"
        try:
            response: httpx.Response = await send(transport, request)
        except Exception as exc:
            self.failure = exc
            raise
        self.answered = response.status_code < 300
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._pieces.clear()
        if 300 <= response.status_code < 400:
            location = response.headers.get("location", "nowhere").partition("?")[0]
            await response.aclose()
            raise self.refuse(Redirected(response.status_code, location))
        if 400 <= response.status_code < 500:
            # Nothing was billed: what LiteLLM corrects then may be sent.
            self._posted.discard(address)
        why = None
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            why = "the response is compressed, which was not asked for"
        elif response.status_code < 400 and int(response.headers.get("content-length") or 0) > self.max_bytes:
            why = self.too_large
        if why is not None:
            await response.aclose()
            raise self.refuse(ResponseRefused(why))
        response.stream = _capped(self, response)
        return response

    def heard(self, piece: bytes) -> None:
        """Takes a piece of an answer that is no error."""
        if self.media_type != "text/event-stream":
            self._pieces.append(piece)
        if self.hear is not None:
            self.hear(piece)

    def refuse(self, refusal: ResponseRefused) -> ResponseRefused:
        """Keeps the first refusal of the call."""
        self.refused = self.refused or refusal
        self.failure = self.failure or refusal
        return refusal

    @property
    def too_large(self) -> str:
        return f"the response is larger than {self.max_bytes} bytes"


def _capped(guard: CallGuard, response: httpx.Response) -> httpx.AsyncByteStream:
    import httpx

    inner: Any = response.stream
    is_error = response.status_code >= 400

    class Capped(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            try:
                async for piece in inner:
                    size += len(piece)
                    if is_error and size > MAX_ERROR_BODY:
                        # The status is what counts; the text is a bonus.
                        yield piece[: max(0, len(piece) - (size - MAX_ERROR_BODY))]
                        return
                    if size > guard.max_bytes:
                        raise guard.refuse(ResponseRefused(guard.too_large))
                    if not is_error:
                        guard.heard(piece)
                    yield piece
            except Exception as exc:
                guard.failure = exc
                raise
            finally:
                await inner.aclose()

        async def aclose(self) -> None:
            await inner.aclose()

    return Capped()


def install() -> None:
    """Puts the guard into LiteLLM's transports, once a process. Raises: AttributeError, where there is none such."""
    import httpx

    _guarded(importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport)
    _guarded(httpx.AsyncHTTPTransport)


def _guarded(transport: Any) -> None:
    send: Send = transport.handle_async_request
    if getattr(send, "is_guarded", False):
        return

    @wraps(send)
    async def handle_async_request(self: Any, request: httpx.Request) -> httpx.Response:
        guard = _guard.get()
        return await (send(self, request) if guard is None else guard.send(send, self, request))

    handle_async_request.is_guarded = True  # type: ignore[attr-defined]
    transport.handle_async_request = handle_async_request
