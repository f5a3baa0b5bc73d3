"""`evaluator batch` and the commands that read its results."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from evaluator.testing import Answer, HttpReply, LoopbackServer

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>{url}</base_url></handler>"""
ROWS = [
    {"id": f"r{n}", "question": f"How much is {n} and {n}?", "target": str(2 * n), "size": n % 2}
    for n in range(6)
]


@pytest.fixture
def quiz(write: Any) -> None:
    write("templates/quiz.xml", QUIZ)
    write("rows.jsonl", "\n".join(map(json.dumps, ROWS)))


def batch(*more: Any) -> list[Any]:
    return [
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "exact",
        "--handler",
        "offline",
        "--output",
        "b",
        *more,
    ]


pytestmark = [pytest.mark.usefixtures("quiz"), pytest.mark.timeout(600)]


def test_a_batch_prints_its_result_and_its_folder(cli: Any, tmp_path: Path) -> None:
    ran = cli(*batch("--threshold", "accuracy >= 0.9"))
    assert ran.code == 0
    assert "6 of 6 results" in ran.out and "met: accuracy >= 0.9" in ran.out
    assert "results: b" in ran.err and "answers are simulated" in ran.err
    assert len((tmp_path / "b" / "results.jsonl").read_text().splitlines()) == 6
    assert "note: answers are simulated" in cli("summary", "b").err


def test_a_report_names_batches_of_one_name_by_their_folders(cli: Any, tmp_path: Path) -> None:
    for name in ("old", "new"):
        assert cli(*batch("--output", name)).code == 0
    assert cli("report", "old", "new", "-o", "both.html").code == 0
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "<title>old and new</title>" in page and "quiz (2)" not in page
    assert re.search(r'"names":\s*\["old",\s*"new"\]', page)


def test_with_json_standard_output_is_one_object_and_progress_is_events(cli: Any) -> None:
    ran = cli(*batch("--json", "--progress", "json"))
    told = json.loads(ran.out)
    assert told["state"] == "complete" and told["ok"] and told["total"] == 6
    events = [
        event["event"]
        for event in map(json.loads, ran.err.splitlines())
        if event["event"] != "progress"
    ]
    assert events == ["begun", *["result"] * 6, "notice", "ended"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--threshold", "accuracy >= 1.1"], 2, "accuracy"),
        (["--threshold", "failed >= 5"], 4, "missed"),
        (["--threshold", "mean(f1) >= 0"], 2, "f1"),
        (["--scorer", "exactly"], 2, "exact"),
        (["--where", "siez == 1"], 2, "siez"),
        (["--template", "quizz"], 2, "quiz"),
        (["--map", "question"], 2, "INPUT=FIELD"),
        (["--map", "hint=question"], 2, "hint"),
        (["--target", "answer"], 2, "answer"),
        (["--rows", "none.jsonl"], 2, "none.jsonl"),
        (["--handler", "none"], 3, "none"),
        (["--resume", "b"], 2, "neither"),
    ],
)
def test_each_error_has_an_exit_code_and_a_line(
    cli: Any, options: list[str], code: int, said: str
) -> None:
    ran = cli(*batch(*options))
    assert ran.code == code, ran.err
    assert said in ran.err + ran.out


