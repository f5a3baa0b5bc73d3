"""Batch summaries: four separate verdicts, n of N for every number, bounded memory, safe text."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Evaluator, Usage, UsageError, run_batch_sync
from evaluator.batch import SampleResult, Score, Verdict
from evaluator.batch.statistics import (
    proportion_of,
    score_interval,
)
from evaluator.batch.summary import summarise, summarise_columns
from evaluator.batch.summary.columns import Columns
from evaluator.batch.summary.rows import ResultBlock, ResultRows
from tests.batch.summary_results import a_result, only, results_of


def test_errors_and_unscored_are_neither_failed_nor_left_out() -> None:
    summary = summarise(results_of("pppfeeu"), total=10)
    accuracy = only(summary).part.accuracy
    assert (accuracy.passed, accuracy.judged, accuracy.of) == (3, 4, 10)
    assert accuracy.estimate == proportion_of(3, 4)
    assert (accuracy.if_failed, accuracy.if_passed) == (pytest.approx(3 / 7), pytest.approx(6 / 7))
    counts = summary.counts
    assert (counts.passed, counts.failed, counts.error, counts.unscored, counts.pending) == (
        3,
        1,
        2,
        1,
        3,
    )
    assert not summary.complete and "3 of 10 results are pending" in summary.notes[0]


@given(st.text("pfeu", max_size=30), st.integers(0, 5))
def test_verdicts_and_pending_make_up_the_total(word: str, more: int) -> None:
    summary = summarise(results_of(word), total=len(word) + more)
    counts = summary.counts
    assert counts.results == len(word) and counts.total == len(word) + more
    assert summary.complete == (more == 0)
    for group in summary.groups:
        accuracy = group.part.accuracy
        assert accuracy.if_failed is not None and accuracy.if_passed is not None
        if accuracy.estimate.mean is not None:
            assert accuracy.if_failed <= accuracy.estimate.mean <= accuracy.if_passed
    json.dumps(summary.to_dict(), allow_nan=False)
    assert summary.to_text(60) and summary.to_markdown()


def test_a_batch_of_errors_only_has_no_accuracy() -> None:
    part = only(summarise(results_of("eee"))).part
    assert part.accuracy.estimate.mean is None and part.accuracy.judged == 0
    assert (part.accuracy.if_failed, part.accuracy.if_passed) == (0, 1)


def test_an_empty_batch_can_be_summarised() -> None:
    summary = summarise([], total=0)
    assert summary.groups == () and summary.complete and summary.durations.p50 is None
    assert "0 of 0 results" in summary.to_text()


def test_the_last_result_of_a_sample_counts_and_the_cost_of_earlier_runs_is_separate() -> None:
    first = a_result("x", "error", usage=Usage(10, 1, cost_usd=0.5), started="a", cached_calls=1)
    retried = a_result("x", "passed", usage=Usage(20, 2, cost_usd=0.25), started="b")
    summary = summarise([first, a_result("y", "failed"), retried])
    assert (summary.counts.passed, summary.counts.error, summary.counts.results) == (1, 0, 2)
    assert summary.spending.cost_usd.total == 0.25 and summary.errors == ()
    assert summary.replaced == 1 and summary.replaced_spending is not None
    assert (
        summary.replaced_spending.cost_usd.total == 0.5
        and summary.replaced_spending.cached_calls == 1
    )
    assert summary.replaced_spending.input_tokens.total == 10
    assert "earlier runs, in addition: cost: $0.5000" in summary.to_text()


def test_with_calls_that_may_be_billed_in_addition_the_cost_is_a_lower_bound() -> None:
    known = a_result("x", "passed", usage=Usage(10, 1, cost_usd=0.5))
    resumed = a_result("y", "passed", usage=Usage(10, 1, cost_usd=0.25), interrupted_calls=2)
    summary = summarise([known, resumed])
    assert summary.spending.interrupted_calls == 2 and summary.spending.cost_usd.total == 0.75
    text = summary.to_text()
    assert (
        "cost: at least $0.7500 (2 calls were in flight when a process ended and may be billed too)"
        in text
    )
    assert "tokens: at least 20 in, 2 out" in text
    assert "cost: $0.5000\n" in summarise([known]).to_text()


def test_interrupted_calls_of_replaced_results_are_separate() -> None:
    first = a_result("x", "error", usage=Usage(cost_usd=0.5), started="a", interrupted_calls=1)
    summary = summarise([first, a_result("x", "passed", started="b")])
    assert summary.spending.interrupted_calls == 0 and summary.replaced_spending is not None
    assert summary.replaced_spending.interrupted_calls == 1
    assert "in addition: cost: at least $0.5000 (1 call was in flight" in summary.to_text()


def test_a_result_that_is_scored_again_is_paid_for_once() -> None:
    first = a_result("x", "failed", usage=Usage(cost_usd=0.5))
    summary = summarise([first, replace(first, verdict=Verdict.PASSED)])
    assert (summary.counts.results, summary.counts.passed, summary.replaced) == (1, 1, 1)
    assert summary.spending.cost_usd.total == 0.5 and summary.replaced_spending is None


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 2), st.sampled_from("pfeu")), max_size=30)
)
def test_duplicates_count_as_if_only_the_last_were_there(lines: list[tuple[int, int, str]]) -> None:
    verdicts = {"p": "passed", "f": "failed", "e": "error", "u": "unscored"}
    results = [
        a_result(
            f"s{sample}",
            verdicts[letter],
            epoch,
            scores={letter: Score(1.0, True)},
            duration_s=place,
        )
        for place, (sample, epoch, letter) in enumerate(lines)
    ]
    last = {(result.sample_id, result.epoch): result for result in results}
    once, twice = summarise(last.values()), summarise(results)
    assert (
        once.counts == twice.counts
        and once.durations == twice.durations
        and once.errors == twice.errors
    )
    for name, scorer in (only(once).part.scorers if results else {}).items():
        assert only(twice).part.scorers[name] == scorer


def test_samples_with_the_same_identity_are_two() -> None:
    results = [
        replace(a_result("a"), identity="same"),
        replace(a_result("b", "failed"), identity="same"),
    ]
    assert summarise(results).counts.results == 2


@pytest.mark.parametrize("total", [1, {("quiz", "small"): 1}, {("quiz", "large"): 5}])
def test_more_results_than_the_total_are_refused(total: Any) -> None:
    with pytest.raises(UsageError):
        summarise(results_of("pp"), total=total)


def test_the_counts_of_a_scorer_add_up() -> None:
    judge = Usage(cost_usd=0.01)
    results = [
        a_result("a", scores={"f1": Score(0.9, True, usage=judge), "exact": Score(1.0, True)}),
        a_result(
            "b", "failed", scores={"f1": Score(0.2, False, usage=judge), "exact": Score(0.0, False)}
        ),
        a_result("c", "unscored", scores={"f1": Score(None, None), "exact": Score(1.0, True)}),
        a_result(
            "d",
            "error",
            failure=None,
            scores={"f1": Score(None, None, error="no judge"), "exact": Score(1.0, True)},
        ),
        a_result("e", "error"),
    ]
    summary = summarise(results)
    f1, exact = only(summary).part.scorers["f1"], only(summary).part.scorers["exact"]
    assert (f1.n, f1.of, f1.errors, f1.unscored, f1.absent) == (2, 5, 1, 1, 1)
    assert f1.value == score_interval([0.9, 0.2]) and f1.pass_rate == proportion_of(1, 2)
    assert (exact.n, exact.absent, exact.value) == (4, 1, proportion_of(3, 4))
    assert [(error.kind, error.count, error.example) for error in summary.errors] == [
        ("execution_timeout", 1, "30 s were not enough"),
        ("scorer f1", 1, "no judge"),
    ]
    assert summary.spending.scoring_cost_usd.total == pytest.approx(0.02)
    assert summary.spending.cost_usd.total == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_an_error_of_its_scorer(bad: float) -> None:
    results = [
        a_result("a", scores={"s": Score(bad, True)}),
        a_result("b", scores={"s": Score(0.5, True)}),
    ]
    summary = summarise(results)
    scorer = only(summary).part.scorers["s"]
    assert (scorer.n, scorer.errors, scorer.value.mean, scorer.passed) == (1, 1, 0.5, 1)
    assert "not a finite number" in summary.errors[0].example


def test_an_unknown_cost_is_never_0() -> None:
    results = [
        a_result("a", usage=Usage(5, 1, cost_usd=0.5)),
        a_result("b", usage=Usage(None, 2, cost_usd=None)),
    ]
    summary = summarise(results)
    cost = summary.spending.cost_usd
    assert (cost.total, cost.known, cost.known_for, cost.of) == (None, 0.5, 1, 2)
    assert summary.spending.input_tokens.total is None and summary.spending.output_tokens.total == 3
    text = summary.to_text(120)
    assert "cost: at least $0.5000, known for 1 of 2 results" in text
    assert "5 (1 of 2 known) in, 3 out" in text


def test_durations_and_tokens_have_percentiles() -> None:
    results = [a_result(f"s{i}", duration_s=float(i), usage=Usage(0, i)) for i in range(101)]
    group = only(summarise(results))
    assert (group.durations.p50, group.durations.p90, group.durations.p99, group.durations.n) == (
        50,
        90,
        99,
        101,
    )
    assert group.output_tokens == group.durations


def test_labels_have_a_confusion_matrix() -> None:
    rows = [
        ("cat", "cat"),
        ("cat", "dog"),
        ("dog", "dog"),
        ("dog", None),
        ("cat", "cow"),
        ("dog", " dog "),
    ]
    results = [
        a_result(f"s{i}", target=target, scores={"choice": Score(0.0, False, answer)})
        for i, (target, answer) in enumerate(rows)
    ]
    summary = summarise([*results, a_result("e", "error", target="cat")])
    confusion = only(summary).confusion["choice"]
    assert confusion.targets == ("cat", "dog") and confusion.answers == ("cat", "cow", "dog")
    assert confusion.counts == ((1, 1, 1), (0, 0, 2)) and confusion.no_answer == (1, 1)
    assert (confusion.n, confusion.of) == (5, 7)
    assert "Answers of choice by target, 5 of 7" in summary.to_text()


@pytest.mark.parametrize(
    "targets",
    [
        [f"a target {i}" for i in range(40)],
        [f"target {i // 2}" for i in range(80)],
        ["one"] * 6,
        [["a"], ["b"]] * 3,
        ["y" * 100, "n"] * 3,
        ["a", "b", "c"],
        [None] * 4,
    ],
)
def test_values_that_are_not_labels_have_no_matrix(targets: list[Any]) -> None:
    results = [
        a_result(f"s{i}", target=target, scores={"s": Score(1.0, True, "a")})
        for i, target in enumerate(targets)
    ]
    assert only(summarise(results)).confusion == {}


def test_true_and_1_are_labels_as_they_are_written() -> None:
    results = [
        a_result(f"s{i}", target=i % 2 == 0, scores={"s": Score(1.0, True, "true")})
        for i in range(4)
    ]
    confusion = only(summarise(results)).confusion["s"]
    assert (confusion.targets, confusion.answers, confusion.counts) == (
        ("false", "true"),
        ("true",),
        ((2,), (2,)),
    )


def test_the_json_has_a_version_and_no_nan() -> None:
    data = summarise(
        results_of("pfeu", scores={"s": Score(0.5, True)}), total=5, group_by="x"
    ).to_dict()
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text)["version"] == 1
    assert {
        "version",
        "complete",
        "counts",
        "groups",
        "spending",
        "duration_s",
        "errors",
        "notes",
    } <= data.keys()
    assert data["groups"][0]["accuracy"]["estimate"]["method"] == "wilson"
    assert data["groups"][0]["counts"]["total"] == 5


def many(count: int) -> Iterator[SampleResult]:
    for i in range(count):
        yield a_result(
            f"sample-{i:08d}",
            "passed" if i % 3 else "failed",
            usage=Usage(100, i, cost_usd=0.001),
            scores={
                "exact": Score(float(i % 3 > 0), i % 3 > 0, "yes"),
                "f1": Score(i % 100 / 100, i % 3 > 0),
            },
            metadata={"level": f"level {i % 7}"},
            target="yes",
            started=f"{i}",
        )


def test_memory_is_a_few_hundred_bytes_for_each_result() -> None:
    tracemalloc.start()
    try:
        summarise(many(8_000), group_by="level")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 8_000 < 300


def test_the_total_is_unknown_unless_it_is_given() -> None:
    summary = summarise(results_of("pp"))
    assert summary.counts.pending is None and not summary.complete
    assert "2 results (total unknown), of 2 samples so far" in summary.to_text()
    assert summarise(results_of("pp"), total=2).complete


def test_a_batch_that_is_unfinished_is_not_complete_whatever_its_counts() -> None:
    summary = summarise(results_of("pp"), total=2, unfinished="rows.jsonl:41: not JSON")
    assert summary.counts.pending == 0 and not summary.complete
    assert summary.notes == (
        "not finished: rows.jsonl:41: not JSON",
        "what runs without a result have used is not counted yet",
    )
    data = summary.to_dict()
    assert (data["complete"], data["unfinished"]) == (False, "rows.jsonl:41: not JSON")
    assert "not finished: rows.jsonl:41" in summary.to_text()
    assert "not finished" in summary.to_markdown()


def test_the_sample_count_is_marked_unless_all_have_results() -> None:
    assert "2 of 4 results, of 2 samples so far" in summarise(results_of("pp"), total=4).to_text()
    assert "2 of 2 results, of 2 samples:" in summarise(results_of("pp"), total=2).to_text()


def test_a_task_is_charged_once_and_its_judges_each_time() -> None:
    def judged(
        letter: str, task_id: int, started: str, judging: float, **fields: Any
    ) -> SampleResult:
        score = Score(1.0, True, usage=Usage(cost_usd=judging))
        return a_result(
            letter, scores={"s": score}, usage=Usage(cost_usd=0.5), task_id=task_id, started=started
        )

    lines = [
        judged("x", 1, "a", 0.125),
        judged("x", 1, "a", 0.25),  # ScorerInput anew.
        judged("y", 2, "a", 0.0),
        judged("y", 2, "b", 0.0),  # Gone on with.
        judged("z", 3, "a", 0.125),
        judged("z", 4, "b", 0.125),  # Run again.
    ]
    summary = summarise(lines, total=3)
    assert (
        summary.spending.cost_usd.total == 1.5 and summary.spending.scoring_cost_usd.total == 0.375
    )
    again = summary.replaced_spending
    assert again is not None and summary.replaced == 3
    assert (again.cost_usd.total, again.cost_usd.of, again.scoring_cost_usd.total) == (0.5, 1, 0.25)
    assert "earlier runs, in addition: cost: $0.5000, and scoring $0.2500" in summary.to_text()


def test_left_out_results_count_only_in_the_replaced_spending() -> None:
    old = [
        a_result("old", "failed", usage=Usage(cost_usd=0.5), started="a"),
        a_result(
            "old", "failed", usage=Usage(cost_usd=0.5), started="a", scores={"s": Score(0.0, False)}
        ),
        a_result("old", "error", template="other", usage=Usage(cost_usd=None), started="b"),
    ]
    new = a_result("new", usage=Usage(cost_usd=0.25))
    columns = Columns(None, None)
    for result in old:
        columns.leave_out(result.to_dict())
    columns.add(new.to_dict())
    summary = summarise_columns(
        columns, total=1, cluster=None, group_by=None, reducers=None, unfinished=""
    )
    assert (
        summary.complete
        and summary.samples == 1
        and summary.errors == ()
        and len(summary.groups) == 1
    )
    assert (
        summary.spending.cost_usd.total == 0.25
        and summary.left_out == summary.to_dict()["left_out"] == 2
    )
    again = summary.replaced_spending
    assert again is not None
    assert (again.cost_usd.total, again.cost_usd.known, again.cost_usd.of) == (None, 0.5, 2)
    assert summary.notes == ("2 more results are not part of what the batch asks for now",)


def mixed_results(random: Random, count: int) -> Iterator[dict[str, Any]]:
    """Results as JSON: of several cells, samples and epochs, some replaced, some judged by several
    models.
    """
    for number in range(count):
        scores: dict[str, Score] = {}
        if random.random() < 0.8:
            passed = random.random() < 0.5
            scores["includes"] = Score(
                float(passed), passed, answer=random.choice([None, "a", "b"])
            )
        if random.random() < 0.3:
            votes = {"one": random.random() < 0.5, "two": random.choice([True, None])}
            metadata = {"votes": votes, "is_grade": True} if random.random() < 0.7 else {}
            scores["judge"] = Score(0.5, True, metadata=metadata, usage=Usage(cost_usd=0.25))
        yield a_result(
            f"s{random.randrange(count)}",
            random.choice(list(Verdict)),
            epoch=random.randrange(1, 3),
            template=random.choice(["quiz", "other"]),
            scores=scores,
            target=random.choice([None, "a", "b"]),
            metadata=random.choice([{}, {"topic": "x"}, {"topic": "y", "user": number % 5}]),
            usage=Usage(input_tokens=random.choice([None, number]), cost_usd=0.5),
            duration_s=random.random(),
            task_id=random.choice([None, number]),
        ).to_dict()


@pytest.mark.parametrize("size", [1, 7, 400])
@pytest.mark.parametrize("fields", [(None, None), ("user", "topic")])
def test_results_in_blocks_have_the_summary_of_results_one_by_one(
    size: int, fields: tuple[str | None, str | None]
) -> None:
    rows = ResultRows(*fields)
    results = list(mixed_results(Random(size), 400))
    one_by_one = Columns(*fields)
    in_blocks = Columns(*fields)
    for result in results:
        one_by_one.add(result)
    for start in range(0, len(results), size):
        block = ResultBlock.of([rows.row_of(each) for each in results[start : start + size]])
        in_blocks.put_block(pickle.loads(pickle.dumps(block)))
    assert one_by_one.replaced_count > 30
    one, other = (
        summarise_columns(
            columns,
            total=None,
            cluster=fields[0],
            group_by=fields[1],
            reducers=None,
            unfinished="",
        ).to_dict()
        for columns in (one_by_one, in_blocks)
    )
    assert json.dumps(one) == json.dumps(other)


def test_what_is_not_a_result_is_refused_before_anything_of_it_is_counted() -> None:
    columns = Columns(None, None)
    columns.add(a_result("first").to_dict())
    whole = a_result("second", "error", scores={"s": Score(1.0, True)}).to_dict()
    for name, value in (
        ("template", ["quiz"]),
        ("epoch", [1]),
        ("task_id", [1]),
        ("failure", {**whole["failure"], "kind": ["timeout"]}),
        ("scores", {"s": {**whole["scores"]["s"], "metadata": "text"}}),
        ("scores", {"s": {**whole["scores"]["s"], "value": "text"}}),
    ):
        with pytest.raises(TypeError):
            columns.add({**whole, name: value})
    columns.close()
    assert len(columns) == 1 and list(columns.errors) == [] and list(columns.scorers) == []


def test_a_group_has_an_attribute_for_each_key_of_its_json(tmp_path):
    result = run_batch_sync(
        "answer_question",
        [{"question": "What is the symbol of iron?", "target": "Fe"}],
        scorers=["includes"],
        evaluator=Evaluator(handler="offline", tasks_dir=None),
        output=tmp_path / "b",
    )
    (group,) = result.summary.groups
    data = group.to_dict()
    assert [key for key in data if not hasattr(group, key)] == []
    assert group.accuracy.to_dict() == data["accuracy"]
    assert group.duration_s.to_dict() == data["duration_s"]
