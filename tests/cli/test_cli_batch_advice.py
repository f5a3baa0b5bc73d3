"""The advice, refusals and remarks of `evaluator batch` and of the commands on its folder."""

from __future__ import annotations

import fcntl
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError
from evaluator.batch.export.output_path import output_file
from evaluator.batch.folder import BatchFolder
from evaluator.testing import Answer, HttpReply, LoopbackServer

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions>%s</task>"
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>%s</base_url>%s</handler>"""
ROWS = [
    {"id": f"r{n}", "question": f"How much is {n} and {n}?", "target": str(2 * n)} for n in range(4)
]


@pytest.fixture(autouse=True)
def quiz(write: Any) -> None:
    write("templates/quiz.xml", QUIZ % "")
    write("rows.jsonl", "\n".join(map(json.dumps, ROWS)))


def batch(*more: Any, handler: str = "offline") -> list[Any]:
    return [
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "exact",
        "--handler",
        handler,
        "--output",
        "b",
        "--progress",
        "none",
        *more,
    ]


def resume(*more: Any) -> list[Any]:
    return ["batch", "--resume", "b", "--progress", "none", *more]


def advised(err: str) -> list[str]:
    """The command in `err` that resumes the batch."""
    return shlex.split(err.rpartition("resume with: evaluator ")[2].splitlines()[0])


# -- the batch's own files ---------------------------------------------------------------------------------------


def test_no_command_overwrites_the_files_of_a_batch(cli: Any, tmp_path: Path) -> None:
    assert cli(*batch()).code == 0

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}

    before = files()
    for command in (
        ["report", "b", "-o", "b/manifest.json"],
        ["export", "b", "-f", "csv", "-o", "b/results.jsonl"],
        ["export", "b", "-f", "inspect", "-o", "b/tasks/more"],
    ):
        ran = cli(*command)
        assert ran.code == 2 and "belongs to the record of the batch" in ran.err, (command, ran)
    assert files() == before and not (tmp_path / "b" / "tasks" / "more").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A batch's folder, with links to it and from it."""
    path = tmp_path / "b"
    with BatchFolder.create(path) as made:
        made.write_manifest({"schema": "evaluator-batch/1"})
    (path / "tasks" / "done").mkdir(parents=True)
    (tmp_path / "to_folder").symlink_to("b")
    (tmp_path / "to_file").symlink_to("b/manifest.json")
    (path / "summary.json").symlink_to(tmp_path / "elsewhere.json")
    return tmp_path


@pytest.mark.parametrize(
    "place",
    [
        "b/manifest.json",
        "b/results.jsonl",
        "b/summary.json",
        "b/changed.txt",
        "b/tasks/new.md",
        "b/tasks",
        "b/tasks/done/TASK-1.md",
        "b/../b/manifest.json",
        "to_folder/results.jsonl",
        "to_file",
        "b/tasks/deep/er/x",
    ],
)
def test_a_file_of_a_batchs_record_is_not_overwritten(folder: Path, place: str) -> None:
    with (
        pytest.raises(UsageError, match="belongs to the record of the batch"),
        output_file(folder / place),
    ):
        pass


@pytest.mark.parametrize(
    "place", ["b/results.csv", "b/more.jsonl", "other/manifest.json", "results.jsonl"]
)
def test_other_names_and_folders_that_are_no_batchs_are_free(
    folder: Path, write: Any, place: str
) -> None:
    write("other/manifest.json", '{"schema": "something else"}')
    with output_file(folder / place) as file:
        file.write(b"new")
    assert (folder / place).read_bytes() == b"new"


# -- changes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def changed(cli: Any, write: Any) -> None:
    """A batch whose template has changed since."""
    assert cli(*batch()).code == 0
    write("templates/quiz.xml", QUIZ % "<criteria>Be short.</criteria>")


@pytest.mark.usefixtures("changed")
def test_results_that_were_left_out_run_again_with_the_advised_command(cli: Any) -> None:
    left = cli(*resume())
    assert (
        left.code == 5
        and "4 results answer a question that has changed since; they were left out:" in left.err
    )
    assert "incomplete: 4 results were left out" in left.err
    again = cli(*advised(left.err), "--progress", "none")
    assert again.code == 0 and "they are run again:" in again.err
    assert (
        "left out" not in again.err
        and "--changed" not in again.err
        and "resume with" not in again.err
    )


