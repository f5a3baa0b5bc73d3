"""What `evaluator batch` and the commands on its folder advise, refuse and say that they did."""

from __future__ import annotations

import fcntl
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch.export.atomic import atomic_file
from evaluator.batch.folder import BatchFolder
from evaluator.cli.main import main
from evaluator.errors import UsageError
from evaluator.testing import Answer, LoopbackServer
from tests.cli.conftest import Ran

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions>%s</task>"
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>%s</base_url>%s</handler>"""
ROWS = [{"id": f"r{n}", "question": f"How much is {n} and {n}?", "target": str(2 * n)} for n in range(4)]


@pytest.fixture(autouse=True)
def quiz(write: Any) -> None:
    write("templates/quiz.xml", QUIZ % "")
    write("rows.jsonl", "\n".join(map(json.dumps, ROWS)))


def batch(*more: Any, handler: str = "offline") -> list[Any]:
    return ["batch", "--template", "quiz", "--rows", "rows.jsonl", "--scorer", "exact", "--handler", handler,
            "--output", "b", "--progress", "none", *more]  # fmt: skip


def resume(*more: Any) -> list[Any]:
    return ["batch", "--resume", "b", "--progress", "none", *more]


def advised(err: str) -> list[str]:
    """The command that `err` says to go on with."""
    return shlex.split(err.rpartition("go on with: evaluator ")[2].splitlines()[0])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`here(*args)`: as `cli`, without a process of its own, for what reaches no stream's end and no signal."""
    monkeypatch.chdir(tmp_path)

    def run(*args: Any) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Ran(int(str(ended.value.code)), said.out, said.err)

    return run


# -- the batch's own files ---------------------------------------------------------------------------------------


