"""Every provider that LiteLLM supports, behind the Backend protocol. LiteLLM is imported at the
first call.

LiteLLM's own retries, telemetry, price download and printing are off. Where its result hides what
the provider said (an unknown finish reason as `stop`, missing usage as zeros, no choices as a
success), or where it fails to read an answer, the raw response is read instead. `litellm_guard`
holds it to one POST, one host and 16 MB.
"""

from __future__ import annotations

import asyncio
import math
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from evaluator.errors import ConfigurationError, ProviderError
from evaluator.errors.results import Usage
from evaluator.models.anthropic_batches import VERSION, AnthropicBatches
from evaluator.models.backend import ModelRequest, ModelResponse
from evaluator.models.batch_api import BatchApi
from evaluator.models.chat_wire import decode_json, expect_logprobs, read_completion, request_body
from evaluator.models.failures import (
    MAX_RESPONSE_BYTES,
    clean,
    error_in_body,
    failure,
    malformed,
)
from evaluator.models.gemini_batches import GeminiBatches
from evaluator.models.key_transport import check_port, proxy_of, refuse_plain_http
from evaluator.models.litellm_errors import READ_FAILURES, causes, provider_error
from evaluator.models.litellm_guard import (
    NO_KEY,
    CallGuard,
    RawStream,
    Redirected,
    ResponseRefused,
    load_litellm,
    reason_of,
)
from evaluator.models.openai_batches import MistralBatches
from evaluator.models.prices import cost_usd
from evaluator.models.prompt_cache import MARK, marked_places, needs_marks, text_blocks
from evaluator.models.provider_batches import ProviderBatches
from evaluator.models.stream import Assembly
from evaluator.models.time_limit import TimeLimit

# The address of each batch API, the header that carries its key, and what stands before the key.
_BATCH_APIS = {
    "anthropic": ("https://api.anthropic.com", "x-api-key", ""),
    "gemini": ("https://generativelanguage.googleapis.com", "x-goog-api-key", ""),
    "mistral": ("https://api.mistral.ai", "Authorization", "Bearer "),
}
# Backends that have made a call: LiteLLM's connections are shared, and closed with the last of
# these.
_active: weakref.WeakSet[LiteLLMBackend] = weakref.WeakSet()


