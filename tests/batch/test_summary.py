"""A batch counted: four verdicts that are never mixed, n of N for every number, little memory, text that cannot act."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch.records import Failure, SampleResult, Score, Verdict
from evaluator.batch.statistics import mean_interval, proportion_interval, proportion_of
from evaluator.batch.summary import BatchSummary, GroupSummary, render_markdown, render_summary, summarise
from evaluator.errors import UsageError
from evaluator.results import Usage

TIMEOUT = Failure("RESOURCE_EXHAUSTION", "execution_timeout", "30 s were not enough")


def a_result(sample: str, verdict: Verdict | str = "passed", epoch: int = 1, **fields: Any) -> SampleResult:
    verdict = Verdict(verdict)
    if verdict is Verdict.ERROR:
        fields.setdefault("failure", TIMEOUT)
    plain: dict[str, Any] = {"template": "quiz", "variant": "small", "inputs": {}, "started": "2026-01-01T00:00:00Z"}
    return SampleResult(f"hash of {sample}", sample, 0, epoch, verdict=verdict, **{**plain, **fields})


def results_of(word: str, **fields: Any) -> list[SampleResult]:
    """A result a letter: p passed, f failed, e error, u unscored."""
    verdicts = {"p": "passed", "f": "failed", "e": "error", "u": "unscored"}
    return [a_result(f"s{i}", verdicts[letter], **fields) for i, letter in enumerate(word)]


def only(summary: BatchSummary) -> GroupSummary:
    assert len(summary.groups) == 1
    return summary.groups[0]


def test_errors_and_unscored_are_neither_failed_nor_left_out() -> None:
    summary = summarise(results_of("pppfeeu"), total=10)
    accuracy = only(summary).part.accuracy
    assert (accuracy.passed, accuracy.judged, accuracy.of) == (3, 4, 10)
    assert accuracy.estimate == proportion_of(3, 4)
    assert (accuracy.if_failed, accuracy.if_passed) == (pytest.approx(3 / 7), pytest.approx(6 / 7))
    counts = summary.counts
    assert (counts.passed, counts.failed, counts.error, counts.unscored, counts.pending) == (3, 1, 2, 1, 3)
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
    assert render_summary(summary, 60) and render_markdown(summary)


def test_a_batch_of_errors_only_has_no_accuracy() -> None:
    part = only(summarise(results_of("eee"))).part
    assert part.accuracy.estimate.mean is None and part.accuracy.judged == 0
    assert (part.accuracy.if_failed, part.accuracy.if_passed) == (0, 1)


def test_an_empty_batch_can_be_summarised() -> None:
    summary = summarise([], total=0)
    assert summary.groups == () and summary.complete and summary.durations.p50 is None
    assert "0 of 0 results" in render_summary(summary)


def test_the_last_result_of_a_sample_counts_and_what_earlier_runs_cost_is_kept_apart() -> None:
    first = a_result("x", "error", usage=Usage(10, 1, cost_usd=0.5), started="a", cached_calls=1)
    retried = a_result("x", "passed", usage=Usage(20, 2, cost_usd=0.25), started="b")
    summary = summarise([first, a_result("y", "failed"), retried])
    assert (summary.counts.passed, summary.counts.error, summary.counts.results) == (1, 0, 2)
    assert summary.spending.cost_usd.total == 0.25 and summary.errors == ()
    assert summary.replaced == 1 and summary.replaced_spending is not None
    assert summary.replaced_spending.cost_usd.total == 0.5 and summary.replaced_spending.cached_calls == 1
    assert summary.replaced_spending.input_tokens.total == 10
    assert "cost $0.5000" in render_summary(summary)


def test_a_result_that_is_scored_anew_was_paid_for_once() -> None:
    first = a_result("x", "failed", usage=Usage(cost_usd=0.5))
    summary = summarise([first, replace(first, verdict=Verdict.PASSED)])
    assert (summary.counts.results, summary.counts.passed, summary.replaced) == (1, 1, 1)
    assert summary.spending.cost_usd.total == 0.5 and summary.replaced_spending is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 2), st.sampled_from("pfeu")), max_size=30))
def test_duplicates_count_as_if_only_the_last_were_there(lines: list[tuple[int, int, str]]) -> None:
    verdicts = {"p": "passed", "f": "failed", "e": "error", "u": "unscored"}
    results = [
        a_result(f"s{sample}", verdicts[letter], epoch, scores={letter: Score(1.0, True)}, duration_s=place)
        for place, (sample, epoch, letter) in enumerate(lines)
    ]
    last = {(result.sample_id, result.epoch): result for result in results}
    once, twice = summarise(last.values()), summarise(results)
    assert once.counts == twice.counts and once.durations == twice.durations and once.errors == twice.errors
    for name, scorer in (only(once).part.scorers if results else {}).items():
        assert only(twice).part.scorers[name] == scorer


def test_samples_with_the_same_identity_are_two() -> None:
    results = [replace(a_result("a"), identity="same"), replace(a_result("b", "failed"), identity="same")]
    assert summarise(results).counts.results == 2


def test_templates_and_variants_are_counted_apart() -> None:
    results = [*results_of("pp"), *results_of("pf", variant="large"), *results_of("e", template="other")]
    summary = summarise(
        results, total={("quiz", "small"): 2, ("quiz", "large"): 3, ("other", "small"): 1, ("x", "y"): 4}
    )
    found = {(group.template, group.variant): group.part.counts for group in summary.groups}
    assert found["quiz", "large"].pending == 1 and found["quiz", "small"].pending == 0
    assert found["x", "y"].results == 0 and found["x", "y"].pending == 4
    assert summary.counts.pending == 5 and summary.samples == 2
    assert summarise(results, total=9).groups[0].part.counts.pending is None


@pytest.mark.parametrize("total", [1, {("quiz", "small"): 1}, {("quiz", "large"): 5}])
def test_more_results_than_there_can_be_are_refused(total: Any) -> None:
    with pytest.raises(UsageError):
        summarise(results_of("pp"), total=total)


def test_what_a_scorer_said_adds_up() -> None:
    judge = Usage(cost_usd=0.01)
    results = [
        a_result("a", scores={"f1": Score(0.9, True, usage=judge), "exact": Score(1.0, True)}),
        a_result("b", "failed", scores={"f1": Score(0.2, False, usage=judge), "exact": Score(0.0, False)}),
        a_result("c", "unscored", scores={"f1": Score(None, None), "exact": Score(1.0, True)}),
        a_result(
            "d", "error", failure=None, scores={"f1": Score(None, None, error="no judge"), "exact": Score(1.0, True)}
        ),
        a_result("e", "error"),
    ]
    summary = summarise(results)
    f1, exact = only(summary).part.scorers["f1"], only(summary).part.scorers["exact"]
    assert (f1.n, f1.of, f1.errors, f1.unscored, f1.absent) == (2, 5, 1, 1, 1)
    assert f1.value == mean_interval([0.9, 0.2]) and f1.pass_rate == proportion_of(1, 2)
    assert (exact.n, exact.absent, exact.value) == (4, 1, proportion_of(3, 4))
    assert [(error.kind, error.count, error.example) for error in summary.errors] == [
        ("execution_timeout", 1, "30 s were not enough"),
        ("scorer f1", 1, "no judge"),
    ]
    assert summary.spending.scoring_cost_usd.total == pytest.approx(0.02)
    assert summary.spending.cost_usd.total == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_an_error_of_its_scorer(bad: float) -> None:
    results = [a_result("a", scores={"s": Score(bad, True)}), a_result("b", scores={"s": Score(0.5, True)})]
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
    text = render_summary(summary, 120)
    assert "cost: unknown; $0.5000 for the 1 of 2 that it is known for" in text
    assert "5 (1 of 2 known) in, 3 out" in text


def test_durations_and_tokens_have_percentiles() -> None:
    results = [a_result(f"s{i}", duration_s=float(i), usage=Usage(0, i)) for i in range(101)]
    group = only(summarise(results))
    assert (group.durations.p50, group.durations.p90, group.durations.p99, group.durations.n) == (50, 90, 99, 101)
    assert group.output_tokens == group.durations


def test_epochs_of_a_sample_are_not_independent() -> None:
    results = [a_result(f"s{i}", "passed" if i % 3 else "failed", epoch) for i in range(9) for epoch in (1, 2, 3, 4)]
    group = only(summarise(results))
    assert (group.samples, group.epochs) == (9, 4)
    estimate = group.part.accuracy.estimate
    assert estimate.clusters == 9 and estimate.n == 36
    assert estimate.se == pytest.approx(mean_interval([float(i % 3 > 0) for i in range(9)]).se)
    (reduced,) = group.reduced
    assert (reduced.reducer, reduced.scorer, reduced.n, reduced.of) == ("mean", None, 9, 9)
    assert group.variance[""].within == 0


def test_reducers_count_only_samples_with_enough_judged_epochs() -> None:
    words = {"a": "pf", "b": "pp", "c": "fe", "d": "ee"}
    verdicts = {"p": "passed", "f": "failed", "e": "error"}
    results = [
        a_result(
            name, verdicts[letter], epoch, scores={} if letter == "e" else {"s": Score(0.25 * epoch, letter == "p")}
        )
        for name, word in words.items()
        for epoch, letter in enumerate(word, 1)
    ]
    group = only(summarise(results, reducers=["max", "pass@2", "pass^2"]))
    found = {(one.scorer, one.reducer): (one.estimate.mean, one.n, one.of) for one in group.reduced}
    assert found[None, "max"] == (pytest.approx(2 / 3), 3, 4)
    assert found[None, "pass@2"] == (1, 2, 4)
    assert found[None, "pass^2"] == (0.5, 2, 4)
    assert found["s", "max"] == (pytest.approx((0.5 + 0.5 + 0.25) / 3), 3, 4)
    assert found["s", "pass^2"] == (0.5, 2, 4)


def test_clusters_come_from_the_metadata_and_a_result_without_is_its_samples() -> None:
    topics = ["x", "x", "y", "y", None, None]
    results = [
        a_result(f"s{i}", "passed" if i in (0, 1, 4) else "failed", metadata={"topic": topic} if topic else {})
        for i, topic in enumerate(topics)
    ]
    summary = summarise(results, cluster="topic", reducers=["mean"])
    values = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    estimate = only(summary).part.accuracy.estimate
    assert estimate == proportion_interval(values, ["x", "x", "y", "y", "4", "5"])
    assert only(summary).reduced[0].estimate == mean_interval(values, ["x", "x", "y", "y", "4", "5"])
    assert summary.notes == ("2 of 6 results have no 'topic': each belongs with its sample",)


def test_results_are_grouped_by_a_field_of_their_metadata() -> None:
    levels = ["easy", "hard", 3, None, "easy"]
    results = [
        a_result(f"s{i}", "passed" if i else "error", metadata={"level": level}, scores={"s": Score(0.5, True)})
        for i, level in enumerate(levels)
    ]
    group = only(summarise(results, group_by="level"))
    assert list(group.by) == ["(none)", "3", "easy", "hard"]
    assert (group.by["easy"].counts.error, group.by["easy"].accuracy.judged) == (1, 1)
    assert group.by["easy"].scorers["s"].n == 2
    assert "By level: quiz × small" in render_summary(summarise(results, group_by="level"))


def test_a_field_with_too_many_values_is_no_group() -> None:
    results = (a_result(f"s{i}", metadata={"id": i}) for i in range(1_001))
    with pytest.raises(UsageError, match="'id' has over 1,000 values"):
        summarise(results, group_by="id")


def test_labels_have_a_confusion_matrix() -> None:
    rows = [("cat", "cat"), ("cat", "dog"), ("dog", "dog"), ("dog", None), ("cat", "cow"), ("dog", " dog ")]
    results = [
        a_result(f"s{i}", target=target, scores={"choice": Score(0.0, False, answer)})
        for i, (target, answer) in enumerate(rows)
    ]
    summary = summarise([*results, a_result("e", "error", target="cat")])
    confusion = only(summary).confusion["choice"]
    assert confusion.targets == ("cat", "dog") and confusion.answers == ("cat", "cow", "dog")
    assert confusion.counts == ((1, 1, 1), (0, 0, 2)) and confusion.no_answer == (1, 1)
    assert (confusion.n, confusion.of) == (5, 7)
    assert "Answers of choice by target, 5 of 7" in render_summary(summary)


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
def test_what_are_no_labels_have_no_matrix(targets: list[Any]) -> None:
    results = [
        a_result(f"s{i}", target=target, scores={"s": Score(1.0, True, "a")}) for i, target in enumerate(targets)
    ]
    assert only(summarise(results)).confusion == {}


def test_true_and_1_are_labels_as_they_are_written() -> None:
    results = [a_result(f"s{i}", target=i % 2 == 0, scores={"s": Score(1.0, True, "true")}) for i in range(4)]
    confusion = only(summarise(results)).confusion["s"]
    assert (confusion.targets, confusion.answers, confusion.counts) == (("false", "true"), ("true",), ((2,), (2,)))


def test_the_json_says_its_version_and_holds_no_nan() -> None:
    data = summarise(results_of("pfeu", scores={"s": Score(0.5, True)}), total=5, group_by="x").to_dict()
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text)["version"] == 1
    assert {"version", "complete", "counts", "groups", "spending", "duration_s", "errors", "notes"} <= data.keys()
    assert data["groups"][0]["accuracy"]["estimate"]["method"] == "wilson"
    assert data["groups"][0]["counts"]["total"] == 5


ATTACK = "a|b`<script>\x1b[31m\u202e\n# [x](http://y) \\ *z* $1$ @me"


def test_what_is_shown_cannot_act_on_a_terminal_or_as_markdown() -> None:
    results = [
        a_result("a", "error", failure=Failure("T", ATTACK, ATTACK), template=ATTACK, metadata={"k": ATTACK}),
        a_result("b", template=ATTACK, metadata={"k": ATTACK}, scores={ATTACK: Score(1.0, True)}),
    ]
    summary = summarise(results, group_by="k")
    for width in (20, 80, 400):
        text = render_summary(summary, width)
        assert "\x1b" not in text and "\u202e" not in text and "\\x1b" in text.replace("\n", "")
    markdown = render_markdown(summary)
    assert "\x1b" not in markdown and "\u202e" not in markdown
    assert not re.search(r"(?<!\\)[<`*$]|[^\\]\]\(|https?:", markdown)
    rows = [len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line.startswith("| ")]
    assert len(rows) > 5 and set(rows) == {4, 10}


@given(st.integers(20, 200))
def test_no_line_of_text_is_wider_than_asked_but_for_words_that_are(width: int) -> None:
    summary = summarise(results_of("ppfeu", scores={"s": Score(0.5, True)}), total=9, group_by="x")
    assert all(len(line) <= width or len(line.split()) == 1 for line in render_summary(summary, width).splitlines())


def test_a_wide_terminal_gets_a_table_and_a_narrow_one_a_list() -> None:
    summary = summarise(results_of("pppf"))
    assert "3 of 4  75.0 %" in render_summary(summary, 160)
    assert "passed of judged 3 of 4, share 75.0 %" in " ".join(render_summary(summary, 60).split())
    assert "| quiz × small | 3 of 4 | 75.0 % | 30.1 to 95.4 % |" in render_markdown(summary)


def many(count: int) -> Iterator[SampleResult]:
    for i in range(count):
        yield a_result(
            f"sample-{i:08d}", "passed" if i % 3 else "failed", usage=Usage(100, i, cost_usd=0.001),
            scores={"exact": Score(float(i % 3 > 0), i % 3 > 0, "yes"), "f1": Score(i % 100 / 100, i % 3 > 0)},
            metadata={"level": f"level {i % 7}"}, target="yes", started=f"{i}",
        )  # fmt: skip


def test_memory_is_a_few_hundred_bytes_a_result() -> None:
    tracemalloc.start()
    try:
        summarise(many(8_000), group_by="level")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 8_000 < 300
