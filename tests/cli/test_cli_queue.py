"""`evaluator queue` as a user has it, and workers that are ended by signals."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluator import EvaluatorError
from evaluator.cli.main import cli as cli_group
from evaluator.jobs.document import read_document
from evaluator.testing import HttpReply, LoopbackServer
from tests.cli.test_cli_signals import PROFILE, wait_until

ADD = (
    "queue",
    "add",
    "summarise the minutes",
    "--template",
    "summarise",
    "--input",
    "document=We met.",
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(*args)`: the output of the command, in `tmp_path`, in this process; an error is raised."""
    monkeypatch.chdir(tmp_path)

    def call(*args, stdin=None):
        return (
            CliRunner()
            .invoke(cli_group, args, input=stdin, catch_exceptions=False, standalone_mode=False)
            .stdout
        )

    return call


def test_an_entry_is_added_done_shown_exported_and_archived(run, tmp_path):
    added = json.loads(run(*ADD, "--priority", "2", "--json"))
    assert (added["id"], added["status"], added["type"]) == ("T-01", "pending", "info-lookup")
    assert "T-02 pending" in run("queue", "add", "-", "--after", "T-01", stdin="zzz qqq")
    details = json.loads(run("queue", "show", "T-02", "--json"))["options"]
    assert (details["needs"], details["waits_for"], details["not_before"]) == (
        ["T-01"],
        ["T-01"],
        None,
    )
    worked = run("queue", "work", "--until-empty", "--handler", "offline", "--json")
    assert json.loads(worked)["ended"] == {"done": 1, "pending": 2, "blocked": 1}
    shown = run("queue", "show", "T-01")
    assert "status: done" in shown and "attempt 1 at" in shown and "TASK-1: " in shown
    assert 'needs: ["T-01"]' in run("queue", "show", "T-02")
    assert shown.splitlines()[-1].endswith(" (simulated)")
    assert "T-02" in run("queue", "list", "--status", "blocked")
    assert run("queue", "retry", "T-02", "try harder").startswith("T-02 pending")
    assert json.loads(run("queue", "skip", "T-02", "--json"))["status"] == "skipped"
    exported = run("queue", "export")
    assert exported == (tmp_path / "queue" / "task-queue.json").read_text()
    assert read_document(exported.encode(), "q").last_id == "T-02"
    assert json.loads(run("queue", "export", "copy.json", "--json")) == {
        "file": "copy.json",
        "entries": 2,
    }
    copied = run("queue", "import", "copy.json", "--queue", "other")
    assert copied.splitlines()[0] == "added: 2 (T-01, T-02)"
    assert run("queue", "archive") == "No entry is old enough for the archive.\n"
    stats = json.loads(run("queue", "stats", "--json"))
    assert (stats["entries"]["done"], stats["entries"]["skipped"], stats["attempts"]) == (1, 1, 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("skip", "T-07"), "there is no entry T-07"),
        (("show", "seven"), "'seven' is not an id of the queue"),
        (("retry", "T-01"), "T-01 is pending; only a blocked entry can be retried"),
        (
            ("work", "--workers", "5", "--handler", "offline"),
            r"5 workers, but the queue runs at most 2 entries at once \(maxConcurrent\); start fewer, or "
            "change maxConcurrent: --max-concurrent",
        ),
        (("work", "--grader", "summarise", "--handler", "offline"), "needs the input 'document'"),
        (("import", "missing.json"), "missing.json: cannot be read"),
        (("import", "bare.json"), r"bare.json: \$ is an array"),
        (("add", "x", "--not-before", "soon"), "--not-before 'soon': expected a time"),
        (("add", "x", "--queue", "link"), "link: the folder of the queue is a link"),
        (
            ("add", "x", "--queue", "bare.json/queue"),
            "the folder of the queue cannot be opened or created: Not a directory",
        ),
    ],
)
def test_a_mistake_is_an_error_that_changes_nothing(run, write, tmp_path, args, message):
    write("bare.json", "[]")
    (tmp_path / "link").symlink_to(tmp_path)
    run(*ADD)
    before = (tmp_path / "queue" / "task-queue.json").read_bytes()
    with pytest.raises(EvaluatorError, match=message):
        run("queue", *args)
    assert (tmp_path / "queue" / "task-queue.json").read_bytes() == before


def test_the_command_line_prints_a_refusal_and_ends_with_2(cli, write):
    write("bare.json", "[]")
    ran = cli("queue", "import", "bare.json", "--json")
    assert ran.code == 2 and "bare.json: $ is an array" in ran.err
    assert json.loads(ran.out)["error"]["exit_code"] == 2


