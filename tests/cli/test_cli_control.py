"""`evaluator batch status|pause|continue|set|retry|skip|stop` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import open_batch
from evaluator.batch.control import ControlLog
from tests.cli.conftest import Run

RUN = ("batch", "--template", "answer_question", "--rows", "rows.jsonl", "--handler", "offline")


@pytest.fixture
def batch(cli: Run, write: Any, tmp_path: Path) -> Path:
    """A batch that its own log told to stop before the first sample."""
    rows = [{"id": f"r{n}", "question": f"{n}?", "target": str(n)} for n in range(3)]
    write("rows.jsonl", "\n".join(map(json.dumps, rows)))
    assert (
        cli(*RUN, "--scorer", "exact", "--output", "b", "--limit", "1", "--progress", "none").code
        == 0
    )
    folder = tmp_path / "b"
    ControlLog(folder, str(open_batch(folder).manifest["created"])).send("stop")
    ended = cli("batch", "--resume", "b", "--limit", "3")
    assert ended.code == 130 and "command 1, stop: done" in ended.err, ended.err
    return folder


def test_commands_wait_in_the_folder_for_the_next_session(batch: Path, cli: Run) -> None:
    ran = cli("batch", "skip", "r2", "b")
    assert (ran.code, ran.out) == (0, "command 2, skip r2: sent\n")
    assert "the next one that reads it" in ran.err
    sent = json.loads(cli("batch", "set", "concurrency=3", "stop_after=0", "b", "--json").out)
    assert sent["arguments"] == ["concurrency=3", "stop_after=0"] and sent["state"] == "sent"
    shown = cli("batch", "status", "b").out.splitlines()
    assert shown[0] == "answer_question: stopped (stopped by command 1), 1 of 3 results"
    assert shown[-1] == "command 3, set concurrency=3 stop_after=0: sent"

    assert cli("batch", "--resume", "b", "--progress", "none").code in (0, 5)
    status = json.loads(cli("batch", "status", "b", "--json").out)
    assert (status["state"], status["done"], status["is_running"]) == ("complete", 3, False)
    assert [each["state"] for each in status["commands"]] == ["done"] * 3
    assert status["verdicts"]["error"] == 1


def test_what_cannot_be_done_is_an_error(batch: Path, cli: Run) -> None:
    for words, code, said in (
        (("set", "b"), 2, "Missing argument"),
        (("set", "speed=3", "b"), 2, "the limit speed is unknown"),
        (("continue", "b"), 2, "no session of the batch runs (stopped)"),
        (("status", "none"), 3, "no such folder"),
        (("pause", "."), 3, "not a batch"),
    ):
        ran = cli("batch", *words)
        assert ran.code == code and said in ran.err, ran
