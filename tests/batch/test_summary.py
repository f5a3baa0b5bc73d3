"""Batch summaries: four separate verdicts, n of N for every number, bounded memory, safe text."""

from __future__ import annotations

import json
import math
import pickle
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Evaluator, Usage, UsageError, run_batch_sync
from evaluator.batch import BatchSummary, Failure, SampleResult, Score, Verdict
from evaluator.batch.statistics import (
    cohen_kappa,
    krippendorff_alpha,
    mean_interval,
    proportion_interval,
    proportion_of,
    score_interval,
)
from evaluator.batch.summary import GroupSummary, ScorerSummary, summarise, summarise_columns
from evaluator.batch.summary import columns as columns_module
from evaluator.batch.summary.columns import Columns
from evaluator.batch.summary.rows import ResultBlock, ResultRows
from evaluator.batch.summary.tables import Table, as_text
from evaluator.batch.thresholds import (
    ThresholdStatus,
    check_thresholds,
    parse_threshold,
)

TIMEOUT = Failure("RESOURCE_EXHAUSTION", "execution_timeout", "30 s were not enough")


def a_result(
    sample: str, verdict: Verdict | str = "passed", epoch: int = 1, **fields: Any
) -> SampleResult:
    verdict = Verdict(verdict)
    if verdict is Verdict.ERROR:
        fields.setdefault("failure", TIMEOUT)
    plain: dict[str, Any] = {
        "template": "quiz",
        "variant": "small",
        "inputs": {},
        "started": "2026-01-01T00:00:00Z",
    }
    return SampleResult(
        f"hash of {sample}", sample, 0, epoch, verdict=verdict, **{**plain, **fields}
    )


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


def test_templates_and_variants_are_counted_separately() -> None:
    results = [
        *results_of("pp"),
        *results_of("pf", variant="large"),
        *results_of("e", template="other"),
    ]
    summary = summarise(
        results,
        total={("quiz", "small"): 2, ("quiz", "large"): 3, ("other", "small"): 1, ("x", "y"): 4},
    )
    found = {(group.template, group.variant): group.part.counts for group in summary.groups}
    assert found["quiz", "large"].pending == 1 and found["quiz", "small"].pending == 0
    assert found["x", "y"].results == 0 and found["x", "y"].pending == 4
    assert summary.counts.pending == 5 and summary.samples == 2
    assert summarise(results, total=9).groups[0].part.counts.pending is None


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


def test_epochs_of_a_sample_are_not_independent() -> None:
    results = [
        a_result(f"s{i}", "passed" if i % 3 else "failed", epoch)
        for i in range(9)
        for epoch in (1, 2, 3, 4)
    ]
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
            name,
            verdicts[letter],
            epoch,
            scores={} if letter == "e" else {"s": Score(0.25 * epoch, letter == "p")},
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


def test_clusters_come_from_the_metadata_else_from_the_sample() -> None:
    topics = ["x", "x", "y", "y", None, None]
    results = [
        a_result(
            f"s{i}",
            "passed" if i in (0, 1, 4) else "failed",
            metadata={"topic": topic} if topic else {},
        )
        for i, topic in enumerate(topics)
    ]
    summary = summarise(results, cluster="topic", reducers=["mean"])
    values = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    estimate = only(summary).part.accuracy.estimate
    assert estimate == proportion_interval(values, ["x", "x", "y", "y", "4", "5"])
    assert only(summary).reduced[0].estimate == proportion_interval(
        values, ["x", "x", "y", "y", "4", "5"]
    )
    assert summary.notes == (
        "2 of 6 results have no 'topic': each is clustered with its sample",
        "clusters by 'topic': 4; with fewer than 30 intervals are approximate",
    )


def test_results_are_grouped_by_a_field_of_their_metadata() -> None:
    levels = ["easy", "hard", 3, None, "easy"]
    results = [
        a_result(
            f"s{i}",
            "passed" if i else "error",
            metadata={"level": level},
            scores={"s": Score(0.5, True)},
        )
        for i, level in enumerate(levels)
    ]
    summary = summarise(results, group_by="level")
    group = only(summary)
    assert summary.notes[0] == "1 of 5 results has no 'level': they form the group (none)"
    assert (summary.with_group_by, summary.with_cluster) == (4, None)
    assert list(group.by) == ["(none)", "3", "easy", "hard"]
    assert (group.by["easy"].counts.error, group.by["easy"].accuracy.judged) == (1, 1)
    assert group.by["easy"].scorers["s"].n == 2
    assert "By level: quiz × small" in summarise(results, group_by="level").to_text()


