"""What the pytest plugin says of models and their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from evaluator.pytest_plugin.report import summary_line
from evaluator.pytest_plugin.runs import prepare
from tests.pytest_plugin.plugin_run import TEMPLATE, Run

pytest_plugins = ["pytester"]
# Tests run pytests of their own, whose processes are slow on a busy machine.
pytestmark = pytest.mark.timeout(600)


# -- models, and what they cost --------------------------------------------------------------------------------------

GRADED = {"type": "reference", "model": "anthropic/claude-haiku-4-5"}
NAMING: dict[str, Any] = {
    "scorers": ["includes", GRADED],
    "models": ["openai/gpt-4o", "mistral/small"],
    "handlers": ["anthropic"],
    "model_roles": {"grader": "openai/gpt-4o"},
    "library": "library",
}


def test_without_an_option_every_model_is_simulated_whatever_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(variable, "k")
    blocked = (
        "import socket\n"
        "def refused(*_): raise AssertionError('a socket was connected')\n"
        "socket.socket.connect = socket.socket.connect_ex = refused\n"
    )
    done = run(
        f"{blocked}@pytest.mark.evaluator_batch('double', rows=quiz.ROWS[:1], **{NAMING!r})\n"
        "def test_it(batch): assert [result.content for result in batch.results()] == ['2', '2']",
        apart=True,
    )
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(
        [
            "evaluator: 1 batch, 2 samples evaluated, * input and * output tokens, cost 0.0000 US dollars, answers simulated"
        ]
    )


class Options:
    """The options of a pytest, as far as the plugin looks at them."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def getoption(self, name: str) -> Any:
        return self._options.get(name)


@pytest.mark.parametrize(
    ("options", "variable", "variants", "simulated"),
    [
        ({}, None, ["openai/gpt-4o", "mistral/small"], True),
        (
            {"evaluator_live": True},
            None,
            ["openai/gpt-4o @ anthropic", "mistral/small @ anthropic"],
            False,
        ),
        ({"evaluator_model": "groq/x"}, None, ["groq/x"], False),
        ({"evaluator_model": "groq/x", "evaluator_live": True}, "openai/gpt-4o", ["groq/x"], False),
        ({"evaluator_model": "simulated/small"}, None, ["simulated/small"], True),
        ({"evaluator_handler": "offline"}, "openai/gpt-4o", ["openai/gpt-4o"], True),
        ({"evaluator_handler": "anthropic"}, None, ["anthropic/claude-sonnet-4-5"], False),
        ({}, "openai/gpt-4o-mini", ["openai/gpt-4o-mini"], False),
    ],
)
def test_real_models_are_used_only_where_they_are_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    variable: str | None,
    variants: list[str],
    simulated: bool,
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, "k")
    if variable is not None:
        monkeypatch.setenv("EVALUATOR_MODEL", variable)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "t.xml").write_text(TEMPLATE)
    ready = prepare(Options(**options), "double", [{"question": "x"}], NAMING, tmp_path)  # type: ignore[arg-type]
    assert ([cell.variant for cell, _ in ready.plan.cells], ready.is_simulated) == (
        variants,
        simulated,
    )
    ready.evaluator.close()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            {
                "folder": ["a", "b"],
                "samples": [3, 1200],
                "input_tokens": [10, 20],
                "output_tokens": [5, 6],
                "cost_usd": [0.25, 0.5],
                "simulated": [False, True],
            },
            "evaluator: 2 batches, 1,203 samples evaluated, 30 input and 11 output tokens, cost 0.7500 US dollars, "
            "answers of 1 simulated",
        ),
        (
            {
                "folder": ["a", "a"],
                "samples": [1, 0],
                "input_tokens": ["unknown", 0],
                "output_tokens": [5, 0],
                "cost_usd": ["unknown", 0.0],
                "simulated": [False, False],
            },
            "evaluator: 1 batch, 1 sample evaluated, an unknown number of input and 5 output tokens, cost unknown",
        ),
    ],
)
def test_the_summary_says_what_was_used_and_what_is_unknown(
    said: dict[str, Any], line: str
) -> None:
    assert summary_line(said) == line


def test_what_is_unknown_is_a_word_in_junit_and_in_the_summary(
    run: Run, pytester: pytest.Pytester
) -> None:
    done = run(
        "import dataclasses\n"
        "class Unpriced(quiz.Model):\n"
        "    async def complete(self, request, **options):\n"
        "        response = await super().complete(request, **options)\n"
        "        used = dataclasses.replace(response.usage, cost_usd=None, output_tokens=None)\n"
        "        return dataclasses.replace(response, usage=used)\n\n"
        "def made():\n"
        "    backend = Unpriced(script=quiz.answer)\n"
        "    return quiz.Evaluator(quiz.LIBRARY, 'offline', backend=backend, tasks_dir=None)\n\n"
        "@pytest.mark.evaluator_batch('double', rows=quiz.ROWS[:2], evaluator=made(), scorers=['exact'])\n"
        "def test_it(batch): assert batch.ok\n",
        "--junit-xml=junit.xml",
    )
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(
        ["evaluator: 1 batch, 2 samples *and an unknown number of output tokens, cost unknown*"]
    )
    properties = ElementTree.parse(pytester.path / "junit.xml").iter("property")
    said = {each.get("name"): each.get("value") for each in properties}
    assert said["evaluator.cost_usd"] == said["evaluator.output_tokens"] == "unknown"
    assert int(said["evaluator.input_tokens"] or "") > 0 and said["evaluator.samples"] == "2"
