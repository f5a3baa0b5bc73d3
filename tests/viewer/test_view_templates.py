"""Templates in the viewer: source with findings, the prompt for given inputs, and a run that needs a confirmation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.batch.export.results import HOSTILE
from tests.viewer.site import Answer, Site, assert_harmless, page, visit

XML = """<library>
<task name="greet" type="atomic"><description>greets</description>
<inputs><input name="who"/><input name="times" type="number" required="false" default="2"/></inputs>
<instructions>Greet {{ who }} {{ times }} times</instructions></task>
<task name="twice" type="sequential"><description>greets twice</description>
<inputs><input name="who">Whom to greet</input></inputs>
<examples><example><input name="who">Ada</input><output>hello</output></example></examples>
<steps><call template="greet"><arg name="who">{{ who }}</arg></call><call template="greet"><arg name="who">{{ who }}</arg></call></steps></task>
<task name="mark" type="script"><description>leaves a mark</description><command>touch marked</command></task>
</library>"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "own.xml").write_text(XML, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def link_of(root: Path, name: str) -> str:
    rows = page(root, "/templates").data["rows"]
    return next(row["href"] for row in rows if row["name"] == name)


def send(
    root: Path, path: str, *, confirm: bool = True, token: str | None = None, **values: Any
) -> Answer:
    """Sends the form of the page at `path`."""

    async def steps(site: Site) -> Answer:
        own = (await site.get(path)).data["token"]
        data = (
            {"token": own if token is None else token}
            | ({"confirm": "yes"} if confirm else {})
            | values
        )
        return await site.ask("POST", path, data=data, headers={"Origin": site.address})

    return visit(root, steps)


def test_the_list_has_the_projects_templates_and_the_shipped_ones(project: Path) -> None:
    names = [row["name"] for row in page(project, "/templates").data["rows"]]
    assert {"greet", "answer_question"} <= set(names)


def test_a_template_shows_its_source_a_form_and_the_bound_on_calls(project: Path) -> None:
    data = page(project, link_of(project, "greet")).data
    assert data["lines"][2]["text"].startswith('<inputs><input name="who"/>')
    assert [field["name"] for field in data["fields"]] == ["who", "times"]
    assert data["bound"] == "at most 1 model call"
    assert data["file"] == "templates/own.xml"


def test_a_template_shows_what_evaluator_docs_writes_about_it(project: Path) -> None:
    link = link_of(project, "twice")
    found = page(project, f"{link}?model=openai/gpt-4o-mini").data["portrait"]
    assert dict(found["facts"])["type"] == "sequential"
    assert found["bound"] == "at most 2 model calls" and found["price"].startswith("at most $0.")
    assert found["inputs"] == ["who: any – Whom to greet"]
    edges = [[side["name"] for side in edge] for edge in found["edges"]]
    assert edges == [["twice", "greet"]]
    (example,) = found["prompts"]
    assert example["expected"] == "hello" and "Greet Ada 2 times" in example["requests"][0]
    called = page(project, link_of(project, "greet")).data["portrait"]
    assert called["callers"] == [{"name": "twice", "href": link}] and called["calls"] == []
    marks = page(project, link_of(project, "mark")).data["portrait"]
    assert marks["reaches"] == ["program touch marked"] and not (project / "marked").exists()


def test_the_prompt_for_given_inputs_is_shown_and_nothing_is_written(project: Path) -> None:
    answer = send(
        project,
        link_of(project, "greet"),
        action="render",
        **{"input.who": "A & <b>", "input.times": "3"},
    )
    assert "Greet A & <b> 3 times" in answer.shown
    assert not (project / "tasks").exists()


def test_rendering_runs_no_script(project: Path) -> None:
    assert send(project, link_of(project, "mark"), action="render").status == 200
    assert not (project / "marked").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input.who": "x", "input.times": "many"}, "times: "),
        ({"input.times": "1"}, "who"),
    ],
)
def test_an_input_that_cannot_be_used_is_reported(
    project: Path, values: dict[str, str], message: str
) -> None:
    data = send(project, link_of(project, "greet"), action="render", **values).data
    problems = [f"{field['name']}: {field['problem']}" for field in data["fields"]]
    assert any(message in each for each in (*problems, data["problem"]))


def test_a_confirmed_run_is_simulated_recorded_and_shown(project: Path) -> None:
    answer = send(project, link_of(project, "greet"), action="run", **{"input.who": "Ada"})
    assert answer.status == 200
    assert answer.data["title"] == "TASK-1"
    assert answer.data["simulated"] is True
    assert "Greet Ada 2 times" in answer.shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confirm": False}, "the run was not confirmed"),
        ({"token": "x"}, "not of this server"),
        ({"token": ""}, "not of"),
    ],
)
def test_without_the_forms_token_and_the_confirmation_nothing_runs(
    project: Path, options: dict[str, Any], message: str
) -> None:
    answer = send(project, link_of(project, "mark"), action="run", **options)
    assert (answer.status, message in answer.text) == (400, True)
    assert not (project / "marked").exists() and not (project / "tasks").exists()


def test_a_run_by_another_site_is_refused(project: Path) -> None:
    link = link_of(project, "mark")

    async def steps(site: Site) -> None:
        for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            answer = await site.ask(
                "POST", link, data={"action": "run", "confirm": "yes"}, headers=headers
            )
            assert answer.status == 403

    visit(project, steps)
    assert not (project / "marked").exists()


def test_a_template_with_an_error_is_listed_with_its_line_and_others_work(project: Path) -> None:
    (project / "templates" / "bad.xml").write_text(
        '<task name="bad" type="atomic"><description>d</description>\n<instructions>{{ nothing }}</instructions></task>',
        encoding="utf-8",
    )
    (finding,) = page(project, "/templates").data["findings"]
    assert "bad.xml:2:" in finding["place"] and "[undefined-variable]" in finding["message"]
    (place,) = (line for line in finding["lines"] if line["is_place"])
    assert place["number"] == 2 and place["text"].startswith("<instructions>")
    assert page(project, link_of(project, "greet")).status == 200


def test_changed_files_are_read_again(project: Path) -> None:
    link = link_of(project, "greet")

    async def steps(site: Site) -> None:
        assert "Welcome" not in (await site.get(link)).text
        (project / "templates" / "own.xml").write_text(
            XML.replace("Greet {{", "Welcome {{"), encoding="utf-8"
        )
        assert "Welcome" in (await site.get(link)).text

    visit(project, steps)


def test_an_unknown_template_is_a_page_that_says_so(project: Path) -> None:
    answer = page(project, "/template/000000000000")
    assert (answer.status, "There is no such template now" in answer.text) == (404, True)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_inputs_stay_text(project: Path, text: str) -> None:
    given = text.encode("utf-8", "replace").decode()
    answer = send(project, link_of(project, "greet"), action="render", **{"input.who": given})
    assert_harmless(answer.text)
    assert "Greet " in answer.text


def test_hostile_templates_stay_text(project: Path) -> None:
    escaped = "".join(f"&#{ord(c)};" for c in "<img src=x onerror=alert(1)>\u202e'\"")
    (project / "templates" / "evil.xml").write_text(
        f'<task name="evil" type="atomic"><description>{escaped}</description><inputs><input name="a">{escaped}</input></inputs>'
        f"<instructions>{escaped} {{{{ a }}}}\u202e<![CDATA[<script>]]></instructions></task>",
        encoding="utf-8",
    )
    assert_harmless(page(project, "/templates").text)
    assert_harmless(page(project, link_of(project, "evil")).text)
