"""Two batches are compared by pairs, and every sample without a pair is counted."""

from __future__ import annotations

import inspect
import json
import math
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import BatchResult, UsageError
from evaluator.batch import Batch, Results, SampleResult, Score
from evaluator.batch.compare import compare
from evaluator.batch.statistics import mcnemar_difference, mean_difference, pairs_needed
from evaluator.batch.thresholds import ThresholdStatus
from tests.batch.compared_sides import a_result, declared, passages, scored, side


def test_every_sample_is_a_pair_or_counted_by_reason() -> None:
    found = compare(side("ppffeupp-"), side("pfpfpppe" + "p"))
    assert (found.n, found.of) == (5, 9)
    assert (found.a.samples, found.a.only, found.a.errors, found.a.unscored) == (8, 0, 1, 1)
    assert (found.b.samples, found.b.only, found.b.errors, found.b.unscored) == (9, 1, 1, 0)
    assert found.difference == mcnemar_difference(both=2, only_a=1, only_b=1, neither=1)
    assert (found.gained, found.lost) == (("s02",), ("s01",))
    assert found.a.mean == found.b.mean == pytest.approx(0.6)


@given(st.lists(st.tuples(st.sampled_from("pfeu-"), st.sampled_from("pfeu-")), max_size=25))
def test_the_sides_are_mirror_images(pairs: list[tuple[str, str]]) -> None:
    first, second = side("".join(a for a, _ in pairs)), side("".join(b for _, b in pairs))
    one, other = compare(first, second), compare(second, first)
    assert (one.n, one.of, one.a.only, one.a.errors) == (
        other.n,
        other.of,
        other.b.only,
        other.b.errors,
    )
    assert (one.gained, one.lost) == (other.lost, other.gained)
    assert one.difference.p == other.difference.p
    if one.n:
        assert one.difference.mean == -(other.difference.mean or 0)
        assert one.difference.low == pytest.approx(-(other.difference.high or 0))
    judged = sum(a in "pf" and b in "pf" for a, b in pairs)
    assert one.n == judged and one.of == sum((a, b) != ("-", "-") for a, b in pairs)
    json.dumps(one.to_dict(), allow_nan=False)
    assert one.to_text(70) and one.to_markdown()


def test_a_batch_does_not_differ_from_itself() -> None:
    found = compare(side("ppffpe"), side("ppffpe"))
    assert found.difference.mean == 0 and found.difference.p == 1 and found.difference.high != 0
    assert (found.gained, found.lost, found.warnings, found.needed(0.1)) == ((), (), (), None)


def test_scores_are_compared_by_the_bootstrap_with_its_seed() -> None:
    draw = random.Random(1)
    a = [draw.random() for _ in range(60)]
    b = [min(1.0, value + draw.random() / 10) for value in a]
    found = compare(scored(a), scored(b), scorer="f1", seed=3)
    assert found.difference.method == "paired bootstrap, BCa"
    assert found == compare(reversed(scored(a)), scored(b), scorer="f1", seed=3)
    assert found.difference != compare(scored(a), scored(b), scorer="f1", seed=4).difference
    assert found.difference.p is not None and found.difference.p < 0.01
    assert found.spread is not None and found.needed(0.02) == pairs_needed(found.spread, 0.02)
    assert found.smallest() == pytest.approx(2.8016 * found.spread / 60**0.5, rel=1e-4)


@pytest.mark.parametrize("count", [5, 5_001])
def test_few_pairs_and_very_many_are_compared_by_students_t(count: int) -> None:
    a, b = [i % 7 / 10 for i in range(count)], [i % 5 / 10 for i in range(count)]
    found = compare(scored(a), scored(b), scorer="f1")
    assert found.difference == mean_difference([y - x for x, y in zip(a, b, strict=True)])


