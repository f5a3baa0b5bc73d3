"""Fields by which to cluster and to group: one that no row has is refused before a call is made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, SimulatedBackend, UsageError
from evaluator.batch import BatchOptions, Selection, make_plan
from evaluator.batch.compare import compare
from evaluator.batch.rows import RowError
from tests.batch.conftest import QUIZ, ROWS, Calls, Run
from tests.conftest import MakeEvaluator

PASSAGES = [{**row, "passage": n // 2} for n, row in enumerate(ROWS)]
SPARSE = [*ROWS[:6], *PASSAGES[6:]]


@pytest.mark.parametrize("purpose", ["cluster", "group_by"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("passge", r"no row has 'passge' in its metadata; did you mean `passage`\?"),
        ("topic", "the fields are `passage`"),
        (
            "question",
            "it is an input; to make it metadata too, list it in `metadata` .--metadata question.",
        ),
        (
            "target",
            "it is the target; to make it metadata too, list it in `metadata` .--metadata target.",
        ),
        (" ", "expected a string"),
        (3, "is 3, expected a string"),
    ],
)
def test_a_field_that_no_row_has_is_refused_before_a_call(
    run: Run, calls: Calls, tmp_path: Path, purpose: str, name: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=f"{purpose}.*{said}"):
        run(PASSAGES, **{purpose: name})
    assert calls == [] and not (tmp_path / "batch").exists()


def test_a_field_that_only_rows_outside_the_selection_have_is_one_that_no_row_has(
    run: Run, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the rows have no metadata"):
        run(SPARSE, cluster="passage", select=Selection(limit=3))
    drawn = run(
        SPARSE, cluster="passage", select=Selection(sample=5, seed=1), output=tmp_path / "drawn"
    ).summary
    assert drawn.with_cluster is not None and drawn.counts.results == 5


def test_where_only_some_rows_have_a_field_the_batch_says_how_many(run: Run) -> None:
    summary = run(SPARSE, cluster="passage", group_by="passage").summary
    assert (summary.with_cluster, summary.with_group_by) == (4, 4)
    assert summary.notes[:2] == (
        "6 of 10 results have no 'passage': each is clustered with its sample",
        "6 of 10 results have no 'passage': they form the group (none)",
    )


def test_an_input_may_be_a_field_too(run: Run) -> None:
    assert run(PASSAGES, cluster="question", metadata=["question"]).summary.with_cluster == 10


def test_of_a_file_each_row_is_looked_at_until_one_has_the_field(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in SPARSE))
    assert run(rows, cluster="passage").summary.with_cluster == 4
    with pytest.raises(UsageError, match="did you mean `passage`"):
        run(rows, cluster="passages", output=tmp_path / "other")


def test_a_row_that_cannot_be_used_is_found_before_a_call_unless_it_comes_from_a_stream(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    rows = [*ROWS[:3], ROWS[0]]
    with pytest.raises(UsageError, match="is not unique"):
        run(rows, cluster="question", metadata=["question"])
    assert not calls
    with pytest.raises(UsageError, match="is not unique"):
        run(iter(rows), output=tmp_path / "stream")
    assert len(calls) == 3


async def one_by_one() -> AsyncIterator[dict[str, Any]]:
    for row in PASSAGES:
        yield row


@pytest.mark.parametrize("rows", [lambda: iter(PASSAGES), one_by_one])
def test_rows_that_can_be_read_only_once_are_told_of_at_the_end(run: Run, rows: Any) -> None:
    result = run(rows(), cluster="passge", thresholds=["accuracy_low >= 0"])
    assert "no result has 'passge' in its metadata; did you mean `passage`?" in result.summary.notes
    assert not result.ok and "no result has the field to cluster by" in result.thresholds[0].reason


@pytest.mark.parametrize("purpose", ["cluster", "group_by"])
@pytest.mark.parametrize("blank", [None, "", " \t"])
def test_a_field_that_is_empty_in_every_row_is_said_to_be_so(
    run: Run, purpose: str, blank: Any
) -> None:
    rows = [{**row, "passage": blank} for row in ROWS]
    with pytest.raises(
        UsageError,
        match=f"{purpose}: no row has 'passage' in its metadata; it is empty in every row",
    ):
        run(rows, **{purpose: "passage"})
    result = run(iter(rows), **{purpose: "passage"})
    assert (
        "no result has 'passage' in its metadata; it is empty in every row that has it"
        in result.summary.notes
    )


def test_an_input_that_is_there_too_and_empty_is_not_told_to_be_named(run: Run) -> None:
    rows = [{**row, "question": " "} for row in ROWS]
    with pytest.raises(UsageError, match="it is empty in every row"):
        run(rows, cluster="question", metadata=["question"])


def test_an_empty_cell_is_no_value_of_a_field(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    lines = (
        f"{row['id']},{row['question']},{row['target']},{'ab'[n % 2] * (n < 4)}\n"
        for n, row in enumerate(ROWS)
    )
    rows.write_text("id,question,target,topic\n" + "".join(lines))
    summary = run(rows, cluster="topic", group_by="topic").summary
    assert (summary.with_cluster, summary.with_group_by) == (4, 4)
    by = summary.groups[0].by
    assert {value: part.counts.results for value, part in by.items()} == {
        "(none)": 6,
        "a": 2,
        "b": 2,
    }


LEVELS = [{**row, "level": n} for n, row in enumerate(ROWS)]


def test_results_are_grouped_and_clustered_by_expressions(run: Run) -> None:
    summary = run(
        LEVELS, group_by="{{ 'hard' if level > 7 else 'easy' }}", cluster="{{ level // 2 }}"
    ).summary
    assert {name: part.counts.results for name, part in summary.groups[0].by.items()} == {
        "easy": 8,
        "hard": 2,
    }
    assert (summary.with_cluster, summary.with_group_by) == (10, 10)
    assert summary.groups[0].accuracy.estimate.clusters == 5


def test_an_expression_sees_inputs_and_target_and_changing_it_scores_nothing_again(
    run: Run, calls: Calls
) -> None:
    run(LEVELS, group_by="level")
    again = run(
        LEVELS, group_by="{{ target | length }} digits, {{ question | length }}", resume=True
    )
    assert again.summary.groups[0].by.keys() == {"1 digits, 14", "2 digits, 14"}
    assert again.ended.counts.judged_anew == 0 and len(calls) == 10


@pytest.mark.parametrize("purpose", ["cluster", "group_by"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ level + }}", ":1:12: unexpected"),
        ("{{ levle }}", "row 'r0': .*levle"),
        ("{{ 1 / (level - 4) }}", "row 'r4': .*zero"),
        ("{{ none }}", "has no value for any row"),
        ("{{ judge(level) }}", r"there is no function judge\(\) here"),
    ],
)
def test_an_expression_that_cannot_be_evaluated_is_refused_before_a_call(
    run: Run, calls: Calls, purpose: str, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=f"{purpose}.*({said})"):
        run(LEVELS, **{purpose: text})
    assert calls == []


def test_an_expression_without_a_value_for_some_results_is_counted(run: Run) -> None:
    summary = run(LEVELS, group_by="{{ level if level > 7 else none }}").summary
    assert summary.with_group_by == 2 and "8 of 10 results have no" in summary.notes[0]


@pytest.mark.parametrize(
    "metadata",
    [["level", "is_hard={{ level > 7 }}"], {"level": "level", "is_hard": "{{ level > 7 }}"}],
)
def test_metadata_may_be_expressions(run: Run, metadata: Any) -> None:
    result = run(LEVELS, metadata=metadata, group_by="is_hard")
    assert {name: part.counts.results for name, part in result.summary.groups[0].by.items()} == {
        "false": 8,
        "true": 2,
    }
    assert next(result.results()).metadata.keys() == {"level", "is_hard"}


def test_metadata_expressions_need_a_name_and_are_checked_before_a_call(
    run: Run, calls: Calls
) -> None:
    with pytest.raises(UsageError, match=r"an expression needs a name, as in level={{ … }}"):
        run(LEVELS, metadata=["{{ level }}"])
    with pytest.raises(UsageError, match=r"list:row 0 .*metadata\.hard.*levle"):
        run(LEVELS, metadata={"hard": "{{ levle }}"})
    assert calls == []


def test_two_batches_are_compared_in_clusters_by_an_expression(run: Run, tmp_path: Path) -> None:
    first = run(LEVELS, cluster="{{ level // 2 }}", output=tmp_path / "a")
    second = run(LEVELS, cluster="{{ level // 2 }}", output=tmp_path / "b")
    found = compare(first.results(), second.results())
    assert found.cluster == "{{ level // 2 }}" and found.n == 10 and found.difference.clusters == 5


def as_csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["id,question,target", *lines]) + "\n")
    return path


def test_a_file_of_rows_is_checked_to_its_end_before_the_first_call(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    lines = [f"r{n},What is {n} + {n}?,{2 * n}" for n in range(50)]
    rows = as_csv(tmp_path / "rows.csv", *lines, "r3,What is 9 + 9?,18")
    with pytest.raises(
        RowError, match=r"rows.csv:52 .*the id is not unique, it is first in line 5;"
    ):
        run(rows)
    assert not calls and not (tmp_path / "batch").exists()
    assert run(rows, id="line").summary.counts.passed == 51


def test_rows_are_identified_by_their_numbers(run: Run) -> None:
    rows = [{"question": f"What is {n} + {n}?", "target": str(2 * n)} for n in (1, 1, 2)]
    assert {result.sample_id for result in run(rows, id="line").results()} == {"1", "2", "3"}


def test_a_field_called_line_is_the_id_that_it_says(run: Run, tmp_path: Path) -> None:
    rows = [{"line": f"L{n}", "question": f"What is {n} + {n}?"} for n in (1, 2)]
    assert {result.sample_id for result in run(rows, id="line").results()} == {"L1", "L2"}


def test_a_value_of_a_wrong_type_is_found_before_the_first_call(
    make_evaluator: MakeEvaluator, run: Run, calls: Calls
) -> None:
    typed = QUIZ.replace('type="string"', 'type="integer"')
    evaluator = make_evaluator(typed, backend=SimulatedBackend(script=calls))
    rows = [{"id": "a", "question": 1}, {"id": "b", "question": "2"}, {"id": "c", "question": "x"}]
    with pytest.raises(RowError, match=r"row 2.*input 'question'"):
        run(rows, evaluator=evaluator, scorers=[])
    assert not calls


def test_empty_cells_of_a_required_input_are_counted_in_a_warning(
    quiz: Evaluator, tmp_path: Path
) -> None:
    rows = as_csv(tmp_path / "rows.csv", "a,What is 1 + 1?,2", "b,,3", "c, ,4")
    plan = make_plan(quiz, "quiz", rows=rows, options=BatchOptions())
    assert plan.notices == (f"{rows}: the required input 'question' is empty in 2 of 3 rows",)
    whole = as_csv(tmp_path / "whole.csv", "a,What is 1 + 1?,2")
    assert make_plan(quiz, "quiz", rows=whole, options=BatchOptions()).notices == ()


@pytest.mark.parametrize("as_stream", [False, True])
def test_an_empty_cell_of_a_required_input_is_an_error_where_the_user_says_so(
    run: Run, calls: Calls, tmp_path: Path, as_stream: bool
) -> None:
    rows = [{"id": "a", "question": "1 + 1?"}, {"id": "b", "question": " "}]
    with pytest.raises(
        RowError, match=r'row 1.*`question` is empty.*`empty = "keep"` \(--empty keep\)'
    ):
        run(
            iter(rows) if as_stream else rows,
            scorers=[],
            empty="error",
            output=tmp_path / "refused",
        )
    assert len(calls) <= as_stream
    assert run(rows[:1], scorers=[], empty="error", output=tmp_path / "full").is_complete
    assert run(rows, scorers=[], empty="keep", output=tmp_path / "kept").is_complete