@pytest.mark.usefixtures("changed")
def test_kept_results_are_reported(cli: Any) -> None:
    kept = cli(*resume("--changed", "keep"))
    assert kept.code == 0 and "they are kept:" in kept.err
    assert "left out" not in kept.err and "--changed" not in kept.err


@pytest.mark.parametrize(
    ("choice", "shown"),
    [("leave", "it was left out:"), ("run", "it is run again:"), ("keep", "it is kept:")],
)
def test_one_result_that_has_changed_is_one(cli: Any, write: Any, choice: str, shown: str) -> None:
    cli(*batch("--limit", 1))
    write("templates/quiz.xml", QUIZ % "<criteria>Be short.</criteria>")
    ran = cli(*resume("--changed", choice, "--limit", 1))
    assert f"1 result answers a question that has changed since; {shown}" in ran.err


def test_the_advised_command_repeats_the_flags_of_the_session(cli: Any) -> None:
    cli(*batch("--limit", 1))
    ran = cli(
        *resume(
            "--limit",
            4,
            "--changed",
            "keep",
            "--retry-errors",
            "--unfinished",
            "tell",
            "--max-tokens",
            1,
        )
    )
    assert advised(ran.err)[3:] == ["--retry-errors", "--changed", "keep", "--unfinished", "tell"]


def test_a_setting_of_the_handler_that_has_changed_is_named(
    cli: Any, write: Any, tmp_path: Path
) -> None:
    profile = '<handler name="mine"><backend>simulated</backend>%s</handler>'
    write("handlers/mine.xml", profile % "")
    cli(*batch(handler="mine"))
    write("handlers/mine.xml", profile % "<system>Be brief.</system><temperature>0.7</temperature>")
    assert "changed system, temperature (was not set, is 0.7)" in cli(*resume()).err
    write("handlers/mine.xml", profile % "<temperature>0.9</temperature>")
    assert (
        "r0 (epoch 1, quiz, mine): changed temperature (was not set, is 0.9)" in cli(*resume()).err
    )
    assert "temperature (was not set, is 0.9)" in (tmp_path / "b" / "changed.txt").read_text()


def test_results_of_other_epochs_are_reported(cli: Any) -> None:
    cli(*batch("--epochs", "3"))
    ran = cli(*resume("--epochs", "1"))
    assert ran.code == 0
    assert "8 results in the folder belong to other rows or epochs; they are not counted" in ran.err


# -- options that need another ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["--retry-errors"], "--resume"),
        (["--changed", "run"], "--resume"),
        (["--unfinished", "repeat"], "--resume"),
        (["--seed", "3"], "--sample"),
    ],
)
def test_a_flag_that_would_have_no_effect_is_refused(
    cli: Any, tmp_path: Path, options: list[str], missing: str
) -> None:
    ran = cli(*batch(*options))
    assert ran.code == 2 and f"error: {options[0]} is for" in ran.err and missing in ran.err
    assert not (tmp_path / "b").exists()


def test_a_seed_may_belong_to_the_sample_in_the_file(cli: Any, write: Any) -> None:
    write(
        "d.toml",
        'template = "quiz"\nrows = "rows.jsonl"\nhandlers = ["offline"]\n[select]\nsample = 2',
    )
    ran = cli("batch", "d.toml", "--seed", "3", "--json")
    assert ran.code == 0 and json.loads(ran.out)["total"] == 2


# -- resuming ------------------------------------------------------------------------------------------------


