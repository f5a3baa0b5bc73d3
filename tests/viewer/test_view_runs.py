"""The list of runs and one run, from real task files: whole, damaged, foreign, running and hostile ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import Evaluator, TaskStore, TemplateLibrary
from evaluator.record.blobs import write_blob
from evaluator.record.steps import StepEnd, StepStart, Summary
from evaluator.viewer import json_form
from tests.batch.export.results import HOSTILE
from tests.viewer.site import Answer, Site, assert_harmless, page, pages, visit

XML = """<library>
<task name="rate" type="atomic"><description>rates</description><inputs><input name="text"/></inputs>
<instructions>Rate {{ text }}</instructions>
<output_format type="json" schema="object"/></task>
<task name="twice" type="sequential"><description>two steps</description><inputs><input name="text"/></inputs>
<steps><task name="one"><description>d</description><instructions>First {{ text }}</instructions></task>
<task name="two"><description>d</description><instructions>Then {{ steps.one.content }}</instructions></task></steps></task>
</library>"""


@pytest.fixture
def evaluate(tmp_path: Path, make_evaluator: Any) -> Iterator[Any]:
    """`evaluate(name, text, answer)`: runs a template with an answer of the model, recorded in `tasks/`."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(XML, encoding="utf-8")
    library = TemplateLibrary.load(tmp_path / "templates", shipped=False)

    def run(name: str, text: str, answer: str) -> Any:
        evaluator = Evaluator(library, "offline", tasks_dir=tmp_path / "tasks", roots=[tmp_path])
        return evaluator.evaluate_sync(name, {"text": text}, target=answer)

    return run


def run_links(answer: Answer) -> list[str]:
    return [run["href"] for run in answer.data["runs"]]


def test_an_empty_folder_says_how_runs_get_there(tmp_path: Path) -> None:
    assert page(tmp_path, "/runs").data["chosen"] is None


def test_a_run_shows_its_prompt_its_raw_and_parsed_answer_its_repairs_and_its_steps(
    tmp_path: Path, evaluate: Any
) -> None:
    evaluate("rate", "tin & <zinc>", "```json\n{'score': 1,}\n```")
    (link,) = run_links(page(tmp_path, "/runs"))
    answer = page(tmp_path, link)
    assert "Rate tin & <zinc>" in answer.shown
    result = answer.data["result"]
    assert "{'score': 1,}" in result["content"], "the raw text"
    assert result["parsed_content"] == {"score": 1}
    assert "a trailing comma was left out" in answer.shown
    assert [(row["label"], row["index"]) for row in answer.data["rows"]][1] == ("turn[1]", 1)
    assert answer.data["steps"][1]["kind"] == "model"


def test_a_failed_run_shows_the_error_with_the_line_of_the_template(
    tmp_path: Path, evaluate: Any
) -> None:
    outcome = evaluate("rate", "tin", "no JSON here")
    assert not outcome.ok
    (link,) = run_links(page(tmp_path, "/runs"))
    data = page(tmp_path, link).data
    assert data["result"]["type"] == "INVALID_OUTPUT"
    (place,) = (line for line in data["findings"][0]["lines"] if line["is_place"])
    assert place["number"] == 4 and place["text"].startswith('<output_format type="json"')
    assert data["resume"] == "evaluator tasks resume 1"


def test_steps_of_a_sequence_are_a_tree_and_each_conversation_is_shown(
    tmp_path: Path, evaluate: Any
) -> None:
    evaluate("twice", "tin", "fine")
    (link,) = run_links(page(tmp_path, "/runs"))
    data = page(tmp_path, link).data
    assert ("steps[1]", 0, "group") in [
        (row["label"], row["depth"], row["kind"]) for row in data["rows"]
    ]
    assert [talk["path"] for talk in data["conversations"]] == ["steps[1]", "steps[2]"]
    (turn,) = data["conversations"][1]["turns"]
    assert data["steps"][turn["step"]]["path"] == "steps[2]/turn[1]"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 3),
        ("status=failed", 1),
        ("status=running", 0),
        ("template=rate", 2),
        ("template=*w*", 1),
        ("model=simulated", 3),
        ("model=gpt", 0),
        ("text=ZINC", 1),
        ("since=2000-01-01", 3),
        ("until=2000-01-01", 0),
        ("cost=0.01", 0),
        ("template=rate&status=completed", 1),
    ],
)
def test_filters_combine(tmp_path: Path, evaluate: Any, query: str, count: int) -> None:
    evaluate("rate", "zinc", '{"a": 1}')
    evaluate("rate", "tin", "nothing")
    evaluate("twice", "lead", "fine")
    assert len(run_links(page(tmp_path, f"/runs?{query}"))) == count


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("status=gone", "expected one of running"),
        ("since=yesterday-ish", "yesterday-ish"),
        ("cost=much", "expected US dollars"),
        ("before=-1", "expected a task id"),
        ("before=%EF%BC%91", "expected a task id"),
    ],
)
def test_an_invalid_filter_is_reported_on_the_page(
    tmp_path: Path, evaluate: Any, query: str, message: str
) -> None:
    evaluate("rate", "zinc", '{"a": 1}')
    answer = page(tmp_path, f"/runs?{query}")
    assert answer.status == 200
    assert message in answer.data["problem"]


