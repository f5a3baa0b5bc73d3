"""Commands in a batch's folder count only if this user's programs wrote them for this batch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evaluator import BatchResult, Evaluator, RecordError, SimulatedBackend, run_batch_sync
from evaluator.batch import batch_status, open_batch
from evaluator.batch.control import CONTROL, ControlLog
from tests.batch.conftest import QUIZ, ROWS
from tests.conftest import MakeEvaluator


@pytest.fixture
def quiz(make_evaluator: MakeEvaluator) -> Evaluator:
    return make_evaluator(QUIZ, backend=SimulatedBackend(script=lambda request: "0"))


def run(quiz: Evaluator, folder: Path, rows: int, *, resume: bool = False) -> BatchResult:
    return run_batch_sync("quiz", ROWS[:rows], evaluator=quiz, output=folder, resume=resume)


def log_of(folder: Path) -> ControlLog:
    return ControlLog(folder, str(open_batch(folder).manifest["created"]))


def send_all(folder: Path) -> None:
    log = log_of(folder)
    log.send("skip", ["r5"])
    log.send("set", ["max_tokens=1"])
    log.send("stop")


def test_entries_of_somebody_else_are_data(
    quiz: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(quiz, tmp_path / "b", 2).folder
    with monkeypatch.context() as other:
        other.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "other"))
        send_all(folder)
    with (folder / CONTROL).open("ab") as file:
        file.write(b'{"id": 1, "action": "stop", "arguments": []}\nno JSON\n')
    status = batch_status(folder)
    assert status.commands == () and status.ignored == 5
    result = run(quiz, folder, 10, resume=True)
    assert result.is_complete and result.summary.counts.error == 0
    assert "max_tokens" not in open_batch(folder).manifest["limits"]
    # A command of this user in the same file has its effect.
    log_of(folder).send("stop")
    assert run(quiz, folder, 10, resume=True).ended.reason == "stopped by command 1"


def test_a_signed_entry_of_another_batch_has_no_effect(quiz: Evaluator, tmp_path: Path) -> None:
    first = run(quiz, tmp_path / "first", 2).folder
    second = run(quiz, tmp_path / "second", 2).folder
    send_all(first)
    shutil.copy(first / CONTROL, second / CONTROL)
    assert len(batch_status(first).commands) == 3
    assert batch_status(second).commands == () and batch_status(second).ignored == 3
    assert run(quiz, second, 10, resume=True).is_complete


def test_a_repeated_line_has_no_second_effect(quiz: Evaluator, tmp_path: Path) -> None:
    folder = run(quiz, tmp_path / "b", 2).folder
    log_of(folder).send("stop")
    sent = (folder / CONTROL).read_bytes()
    assert run(quiz, folder, 10, resume=True).ended.state == "stopped"
    with (folder / CONTROL).open("ab") as file:
        file.write(sent)
    assert run(quiz, folder, 10, resume=True).is_complete


def test_a_link_is_not_followed(quiz: Evaluator, tmp_path: Path) -> None:
    folder = run(quiz, tmp_path / "b", 2).folder
    outside = tmp_path / "outside.jsonl"
    outside.write_text("")
    (folder / CONTROL).symlink_to(outside)
    with pytest.raises(RecordError, match=r"control\.jsonl"):
        log_of(folder).send("stop")
    assert outside.read_text() == ""
    assert run(quiz, folder, 10, resume=True).is_complete
