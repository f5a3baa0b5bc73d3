"""Every provider that LiteLLM knows, behind the same protocol. LiteLLM is imported at the first call.

LiteLLM's own retries, telemetry, price download and printing are off. Where its result hides what the
provider said (an unknown finish reason as `stop`, missing usage as zeros, no choices as a success), the raw
response is read instead. Not bounded here: the bytes of a response, which LiteLLM reads whole.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import math
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.util import find_spec
from typing import Any

from evaluator.errors import ConfigurationError, ProviderError, ProviderErrorKind
from evaluator.handler._chat import read_tool_calls, request_body, respond
from evaluator.handler._failures import clean, error_in_body, failure, malformed, retry_after, timed_out
from evaluator.handler._stream import Assembly
from evaluator.handler.backend import ModelRequest, ModelResponse

_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_lock = threading.Lock()
# Backends that have made a call: LiteLLM's connections are shared, and closed with the last of these.
_active: weakref.WeakSet[LiteLLMBackend] = weakref.WeakSet()


class LiteLLMBackend:
    """Calls `litellm.acompletion`; `request.model` is LiteLLM's name (`anthropic/claude-…`).

    `base_url` and `api_key` override what LiteLLM finds in the environment; `options` are handed on to
    every call (`api_version`, `extra_headers`, …). The first call imports LiteLLM in a thread, outside of
    the call's time limit: seconds, once a process. Raises: ConfigurationError, where it is not installed.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        idle_timeout_s: float = 60.0,
    ) -> None:
        if find_spec("litellm") is None:
            raise ConfigurationError("litellm is not installed; install it with: pip install litellm")
        self._fixed: dict[str, Any] = {**(options or {}), "num_retries": 0, "max_retries": 0}
        if base_url is not None:
            self._fixed["api_base"] = base_url
        if api_key is not None:
            self._fixed["api_key"] = api_key
        self._base_url = base_url
        self._secrets = (api_key,) if api_key else ()
        self._idle_timeout_s = idle_timeout_s
        self._has_mcp = find_spec("mcp") is not None
        self._litellm: Any = None
        self._clients: dict[asyncio.AbstractEventLoop, Any] = {}

    @property
    def name(self) -> str:
        return "litellm"

    def __repr__(self) -> str:
        parts = [f"base_url={clean(self._base_url, self._secrets)!r}"] if self._base_url else []
        if self._secrets:
            parts.append("api_key='***'")
        return f"{type(self).__name__}({', '.join(parts)})"

    async def complete(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        """One attempt. Raises: ProviderError; and what `on_text` itself raises, as it is."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm)
        _active.add(self)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_s
        clock = asyncio.timeout_at(deadline)
        assembly = None if on_text is None else Assembly(on_text, self._secrets)
        try:
            async with clock:
                raw: list[Any] = []
                arguments = self._arguments(request, raw)
                if assembly is None:
                    result = await self._call(arguments)
                    return self._read(result, raw[-1] if raw else None)
                arguments["stream"] = True
                arguments["stream_options"] = {"include_usage": True}
                stream = await self._call(arguments)
                return await self._stream(stream, assembly, clock)
        except TimeoutError as exc:
            if not clock.expired():
                raise
            partial = assembly.partial if assembly is not None else None
            if loop.time() < deadline:
                raise timed_out(self._idle_timeout_s, partial=partial, idle=True) from exc
            raise timed_out(request.timeout_s, partial=partial) from exc

    async def aclose(self) -> None:
        """Closes this backend's connections, and LiteLLM's own when no other backend uses them."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        _active.discard(self)
        close = getattr(self._litellm, "close_litellm_async_clients", None)
        if close is not None and not _active:
            await close()
            # LiteLLM would go on handing out the clients that it has just closed.
            cache = getattr(self._litellm, "in_memory_llm_clients_cache", None)
            if cache is not None:
                cache.flush_cache()

    def _arguments(self, request: ModelRequest, raw: list[Any]) -> dict[str, Any]:
        arguments = request_body(request)
        arguments.update(self._fixed)
        # The call's own clock ends it before; this one ends what LiteLLM may leave running behind.
        # LiteLLM keeps a client for each timeout: a few values only, or every call would make one.
        arguments["timeout"] = float(2 ** math.ceil(math.log2(request.timeout_s + 1)))

        def keep(details: Mapping[str, Any]) -> None:
            if details.get("original_response") is not None:
                raw.append(details["original_response"])

        arguments["logger_fn"] = keep
        if request.tools and not self._has_mcp:
            # LiteLLM looks for MCP tools among all tools, and fails where the mcp package is missing.
            arguments["_skip_mcp_handler"] = True
        if request.model.startswith(("anthropic/", "claude")):
            arguments["client"] = self._one_post_client()
        return arguments

    def _one_post_client(self) -> Any:
        """A client for providers that LiteLLM calls over its own HTTP handler, which would post twice."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler").AsyncHTTPHandler

            class OnePost(handler):
                async def single_connection_post_request(self, *_: Any, **__: Any) -> Any:
                    # Called inside the `except` that would try again: the first failure stands.
                    raise

            for other in [other for other in self._clients if other.is_closed()]:
                del self._clients[other]
            client = self._clients[loop] = OnePost()
        return client

    async def _call(self, arguments: dict[str, Any]) -> Any:
        try:
            return await self._litellm.acompletion(**arguments)
        except Exception as exc:
            raise self._mapped(exc) from exc

    def _read(self, result: Any, original: Any) -> ModelResponse:
        """The response, from LiteLLM's object and, where that says too much, from the raw body."""
        raw = _decoded(original)
        if (error := error_in_body(raw, secrets=self._secrets)) is not None:
            raise error
        choices = getattr(result, "choices", None)
        if not choices or raw.get("choices") == []:
            raise malformed("the response has no choices")
        message = choices[0].message
        content = message.content
        refusal = _get(message, "refusal") or (_get(message, "provider_specific_fields") or {}).get("refusal")
        return respond(
            content if isinstance(content, str) else "",
            reason=_raw_reason(raw, choices[0].finish_reason),
            calls=read_tool_calls([_call_dict(call) for call in message.tool_calls or ()]),
            reasoning=_get(message, "reasoning_content"),
            refusal=refusal if isinstance(refusal, str) else None,
            usage=_usage(_get(result, "usage"), known=bool(raw.get("usage"))),
            model=_get(result, "model"),
        )

    async def _stream(self, stream: Any, assembly: Assembly, clock: asyncio.Timeout) -> ModelResponse:
        loop = asyncio.get_running_loop()
        deadline = clock.when() or loop.time()
        try:
            async for chunk in self._chunks(stream):
                clock.reschedule(min(deadline, loop.time() + self._idle_timeout_s))
                assembly.chunk(_chunk_dict(chunk))
            # LiteLLM ends every stream with `stop` and an estimated usage; this is what the provider sent.
            assembly.ended(_get(stream, "received_finish_reason"))
            if not any(_get(chunk, "usage") for chunk in _get(stream, "chunks") or ()):
                assembly.uncounted()
            return assembly.response()
        except ProviderError as exc:
            exc.partial = assembly.partial
            raise
        finally:
            await _close(stream)

    async def _chunks(self, stream: Any) -> AsyncIterator[Any]:
        chunks = aiter(stream)
        while True:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except Exception as exc:
                error = self._mapped(exc)
                error.maybe_billed = True
                raise error from exc
            yield chunk

    def _mapped(self, exc: Exception) -> ProviderError:
        """LiteLLM's and the OpenAI SDK's exceptions, and whatever else comes out of them.

        Their classes say little (a refused connection, broken JSON and a missing module all become a 500), so
        the chain of causes decides, outermost first.
        """
        if isinstance(exc, ProviderError):
            return exc
        message = clean(getattr(exc, "message", None) or str(exc), self._secrets) or type(exc).__name__
        names = _names(exc)
        status = getattr(exc, "status_code", None)
        # What came as an answer with an error status is not a broken connection, whatever lies beneath.
        answered = isinstance(status, int) and not names.isdisjoint(_ANSWERED)
        for kind, retryable, billed, causes in _KINDS:
            if not names.isdisjoint(causes) and not (answered and kind in _ON_THE_WAY):
                return ProviderError(message, kind=kind, retryable=retryable, maybe_billed=billed)
        if "invalid response from LLM endpoint" in message and not answered:
            return malformed(message, retryable=False)
        if not isinstance(status, int) or status < 400:
            return ProviderError(message, kind="other", maybe_billed=True)
        response = getattr(exc, "response", None)
        headers = getattr(exc, "litellm_response_headers", None) or getattr(response, "headers", None)
        return failure(
            status,
            message,
            code=str(getattr(exc, "code", None) or ""),
            retry_after_s=retry_after(headers) if headers else None,
            secrets=self._secrets,
        )


# Classes by name: they come from four packages that are not imported for this. The first row that names one
# of an exception's causes decides: kind, retryable, maybe billed.
_KINDS: tuple[tuple[ProviderErrorKind, bool, bool, frozenset[str]], ...] = (
    ("context_length", False, False, frozenset({"ContextWindowExceededError"})),
    ("content_filter", False, False, frozenset({"ContentPolicyViolationError"})),
    ("timeout", True, True, frozenset({"Timeout", "APITimeoutError"})),
    ("connection", True, False, frozenset({"ClientConnectorError", "ConnectionRefusedError", "gaierror"})),
    (
        "connection", True, True,
        frozenset({
            "ReadError", "WriteError", "RemoteProtocolError", "ConnectError", "ServerDisconnectedError",
            "ClientOSError", "ClientPayloadError", "ConnectionResetError",
        }),
    ),
    (
        "malformed_response", True, True,
        frozenset({
            "JSONDecodeError", "UnicodeDecodeError", "APIResponseValidationError",
            "JSONSchemaValidationError",
        }),
    ),
    ("other", False, False, frozenset({"ImportError"})),
)  # fmt: skip
# A provider's own answer with an error status is underneath.
_ANSWERED = frozenset({"HTTPStatusError", "MaskedHTTPStatusError"})
_ON_THE_WAY = frozenset({"connection", "malformed_response"})


def _names(exc: BaseException) -> set[str]:
    """The class names of an exception and of what caused it, their bases included."""
    names: set[str] = set()
    seen: BaseException | None = exc
    for _ in range(10):
        if seen is None:
            break
        names.update(kind.__name__ for kind in type(seen).__mro__)
        seen = seen.__cause__ or seen.__context__
    return names


def load_litellm() -> Any:
    """The litellm module, imported once with telemetry, downloads and chatter off. Takes seconds; any thread.

    Raises: ProviderError, where it cannot be imported.
    """
    with _lock:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        try:
            litellm: Any = importlib.import_module("litellm")
        except Exception as exc:
            raise ProviderError(f"litellm cannot be imported: {clean(str(exc))}") from exc
        litellm.telemetry = False
        litellm.suppress_debug_info = True
        # Pydantic's remarks on LiteLLM's own models: nothing that a caller could do about them.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"pydantic\.|litellm\.")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        return litellm


def _decoded(original: Any) -> Mapping[str, Any]:
    """The raw body as a dict, {} where it is none."""
    if isinstance(original, str | bytes):
        try:
            original = json.loads(original)
        except (ValueError, RecursionError):
            return {}
    return original if isinstance(original, dict) else {}


def _raw_reason(raw: Mapping[str, Any], mapped: Any) -> Any:
    """The provider's own finish reason where its body is of a known shape, else LiteLLM's reading."""
    choices = raw.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0].get("finish_reason")
    return raw.get("stop_reason", mapped)


