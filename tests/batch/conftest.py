"""What the tests of batches share: a quiz, an evaluator for it, and a way to run a batch of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, Evaluator, SimulatedBackend, run_batch
from tests.conftest import MakeEvaluator

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>Answer in a word: {{ question }}</instructions></task>"
)
ROWS = [{"id": f"r{n}", "question": f"What is {n} + {n}?", "target": str(2 * n)} for n in range(10)]


class Calls(list[str]):
    """The prompts of a scripted model, in order, and what it answers: `answers` by prompt, else what `otherwise` says."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Any] = {}
        self.otherwise: Callable[[str], Any] = lambda prompt: str(
            2 * int(prompt.split()[-1].rstrip("?"))
        )

    def __call__(self, request: Any) -> Any:
        prompt = request.messages[-1].content
        self.append(prompt)
        return self.answers.get(prompt) or self.otherwise(prompt)


class Scripted(SimulatedBackend):
    """A scripted model that does not answer with a row's target, as a real one."""

    @property
    def name(self) -> str:
        return "scripted"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def quiz(make_evaluator: MakeEvaluator, calls: Calls) -> Evaluator:
    return make_evaluator(QUIZ, backend=Scripted(script=calls))


Run = Callable[..., BatchResult]


@pytest.fixture
def run(quiz: Evaluator, tmp_path: Path) -> Run:
    """`run(rows=…, **options)`: a batch of the quiz in `tmp_path/batch`, with the scorer `includes`."""

    def run(
        rows: Any = ROWS, *, evaluator: Evaluator = quiz, templates: Any = "quiz", **options: Any
    ) -> BatchResult:
        options.setdefault("output", tmp_path / "batch")
        options.setdefault("scorers", ["exact"])
        return asyncio.run(run_batch(templates, rows, evaluator=evaluator, **options))

    return run
