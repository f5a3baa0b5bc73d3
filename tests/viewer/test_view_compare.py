"""Comparison in the viewer: the numbers of `compare`, flips in both directions, and marked differences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch.reading import open_batch
from evaluator.batch.records import Score
from evaluator.viewer import compare_batches
from evaluator.viewer.report_comparison import marked
from evaluator.viewer.server import state
from tests.batch.export.results import HOSTILE, result
from tests.viewer.batches import write_batch
from tests.viewer.site import assert_harmless, page, pages

RIGHT, WRONG = {"scores": {"s": Score(1.0, True)}}, {"scores": {"s": Score(0.0, False)}}
BOTH = [{"template": "answer", "variant": "small"}, {"template": "answer", "variant": "large"}]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "WAIT_S", 120)


def ids(root: Path) -> dict[str, str]:
    """The id of each batch by its name in the list."""
    return {
        name: key
        for key, name in re.findall(r'href="/batch/(\w+)">([^<]*)<', page(root, "/batches").text)
    }


@pytest.fixture
def two(tmp_path: Path) -> str:
    """Two batches of four samples. From a to b one is lost and two are gained; the query of their comparison."""
    answers = {"w": (RIGHT, WRONG), "x": (WRONG, RIGHT), "y": (WRONG, RIGHT), "z": (RIGHT, RIGHT)}
    for place, name in enumerate("ab"):
        rows = [
            result(key, content=f"It is {name} <b>.", **sides[place])
            for key, sides in answers.items()
        ]
        metrics = [{"type": "macro", "name": "macro", "by": "{{ target }}"}]
        write_batch(
            tmp_path / name, rows, total=4, scorers={"s": {"type": "exact"}}, metrics=metrics
        )
    found = ids(tmp_path)
    return f"/compare?a={found['a']}&b={found['b']}"


def flipped(text: str) -> list[str]:
    return re.findall(r'<article class="flip">\s*<h3>([^<]*)</h3>', text)


def test_the_metrics_of_both_batches_are_compared(tmp_path: Path, two: str) -> None:
    text = page(tmp_path, two).text
    cells = re.findall(r">([^<]*)</t[hd]>", text[text.index("<h3>Metrics</h3>") :])
    values = {
        side: open_batch(tmp_path / side).summarise().groups[0].metrics["macro"].value
        for side in "ab"
    }
    assert cells[8] == "macro" and cells[11] == cells[14] == "4 of 4"
    assert (float(cells[9]), float(cells[12])) == (values["a"], values["b"]) and values[
        "a"
    ] != values["b"]


def test_without_a_choice_the_page_asks_for_one(tmp_path: Path, two: str) -> None:
    text = page(tmp_path, "/compare").text
    assert text.count("<option") == 4
    assert "Flipped" not in text


def test_two_batches_show_the_paired_difference_its_interval_and_p(
    tmp_path: Path, two: str
) -> None:
    text = page(tmp_path, two).text
    assert "4 of 4 samples make a pair, by id" in text
    assert "passed, b − a: +0.25" in text and "95 % interval" in text and "p = 1 (" in text
    assert "1 passed in a and failed in b" in text and "2 failed in a and passed in b" in text


def test_flips_are_shown_in_both_directions_with_their_differences_marked(
    tmp_path: Path, two: str
) -> None:
    lost, gained = pages(tmp_path, two, f"{two}&kind=gained")
    assert (flipped(lost.text), flipped(gained.text)) == (["w"], ["x", "y"])
    assert "It is<del> a</del> &lt;b&gt;." in lost.text
    assert "It is<ins> b</ins> &lt;b&gt;." in lost.text
    samples = [link for link in lost.links if link.startswith("/sample/")]
    assert len(samples) == 2
    for answer in pages(tmp_path, *samples):
        assert "<h1>w</h1>" in answer.text


def test_many_flips_are_paged(tmp_path: Path) -> None:
    for name, given_scores in (("a", RIGHT), ("b", WRONG)):
        write_batch(tmp_path / name, [result(f"s{n:02}", **given_scores) for n in range(25)])
    found = ids(tmp_path)
    query = f"/compare?a={found['a']}&b={found['b']}"
    answers = pages(tmp_path, *(f"{query}&page={number}" for number in ("1", "2", "3", "99", "x")))
    sizes = [len(flipped(answer.text)) for answer in answers]
    assert sizes == [10, 10, 5, 5, 10]


def test_two_variants_of_one_batch_are_compared(tmp_path: Path) -> None:
    rows = [result("x", variant="small", **WRONG), result("x", variant="large", **RIGHT)]
    write_batch(tmp_path / "both", rows, cells=BOTH)
    text = page(tmp_path, f"/compare?a={ids(tmp_path)['both']}&kind=gained").text
    assert flipped(text) == ["x"]
    same = page(tmp_path, f"/compare?a={ids(tmp_path)['both']}&cell_a=1&cell_b=1").text
    assert "Both sides are the same" in same


def test_a_sample_with_epochs_is_shown_at_an_epoch_where_it_differs(tmp_path: Path) -> None:
    for name, sides in (("a", (RIGHT, RIGHT, RIGHT)), ("b", (RIGHT, WRONG, WRONG))):
        rows = [
            result("x", epoch=number, content=f"{name}{number}", **side)
            for number, side in enumerate(sides, 1)
        ]
        write_batch(tmp_path / name, rows, epochs=3)
    found = ids(tmp_path)
    text = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}").text
    assert "epoch 2" in text and "<del>a2</del>" in text and "<ins>b2</ins>" in text


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
    assert sum(len(flipped(answer.text)) for answer in answers) == 1
    for answer in answers:
        assert_harmless(answer.text, forms=1)


words = st.lists(st.sampled_from(["a", "b ", "\n", "long word ", "é"]), max_size=30).map("".join)


@given(words, words)
def test_marked_parts_make_up_the_texts_and_unmarked_ones_are_equal(a: str, b: str) -> None:
    first, second = marked(a, b)
    assert ("".join(part.text for part in first), "".join(part.text for part in second)) == (a, b)
    same = [
        "".join(part.text for part in parts if not part.is_changed) for parts in (first, second)
    ]
    assert same[0] == same[1]
    if a == b:
        assert same[0] == a


@pytest.mark.parametrize("text", ["word " * 5_000, "line\n" * 5_000, "x" * 100_000])
def test_long_texts_are_marked_where_they_differ(text: str) -> None:
    first, second = marked(f"{text} one end", f"{text} other end")
    changed = [
        "".join(part.text for part in parts if part.is_changed).split() for parts in (first, second)
    ]
    assert changed == [["one"], ["other"]]
    assert "".join(part.text for part in second) == f"{text} other end"


def test_a_flip_of_a_row_without_an_id_is_named_by_its_number_and_first_words(
    tmp_path: Path,
) -> None:
    for name, side in (("a", RIGHT), ("b", WRONG)):
        write_batch(tmp_path / name, [result("0123456789abcdef", **side)], total=1)
    found = ids(tmp_path)
    text = page(tmp_path, f"/compare?a={found['a']}&b={found['b']}").text
    assert flipped(text) == ["row 4: Which element has the symbol Pb?"]
    (compared,) = compare_batches(open_batch(tmp_path / "a"), open_batch(tmp_path / "b"))
    assert [each["title"] for each in compared["lost"]["flips"]] == flipped(text)
