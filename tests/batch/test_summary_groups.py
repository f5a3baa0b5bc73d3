"""Groups of a summary: templates and variants, epochs, clusters, fields of the metadata."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch import SampleResult, Score
from evaluator.batch.statistics import (
    mean_interval,
    proportion_interval,
    proportion_of,
)
from evaluator.batch.summary import columns as columns_module
from evaluator.batch.summary import summarise
from evaluator.batch.thresholds import (
    ThresholdStatus,
    check_thresholds,
    parse_threshold,
)
from tests.batch.summary_results import a_result, only, results_of


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


def test_a_field_with_too_many_values_is_refused() -> None:
    results = (a_result(f"s{i}", metadata={"id": i}) for i in range(1_001))
    with pytest.raises(UsageError, match="'id' has over 1,000 values"):
        summarise(results, group_by="id")


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