def test_a_dry_run_prints_the_calls_and_makes_no_folder(cli: Any, tmp_path: Path) -> None:
    ran = cli(*batch("--dry-run", "--epochs", "3"))
    assert ran.code == 0 and "18 samples" in ran.out
    assert re.search(r"^total +at most +18 +72 ", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^ +expected +18 +18 ", ran.out, re.MULTILINE)
    assert not (tmp_path / "b").exists()
    assert ": 1 sample\n" in cli(*batch("--dry-run", "--limit", "1")).out


def test_a_dry_run_reads_every_row(cli: Any, write: Any) -> None:
    write("rows.jsonl", "\n".join([*map(json.dumps, ROWS), "{broken"]))
    ran = cli(*batch("--dry-run"))
    assert ran.code == 2 and "rows.jsonl:7" in ran.err


def test_a_batch_is_resumed_from_another_folder(cli: Any, tmp_path: Path) -> None:
    cli(*batch("--limit", 2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = cli("batch", "--resume", tmp_path / "b", "--limit", 4, "--json", cwd=elsewhere)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["ran"] == 2


def test_a_batch_of_only_errors_is_incomplete(cli: Any, write: Any) -> None:
    with LoopbackServer(default=HttpReply((b"{}",), 401)) as server:
        write("handlers/wire.xml", PROFILE.format(url=server.base_url))
        ran = cli(
            "batch",
            "--template",
            "quiz",
            "--rows",
            "rows.jsonl",
            "--scorer",
            "exact",
            "--handler",
            "wire",
        )
    assert ran.code == 5 and "every sample ended with an error" in ran.err


def test_flags_override_a_definition_in_a_file(cli: Any, write: Any) -> None:
    write(
        "evaluator.toml",
        """
        name = "sums"
        template = "quiz"
        rows = "rows.jsonl"
        handlers = ["offline"]
        thresholds = ["accuracy >= 0.9"]
        group_by = "size"
        output = "b"
        [select]
        where = "size == 1"
        [[scorers]]
        type = "exact"
    """,
    )
    ran = cli("batch", "--limit", 2, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["total"] == 2
    again = cli("batch", "--resume", "b", "--json")
    assert json.loads(again.out)["ran"] == 0


def test_a_folder_with_a_definition_runs_as_if_started_there(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "rows.jsonl").write_text('{"question": "1 + 1?", "target": "2"}\n')
    (suite / "evaluator.toml").write_text(
        'template = "own"\nrows = "rows.jsonl"\nscorers = ["exact"]\n'
    )
    (suite / "templates").mkdir()
    (suite / "templates" / "own.xml").write_text(
        '<task name="own" type="atomic"><description>d</description><instructions>{{ question }}</instructions>'
        '<inputs><input name="question"/></inputs></task>'
    )
    ran = cli("batch", "suite", "--handler", "offline", "--output", "out", "--dry-run")
    assert ran.code == 0 and f"in the folder {suite}" in ran.err
    assert cli("batch", "suite", "--handler", "offline", "--output", "out").code == 0
    assert (tmp_path / "out" / "manifest.json").is_file() and not (suite / "batches").exists()
    inside = cli("batch", "suite", "--handler", "offline")
    (made,) = (suite / "batches").iterdir()
    assert inside.code == 0 and str(made) in inside.err
    assert cli("batch", "--resume", made).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "there is no evaluator.toml in this folder; give a DEFINITION, or --template and --rows",
        ),
        (("--template", "x"), "--template needs --rows FILE"),
        (("empty",), "empty is a folder without evaluator.toml; name the TOML file"),
        (("ran",), "ran is the folder of a batch; to resume it: --resume ran"),
        (("missing",), "missing: cannot be read: No such file"),
    ],
)
def test_without_a_definition_the_message_names_the_file(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ran").mkdir()
    (tmp_path / "ran" / "manifest.json").write_text("{}")
    ran = cli("batch", *arguments)
    assert ran.code == 2 and message in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "invalid TOML"),
        ('template = "quiz"', "rows is missing"),
        ('template = "quiz"\nrows = 3', "rows is 3"),
        ('template = "quiz"\nrows = "rows.jsonl"\nepocs = 2', "epochs"),
        ('template = "quiz"\nrows = "rows.jsonl"\n[limits]\nmax_costs = 2', "max_cost"),
        ('template = "quiz"\nrows = "rows.jsonl"\n[select]\nlimit = "all"', "limit"),
        ('template = "quiz"\ntemplates = ["quiz"]\nrows = "rows.jsonl"', "not both"),
        (
            'template = "quiz"\nrows = "rows.jsonl"\ncount_as_failed = ["output_failure"]',
            "output_format_failure",
        ),
    ],
)
def test_an_invalid_definition_is_reported_with_file_and_key(
    cli: Any, write: Any, text: str, said: str
) -> None:
    write("d.toml", text)
    ran = cli("batch", "d.toml")
    assert ran.code == 2 and "d.toml" in ran.err and said in ran.err


