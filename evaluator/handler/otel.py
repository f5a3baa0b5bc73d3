"""Spans for OpenTelemetry, named after its semantic conventions for generative AI.

Follows the conventions as of version 1.44 (status: Development; opentelemetry.io/docs/specs/semconv/gen-ai, and the
repository open-telemetry/semantic-conventions-genai): a task is `invoke_agent TEMPLATE`, an attempt at a model call
`chat MODEL`, a tool call `execute_tool NAME`, a score the event `gen_ai.evaluation.result`. What they have no word for
is named `evaluator.…`: batches, samples, attempts, task ids, cost.

What people and models wrote (prompts, answers, arguments and results of tools, explanations, messages of errors) is
content: it is left out unless the variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for it, and then
redacted as task files are. Without it an error is its kind. Nothing is exported here: that is the tracer provider's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError, MissingExtra, ProviderError, UsageError
from evaluator.handler.backend import Message, ModelRequest, ModelResponse, ToolCall
from evaluator.handler.tracing import BatchEnd, Evaluated, Tracer
from evaluator.results import TaskError, TaskResult, Usage

if TYPE_CHECKING:
    from opentelemetry import trace

    from evaluator.handler.tools import Tool
    from evaluator.handler.tools.registry import ToolOutcome
    from evaluator.record.redact import Redactor

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = ("true", "span_only", "span_and_event")
# Prefixes of model names, where the conventions have another word for the provider.
_PROVIDERS = {
    "azure": "azure.ai.openai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "moonshot": "moonshot_ai", "vertex_ai": "gcp.vertex_ai", "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}  # fmt: skip
_PORTS = {"http": 80, "https": 443}


def open_tracer(tracer: object, redactor: Redactor) -> Tracer:
    """A Tracer that makes spans with `tracer`, an OpenTelemetry one, or with the global provider's, for True.

    `redactor` takes secrets out of content.

    Raises: MissingExtra, without OpenTelemetry's API; ConfigurationError, where there is no global provider;
    UsageError, if `tracer` is neither.
    """
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise MissingExtra("opentelemetry-api", "otel") from error
    if tracer is True:
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            raise ConfigurationError(
                "nobody takes traces: no OpenTelemetry tracer provider is set up; set one up first, or run under "
                "opentelemetry-instrument"
            )
        tracer = trace.get_tracer("evaluator")
    if not isinstance(tracer, trace.Tracer):
        raise UsageError(f"tracer is {tracer!r}, expected an OpenTelemetry Tracer, or True for the global provider's")
    captures = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURING
    return OtelTracer(tracer, redactor if captures else None)


class OtelTracer:
    """See `Tracer`. `redactor` None: content is left out."""

    def __init__(self, tracer: trace.Tracer, redactor: Redactor | None = None) -> None:
        self._tracer = tracer
        self._redactor = redactor

    def batch(self, name: str) -> _Batch:
        return _Batch(self._open(f"batch {name}", {"evaluator.batch.name": name}), self._redactor)

    def sample(self, sample_id: str, epoch: int, template: str, variant: str) -> _Sample:
        said = {
            "evaluator.sample.id": sample_id, "evaluator.epoch": epoch, "evaluator.template": template,
            "evaluator.variant": variant,
        }  # fmt: skip
        return _Sample(self._open(f"sample {template}", said), self._redactor)

    def task(self, template: str | None, version: str | None, task_id: int | None) -> _Task:
        said = {
            "gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "evaluator",
            "gen_ai.agent.name": template, "gen_ai.agent.version": version, "evaluator.task.id": task_id,
        }  # fmt: skip
        name = "invoke_agent" if template is None else f"invoke_agent {template}"
        return _Task(self._open(name, said), self._redactor)

    def model_call(self, backend: str, label: str, endpoint: str, request: ModelRequest, attempt: int) -> _ModelCall:
        said = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(backend, label),
            "gen_ai.request.model": request.model,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.max_tokens": request.max_output_tokens,
            "gen_ai.request.seed": request.seed,
            "gen_ai.output.type": None if request.schema is None else "json",
            "evaluator.attempt": attempt,
            **_server(endpoint),
        }
        if self._redactor is not None:
            said["gen_ai.input.messages"] = _dumps([_message(message) for message in request.messages], self._redactor)
        return _ModelCall(self._open(f"chat {request.model}", said, is_client=True), self._redactor)

    def tool_call(self, call: ToolCall, tool: Tool | None) -> _ToolCall:
        # The name of a tool that is not there is what a model wrote.
        name = "unknown" if tool is None else tool.spec.name
        said: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id, "gen_ai.tool.description": None if tool is None else tool.spec.description,
        }  # fmt: skip
        if self._redactor is not None:
            said["gen_ai.tool.call.arguments"] = _shown(call.arguments, self._redactor)
        return _ToolCall(self._open(f"execute_tool {name}", said), self._redactor)

    def _open(self, name: str, attributes: Mapping[str, Any], *, is_client: bool = False) -> trace.Span:
        from opentelemetry.trace import SpanKind

        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        return self._tracer.start_span(name, kind=kind, attributes=_known(attributes))


class _Scope:
    """A span that is current inside its context, and ends with it."""

    __slots__ = ("_redactor", "_span", "_token")

    def __init__(self, span: trace.Span, redactor: Redactor | None) -> None:
        self._span = span
        self._redactor = redactor

    def __enter__(self) -> Any:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from opentelemetry import context

        context.detach(self._token)
        if kind is not None:
            self._failed(kind.__name__, str(error))
        self._span.end()

    def _failed(self, kind: str, message: str | None) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR, self._content(message))

    def _content(self, text: str | None) -> str | None:
        """`text` as it may be shown; None where it may not, or there is none."""
        return _shown(text, self._redactor) if text and self._redactor is not None else None

    def _set(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_known(attributes))


class _Batch(_Scope):
    __slots__ = ()

    def ended(self, what: BatchEnd) -> None:
        self._set({
            "evaluator.batch.state": what.state, "evaluator.batch.ran": what.ran, "evaluator.batch.total": what.total,
        })  # fmt: skip
        if what.state != "complete":
            self._failed(what.state, None)


class _Sample(_Scope):
    __slots__ = ()

    def ended(self, what: Evaluated) -> None:
        self._set({"evaluator.verdict": str(what.verdict)})
        for name, score in what.scores.items():
            label = {None: None, True: "pass", False: "fail"}[score.passed]
            self._span.add_event("gen_ai.evaluation.result", _known({
                "gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": score.value,
                "gen_ai.evaluation.score.label": label, "error.type": None if score.error is None else "scorer",
                "gen_ai.evaluation.explanation": self._content(score.explanation),
            }))  # fmt: skip
        if what.failure is not None:
            self._failed(what.failure.kind, what.failure.message)
        elif any(score.error is not None for score in what.scores.values()):
            self._failed("scorer", "; ".join(score.error for score in what.scores.values() if score.error))


class _Task(_Scope):
    __slots__ = ()

    def ended(self, what: TaskResult | TaskError) -> None:
        notes = what.notes
        self._set({
            "gen_ai.request.model": notes.get("model"), "evaluator.cached_calls": notes.get("cached_calls"),
            **_usage(what.usage),
        })  # fmt: skip
        if isinstance(what, TaskError):
            self._failed(what.reason or what.type, what.message)


class _ModelCall(_Scope):
    __slots__ = ()

    def ended(self, what: ModelResponse | ProviderError) -> None:
        if isinstance(what, ProviderError):
            self._set({"http.response.status_code": what.status})
            self._failed(what.kind, what.message)
            return
        said = {
            "gen_ai.response.model": what.model,
            "gen_ai.response.finish_reasons": [what.finish_reason],
            "gen_ai.usage.cache_creation.input_tokens": what.cache_write_tokens,
            **_usage(what.usage),
        }
        if self._redactor is not None:
            answer = _message(what.message())
            if what.reasoning:
                answer["parts"].insert(0, {"type": "reasoning", "content": what.reasoning})
            reason = "tool_call" if what.finish_reason == "tool_calls" else what.finish_reason
            said["gen_ai.output.messages"] = _dumps([{**answer, "finish_reason": reason}], self._redactor)
        self._set(said)


class _ToolCall(_Scope):
    __slots__ = ()

    def ended(self, what: ToolOutcome) -> None:
        if not what.ok:
            self._failed(what.code or "tool_error", what.error)
        else:
            self._set({"gen_ai.tool.call.result": self._content(what.content)})


def provider_of(backend: str, label: str) -> str:
    """The provider's name in the conventions, for the model `label` of a backend of that name.

    The protocol counts, as they want it: a server that speaks OpenAI's is `openai`, whatever it serves.
    """
    if backend == "openai_compatible":
        return "openai"
    prefix, slash, _ = label.partition("/")
    return _PROVIDERS.get(prefix, prefix) if backend == "litellm" and slash else backend


def _server(endpoint: str) -> dict[str, Any]:
    """Host and port, of an endpoint that is a URL."""
    try:
        parts = urlsplit(endpoint)
        if not parts.hostname:
            return {}
        return {"server.address": parts.hostname, "server.port": parts.port or _PORTS.get(parts.scheme)}
    except ValueError:
        return {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "evaluator.cost_usd": usage.cost_usd,
    }


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are unknown: a span has no null."""
    return {name: value for name, value in attributes.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    """A message as the conventions' schema wants it; attachments are left out."""
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.content}] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _loads(call.arguments)}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _dumps(messages: Sequence[dict[str, Any]], redactor: Redactor) -> str:
    return _shown(json.dumps([redactor.redact_value(message) for message in messages], ensure_ascii=False), redactor)


def _shown(text: str, redactor: Redactor) -> str:
    """Without secrets, and without what no exporter could encode."""
    return redactor.redact(text).encode(errors="replace").decode()
