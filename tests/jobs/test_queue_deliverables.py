"""The delivered file: the one that the answer names, else the last one that the task or a subtask wrote."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from evaluator import ToolGrant, load_profiles
from evaluator.queue import GraderVerifier
from evaluator.tools import builtin_tools
from evaluator.tools.anthropic import TEXT_EDITOR, text_editor_tool
from evaluator.tools.tool import declared_arguments

XML = """
<task name="write_report"><description>Write the report</description>
  <tools><tool name="write_file"/><tool name="edit_file"/><tool name="delete_file"/><tool name="subtask"/>
    <tool name="str_replace_based_edit_tool"/></tools><instructions>REPORT</instructions></task>
<task name="write_part" subtype="subtask"><description>Write a part</description>
  <tools><tool name="write_file"/></tools><instructions>PART</instructions></task>
<task name="export_rows"><description>Export the rows</description>
  <instructions>EXPORT</instructions><output_format type="json"/></task>
<task name="grade"><description>Judge</description><inputs><input name="file"/></inputs>
  <instructions>GRADE [{{file}}]</instructions><output_format type="json"/></task>
"""
TOOLS = ("write_file", "edit_file", "delete_file", "subtask", TEXT_EDITOR)
# A call of each tool that leaves a file; a.md has the line "content of a.md".
WRITES = [
    ("write_file", {"path": "a.md", "content": "new"}),
    ("edit_file", {"path": "a.md", "old": "of", "new": "in"}),
    (TEXT_EDITOR, {"command": "create", "path": "c.md", "file_text": "new"}),
    (TEXT_EDITOR, {"command": "str_replace", "path": "a.md", "old_str": "of", "new_str": "in"}),
    (TEXT_EDITOR, {"command": "insert", "path": "a.md", "insert_line": 0, "insert_text": "new"}),
]


@pytest.fixture
def work(queue, make_evaluator):
    """`work(template, answers, …)`: runs an entry with that template against a model with these answers, one a call."""

    def run(template, answers, *, graders=(), **options):
        granted = load_profiles()["offline"].override(
            tools=tuple(ToolGrant(name, "allow") for name in TOOLS)
        )
        evaluator = make_evaluator(XML, script=answers, profiles={"offline": granted}, **options)
        queue.add("do it", template=template, max_retries=1)
        asyncio.run(
            queue.work(
                evaluator,
                until_empty=True,
                verifiers=[GraderVerifier(evaluator, g) for g in graders],
            )
        )
        return queue.list()[0]

    return run


def write(path):
    return {"tool": "write_file", "arguments": {"path": path, "content": f"content of {path}"}}


def delegate(template):
    request = {
        "type": "atomic",
        "description": "write a part",
        "inputs": {},
        "hints": {"template": template},
    }
    return {"tool": "subtask", "arguments": request}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([write("reports/a.md"), "done"], "reports/a.md"),
        ([write("a.md"), write("b.md"), "done"], "b.md"),
        (
            [
                write("a.md"),
                write("b.md"),
                {"tool": "delete_file", "arguments": {"path": "b.md"}},
                "done",
            ],
            "a.md",
        ),
        ([write("a.md"), delegate("write_part"), write("part.md"), "written", "done"], "part.md"),
        ([write("../a.md"), "it failed"], "queue/deliverables/T-01.md"),
        (["the answer"], "queue/deliverables/T-01.md"),
    ],
)
def test_it_is_what_the_task_wrote_last(work, tmp_path, answers, expected):
    entry = work("write_report", answers)
    assert (entry.status, entry.deliverable) == ("done", answers[-1])
    assert entry.deliverable_path == str(tmp_path / expected)
    assert os.path.getsize(entry.deliverable_path) > 0
    assert (tmp_path / "queue" / "deliverables" / "T-01.md").read_text() == answers[-1]


@pytest.mark.parametrize(("tool", "arguments"), WRITES)
def test_every_tool_that_writes_delivers_its_file(work, tmp_path, tool, arguments):
    view = {"tool": TEXT_EDITOR, "arguments": {"command": "view", "path": "b.md"}}
    call = {"tool": tool, "arguments": arguments}
    entry = work("write_report", [write("a.md"), write("b.md"), call, view, "done"])
    assert entry.deliverable_path == str(tmp_path / arguments["path"])


def test_every_tool_that_changes_a_file_is_known():
    tools = [*builtin_tools(), text_editor_tool()]
    changing = {
        tool.name for tool in tools if tool.effect and "path" in declared_arguments(tool)
    } - {"delete_file"}
    assert changing == {name for name, _ in WRITES}, (
        "add it to _WRITING in evaluator/jobs/deliverables.py and a call of it to WRITES here"
    )


def test_without_task_files_it_is_the_answer(work, tmp_path):
    entry = work("write_report", [write("a.md"), "done"], tasks_dir=None)
    assert entry.deliverable_path == str(tmp_path / "queue" / "deliverables" / "T-01.md")


@pytest.mark.parametrize("spelling", ["rows.csv", "./rows.csv", "absolute"])
def test_an_answer_names_the_file(work, tmp_path, spelling):
    (tmp_path / "rows.csv").write_text("1\n2\n")
    named = str(tmp_path / "rows.csv") if spelling == "absolute" else spelling
    entry = work("export_rows", [json.dumps({"deliverable_path": named, "deliverable": "2 rows"})])
    assert (entry.status, entry.deliverable, entry.deliverable_path) == (
        "done",
        "2 rows",
        str(tmp_path / "rows.csv"),
    )


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("missing.csv", "does not exist"),
        ("/etc/passwd", "outside the folders"),
        ("../x", "'..'"),
        ("queue", "is a folder"),
        ("queue/queue.sqlite", "belongs to the program itself"),
        ("~nobody-at-all/x", "does not exist"),
    ],
)
def test_a_file_that_does_not_exist_or_may_not_be_read_is_not_accepted(work, named, problem):
    entry = work("export_rows", [json.dumps({"deliverable_path": named})])
    assert (entry.status, entry.deliverable_path) == ("blocked", None)
    assert problem in entry.strategies_tried[0].verification_failure


@pytest.mark.parametrize(
    "answer",
    [{"deliverable_path": None}, {"deliverable_path": " "}, {"deliverable_path": 3}, ["a"]],
)
def test_an_answer_that_names_no_file_is_stored(work, tmp_path, answer):
    entry = work("export_rows", [json.dumps(answer)])
    assert entry.deliverable_path == str(tmp_path / "queue" / "deliverables" / "T-01.md")


def test_a_grader_reads_the_file(work, tmp_path, scripted):
    (tmp_path / "rows.csv").write_text("1\n2\n")
    script = scripted(
        {"GRADE [1\n2\n]": '{"success": true}', "EXPORT": '{"deliverable_path": "rows.csv"}'}
    )
    assert work("export_rows", script, graders=["grade"]).status == "done"