def _usage(usage: Any, *, known: bool) -> dict[str, Any] | None:
    """Token counts as a dict; None where LiteLLM made zeros of a missing usage."""
    if usage is None:
        return None
    counts = {name: _get(usage, name) for name in ("prompt_tokens", "completion_tokens")}
    if not known and not any(counts.values()):
        return None
    for group, name in (
        ("prompt_tokens_details", "cached_tokens"),
        ("completion_tokens_details", "reasoning_tokens"),
    ):
        counts[group] = {name: _get(_get(usage, group), name)}
    return counts


def _call_dict(call: Any) -> dict[str, Any]:
    function = _get(call, "function")
    return {
        "index": _get(call, "index"),
        "id": _get(call, "id"),
        "function": {"name": _get(function, "name"), "arguments": _get(function, "arguments")},
    }


def _chunk_dict(chunk: Any) -> dict[str, Any]:
    """One of LiteLLM's chunks in the wire's shape; its finish reason is left out, as it is often made up."""
    choices: list[dict[str, Any]] = []
    for choice in _get(chunk, "choices") or ():
        delta = _get(choice, "delta")
        choices.append(
            {
                "index": _get(choice, "index"),
                "delta": {
                    "content": _get(delta, "content"),
                    "refusal": _get(delta, "refusal"),
                    "reasoning_content": _get(delta, "reasoning_content"),
                    "tool_calls": [_call_dict(call) for call in _get(delta, "tool_calls") or ()],
                },
            }
        )
    return {
        "model": _get(chunk, "model"),
        "choices": choices,
        "usage": _usage(_get(chunk, "usage"), known=False),
    }


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


async def _close(stream: Any) -> None:
    inner = getattr(stream, "completion_stream", None)
    for name in ("aclose", "close"):
        close = getattr(inner, name, None)
        if close is not None:
            try:
                await close()
            except Exception:
                # Closing what has broken already: the first error is the one to report.
                pass
            return
