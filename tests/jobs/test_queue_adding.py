"""What a queue accepts, and when an entry is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from evaluator import (
    UsageError,
)
from evaluator.queue import TaskQueue


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": " "}, "is empty"),
        ({"text": "x", "type": "research"}, "'research' is not a type of the queue"),
        ({"text": "x", "needs": ["T-7"]}, "'T-7' is not an id"),
        ({"text": "x", "needs": ["T-07"]}, "there is no entry T-07"),
        ({"text": "x", "max_retries": -1}, "max_retries is -1"),
        (
            {"text": "x", "max_retries": 10**30},
            r"max_retries is 10+, expected an integer in \[0, 9007",
        ),
        ({"text": "x", "priority": -(10**30)}, "priority is -10+"),
        ({"text": "x", "template": ""}, "the template of the entry is empty"),
        ({"text": "x", "key": " "}, "the key of the entry is empty"),
        ({"text": "x", "needs": [f"T-{'9' * 5000}"]}, "is not an id"),
        ({"text": "x", "inputs": {"a": object()}}, "are not JSON values"),
        (
            {
                "text": "x",
                "not_before": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
            },
            "too late",
        ),
        ({"text": "x", "every": "on mondays"}, "is not a cron expression"),
        ({"text": "x", "every": "0 0 31 2 *"}, "fits no time"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(queue, arguments, message):
    if "every" in arguments:
        pytest.importorskip("croniter", reason="the extra `queue` is not installed")
    with pytest.raises(UsageError, match=message):
        queue.add(**arguments)
    assert queue.list() == []


def test_a_recurring_entry_is_due_at_its_next_time_and_not_at_once(tmp_path, clock):
    pytest.importorskip("croniter", reason="the extra `queue` is not installed")
    nine = clock.now
    with TaskQueue(tmp_path / "q") as queue:
        daily = queue.add("x", every="30 9 * * *").id
        later = queue.add("y", every="30 9 * * *", not_before=datetime(2026, 3, 10, tzinfo=UTC)).id
        at_once = queue.add("z").id
        assert queue.show(daily).options.not_before == nine + 1_800
        assert queue.show(later).options.not_before == nine + 1_800 + 2 * 86_400
        assert queue.stats().ready == 1
        assert queue.show(at_once).options.not_before == 0


def test_a_time_before_the_epoch_does_not_wait(queue):
    for moment in (
        datetime.min,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime(1950, 1, 1),
    ):
        assert queue.show(queue.add("x", not_before=moment).id).options.not_before == 0
    assert queue.stats().ready == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda q: q.show(f"T-{'9' * 16}"),
        lambda q: q.list(limit=0),
        lambda q: q.archive(float("nan")),
    ],
)
def test_a_question_that_cannot_be_is_refused(queue, ask):
    with pytest.raises(UsageError):
        ask(queue)
