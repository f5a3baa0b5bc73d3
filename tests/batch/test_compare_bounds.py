"""What a comparison may conclude: incomplete sides, thresholds, bounds of errors, pairs needed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import UsageError
from evaluator.batch import Declared, Results
from evaluator.batch.compare import Comparison, compare
from evaluator.batch.thresholds import ThresholdStatus
from tests.batch.compared_sides import a_result, declared, passages, scored, side


def test_an_incomplete_side_is_reported_with_n_of_N() -> None:
    found = compare(
        declared(side("p" * 50)), declared(side("p" * 39), 50, unfinished="it was stopped")
    )
    assert (found.a.results, found.a.of, found.a.pending, found.a.unfinished) == (50, 50, 0, "")
    said = "it was stopped; 11 of 50 results are pending"
    assert (found.b.results, found.b.of, found.b.pending, found.b.unfinished) == (39, 50, 11, said)
    assert found.warnings == (f"side b is not complete: {said}",)
    assert found.at_least(-1) == (ThresholdStatus.INCOMPLETE, f"side b is not complete: {said}")
    kept = found.to_dict()["b"]
    assert (kept["results"], kept["of"], kept["pending"], kept["unfinished"]) == (39, 50, 11, said)
    for text in (found.to_text(), found.to_markdown()):
        assert "39 of 50" in text and "11 of 50 results are pending" in " ".join(text.split())


def test_results_are_counted_by_epochs_and_once_each() -> None:
    a = [a_result("x", "e"), *(a_result("x", "p", epoch) for epoch in (1, 2)), a_result("y", "p")]
    found = compare(declared(a, 4), declared(a, 3))
    assert (found.a.samples, found.a.results, found.a.pending) == (2, 3, 1)
    assert found.b.unfinished == "" and found.at_least(-1)[1].startswith(
        "side a is not complete: 1 of 4 results"
    )


def test_a_batch_of_unknown_size_is_not_complete_and_a_list_declares_nothing() -> None:
    unknown = compare(Results(iter(side("pp")), Declared()), side("pp"))
    assert unknown.warnings == ("side a is not complete: the total number of results is unknown",)
    assert unknown.at_least(-1)[0] is ThresholdStatus.INCOMPLETE
    assert (unknown.b.of, unknown.b.pending, unknown.b.unfinished) == (None, None, "")
    assert compare(side("pp"), side("pp")).at_least(-1) == (ThresholdStatus.MET, "")


@pytest.mark.parametrize(
    ("a", "b", "least", "status", "why"),
    [
        ("p" * 200, "p" * 200, -0.05, ThresholdStatus.MET, ""),
        (
            "p" * 200,
            "p" * 100 + "f" * 100,
            -0.05,
            ThresholdStatus.MISSED,
            "expected at least -0.05",
        ),
        (
            "p" * 200,
            "p" * 60 + "e" * 140,
            -0.5,
            ThresholdStatus.INCOMPLETE,
            "140 of 200 samples with an error",
        ),
        (
            "p" * 60 + "e" * 140,
            "p" * 200,
            0.1,
            ThresholdStatus.INCOMPLETE,
            "140 of 200 samples with an error",
        ),
        ("p" * 60 + "e" * 140, "p" * 200, -0.1, ThresholdStatus.MET, ""),
        ("p" * 200, "p" * 199 + "e", -0.05, ThresholdStatus.MET, ""),
        ("p" * 200, "p" * 199 + "u", -0.05, ThresholdStatus.MET, ""),
        ("p" * 200, "p" * 199 + "e", -0.02, ThresholdStatus.INCOMPLETE, "expected at least -0.02"),
        ("p" * 200, "f" * 199 + "e", -0.5, ThresholdStatus.MISSED, "the interval begins at -1"),
        ("p" * 200, "e" * 200, -0.5, ThresholdStatus.INCOMPLETE, "there is no interval"),
        (
            "p" * 200,
            "-" * 200 + "p" * 200,
            -0.5,
            ThresholdStatus.INCOMPLETE,
            "there is no interval",
        ),
        ("u" * 50 + "p" * 150, "u" * 50 + "p" * 150, -0.05, ThresholdStatus.MET, ""),
    ],
)
def test_a_threshold_is_met_only_where_no_error_could_change_that(
    a: str, b: str, least: float, status: ThresholdStatus, why: str
) -> None:
    told = compare(side(a), side(b)).at_least(least)
    assert told[0] is status and (why in told[1] if why else told[1] == "")


def decided(letters: list[tuple[str, str]], a_as: str, b_as: str) -> Comparison:
    """The pairs with errors and unscored ones of each side made something else; without those nobody could score."""
    known = [
        (a_as if a in "eu" else a, b_as if b in "eu" else b)
        if {a, b} <= set("pfeu") and (a, b) != ("u", "u")
        else ("-", "-")
        for a, b in letters
    ]
    return compare(side("".join(a for a, _ in known)), side("".join(b for _, b in known)))


@given(st.lists(st.tuples(st.sampled_from("pfeu-"), st.sampled_from("pfeu-")), max_size=25))
def test_the_effect_of_errors_is_bounded(letters: list[tuple[str, str]]) -> None:
    found = compare(side("".join(a for a, _ in letters)), side("".join(b for _, b in letters)))
    assert found.if_worst == decided(letters, "p", "f").difference
    assert found.if_best == decided(letters, "f", "p").difference
    counted = [
        pair for pair in letters if "-" not in pair and pair != ("u", "u") and set("eu") & set(pair)
    ]
    assert found.undecided == len(counted)
    assert (
        "with the worst and the best values for b" in " ".join(found.to_text().split())
    ) == bool(counted)


def test_an_epoch_that_is_an_error_is_bounded_in_its_pair() -> None:
    a = [a_result("x", letter, epoch) for epoch, letter in enumerate("pp", 1)]
    b = [a_result("x", letter, epoch) for epoch, letter in enumerate("ppe", 1)]
    found = compare([*a, a_result("y")], [*b, a_result("y")])
    assert (found.n, found.undecided, found.b.errors, found.difference.mean) == (2, 1, 0, 0.0)
    assert found.if_worst is not None and found.if_worst.mean == pytest.approx(-1 / 6)
    assert found.if_best is not None and found.if_best.mean == 0


def test_bounds_are_clustered_as_the_difference_is() -> None:
    a = [a_result(f"s{i}", "p", metadata={"text": i // 3}) for i in range(12)]
    b = [a_result(f"s{i}", "e" if i < 3 else "p", metadata={"text": i // 3}) for i in range(12)]
    found = compare(a, b, cluster="text")
    assert found.difference.clusters == 3 and found.if_worst is not None
    assert (found.if_worst.clusters, found.if_worst.mean) == (4, -0.25)


@pytest.mark.parametrize(
    ("scorers", "worst"),
    [
        ({"f1": {"type": "f1"}}, -0.25),
        ({"f1": {"type": "function"}}, None),
        ({"f1": {"type": "mine"}}, None),
        ({"f1": {"type": ["f1"]}}, None),
        ({"f1": {}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_values_of_functions_and_custom_scorers_have_no_bounds(
    scorers: Any, worst: float | None
) -> None:
    a, b = scored([1.0, 0.5, 0.5, 0.5]), [a_result("s0000", "e"), *scored([0.0, 0.5, 0.5, 0.5])[1:]]
    found = compare(declared(a, scorers=scorers), declared(b, scorers=scorers), scorer="f1")
    assert (None if found.if_worst is None else found.if_worst.mean) == worst
    assert (found.undecided, found.difference.mean) == (1, 0.0)
    if worst is None:
        assert "need not lie in [0, 1]" in " ".join(found.to_text().split())
        status, why = found.at_least(-5)
        assert (
            status is ThresholdStatus.INCOMPLETE
            and "the effect of 1 of 4 samples with an error or no score is unknown" in why
        )


@pytest.mark.parametrize("least", [math.nan, math.inf])
def test_a_threshold_is_a_finite_number(least: float) -> None:
    with pytest.raises(UsageError, match="expected a finite number"):
        compare(side("p"), side("p")).at_least(least)


def test_the_pairs_needed_are_those_in_clusters_like_these() -> None:
    clustered, plain = (
        compare(passages(3), passages(5)),
        compare(passages(3), passages(5), cluster=""),
    )
    effect, se = clustered.design_effect, clustered.difference.se
    assert (
        effect is not None
        and se is not None
        and plain.spread is not None
        and plain.difference.se is not None
    )
    assert clustered.spread == plain.spread and effect == pytest.approx(
        (se / plain.difference.se) ** 2, rel=0.02
    )
    assert clustered.smallest() == pytest.approx(2.8016 * se, rel=1e-4)
    assert clustered.needed(0.05) == pytest.approx(
        (plain.needed(0.05) or 0) * effect, abs=effect + 1
    )
    assert (
        clustered.to_dict()["design_effect"] == effect and plain.to_dict()["design_effect"] is None
    )
    text = " ".join(clustered.to_text().split())
    assert (
        f"in clusters like these (design effect {effect:.4g}); these 100 pairs show a difference of 0.3735"
        in text
    )


def test_pairs_in_single_clusters_need_as_many_as_independent_ones() -> None:
    a, b = (declared([*passages(passing)]) for passing in (3, 5))
    own = [replace(each, metadata={"own": each.sample_id}) for each in a]
    found, plain = compare(own, [*b], cluster="own"), compare(own, passages(5), cluster="")
    assert found.design_effect == pytest.approx(1) and found.smallest() == pytest.approx(
        plain.smallest()
    )


def test_clusters_with_cancelling_differences_give_no_pairs_needed() -> None:
    a = [a_result(f"s{i}", "pf"[i % 2], metadata={"text": i // 2}) for i in range(8)]
    b = [a_result(f"s{i}", "fp"[i % 2]) for i in range(8)]
    found = compare(a, b, cluster="text")
    assert found.spread is not None and (
        found.design_effect,
        found.needed(0.1),
        found.smallest(),
    ) == (None, None, None)
    assert "Samples needed" not in found.to_text()
