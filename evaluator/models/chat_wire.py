"""The chat completions wire: a ModelRequest as a JSON body, a JSON answer as a ModelResponse.

orjson encodes and decodes here, where only the values count. Records, results, fingerprints and
cache keys keep the encoder of `record.steps`: their bytes are documented or hashed, and orjson
writes other bytes (no space after a comma, no `\\u` escapes, `0.00001` for `1e-05`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import orjson

from evaluator.errors import ProviderError
from evaluator.errors.messages import json_problem
from evaluator.errors.results import Usage
from evaluator.models.attachments import Attachment, with_unsent
from evaluator.models.backend import FinishReason, Message, ModelRequest, ModelResponse, ToolCall
from evaluator.models.failures import clean, error_in_body, malformed
from evaluator.models.logprobs import TokenLogprob, read_chat, read_completion_tokens
from evaluator.models.structured import response_format
from evaluator.nodes.sampling import settings_given
from evaluator.record.steps import json_encoder

_REASONS: Mapping[FinishReason, tuple[str, ...]] = {
    "stop": ("stop", "eos", "end_turn", "stop_sequence", "complete"),
    "length": ("length", "max_tokens", "model_length", "model_context_window_exceeded"),
    "tool_calls": ("tool_calls", "tool_use", "function_call"),
    "content_filter": (
        "content_filter",
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "image_safety",
    ),
    "refusal": ("refusal",),
}
_FINISH_REASONS: Mapping[str, FinishReason] = {
    name: reason for reason, names in _REASONS.items() for name in names
}


def message_bodies(
    messages: Iterable[Message], *, images_in_answers: bool = False
) -> list[dict[str, Any]]:
    """The messages in the shape of the wire.

    Attachments come before the text that asks about them. The images of a tool's answer are parts
    of the answer with `images_in_answers`; else, since the wire has no place for them there, they
    follow the answers of the turn in a user message that names the call of each. An attachment that
    is not sent is named in the answer.
    """
    bodies: list[dict[str, Any]] = []
    following: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and following:
            bodies.append({"role": "user", "content": following})
            following = []
        bodies.append(message_body(message))
        if message.role != "tool":
            continue
        images = [_part(image) for image in message.attachments if image.data]
        if images and images_in_answers:
            bodies[-1]["content"] = [{"type": "text", "text": bodies[-1]["content"]}, *images]
        elif images:
            following += [
                {"type": "text", "text": f"The answer to the tool call {message.tool_call_id}:"},
                *images,
            ]
    if following:
        bodies.append({"role": "user", "content": following})
    return bodies


def message_body(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        body["content"] = with_unsent(message.content, message.attachments)
    elif message.attachments:
        parts = [_part(attachment) for attachment in message.attachments]
        body["content"] = [*parts, {"type": "text", "text": message.content}]
    if message.tool_calls:
        if not message.content:
            body["content"] = None
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.thinking:
        body["thinking_blocks"] = [dict(block) for block in message.thinking]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def _part(attachment: Attachment) -> dict[str, Any]:
    url = f"data:{attachment.media_type};base64,{base64.b64encode(attachment.data).decode('ascii')}"
    if attachment.is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    return {
        "type": "file",
        "file": {"filename": attachment.source.rpartition("/")[2], "file_data": url},
    }


def _object(arguments: str) -> str:
    """`arguments` as the text of a JSON object: several providers answer 400 to anything else."""
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(arguments), dict):
            return arguments
    return json.dumps({"invalid_arguments": arguments})


def request_body(
    request: ModelRequest, *, max_tokens_field: str = "max_tokens", images_in_answers: bool = False
) -> dict[str, Any]:
    """The body without `stream`; hints never enter it. `images_in_answers`: see
    `message_bodies`.
    """
    body = fixed_body(request, max_tokens_field)
    body["messages"] = message_bodies(request.messages, images_in_answers=images_in_answers)
    return body


def fixed_body(request: ModelRequest, max_tokens_field: str) -> dict[str, Any]:
    """What the requests of a prepared task have in common: the body without the messages."""
    body: dict[str, Any] = {"model": request.model}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
    if request.max_output_tokens is not None:
        body[max_tokens_field] = request.max_output_tokens
    sampling = settings_given(request)
    extra = sampling.pop("extra_body", {})
    sampling.pop("echo", None)
    if (likely := sampling.pop("logprobs", None)) is not None:
        body["logprobs"] = True
        if likely:
            body["top_logprobs"] = likely
    body.update(sampling)
    if request.schema is not None:
        body["response_format"] = response_format(request.schema)
    return {**extra, **body}


def echo_body(request: ModelRequest) -> dict[str, Any]:
    """The body of a completion that returns its prompt, the last message, with log probabilities.

    Raises: ProviderError, for a request with other messages or tools.
    """
    if len(request.messages) != 1 or request.tools or request.messages[0].attachments:
        raise ProviderError(
            "echo takes a prompt of one message, without a system prompt, tools and attachments",
            kind="bad_request",
        )
    return {
        **request.extra_body,
        "model": request.model,
        "prompt": request.messages[0].content,
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": max(1, request.logprobs or 0),
    }


def read_echo(data: Any, prompt: str, secrets: tuple[str, ...] = ()) -> ModelResponse:
    """The prompt in a decoded completion with `echo`, with its tokens; the generated ones are left
    out. Raises: ProviderError, as `read_completion`, and for a server that does not return the
    prompt.
    """
    if not isinstance(data, dict):
        raise malformed("the response is not a JSON object")
    if (error := error_in_body(data, secrets=secrets)) is not None:
        raise error
    choices = data.get("choices")
    if isinstance(choices, list) and choices:
        choice = choices[0]
    else:
        choice = None
    tokens = read_completion_tokens(choice.get("logprobs") if isinstance(choice, dict) else None)
    kept: list[TokenLogprob] = []
    length = 0
    for token in tokens:
        if length >= len(prompt):
            break
        kept.append(token)
        length += len(token.token)
    if "".join(token.token for token in kept) != prompt:
        raise ProviderError(
            "the server did not return the tokens of the prompt: it has no completions with echo "
            "and logprobs; use one that has, such as vLLM or llama.cpp",
            kind="bad_request",
            maybe_billed=True,
        )
    model = data.get("model")
    return ModelResponse(
        prompt,
        "stop",
        usage=read_usage(data.get("usage")),
        model=model if isinstance(model, str) else None,
        logprobs=tuple(kept),
    )


def expect_logprobs(request: ModelRequest, response: ModelResponse) -> ModelResponse:
    """`response`. Raises: ProviderError, if the request asked for logprobs and there are none."""
    if request.logprobs is None or response.logprobs or not response.content:
        return response
    raise ProviderError(
        f"the server returned no logprobs for {request.model}: it cannot, or not for this model; "
        "choose another one, or remove the setting logprobs",
        kind="bad_request",
        partial=response.content,
        maybe_billed=True,
    )


def read_completion(data: Any, secrets: tuple[str, ...] = ()) -> ModelResponse:
    """The answer in a decoded completion.

    Raises: ProviderError, for an error that the provider put into it, and for a shape that is not
    an answer.
    """
    if not isinstance(data, dict):
        raise malformed("the response is not a JSON object")
    if data.get("error") and (error := error_in_body(data, secrets=secrets)) is not None:
        raise error
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise malformed("the response has no choices")
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict):
        raise malformed("the response has no message")
    content = message.get("content")
    reasoning = reasoning_of(message)
    if not isinstance(content, str):
        content, thought = join_parts(content)
        reasoning = reasoning or thought
    refusal = message.get("refusal")
    calls = message.get("tool_calls")
    model = data.get("model")
    return respond(
        content,
        reason=choice.get("finish_reason"),
        calls=read_tool_calls(calls) if calls else (),
        reasoning=reasoning,
        refusal=refusal if isinstance(refusal, str) else None,
        usage=data.get("usage"),
        model=model if isinstance(model, str) else None,
        thinking=thinking_of(message),
        logprobs=read_chat(choice.get("logprobs")),
    )


def respond(
    content: str,
    *,
    reason: Any,
    calls: tuple[ToolCall, ...],
    reasoning: str | None,
    refusal: str | None,
    usage: Any,
    model: str | None,
    thinking: Sequence[Mapping[str, Any]] = (),
    logprobs: tuple[TokenLogprob, ...] = (),
) -> ModelResponse:
    """A ModelResponse from its parts as the provider gave them. Only this function interprets
    them.
    """
    if isinstance(reason, str):
        finish = _FINISH_REASONS.get(reason.lower(), "unknown")
    else:
        finish = "unknown"
    if refusal:
        finish = "refusal"
        content = content or refusal
    elif calls and finish == "stop":
        finish = "tool_calls"
    elif finish == "tool_calls" and not calls:
        finish = "unknown"
    signed: tuple[Mapping[str, Any], ...] = ()
    if thinking:
        signed = tuple(
            block
            for block in thinking
            if block.get("signature") or block.get("type") == "redacted_thinking"
        )
    used = read_usage(usage)
    return ModelResponse(
        content,
        finish,
        calls,
        reasoning or None,
        used,
        model=model,
        thinking=signed,
        logprobs=logprobs,
    )


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def thinking_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Blocks of reasoning that the provider signed, or pieces of them, as LiteLLM names them."""
    blocks = message.get("thinking_blocks")
    if isinstance(blocks, list):
        return [block for block in blocks if isinstance(block, dict)]
    return []


