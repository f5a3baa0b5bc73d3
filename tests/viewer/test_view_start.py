"""The start page and the search: what runs, what needs a person, the last batches and runs, and the cost of the week."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from evaluator import TaskStore, Usage
from evaluator.batch import open_batch
from evaluator.batch.folder import BatchFolder
from evaluator.cli import main
from evaluator.queue import TaskQueue
from evaluator.record.steps import StepStart, Summary
from tests.batch.export.results import EACH, FAILED, HOSTILE, PASSED, result
from tests.viewer.batches import ONE, numbered, write_batch
from tests.viewer.site import assert_harmless, page
from tests.viewer.tasks import add_task


def write_summarised(path: Path, results: Any, **manifest: Any) -> Path:
    write_batch(path, results, **manifest)
    with BatchFolder.open(path) as folder:
        folder.write_summary(open_batch(path).summarise().to_dict())
    return path


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    data = page(tmp_path, "/").data
    assert (data["view"], data["has_anything"]) == ("start", False)
    assert data["title"] == tmp_path.name, "the project's name, not a path"


def test_the_last_batches_have_their_share_with_its_interval_and_the_trend_of_their_name(
    tmp_path: Path,
) -> None:
    for number, rows in enumerate(([PASSED, FAILED], [PASSED, result("x")])):
        created = f"2026-03-0{number + 1}"
        write_summarised(tmp_path / f"b{number}", rows, name="nightly", created=created)
    write_summarised(tmp_path / "other", [PASSED], created="2026-02-01")
    data = page(tmp_path, "/").data
    assert [batch["name"] for batch in data["batches"]] == ["b1", "b0", "other"]
    (group,) = data["batches"][1]["groups"]
    assert group["estimate"]["mean"] == 0.5 and group["estimate"]["low"] < 0.5
    (trend,) = data["trends"].values()
    assert [point["estimate"]["mean"] for point in trend] == [0.5, 1.0]
    assert list(data["trends"]) == ["nightly"], "one batch is no trend"


def test_what_runs_is_apart_from_what_was_killed_and_has_the_command_that_resumes_it(
    tmp_path: Path,
) -> None:
    running = write_batch(tmp_path / "runs", EACH, state="running")
    BatchFolder.reader(running).write_progress({"at": time.time(), "endpoints": []})
    write_batch(tmp_path / "it was killed", EACH, state="running")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "results.jsonl").touch()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    data = page(tmp_path, "/").data
    assert [batch["name"] for batch in data["running"]["batches"]] == ["runs"]
    killed, damaged = data["attention"]["batches"]
    assert killed["resume"] == "evaluator batch --resume 'it was killed'"
    assert damaged["name"] == "damaged" and "manifest.json" in damaged["problem"]
    assert data["live_ms"] > 0


def test_failed_and_interrupted_runs_are_named_with_their_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TaskStore(tmp_path / "tasks")
    store.create("fine").close(Summary("completed", 0, 0, 0.1))
    journal = store.create("stopped", template="answer_question")
    journal.begin(StepStart("turn[1]", "model", "m", {}))
    journal.close(Summary("failed", 0, 0, 0.1, reason="no answer"))
    other = TaskStore(tmp_path / "other tasks").create("r")
    other.close(Summary("aborted", 0, 0, 0.1))
    runs = {run["id"]: run for run in page(tmp_path, "/").data["attention"]["runs"]}
    assert runs[2]["text"] == "no answer"
    assert runs[2]["resume"] == "evaluator tasks resume 2"
    assert runs[1]["resume"] == "evaluator tasks resume --tasks 'other tasks' 1"
    # The control: the command knows this option.
    with pytest.raises(SystemExit):
        main(["tasks", "resume", "--help"])
    assert "--tasks" in capsys.readouterr().out


def test_entries_and_tasks_that_wait_for_a_person_are_named(tmp_path: Path) -> None:
    add_task(tmp_path, is_waiting=True, description="asks something")
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add("a pending one")
    data = page(tmp_path, "/").data
    assert [task["description"] for task in data["running"]["tasks"]] == ["asks something"]
    assert data["attention"]["entries"] == [], "a pending entry needs nobody"


def test_the_cost_of_the_week_counts_what_is_unknown_apart(tmp_path: Path) -> None:
    paid = replace(PASSED, usage=Usage(1, 1, cost_usd=0.25))
    write_summarised(tmp_path / "new", [paid, replace(paid, sample_id="x")], created=ago(days=1))
    write_summarised(tmp_path / "old", [paid], created=ago(days=9))
    store = TaskStore(tmp_path / "tasks")
    for usage in ({"cost_usd": 1.0}, {"cost_usd": None}, {}):
        store.create("r").close(Summary("completed", 0, 0, 0.1, usage=usage))
    cost = page(tmp_path, "/").data["cost"]
    assert cost == {"known_usd": 1.5, "unknown": 1, "count": 4, "is_bound": False}


def test_the_cost_of_what_has_not_ended_is_unknown_and_not_zero(tmp_path: Path) -> None:
    write_batch(tmp_path / "batch", [PASSED], created=ago(days=1), state="running")
    journal = TaskStore(tmp_path / "tasks").create("r")
    journal.begin(StepStart("turn[1]", "model", "m", {}))
    journal.flush()
    cost = page(tmp_path, "/").data["cost"]
    assert cost == {"known_usd": 0.0, "unknown": 2, "count": 2, "is_bound": False}


def test_the_cost_of_the_week_is_a_lower_bound_where_a_process_ended_in_a_call(
    tmp_path: Path,
) -> None:
    paid = replace(PASSED, usage=Usage(1, 1, cost_usd=0.25), interrupted_calls=1)
    write_summarised(tmp_path / "batch", [paid], created=ago(days=1))
    cost = page(tmp_path, "/").data["cost"]
    assert cost == {"known_usd": 0.25, "unknown": 0, "count": 1, "is_bound": True}


def test_the_cost_of_the_week_is_a_lower_bound_where_a_run_was_resumed_after_a_call(
    tmp_path: Path,
) -> None:
    store = TaskStore(tmp_path / "tasks")
    usage = {"cost_usd": 0.25}
    store.create("r").close(Summary("completed", 1, 0, 0.1, usage=usage, interrupted_calls=1))
    store.create("r").close(Summary("completed", 1, 0, 0.1, usage=usage))
    data = page(tmp_path, "/").data
    assert data["cost"] == {"known_usd": 0.5, "unknown": 0, "count": 2, "is_bound": True}
    assert [run["cost_is_bound"] for run in data["runs"]] == [False, True]


def test_what_a_simulated_model_answered_says_so(tmp_path: Path) -> None:
    cells = [{**ONE, "simulated": True}, {"template": "answer", "variant": "large"}]
    rows = [result("x", model="simulated/small"), result("x", variant="large", model="gpt")]
    write_batch(tmp_path / "b", rows, cells=cells)
    (batch,) = page(tmp_path, "/").data["batches"]
    assert batch["simulated"] is True
    matrix = page(tmp_path, batch["href"]).data["matrix"]
    assert [cell["simulated"] for cell in matrix["cells"]] == [True, False]
    (row,) = matrix["rows"]
    assert [results[0]["simulated"] for results in row["results"].values()] == [True, False]


def test_a_search_finds_batches_samples_runs_templates_entries_and_tasks(tmp_path: Path) -> None:
    write_batch(tmp_path / "needle-batch", [result("s", content="a Needle in it"), *numbered(3)])
    TaskStore(tmp_path / "tasks").create("find the needle").close(Summary("completed", 0, 0, 0.1))
    with TaskQueue(tmp_path / "queue") as queue:
        queue.add("thread the needle")
    add_task(tmp_path, description="needles")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(
        '<task name="needle_task" type="atomic"><description>d</description>'
        "<instructions>x</instructions></task>",
        encoding="utf-8",
    )
    data = page(tmp_path, "/search?text=NEEDLE").data
    hits = {group["title"]: [hit["title"] for hit in group["hits"]] for group in data["groups"]}
    assert hits == {
        "Batches": ["needle-batch"],
        "Samples of needle-batch": ["s"],
        "Runs": ["TASK-1"],
        "Templates": ["needle_task"],
        "Queue": ["T-01"],
        "Background tasks": ["b12345678"],
    }
    for group in data["groups"]:
        assert page(tmp_path, group["hits"][0]["href"]).status == 200
    assert page(tmp_path, "/search").data["groups"] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_searches_stay_text(tmp_path: Path, text: str) -> None:
    plain = text.encode("utf-8", "replace").decode()
    rows = [result(text, content=text, inputs={text: text})]
    cells = [{"template": text, "variant": text}]
    write_summarised(tmp_path / "b", rows, name=text, cells=cells, created=text)
    TaskStore(tmp_path / "tasks").create(text, {text: text}, template=text, model=text).close(
        Summary("failed", 0, 0, 0.1, reason=text, usage={text: text, "cost_usd": text})
    )
    add_task(tmp_path, description=plain.replace("\x00", ""))
    assert_harmless(page(tmp_path, "/").text)
    assert_harmless(page(tmp_path, f"/search?text={quote(plain)}").text)
