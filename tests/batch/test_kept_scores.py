"""What a kept score used counts once, whichever way its results are added."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import Usage
from evaluator.batch import Score
from evaluator.batch.summary.columns import Columns
from evaluator.batch.summary.rows import ResultBlock, ResultRows
from tests.batch.export.results import result


@pytest.mark.parametrize("way", ["add", "block", "leave_out"])
@pytest.mark.parametrize("price", [0.25, None])
def test_a_score_that_is_kept_is_charged_once(way: str, price: float | None) -> None:
    def judged(**made: str) -> dict[str, Any]:
        scores: dict[str, Score] = {}
        for name, at in made.items():
            cost = price if name == "kept" else 0.125
            usage = Usage(input_tokens=10, output_tokens=2, cost_usd=cost)
            scores[name] = Score(1.0, True, usage=usage).judged("v", at)
        return result("x", scores=scores, usage=Usage(input_tokens=7), task_id=1).to_dict()

    lines = [
        judged(kept="1", other="1"),
        judged(kept="1", other="2"),
        judged(kept="1"),
        judged(kept="1", other="3"),
    ]
    columns = Columns(None, None)
    if way == "block":
        columns.put_block(ResultBlock.of([ResultRows(None, None).row_of(each) for each in lines]))
    else:
        for line in lines:
            getattr(columns, way)(line)
    columns.close()
    in_all = columns.replaced_spending()
    assert in_all is not None
    spendings = [in_all]
    if way != "leave_out":
        spendings.append(columns.spending(range(1)))
    # `kept` was judged once, `other` three times.
    assert sum(each.scoring_input_tokens.known for each in spendings) == 40
    assert sum(each.scoring_output_tokens.known for each in spendings) == 8
    if price is not None:
        assert sum(each.scoring_cost_usd.known for each in spendings) == price + 3 * 0.125
        assert all(each.scoring_cost_usd.total is not None for each in spendings)


@pytest.mark.parametrize("way", ["add", "block", "leave_out"])
def test_a_run_that_was_resumed_counts_once_with_what_it_has_used_since(way: str) -> None:
    def line(task_id: int, tokens: int, interrupted_calls: int) -> dict[str, Any]:
        usage = Usage(input_tokens=tokens)
        made = result("x", scores={}, usage=usage, task_id=task_id)
        return {**made.to_dict(), "interrupted_calls": interrupted_calls}

    lines = [line(1, 5, 0), line(1, 15, 1), line(2, 100, 2), line(2, 300, 2)]
    columns = Columns(None, None)
    if way == "block":
        columns.put_block(ResultBlock.of([ResultRows(None, None).row_of(each) for each in lines]))
    else:
        for each in lines:
            getattr(columns, way)(each)
    columns.close()
    spendings = [columns.replaced_spending()]
    if way != "leave_out":
        spendings.append(columns.spending(range(1)))
    assert sum(each.input_tokens.known for each in spendings if each is not None) == 315
    assert sum(each.interrupted_calls for each in spendings if each is not None) == 3
