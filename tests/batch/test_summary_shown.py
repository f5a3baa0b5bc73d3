"""Summaries as people see them: short reprs, tables that fit the terminal, texts that cannot act."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch import BatchSummary, Failure, Score
from evaluator.batch.statistics import (
    proportion_of,
)
from evaluator.batch.summary import ScorerSummary, summarise
from evaluator.batch.summary.tables import Table, as_text
from tests.batch.summary_results import a_result, only, results_of


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
