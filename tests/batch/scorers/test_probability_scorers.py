"""Scorers of token probabilities, against a server whose model has a table of exact ones."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    BatchResult,
    Evaluator,
    HandlerConfig,
    ModelRequest,
    ModelResponse,
    Outcome,
    SimulatedBackend,
    Status,
    TaskResult,
    TemplateLibrary,
    TokenLogprob,
    Usage,
    UsageError,
    run_batch,
)
from evaluator.batch import SampleResult, Score, score_batch
from evaluator.batch.averages import BrierScore, CalibrationError
from evaluator.batch.scorers import make_scorer
from evaluator.batch.scorers.contract import ScorerInput, run_scorer
from evaluator.batch.scorers.model_graded import GradedScorer
from evaluator.models.logprobs import to_rows
from evaluator.testing import LoopbackServer
from tests.batch.labelled import result_of
from tests.models.table_model import table_server

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "an apple", "choices": ["zoo", "banana cat", "apple"], "target": "B"},
    {"id": "b", "question": "the cat ", "choices": ["dog eel", "eagle", "cat cat"], "target": 2},
]


LM_EVAL: dict[str, list[tuple[float, bool]]] = {
    "a": [
        (-2.772588722239781, False),
        (-1.3862943611198906, True),
        (-2.0794415416798357, False),
    ],
    "b": [
        (-1.3862943611198906, True),
        (-2.772588722239781, False),
        (-4.1588830833596715, False),
    ],
}
"""What lm-eval 0.4.13 computes of the options from the same server, and whether each token is the
most likely one (bench/oracles.py)."""


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with table_server() as running:
        yield running


@pytest.fixture
def evaluator(server: LoopbackServer, tmp_path: Path) -> Evaluator:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "quiz.xml").write_text(QUIZ)
    profile = HandlerConfig(name="table", base_url=server.base_url, model="table", backoff_s=())
    return Evaluator(TemplateLibrary.load(folder), profile, tasks_dir=None)


def _run(evaluator: Evaluator, tmp_path: Path, scorers: list[Any]) -> dict[str, SampleResult]:
    result: BatchResult = asyncio.run(
        run_batch(
            "quiz",
            ROWS,
            evaluator=evaluator,
            scorers=scorers,
            output=tmp_path / "batch",
            metadata=["choices"],
        )
    )
    return {one.sample_id: one for one in result.results()}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"target": "B"}, r"row 'a': the row has no list `choices` or `options` in its inputs"),
        ({"target": "D", "choices": ["zoo", "cat"]}, "row 'a': .*'D'"),
        ({"target": "B", "choices": ["zoo"]}, "row 'a': .*expected 2 to 26 options"),
    ],
)
def test_a_row_that_loglikelihood_cannot_score_is_refused_before_the_first_call(
    evaluator: Evaluator, server: LoopbackServer, tmp_path: Path, row: dict[str, Any], why: str
) -> None:
    rows = [*ROWS[1:], {"id": "a", "question": "an apple", **row}]
    batch = run_batch("quiz", rows, evaluator=evaluator, scorers=["loglikelihood"])
    with pytest.raises(UsageError, match=why):
        asyncio.run(batch)
    assert not server.paths


def test_the_options_of_all_rows_may_be_named(evaluator: Evaluator, tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "an apple", "target": "zoo"}]
    scorer = {"type": "loglikelihood", "choices": ["zoo", "cat"]}
    batch = run_batch(
        "quiz", rows, evaluator=evaluator, scorers=[scorer], output=tmp_path / "batch"
    )
    (found,) = asyncio.run(batch).results()
    assert found.scores["loglikelihood"].answer in ("A", "B")


def test_the_most_likely_option_is_chosen_as_lm_eval_does(
    evaluator: Evaluator, server: LoopbackServer, tmp_path: Path
) -> None:
    scorers = ["loglikelihood", "loglikelihood:normalise=characters,name=norm"]
    found = _run(evaluator, tmp_path, scorers)
    for row in ROWS:
        sums = [value for value, _ in LM_EVAL[row["id"]]]
        own = found[row["id"]].scores["loglikelihood"]
        assert own.error is None, own.error
        given = list(own.metadata["loglikelihoods"].values())
        assert given == [pytest.approx(value, abs=1e-6) for value in sums]
        assert list(own.metadata["greedy"].values()) == [best for _, best in LM_EVAL[row["id"]]]
        assert own.answer == "ABC"[sums.index(max(sums))]
        lengths = [value / len(option) for value, option in zip(sums, row["choices"], strict=True)]
        assert found[row["id"]].scores["norm"].answer == "ABC"[lengths.index(max(lengths))]
        shares = [math.exp(value) for value in sums]
        assert own.metadata["probability"] == pytest.approx(max(shares) / sum(shares), abs=1e-6)
    assert server.paths.count("/v1/completions") == 12


@pytest.mark.parametrize(
    ("text", "expected", "total"),
    [
        ("inputs.question ~ ' bed cow'", 3.1748021039363987, -3.4657359027997265),
        ("'dog eel  fox zoo'", 4.0, -4.1588830833596715),
    ],
)
def test_perplexity_is_that_of_lm_eval(
    text: str, expected: float, total: float, evaluator: Evaluator, tmp_path: Path
) -> None:
    """The numbers are those of lm-eval 0.4.13, from bench/oracles.py."""
    score = _run(evaluator, tmp_path, [f"perplexity:of={text}"])["a"].scores["perplexity"]
    assert score.error is None, score.error
    assert score.value == pytest.approx(expected, abs=1e-6)
    assert score.metadata["loglikelihood"] == pytest.approx(total, abs=1e-6)
    assert {name: score.metadata[name] for name in ("tokens", "words")} == {"tokens": 3, "words": 4}
    assert score.passed is None and not score.decides


def test_a_template_that_asks_for_no_probabilities_is_refused_before_the_first_call(
    evaluator: Evaluator, server: LoopbackServer, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"quiz\.xml:1:1: the scorer 'confidence' reads log"):
        _run(evaluator, tmp_path, ["confidence"])
    assert not server.paths


JUDGE = (
    '<task name="judge" type="atomic"><description>Judge</description>'
    '<inputs><input name="answer" type="string" required="true">it</input></inputs>%s'
    '<instructions>Judge {{ answer }}</instructions><output_format type="json" schema="number"/>'
    "</task>"
)


def test_a_judge_weighs_its_score_by_probability_in_a_batch(tmp_path: Path) -> None:
    top = {"7": math.log(0.75), "9": math.log(0.25)}
    token = TokenLogprob("7", math.log(0.75), top)

    def model(request: ModelRequest) -> ModelResponse | str:
        if "Judge" not in request.messages[-1].content:
            return "an answer"
        return ModelResponse("7", "stop", usage=Usage(1, 1), model="m", logprobs=(token,))

    scorer = {
        "type": "graded",
        "template": "judge",
        "by_probability": True,
        "out_of": 10,
        "inputs": {"answer": "output"},
    }

    def run(handler: str) -> SampleResult:
        (tmp_path / "judge.xml").write_text(f"<library>{QUIZ}{JUDGE % handler}</library>")
        backend = SimulatedBackend(script=model)
        evaluator = Evaluator(TemplateLibrary.load(tmp_path), backend=backend, tasks_dir=None)
        batch = run_batch(
            "quiz", ROWS[:1], evaluator=evaluator, scorers=[scorer], output=tmp_path / "batch"
        )
        return next(iter(asyncio.run(batch).results()))

    with pytest.raises(UsageError, match=r"judge\.xml:1:\d+: .* judge asks for none"):
        run("")
    score = run('<handler logprobs="5"/>').scores["graded"]
    assert score.error is None, score.error
    assert score.value == pytest.approx(0.75 * 0.7 + 0.25 * 0.9)
    assert score.metadata["answered"] == 0.7


def _scored(notes: dict[str, Any]) -> ScorerInput:
    from evaluator.batch import Sample

    async def evaluate(template: str, inputs: Any, **options: Any) -> Outcome:
        return TaskResult(Status.COMPLETE, "x", notes=notes)

    outcome = TaskResult(Status.COMPLETE, "B!", notes=notes)
    return ScorerInput(Sample("s", {"question": "q"}, "t"), outcome, lambda: None, evaluate)


@pytest.mark.parametrize(
    ("take", "value"), [("first", 0.5), ("all", 0.1), ("mean", math.sqrt(0.1))]
)
def test_confidence_is_the_probability_of_the_answer(take: str, value: float) -> None:
    tokens = (TokenLogprob("B", math.log(0.5)), TokenLogprob("!", math.log(0.2)))
    score = asyncio.run(
        run_scorer(make_scorer(f"confidence:take={take}"), _scored({"logprobs": to_rows(tokens)}))
    )
    assert (score.value, score.passed, score.decides) == (pytest.approx(value), None, False)


@pytest.mark.parametrize(
    ("before", "after"),
    [(["[[", " "], ["]]"]), (['{"score": '], [", ", '"reason": "7"}']), ([], [])],
)
def test_a_judges_score_is_weighted_by_the_probabilities_of_its_token(
    before: list[str], after: list[str]
) -> None:
    top = {"7": math.log(0.6), "9": math.log(0.2), " 5": math.log(0.1), "x": math.log(0.1)}
    tokens = [*before, "7", *after]
    if before == ["[[", " "]:
        tokens = ["[[", "7", "]]"]
    rows = to_rows(
        [TokenLogprob(each, math.log(0.6), top if each == "7" else {}) for each in tokens]
    )
    scorer = GradedScorer(template="judge", by_probability=True, out_of=10)
    score = scorer._read_weighted(TaskResult(Status.COMPLETE, "", notes={"logprobs": rows}), 7)
    expected = (0.6 * 7 + 0.2 * 9 + 0.1 * 5) / 0.9
    assert score.value == pytest.approx(expected / 10) and score.metadata["answered"] == 0.7


def test_a_judge_without_probabilities_is_an_error() -> None:
    scorer = make_scorer({"type": "graded", "template": "judge", "by_probability": True})
    scored = _scored({})
    score = asyncio.run(run_scorer(scorer, scored))
    assert score.error is not None
    with pytest.raises(UsageError, match="by_probability is for a score"):
        GradedScorer(template="judge", by_probability=True, grades={"A": 1, "B": 0})


def _confident(place: int, confidence: float, passed: bool) -> SampleResult:
    from dataclasses import replace

    return replace(result_of(place, "x", passed), scores={"sure": Score(confidence, None)})


def test_calibration_of_confidence_is_measured() -> None:
    numpy = pytest.importorskip("numpy")
    rng = numpy.random.default_rng(3)
    sure = rng.random(300)
    right = rng.random(300) < sure**2
    results = [
        _confident(n, float(c), bool(p)) for n, (c, p) in enumerate(zip(sure, right, strict=True))
    ]
    brier = BrierScore(confidence="sure").compute(results)["brier"]
    assert brier.value == pytest.approx(float(numpy.mean((sure - right) ** 2)))
    assert brier.low is not None and brier.low < brier.value and brier.n == 300
    edges = numpy.clip(numpy.ceil(sure * 10) - 1, 0, 9)
    expected = sum(abs(numpy.sum(sure[edges == b] - right[edges == b])) for b in range(10)) / 300
    assert CalibrationError(confidence="sure").compute(results)["ece"].value == pytest.approx(
        expected
    )
    outside = CalibrationError(confidence="sure").compute([_confident(0, 1.5, True)])["ece"]
    assert outside.value is None and "not between 0 and 1" in outside.error
    assert "no result" in CalibrationError(confidence="none").compute(results)["ece"].error


def test_a_metric_of_an_unknown_confidence_is_refused(evaluator: Evaluator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no scorer 'sure'"):
        asyncio.run(
            run_batch(
                "quiz",
                ROWS,
                evaluator=evaluator,
                scorers=["exact"],
                metrics=["ece:confidence=sure"],
            )
        )


def test_options_are_scored_for_a_batch_that_is_finished(
    evaluator: Evaluator, server: LoopbackServer, tmp_path: Path
) -> None:
    _run(evaluator, tmp_path, ["exact"])
    server.paths.clear()
    result = asyncio.run(score_batch(tmp_path / "batch", ["loglikelihood"], evaluator=evaluator))
    assert set(server.paths) == {"/v1/completions"} and result.summary.counts.error == 0
