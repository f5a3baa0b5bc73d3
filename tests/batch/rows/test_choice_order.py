"""Options in another order: the target moves along, and the order depends on the seed and the row only."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch import Sample
from evaluator.batch.rows.choice_order import shuffle_choices
from tests.batch.conftest import QUIZ, Calls, Run, Scripted

WORDS = ["Paris", "London", "Rome", "Berlin"]


def shuffled(target: Any, choices: Any = WORDS, id: str = "r1", seed: int = 7) -> Sample:
    found = shuffle_choices(Sample(id, {"choices": choices}, target), seed)
    assert found is not None
    return found


@pytest.mark.parametrize("id", [f"r{number}" for number in range(6)])
def test_the_target_names_the_same_option(id: str) -> None:
    moved = shuffled("B", id=id)
    assert sorted(moved.inputs["choices"]) == sorted(WORDS)
    assert moved.inputs["choices"]["ABCD".index(moved.target)] == "London"
    assert moved.inputs["choices"][shuffled(1, id=id).target] == "London"
    assert shuffled("London", id=id).target == "London"
    both = shuffled(["A", 2], id=id).target
    assert {moved.inputs["choices"]["ABCD".index(both[0])], moved.inputs["choices"][both[1]]} == {
        "Paris",
        "Rome",
    }
    assert shuffled("(b)", id=id).target == moved.target
    listed = shuffled("A, C, ", id=id).target.split(", ")
    assert {moved.inputs["choices"]["ABCD".index(each)] for each in listed} == {"Paris", "Rome"}
    assert shuffled("A, C", ["A, C", "London"], id=id).target == "A, C"


@pytest.mark.parametrize("target", [[1, 0, 1, 0], [False, True, False, False], "AC"], ids=repr)
def test_flags_and_joined_letters_are_moved_along(target: Any) -> None:
    right = (
        {WORDS["ABCD".index(each)] for each in target}
        if target == "AC"
        else {word for word, flag in zip(WORDS, target, strict=True) if flag}
    )
    for id in "abcdef":
        moved = shuffled(target, id=id)
        choices, now = moved.inputs["choices"], moved.target
        chosen = (
            now.split(", ")
            if isinstance(now, str)
            else ["ABCD"[at] for at, flag in enumerate(now) if flag]
        )
        assert {choices["ABCD".index(each)] for each in chosen} == right


def test_a_table_keeps_its_letters() -> None:
    moved = shuffled("X", {"X": "one", "Y": "two", "Z": "three"})
    assert (
        list(moved.inputs["choices"]) == ["X", "Y", "Z"]
        and moved.inputs["choices"][moved.target] == "one"
    )


def test_the_order_depends_on_the_seed_and_the_row() -> None:
    orders = {
        tuple(shuffled("A", id=str(id), seed=seed).inputs["choices"])
        for id in range(5)
        for seed in range(5)
    }
    assert len(orders) > 8
    assert shuffled("A") == shuffled("A")


@pytest.mark.parametrize("target", [None, True, 9, "Madrid", "E"], ids=repr)
def test_a_target_that_is_no_position_stays(target: Any) -> None:
    assert shuffled(target).target == target


def test_without_options_there_is_nothing_to_shuffle() -> None:
    assert shuffle_choices(Sample("r", {"question": "?"}, "A"), 1) is None


def test_a_batch_shuffles_and_scores_by_the_moved_target(
    run: Run, make_evaluator, calls: Calls
) -> None:
    template = QUIZ.replace("</inputs>", '<input name="choices" type="array"/></inputs>').replace(
        "{{ question }}", "{{ question }} {{ choices | join(';') }}"
    )
    calls.otherwise = lambda prompt: "ABCD"[prompt.split()[-1].split(";").index("London")]
    rows = [
        {"id": str(number), "question": "UK?", "choices": WORDS, "target": "B"}
        for number in range(8)
    ]
    evaluator = make_evaluator(template, backend=Scripted(script=calls))
    result = run(rows, evaluator=evaluator, scorers=["choice"], shuffle_choices=3)
    assert result.summary.counts.passed == 8 and len({each.target for each in result.results()}) > 1


def test_a_row_without_options_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="no list `choices` or `options` to shuffle"):
        run(shuffle_choices=1)
