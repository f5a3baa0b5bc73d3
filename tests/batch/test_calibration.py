"""Labels correct a judge's number, in the summary, in comparisons and in thresholds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import CurrentLabels, LabelVerdict, open_batch
from evaluator.batch.calibration import labelled_scorer
from evaluator.batch.compare.comparison import compare_corrected, corrected_tables
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import append_labels, read_labels
from evaluator.batch.summary.tables import as_text
from evaluator.batch.thresholds import (
    check_fit,
    check_thresholds,
    measured_scorers,
    parse_threshold,
)
from tests.batch.labelled import CELL, judged_batch, label_of, label_some


def test_labels_correct_a_judge_that_is_too_kind(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=1000, right=0.7, sensitivity=0.97)
    label_some(batch, 150)
    summary = batch.summarise()
    found = summary.groups[0].calibrations["judge"]
    judge = found.share.judge
    corrected = found.share.corrected
    assert judge.low is not None and judge.low > 0.7
    assert corrected.low is not None and corrected.high is not None
    assert corrected.low < 0.7 < corrected.high
    assert found.rates.sensitivity.mean == pytest.approx(0.97, abs=0.03)
    assert found.counts.labelled == 150 == found.share.labels
    assert found.labellers == {"ada": 150} and found.people is None
    data = json.loads(json.dumps(summary.to_dict()))["groups"][0]["calibrations"]["judge"]
    assert data["corrected"]["mean"] == corrected.mean and data["labels"] == 150
    for shown in (str(summary), summary.to_markdown()):
        assert "Corrected by labels" in shown and "150 of 1,000" in shown


def test_a_summary_without_labels_says_that_a_model_judged(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    (note,) = batch.summarise().notes
    assert note.startswith("judge: a model judged (some/model), and no answer is labelled")
    label_some(batch, 5)
    assert batch.summarise().notes == ()
    by_rule = judged_batch(tmp_path / "c", judges={})
    assert by_rule.summarise().notes == ()


def test_labels_of_a_scorer_that_is_gone_measure_another_one(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", judges={})
    labels = [dataclasses.replace(one, scorer="earlier") for one in label_some(batch, 1)]
    (batch.folder / "labels.jsonl").unlink()
    append_labels(batch.folder, labels)
    current = CurrentLabels(read_labels(batch.folder))
    (note,) = batch.summarise().notes
    assert "labels for the scorer earlier are not used here" in note
    assert labelled_scorer("judge", current) == "earlier"
    found = batch.calibrations("judge")[CELL]["judge"]
    assert (found.counts.labelled, found.labels_for) == (1, "earlier")
    append_labels(batch.folder, [dataclasses.replace(labels[0], scorer="third")])
    with pytest.raises(UsageError, match="several others have labels: earlier, third"):
        labelled_scorer("judge", CurrentLabels(read_labels(batch.folder)))
    with pytest.raises(UsageError, match="nothing is labelled"):
        labelled_scorer("judge", CurrentLabels())


def test_people_are_measured_too_and_a_tie_counts_as_one_half(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    label_some(batch, 40)
    label_some(batch, 20, labeller="bob")
    first, second, *_ = batch.results()
    opposite = {"right": LabelVerdict.FAILED, "wrong": LabelVerdict.PASSED}
    append_labels(
        batch.folder,
        [
            label_of(first),
            label_of(first, "bob", verdict=opposite[first.content]),
            label_of(second),
            label_of(second, "bob", verdict=LabelVerdict.UNDECIDED),
        ],
    )
    found = batch.summarise().groups[0].calibrations["judge"]
    assert found.split == 1 and found.undecided == 1
    assert found.counts.labelled == found.share.labels - 1
    people = found.people
    assert people is not None and people.labellers == ("ada", "bob")
    assert people.same == (people.alpha.n - 1) / people.alpha.n
    assert "on 1 result labellers are split" in str(batch.summarise())


def test_values_are_corrected_where_each_label_has_one(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    results = list(batch.results())
    values = {"right": 0.8, "wrong": 0.2}
    append_labels(
        batch.folder, [label_of(each, value=values[each.content]) for each in results[:30]]
    )
    found = batch.summarise().groups[0].calibrations["judge"]
    assert found.value is not None and found.value.corrected.mean is not None
    truth = sum(values[each.content] for each in results) / len(results)
    assert found.value.corrected.mean == pytest.approx(truth, abs=0.12)
    append_labels(batch.folder, [label_of(results[40])])
    assert batch.summarise().groups[0].calibrations["judge"].value is None


def test_epochs_of_a_sample_are_not_independent(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=40, epochs=3)
    label_some(batch, 60)
    found = batch.summarise().groups[0].calibrations["judge"]
    assert found.share.corrected.clusters is not None and found.share.corrected.clusters <= 40
    assert found.share.judge.clusters == 40
    clustered = judged_batch(tmp_path / "c", cluster="topic")
    label_some(clustered, 30)
    assert clustered.summarise().groups[0].calibrations["judge"].share.corrected.clusters == 2
    unknown = judged_batch(tmp_path / "d", cluster="missing")
    label_some(unknown, 30)
    share = unknown.summarise().groups[0].calibrations["judge"].share
    assert share.corrected.mean is not None and share.corrected.low is None
    assert share.missing == "no result has the field to cluster by"


def test_groups_are_corrected_by_their_own_labels(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=200, group_by="topic")
    label_some(batch, 40, only=lambda result: result.metadata["topic"] == "a")
    by = batch.summarise().groups[0].calibrations["judge"].by
    assert (by["a"].labels, by["a"].of, by["b"].labels) == (40, 100, 0)
    assert by["a"].corrected.low is not None and by["b"].corrected.mean is None
    assert "none of the" in by["b"].missing


def test_without_a_label_of_each_verdict_there_is_no_corrected_number(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b")
    label_some(batch, 5, only=lambda result: bool(result.scores["judge"].passed))
    share = batch.summarise().groups[0].calibrations["judge"].share
    assert share.corrected.mean is None
    assert "results that the judge failed is labelled" in share.missing


@pytest.mark.parametrize(
    ("threshold", "status"),
    [
        ("kappa(judge) >= 0.2", "met"),
        ("kappa(judge) >= 0.99", "missed"),
        ("corrected(judge) >= 20%", "met"),
        ("corrected_low(judge) >= 0.95", "missed"),
        ("sensitivity(judge) >= 0.5", "met"),
        ("specificity(judge) >= 0.99", "missed"),
        ("kappa_low(judge) >= -1", "met"),
        ("judge.kappa >= 0.99", "missed"),
        ("alpha(judge) >= 0.2", "met"),
        ("alpha_low(judge) >= 0.99", "missed"),
    ],
)
def test_a_threshold_may_require_a_good_judge(tmp_path: Path, threshold: str, status: str) -> None:
    batch = judged_batch(tmp_path / "b")
    wanted = [parse_threshold(threshold)]
    (before,) = check_thresholds(batch.summarise(), wanted)
    assert before.status == "incomplete" and "no answer is labelled" in before.reason
    label_some(batch, 50)
    (found,) = check_thresholds(batch.summarise(), wanted)
    assert found.status == status, found
    assert (found.n, found.of) == (50, 60)


def test_a_threshold_measures_a_scorer_by_the_labels_of_another_one(tmp_path: Path) -> None:
    judges = {name: {"type": "graded"} for name in ("judge", "other")}
    batch = judged_batch(tmp_path / "b", scorers=judges)
    with BatchFolder.open(batch.folder) as folder:
        for result in list(batch.results()):
            scores = {**result.scores, "other": result.scores["judge"]}
            folder.append(dataclasses.replace(result, scores=scores))
    label_some(batch, 50)
    wanted = [parse_threshold(f"kappa({name}) >= 0.2") for name in judges]
    summary = batch.summarise(measured=measured_scorers(wanted))
    own, other = check_thresholds(summary, wanted)
    assert own.met and other.met and own.value == other.value
    # Without the threshold, nothing is corrected by labels of another question.
    assert set(batch.summarise().groups[0].calibrations) == {"judge"}


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        ("kappa(judge) >= 60", "between -1 and 1"),
        ("corrected(judge) >= 60", "did you mean 60%"),
        ("kappa(other) >= 0.6", "no scorer 'other'"),
    ],
)
def test_a_threshold_on_labels_that_cannot_be_met_is_refused(threshold: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_fit(
            [parse_threshold(threshold)],
            scorers=["judge"],
            cells=[CELL],
            epochs=1,
            reducers=None,
        )
    with pytest.raises(UsageError, match=r"write kappa\(SCORER\)"):
        parse_threshold("kappa >= 0.6")


def test_a_comparison_is_corrected_where_both_sides_have_labels(tmp_path: Path) -> None:
    a = judged_batch(tmp_path / "a", samples=400, right=0.5, wrong=0.5)
    b = judged_batch(tmp_path / "b", samples=400, right=0.7, wrong=0.0, seed=1)
    label_some(a, 150)
    assert compare_corrected(a, b, (CELL, CELL)) == []
    label_some(b, 150)
    (found,) = compare_corrected(a, b, (CELL, CELL))
    # The judge of a is kind and that of b is strict, so that their verdicts hide the difference.
    verdicts = [each.judge.mean for each in (found.a, found.b)]
    assert verdicts[0] is not None and verdicts[1] is not None
    assert abs(verdicts[1] - verdicts[0]) < 0.12
    difference = found.difference
    assert difference.low is not None and difference.high is not None and difference.p is not None
    assert difference.low < 0.2 < difference.high and difference.p < 0.05
    assert found.samples == 400 and "400 samples" in as_text(corrected_tables([found]), 200)
    assert compare_corrected(a, b, (CELL, CELL), scorer="other") == []


def test_no_label_no_second_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = judged_batch(tmp_path / "b")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the results are read again")

    monkeypatch.setattr("evaluator.batch.reading.judge_cells", fail)
    assert open_batch(batch.folder).summarise().groups[0].calibrations == {}