def test_long_lists_continue_on_a_page_of_older_runs(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    for _ in range(60):
        store.create("r").close(Summary("completed", 0, 0, 0.1))
    first = page(tmp_path, "/runs")
    second = page(tmp_path, first.data["older"])
    seen = [link.rpartition("/")[2] for link in run_links(first) + run_links(second)]
    assert seen == [str(number) for number in range(60, 0, -1)]


def test_a_running_task_is_shown_as_far_as_it_is_and_its_page_updates_itself(
    tmp_path: Path,
) -> None:
    store = TaskStore(tmp_path / "tasks")
    journal = store.create("r", template="slow")
    number = journal.begin(
        StepStart("turn[1]", "model", "m", {"messages": [{"role": "user", "content": "Hello?"}]})
    )
    journal.flush()

    async def steps(site: Site) -> None:
        (link,) = run_links(await site.get("/runs"))
        before = await site.get(link)
        assert before.data["live_ms"] == 2_000 and "Hello?" in before.shown
        assert before.data["summary"] is None
        tag = {"If-None-Match": before.headers["ETag"]}
        assert (await site.get(link, headers=tag)).status == 304
        journal.end(number, StepEnd("success", {"content": "Hi."}, 0.1))
        journal.close(Summary("completed", 1, 0, 0.1, result={"content": "Hi."}))
        after = await site.get(link, headers=tag)
        assert after.status == 200 and after.data["live_ms"] == 0

    visit(tmp_path, steps)


def test_subtasks_link_to_their_own_pages(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    parent = store.create("parent")
    child = store.create("child", template="inner", parent=parent.id)
    parent.note(
        StepStart("turn[1]/tool[1]", "subtask", "inner", {"task_id": child.id}),
        StepEnd("success", "x", 0.2),
    )
    child.close(Summary("completed", 0, 0, 0.1))
    parent.close(Summary("completed", 1, 0, 0.3))
    links = run_links(page(tmp_path, "/runs"))
    child_page, parent_page = pages(tmp_path, *links)
    assert child_page.data["parent"] == {"href": links[1], "id": 1}
    (row,) = (row for row in parent_page.data["rows"] if row["kind"] == "task")
    assert (row["href"], row["label"]) == (links[0], "TASK-2")


def test_a_damaged_file_is_listed_and_its_page_says_what_is_wrong(
    tmp_path: Path, evaluate: Any
) -> None:
    evaluate("rate", "zinc", '{"a": 1}')
    (path,) = (tmp_path / "tasks" / "done").iterdir()
    path.write_bytes(path.read_bytes().replace(b"zinc", b"tinc", 1))
    listed = page(tmp_path, "/runs")
    assert listed.data["runs"][0]["status"] == "unreadable"
    answer = page(tmp_path, run_links(listed)[0])
    assert answer.status == 500
    assert re.search(r"TASK-1\.md:\d+: ", answer.data["message"])


def test_files_of_other_programs_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "TASK-abc.md").write_text("# TASK-abc\n\n- **Status**: completed\n", encoding="utf-8")
    listed = page(tmp_path, "/runs")
    (link,) = (each["href"] for each in listed.data["unnumbered"])
    assert link.endswith("/abc")
    assert page(tmp_path, link).status in (200, 500)


@pytest.mark.parametrize(
    "path",
    [
        "/run/000000000000/1",
        "/run/../etc",
        "/run/{store}/99",
        "/run/{store}/..%2f..%2fetc",
        "/run/{store}/x" + "9" * 300,
    ],
)
def test_an_address_leads_nowhere_but_to_what_was_found(
    tmp_path: Path, evaluate: Any, path: str
) -> None:
    evaluate("rate", "zinc", '{"a": 1}')
    store = run_links(page(tmp_path, "/runs"))[0].split("/")[2]
    assert page(tmp_path, path.format(store=store)).status == 404


def test_links_to_folders_outside_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    TaskStore(outside / "tasks").create("secret").close(Summary("completed", 0, 0, 0.1))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "tasks").symlink_to(outside / "tasks")
    assert page(tmp_path / "inside", "/runs").data["chosen"] is None


