"""Spans of real runs, as an exporter gets them: how they nest, what they are named after, what they keep to themselves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from evaluator import (
    Evaluator,
    ModelResponse,
    ProviderError,
    SimulatedBackend,
    ToolCall,
    UsageError,
    run_batch,
    tool,
)
from evaluator.handler.backends import BACKENDS
from evaluator.handler.otel import CAPTURE, provider_of
from evaluator.handler.tracing import UNTRACED
from tests.conftest import MakeEvaluator

ROOT = Path(__file__).parent.parent
LIBRARY = """
<task name="boss" type="atomic" version="3"><description>delegate</description>
  <tools><tool name="capital"/><tool name="look_up"/></tools>
  <inputs><input name="about" default="x"/></inputs><instructions>boss {{ about }}</instructions></task>
<task name="capital" type="atomic"><description>Name the capital city of a country</description>
  <inputs><input name="country" required="true"/></inputs><instructions>capital of {{ country }}</instructions></task>
<task name="quiz" type="atomic"><description>Answer a quiz question</description>
  <inputs><input name="question" required="true"/></inputs><instructions>quiz {{ question }}</instructions></task>
<task name="number" type="atomic"><description>n</description><instructions>number</instructions>
  <output_format type="json"/></task>
"""
BUSY = ProviderError(
    "HTTP 429: secret sauce", kind="rate_limit", status=429, retryable=True, retry_after_s=0
)


@tool
async def look_up(word: str) -> str:
    """Looks a word up."""
    if word == "nothing":
        raise ValueError("no such word: nothing")
    return f"{word} means secret sauce"


class Traced:
    """An evaluator with a tracer, and the spans that its exporter got, in the order in which they ended."""

    def __init__(self, make_evaluator: MakeEvaluator, script: Any, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")
        self.evaluator = make_evaluator(
            LIBRARY, script=script, tools=[look_up], tracer=self.tracer, **options
        )

    def run(self, name: str, **inputs: Any) -> Any:
        return asyncio.run(self.evaluator.evaluate(name, inputs))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> list[Any]:
        """Names, each with those below it: `[name, [below…]]`, in the order in which they began."""
        spans = sorted(self.spans, key=lambda span: span.start_time or 0)

        def below(parent: int | None) -> list[Any]:
            inside = [s for s in spans if (s.parent.span_id if s.parent else None) == parent]
            return [
                [s.name, below(s.context.span_id)] if below(s.context.span_id) else s.name
                for s in inside
            ]

        return below(None)


def answering(**answers: Any) -> Any:
    """A script: the answer by the first word of the first prompt; a list is one answer after the other."""
    queues = {key: iter(value) for key, value in answers.items() if isinstance(value, list)}

    def script(request: Any) -> Any:
        word = next(m.content for m in request.messages if m.role == "user").split()[0]
        return next(queues[word]) if word in queues else answers[word]

    return script


def call(name: str, **arguments: Any) -> ModelResponse:
    return ModelResponse("", "tool_calls", (ToolCall("c1", name, json.dumps(arguments)),))


def test_a_subtask_is_a_task_below_the_tool_call_that_asked_for_it(
    make_evaluator: MakeEvaluator,
) -> None:
    traced = Traced(
        make_evaluator, answering(boss=[call("capital", country="Peru"), "done"], capital="Lima")
    )
    assert traced.run("boss").content == "done"
    model = "chat simulated"
    assert traced.tree() == [
        [
            "invoke_agent boss",
            [model, ["execute_tool capital", [["invoke_agent capital", [model]]]], model],
        ]
    ]


def test_a_model_call_says_what_was_asked_and_what_it_took(make_evaluator: MakeEvaluator) -> None:
    traced = Traced(make_evaluator, answering(capital="Lima"))
    result = traced.run("capital", country="Peru")
    span = traced.named("chat simulated")
    assert span.kind is SpanKind.CLIENT and span.status.status_code is StatusCode.UNSET
    attributes = dict(span.attributes or {})
    assert (
        attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "simulated",
            "gen_ai.request.model": "simulated",
            "gen_ai.request.seed": 0,
            "gen_ai.response.finish_reasons": ("stop",),
            "evaluator.attempt": 1,
            "gen_ai.usage.input_tokens": result.usage.input_tokens,
            "gen_ai.usage.output_tokens": result.usage.output_tokens,
            "evaluator.cost_usd": 0.0,
        }.items()
    )
    assert "gen_ai.request.temperature" not in attributes, "what is not set is left out"
    task = dict(traced.named("invoke_agent capital").attributes or {})
    assert (task["gen_ai.agent.name"], task["evaluator.task.id"]) == ("capital", result.task_id)
    assert task["gen_ai.usage.input_tokens"] == result.usage.input_tokens


def test_a_task_says_which_version_of_its_template_it_is_of(make_evaluator: MakeEvaluator) -> None:
    traced = Traced(make_evaluator, answering(boss="done"))
    traced.run("boss")
    assert (traced.named("invoke_agent boss").attributes or {})["gen_ai.agent.version"] == "3"


def test_each_attempt_is_a_span_and_a_failed_one_has_its_error(
    make_evaluator: MakeEvaluator,
) -> None:
    traced = Traced(make_evaluator, answering(capital=[BUSY, "Lima"]))
    assert traced.run("capital", country="Peru").ok
    first, second = [span for span in traced.spans if span.name.startswith("chat")]
    assert (
        first.status.status_code is StatusCode.ERROR
        and second.status.status_code is StatusCode.UNSET
    )
    said = dict(first.attributes or {})
    assert (said["evaluator.attempt"], said["error.type"], said["http.response.status_code"]) == (
        1,
        "rate_limit",
        429,
    )
    assert (second.attributes or {})["evaluator.attempt"] == 2
    assert traced.named("invoke_agent capital").status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("name", "answer", "kind"),
    [
        ("capital", ProviderError("no", kind="authentication", status=401), "provider_failure"),
        ("number", "", "output_format_failure"),
    ],
)
def test_a_task_that_fails_has_the_error_s_reason(
    make_evaluator: MakeEvaluator, name: str, answer: Any, kind: str
) -> None:
    traced = Traced(make_evaluator, lambda request: answer)
    outcome = traced.run(name, **({"country": "Peru"} if name == "capital" else {}))
    span = traced.named(f"invoke_agent {name}")
    assert not outcome.ok and span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == kind == outcome.reason


@pytest.mark.parametrize(
    ("called", "name", "failed"),
    [
        (call("look_up", word="salt"), "execute_tool look_up", False),
        (call("look_up", word="nothing"), "execute_tool look_up", True),
        (call("my secret sauce", word="x"), "execute_tool unknown", True),
    ],
)
def test_a_tool_call_is_a_span_with_the_tool_s_name(
    make_evaluator: MakeEvaluator, called: Any, name: str, failed: bool
) -> None:
    traced = Traced(make_evaluator, answering(boss=[called, "done"]))
    assert traced.run("boss").ok
    span = traced.named(name)
    said = dict(span.attributes or {})
    assert (said["gen_ai.operation.name"], said["gen_ai.tool.call.id"]) == ("execute_tool", "c1")
    assert (span.status.status_code is StatusCode.ERROR) is failed is ("error.type" in said)


def test_a_cancelled_run_ends_its_spans_with_that_error(make_evaluator: MakeEvaluator) -> None:
    begun = asyncio.Event()

    class Waiting(SimulatedBackend):
        async def complete(self, request: Any, **_: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    traced = Traced(make_evaluator, None, backend=Waiting())

    async def run() -> None:
        task = asyncio.ensure_future(traced.evaluator.evaluate("boss"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert [s.name for s in traced.spans] == ["chat simulated", "invoke_agent boss"]
    assert {(s.attributes or {})["error.type"] for s in traced.spans} == {"CancelledError"}


def test_a_batch_holds_its_samples_each_with_its_own_run_and_its_scores(
    make_evaluator: MakeEvaluator, tmp_path: Path
) -> None:
    def answer(request: Any) -> Any:
        question = request.messages[-1].content.split()[-1]
        return (
            ProviderError("broken", kind="bad_request") if question == "q3" else f"a{question[1:]}"
        )

    rows = [
        {"id": f"r{n}", "question": f"q{n}", "target": "a1" if n < 3 else None} for n in range(1, 5)
    ]

    class Real(SimulatedBackend):
        name = "real"  # type: ignore[assignment]

    traced = Traced(make_evaluator, None, backend=Real(script=answer))
    batch = run_batch(
        "quiz",
        rows,
        evaluator=traced.evaluator,
        name="small",
        scorers=["exact"],
        output=tmp_path / "b",
    )
    result = asyncio.run(batch)
    assert result.is_complete
    run = ["sample quiz", [["invoke_agent quiz", ["chat real"]]]]
    assert traced.tree() == [["batch small", [run] * 4]]
    batch = dict(traced.named("batch small").attributes or {})
    assert (
        batch["evaluator.batch.state"],
        batch["evaluator.batch.ran"],
        batch["evaluator.batch.total"],
    ) == (
        "complete",
        4,
        4,
    )
    samples = {
        dict(s.attributes or {})["evaluator.sample.id"]: s
        for s in traced.spans
        if s.name == "sample quiz"
    }
    verdicts = {name: dict(s.attributes or {})["evaluator.verdict"] for name, s in samples.items()}
    assert verdicts == {"r1": "passed", "r2": "failed", "r3": "error", "r4": "unscored"}
    scores = {
        name: [dict(event.attributes or {}) for event in s.events] for name, s in samples.items()
    }
    named = {"gen_ai.evaluation.name": "exact"}
    assert scores["r1"] == [
        {**named, "gen_ai.evaluation.score.value": 1.0, "gen_ai.evaluation.score.label": "pass"}
    ]
    assert scores["r2"][0]["gen_ai.evaluation.score.label"] == "fail"
    assert (scores["r3"], scores["r4"]) == ([], [named]), "nothing is made a zero"
    assert samples["r3"].status.status_code is StatusCode.ERROR
    assert samples["r2"].status.status_code is StatusCode.UNSET, "a wrong answer is no error"


def test_the_caller_s_span_is_above_ours_from_sync_code_too(make_evaluator: MakeEvaluator) -> None:
    traced = Traced(make_evaluator, answering(boss="done"))
    with traced.tracer.start_as_current_span("mine"):
        traced.evaluator.evaluate_sync("boss")
    assert traced.tree() == [["mine", [["invoke_agent boss", ["chat simulated"]]]]]


def test_a_replay_calls_nothing_and_traces_nothing(make_evaluator: MakeEvaluator) -> None:
    traced = Traced(make_evaluator, answering(boss="done"))
    number = traced.run("boss").task_id
    before = len(traced.spans)
    asyncio.run(traced.evaluator.replay(number))
    assert len(traced.spans) == before == 2


# -- content ---------------------------------------------------------------------------------------------------------


def a_talkative_run(make_evaluator: MakeEvaluator) -> Traced:
    """Prompt, arguments, result, error messages and answer all hold the words `secret sauce`."""
    script = answering(
        boss=[BUSY, call("look_up", word="salt and secret sauce"), "all is secret sauce"]
    )
    traced = Traced(make_evaluator, script)
    assert traced.run("boss", about="the secret sauce").ok
    return traced


@pytest.mark.parametrize("value", [None, "", "false", "NO_CONTENT", "EVENT_ONLY"])
def test_content_stays_out_of_spans(
    make_evaluator: MakeEvaluator, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(CAPTURE, raising=False)
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)
    traced = a_talkative_run(make_evaluator)
    assert len(traced.spans) == 5
    assert "sauce" not in "".join(span.to_json() for span in traced.spans)


@pytest.mark.parametrize("value", ["true", "True", "SPAN_ONLY", "SPAN_AND_EVENT"])
def test_content_is_there_where_it_was_asked_for(
    make_evaluator: MakeEvaluator, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(CAPTURE, value)
    traced = a_talkative_run(make_evaluator)
    failed, called, answered = [span for span in traced.spans if span.name.startswith("chat")]
    assert failed.status.description == "HTTP 429: secret sauce"
    asked = json.loads(str((called.attributes or {})["gen_ai.input.messages"]))
    assert asked[-1]["role"] == "user" and "the secret sauce" in asked[-1]["parts"][0]["content"]
    word = {"word": "salt and secret sauce"}
    part = {"type": "tool_call", "id": "c1", "name": "look_up", "arguments": word}
    assert json.loads(str((called.attributes or {})["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [part], "finish_reason": "tool_call"}
    ]
    told = json.loads(str((answered.attributes or {})["gen_ai.input.messages"]))[-1]
    assert (
        told["parts"][0]["type"] == "tool_call_response"
        and "means secret sauce" in told["parts"][0]["response"]
    )
    used = dict(traced.named("execute_tool look_up").attributes or {})
    assert json.loads(str(used["gen_ai.tool.call.arguments"])) == word
    assert "means secret sauce" in str(used["gen_ai.tool.call.result"])


def test_secrets_and_what_cannot_be_encoded_are_not_exported(
    make_evaluator: MakeEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    monkeypatch.setenv("SOME_API_KEY", "k-0123456789abcdefghij")
    traced = Traced(make_evaluator, answering(boss="it is k-0123456789abcdefghij \ud83d"))
    traced.run("boss", about="k-0123456789abcdefghij")
    shown = "".join(span.to_json() for span in traced.spans)
    assert "k-0123" not in shown and shown.count("redacted:SOME_API_KEY") >= 2
    for span in traced.spans:
        for value in (span.attributes or {}).values():
            str(value).encode()


# -- names -----------------------------------------------------------------------------------------------------------


def test_every_name_is_one_of_the_conventions(
    make_evaluator: MakeEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    traced = a_talkative_run(make_evaluator)
    used = {name for span in traced.spans for name in span.attributes or {}}
    known = {
        v
        for name, v in vars(gen_ai_attributes).items()
        if name.startswith("GEN_AI") and isinstance(v, str)
    }
    assert used - known - {"error.type", "http.response.status_code"} == {
        "evaluator.attempt",
        "evaluator.task.id",
        "evaluator.cost_usd",
    }
    assert "gen_ai.system" not in used, "its old name"


@pytest.mark.parametrize(
    ("backend", "label", "provider"),
    [
        ("openai_compatible", "openai/gpt-4o", "openai"),
        ("openai_compatible", "local/qwen", "openai"),
        ("litellm", "anthropic/claude-haiku-4-5", "anthropic"),
        ("litellm", "bedrock/anthropic.claude", "aws.bedrock"),
        ("litellm", "gemini/gemini-2.5-flash", "gcp.gemini"),
        ("litellm", "mistral/mistral-small-latest", "mistral_ai"),
        ("litellm", "someone/new", "someone"),
        ("simulated", "simulated/default", "simulated"),
        ("mine", "openai/gpt-4o", "mine"),
    ],
)
def test_a_provider_has_its_name_of_the_conventions(
    backend: str, label: str, provider: str
) -> None:
    assert provider_of(backend, label) == provider


def test_the_models_of_any_backend_with_several_providers_name_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BACKENDS, "acme", replace(BACKENDS["litellm"], has_providers=True))
    assert provider_of("acme", "gemini/gemini-2.5-flash") == "gcp.gemini"
    monkeypatch.setitem(BACKENDS, "acme", replace(BACKENDS["litellm"], has_providers=False))
    assert provider_of("acme", "gemini/gemini-2.5-flash") == "acme"


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [
        ("https://api.openai.com/v1", "api.openai.com", 443),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 8000),
        ("anthropic", None, None),
        ("http://[bad", None, None),
    ],
)
def test_a_server_is_named_where_the_endpoint_is_a_url(
    make_evaluator: MakeEvaluator, endpoint: str, address: str | None, port: int | None
) -> None:
    backend = SimulatedBackend(script=["done"])
    backend.endpoint = endpoint  # type: ignore[attr-defined]
    traced = Traced(make_evaluator, None, backend=backend)
    assert traced.run("boss").ok
    said = dict(traced.named("chat simulated").attributes or {})
    assert (said.get("server.address"), said.get("server.port")) == (address, port)


# -- off, unless asked for -------------------------------------------------------------------------------------------


def test_without_a_tracer_nothing_is_traced_and_nothing_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from evaluator import Evaluator, run_batch_sync\n"
        "e = Evaluator(handler='offline', tasks_dir=None)\n"
        "run_batch_sync('answer_question', [{'question': 'x'}], evaluator=e, output=sys.argv[1]).results()\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry') or m == 'evaluator.handler.otel'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]"


PROVIDER = (
    "from opentelemetry import trace\n"
    "from opentelemetry.sdk.trace import TracerProvider\n"
    "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
    "provider = TracerProvider(); trace.set_tracer_provider(provider)\n"
    "provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda s: s.name + '\\n')))\n"
)
PYTHON = "from evaluator import Evaluator\ne = Evaluator(handler='offline', tasks_dir=None, tracer=True)\n"


@pytest.mark.parametrize(
    ("code", "spans"),
    [
        (
            PYTHON + "e.evaluate_sync('summarise', {'document': 'x'})",
            ["chat simulated/default", "invoke_agent summarise"],
        ),
        (
            "import sys; from evaluator.cli import main\n"
            "main(['run', '--template', 'summarise', '-i', 'document=x', '--handler', 'offline', '--trace'])",
            ["chat simulated/default", "invoke_agent summarise"],
        ),
        (
            "import sys; from evaluator.cli import main; open('rows.jsonl', 'w').write('{\"question\": \"x\"}')\n"
            "main(['batch', '--template', 'answer_question', '--rows', 'rows.jsonl', '--handler', 'offline', '--trace'])",
            [
                "chat simulated/default",
                "invoke_agent answer_question",
                "sample answer_question",
                "batch answer_question",
            ],
        ),
    ],
)
def test_true_and_the_option_mean_the_global_provider(
    tmp_path: Path, code: str, spans: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROVIDER + code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    kinds = ("chat", "invoke_agent", "sample ", "batch ")
    assert [line for line in done.stdout.splitlines() if line.startswith(kinds)] == spans


def test_where_nobody_takes_traces_asking_for_them_is_an_error(tmp_path: Path) -> None:
    command = [
        "run",
        "--template",
        "summarise",
        "-i",
        "document=x",
        "--handler",
        "offline",
        "--trace",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 3
    assert (
        "no OpenTelemetry tracer provider is set up" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from evaluator import Evaluator, MissingExtra\n"
        "try: Evaluator(handler='offline', tasks_dir=None, tracer=True)\n"
        "except MissingExtra as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == (
        "opentelemetry-api is not installed; install it with: pip install 'evaluator[otel]'"
    )


@pytest.mark.parametrize("tracer", ["true", False, object()])
def test_what_is_no_tracer_is_refused(tracer: Any) -> None:
    with pytest.raises(UsageError, match="expected an OpenTelemetry Tracer, or True"):
        Evaluator(handler="offline", tasks_dir=None, tracer=tracer)


def test_the_null_tracer_holds_nothing() -> None:
    spans = [
        UNTRACED.batch("b"),
        UNTRACED.sample("s", 1, "t", "v"),
        UNTRACED.task(None, None, None),
    ]
    assert len({id(span) for span in spans}) == 1
    with spans[0] as span:
        span.set_result(None)  # type: ignore[arg-type]
    assert spans[0].__exit__(KeyError, KeyError(), None) is None, "what is raised inside goes on"
