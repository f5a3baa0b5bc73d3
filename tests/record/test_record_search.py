"""A search combines its conditions, reads times as people write them, and reads files on demand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import TaskStore, TaskSummary, UsageError
from evaluator.record.search import TaskFilter, created_at, find, read_time
from evaluator.record.steps import Header, Summary

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def task(
    number: int, status: Any, created: str = "", error: str | None = None, **fields: Any
) -> TaskSummary:
    reason = fields.pop("reason", None)
    summary = (
        None
        if status in ("running", "interrupted")
        else Summary(status, 1, 0, 0.5, None, None, reason)
    )
    header = None if error else Header(number, created, **fields)
    return TaskSummary(number, Path(f"TASK-{number}.md"), status, header, summary, error)


TASKS = (
    task(1, "completed", "2026-03-01T00:00:00.000Z", template="review_code", model="openai/large"),
    task(
        2,
        "failed",
        "2026-03-01T23:59:59.999Z",
        template="review_text",
        model="local/small",
        reason="Server BUSY",
    ),
    task(
        3,
        "aborted",
        "2026-03-02T00:00:00.000Z",
        template="[odd]",
        parent=2,
        reason="the user said no",
    ),
    task(4, "running", "2026-03-02T10:30:00.000Z", model="openai/small", parent=2),
    task(5, "interrupted", error="line 1: the Title is not what was written"),
    task(6, "completed", "some day", template="review_code"),
    task(7, "completed", "2026-03-02T10:30:00", template="a\nb"),
)


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"status": "completed"}, [1, 6, 7]),
        ({"template": "review_*"}, [1, 2, 6]),
        ({"template": "REVIEW_*"}, []),
        ({"template": "*"}, [1, 2, 3, 6, 7]),
        ({"template": "[[]odd]"}, [3]),
        ({"template": "a?b"}, [7]),
        ({"model": "openai/*"}, [1, 4]),
        ({"model": "*small"}, [2, 4]),
        ({"error": "busy"}, [2]),
        ({"error": "TITLE"}, [5]),
        ({"error": ""}, [2, 3, 5]),
        ({"parent": 2}, [3, 4]),
        ({"since": "2026-03-02"}, [3, 4, 7]),
        ({"until": "2026-03-01"}, [1, 2]),
        ({"since": "2026-03-01", "until": "2026-03-01"}, [1, 2]),
        ({"since": "2026-03-02T10:30"}, [4, 7]),
        ({"until": "2026-03-02T12:30+02:00"}, [1, 2, 3, 4, 7]),
        ({"until": "2026-03-02T12:29+02:00"}, [1, 2, 3]),
        ({"template": "review*", "error": "busy", "since": "2026-03-01", "status": "failed"}, [2]),
        ({"template": "review*", "error": "busy", "since": "2026-03-02"}, []),
    ],
    ids=str,
)
def test_conditions_combine(conditions: dict[str, Any], ids: list[int]) -> None:
    for name in ("since", "until"):
        if name in conditions:
            conditions = {**conditions, name: read_time(conditions[name], is_end=name == "until")}
    wanted = TaskFilter(**conditions)
    assert [t.id for t in TASKS if wanted.matches(t)] == ids


@pytest.mark.parametrize(
    ("text", "is_end", "expected"),
    [
        ("2026-03-01", False, datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01", True, datetime(2026, 3, 1, 23, 59, 59, 999999, tzinfo=UTC)),
        ("2026-03-01T14:30", True, datetime(2026, 3, 1, 14, 30, tzinfo=UTC)),
        ("2026-03-01 14:30:15.5", False, datetime(2026, 3, 1, 14, 30, 15, 500000, tzinfo=UTC)),
        (" 2026-03-01T14:30Z ", False, datetime(2026, 3, 1, 14, 30, tzinfo=UTC)),
        (
            "2026-03-01T14:30-05:00",
            False,
            datetime(2026, 3, 1, 14, 30, tzinfo=timezone(timedelta(hours=-5))),
        ),
        ("90s", False, NOW - timedelta(seconds=90)),
        ("30m", True, NOW - timedelta(minutes=30)),
        ("1.5h", False, NOW - timedelta(minutes=90)),
        ("3d", False, NOW - timedelta(days=3)),
        ("2 w", False, NOW - timedelta(days=14)),
    ],
)
def test_a_time_is_a_day_an_instant_or_an_age(text: str, is_end: bool, expected: datetime) -> None:
    assert read_time(text, is_end=is_end, now=NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2h30m", "-2h", "2y", "2026-02-30", "2026-3-1", "999999999w", "12:30"]
)
def test_an_invalid_time_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time; write a date"):
        read_time(text, now=NOW)


@given(st.text(max_size=12) | st.from_regex(r"[0-9]{1,9}[smhdwT:-]?[0-9]{0,4}"))
def test_any_text_is_a_time_with_a_zone_or_refused(text: str) -> None:
    try:
        assert read_time(text, now=NOW).tzinfo is not None
    except UsageError:
        pass
    found = created_at(text)
    assert found is None or found.tzinfo is not None


def finished(
    store: TaskStore, template: str, status: Any = "completed", reason: str | None = None
) -> int:
    journal = store.create("r", template=template)
    journal.close(Summary(status, 0, 0, 0.1, None, None, reason))
    return journal.id


def test_what_is_found_comes_newest_first_and_is_counted_after_the_conditions(
    tmp_path: Path,
) -> None:
    store = TaskStore(tmp_path / "tasks")
    for n in range(6):
        finished(
            store, "even" if n % 2 == 0 else "odd", *(("failed", "out of luck") if n == 4 else ())
        )
    assert [t.id for t in find(store, template="even")] == [5, 3, 1]
    assert [t.id for t in find(store, template="even", limit=2)] == [5, 3]
    assert [t.id for t in find(store, template="even", limit=0)] == []
    assert [t.id for t in find(store, error="LUCK", since="1h")] == [5]
    assert [t.id for t in find(store, until=datetime(2020, 1, 1))] == []
    (tmp_path / "tasks" / "done" / "TASK-9.md").write_text("# TASK-9 <!-- evaluator-task broken")
    assert [t.id for t in find(store, error="title")] == []
    (tmp_path / "tasks" / "done" / "TASK-9.md").write_text(
        "# TASK-9 <!-- evaluator-task broken\n\n"
    )
    assert [t.id for t in find(store, error="title")] == [9]


def test_files_are_read_only_as_they_are_asked_for(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    for _ in range(3):
        finished(store, "t")
    found = find(store)
    assert next(found).id == 3
    (tmp_path / "tasks" / "done" / "TASK-2.md").unlink()
    assert [t.id for t in found] == [1]


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ({"status": "lost"}, "expected one of running, interrupted"),
        ({"since": "soon"}, "since: 'soon' is not a time"),
        ({"until": "2026-13-01"}, "until: '2026-13-01' is not a time"),
        ({"limit": -1}, "limit"),
    ],
)
def test_invalid_conditions_are_refused_before_anything_is_read(
    conditions: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        find(TaskStore(tmp_path), **conditions)


@pytest.mark.parametrize(
    "wrong",
    [{"since": 5}, {"error": 4}, {"template": 3}, {"model": 1}, {"limit": "x"}, {"parent": "x"}],
    ids=str,
)
def test_conditions_of_the_wrong_type_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        list(find(TaskStore(tmp_path / "tasks"), **wrong))