def test_nothing_is_reported_as_stored_if_nothing_was_started(cli: Any, tmp_path: Path) -> None:
    cli(*batch())
    ran = cli(*batch())
    assert ran.code == 3 and "already" in ran.err and "are stored" not in ran.err
    with (tmp_path / "b" / "results.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ran = cli(*resume())
    assert (
        ran.code == 3
        and "another process works on this batch; wait for its end" in ran.err
        and "are stored" not in ran.err
    )


def test_without_ray_there_is_no_folder(process: Any, write: Any, tmp_path: Path) -> None:
    write("without/ray.py", "raise ImportError('none')")
    ran = process(*batch("--engine", "ray"), env={"PYTHONPATH": str(tmp_path / "without")})
    assert ran.code == 3 and "ray" in ran.err and "resume" not in ran.err
    assert not (tmp_path / "b").exists()


# -- budgets and thresholds -------------------------------------------------------------------------------------------


def test_the_message_of_a_spent_budget_says_that_it_applies_to_each_session(cli: Any) -> None:
    ran = cli(*batch("--max-tokens", 40, "--max-cost", 5, "--concurrency", 1))
    assert ran.code == 5
    assert (
        "(max_cost and max_tokens apply to each session)\nresume with: evaluator batch --resume b\n"
        in ran.err
    )


def test_a_session_that_a_server_ends_names_no_limit_of_the_user(cli: Any, write: Any) -> None:
    years = HttpReply(status=429, headers={"retry-after": "100000000"})
    with LoopbackServer(default=years) as server:
        write("handlers/wire.xml", PROFILE % (server.base_url, ""))
        ran = cli(*batch(handler="wire"))
    assert ran.code == 5 and "answered with a Retry-After" in ran.err
    assert "each session" not in ran.err and "( " not in ran.err


@pytest.mark.parametrize(
    ("limits", "options", "said"),
    [
        ("", ["--max-cost", 1], "max_output_tokens"),
        ('<limits max_output_tokens="50"/>', ["--max-cost", 1], "<prices input= output=>"),
        (
            '<limits max_output_tokens="5000"/>',
            ["--max-tokens", 4000],
            "would pass the batch's budget",
        ),
    ],
)
def test_a_dry_run_prints_what_the_budget_will_reject(
    cli: Any, write: Any, limits: str, options: list[Any], said: str
) -> None:
    with LoopbackServer(default=Answer("0")) as server:
        write("handlers/wire.xml", PROFILE % (server.base_url, limits))
        dry = cli(*batch("--dry-run", *options, handler="wire"))
        run = cli(*batch(*options, handler="wire"))
        assert server.posts == 0
    assert dry.code == run.code == 5
    assert (
        "4 samples" in dry.out
        and "no call is possible: " in dry.err
        and said in dry.err
        and said in run.err
    )


@pytest.mark.parametrize(
    ("profile", "template", "options"),
    [
        ('<limits max_output_tokens="50"/><prices input="1" output="1"/>', "", ["--max-cost", 1]),
        ("", '<handler max_output_tokens="50"/>', ["--max-tokens", 1000]),
    ],
)
def test_a_dry_run_prints_no_rejection_for_calls_within_the_budget(
    cli: Any, write: Any, profile: str, template: str, options: list[Any]
) -> None:
    with LoopbackServer(default=Answer("0")) as server:
        write("handlers/wire.xml", PROFILE % (server.base_url, profile))
        write("templates/quiz.xml", QUIZ % template)
        ran = cli(*batch("--dry-run", *options, handler="wire"))
        assert ran.code == 0 and "no call is possible" not in ran.err, ran.err
        cli(*batch(*options, handler="wire"))
        assert server.posts > 0


@pytest.mark.parametrize(
    ("threshold", "code", "said"),
    [
        ("accuracy >= 80", 2, "did you mean 80%?"),
        ("accuracy >= 80%", 0, "met"),
        ("mean(f1) >= 0.1", 2, "no scorer 'f1'"),
    ],
)
def test_a_threshold_is_read_in_the_same_way_before_and_after(
    cli: Any, threshold: str, code: int, said: str
) -> None:
    before = cli(*batch("--threshold", threshold))
    if code == 2:
        cli(*batch())
    after = cli("summary", "b", "--threshold", threshold)
    for ran in (before, after):
        assert ran.code == code and said in ran.err + ran.out, ran


# -- rows without a target -----------------------------------------------------------------------------------------


def test_rows_whose_target_has_another_name_are_reported_with_the_option(
    cli: Any, write: Any
) -> None:
    write("rows.csv", "question,answer,topic\nHow much is 1 and 1?,2,sums\n")
    ran = cli(
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.csv",
        "--scorer",
        "exact",
        "--handler",
        "offline",
    )
    assert (
        "no row has a target; name its field with --target (the rows have: `answer`, `topic`)"
        in ran.err
    )
    assert "no row has a target" not in cli(*batch()).err
    unscored = [
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.csv",
        "--handler",
        "offline",
        "--output",
        "c",
    ]
    assert "no row has a target" not in cli(*unscored).err
