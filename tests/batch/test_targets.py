"""Targets that a scorer cannot compare are found before the first call."""

from __future__ import annotations

import pytest

from evaluator import UsageError
from tests.batch.conftest import ROWS, Calls, Run


def test_a_target_that_is_not_a_plain_number_stops_a_batch_before_the_first_call(
    run: Run, calls: Calls
) -> None:
    rows = [*ROWS[:3], {"id": "pi", "question": "What is 3 + 3?", "target": "6\\pi"}]
    with pytest.raises(UsageError, match=r"scorer 'numeric', row 'pi': .* use the scorer math"):
        run(rows, scorers=["numeric"])
    assert calls == []


def test_rows_without_a_target_and_other_scorers_are_not_checked(run: Run) -> None:
    rows = [{"id": "open", "question": "What is 3 + 3?"}]
    assert run(rows, scorers=["numeric", "exact"]).summary.counts.unscored == 1