def join_parts(content: Any) -> tuple[str, str | None]:
    """Text and reasoning of a content that is null or a list of parts."""
    if content is None:
        return "", None
    if not isinstance(content, list):
        raise malformed("the message content is neither text nor a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            key = next((key for key in _PART_TEXTS if isinstance(part.get(key), str)), None)
            if key is not None:
                (thoughts if key in ("thinking", "reasoning") else texts).append(part[key])
    return "".join(texts), "".join(thoughts) or None


_PART_TEXTS = ("text", "refusal", "thinking", "reasoning")


def read_tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    """Tool calls with their arguments as text, unparsed. Raises: ProviderError, for a call without
    a name.
    """
    if not isinstance(calls, list):
        raise malformed("tool_calls is not a list")
    read: list[ToolCall] = []
    for index, call in enumerate(calls):
        if isinstance(call, dict):
            function = call.get("function")
        else:
            function = None
        if not isinstance(function, dict):
            raise malformed("a tool call has no function")
        read.append(
            tool_call(
                index,
                call.get("id"),
                name=function.get("name"),
                arguments=function.get("arguments"),
            )
        )
    return tuple(read)


def tool_call(index: int, call_id: Any, name: Any, arguments: Any) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise malformed("a tool call has no name")
    if not isinstance(arguments, str):
        if arguments is None:
            arguments = ""
        else:
            arguments = json.dumps(arguments)
    return ToolCall(
        call_id if isinstance(call_id, str) and call_id else f"call_{index}",
        name,
        arguments=arguments,
    )


_NO_USAGE = Usage(None, None, cached_tokens=None, reasoning_tokens=None, cost_usd=None, turns=1)


def read_usage(usage: Any) -> Usage:
    """Token counts as the provider gave them, None for each it did not give; cost is always None.
    Tokens that it does not report as written to its cache were not.
    """
    if not isinstance(usage, dict):
        return _NO_USAGE
    cached = None
    written = None
    reasoning = None
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        cached = _count(details.get("cached_tokens"))
        written = _count(details.get("cache_creation_tokens"))
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        reasoning = _count(details.get("reasoning_tokens"))
    # Some providers do not give it among the details.
    if cached is None:
        cached = _count(usage.get("prompt_cache_hit_tokens"))
    if cached is None:
        cached = _count(usage.get("cached_tokens"))
    if written is None or written < 0:
        written = 0
    read = _count(usage.get("prompt_tokens"))
    generated = _count(usage.get("completion_tokens"))
    return Usage(
        read,
        generated,
        cached,
        reasoning,
        None,
        turns=1,
        cache_write_tokens=written,
    )


def _count(value: Any) -> int | None:
    """The integer as it was given, also one that no call can have: `Usage.invalid` finds and
    reports it.
    """
    if type(value) is int:
        return value
    return None


_ORJSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _plain(value: Any) -> Any:
    """Converts what the encoders do not support: read-only mappings and other sequences of a
    tool's parameters.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, Sequence):
        return list(cast("Sequence[Any]", value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


# NaN is not JSON, and the error of a server would be less clear.
_strict = json_encoder((",", ":"), ascii_only=True, allow_nan=False, default=_plain)


def encode_json(value: Any, has_numbers: bool = True) -> bytes:
    """A request, or a part of it, as JSON. Without `has_numbers` no NaN is looked for.

    Raises: ProviderError, for a value that is not JSON.
    """
    try:
        data = orjson.dumps(value, default=_plain, option=_ORJSON)
        # NaN and the infinities become null.
        if not has_numbers or b"null" not in data:
            return data
    except TypeError:
        # Lone surrogates, integers past 64 bits, keys that are numbers, or no JSON at all.
        pass
    try:
        return _strict(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as exc:
        raise ProviderError(
            f"the request is not JSON: {clean(str(exc))}", kind="bad_request"
        ) from exc


def _has_float(usage: Any) -> bool:
    if type(usage) is not dict:
        return type(usage) is float
    kinds = {*map(type, usage.values())}
    if float in kinds:
        return True
    return dict in kinds and any(_has_float(each) for each in usage.values() if type(each) is dict)


def decode_json(body: bytes | str, what: str = "the response") -> Any:
    """Raises: ProviderError, for what is not JSON in UTF-8."""
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    # orjson reads integers past 64 bits as floats. Numbers are used in two places: the arguments
    # of a tool call, and the usage.
    if b"tool_calls" not in body:
        try:
            data = orjson.loads(body)
            if type(data) is not dict or not _has_float(data.get("usage")):
                return data
        except orjson.JSONDecodeError:
            pass
    try:
        return json.loads(body)
    except UnicodeDecodeError as exc:
        raise malformed(f"{what} is not valid UTF-8 (byte {exc.start})") from exc
    except ValueError as exc:
        raise malformed(
            f"{what} is not valid JSON ({json_problem(exc)}; {len(body)} bytes)"
        ) from exc
    except RecursionError as exc:
        raise malformed(f"{what} is nested too deeply") from exc
