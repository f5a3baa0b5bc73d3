"""What is judged on a command line and by whom: targets out of CSV files, and judges that nobody chose."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.testing import Answer, LoopbackServer

TASK = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions>%s</task>"
)
JUDGE = (
    '<task name="judge" type="atomic"><description>Judge an answer</description><model role="grader"/>'
    '<inputs><input name="answer" type="string" required="true">it</input></inputs>'
    '<instructions>{{ answer }}</instructions><output_format type="json" schema="boolean"/></task>'
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>good</model>
<base_url>%s</base_url></handler>"""
FORMATS = {"text": "", "json": '<output_format type="json"/>'}


def delimited(targets: list[str], delimiter: str) -> str:
    file = io.StringIO()
    rows = csv.writer(file, delimiter=delimiter)
    rows.writerow(["id", "question", "target"])
    rows.writerows([f"r{place}", "What?", target] for place, target in enumerate(targets))
    return file.getvalue()


def batch(rows: str, scorer: str, *more: Any) -> list[Any]:
    return [
        "batch",
        "--template",
        "quiz",
        "--rows",
        rows,
        "--scorer",
        scorer,
        "--handler",
        "wire",
        "--output",
        "b",
        *more,
    ]


@pytest.fixture
def judged(cli: Any, write: Any, tmp_path: Path) -> Any:
    """`judged(answer, scorer, targets)`: of each row of a file the score that it has."""

    def run(
        answer: str, scorer: str, targets: list[str], output: str = "text", suffix: str = "csv"
    ) -> Any:
        write("templates/quiz.xml", TASK % FORMATS[output])
        write(f"rows.{suffix}", delimited(targets, "," if suffix == "csv" else "\t"))
        with LoopbackServer(default=Answer(answer)) as server:
            write("handlers/wire.xml", PROFILE % server.base_url)
            ran = cli(*batch(f"rows.{suffix}", scorer))
        assert "results" in ran.out, ran.err
        lines = map(json.loads, (tmp_path / "b" / "results.jsonl").read_text().splitlines())
        found = {line["sample_id"]: next(iter(line["scores"].values())) for line in lines}
        return [found[f"r{place}"] for place in range(len(targets))]

    return run


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("output", FORMATS)
def test_json_in_a_cell_is_the_target_that_it_says(judged: Any, output: str, suffix: str) -> None:
    targets = [
        '{"b": [2.0], "a": 1}',
        '{"a": 1}',
        '{"a": 1, "b": [3]}',
        '{"a": 1, "b": [2]',
        "a text",
    ]
    scores = judged('{"a": 1, "b": [2]}', "json_equal", targets, output, suffix)
    assert [score["passed"] for score in scores] == [True, False, False, False, False]
    assert [score["explanation"].partition(":")[0] for score in scores[1:]] == [
        "$.b",
        "$.b[0]",
        "$",
        "$",
    ]
    assert all(
        "the target is a text that is not a JSON object or array" in score["explanation"]
        for score in scores[3:]
    )


def test_json_in_a_cell_may_be_part_of_the_answer_or_its_schema(
    judged: Any, tmp_path: Path
) -> None:
    scores = judged('[{"a": 1, "b": 2}]', "json_subset", ['[{"a": 1}]', '[{"a": 2}]'])
    assert [score["passed"] for score in scores] == [True, False]
    (tmp_path / "b").rename(tmp_path / "subset")
    schemas = ['{"type": "array"}', '{"type": "object"}', "object", '["object"]']
    scores = judged('[{"a": 1, "b": 2}]', "json_schema", schemas)
    assert [score["passed"] for score in scores] == [True, False, None, None]
    assert "the target is a text, expected a JSON Schema" in scores[2]["error"]
    assert "the target is array, expected a JSON Schema" in scores[3]["error"]


def test_numbers_in_cells_are_numbers_to_numeric(judged: Any) -> None:
    scores = judged("It is 1,200.", "numeric", ["1200", "1201"])
    assert [score["passed"] for score in scores] == [True, False]


def test_a_target_that_is_no_number_is_an_error_before_the_first_call(cli: Any, write: Any) -> None:
    write("templates/quiz.xml", TASK % FORMATS["text"])
    write("rows.csv", delimited(["1200", "none"], ","))
    with LoopbackServer(default=Answer("It is 1,200.")) as server:
        write("handlers/wire.xml", PROFILE % server.base_url)
        ran = cli(*batch("rows.csv", "numeric"))
    assert (ran.code, server.posts) == (2, 0)
    assert "row 'r1'" in ran.err and "the target 'none' contains 0 numbers" in ran.err


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=str)
def test_a_judge_that_nobody_chose_is_named_at_the_start(
    cli: Any, write: Any, options: list[str]
) -> None:
    write("templates/quiz.xml", TASK % "")
    write("templates/judge.xml", JUDGE)
    write("rows.csv", delimited(["x", "y"], ","))
    scorer = 'graded:template=judge,inputs={"answer":"output"}'
    with LoopbackServer(default=Answer("true")) as server:
        write("handlers/wire.xml", PROFILE % server.base_url)
        models = ["--model", "judge1", "--model", "judge2", "--progress", "plain"]
        ran = cli(*batch("rows.csv", scorer, *models, *options))
        other = cli(*batch("rows.csv", scorer, *models, "--dry-run", "--model-role", "grader=good"))
    notice = "the role 'grader', so the judge is the model 'good' (handler wire); to choose another: --model-role grader="
    assert ran.code == 0 and ran.err.count(notice) == 1
    assert "role 'grader'" not in other.err


def test_a_dry_run_has_its_notices_in_json(cli: Any, write: Any) -> None:
    write("templates/quiz.xml", TASK % "")
    write("rows.csv", delimited(["x"], ","))
    write("handlers/wire.xml", PROFILE % "http://127.0.0.1:9/v1")
    (notice,) = json.loads(cli(*batch("rows.csv", "reference", "--dry-run", "--json")).out)[
        "notices"
    ]
    assert notice.startswith("scorer reference: ")
    assert json.loads(cli(*batch("rows.csv", "exact", "--dry-run", "--json")).out)["notices"] == []