def test_entries_that_cannot_run_are_named_by_every_command_that_shows_the_queue(
    run, cli, tmp_path
):
    def err(*args):
        return CliRunner().invoke(cli_group, ["queue", *args], catch_exceptions=False)

    run(*ADD)
    run("queue", "add", "zzz", "--after", "T-01")
    skipped = run("queue", "add", "yyy", "--after", "T-02") and err("skip", "T-02", "--json")
    assert json.loads(skipped.stdout)["status"] == "skipped"
    assert skipped.stderr.startswith("T-03 cannot run without T-02; skip the waiting entry too")
    line = "T-03 waits for T-02, which was skipped\n"
    for args in (("list",), ("list", "--json")):
        shown = err(*args)
        assert shown.stderr.startswith(line) and shown.exit_code == 0
    assert len(json.loads(shown.stdout)) == 3
    assert "wait for a skipped or blocked entry" in err("stats").stdout
    assert json.loads(err("stats", "--json").stdout)["stuck"] == 1
    ended = cli("queue", "work", "--until-empty", "--handler", "offline", "--json")
    assert ended.code == 5 and line in ended.err
    assert json.loads(ended.out)["stats"]["stuck"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_ends_returns_its_entry(number, run, start, tmp_path):
    with LoopbackServer(default=HttpReply(silent=True, end="hang")) as server:
        (tmp_path / "handlers").mkdir()
        (tmp_path / "handlers" / "wire.xml").write_text(PROFILE.format(url=server.base_url))
        run(*ADD)
        process = start("queue", "work", "--handler", "wire")
        assert server.asked.wait(200)
        with closing(sqlite3.connect(tmp_path / "queue" / "queue.sqlite")) as db:
            wait_until(lambda: db.execute("SELECT begun FROM entry").fetchone() != (None,))
        process.send_signal(number)
        process.communicate(timeout=200)
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    run("queue", "work", "--until-empty", "--handler", "offline")
    (entry,) = read_document((tmp_path / "queue" / "task-queue.json").read_bytes(), "q").tasks
    first, second = entry.strategies_tried
    killed = number == signal.SIGKILL
    assert first.result.startswith(
        "interrupted: the worker's process ended" if killed else "released: "
    )
    assert first.result.endswith("; not resumed: TASK-1 was begun with another handler")
    assert (first.strategy, second.strategy) == ("summarise", "summarise")
    assert (entry.status, entry.retries) == ("done", 1 if killed else 0)


QUEUE_EXAMPLE = (Path(__file__).parents[1] / "jobs" / "example.json").read_bytes()


def test_a_file_without_a_store_is_refused_with_its_places_by_every_command(tmp_path, cli):
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    file = folder / "task-queue.json"
    value = json.loads(QUEUE_EXAMPLE)
    value["tasks"][0]["status"] = "finished"
    value["tasks"][2]["max_retries"] = 3
    file.write_text(json.dumps(value))
    for command in (["list"], ["add", "more"], ["stats"], ["skip", "T-01"]):
        ran = cli("queue", *command, "--queue", folder)
        assert ran.code == 2, ran.err
        assert "$.tasks[0].status is 'finished'" in ran.err
        assert "$.tasks[2].max_retries is unknown; did you mean `maxRetries`?" in ran.err
    assert json.loads(file.read_bytes()) == value
    assert not list(folder.glob("queue.sqlite*")) and not list(folder.glob(".new*"))


def test_an_edit_is_taken_over_by_the_next_command(tmp_path, cli):
    file = tmp_path / "queue" / "task-queue.json"
    assert cli("queue", "add", "one").code == 0
    for goal, command in (("first", ["add", "two"]), ("second", ["import", "--json"])):
        value = json.loads(file.read_bytes())
        value["tasks"][0]["goal"] = goal
        file.write_text(json.dumps(value))
        looked = cli("queue", "list")
        assert looked.code == 0 and "task-queue.json was edited" in looked.err
        assert goal not in looked.out
        ran = cli("queue", *command)
        assert ran.code == 0 and "changed T-01" in ran.err
        assert json.loads(file.read_bytes())["tasks"][0]["goal"] == goal
    assert json.loads(ran.out)["changed"] == ["T-01"]


def test_a_simulated_model_does_not_read_a_message_into_entries(cli):
    ran = cli("queue", "add", "--read", "put the minutes into minutes.md", "--handler", "offline")
    assert (ran.code, ran.out) == (3, "")
    assert "a simulated model cannot read a message; name a model with --model" in ran.err
    assert "The queue is empty." in cli("queue", "list").out


def test_the_users_own_template_may_read_a_message_with_a_simulated_model(cli, write):
    shipped = Path(__file__).parents[2] / "templates" / "queue" / "read_message.xml"
    write("templates/read_message.xml", shipped.read_bytes())
    ran = cli("queue", "add", "--read", "put the minutes into minutes.md", "--handler", "offline")
    assert ran.code == 0, ran.err
    assert "T-01 pending" in ran.out
