"""Sessions of labellers: several at once, also for two answers side by side; what others add is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import LabelVerdict
from evaluator.batch.label_session import label_answers
from evaluator.batch.labels import read_labels
from evaluator.batch.preferences import label_pairs, preferences
from tests.batch.labelled import CELL, LARGE, judged_batch, pair_batch


def choose(session: Any, count: int) -> list[str]:
    """A person who knows the truth compares `count` pairs. Returns: the choices."""
    words: list[str] = []
    for _ in range(count):
        question = session.next()
        if question is None:
            break
        words.append("1" if dict(question.sections)["first answer"] == "right" else "2")
        session.answer(question, words[-1])
    return words


def test_two_labellers_at_once_see_what_the_other_has_labelled(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=40)
    ada = label_answers(batch, "judge", "ada")
    bob = label_answers(batch, "judge", "bob")
    for _ in range(10):
        for session in (ada, bob):
            question = session.next()
            assert question is not None
            session.answer(question, "p", note="n", seconds=2.0)
    labels = read_labels(batch.folder)
    assert len(labels) == 20 and len(ada.given) == len(bob.given) == 10
    (line,) = ada.subject.lines()
    distinct = len({label.key for label in labels})
    assert line.startswith(f"quiz × small: {distinct} of 40") and line == bob.subject.lines()[0]


def test_a_label_of_a_text_that_has_changed_does_not_count_in_a_session(tmp_path: Path) -> None:
    batch = judged_batch(tmp_path / "b", samples=12)
    ada = label_answers(batch, "judge", "ada")
    question = ada.next()
    assert question is not None
    bob = label_answers(batch, "judge", "bob")
    bob.answer(replace(question, shown="of an earlier text"), "p")
    ada.next()
    assert "0 of 12" in ada.subject.lines()[0]
    bob.answer(question, "f")
    ada.next()
    assert "1 of 12" in ada.subject.lines()[0]


def test_pairs_are_blind_in_random_order_and_equal_answers_are_not_asked(tmp_path: Path) -> None:
    batch = pair_batch(tmp_path / "b")
    session = label_pairs(batch, (LARGE, CELL), "ada", precision=1)
    words = choose(session, 100)
    assert len(words) == 36 and 8 < words.count("1") < 28
    (found,) = preferences(batch)
    assert (found.a, found.b) == (CELL, LARGE)
    assert (found.a_better, found.ties, found.b_better) == (0, 0, 36)
    assert (found.labels, found.of, found.preferred.mean) == (36, 36, 1.0)
    assert found.preferred.low is not None and 0.8 < found.preferred.low < 1
    last = session.undo()
    assert last is not None and read_labels(batch.folder)[-1].verdict is LabelVerdict.REMOVED
    session.answer(last, "=")
    (found,) = preferences(batch)
    assert (found.b_better, found.ties) == (35, 1)


def test_pairs_end_when_the_preference_is_known_and_a_second_labeller_sees_the_same_first(
    tmp_path: Path,
) -> None:
    batch = pair_batch(tmp_path / "b", samples=120)
    asked = len(choose(label_pairs(batch, (CELL, LARGE), "ada", precision=10), 200))
    assert 10 <= asked < 60
    first = label_pairs(batch, (CELL, LARGE), "bob", precision=10).next()
    assert first is not None and first.id in {
        f"{label.key}-{label.other}" for label in read_labels(batch.folder)
    }


def test_pairs_of_one_variant_or_without_a_difference_are_an_error(tmp_path: Path) -> None:
    batch = pair_batch(tmp_path / "b", samples=3, equal=3)
    with pytest.raises(UsageError, match="both sides are the same"):
        label_pairs(batch, (CELL, CELL), "ada")
    with pytest.raises(UsageError, match="no different answers"):
        label_pairs(batch, (CELL, LARGE), "ada")
