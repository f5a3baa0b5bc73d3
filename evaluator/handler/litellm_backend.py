"""Every provider that LiteLLM knows, behind the same protocol. LiteLLM is imported at the first call.

LiteLLM's own retries, telemetry, price download and printing are off. Where its result hides what the
provider said (an unknown finish reason as `stop`, missing usage as zeros, no choices as a success), or where it
fails over it, the raw response is read instead. What it does on the wire is held to one POST, one host and 16 MB
(`_litellm_guard`).
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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from evaluator.errors import ConfigurationError, ProviderError, ProviderErrorKind
from evaluator.handler._chat import read_completion, read_tool_calls, request_body, respond
from evaluator.handler._failures import clean, error_in_body, failure, malformed, message_of, retry_after, timed_out
from evaluator.handler._litellm_guard import MAX_RESPONSE_BYTES, CallGuard, Redirected, install
from evaluator.handler._raw_stream import RawEnd, reason_of
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
        max_response_bytes: int = MAX_RESPONSE_BYTES,
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
        self._max_bytes = max_response_bytes
        self._litellm: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A module is imported again where it is used.
        return {**vars(self), "_litellm": None}

    @property
    def name(self) -> str:
        return "litellm"

    @property
    def endpoint(self) -> str | None:
        """The base URL, without secrets; None where LiteLLM finds the provider's own."""
        return clean(self._base_url, self._secrets) if self._base_url else None

    def __repr__(self) -> str:
        parts = [f"base_url={self.endpoint!r}"] if self._base_url else []
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
                if assembly is None:
                    return await self._whole(request)
                return await self._streamed(request, assembly, clock)
        except TimeoutError as exc:
            if not clock.expired():
                raise
            partial = assembly.partial if assembly is not None else None
            if loop.time() < deadline:
                raise timed_out(self._idle_timeout_s, partial=partial, idle=True) from exc
            raise timed_out(request.timeout_s, partial=partial) from exc

    async def _whole(self, request: ModelRequest) -> ModelResponse:
        raw: list[Any] = []
        arguments = self._arguments(request, raw)
        with CallGuard(self._max_bytes) as guard:
            try:
                result = await self._litellm.acompletion(**arguments)
            except Exception as exc:
                error = self._refused(guard) or self._mapped(exc)
                if guard.refused is None and guard.answered and error.kind in _OF_LITELLM:
                    # An answer came, so this is LiteLLM's trouble with reading it.
                    if (answer := self._plain_answer(guard)) is not None:
                        return answer
                    error = self._unread(raw, exc)
                raise error from exc
        return self._read(result, raw[-1] if raw else None)

    def _refused(self, guard: CallGuard) -> ProviderError | None:
        """What was held back on the wire, if anything was."""
        refusal = guard.refused
        if isinstance(refusal, Redirected):
            return failure(refusal.status, str(refusal), secrets=self._secrets)
        return None if refusal is None else malformed(clean(str(refusal), self._secrets), retryable=False)

    def _plain_answer(self, guard: CallGuard) -> ModelResponse | None:
        """The answer as our own reader finds it in a body that is no stream of events; None for another wire's shape.

        Raises: ProviderError, for an error that the provider put into it, and for a web page.
        """
        if guard.media_type == "text/html":
            raise malformed(f"the response is {guard.media_type}, not JSON (is the base URL right?)", retryable=False)
        data = _decoded(guard.body)
        return read_completion(data, self._secrets) if data.keys() & {"choices", "error"} else None

    def _unread(self, raw: list[Any], exc: Exception) -> ProviderError:
        error = error_in_body(_decoded(raw[-1]), secrets=self._secrets) if raw else None
        told = str(exc).partition("Traceback (most recent call last)")[0]
        return error or malformed(f"the response cannot be read: {clean(told, self._secrets)}")

    async def _streamed(self, request: ModelRequest, assembly: Assembly, clock: asyncio.Timeout) -> ModelResponse:
        arguments = self._arguments(request, [])
        arguments["stream"] = True
        arguments["stream_options"] = {"include_usage": True}
        raw = RawEnd()
        with CallGuard(self._max_bytes, raw.feed) as guard:
            try:
                try:
                    stream = await self._litellm.acompletion(**arguments)
                except Exception as exc:
                    raise self._mapped(exc) from exc
                response = await self._stream(stream, assembly, clock, raw)
                own = None if response.content or response.tool_calls else self._as_sent(raw, "")
                if own is None or not own.content:
                    return response
                answer = own
            except ProviderError as exc:
                if (refused := self._refused(guard)) is not None:
                    refused.partial = assembly.partial or None
                    raise refused from exc
                if not guard.answered or exc.kind not in _OF_LITELLM:
                    raise
                # Some servers do not stream, or have only an error to tell.
                found = None if assembly.partial else self._plain_answer(guard)
                answer = found or self._as_sent(raw, assembly.partial)
                if answer is None:
                    raise
            if rest := answer.content.removeprefix(assembly.partial):
                assembly.text(rest)
            return answer

    def _as_sent(self, raw: RawEnd, partial: str) -> ModelResponse | None:
        """The whole answer as our own reader finds it in a stream's events; None where it is not whole, does not go
        on from `partial`, or speaks another wire."""
        own = Assembly(lambda _: None, self._secrets)
        try:
            for payload in raw.payloads:
                own.event(payload)
            answer = own.response()
        except ProviderError:
            return None
        return answer if answer.content.startswith(partial) else None

    async def aclose(self) -> None:
        """Closes LiteLLM's connections when no other backend uses them."""
        _active.discard(self)
        close = getattr(self._litellm, "close_litellm_async_clients", None)
        if close is not None and not _active:
            await close()
            # LiteLLM would go on handing out the clients that it has just closed.
            cache = getattr(self._litellm, "in_memory_llm_clients_cache", None)
            if cache is not None:
                cache.flush_cache()
            # Streams of some providers go through this one, which LiteLLM closes only while it is in its cache.
            shared = vars(self._litellm).get("module_level_aclient")
            if shared is not None:
                await shared.close()

    def _arguments(self, request: ModelRequest, raw: list[Any]) -> dict[str, Any]:
        arguments = request_body(request, images_in_answers=_takes_images_in_answers(request.model))
        if request.tools and request.model.startswith("anthropic/"):
            offered = zip(arguments["tools"], request.tools, strict=True)
            arguments["tools"] = [body if spec.native is None else dict(spec.native) for body, spec in offered]
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
        if request.cache and _wants_marks(request.model):
            _mark(arguments["messages"], goes_on=bool(request.tools))
        return arguments

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
        if isinstance(content, list) and isinstance(raw.get("choices"), list):
            return read_completion(raw, self._secrets)
        usage = _usage(_get(result, "usage"), known=bool(raw.get("usage")))
        if usage is not None and _reasoning_is_estimated(raw.get("usage")):
            usage["completion_tokens_details"] = None
        if isinstance(raw.get("choices"), list) and isinstance(raw.get("usage"), dict):
            # LiteLLM makes zeros of what is missing there.
            usage = raw["usage"]
        refusal = _get(message, "refusal") or (_get(message, "provider_specific_fields") or {}).get("refusal")
        return respond(
            content if isinstance(content, str) else "",
            reason=_raw_reason(raw, choices[0].finish_reason),
            calls=read_tool_calls([_call_dict(call) for call in message.tool_calls or ()]),
            reasoning=_get(message, "reasoning_content"),
            refusal=refusal if isinstance(refusal, str) else None,
            usage=usage,
            model=_get(result, "model"),
            thinking=_plain_blocks(_get(message, "thinking_blocks")),
        )

    async def _stream(self, stream: Any, assembly: Assembly, clock: asyncio.Timeout, raw: RawEnd) -> ModelResponse:
        loop = asyncio.get_running_loop()
        deadline = clock.when() or loop.time()
        try:
            async for chunk in self._chunks(stream):
                clock.reschedule(min(deadline, loop.time() + self._idle_timeout_s))
                assembly.chunk(_chunk_dict(chunk))
            # LiteLLM ends every stream with `stop` and an estimated usage; this is what the provider sent.
            raw.end()
            assembly.done = raw.is_done
            assembly.ended(raw.reason if raw.is_known else _get(stream, "received_finish_reason"))
            if not any(_get(chunk, "usage") for chunk in _get(stream, "chunks") or ()):
                assembly.uncounted()
            if _reasoning_is_estimated(raw.usage):
                assembly.uncounted(reasoning_only=True)
            response = assembly.response()
            return replace(response, model=raw.model or response.model)
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
        told, code = _told(exc)
        return failure(
            status,
            told or message,
            code=code or str(getattr(exc, "code", None) or ""),
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
# What is called so, although an answer came without an error status, is LiteLLM's trouble with reading it.
_OF_LITELLM = frozenset({"bad_request", "server", "other", "malformed_response"})


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it, outermost first."""
    seen: BaseException | None = exc
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _names(exc: BaseException) -> set[str]:
    """The class names of an exception and of what caused it, their bases included."""
    return {kind.__name__ for seen in _chain(exc) for kind in type(seen).__mro__}


def _told(exc: BaseException) -> tuple[str, str]:
    """The provider's own message and code, from the answer that the exceptions carry; ("", "") without one."""
    for seen in _chain(exc):
        try:
            body: Any = _get(_get(seen, "response"), "content")
        except Exception:
            # A body that was not read, or not to the end.
            continue
        if isinstance(body, bytes) and body:
            return message_of(body)
    return "", ""


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
        install()
        litellm.telemetry = False
        # A model may repeat itself; that is for the reader of its answer to judge.
        litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1 << 62
        litellm.suppress_debug_info = True
        # Pydantic's remarks on LiteLLM's own models: nothing that a caller could do about them.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"pydantic\.|litellm\.")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        return litellm


def _takes_images_in_answers(model: str) -> bool:
    """Whether LiteLLM puts the images of a tool's answer into it: where it speaks Anthropic's own wire."""
    return model.startswith(("anthropic/", "vertex_ai/claude"))


def _wants_marks(model: str) -> bool:
    """Whether the provider caches only what is marked. Others cache by themselves or not at all."""
    return "claude" in model.lower() or "anthropic/" in model.lower()


def _mark(messages: list[dict[str, Any]], *, goes_on: bool) -> None:
    """Marks the system message, and the last message that will be sent again: the last of all where tools make
    the conversation go on, else the last before the task's own."""
    last = len(messages) - (1 if goes_on else 2)
    places = {index for index, message in enumerate(messages) if message["role"] == "system"}
    for index in places | ({last} if last >= 0 else set()):
        message = messages[index]
        mark = {"type": "ephemeral"}
        if message["role"] in ("tool", "assistant") or not message["content"]:
            message["cache_control"] = mark
            continue
        parts = message["content"]
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        message["content"] = [*parts[:-1], {**parts[-1], "cache_control": mark}]


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
    return reason_of(raw) if raw.keys() & {"choices", "candidates", "stop_reason"} else mapped


def _usage(usage: Any, *, known: bool) -> dict[str, Any] | None:
    """Token counts as a dict; None where LiteLLM made zeros of a missing usage."""
    if usage is None:
        return None
    counts = {name: _get(usage, name) for name in ("prompt_tokens", "completion_tokens")}
    if not known and not any(counts.values()):
        return None
    for group, names in (
        ("prompt_tokens_details", ("cached_tokens", "cache_creation_tokens")),
        ("completion_tokens_details", ("reasoning_tokens",)),
    ):
        counts[group] = {name: _get(_get(usage, group), name) for name in names}
    return counts


def _plain_blocks(blocks: Any) -> list[Mapping[str, Any]]:
    """Thinking blocks as plain JSON."""
    return [json.loads(json.dumps(block)) for block in blocks or () if isinstance(block, dict)]


def _reasoning_is_estimated(usage: Any) -> bool:
    """Whether a usage of Anthropic's shape leaves the reasoning tokens out, which LiteLLM then estimates."""
    return isinstance(usage, dict) and "output_tokens" in usage and not usage.get("output_tokens_details")


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
                    "thinking_blocks": _plain_blocks(_get(delta, "thinking_blocks")),
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
