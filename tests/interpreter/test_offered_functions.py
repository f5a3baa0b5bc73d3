"""`<tools from>`: functions from a row are offered natively, nothing is run, and the calls are the answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    LiteLLMBackend,
    OpenAICompatibleBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
    ToolGrant,
    run_batch_sync,
)
from evaluator.library import bound
from evaluator.testing import Answer, LoopbackServer
from evaluator.xml.write import to_xml

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ASK = """<task name="ask" type="atomic"><description>Call a function</description>
<instructions>{{ question }}</instructions><tools from="functions"/>
<inputs><input name="question"/><input name="functions"/></inputs></task>"""
DATA = {
    "type": "dict",
    "properties": {"n": {"type": "float"}, "of": {"type": "tuple", "items": {"type": "any"}}},
    "required": ["n"],
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "number"}, "of": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
}
ROOT = {"name": "math.root", "description": "A root", "parameters": DATA}
READ = {"type": "function", "function": {"name": "read_file"}}
CALLED = [("a", "math_root", '{"n": 4}'), ("b", "read_file", '{"path": "secret.txt"}')]
CALLS = [
    {"name": "math.root", "arguments": {"n": 4}},
    {"name": "read_file", "arguments": {"path": "secret.txt"}},
]


def ask(
    functions: Any,
    *replies: Answer,
    wire: Any = OpenAICompatibleBackend,
    tasks: Path | None = None,
    xml: str = ASK,
    **config: Any,
) -> tuple[Any, list[dict[str, Any]]]:
    async def run(url: str) -> Any:
        library = TemplateLibrary()
        library.add(xml)
        backend = wire(base_url=url)
        profile = HandlerConfig(
            **{"name": "p", "model": "openai/m" if wire is LiteLLMBackend else "m", **config}
        )
        try:
            return await Evaluator(library, profile, backend=backend, tasks_dir=tasks).evaluate(
                "ask", {"question": "?", "functions": functions}
            )
        finally:
            await backend.aclose()

    with LoopbackServer(*replies) as server:
        outcome = asyncio.run(run(server.base_url))
        assert server.posts == len(server.bodies)
        return outcome, server.bodies


@pytest.mark.parametrize("wire", [OpenAICompatibleBackend, LiteLLMBackend])
@pytest.mark.parametrize("as_text", [False, True])
def test_functions_of_a_row_are_offered_and_the_calls_are_the_answer(
    wire: Any, as_text: bool, tmp_path: Path
) -> None:
    functions: Any = [ROOT, READ]
    outcome, bodies = ask(
        json.dumps(functions) if as_text else functions,
        Answer(None, "tool_calls", CALLED),
        wire=wire,
        tasks=tmp_path,
    )
    (body,) = bodies
    assert body["messages"] == [{"role": "user", "content": "?"}]
    assert [tool["function"] for tool in body["tools"]] == [
        {"name": "math_root", "description": "A root", "parameters": SCHEMA},
        {
            "name": "read_file",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    ]
    assert isinstance(outcome, TaskResult)
    assert outcome.parsed_content == json.loads(outcome.content) == CALLS
    assert (outcome.usage.tool_calls, outcome.notes["warnings"]) == (0, [])
    assert [step.start.kind for step in TaskStore(tmp_path).read(1).steps].count("tool") == 0


def test_a_tool_that_the_profile_grants_is_neither_offered_nor_run(tmp_path: Path) -> None:
    granted = (ToolGrant("read_file", "allow"), ToolGrant("run_script", "allow"))
    outcome, (body,) = ask(
        [READ], Answer(None, "tool_calls", CALLED[1:]), tasks=tmp_path, tools=granted
    )
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read_file"]
    assert outcome.parsed_content == CALLS[1:]
    assert [step.start.kind for step in TaskStore(tmp_path).read(1).steps].count("tool") == 0


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (Answer("There is no such function."), "There is no such function.", []),
        (Answer(""), "[]", []),
        (
            Answer(None, "tool_calls", [("a", "math_root", "{4")]),
            None,
            [{"name": "math.root", "arguments": "{4"}],
        ),
        (
            Answer(None, "tool_calls", [("a", "other", "")]),
            None,
            [{"name": "other", "arguments": {}}],
        ),
    ],
)
def test_what_the_model_answers_is_kept(reply: Answer, content: str | None, calls: Any) -> None:
    outcome, _ = ask([ROOT], reply)
    assert isinstance(outcome, TaskResult)
    assert outcome.parsed_content == calls
    assert outcome.content == (content or json.dumps(calls))


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ("no json", "the text is not JSON"),
        (3, "expected a list of functions"),
        ([3], "function 1 is not an object"),
        ([ROOT, {"description": "x"}], "function 2 has no name"),
        ([{"name": "f", "parameters": []}, ROOT], None),
        ([{"name": "f", "parameters": [1]}], "parameters a JSON Schema"),
        ([ROOT, {"name": "math_root"}], "function 2: the name 'math_root' is there twice"),
    ],
)
def test_functions_that_cannot_be_offered_are_an_error_before_the_call(
    functions: Any, words: str | None
) -> None:
    outcome, bodies = ask(functions, Answer("ok"))
    assert len(bodies) == (words is None)
    if words is not None:
        assert isinstance(outcome, TaskError)
        assert outcome.violations[0].code == "invalid-functions"
        assert words in outcome.message
        assert outcome.violations[0].span.line == 2


def test_a_model_without_tool_calling_writes_the_calls_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evaluator.models.text_tools.new_mark", lambda: "test")
    library = TemplateLibrary()
    library.add(ASK)
    text = '<tool_call_test>{"name": "math_root", "arguments": {"n": 4}}</tool_call_test>'
    with LoopbackServer(Answer(text)) as server:
        profile = HandlerConfig(name="p", model="m", base_url=server.base_url, tool_calling="text")
        outcome = Evaluator(library, profile, tasks_dir=None).evaluate_sync(
            "ask", {"question": "?", "functions": [ROOT]}
        )
    assert outcome.parsed_content == CALLS[:1]


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (('from="functions"/>', 'from="nothing"/>'), "undefined-variable", 2),
        (
            ('from="functions"/>', 'from="functions"><tool name="read_file"/></tools>'),
            "calls-are-the-answer",
            1,
        ),
        (("<inputs>", '<output_format type="json"/><inputs>'), "calls-are-the-answer", 1),
        (("<inputs>", "<turns><turn>x</turn></turns><inputs>"), "calls-are-the-answer", 1),
        (('from="functions"/>', 'from="functions +"/>'), None, 2),
    ],
)
def test_lint_names_the_place(
    change: tuple[str, str], code: str | None, line: int, tmp_path: Path
) -> None:
    (tmp_path / "a.xml").write_text(ASK.replace(*change))
    found = [
        (one.code, one.span.line) for one in TemplateLibrary.load(tmp_path, shipped=False).errors
    ]
    assert any(each[1] == line and code in (None, each[0]) for each in found), found


def test_the_template_is_written_back_and_makes_one_call() -> None:
    library = TemplateLibrary()
    library.add(ASK)
    node = library.get("ask").node
    again = TemplateLibrary()
    again.add(to_xml(node))
    assert again.get("ask").node.tools_from.source.value == "functions"
    assert bound(node, library, tools_granted=True).max_calls == 1


def test_a_batch_scores_the_calls_of_each_row_with_its_functions(tmp_path: Path) -> None:
    library = TemplateLibrary()
    library.add(ASK)
    rows = [
        {
            "id": "a",
            "question": "root of 4",
            "functions": [ROOT],
            "target": [{"math.root": {"n": [4], "of": [""]}}],
        },
        {"id": "b", "question": "hello", "functions": [ROOT], "target": []},
    ]
    with LoopbackServer(
        Answer(None, "tool_calls", CALLED[:1]), Answer(None, "tool_calls", CALLED[:1])
    ) as server:
        profile = HandlerConfig(name="p", model="m", base_url=server.base_url)
        evaluator = Evaluator(library, profile, tasks_dir=tmp_path / "t")
        result = run_batch_sync(
            "ask", rows, evaluator=evaluator, scorers=["calls"], output=tmp_path / "b"
        )
    found = {sample.sample_id: sample.scores["calls"] for sample in result.results()}
    assert (found["a"].value, found["a"].answer) == (1.0, "math.root(n=4)")
    assert (found["b"].value, found["b"].explanation) == (0.0, "1 call, expected 0")