def test_a_field_value_that_reads_none_is_not_a_missing_value() -> None:
    values = ["(none)", None, '"(none)"', "(none)", None, None]
    group = only(
        summarise(
            [a_result(f"s{i}", metadata={"level": value}) for i, value in enumerate(values)],
            group_by="level",
        )
    )
    assert {name: part.counts.results for name, part in group.by.items()} == {
        "(none)": 3,
        '"(none)"': 2,
        '"\\"(none)\\""': 1,
    }


def test_a_cluster_field_that_no_result_has_leaves_no_interval() -> None:
    scores = {"s": Score(0.5, True)}
    results = [
        a_result(
            f"s{i}", "passed" if i % 3 else "failed", metadata={"passage": i // 4}, scores=scores
        )
        for i in range(40)
    ]
    summary = summarise(results, total=40, cluster="passge", reducers=["mean"])
    assert (summary.with_cluster, summary.to_dict()["with_cluster"]) == (0, 0)
    assert summary.notes == ("no result has 'passge' in its metadata; did you mean `passage`?",)
    part = only(summary).part
    for estimate in (
        part.accuracy.estimate,
        part.scorers["s"].value,
        only(summary).reduced[0].estimate,
    ):
        assert estimate.mean is not None and (estimate.se, estimate.low, estimate.high) == (
            None,
            None,
            None,
        )
    text = summary.to_text()
    assert (
        "no result has the cluster field 'passge': shares and means have no intervals" in text
        and "at 95 %" not in text
    )
    for threshold in ("accuracy_low >= 0", "mean_low(s) >= 0", "pass_rate_low(s) >= 0"):
        (found,) = check_thresholds(summary, [parse_threshold(threshold)])
        assert (
            found.status is ThresholdStatus.INCOMPLETE and "no result has the field" in found.reason
        )
    lone = only(summarise([*results[:1]], cluster="passge", group_by="passage"))
    assert lone.part.accuracy.estimate.low is None and lone.by["0"].accuracy.estimate.low is None
    assert (
        "intervals are at 95 %, with clusters by passage"
        in summarise(results, cluster="passage").to_text()
    )


def test_a_group_field_that_no_result_has_is_reported() -> None:
    notes = summarise(results_of("pf", metadata={"level": 1}), group_by="kind").notes
    assert notes == ("no result has 'kind' in its metadata; the fields are `level`",)
    assert summarise(results_of("pf"), group_by="kind").notes == (
        "no result has 'kind' in its metadata; the rows have no metadata",
    )
    assert summarise([], cluster="kind", group_by="kind").notes == ()


def test_a_summary_has_a_short_repr_and_prints_as_tables() -> None:
    summary = summarise(results_of("ppfeu"), total=9)
    assert repr(summary) == (
        "<BatchSummary of 'quiz × small': 5 of 9 results (2 passed, 1 failed, 1 error, 1 unscored), not complete>"
    )
    two = [a_result("a", template="x"), a_result("b", template="y")]
    assert repr(summarise(two)).startswith(
        "<BatchSummary of 2 templates × variants: 2 results (2 passed,"
    )
    assert str(summary) == summary.to_text() and summary._repr_markdown_() == summary.to_markdown()
    assert summary == summarise(results_of("ppfeu"), total=9)


def test_a_field_with_too_many_values_is_refused() -> None:
    results = (a_result(f"s{i}", metadata={"id": i}) for i in range(1_001))
    with pytest.raises(UsageError, match="'id' has over 1,000 values"):
        summarise(results, group_by="id")


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


ATTACK = "a|b`<script>\x1b[31m\u202e\n# [x](http://y) \\ *z* $1$ @me"


def test_shown_texts_cannot_act_on_a_terminal_or_as_markdown() -> None:
    results = [
        a_result(
            "a",
            "error",
            failure=Failure("T", ATTACK, ATTACK),
            template=ATTACK,
            metadata={"k": ATTACK},
        ),
        a_result("b", template=ATTACK, metadata={"k": ATTACK}, scores={ATTACK: Score(1.0, True)}),
    ]
    summary = summarise(results, group_by="k")
    for width in (20, 80, 400):
        text = summary.to_text(width)
        assert "\x1b" not in text and "\u202e" not in text and "\\x1b" in text.replace("\n", "")
    markdown = summary.to_markdown()
    assert "\x1b" not in markdown and "\u202e" not in markdown
    assert not re.search(r"(?<!\\)[<`*$]|[^\\]\]\(|https?:", markdown)
    rows = [
        len(re.findall(r"(?<!\\)\|", line))
        for line in markdown.splitlines()
        if line.startswith("| ")
    ]
    assert len(rows) > 5 and set(rows) == {4, 8, 9}


@given(st.integers(20, 200))
def test_only_long_words_make_a_line_wider_than_requested(width: int) -> None:
    summary = summarise(results_of("ppfeu", scores={"s": Score(0.5, True)}), total=9, group_by="x")
    assert all(
        len(line) <= width or len(line.split()) == 1 for line in summary.to_text(width).splitlines()
    )


def test_a_wide_terminal_gets_a_table_a_narrower_one_its_parts_and_a_narrow_one_a_list() -> None:
    summary = summarise(results_of("pppf"))
    assert re.search(r"3 of 4  75.0 % .*  0 .*  –\n", summary.to_text(160))
    assert re.search(
        r"3 of 4  75.0 %  30.1 to 95.4 %\n\n.* N  error .*\n  quiz × small +4 ", summary.to_text(60)
    )
    assert "passed 3 of 4, share 75.0 %" in " ".join(summary.to_text(30).split())
    assert "| quiz × small | 3 of 4 | 75.0 % | 30.1 to 95.4 % |" in summary.to_markdown()


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
    assert summary.notes == ("not finished: rows.jsonl:41: not JSON",)
    data = summary.to_dict()
    assert (data["complete"], data["unfinished"]) == (False, "rows.jsonl:41: not JSON")
    assert "not finished: rows.jsonl:41" in summary.to_text()
    assert "not finished" in summary.to_markdown()


def test_the_sample_count_is_marked_unless_all_have_results() -> None:
    assert "2 of 4 results, of 2 samples so far" in summarise(results_of("pp"), total=4).to_text()
    assert "2 of 2 results, of 2 samples:" in summarise(results_of("pp"), total=2).to_text()


@given(st.permutations([("quiz", "b"), ("quiz", "a"), ("exam", "b")]), st.permutations(range(3)))
def test_groups_come_in_the_order_asked_for_else_by_name(
    cells: list[tuple[str, str]], order: list[int]
) -> None:
    results = [a_result("x", template=cells[i][0], variant=cells[i][1]) for i in order]
    asked = summarise(results, total={**dict.fromkeys(cells, 1), ("more", ""): 2})
    assert [(group.template, group.variant) for group in asked.groups] == [*cells, ("more", "")]
    for total in (None, 5):
        named = summarise(results, total=total)
        assert [(group.template, group.variant) for group in named.groups] == sorted(cells)


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


def test_binary_reduced_epochs_have_the_interval_of_a_proportion() -> None:
    results = [a_result(f"s{i}", epoch=epoch) for i in range(12) for epoch in (1, 2, 3)]
    reduced = only(summarise(results, reducers=["pass@2", "mean"])).reduced
    assert [one.estimate for one in reduced] == [proportion_of(12, 12)] * 2
    assert reduced[0].estimate.low == pytest.approx(0.7575, abs=1e-4)


@given(
    st.lists(st.lists(st.sampled_from("pf"), min_size=2, max_size=3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from([None, "topic"]),
)
def test_no_interval_of_shares_leaves_0_and_1_or_is_empty(
    words: list[str], topics: int, cluster: str | None
) -> None:
    results = [
        a_result(
            f"s{i}",
            "passed" if letter == "p" else "failed",
            epoch,
            metadata={"topic": i % topics},
            scores={"s": Score(0.75 if letter == "p" else 0.25, letter == "p")},
        )
        for i, word in enumerate(words)
        for epoch, letter in enumerate(word, 1)
    ]
    group = only(
        summarise(results, cluster=cluster, reducers=["mean", "median", "pass@2", "pass^2"])
    )
    for estimate in [*(one.estimate for one in group.reduced), group.part.scorers["s"].value]:
        if estimate.low is not None and estimate.high is not None and estimate.mean is not None:
            assert (
                0 <= estimate.low <= estimate.mean <= estimate.high <= 1
                and estimate.low < estimate.high
            )


def voted(sample: str, *votes: bool | None, scorer: str = "jury", **fields: Any) -> SampleResult:
    given = [vote for vote in votes if vote is not None]
    score = Score(
        1.0 if sum(given) > len(given) / 2 else 0.0,
        sum(given) > len(given) / 2,
        metadata={"votes": dict(zip("abc", votes, strict=False))},
    )
    return a_result(sample, scores={scorer: score}, **fields)


BALLOTS = [
    (True, True, True),
    (True, False, None),
    (False, False, False),
    (True, True, False),
    (None, None, True),
]


def test_judges_who_vote_have_their_agreement_counted() -> None:
    results = [voted(f"s{i}", *votes) for i, votes in enumerate(BALLOTS * 3)]
    retried = [voted("s0", False, True, False), *results]
    group = only(summarise([*retried, a_result("e", "error")]))
    columns = list(zip(*BALLOTS * 3, strict=True))
    everyone, *pairs = group.agreement
    assert (everyone.judges, everyone.votes_of, everyone.measure) == (
        ("a", "b", "c"),
        "jury",
        "krippendorff_alpha",
    )
    expected = krippendorff_alpha(columns)
    assert (
        everyone.agreement.value == pytest.approx(expected.value)
        and everyone.agreement.n == expected.n == 12
    )
    assert everyone.same == 0.5
    for found, (i, j) in zip(pairs, [(0, 1), (0, 2), (1, 2)], strict=True):
        kappa = cohen_kappa(columns[i], columns[j])
        assert found.agreement.value == pytest.approx(kappa.value)
        assert (found.agreement.n, found.measure) == (kappa.n, "cohen_kappa")
    summary = summarise(results)
    assert (
        "Agreement: quiz × small" in summary.to_text()
        and "Krippendorff's α" in summary.to_markdown()
    )
    assert "jury: a and b" in summary.to_text() and "jury: all 3" in summary.to_text()
    assert summary.to_dict()["groups"][0]["agreement"][0]["judges"] == ["a", "b", "c"]


def test_only_binary_scorers_have_their_agreement_counted() -> None:
    words = ["yy", "yn", "nn", "ny", "yy", "nn", "y-"]
    results = [
        a_result(
            f"s{i}",
            scores={
                "graded": Score(0.7, True),
                **{
                    name: Score(float(one == "y"), one == "y")
                    for name, one in zip("pq", word, strict=True)
                    if one != "-"
                },
            },
        )
        for i, word in enumerate(words)
    ]
    (found,) = only(summarise(results)).agreement
    assert (found.judges, found.votes_of, found.same) == (("p", "q"), None, pytest.approx(4 / 6))
    assert (found.agreement.n, found.agreement.of) == (6, 7)
    assert found.agreement.value == cohen_kappa("yynnyn", "ynnyyn").value


@pytest.mark.parametrize(
    "votes",
    [None, "yes", [True], {"a": True}, {"a": 1, "b": "x"}, {str(i): True for i in range(99)}],
)
def test_metadata_that_are_not_votes_are_ignored(votes: Any) -> None:
    score = Score(1.0, True, metadata={"votes": votes})
    assert only(summarise([a_result("x", scores={"s": score})])).agreement == ()


def test_votes_take_a_few_bytes_for_each_result() -> None:
    tracemalloc.start()
    try:
        summarise(
            voted(f"sample-{i:08d}", i % 2 == 0, i % 3 == 0, i % 5 == 0) for i in range(8_000)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 8_000 < 300


def counted(
    name: str, passed: int, judged: int, errors: int, unscored: int, absent: int
) -> dict[str, ScorerSummary]:
    of = judged + errors + unscored + absent
    share = proportion_of(passed, judged)
    return {
        name: ScorerSummary(
            judged, of, errors, unscored, absent, share, passed, judged - passed, share
        )
    }


def with_scorers(scorers: dict[str, ScorerSummary]) -> BatchSummary:
    summary = summarise(results_of("p"))
    group = only(summary)
    return replace(summary, groups=(replace(group, part=replace(group.part, scorers=scorers)),))


def scorers_in(text: str) -> list[str]:
    """The lines of the table, or of what stands for it."""
    return text.partition("Scorers: quiz × small\n")[2].partition("\n\nErrors")[0].splitlines()


LONG = "a_scorer_with_24_letters"


def test_scorers_of_100000_results_are_a_table_on_100_columns_and_two_on_80() -> None:
    summary = with_scorers(counted(LONG, 75_320, 100_000, 0, 0, 0))
    head, row = scorers_in(summary.to_text(100))
    assert head.endswith("n of N    mean    ± se          interval  passed  failed")
    assert (
        row.split()
        == f"{LONG} 100,000 of 100,000 0.7532 0.0014 0.7505 to 0.7559 75,320 24,680".split()
    )
    first, above, between, second, below = scorers_in(summary.to_text(80))
    assert (first.split()[-2:], above.split()[-2:]) == (["±", "se"], ["0.7532", "0.0014"])
    assert (between, second.split()) == ("", ["scorer", "interval", "passed", "failed"])
    assert below.split() == f"{LONG} 0.7505 to 0.7559 75,320 24,680".split()


def test_results_without_a_value_are_counted_by_reason() -> None:
    summary = with_scorers(
        {**counted("exact", 3, 5, 1_200, 0, 4), **counted("f1", 3, 1_209, 0, 0, 0)}
    )
    lines = scorers_in(summary.to_text(100))
    assert lines[0] == "  exact: 1,200 errors, 4 without an answer to score, of 1,209"
    assert (
        lines[1].split()[0] == "scorer"
        and "5 of 1,209" in lines[2]
        and "1,209 of 1,209" in lines[3]
    )
    unscored = scorers_in(with_scorers(counted("s", 1, 1, 0, 2, 0)).to_text(100))[0]
    assert unscored == "  s: 2 unscored, of 3"


@given(st.lists(st.integers(1, 12), min_size=2, max_size=9), st.integers(20, 160))
def test_a_table_shows_every_cell_at_any_width(widths: list[int], width: int) -> None:
    head = [f"{column}" for column in range(len(widths))]
    rows = [[chr(97 + row) * each for each in widths] for row in range(3)]
    text = as_text([Table("T", head, rows)], width)
    shown = Counter(re.findall(r"[a-z]+", text))
    assert all(shown[cell] >= count for row in rows for cell, count in Counter(row).items())
    assert all(len(line) <= width for line in text.splitlines())


def test_a_table_of_more_than_three_parts_is_a_list() -> None:
    def shown(columns: int) -> str:
        return as_text(
            [Table("T", ["", *"abcdefgh"[:columns]], [["row", *["x" * 12] * columns]])], 38
        )

    assert shown(6).count("row") == 3
    assert shown(7).count("row") == 1 and f"a {'x' * 12}, b" in shown(7)


def test_the_outcomes_are_a_table_on_a_terminal_of_100_columns() -> None:
    results = [
        *results_of("pppfeeu", template="answer_question", variant="large"),
        *results_of("pf"),
    ]
    totals = {("answer_question", "large"): 10, ("quiz", "small"): 2}
    text = summarise(results, total=totals).to_text(100)
    (head,) = [
        line
        for line in text.splitlines()
        if line.split()[:4] == ["template", "×", "variant", "passed"]
    ]
    assert head.split()[3:] == ["passed", "share", "interval", "N", "error", "unscored", "pending"]
    assert any(line.split()[-4:] == ["10", "2", "1", "3"] for line in text.splitlines())
    bounds = "answer_question × large: 42.9 % to 85.7 % if all 3 error or unscored results had failed or passed"
    assert bounds in " ".join(text.split())


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


def test_the_numbers_of_many_groups_are_those_of_each_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many groups are ordered before they are counted."""
    monkeypatch.setattr(columns_module, "_MOST_SCATTERED", 2)
    random = Random(7)
    results: list[SampleResult] = []
    for number in range(300):
        for variant in ("a", "b", "c"):
            votes = {name: random.random() < 0.6 for name in ("j1", "j2")}
            values = {name: float(vote) for name, vote in votes.items()}
            is_right = random.random() < 0.5
            metadata = {"votes": votes, "values": values, "flipped": [is_right]}
            results.append(
                a_result(
                    f"s{number}",
                    variant=variant,
                    epoch=random.choice((1, 2)),
                    metadata={"part": random.choice("xy"), "of": str(number // 3)},
                    scores={"s": Score(float(is_right), is_right, metadata=metadata)},
                    duration_s=random.random(),
                )
            )
    options: dict[str, Any] = {"cluster": "of", "group_by": "part", "reducers": ["mean"]}
    random.shuffle(results)
    for group in summarise(results, **options).groups:
        own = [result for result in results if result.variant == group.variant]
        (alone,) = summarise(own, **options).groups
        assert group == alone
        assert group.stability and group.agreement and len(group.by) == 2
