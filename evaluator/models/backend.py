"""The protocol between a Handler and a model: one request in, one response or one ProviderError
out.

A backend makes exactly one attempt a call. Retries, limits, recording and tool execution belong to
the Handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, Literal, Protocol, runtime_checkable

from evaluator.errors.results import Usage
from evaluator.lazy_dataclass import frozen
from evaluator.models.attachments import Attachment
from evaluator.models.logprobs import TokenLogprob, from_rows, to_rows

_MESSAGE_OVERHEAD_TOKENS = 6
Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "unknown"]


@frozen
class ToolCall:
    """A model's request to call a tool. `arguments` is the JSON text exactly as the model wrote it,
    unparsed.
    """

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@frozen
class Message:
    """One message. `attachments` belong to a user's text, or are images of a tool's answer.
    `thinking` are reasoning blocks that a provider signed and expects back unchanged with the
    answer that they led to. The first `shared` characters of the content are the same in other
    calls, as far as is known; see `prompt_cache`.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    thinking: tuple[Mapping[str, Any], ...] = ()
    shared: int = field(default=0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The recorded form: an attachment has its type, size and hash, without its bytes."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.attachments:
            data["attachments"] = [attachment.to_dict() for attachment in self.attachments]
        if self.thinking:
            data["thinking"] = [dict(block) for block in self.thinking]
        return data

    def tokens(self) -> int:
        """About how many tokens a model would count for it, see `estimate_tokens`."""
        tokens = estimate_tokens(self.content) + _MESSAGE_OVERHEAD_TOKENS
        for attachment in self.attachments:
            tokens += attachment.tokens
        for call in self.tool_calls:
            tokens += estimate_tokens(call.name) + estimate_tokens(call.arguments)
        return tokens


# Lower-case letters and blanks make up long tokens; capitals, digits and punctuation short ones.
_DENSE = bytes(b for b in range(256) if not (97 <= b <= 122 or b == 32))
_NOT_ALPHANUMERIC = bytes(b for b in range(128) if not chr(b).isalnum())


def estimate_tokens(text: str) -> int:
    """About how many tokens a model would count for `text`, at least 0.

    Built to exceed the true figure rather than undercut it: prose and code come out about two
    thirds too high. A character of a script other than Latin counts as one to three tokens, and
    text without blanks or punctuation (encoded data) as three tokens to four characters. Linear, C
    speed.
    """
    if not text:
        return 0
    data = text.encode("utf-8", "surrogatepass")
    if len(data) == len(text):
        latin = data
    else:
        latin = text.encode("ascii", "ignore")
    size = len(latin)
    light = len(latin.translate(None, _DENSE))
    sixths = light * 2 + (size - light) * 4
    if len(latin.translate(None, _NOT_ALPHANUMERIC)) * 16 > size * 15:
        sixths = max(sixths, size * 9 // 2)
    return -(-(sixths + (len(data) - size) * 4) // 6)


@frozen
class ToolSpec:
    """The description of a tool for a model: `parameters` is a JSON Schema of type object.

    `native` replaces it for an Anthropic model: the type of one of the tools that it was trained
    on.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    native: Mapping[str, Any] | None = None

    def text(self) -> str:
        """What a model reads of it, to estimate its tokens."""
        return f"{self.name} {self.description} {self.parameters}"


@frozen
class Hints:
    """Hints from which the simulated backend may build its answer. Never sent to a provider or
    fingerprinted.

    `output_type` is that of the task's output format, or `calls`: the calls of the offered tools
    are the answer.
    """

    task: str | None = None
    examples: tuple[tuple[Mapping[str, str], str], ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    output_type: str = "text"
    schema: str | None = None
    target: str | None = None


@frozen
class CacheMark:
    """The end of what a provider is asked to cache: so many characters of a message's content."""

    message: int
    characters: int


@frozen
class ModelRequest:
    """One model call. `model` is the id without the backend's prefix. `timeout_s` bounds the whole
    call.

    `schema` is a JSON Schema that the provider enforces. A backend that cannot send it raises a
    ProviderError of kind `bad_request` that says "JSON schema": the Handler repeats the call
    without it, see `structured`. `cache_marks`, in order, end what will be sent again, for
    providers that cache only what is marked; no answer depends on them. `call_mark` distinguishes
    the calls of a session that are text, see `text_tools`. Both are neither recorded nor part of a
    fingerprint or a cache key. `logprobs` asks for the log probabilities of tokens, and of that
    many likely ones at each place; with `echo` for those of the prompt, the last message, in place
    of an answer. `extra_body` has further fields of the body for a server that takes them, see
    `nodes.sampling`.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    timeout_s: float = 120.0
    hints: Hints = Hints()
    schema: Mapping[str, Any] | None = None
    cache_marks: tuple[CacheMark, ...] = ()
    call_mark: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: bool | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])


@frozen
class ModelResponse:
    """One model response, a turn. `usage` has None where the provider gave no number.

    `thinking` is sent back with this answer, see Message. `warnings` say what was repaired in the
    model's text. `logprobs` has the tokens of the text, if the request asked for them.
    """

    content: str
    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    usage: Usage = Usage(
        None, None, cached_tokens=None, reasoning_tokens=None, cost_usd=None, turns=1
    )
    model: str | None = None
    thinking: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def message(self) -> Message:
        """The response as a message of the conversation."""
        return Message("assistant", self.content, self.tool_calls, thinking=self.thinking)

    def to_dict(self) -> dict[str, Any]:
        """The recorded form, without the usage and without default values; `from_dict` reads it
        back.
        """
        data: dict[str, Any] = {"content": self.content}
        if self.finish_reason != _usual_reason(self.tool_calls):
            data["finish_reason"] = self.finish_reason
        if self.tool_calls:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.reasoning is not None:
            data["reasoning"] = self.reasoning
        if self.model is not None:
            data["model"] = self.model
        if self.thinking:
            data["thinking"] = [dict(block) for block in self.thinking]
        if self.warnings:
            data["warnings"] = list(self.warnings)
        if self.logprobs:
            data["logprobs"] = to_rows(self.logprobs)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], usage: Mapping[str, Any] | None) -> ModelResponse:
        """Reads what `to_dict` gave, and the usage that was recorded with it."""
        calls = tuple(
            ToolCall(call["id"], call["name"], arguments=call["arguments"])
            for call in data.get("tool_calls", ())
        )
        return cls(
            content=data["content"],
            finish_reason=data.get("finish_reason") or _usual_reason(calls),
            tool_calls=calls,
            reasoning=data.get("reasoning"),
            usage=Usage(
                None, None, cached_tokens=None, reasoning_tokens=None, cost_usd=None, turns=1
            )
            if usage is None
            else Usage.from_dict(usage),
            model=data.get("model"),
            thinking=tuple(data.get("thinking", ())),
            warnings=tuple(data.get("warnings", ())),
            logprobs=from_rows(data.get("logprobs")),
        )


def _usual_reason(calls: object) -> FinishReason:
    if calls:
        return "tool_calls"
    return "stop"


@runtime_checkable
class Backend(Protocol):
    """Where model calls go.

    `complete` makes one attempt and returns the response or raises ProviderError, nothing else
    (asyncio cancellation passes through). It ends within `request.timeout_s` whatever the other
    side does. With `on_text` it streams and calls it with each piece of text as it arrives, and
    returns the same response.

    A backend may have a `prepare()`, which is called before each call and returns what to await
    while the backend loads, or None; that time does not count as the task's. A backend that can
    reach more than one server has an
    `endpoint`: the URL of its server, without secrets. The cache and the rate limits of one
    `endpoint` are shared. One that bounds its open connections has `connections`, that bound in the
    running event loop, which the progress of a batch shows if calls wait for one. A backend can be
    pickled for worker processes: its `__getstate__` leaves out sessions.
    """

    @property
    def name(self) -> str: ...

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse: ...

    async def aclose(self) -> None: ...


def prepare(backend: Backend) -> Awaitable[None] | None:
    """What to await while `backend` loads what it needs; None if it is ready."""
    own: Callable[[], Awaitable[None] | None] | None = getattr(backend, "prepare", None)
    if own is None:
        return None
    return own()