def test_ctrl_c_finishes_samples_in_flight_and_a_second_one_cancels_them(
    start: Any, cli: Any, write: Any
) -> None:
    with LoopbackServer(default=HttpReply(silent=True, end="hang")) as server:
        server.enqueue(Answer("0"), Answer("2"))
        write("handlers/wire.xml", PROFILE.format(url=server.base_url))
        args = [
            "batch",
            "--template",
            "quiz",
            "--rows",
            "rows.jsonl",
            "--scorer",
            "exact",
            "--handler",
            "wire",
            "--output",
            "b",
            "--concurrency",
            "1",
            "--progress",
            "plain",
        ]
        process = start(*args)
        while server.posts < 3:
            assert process.poll() is None
            server.asked.wait(0.05)
        process.send_signal(signal.SIGINT)
        assert any(b"press Ctrl-C again to cancel them" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
        assert process.returncode == 130 and b"Traceback" not in err
        server.default = Answer("4")
        ran = cli("batch", "--resume", "b", "--json")
    told = json.loads(ran.out)
    assert told["state"] == "complete" and told["ran"] == 4
    assert server.posts == 3 + 4


def test_results_are_summarised_compared_and_exported_without_a_call(
    cli: Any, tmp_path: Path
) -> None:
    cli(*batch("--epochs", "2", "--epochs-by", "pass@2"))
    assert cli("summary", "b", "--threshold", "pass@2 >= 0.5").code == 0
    missed = cli("summary", "b", "--threshold", "failed >= 5")
    assert missed.code == 4 and "missed" in missed.out
    compared = cli("compare", "b", "b")
    assert compared.code == 0 and "6 of 6 samples make a pair" in compared.out
    assert cli("compare", "b", "b", "--min-difference", "0.1").code == 4
    for kind in ("csv", "jsonl", "junit", "markdown"):
        ran = cli("export", "b", "--format", kind, "--output", f"out.{kind}")
        assert ran.code == 0 and (tmp_path / f"out.{kind}").stat().st_size > 100
    ran = cli("report", "b")
    assert ran.code == 0 and "12 of 12 samples" in ran.out
    assert (tmp_path / "b" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_folder_that_is_not_a_batch_is_refused(cli: Any) -> None:
    for command in (
        ["summary", "none"],
        ["compare", "none", "none"],
        ["report", "none"],
        ["batch", "--resume", "none"],
        ["export", "none", "-f", "csv", "-o", "x"],
    ):
        ran = cli(*command)
        assert ran.code == 3 and "no such folder" in ran.err, (command, ran)


def test_a_cache_answers_a_second_batch_and_counts_its_hits(cli: Any, write: Any) -> None:
    with LoopbackServer(default=Answer("2")) as server:
        write("handlers/wire.xml", PROFILE.format(url=server.base_url))
        wired = ["--handler", "wire", "--cache", "c.sqlite"]
        options = [
            "batch",
            "--template",
            "quiz",
            "--rows",
            "rows.jsonl",
            "--scorer",
            "exact",
            *wired,
        ]
        cli(*options, "--output", "first")
        assert server.posts == 6
        second = json.loads(cli(*options, "--output", "second", "--json").out)
        assert server.posts == 6 and second["state"] == "complete"
    stats = json.loads(cli("cache", "stats", "c.sqlite", "--json").out)
    assert (stats["entries"], stats["hits"], stats["misses"]) == (6, 6, 6)
    assert "6 responses removed" in cli("cache", "clear", "c.sqlite").out
    assert cli("cache", "stats", "none.sqlite").code == 2


def test_strict_makes_an_error_of_a_sample_an_exit_code(cli, write):
    write(
        "rows.jsonl",
        '{"question": "What is 1 + 1?", "target": "2"}\n{"text": "no question", "target": "x"}\n',
    )
    write(
        "templates/t.xml",
        """<task name="t" type="atomic"><description>d</description>
<inputs><input name="question" required="true"/></inputs><instructions>{{ question[3] }}</instructions></task>""",
    )
    write(
        "rows.jsonl",
        '{"question": "What is 1 + 1?", "target": "2"}\n{"question": "?", "target": "x"}\n',
    )
    given = (
        "batch",
        "--template",
        "t",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "exact",
        "--handler",
        "offline",
    )
    assert cli(*given, "--output", "a").code == 0
    assert cli(*given, "--output", "b", "--strict").code == 4