def test_clusters_of_pairs_are_not_independent() -> None:
    a = [a_result(f"s{i}", "p", metadata={"text": i // 3}) for i in range(12)]
    b = [a_result(f"s{i}", "f" if i < 6 else "p", metadata={"text": i // 3}) for i in range(12)]
    found = compare(a, b, cluster="text").difference
    assert (found.clusters, found.method) == (4, "paired t, clustered")
    lone = compare([*a[:1], *(a_result(f"s{i}", "p") for i in range(1, 12))], b, cluster="text")
    assert lone.difference.clusters == 12
    assert lone.warnings == (
        "11 of 12 pairs have no 'text': each is a cluster of its own",
        "clusters by 'text': 12; with fewer than 30 the interval and p are approximate",
    )


def test_a_cluster_field_that_no_pair_has_is_refused() -> None:
    a = [a_result(f"s{i}", "p", metadata={"text": i // 3}) for i in range(12)]
    with pytest.raises(UsageError, match=r"no pair has 'txt' .* did you mean `text`\?"):
        compare(a, a, cluster="txt")
    blank = [replace(result, metadata={"text": " "}) for result in a]
    with pytest.raises(UsageError, match=r"no pair has 'text' .* it is empty in every row"):
        compare(blank, blank, cluster="text")
    half = [*a[:6], *blank[6:]]
    found = compare(half, half, cluster="text")
    assert found.difference.clusters == 8 and found.warnings[0].startswith(
        "6 of 12 pairs have no 'text'"
    )
    with pytest.raises(UsageError, match="the fields are `text`"):
        compare(a, a, cluster="nope")
    assert compare([], [], cluster="nope").n == 0


def test_batches_that_are_clustered_by_the_same_field_are_compared_by_it() -> None:
    found = compare(passages(3), passages(5))
    assert (
        found.difference
        == compare(list(passages(3)), list(passages(5)), cluster="passage").difference
    )
    assert (
        found.cluster == found.to_dict()["cluster"] == "passage" and found.difference.clusters == 10
    )
    assert found.difference.p == pytest.approx(
        0.168, abs=5e-4
    ) and found.difference.se == pytest.approx(0.1333, abs=5e-5)
    assert "paired t, clustered by passage" in " ".join(found.to_text().split())
    independent = compare(passages(3), passages(5), cluster="")
    assert independent.difference == compare(list(passages(3)), list(passages(5))).difference
    assert independent.cluster is None and independent.design_effect is None
    assert independent.difference.method.startswith("exact McNemar") and independent.warnings == ()


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("passage", None, "by 'passage' and side b by nothing"),
        (None, "text", "by nothing and side b by 'text'"),
        ("passage", "text", "by 'passage' and side b by 'text'"),
    ],
)
def test_batches_with_different_clusters_are_compared_with_a_warning(
    a: str, b: str, said: str
) -> None:
    found = compare(passages(3, a), passages(5, b))
    assert found.cluster is None and found.difference.clusters is None
    assert [
        warning
        for warning in found.warnings
        if said in warning and "pairs are independent unless" in warning
    ]
    named = compare(passages(3, a), passages(5, b), cluster="passage")
    assert named.difference.clusters == 10 and not any(
        said in warning for warning in named.warnings
    )


def test_batches_with_different_clusters_meet_and_miss_no_threshold_until_a_field_is_named() -> (
    None
):
    found = compare(passages(3), passages(5, None))
    assert found.is_at_odds and found.to_dict()["is_at_odds"] is True
    status, why = found.at_least(-0.9)
    assert (
        status is ThresholdStatus.INCOMPLETE
        and "clustered by different fields, or only one is" in why
    )
    for cluster in ("passage", ""):
        named = compare(passages(3), passages(5, None), cluster=cluster)
        assert not named.is_at_odds and named.at_least(-0.9) == (ThresholdStatus.MET, "")


def test_a_run_and_a_folder_give_results_of_one_type() -> None:
    returned = [
        inspect.signature(each.results, eval_str=True).return_annotation
        for each in (Batch, BatchResult)
    ]
    assert returned == [Results, Results]


def test_a_list_declares_no_clusters() -> None:
    for a, b in ((list(passages(3)), passages(5)), (passages(3), list(passages(5)))):
        found = compare(a, b)
        assert (found.is_at_odds, found.cluster, found.warnings) == (False, None, ())
        assert found.at_least(-0.9) == (ThresholdStatus.MET, "")


def test_a_declared_cluster_field_that_no_pair_has_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"no pair has 'passge' .* both batches are clustered; did you mean `passage`\?",
    ):
        compare(passages(3, "passge"), passages(5, "passge"))


def test_a_comparison_has_a_short_repr_and_prints_as_tables() -> None:
    found = compare(passages(3), passages(5))
    assert repr(found) == (
        "<Comparison of passed: b − a is +0.2, 95 % interval -0.1016 to +0.5016, p = 0.1679, 100 of 100 samples make a pair>"
    )
    assert repr(compare([], [])) == "<Comparison of passed: 0 of 0 samples make a pair>"
    assert str(found) == found.to_text() and found._repr_markdown_() == found.to_markdown()  # pyright: ignore[reportPrivateUsage]


@given(st.lists(st.tuples(st.sampled_from("pf"), st.sampled_from("pf")), min_size=1, max_size=40))
def test_a_disagreement_of_interval_and_p_is_reported(pairs: list[tuple[str, str]]) -> None:
    found = compare(side("".join(a for a, _ in pairs)), side("".join(b for _, b in pairs)))
    difference = found.difference
    assert difference.low is not None and difference.high is not None and difference.p is not None
    disagree = (difference.low <= 0 <= difference.high) != (difference.p > 0.05)
    assert bool(found.warnings) == disagree


def test_an_interval_without_0_with_a_p_above_005_is_explained() -> None:
    found = compare(side("p" * 10 + "f" * 5), side("p" * 15))
    assert found.difference.low is not None and found.difference.low > 0
    assert found.difference.p is not None and found.difference.p > 0.05
    (warning,) = found.warnings
    assert (
        warning.startswith("the interval excludes 0, and p is above 0.05")
        and "rely on p" in warning
    )
    assert "rely on p" in " ".join(found.to_text().split())


def test_epochs_are_averaged_before_they_are_paired() -> None:
    a = [a_result("x", letter, epoch) for epoch, letter in enumerate("pffe", 1)]
    b = [a_result("x", letter, epoch) for epoch, letter in enumerate("ppf", 1)]
    found = compare(a, b)
    assert found.n == 1 and found.difference.mean == pytest.approx(1 / 3)
    assert found.gained == ("x",)
    tie = compare(a, [a_result("x", "p", 1), a_result("x", "f", 2)])
    assert (tie.gained, tie.lost) == ((), ())


def test_of_two_results_for_one_sample_the_last_one_counts() -> None:
    found = compare([a_result("x", "e"), a_result("x", "p")], [a_result("x", "f")])
    assert (found.n, found.lost, found.a.errors) == (1, ("x",), 0)


LINES = st.lists(
    st.tuples(
        st.sampled_from(["b", "a", "é", "\U0001f600", "\uffff", "\ud83d"]),
        st.integers(1, 3),
        st.sampled_from("pfeu"),
    ),
    max_size=30,
)


def by_hand(lines: list[tuple[str, int, str]]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for sample, epoch, letter in lines:
        found.setdefault(sample, {})[epoch] = letter
    return found


def mean_by_hand(epochs: dict[int, str]) -> float | None:
    judged = [letter == "p" for letter in epochs.values() if letter in "pf"]
    return math.fsum(judged) / len(judged) if judged else None


@given(LINES, LINES)
def test_results_in_any_order_equal_those_by_hand(
    first: list[tuple[str, int, str]], second: list[tuple[str, int, str]]
) -> None:
    found = compare(
        *(
            [a_result(sample, letter, epoch) for sample, epoch, letter in lines]
            for lines in (first, second)
        )
    )
    a, b = by_hand(first), by_hand(second)
    shared = sorted(a.keys() & b.keys())
    means = {name: (mean_by_hand(a[name]), mean_by_hand(b[name])) for name in shared}
    pairs = [(x, y) for x, y in means.values() if x is not None and y is not None]
    assert (found.n, found.of) == (len(pairs), len(a.keys() | b.keys()))
    assert found.a.mean == (math.fsum(x for x, _ in pairs) / len(pairs) if pairs else None)
    for summary, samples, which in ((found.a, a, 0), (found.b, b, 1)):
        valueless = [name for name in shared if means[name][which] is None]
        assert summary.errors == sum("e" in samples[name].values() for name in valueless)
        assert summary.errors + summary.unscored == len(valueless) and summary.only == len(
            samples
        ) - len(shared)
    flips = [
        name for name, (x, y) in means.items() if x is not None and y is not None and x < 0.5 < y
    ]
    assert found.gained == tuple(flips)


def test_pairs_take_a_few_hundred_bytes_whatever_their_inputs() -> None:
    def results(of: int) -> Iterator[SampleResult]:
        for i in range(3_000):
            inputs = {"q": f"{i} {'x' * 500}"}
            yield a_result(
                f"sample-{i:08d}", "pf"[i * of % 7 % 2], inputs=inputs, metadata={"text": i // 4}
            )

    tracemalloc.start()
    try:
        found = compare(results(1), results(3), by="inputs", cluster="text")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.n == 3_000 and found.difference.clusters == 750
    assert peak / 3_000 < 400


def test_flipped_samples_are_in_the_order_of_the_dataset() -> None:
    """Computed ids are hashes, and results come in the order in which they ended."""
    ids = ["c0", "a1", "d2", "b3"]
    a = [replace(a_result(each, "f"), place=place) for place, each in enumerate(ids)]
    b = [replace(a_result(each, "p"), place=place) for place, each in enumerate(ids)]
    assert compare(reversed(a), b).gained == tuple(ids)
    assert compare(b, reversed(a)).lost == tuple(ids)


def test_pairs_by_inputs_are_in_the_order_of_their_ids() -> None:
    draw = random.Random(2)
    a, b = ([draw.random() for _ in range(30)] for _ in range(2))
    backwards = [replace(each, inputs={"q": f"{99 - i}"}) for i, each in enumerate(scored(a))]
    others = [
        replace(each, inputs={"q": f"{99 - i}"}, sample_id=f"{i}")
        for i, each in enumerate(scored(b))
    ]
    found = compare(backwards, others, by="inputs", scorer="f1")
    assert found.difference == compare(scored(a), scored(b), scorer="f1").difference
    assert found.gained == tuple(sorted(found.gained)) and len(found.gained) > 1
    assert found == compare(reversed(backwards), reversed(others), by="inputs", scorer="f1")


def test_pairs_may_be_made_by_inputs_or_metadata() -> None:
    a = [a_result("1", inputs={"q": "x"}, metadata={"key": 7})]
    b = [a_result("2", "f", inputs={"q": "x"}, metadata={"key": 7})]
    assert compare(a, b).n == 0
    assert compare(a, b, by="inputs").n == compare(a, b, by="metadata.key").n == 1


@pytest.mark.parametrize("by", ["", "name", "metadata", "metadata.", "inputs.q"])
def test_pairs_by_anything_else_are_refused(by: str) -> None:
    with pytest.raises(UsageError, match=r"id, inputs or metadata\.NAME"):
        compare([], [], by=by)


def test_results_that_cannot_be_paired_are_refused() -> None:
    same = [a_result("1", metadata={"k": 1}), a_result("2", metadata={"k": 1})]
    with pytest.raises(UsageError, match="'1' and '2' have the same value"):
        compare(same, [], by="metadata.k")
    with pytest.raises(UsageError, match="has no 'other'"):
        compare(same, [], by="metadata.other")
    with pytest.raises(UsageError, match="one template and variant at a time"):
        compare([a_result("1"), a_result("1", variant="large")], [])
    with pytest.raises(UsageError, match="side b has no score by 'f1'; there is none"):
        compare(scored([0.5]), side("p"), scorer="f1")


def test_other_differences_of_the_batches_are_warnings() -> None:
    a = [a_result("x", target="1", scores={"s": Score(1.0, True)}), a_result("y", target="2")]
    b = [
        a_result(
            "x", target="9", template="quiz2", inputs={"q": "new"}, scores={"t": Score(1.0, True)}
        ),
        a_result("y", target="2", template="quiz2"),
    ]
    assert compare(a, b).warnings == (
        "the templates differ: quiz and quiz2",
        "the scorers differ: only one side has s, t",
        "the inputs of 1 of 2 samples on both sides differ",
        "the target of 1 of 2 samples on both sides differ",
    )
    assert (
        compare(
            a, [a_result("x", target="1", variant="large"), a_result("y", target="2")][:0]
        ).warnings
        == ()
    )


def test_errors_and_missing_scores_of_a_scorer_are_distinguished() -> None:
    a = [
        a_result("1", scores={"s": Score(None, None, error="broke")}),
        a_result("2", scores={"s": Score(None, None)}),
        a_result("3", "e"),
        a_result("4", scores={"s": Score(float("nan"), True)}),
        a_result("5", scores={"s": Score(0.5, True)}),
    ]
    b = [a_result(str(i), scores={"s": Score(0.75, True)}) for i in range(1, 6)]
    found = compare(a, b, scorer="s")
    assert (found.n, found.of, found.a.errors, found.a.unscored) == (1, 5, 3, 1)
    assert found.difference.mean == 0.25 and found.difference.low is None


def test_nothing_at_all_can_be_compared() -> None:
    found = compare([], [])
    assert (found.n, found.of, found.difference.mean, found.smallest()) == (0, 0, None, None)
    assert "without a pair there is no difference" in found.to_text()


def test_the_text_shows_pairs_flips_and_pairs_needed() -> None:
    text = compare(side("pppppppfff" * 3), side("pppppfffff" * 3 + "p")).to_text(110)
    assert "30 of 31 samples make a pair, by id" in text
    assert "passed, b − a: -0.2 ± " in text and "p = 0.03125 (exact McNemar" in text
    assert "6 passed in a and failed in b: s05, s06, s15, s16, s25, s26" in text
    assert "Samples needed" in text and "0.05" in text


def test_flipped_rows_without_an_id_are_named_by_number_and_words() -> None:
    computed = [f"{n:016x}" for n in range(30)]
    a, b = (
        [replace(each, sample_id=computed[n], place=n) for n, each in enumerate(side(v * 30))]
        for v in "fp"
    )
    found = compare(a, b)
    assert found.gained == tuple(computed)
    label = f"row 2: {next(iter(a[1].inputs.values()))} [{computed[1]}]"
    assert found.labels[computed[1]] == found.to_dict()["labels"][computed[1]] == label
    lines = found.to_text(120).splitlines()
    assert any(line.strip() == f"- {label}" for line in lines)
    assert any(line.strip() == "- and 10 more" for line in lines)
    assert compare(side("f"), side("p")).labels == {}


def test_many_flipped_ids_are_cut_in_text_and_whole_in_json() -> None:
    found = compare(side("f" * 30), side("p" * 30))
    assert "and 10 more" in found.to_text() and len(found.to_dict()["gained"]) == 30
    assert found.to_dict()["version"] == 1


def test_shown_texts_cannot_act() -> None:
    bad = "x\x1b[2J|<b>"
    text = compare([a_result(bad, "p")], [a_result(bad, "f")]).to_text()
    assert "\x1b" not in text
    markdown = compare([a_result(bad, "p")], [a_result(bad, "f")]).to_markdown()
    assert "\x1b" not in markdown and "<b>" not in markdown


INCLUDES = {"type": "includes", "ignore_case": False}


JUDGE = {"type": "reference", "templates": {"grade": "1"}, "judges": ["a"]}


@pytest.mark.parametrize(
    ("a", "b", "warnings"),
    [
        ({"s": INCLUDES}, {"s": dict(INCLUDES)}, ()),
        (
            {"s": INCLUDES},
            {"s": {**INCLUDES, "ignore_case": True}},
            ("the scorer s differs: ignore_case (false and true)",),
        ),
        (
            {"s": JUDGE},
            {"s": {**JUDGE, "judges": ["b"]}},
            ("the scorer s differs: its judge's model or settings",),
        ),
        (
            {"s": JUDGE},
            {"s": {**JUDGE, "templates": {"grade": "2"}}},
            ("the scorer s differs: its templates",),
        ),
        ({"s": {"labels": "x" * 50}}, {"s": {"labels": "y"}}, ("the scorer s differs: labels",)),
        ({"s": INCLUDES}, {"t": INCLUDES}, ("the scorers differ: only one side has s, t",)),
        ({"s": INCLUDES}, None, ("the scorers differ: only one side has s",)),
    ],
)
def test_scorers_are_compared_by_what_the_batches_declare(
    a: Any, b: Any, warnings: tuple[str, ...]
) -> None:
    assert (
        compare(declared(side("pp"), scorers=a), declared(side("pp"), scorers=b)).warnings
        == warnings
    )


def test_errors_that_count_as_failed_on_one_side_only_are_a_warning() -> None:
    a, b = (declared(side("pp"), count_as_failed=reasons) for reasons in ((), ("timeout",)))
    assert compare(a, b).warnings == ("only one side counts the error timeout as failed",)


def test_a_side_with_only_errors_has_no_differing_scorers() -> None:
    a, b = scored([0.5, 0.6]), [a_result("s0000", "e"), a_result("s0001", "e")]
    assert compare(a, b).warnings == ()
    said = {"f1": {"type": "f1"}}
    for ours, theirs in ((a, b), (declared(a, scorers=said), declared(b, scorers=said))):
        found = compare(ours, theirs, scorer="f1")
        assert (found.n, found.b.errors, found.warnings) == (0, 2, ())
    with pytest.raises(UsageError, match="side b has no score by 'f2'; there is f1"):
        compare(declared(b, scorers={"f2": {}}), declared(b, scorers=said), scorer="f2")
