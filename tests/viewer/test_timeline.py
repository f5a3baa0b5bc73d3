"""The time axis of a run: each step and subtask where the record says that it happened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, Recording, SimulatedBackend, TaskStore, TemplateLibrary
from evaluator.record.journal import now
from evaluator.record.steps import Header, Resumption, Step, StepEnd, StepStart, Summary
from evaluator.viewer.server.sources import Bar, Timeline, enclosing
from tests.viewer.site import page

CREATED = "2026-03-08T09:00:00.000Z"


def at(seconds: float) -> str:
    return f"2026-03-08T09:{int(seconds) // 60:02d}:{seconds % 60:06.3f}Z"


def step(started: str | None, duration_s: float | None) -> Step:
    end = None if duration_s is None else StepEnd("success", None, duration_s)
    return Step(1, StepStart("p", "model", "m", started=started), end)


def recording(*steps: Step, created: str = CREATED, **values: Any) -> Recording:
    return Recording(header=Header(1, created), steps=steps, **values)


@pytest.mark.parametrize(
    ("started", "duration_s", "bar"),
    [
        (at(2), 3.0, Bar(2, 5)),
        (at(0), 0.0, Bar(0, 0)),
        (at(2), None, Bar(2, 2, is_open=True)),
        ("2026-03-08T08:59:59Z", 2.0, Bar(0, 1)),
        (None, 1.0, None),
        ("yesterday", 1.0, None),
        ("0001-01-01T00:00:00+23:00", 1.0, Bar(0, 0)),
    ],
)
def test_a_step_is_where_its_start_and_duration_put_it(
    started: str | None, duration_s: float | None, bar: Bar | None
) -> None:
    one = step(started, duration_s)
    assert Timeline(recording(one)).of_step(one, is_running=False) == bar


def test_a_step_that_runs_lasts_until_now() -> None:
    one = step(CREATED, None)
    bar = Timeline(recording(one)).of_step(one, is_running=True)
    assert bar is not None and bar.is_open and bar.end_s > 0


def test_a_file_without_a_time_has_no_bars() -> None:
    one = step(at(1), 1.0)
    assert Timeline(recording(one, created="x")).of_step(one, is_running=True) is None
    assert Timeline(replace(recording(one), header=None)).of_step(one, is_running=True) is None


def test_the_time_between_an_interruption_and_the_resume_is_left_out() -> None:
    first, second = step(at(1), 2.0), step(at(600), 4.0)
    timeline = Timeline(recording(first, second, resumptions=(Resumption(at(599)),)))
    assert [timeline.of_step(each, is_running=False) for each in (first, second)] == [
        Bar(1, 3),
        Bar(4, 8),
    ]


def test_a_part_lasts_from_its_first_start_to_its_last_end() -> None:
    assert enclosing([Bar(2, 4), Bar(1, 3, is_open=True)]) == Bar(1, 4, is_open=True)
    assert enclosing([]) is None


def bars(data: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The start and the length of each bar in seconds, by the label of its row."""
    rows = [(row["label"], row["bar"]) for row in data["rows"] if row["bar"] is not None]
    return {label: (bar["start_s"], bar["end_s"] - bar["start_s"]) for label, bar in rows}


def run_page(root: Path, number: int) -> dict[str, Any]:
    runs = page(root, "/runs").data["runs"]
    return page(root, next(run["href"] for run in runs if run["id"] == number)).data


def test_a_subtask_and_a_part_of_a_path_are_on_the_axis_of_the_run(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    parent = store.create("parent")
    child = store.create("child", parent=parent.id)
    started = now()
    for number, path in enumerate(("a/turn[1]", "b/x/turn[1]", "b/y/turn[1]")):
        parent.note(
            StepStart(path, "model", "m", started=started),
            StepEnd("success", "x", 100.0 * (1 + number)),
        )
    start = StepStart("b/y/tool[1]", "subtask", "inner", {"task_id": child.id}, started=started)
    parent.note(start, StepEnd("success", "x", 1_000.0))
    child.close(Summary("completed", 0, 0, 900.0))
    parent.close(Summary("completed", 4, 0, 2_000.0))
    # The files are created a little before the steps start.
    rounded = {
        label: (round(start, -1), round(length, -1))
        for label, (start, length) in bars(run_page(tmp_path, parent.id)).items()
    }
    assert rounded["a/turn[1]"] == (0, 100)
    assert rounded["b"] == (0, 1_000)
    assert rounded["x/turn[1]"] == (0, 200)
    assert rounded["TASK-2"] == (0, 900)


def test_a_recorded_run_has_the_start_of_each_call_in_the_order_of_the_calls(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.xml").write_text(
        '<task name="twice" type="sequential"><description>d</description><steps>'
        '<task name="one"><description>d</description><instructions>1</instructions></task>'
        '<task name="two"><description>d</description><instructions>2</instructions></task></steps></task>',
        encoding="utf-8",
    )
    library = TemplateLibrary.load(tmp_path / "own.xml", shipped=False)
    evaluator = Evaluator(
        library, "offline", backend=SimulatedBackend(), tasks_dir=tmp_path / "tasks"
    )
    asyncio.run(evaluator.evaluate("twice"))
    (path,) = (tmp_path / "tasks" / "done").glob("TASK-*.md")
    recorded = TaskStore(tmp_path / "tasks").read(path)
    assert recorded.header is not None
    times = [each.start.started for each in recorded.steps if each.start.kind == "model"]
    assert len(times) == 2 and None not in times
    assert [recorded.header.created, *times] == sorted([recorded.header.created, *map(str, times)])
    assert len(bars(run_page(tmp_path, 1))) >= 2