class LiteLLMBackend:
    """Calls `litellm.acompletion`; `request.model` is LiteLLM's name (`anthropic/claude-…`).

    `base_url` and `api_key` override what LiteLLM finds in the environment; `options` are passed to
    every call (`api_version`, `extra_headers`, …). The first call imports LiteLLM in a thread,
    outside the call's time limit: seconds, once a process. A key goes to `base_url` only, and never
    over plain http to another machine.

    Raises: ConfigurationError, where LiteLLM is not installed, or for a key and a plain http
    address.
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
            raise ConfigurationError(
                "litellm is not installed; install it with: pip install litellm"
            )
        self._fixed: dict[str, Any] = {**(options or {}), "num_retries": 0, "max_retries": 0}
        if base_url is not None:
            check_port(base_url, "the base URL")
            refuse_plain_http(base_url, bool(api_key))
            self._fixed["api_base"] = base_url
            # Without a key LiteLLM would send the provider's from the environment, to whatever
            # address was given.
            self._fixed["api_key"] = NO_KEY
        if api_key is not None:
            self._fixed["api_key"] = api_key
        self._base_url = base_url
        self._secrets = (api_key,) if api_key else ()
        self._idle_timeout_s = idle_timeout_s
        self._max_bytes = max_response_bytes
        self._has_mcp = find_spec("mcp") is not None
        self._litellm: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A module cannot be pickled; the next call imports it again.
        return {**vars(self), "_litellm": None}

    @property
    def name(self) -> str:
        return "litellm"

    @property
    def endpoint(self) -> str | None:
        """The base URL, without secrets; None where LiteLLM finds the provider's own."""
        if self._base_url:
            return clean(self._base_url, self._secrets)
        return None

    def batches(self, model: str) -> ProviderBatches | None:
        """The batch API of Anthropic, Gemini or Mistral for its models; None for others."""
        provider = model.partition("/")[0]
        if provider not in _BATCH_APIS:
            return None
        default, header, prefix = _BATCH_APIS[provider]
        key = self._secrets[0] if self._secrets else None
        url = self._base_url
        if url is None:
            key = key or os.environ.get(f"{provider.upper()}_API_KEY")
            url = os.environ.get(f"{provider.upper()}_API_BASE") or default
        refuse_plain_http(url, bool(key))
        secrets = (key,) if key else ()
        url = url.rstrip("/").removesuffix("/v1").removesuffix("/v1beta")
        headers = {}
        if key:
            headers[header] = f"{prefix}{key}"
        proxy = proxy_of(url)
        if provider == "gemini":
            return GeminiBatches(BatchApi(url, headers, secrets, proxy), model)
        if provider == "mistral":
            return MistralBatches(BatchApi(f"{url}/v1", headers, secrets, proxy), model)
        headers["anthropic-version"] = VERSION
        return AnthropicBatches(BatchApi(f"{url}/v1", headers, secrets, proxy))

    def __repr__(self) -> str:
        if self._base_url:
            parts = [f"base_url={self.endpoint!r}"]
        else:
            parts = []
        if self._secrets:
            parts.append("api_key='***'")
        return f"{type(self).__name__}({', '.join(parts)})"

    def prepare(self) -> Awaitable[None] | None:
        """Imports LiteLLM, which takes seconds, at the first call."""
        if self._litellm is None:
            return self._load()
        return None

    async def _load(self) -> None:
        self._litellm = await asyncio.to_thread(load_litellm)

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        """One attempt. Raises: ProviderError; an exception of `on_text` passes through."""
        if self._litellm is None:
            await self._load()
        if request.extra_body:
            self._check_extra_body(request.model)
        if request.echo:
            raise ProviderError(
                "LiteLLM has no echo: the log probabilities of a prompt are for a profile with the "
                "<backend> openai_compatible",
                kind="bad_request",
            )
        _active.add(self)
        if on_text is None:
            assembly = None
        else:
            assembly = Assembly(on_text, self._secrets)
        with TimeLimit(request.timeout_s, self._idle_timeout_s, answer=assembly) as limit:
            if assembly is None:
                response = await self._whole(request)
            else:
                response = await self._streamed(request, assembly, reset_idle=limit.reset_idle)
            return expect_logprobs(request, response)

    async def aclose(self) -> None:
        """Closes LiteLLM's connections when no other backend uses them."""
        _active.discard(self)
        close = getattr(self._litellm, "close_litellm_async_clients", None)
        if close is not None and not _active:
            await close()
            # LiteLLM would continue to use the clients that it has just closed.
            cache = getattr(self._litellm, "in_memory_llm_clients_cache", None)
            if cache is not None:
                cache.flush_cache()
            # Streams of some providers use this client, which LiteLLM closes only while it is in
            # its cache.
            shared = vars(self._litellm).get("module_level_aclient")
            if shared is not None:
                await shared.close()

    def _check_extra_body(self, model: str) -> None:
        """Raises: ProviderError, unless the model is reached with chat completions at a server of
        the profile.

        On other wires further fields could replace what the evaluator decides, under names that it
        does not know.
        """
        compatible = ("openai", "custom_openai", *self._litellm.openai_compatible_providers)
        if self._base_url is None or model.partition("/")[0] not in compatible:
            raise ProviderError(
                f"extra_body is for an OpenAI-compatible server, and {model} is not at one; give "
                "the profile a <base_url> and a model such as openai/NAME, or remove extra_body",
                kind="bad_request",
            )

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        # LiteLLM puts images into a tool's answer where it speaks Anthropic's own wire.
        has_images_in_answers = request.model.startswith(("anthropic/", "vertex_ai/claude"))
        extra_body = request.extra_body
        if extra_body:
            # LiteLLM adds them to the body itself.
            request = replace(request, extra_body={})
        arguments = request_body(request, images_in_answers=has_images_in_answers)
        if extra_body:
            arguments["extra_body"] = dict(extra_body)
        if request.tools and request.model.startswith("anthropic/"):
            offered = zip(arguments["tools"], request.tools, strict=True)
            arguments["tools"] = [
                body if spec.native is None else dict(spec.native) for body, spec in offered
            ]
        arguments.update(self._fixed)
        # Our own clock ends the call before; this timeout ends what LiteLLM may leave running
        # behind. LiteLLM keeps a client for each timeout: a few values only, or every call would
        # make one.
        arguments["timeout"] = float(2 ** math.ceil(math.log2(request.timeout_s + 1)))
        if request.tools and not self._has_mcp:
            # LiteLLM looks for MCP tools among all tools, and fails where the mcp package is
            # missing.
            arguments["_skip_mcp_handler"] = True
        if needs_marks(request.model):
            _mark_cached(arguments["messages"], request)
        return arguments

    def _guard(
        self, request: ModelRequest, on_bytes: Callable[[bytes], None] | None = None
    ) -> CallGuard:
        return CallGuard(self._max_bytes, on_bytes, base_url=self._base_url, model=request.model)

    # -- whole answers -----------------------------------------------------------------------------

    async def _whole(self, request: ModelRequest) -> ModelResponse:
        with self._guard(request) as guard:
            try:
                result = await self._litellm.acompletion(**self._arguments(request))
            except Exception as exc:
                error = self._refused(guard) or provider_error(exc, self._secrets)
                if guard.refused is None and guard.answered and error.kind in READ_FAILURES:
                    # An answer came, and LiteLLM failed to read it.
                    if (answer := self._read_raw(guard)) is not None:
                        return answer
                    reason = str(exc).partition("Traceback (most recent call last)")[0]
                    error = malformed(
                        f"the response cannot be read: {clean(reason, self._secrets)}"
                    )
                raise error from exc
        return self._read(result, _decoded(guard.body))

    def _read(self, result: Any, raw: Mapping[str, Any]) -> ModelResponse:
        """The response in LiteLLM's object, corrected by the raw body where LiteLLM makes something
        up.
        """
        if (error := error_in_body(raw, secrets=self._secrets)) is not None:
            raise error
        if not result.choices or raw.get("choices") == []:
            raise malformed("the response has no choices")
        choice: dict[str, Any] = result.choices[0].model_dump(warnings=False)
        if raw.keys() & {"choices", "candidates", "stop_reason"}:
            choice["finish_reason"] = reason_of(raw)
        _add_refusal(choice["message"])
        if isinstance(raw.get("choices"), list) and isinstance(raw.get("usage"), dict):
            usage = raw["usage"]
        else:
            usage = _usage_of(result, raw.get("usage"))
        data = {"choices": [choice], "usage": usage, "model": result.model}
        return read_completion(data, self._secrets)

    def _refused(self, guard: CallGuard) -> ProviderError | None:
        """The guard's refusal as an error, if there was one."""
        refusal = guard.refused
        if isinstance(refusal, Redirected):
            return failure(refusal.status, str(refusal), secrets=self._secrets)
        if refusal is None:
            return None
        return malformed(clean(str(refusal), self._secrets), retryable=False)

    def _read_raw(self, guard: CallGuard) -> ModelResponse | None:
        """The answer as our own reader finds it in a body that is not a stream; None for another
        wire's shape.

        Raises: ProviderError, for an error that the provider put into the body, and for a web page.
        """
        if guard.media_type == "text/html":
            raise malformed(
                f"the response is {guard.media_type}, not JSON (is the base URL right?)",
                retryable=False,
            )
        data = _decoded(guard.body)
        if data.keys() & {"choices", "error"}:
            return read_completion(data, self._secrets)
        return None

    # -- streams -----------------------------------------------------------------------------------

    async def _streamed(
        self, request: ModelRequest, assembly: Assembly, reset_idle: Callable[[], None]
    ) -> ModelResponse:
        arguments = {
            **self._arguments(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        raw = RawStream()
        with self._guard(request, raw.feed) as guard:
            try:
                response = await self._stream(arguments, assembly, reset_idle=reset_idle, raw=raw)
                if response.content or response.tool_calls:
                    answer = None
                else:
                    answer = self._read_events(raw, "")
                if answer is None or not answer.content:
                    return response
            except ProviderError as exc:
                if (refused := self._refused(guard)) is not None:
                    refused.partial = assembly.partial or None
                    raise refused from exc
                if not guard.answered or exc.kind not in READ_FAILURES:
                    raise
                # Some servers do not stream, or stream only an error.
                answer = (None if assembly.partial else self._read_raw(guard)) or self._read_events(
                    raw, assembly.partial
                )
                if answer is None:
                    raise
            if rest := answer.content.removeprefix(assembly.partial):
                assembly.add_text(rest)
            return answer

    async def _stream(
        self,
        arguments: Mapping[str, Any],
        assembly: Assembly,
        reset_idle: Callable[[], None],
        raw: RawStream,
    ) -> ModelResponse:
        try:
            stream = await self._litellm.acompletion(**arguments)
        except Exception as exc:
            raise provider_error(exc, self._secrets) from exc
        try:
            async for chunk in self._chunks(stream):
                reset_idle()
                assembly.add_chunk(_chunk_data(chunk))
            # LiteLLM ends every stream with `stop` and an estimated usage; `raw` is what the
            # provider sent.
            raw.end()
            assembly.done = raw.is_done
            assembly.set_reason(
                raw.reason if raw.is_known else getattr(stream, "received_finish_reason", None)
            )
            if not any(getattr(chunk, "usage", None) for chunk in getattr(stream, "chunks", ())):
                assembly.drop_usage()
            elif _reasoning_is_estimated(raw.usage):
                assembly.drop_usage(reasoning_only=True)
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
                error = provider_error(exc, self._secrets)
                error.maybe_billed = True
                raise error from exc
            yield chunk

    def _read_events(self, raw: RawStream, partial: str) -> ModelResponse | None:
        """The whole answer as our own reader finds it in a stream's events; None where it is not
        whole, does not begin with `partial`, or has another wire's shape.
        """
        own = Assembly(lambda _: None, self._secrets)
        try:
            for payload in raw.payloads:
                own.add_event(payload)
            answer = own.response()
        except ProviderError:
            return None
        if answer.content.startswith(partial):
            return answer
        return None


async def embed_texts(
    model: str, texts: list[str], timeout_s: float
) -> tuple[list[list[float]], Usage]:
    """The vectors of `texts` by an embedding model, in one call of LiteLLM's that is not retried,
    and its usage.

    Raises: ProviderError, for a server error; else what LiteLLM or its HTTP client raises.
    """
    litellm = await asyncio.to_thread(load_litellm)
    with CallGuard() as guard:
        try:
            answer = await litellm.aembedding(
                model=model, input=texts, max_retries=0, timeout=timeout_s
            )
        except Exception as error:
            if guard.failure is not None:
                raise guard.failure from error
            if any(isinstance(cause, ResponseRefused) for cause in causes(error)):
                # The guard refused a retry of LiteLLM's; that error hides the first answer.
                raise ProviderError(
                    f"{model} answered with a server error", kind="server", retryable=True
                ) from error
            raise
    tokens = getattr(answer.usage, "prompt_tokens", None) or None
    cost = cost_usd(model, Usage(input_tokens=tokens, turns=1))
    rows = sorted(answer.data, key=lambda row: row["index"])
    return [row["embedding"] for row in rows], Usage(input_tokens=tokens, cost_usd=cost, turns=1)


def _mark_cached(messages: list[dict[str, Any]], request: ModelRequest) -> None:
    """Marks what will be sent again. Images of tools may have added messages before the last."""
    for index, places in marked_places(request).items():
        is_last = index == len(request.messages) - 1
        message = messages[-1 if is_last else index]
        parts = message["content"]
        if message["role"] in ("tool", "assistant") or not parts:
            message.update(MARK)
        elif isinstance(parts, list):  # attachments, and a text that no mark cuts
            message["content"] = [*parts[:-1], {**parts[-1], **MARK}]
        else:
            message["content"] = text_blocks(parts, places)


def _decoded(body: bytes) -> Mapping[str, Any]:
    """A JSON body as a dict, {} where it is not an object."""
    with suppress(ProviderError):
        data = decode_json(body)
        if isinstance(data, dict):
            return data
    return {}


def _chunk_data(chunk: Any) -> dict[str, Any]:
    """One of LiteLLM's chunks as plain data, without what LiteLLM often makes up: finish reasons,
    empty usage.
    """
    data: dict[str, Any] = chunk.model_dump(warnings=False)
    for choice in data.get("choices") or ():
        choice["finish_reason"] = None
        _add_refusal(choice["delta"])
    if _is_empty(data.get("usage")):
        data["usage"] = None
    return data


def _add_refusal(message: dict[str, Any]) -> None:
    """LiteLLM moves fields that it does not know to `provider_specific_fields`."""
    fields = message.get("provider_specific_fields")
    if isinstance(fields, dict) and "refusal" in fields:
        message.setdefault("refusal", fields["refusal"])


def _usage_of(result: Any, raw_usage: Any) -> dict[str, Any] | None:
    """The usage in LiteLLM's object, without what LiteLLM makes up; `raw_usage` is the
    provider's.
    """
    usage = getattr(result, "usage", None)
    if usage is None:
        return None
    counted: dict[str, Any] = usage.model_dump(warnings=False)
    if not raw_usage and _is_empty(counted):
        return None
    if raw_usage and _reasoning_is_estimated(raw_usage):
        counted["completion_tokens_details"] = None
    return counted


def _is_empty(usage: Any) -> bool:
    """Whether a usage counts no tokens, as LiteLLM writes it where the provider gave none."""
    return isinstance(usage, dict) and not (
        usage.get("prompt_tokens") or usage.get("completion_tokens")
    )


def _reasoning_is_estimated(usage: Any) -> bool:
    """Whether a usage of Anthropic's shape lacks the reasoning tokens, which LiteLLM then
    estimates.
    """
    return (
        isinstance(usage, dict)
        and "output_tokens" in usage
        and not usage.get("output_tokens_details")
    )


async def _close(stream: Any) -> None:
    inner = getattr(stream, "completion_stream", None)
    close = getattr(inner, "aclose", None) or getattr(inner, "close", None)
    if close is not None:
        # Closing a broken stream may fail: the first error is the one to report.
        with suppress(Exception):
            await close()