def test_a_template_outside_the_project_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    secret = tmp_path / "secret.xml"
    secret.write_text("first\nthe secret\n", encoding="utf-8")
    result = {
        "type": "VALIDATION_ERROR",
        "message": "bad",
        "location": {"file": str(secret), "line": 2, "column": 1},
    }
    store = TaskStore(tmp_path / "project" / "tasks")
    store.create("r").close(Summary("failed", 0, 0, 0.1, result=result))
    project = tmp_path / "project"
    text = page(project, run_links(page(project, "/runs"))[0]).text
    assert "secret.xml:2:1" in text
    assert "the secret" not in text


def hostile_values(text: str) -> dict[str, Any]:
    message = {
        "role": text,
        "content": text,
        "reasoning": text,
        "tool_call_id": text,
        "attachments": [text],
        "tool_calls": [{"name": text, "id": text, "arguments": text}, text],
    }
    return {
        "model": text,
        "settings": {text: text},
        "messages": [message, {"role": "tool", "content_of": text}],
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(tmp_path: Path, text: str) -> None:
    store = TaskStore(tmp_path / "tasks")
    journal = store.create(text, {text: text}, template=text, model=text, extra={text: text})
    start = StepStart(text, "model", text, hostile_values(text))
    journal.note(
        start, StepEnd("success", {"content": text, "reasoning": text}, 0.1, usage={text: text})
    )
    journal.note(
        StepStart(f"{text}/parse", "parse", text, {text: text}),
        StepEnd("failed", {text: text}, 0.1, error=text),
    )
    finding = {"message": text, "hint": text, "file": text, "line": 1, "column": 1}
    result = {
        "type": text,
        "reason": text,
        "message": text,
        "content": text,
        "parsed_content": {text: text},
        "notes": {"warnings": [text]},
        "location": finding,
        "violations": [finding, text],
    }
    journal.close(Summary("failed", 2, 0, 0.1, result=result, reason=text))
    listed = page(
        tmp_path,
        "/runs",
    )
    answer = page(tmp_path, run_links(listed)[0])
    assert (listed.status, answer.status) == (200, 200)
    assert_harmless(listed.text)
    assert_harmless(answer.text)


@pytest.mark.parametrize(
    "result", [None, [], "text", 3, {"notes": [], "violations": {}, "location": [1], "content": {}}]
)
def test_a_result_of_another_shape_is_shown(tmp_path: Path, result: Any) -> None:
    TaskStore(tmp_path / "tasks").create("r").close(
        Summary("failed", 0, 0, 0.1, result=result, usage={"cost_usd": "x"})
    )
    (link,) = run_links(page(tmp_path, "/runs"))
    assert page(tmp_path, link).status == 200


def test_the_texts_of_a_page_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_form, "MAX_PAGE_CHARS", 50_000)
    journal = TaskStore(tmp_path / "tasks").create("r")
    for number in range(60):
        journal.note(
            StepStart(f"turn[{number}]", "tool", "t", {}), StepEnd("success", "x" * 30_000, 0.1)
        )
    journal.close(Summary("completed", 60, 0, 0.1))
    (link,) = run_links(page(tmp_path, "/runs"))
    text = page(tmp_path, link).text
    assert "(the first 1,000 of 30,000 characters)" in text
    assert len(text) < 300_000


def test_a_usage_without_a_cost_cost_nothing_and_one_without_a_known_cost_is_unknown(
    tmp_path: Path,
) -> None:
    store = TaskStore(tmp_path / "tasks")
    for usage in ({"input_tokens": 3}, {"input_tokens": 3, "cost_usd": None}):
        store.create("r").close(Summary("completed", 0, 0, 0.1, usage=usage))
    costs = [run["usage"]["cost_usd"] for run in page(tmp_path, "/runs").data["runs"]]
    assert costs == [None, 0]


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def test_an_attached_image_is_served_and_nothing_else_is(tmp_path: Path) -> None:
    store = TaskStore(tmp_path / "tasks")
    images = {
        name: write_blob(store.root, data, durable=False)
        for name, data in (("png", PNG), ("svg", SVG))
    }
    attached = {
        "source": "x.png",
        "media_type": "image/png",
        "size": len(PNG),
        "sha256": images["png"],
    }
    journal = store.create("r")
    args = {"messages": [{"role": "user", "content": "what is it?", "attachments": [attached]}]}
    journal.note(
        StepStart("turn[1]", "model", "m", args), StepEnd("success", {"content": "a"}, 0.1)
    )
    journal.close(Summary("completed", 1, 0, 0.1))

    async def steps(site: Site) -> None:
        (link,) = run_links(await site.get("/runs"))
        folder = (await site.get(link)).data["attachments"]
        async with site.session.get(f"{site.address}{folder}{images['png']}") as answer:
            assert (answer.content_type, await answer.read()) == ("image/png", PNG)
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        for name in (images["svg"], "0" * 64, "..%2f..%2fsecret", "x"):
            assert (await site.get(f"{folder}{name}")).status == 404

    visit(tmp_path, steps)
