"""The order in which samples are shown: random within a verdict, blind, and no longer than needed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import CurrentLabels, LabelVerdict
from evaluator.batch.calibration import JudgedResults
from evaluator.batch.label_forms import Answer, LabelSheet
from evaluator.batch.label_session import OVERLAP, LabelQueue
from evaluator.batch.reading import judged_results
from tests.batch.labelled import CELL, judged_batch, label_of, result_of


def queue_of(
    folder: Path, labeller: str = "ada", precision: float = 3, **options: Any
) -> tuple[LabelQueue, dict[str, Any]]:
    batch = judged_batch(folder, **options)
    judged = judged_results(batch, {"judge": "judge"}, CurrentLabels())
    cells = {cell: found["judge"] for cell, found in judged.items()}
    return LabelQueue(cells, labeller, precision=precision), {
        result.key: result for result in batch.results()
    }


def label_all(queue: LabelQueue, results: dict[str, Any], labeller: str = "ada") -> list[str]:
    """Labels until nothing more is asked. Returns: the keys in order."""
    shown: list[str] = []
    while (key := queue.next()) is not None:
        shown.append(key)
        queue.add(label_of(results[key], labeller))
    return shown


def test_labelling_ends_when_the_width_is_reached(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", precision=9, samples=800)
    shown = label_all(queue, results)
    assert len(shown) == len(set(shown)) < 200
    (progress,) = queue.progress()
    assert progress.reach is not None and progress.reach <= 9 and progress.needed == 0
    assert progress.line(9).endswith(f"known to ± {progress.reach:.1f} points")


def test_the_number_of_labels_that_are_needed_is_about_right(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", precision=6, samples=800)
    for _ in range(60):
        queue.add(label_of(results[queue.next() or ""]))
    (early,) = queue.progress()
    assert early.needed is not None and "more labels for ± 6" in early.line(6)
    rest = len(label_all(queue, results))
    assert 0.5 * rest <= early.needed <= 2 * rest


def test_a_width_that_needs_more_results_is_named_as_such(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", precision=1, samples=60)
    assert len(label_all(queue, results)) == 60
    (progress,) = queue.progress()
    assert progress.needed is None and "± 1 needs more results" in progress.line(1)


def test_within_a_verdict_the_truth_has_no_part_in_the_order(tmp_path: Path) -> None:
    """The first labels of each verdict have the same share of right answers as the others."""
    first = 0
    every = 0
    for seed in range(12):
        queue, results = queue_of(tmp_path / str(seed), samples=40, seed=seed)
        shown = label_all(queue, results)
        passed = [key for key in shown if results[key].scores["judge"].passed]
        right = [results[key].content == "right" for key in passed]
        first += sum(right[:8])
        every += sum(right) * 8 / len(right)
    assert abs(first - every) < 18


def test_a_labeller_cannot_tell_the_verdict_from_the_order(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", samples=300)
    shown = [results[key].scores["judge"].passed for key in label_all(queue, results)[:100]]
    changes = sum(before != after for before, after in pairwise(shown))
    assert 25 < changes < 75
    assert 25 < sum(shown) < 75


def test_a_rare_verdict_gets_more_labels_than_its_share(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", samples=600, right=0.97, wrong=0.5)
    shown = [results[key].scores["judge"].passed for key in label_all(queue, results)[:60]]
    rare = sum(not passed for passed in shown)
    share = sum(not each.scores["judge"].passed for each in results.values()) / len(results)
    assert rare / 60 > 1.4 * share


def test_a_second_labeller_sees_some_of_the_same_and_then_new_samples(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=300)
    results = {result.key: result for result in batch.results()}
    cells = {CELL: judged_results(batch, {"judge": "judge"}, CurrentLabels())[CELL]["judge"]}
    ada = LabelQueue(cells, "ada", precision=1)
    for _ in range(50):
        ada.add(label_of(results[ada.next() or ""]))
    bob = LabelQueue(cells, "bob", precision=1)
    shown: list[str] = []
    for _ in range(60):
        shown.append(bob.next() or "")
        bob.add(label_of(results[shown[-1]], "bob"))
    both = [labels for labels in cells[CELL].labels.values() if len(labels) == 2]
    assert len(both) == OVERLAP and len(set(shown)) == 60


def test_skipped_samples_are_not_shown_and_undecided_ones_not_again(tmp_path: Path) -> None:
    queue, results = queue_of(tmp_path / "b", samples=12)
    first = queue.next()
    assert first is not None
    second = queue.next([first])
    assert second is not None and second != first
    queue.add(label_of(results[first], verdict=LabelVerdict.UNDECIDED))
    rest = label_all(queue, results)
    assert first not in rest and len(rest) == 11
    queue.add(label_of(results[first], verdict=LabelVerdict.REMOVED))
    assert queue.next() == first


def test_nothing_of_the_judge_is_on_the_sheet() -> None:
    result = result_of(1, "right", True)
    sheet = LabelSheet.of({"type": "rubric", "rubric": {"clear": 3, "short": 1}})
    assert list(sheet.sections(result)) == [
        ("question", "Number 1?"),
        ("criteria", "clear (3 points)\nshort (1 points)"),
        ("answer", "right"),
    ]


_GRADES = {"type": "graded", "grades": {"CORRECT": 1, "WRONG": 0, "NOT_ATTEMPTED": "unscored"}}
_INSIDE = {"type": "majority", "members": [{"type": "graded", "pass_at": 0.8}]}


@pytest.mark.parametrize(
    ("described", "word", "answer"),
    [
        ({}, "p", Answer(LabelVerdict.PASSED)),
        ({}, "Failed", Answer(LabelVerdict.FAILED)),
        ({}, "?", Answer(LabelVerdict.UNDECIDED)),
        ({}, "0.7", Answer(LabelVerdict.PASSED, 0.7)),
        (_INSIDE, "0.7", Answer(LabelVerdict.FAILED, 0.7)),
        (_GRADES, "1", Answer(LabelVerdict.PASSED, 1.0, "CORRECT")),
        (_GRADES, "WRONG", Answer(LabelVerdict.FAILED, 0.0, "WRONG")),
        (_GRADES, "3", Answer(LabelVerdict.UNDECIDED, None, "NOT_ATTEMPTED")),
    ],
)
def test_answers_are_read(described: Any, word: str, answer: Answer) -> None:
    assert LabelSheet.of(described).read(word) == answer


@pytest.mark.parametrize(
    ("described", "word"),
    [({}, "1.5"), ({}, "nan"), ({}, "x"), ({}, ""), (_GRADES, "4"), (_GRADES, "0.5")],
)
def test_other_answers_are_refused(described: Any, word: str) -> None:
    with pytest.raises(ValueError, match=r"key|number"):
        LabelSheet.of(described).read(word)


def test_a_result_without_a_verdict_is_not_shown() -> None:
    import dataclasses

    judged = JudgedResults("judge", "judge")
    judged.add(
        dataclasses.replace(result_of(1, "right", True), scores={}), {}, cluster="", group=""
    )
    assert LabelQueue({CELL: judged}, "ada", precision=3).next() is None
