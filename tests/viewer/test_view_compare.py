"""Comparison in the viewer: the numbers of `compare`, flips in both directions, and marked differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import Score, open_batch
from evaluator.viewer import compare_batches
from tests.batch.export.results import HOSTILE, result
from tests.viewer.batches import write_batch
from tests.viewer.site import Answer, assert_harmless, page, pages

RIGHT, WRONG = {"scores": {"s": Score(1.0, True)}}, {"scores": {"s": Score(0.0, False)}}
BOTH = [{"template": "answer", "variant": "small"}, {"template": "answer", "variant": "large"}]


def ids(root: Path) -> dict[str, str]:
    """The id of each batch by its name in the list."""
    return {entry["name"]: entry["id"] for entry in page(root, "/batches").data["entries"]}


@pytest.fixture
def two(tmp_path: Path) -> str:
    """Two batches of four samples. From a to b one is lost and two are gained; the query of their comparison."""
    answers = {"w": (RIGHT, WRONG), "x": (WRONG, RIGHT), "y": (WRONG, RIGHT), "z": (RIGHT, RIGHT)}
    for place, name in enumerate("ab"):
        rows = [
            result(key, content=f"It is {name} <b>.", place=row, **sides[place])
            for row, (key, sides) in enumerate(answers.items())
        ]
        rows.reverse()  # results are in the order in which they ended, pairs in that of the dataset
        metrics = [{"type": "macro", "name": "macro", "by": "{{ target }}"}]
        write_batch(
            tmp_path / name, rows, total=4, scorers={"s": {"type": "exact"}}, metrics=metrics
        )
    found = ids(tmp_path)
    return f"/compare?a={found['a']}&b={found['b']}"


def flipped(answer: Answer) -> list[str]:
    return [pair["title"] for pair in answer.data.get("pairs", [])]


def table_of(answer: Answer, title: str) -> dict[str, Any]:
    tables = answer.data["numbers"]["data"]["tables"]
    return next(table for table in tables if table["title"] == title)


def test_the_metrics_of_both_batches_are_compared(tmp_path: Path, two: str) -> None:
    (row,) = table_of(page(tmp_path, two), "Metrics")["rows"]
    values = {
        side: open_batch(tmp_path / side).summarise().groups[0].metrics["macro"].value
        for side in "ab"
    }
    assert row[0] == "macro" and row[3] == row[6] == "4 of 4"
    assert (float(row[1]), float(row[4])) == (values["a"], values["b"])
    assert values["a"] != values["b"]


def test_without_a_choice_the_page_asks_for_one(tmp_path: Path, two: str) -> None:
    data = page(tmp_path, "/compare").data
    assert [entry["name"] for entry in data["entries"]] == ["a", "b"]
    assert data["sides"] == [] and "numbers" not in data


def test_two_batches_show_the_paired_difference_its_interval_and_p(
    tmp_path: Path, two: str
) -> None:
    answer = page(tmp_path, two)
    first, second, third = table_of(answer, "Comparison")["lines"]
    assert first == "4 of 4 samples make a pair, by id"
    assert second.startswith("passed, b − a: +0.25")
    assert "95 % interval" in third and "p = 1 (" in third
    assert answer.data["matrix"] == [
        {"a": "passed", "b": "passed", "count": 1},
        {"a": "passed", "b": "failed", "count": 1},
        {"a": "failed", "b": "passed", "count": 2},
    ]


@pytest.mark.parametrize(
    ("right_in_a", "right_in_b", "words"),
    [
        (range(20, 60), range(60), "b is better by 33.3 points (95 %: 21 to 46, 60 pairs; 20 rows"),
        (range(60), range(20, 60), "b is worse by 33.3 points (95 %: 21 to 46, 60 pairs; 0 rows"),
        (range(30), range(31), "b is better by 1.7 points, which may be chance (95 %: −"),
        (range(30), range(30), "b is as good as a ("),
    ],
)
def test_the_result_is_told_in_words_first(
    tmp_path: Path, right_in_a: range, right_in_b: range, words: str
) -> None:
    for name, right in (("a", right_in_a), ("b", right_in_b)):
        rows = [result(f"s{n}", **(RIGHT if n in right else WRONG)) for n in range(60)]
        write_batch(tmp_path / name, rows, total=60)
    found = ids(tmp_path)
    data = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}").data["numbers"]["data"]
    assert data["words"].startswith(words)


def test_flips_of_both_directions_have_both_answers(tmp_path: Path, two: str) -> None:
    lost, gained = pages(tmp_path, two, f"{two}&from=failed&to=passed")
    assert (flipped(lost), flipped(gained)) == (["w"], ["x", "y"])
    first, second = lost.data["pairs"][0]["results"]
    assert (first["content"], second["content"]) == ("It is a <b>.", "It is b <b>.")
    for answer in pages(tmp_path, first["href"], second["href"]):
        assert answer.data["title"] == "w"


def test_where_nothing_is_lost_the_gained_results_are_shown_first(tmp_path: Path) -> None:
    for name, scores in (("a", WRONG), ("b", RIGHT)):
        write_batch(tmp_path / name, [result("x", **scores)], total=1)
    found = ids(tmp_path)
    answer = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}")
    assert flipped(answer) == ["x"]
    assert (answer.data["chosen"]["from"], answer.data["chosen"]["to"]) == ("failed", "passed")
    back = page(tmp_path, f"/compare?a={found['b']}&b={found['a']}")
    assert (back.data["chosen"]["from"], back.data["chosen"]["to"]) == ("passed", "failed")
    named = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}&from=passed&to=failed")
    assert flipped(named) == []


def test_many_flips_are_paged(tmp_path: Path) -> None:
    for name, given_scores in (("a", RIGHT), ("b", WRONG)):
        write_batch(tmp_path / name, [result(f"s{n:02}", **given_scores) for n in range(25)])
    found = ids(tmp_path)
    query = f"/compare?a={found['a']}&b={found['b']}"
    answers = pages(tmp_path, *(f"{query}&page={number}" for number in ("1", "2", "3", "99", "x")))
    sizes = [len(flipped(answer)) for answer in answers]
    assert sizes == [10, 10, 5, 5, 10]


def test_two_variants_of_one_batch_are_compared(tmp_path: Path) -> None:
    rows = [result("x", variant="small", **WRONG), result("x", variant="large", **RIGHT)]
    write_batch(tmp_path / "both", rows, cells=BOTH)
    query = f"/compare?a={ids(tmp_path)['both']}"
    assert flipped(page(tmp_path, f"{query}&from=failed&to=passed")) == ["x"]
    same = page(tmp_path, f"{query}&cell_a=1&cell_b=1").data
    assert "Both sides are the same" in same["problem"]


def test_a_sample_with_epochs_is_shown_at_each_epoch_where_it_differs(tmp_path: Path) -> None:
    for name, sides in (("a", (RIGHT, RIGHT, RIGHT)), ("b", (RIGHT, WRONG, WRONG))):
        rows = [
            result("x", epoch=number, content=f"{name}{number}", **side)
            for number, side in enumerate(sides, 1)
        ]
        write_batch(tmp_path / name, rows, epochs=3)
    found = ids(tmp_path)
    pairs = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}").data["pairs"]
    assert [pair["epoch"] for pair in pairs] == [2, 3]
    assert [each["content"] for each in pairs[0]["results"]] == ["a2", "b2"]


def test_a_comparison_that_cannot_be_made_says_why(tmp_path: Path, two: str) -> None:
    write_batch(tmp_path / "mixed", [result("x"), result("x", place=1, variant="large")], cells=[])
    found = ids(tmp_path)
    answer = page(tmp_path, f"/compare?a={found['mixed']}&b={found['a']}")
    assert (answer.status, "no templates × variants to compare" in answer.text) == (400, True)
    assert page(tmp_path, f"/compare?a={found['a']}&b=000000000000").status == 404
    damaged = tmp_path / "b" / "results.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"It is b", b"It is c", 1))
    assert "was changed after it was written" in page(tmp_path, two).text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(tmp_path: Path, text: str) -> None:
    cell = {"template": text, "variant": text}
    for name, side in (("a", True), ("b", False)):
        scores = {text: Score(float(side), side, text, text)}
        row = result(
            text, **cell, content=name + text, target=text, inputs={text: text}, scores=scores
        )
        write_batch(tmp_path / name, [row], name=text, cells=[cell], scorers={text: {"type": text}})
    keys = list(ids(tmp_path).values())
    answers = pages(
        tmp_path, f"/compare?a={keys[0]}&b={keys[1]}", f"/compare?a={keys[1]}&b={keys[0]}"
    )
    assert [len(flipped(answer)) for answer in answers] == [1, 1]
    for answer in answers:
        assert_harmless(answer.text)


def test_a_flip_of_a_row_without_an_id_is_named_by_its_number_and_first_words(
    tmp_path: Path,
) -> None:
    for name, side in (("a", RIGHT), ("b", WRONG)):
        write_batch(tmp_path / name, [result("0123456789abcdef", **side)], total=1)
    found = ids(tmp_path)
    answer = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}")
    assert flipped(answer) == ["row 4: Which element has the symbol Pb?"]
    (compared,) = compare_batches(open_batch(tmp_path / "a"), open_batch(tmp_path / "b"))
    assert [pair["title"] for pair in compared["pairs"]] == flipped(answer)
