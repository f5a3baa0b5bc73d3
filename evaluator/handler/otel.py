"""A Tracer for OpenTelemetry, named after its semantic conventions for generative AI.

Follows the conventions as of version 1.44 (status: Development;
opentelemetry.io/docs/specs/semconv/gen-ai, and the repository
open-telemetry/semantic-conventions-genai): a task is `invoke_agent TEMPLATE`, an attempt at a model
call `chat MODEL`, a tool call `execute_tool NAME`, a score the event `gen_ai.evaluation.result`.
What the conventions do not name is `evaluator.…`: batches, samples, attempts, task ids, cost.

The texts of people and models (prompts, answers, arguments and results of tools, explanations,
messages of errors) are
content: spans hold it only where the variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
asks for it, and redacted as task files are. Without content an error is its kind. The tracer
provider exports the spans.

Names and ids come from rows, models and servers too: they are redacted, short, and without control
characters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from evaluator.errors import ConfigurationError, MissingExtra, ProviderError, UsageError
from evaluator.errors.messages import cut, visible
from evaluator.errors.results import Outcome, TaskError, Usage
from evaluator.handler.backends import declared
from evaluator.handler.tracing import Tracer
from evaluator.models.backend import Message, ModelRequest, ModelResponse, ToolCall

if TYPE_CHECKING:
    from opentelemetry import trace

    from evaluator.record.redact import Redactor
    from evaluator.tools import Tool
    from evaluator.tools.tool import ToolOutcome

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = ("true", "span_only", "span_and_event")
# Prefixes of model names for which the conventions have another name.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
# Their texts were redacted one by one.
_CONTENT = frozenset(
    {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.evaluation.explanation",
    }
)
_MAX_CONTENT_CHARS = 1_000_000
_MAX_CHARS = 1_000
_MAX_ITEMS = 100
_PORTS = {"http": 80, "https": 443}


def open_tracer(tracer: object, redactor: Redactor) -> Tracer:
    """A Tracer that opens spans with `tracer`, an OpenTelemetry tracer, or True for the global
    provider's.

    `redactor` removes secrets from content.

    Raises: MissingExtra, without OpenTelemetry's API; ConfigurationError, where there is no global
    provider; UsageError, if `tracer` is neither.
    """
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise MissingExtra("opentelemetry-api", "otel") from error
    if tracer is True:
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            raise ConfigurationError(
                "no OpenTelemetry tracer provider is set up: set one up first, or run under "
                "opentelemetry-instrument"
            )
        tracer = trace.get_tracer("evaluator")
    if not isinstance(tracer, trace.Tracer):
        raise UsageError(
            f"tracer is {tracer!r}, expected an OpenTelemetry Tracer, or True for the global "
            "provider's"
        )
    captures = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURING
    return OtelTracer(tracer, redactor, captures=captures)


class OtelTracer:
    """See `Tracer`. `captures`: spans hold content."""

    def __init__(self, tracer: trace.Tracer, redactor: Redactor, *, captures: bool) -> None:
        self._tracer = tracer
        self._redactor = redactor
        self._captures = captures

    def batch(self, name: str) -> _OtelSpan:
        return self._open(f"batch {name}", {"evaluator.batch.name": name}, report=_report_batch)

    def sample(self, sample_id: str, epoch: int, template: str, variant: str) -> _OtelSpan:
        attributes = {
            "evaluator.sample.id": sample_id,
            "evaluator.epoch": epoch,
            "evaluator.template": template,
            "evaluator.variant": variant,
        }
        return self._open(f"sample {template}", attributes, report=_report_sample)

    def task(self, template: str | None, version: str | None, task_id: int | None) -> _OtelSpan:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "evaluator",
            "gen_ai.agent.name": template,
            "gen_ai.agent.version": version,
            "evaluator.task.id": task_id,
        }
        if template is None:
            name = "invoke_agent"
        else:
            name = f"invoke_agent {template}"
        return self._open(name, attributes, report=_report_task)

    def model_call(
        self, backend: str, label: str, endpoint: str, request: ModelRequest, attempt: int
    ) -> _OtelSpan:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(backend, label),
            "gen_ai.request.model": request.model,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.top_p": request.top_p,
            "gen_ai.request.top_k": request.top_k,
            "gen_ai.request.stop_sequences": request.stop or None,
            "gen_ai.request.max_tokens": request.max_output_tokens,
            "gen_ai.request.seed": request.seed,
            "gen_ai.output.type": None if request.schema is None else "json",
            "evaluator.attempt": attempt,
            **_server(endpoint),
        }
        if self._captures:
            messages = [_message(message) for message in request.messages]
            attributes["gen_ai.input.messages"] = _redacted_json(messages, self._redactor)
        return self._open(
            f"chat {request.model}", attributes, report=_report_model_call, is_client=True
        )

    def tool_call(self, call: ToolCall, tool: Tool | None) -> _OtelSpan:
        # The name of a tool that does not exist is content: a model wrote it.
        if tool is None:
            name = "unknown"
        else:
            name = tool.spec.name
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.description": None if tool is None else tool.spec.description,
        }
        if self._captures:
            attributes["gen_ai.tool.call.arguments"] = _redacted(call.arguments, self._redactor)
        return self._open(f"execute_tool {name}", attributes, report=_report_tool_call)

    def _open(
        self,
        name: str,
        attributes: Mapping[str, Any],
        report: Callable[[_OtelSpan, Any], None],
        *,
        is_client: bool = False,
    ) -> _OtelSpan:
        from opentelemetry.trace import SpanKind

        if is_client:
            kind = SpanKind.CLIENT
        else:
            kind = SpanKind.INTERNAL
        span = self._tracer.start_span(
            _identifier(name, self._redactor),
            kind=kind,
            attributes=_exportable(attributes, self._redactor),
        )
        return _OtelSpan(span, self._redactor, report=report, captures=self._captures)


class _OtelSpan:
    """A TraceSpan that is the current OpenTelemetry span inside its context. `report` sets
    attributes for a result.
    """

    __slots__ = ("_report", "_token", "captures", "otel_span", "redactor")

    def __init__(
        self,
        span: trace.Span,
        redactor: Redactor,
        report: Callable[[_OtelSpan, Any], None],
        *,
        captures: bool,
    ) -> None:
        self.otel_span = span
        self.redactor = redactor
        self.captures = captures
        self._report = report

    def __enter__(self) -> _OtelSpan:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self.otel_span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        from opentelemetry import context

        context.detach(self._token)
        if kind is not None:
            self.fail(kind.__name__, str(error))
        self.otel_span.end()

    def set_result(self, result: Any) -> None:
        self._report(self, result)

    def fail(self, kind: str, message: str | None) -> None:
        from opentelemetry.trace import StatusCode

        self.set({"error.type": kind})
        self.otel_span.set_status(StatusCode.ERROR, self.content(message))

    def content(self, text: str | None) -> str | None:
        """`text`, redacted; None where spans hold no content."""
        if text and self.captures:
            return _redacted(text, self.redactor)
        return None

    def set(self, attributes: Mapping[str, Any]) -> None:
        self.otel_span.set_attributes(_exportable(attributes, self.redactor))


def _report_batch(span: _OtelSpan, ended: Any) -> None:
    span.set(
        {
            "evaluator.batch.state": ended.state,
            "evaluator.batch.ran": ended.ran,
            "evaluator.batch.total": ended.total,
        }
    )
    if ended.state != "complete":
        span.fail(ended.state, None)


def _report_sample(span: _OtelSpan, result: Any) -> None:
    span.set({"evaluator.verdict": str(result.verdict)})
    for name, score in result.scores.items():
        label = {None: None, True: "pass", False: "fail"}[score.passed]
        span.otel_span.add_event(
            "gen_ai.evaluation.result",
            _exportable(
                {
                    "gen_ai.evaluation.name": name,
                    "gen_ai.evaluation.score.value": score.value,
                    "gen_ai.evaluation.score.label": label,
                    "error.type": None if score.error is None else "scorer",
                    "gen_ai.evaluation.explanation": span.content(score.explanation),
                },
                span.redactor,
            ),
        )
    errors = [score.error for score in result.scores.values() if score.error is not None]
    if result.failure is not None:
        span.fail(result.failure.kind, result.failure.message)
    elif errors:
        span.fail("scorer", "; ".join(filter(None, errors)))


def _report_task(span: _OtelSpan, outcome: Outcome) -> None:
    notes = outcome.notes
    span.set(
        {
            "gen_ai.request.model": notes.get("model"),
            "evaluator.cached_calls": notes.get("cached_calls"),
            "evaluator.interrupted_calls": notes.get("interrupted_calls"),
            **_usage(outcome.usage),
        }
    )
    if isinstance(outcome, TaskError):
        span.fail(outcome.reason or outcome.type, outcome.message)


def _report_model_call(span: _OtelSpan, result: ModelResponse | ProviderError) -> None:
    if isinstance(result, ProviderError):
        span.set({"http.response.status_code": result.status})
        span.fail(result.kind, result.message)
        return
    attributes = {
        "gen_ai.response.model": result.model,
        "gen_ai.response.finish_reasons": [result.finish_reason],
        **_usage(result.usage),
    }
    if span.captures:
        answer = _message(result.message())
        if result.reasoning:
            answer["parts"].insert(0, {"type": "reasoning", "content": result.reasoning})
        if result.finish_reason == "tool_calls":
            answer["finish_reason"] = "tool_call"
        else:
            answer["finish_reason"] = result.finish_reason
        attributes["gen_ai.output.messages"] = _redacted_json([answer], span.redactor)
    span.set(attributes)


def _report_tool_call(span: _OtelSpan, outcome: ToolOutcome) -> None:
    if outcome.ok:
        span.set({"gen_ai.tool.call.result": span.content(outcome.content)})
    else:
        span.fail(outcome.code or "tool_error", outcome.error)


def provider_of(backend: str, label: str) -> str:
    """The provider's name in the conventions, for the model `label` of the backend `backend`.

    The conventions name the protocol: a server that speaks OpenAI's is `openai`, whatever it
    serves.
    """
    if backend == "openai_compatible":
        return "openai"
    declaration, (prefix, slash, _) = declared(backend), label.partition("/")
    if declaration is not None and declaration.has_providers and slash:
        return _PROVIDERS.get(prefix, prefix)
    return backend


def _server(endpoint: str) -> dict[str, Any]:
    """Host and port of an endpoint that is a URL."""
    try:
        parts = urlsplit(endpoint)
        if not parts.hostname:
            return {}
        return {
            "server.address": parts.hostname,
            "server.port": parts.port or _PORTS.get(parts.scheme),
        }
    except ValueError:
        return {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "evaluator.cost_usd": usage.cost_usd,
    }


def _exportable(attributes: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """The known attributes, as a span has no null, with their texts as an exporter may show
    them.
    """
    exportable: dict[str, Any] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if name in _CONTENT:
            value = cut(value, _MAX_CONTENT_CHARS)
        elif isinstance(value, str):
            value = _identifier(value, redactor)
        elif isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)[:_MAX_ITEMS]
            value = [_identifier(str(item), redactor) for item in items]
        exportable[name] = value
    return exportable


def _identifier(text: str, redactor: Redactor) -> str:
    """A name or an id: short, on one line, without control characters and secrets."""
    return cut(visible(_redacted(text, redactor), one_line=True), _MAX_CHARS)


def _message(message: Message) -> dict[str, Any]:
    """A message in the conventions' schema, without attachments."""
    if message.role == "tool":
        answer = {
            "type": "tool_call_response",
            "id": message.tool_call_id,
            "response": message.content,
        }
        return {"role": "tool", "parts": [answer]}
    parts: list[dict[str, Any]]
    if message.content:
        parts = [{"type": "text", "content": message.content}]
    else:
        parts = []
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


def _redacted_json(messages: Sequence[dict[str, Any]], redactor: Redactor) -> str:
    values = [redactor.redact_value(message) for message in messages]
    return _redacted(json.dumps(values, ensure_ascii=False), redactor)


def _redacted(text: str, redactor: Redactor) -> str:
    """`text` without secrets and without surrogates, which no exporter could encode."""
    return redactor.redact(text).encode(errors="replace").decode()
