"""`evaluator start` as a process that ends, and `ps`, `logs`, `send`, `wait` and `kill` on what it started."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluator import Evaluator, RecordError, UsageError
from evaluator.background import BackgroundStore, BackgroundTask
from evaluator.cli import background
from evaluator.cli import start as start_module
from evaluator.cli.main import cli as cli_group
from evaluator.store.owners import current_owner
from tests.optional import needs


def state(folder, task_id):
    store = BackgroundStore(folder / "tasks" / "background")
    try:
        return store.get(task_id)
    finally:
        store.close()


def until_written(path):
    deadline = time.monotonic() + 200
    while not (path.exists() and path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)  # another process writes it
    return path.read_text(encoding="utf-8")


@pytest.fixture
def begin(process):
    """`begin(*words)`: the id of the task that `evaluator start *words` started."""

    def run(*words):
        ran = process("start", *words)
        assert ran.code == 0, ran.err
        return ran.out.strip()

    return run


def test_a_command_outlives_its_terminal_and_ends_when_it_is_killed(cli, begin, tmp_path):
    task_id = begin("--", "sh", "-c", "echo here; exec sleep 600")
    (task,) = json.loads(cli("ps", "--json").out)
    assert (task["id"], task["ended_at"]) == (task_id, None)
    until_written(Path(task["output_file"]))
    assert cli("logs", task_id).out == "here\n" and cli("logs", task_id, "--offset", 3).out == "e\n"
    killed = cli("kill", task_id, "--reason", "not <needed>", "--json")
    (task,) = json.loads(killed.out)
    assert (killed.code, task["status"], task["signal"], task["reason"]) == (
        0,
        "killed",
        9,
        "not <needed>",
    )


@pytest.mark.parametrize(
    ("script", "code", "status"), [("exit 0", 0, "completed"), ("exit 7", 1, "failed")]
)
def test_wait_says_how_a_command_ended(cli, begin, tmp_path, script, code, status):
    task_id = begin("--", "sh", "-c", f"{script}")
    ran = cli("wait", task_id)
    assert ran.code == code and status in ran.out
    assert state(tmp_path, task_id).status == status
    assert code or cli("kill", task_id).code == 1


def test_a_task_whose_process_is_gone_is_reported_with_its_output(cli, begin, tmp_path):
    task_id = begin("--", "sh", "-c", "echo kept; exec sleep 600", "\x1b[2J")
    task = state(tmp_path, task_id)
    until_written(Path(task.output_file))
    os.kill(task.owner.pid, signal.SIGKILL)
    ran = cli("wait", task_id)
    assert ran.code == 1 and "is gone" in ran.out
    listed = cli("ps").out
    assert "the process that" in listed and "\x1b" not in listed
    assert state(tmp_path, task_id).status == "failed" and cli("logs", task_id).out == "kept\n"


def test_sigterm_kills_the_task(cli, begin, tmp_path):
    task_id = begin("--", "sleep", "600")
    os.kill(state(tmp_path, task_id).owner.pid, signal.SIGTERM)
    assert cli("wait", task_id).code == 1
    task = state(tmp_path, task_id)
    assert (task.status, task.reason) == ("killed", "its process got SIGTERM")


def test_a_template_runs_in_the_background_and_its_end_is_told_to_a_command(cli, begin, tmp_path):
    words = (
        "--template",
        "summarise",
        "--handler",
        "offline",
        "-i",
        "document=Some text.",
        "--notify",
        "tee told.xml",
    )
    task_id = begin(*words)
    ran = cli("wait", task_id)
    assert ran.code == 0 and task_id[0] == "a"
    records = [json.loads(line) for line in cli("logs", task_id).out.splitlines()]
    assert [record["type"] for record in records] == ["message", "message", "outcome"]
    task = state(tmp_path, task_id)
    assert task.task_file == "TASK-1" and task.output_tokens > 0
    assert "<status>completed</status>" in until_written(tmp_path / "told.xml")
    assert (tmp_path / "tasks" / "done" / "TASK-1.md").exists()


def test_follow_prints_the_output_until_the_end(cli, begin, start, tmp_path):
    task_id = begin("--", "sh", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two")
    reader = start("logs", task_id, "--follow")
    assert reader.stdout.readline() == b"one\n"
    (tmp_path / "go").touch()
    out, _ = reader.communicate(timeout=200)
    assert out == b"two\n" and reader.returncode == 0


def test_a_session_answers_from_another_terminal_until_it_is_ended(cli, begin, tmp_path):
    task_id = begin("--session", "--handler", "offline")
    assert task_id[0] == "t"
    assert cli("send", task_id, "-", stdin=b"How are you?\n").code == 0
    ran = cli("wait", task_id, "--idle")
    assert (ran.code, ran.out) == (0, f"{task_id}: running, idle\n")
    said = [json.loads(line) for line in cli("logs", task_id).out.splitlines()]
    assert [each["role"] for each in said] == ["user", "assistant"] and said[0][
        "content"
    ] == "How are you?\n"
    assert cli("send", task_id, "Bye", "--end").code == 0
    assert cli("wait", task_id).code == 0 and state(tmp_path, task_id).status == "completed"


@needs("mcp", "the extra mcp is not installed")
def test_a_watch_is_killed_from_another_terminal(cli, begin, tmp_path):
    from tests.jobs.test_background_scripts import is_running
    from tests.jobs.test_background_watches import server_in

    server = server_in(tmp_path)
    (tmp_path / "handlers").mkdir()
    arguments = "".join(f"<arg>{each}</arg>" for each in server.args)
    (tmp_path / "handlers" / "p.xml").write_text(
        f'<handler name="p"><backend>simulated</backend><mcp><server name="raw" command="{server.command}">{arguments}</server>'
        "</mcp></handler>",
        encoding="utf-8",
    )
    words = ("--watch", "mcp://raw/memo://two", "--handler", "p")
    task_id = begin(*words)
    assert task_id[0] == "m"
    pids = [int(word) for word in until_written(tmp_path / "pids").split()]
    assert cli("kill", task_id).code == 0 and not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("start",), "give one of: a command after --"),
        (("start", "--template", "summarise", "--", "ls"), "give one of: a command after --"),
        (("start", "--session", "--", "ls"), "give one of: a command after --"),
        (("start", "--events", "3", "--", "ls"), "--events is for --watch"),
        (("start", "--node", "any", "--session"), "--node is for --template, and"),
        (("start", "-i", "a=b", "--", "ls"), "--input is for --template"),
        (("start", "--notify", '"', "--", "ls"), "cannot be split into words"),
        (("start", "--notify", "nosuchprogram x", "--", "ls"), "does not begin with a program"),
        (("send", "t00000000"), "give the text of the message"),
        (("send", "t00000000", "hello"), "there is no background task t00000000"),
        (("kill", "nothing"), "is not a background task"),
        (("wait", "../../etc"), "is not a background task"),
        (("logs", "b00000000"), "there is no background task b00000000"),
    ],
)
def test_wrong_usage_starts_nothing(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(message)):
        CliRunner().invoke(cli_group, words, catch_exceptions=False, standalone_mode=False)
    assert list((tmp_path / "tasks" / "background").glob("*.log")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--watch", "nothing"), "the profile has no MCP server 'nothing'"),
        (("--template", "nothing"), "there is no template 'nothing'"),
        (("--sandbox", "cage", "--", "ls"), "sandbox 'cage' is unknown"),
    ],
)
def test_what_the_new_process_cannot_start_is_an_error_of_the_command(
    process, tmp_path, words, message
):
    ran = process("start", *words)
    assert ran.code != 0 and message in ran.err
    assert list((tmp_path / "tasks" / "background").glob("*.log")) == []


def test_the_process_of_a_task_closes_its_evaluator(cli, monkeypatch):
    closed = []
    aclose = Evaluator.aclose

    async def noted(self):
        closed.append(self)
        await aclose(self)

    def in_this_process(run):
        try:
            run(lambda task_id: None)
        finally:
            assert len(closed) == 1, "a detached process has no other chance"

    monkeypatch.setattr(Evaluator, "aclose", noted)
    monkeypatch.setattr(start_module, "detach", in_this_process)
    assert "the profile has no MCP server 'nothing'" in cli("start", "--watch", "nothing").err


def test_a_damaged_database_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = BackgroundStore("tasks/background")
    store.add(BackgroundTask("b00000000", "b", "work", "pending", "out", 1.0, current_owner()))
    store.close()
    path = tmp_path / "tasks" / "background" / "background.sqlite"
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))
    with pytest.raises(
        RecordError,
        match=r"background\.sqlite: the background tasks cannot be opened: .*; restore it",
    ):
        CliRunner().invoke(cli_group, ["ps"], catch_exceptions=False, standalone_mode=False)


def test_a_character_that_two_reads_share_is_shown_at_a_terminal(tmp_path, monkeypatch):
    output = tmp_path / "output"
    text = "x" * (2**20 - 1) + "ü\n"
    output.write_text(text, encoding="utf-8")
    monkeypatch.setattr(background, "look_at_tasks", lambda folder, look: output)
    monkeypatch.setattr(background, "stdout_is_terminal", lambda: True)
    assert CliRunner().invoke(cli_group, ["logs", "b00000001"]).stdout == text
    output.write_bytes(b"cut \xc3")
    assert CliRunner().invoke(cli_group, ["logs", "b00000001"]).stdout == "cut \ufffd"