def test_no_command_writes_over_what_a_batch_wrote_of_itself(cli: Any, tmp_path: Path) -> None:
    assert cli(*batch()).code == 0

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}

    before = files()
    for command in (["report", "b", "-o", "b/manifest.json"], ["export", "b", "-f", "csv", "-o", "b/results.jsonl"],
                    ["export", "b", "-f", "inspect", "-o", "b/tasks/more"]):  # fmt: skip
        ran = cli(*command)
        assert ran.code == 2 and "part of the record of the batch" in ran.err, (command, ran)
    assert files() == before and not (tmp_path / "b" / "tasks" / "more").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a batch has it, with links that lead to it and from it."""
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
        "b/manifest.json", "b/results.jsonl", "b/summary.json", "b/changed.txt", "b/tasks/new.md", "b/tasks",
        "b/tasks/done/TASK-1.md", "b/../b/manifest.json", "to_folder/results.jsonl", "to_file", "b/tasks/deep/er/x",
    ],
)  # fmt: skip
def test_a_file_of_a_batchs_record_is_no_place_to_write_to(folder: Path, place: str) -> None:
    with pytest.raises(UsageError, match="part of the record of the batch"), atomic_file(folder / place):
        pass


@pytest.mark.parametrize("place", ["b/results.csv", "b/more.jsonl", "other/manifest.json", "results.jsonl"])
def test_other_names_and_folders_that_are_no_batchs_are_free(folder: Path, write: Any, place: str) -> None:
    write("other/manifest.json", '{"schema": "something else"}')
    with atomic_file(folder / place) as file:
        file.write(b"new")
    assert (folder / place).read_bytes() == b"new"


# -- changes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def changed(here: Any, write: Any) -> None:
    """A batch whose template has changed since."""
    assert here(*batch()).code == 0
    write("templates/quiz.xml", QUIZ % "<criteria>Be short.</criteria>")


@pytest.mark.usefixtures("changed")
def test_results_that_were_left_alone_are_gone_on_with_as_is_advised(here: Any) -> None:
    left = here(*resume())
    assert (
        left.code == 5 and "4 results answer another question than the one asked now, and were left alone:" in left.err
    )
    assert "incomplete: 4 results were left alone" in left.err
    again = here(*advised(left.err), "--progress", "none")
    assert again.code == 0 and "and are run again:" in again.err
    assert "left alone" not in again.err and "--changed" not in again.err and "go on with" not in again.err


@pytest.mark.usefixtures("changed")
def test_results_that_are_kept_are_said_to_be(here: Any) -> None:
    kept = here(*resume("--changed", "keep"))
    assert kept.code == 0 and "and count as they are:" in kept.err
    assert "left alone" not in kept.err and "--changed" not in kept.err


def test_what_was_said_for_this_session_is_in_the_advice_for_the_next(here: Any) -> None:
    here(*batch("--limit", 1))
    ran = here(*resume("--limit", 4, "--changed", "keep", "--retry-errors", "--unfinished", "tell", "--max-tokens", 1))
    assert advised(ran.err)[3:] == ["--retry-errors", "--changed", "keep", "--unfinished", "tell"]


def test_a_setting_of_the_handler_that_has_changed_is_named(here: Any, write: Any, tmp_path: Path) -> None:
    profile = '<handler name="mine"><backend>simulated</backend>%s</handler>'
    write("handlers/mine.xml", profile % "")
    here(*batch(handler="mine"))
    write("handlers/mine.xml", profile % "<system>Be brief.</system><temperature>0.7</temperature>")
    assert "changed system, temperature (was not set, is 0.7)" in here(*resume()).err
    write("handlers/mine.xml", profile % "<temperature>0.9</temperature>")
    assert "r0 (epoch 1, quiz, mine): changed temperature (was not set, is 0.9)" in here(*resume()).err
    assert "temperature (was not set, is 0.9)" in (tmp_path / "b" / "changed.txt").read_text()


def test_results_of_epochs_that_were_not_asked_for_are_said_to_be_of_epochs(here: Any) -> None:
    here(*batch("--epochs", "3"))
    ran = here(*resume("--epochs", "1"))
    assert ran.code == 0
    assert "8 results in the folder are of rows or epochs that were not asked for; they do not count" in ran.err


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
def test_an_option_that_would_do_nothing_says_what_is_missing(
    here: Any, tmp_path: Path, options: list[str], missing: str
) -> None:
    ran = here(*batch(*options))
    assert ran.code == 2 and f"error: {options[0]} is of" in ran.err and missing in ran.err
    assert not (tmp_path / "b").exists()


def test_a_seed_may_be_of_the_files_sample(here: Any, write: Any) -> None:
    write("d.toml", 'template = "quiz"\nrows = "rows.jsonl"\nhandlers = ["offline"]\n[select]\nsample = 2')
    ran = here("batch", "d.toml", "--seed", "3", "--json")
    assert ran.code == 0 and json.loads(ran.out)["total"] == 2


# -- how to go on ------------------------------------------------------------------------------------------------


def test_nothing_is_said_to_be_kept_where_nothing_was_begun(cli: Any, tmp_path: Path) -> None:
    cli(*batch())
    ran = cli(*batch())
    assert ran.code == 3 and "already" in ran.err and "is kept" not in ran.err
    with (tmp_path / "b" / "results.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ran = cli(*resume())
    assert ran.code == 3 and "another process works on this batch" in ran.err and "is kept" not in ran.err


def test_without_ray_there_is_no_folder(cli: Any, write: Any, tmp_path: Path) -> None:
    write("without/ray.py", "raise ImportError('none')")
    ran = cli(*batch("--engine", "ray"), env={"PYTHONPATH": str(tmp_path / "without")})
    assert ran.code == 3 and "ray" in ran.err and "go on" not in ran.err
    assert not (tmp_path / "b").exists()


# -- budgets and gates -------------------------------------------------------------------------------------------


def test_a_spent_budget_says_that_the_next_session_has_it_again(here: Any) -> None:
    ran = here(*batch("--max-tokens", 400, "--max-cost", 5, "--concurrency", 1))
    assert ran.code == 5
    assert "(max_cost and max_tokens count for each session)\ngo on with: evaluator batch --resume b\n" in ran.err


@pytest.mark.parametrize(
    ("limits", "options", "said"),
    [
        ("", ["--max-cost", 1], "max_output_tokens"),
        ('<limits max_output_tokens="50"/>', ["--max-cost", 1], "<prices input= output=>"),
        ('<limits max_output_tokens="5000"/>', ["--max-tokens", 4000], "would pass the batch's budget"),
    ],
)
def test_a_dry_run_says_what_the_budget_will_refuse(
    here: Any, write: Any, limits: str, options: list[Any], said: str
) -> None:
    with LoopbackServer(default=Answer("0")) as server:
        write("handlers/wire.xml", PROFILE % (server.base_url, limits))
        dry = here(*batch("--dry-run", *options, handler="wire"))
        run = here(*batch(*options, handler="wire"))
        assert server.posts == 0
    assert dry.code == run.code == 5
    assert "4 samples" in dry.out and "nothing can be sent: " in dry.err and said in dry.err and said in run.err


@pytest.mark.parametrize(
    ("profile", "template", "options"),
    [
        ('<limits max_output_tokens="50"/><prices input="1" output="1"/>', "", ["--max-cost", 1]),
        ("", '<handler max_output_tokens="50"/>', ["--max-tokens", 1000]),
    ],
)
def test_a_dry_run_says_nothing_of_what_the_budget_will_let_begin(
    here: Any, write: Any, profile: str, template: str, options: list[Any]
) -> None:
    with LoopbackServer(default=Answer("0")) as server:
        write("handlers/wire.xml", PROFILE % (server.base_url, profile))
        write("templates/quiz.xml", QUIZ % template)
        ran = here(*batch("--dry-run", *options, handler="wire"))
        assert ran.code == 0 and "nothing can be sent" not in ran.err, ran.err
        here(*batch(*options, handler="wire"))
        assert server.posts > 0


@pytest.mark.parametrize(
    ("gate", "code", "said"),
    [
        ("accuracy >= 80", 2, "did you mean 80%?"),
        ("accuracy >= 80%", 0, "met"),
        ("mean(f1) >= 0.1", 2, "no scorer 'f1'"),
    ],
)
def test_a_gate_is_read_in_the_same_way_before_and_after(here: Any, gate: str, code: int, said: str) -> None:
    before = here(*batch("--gate", gate))
    if code == 2:
        here(*batch())
    after = here("summary", "b", "--gate", gate)
    for ran in (before, after):
        assert ran.code == code and said in ran.err + ran.out, ran
