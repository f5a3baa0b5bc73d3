"""Standard error and standard output of a batch: one event per line, readers that exit, and a closed terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
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
WITHIN_S = 200
ROWS = [
    {"id": f"r{n}", "question": f"How much is {n} and {n}?", "target": str(2 * n)}
    for n in range(30)
]


pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def quiz(write: Any) -> None:
    write("templates/quiz.xml", QUIZ)
    write("rows.jsonl", "\n".join(map(json.dumps, ROWS)))


class HoldingServer(LoopbackServer):
    """Answers nothing before `release`."""

    def __init__(self, default: HttpReply | Answer) -> None:
        super().__init__(default=default)
        self._released = asyncio.Event()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    async def _send(self, *args: Any, **options: Any) -> bool:
        await self._released.wait()
        return await super()._send(*args, **options)


@pytest.fixture
def server(write: Any) -> Iterator[HoldingServer]:
    with HoldingServer(Answer("2")) as running:
        write("handlers/wire.xml", PROFILE.format(url=running.base_url))
        yield running


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
        *more,
    ]


def read_events(err: str) -> list[dict[str, Any]]:
    """The events in `err`; every line is one."""
    events = [json.loads(line) for line in err.splitlines()]
    assert all(isinstance(event["event"], str) for event in events)
    return events


def manifest(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "b" / "manifest.json").read_text())


# -- events ------------------------------------------------------------------------------------------------------


def test_every_line_is_an_event_and_the_last_one_is_the_end(cli: Any) -> None:
    ran = cli(*batch("--progress", "json", "--model-role", "critic=m"))
    events = read_events(ran.err)
    notices = [event["message"] for event in events if event["event"] == "notice"]
    assert ran.code == 0 and "30 of 30" in ran.out
    assert [notice.partition(":")[0] for notice in notices] == ["warning", "note"]
    last = events[-1]
    assert last["event"] == "ended" and (last["state"], last["exit_code"], last["done"]) == (
        "complete",
        0,
        30,
    )
    assert (last["folder"], last["go_on"]) == ("b", None)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--threshold", "accuracy >= 80"], 2, "80%"),
        (["--handler", "none"], 3, "none"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_an_error_is_an_event(cli: Any, options: list[str], code: int, said: str) -> None:
    ran = cli(*batch("--progress=json", *options))
    (error,) = read_events(ran.err)
    assert (ran.code, error["event"], error["exit_code"]) == (
        code,
        "error",
        code,
    ) and said in error["message"]


def test_only_errors_and_the_resume_command_are_events(cli: Any, server: HoldingServer) -> None:
    server.default = HttpReply((b"{}",), 401)
    server.release()
    ran = cli(*batch("--progress", "json", "--stop-after", 2, "--concurrency", 1, handler="wire"))
    events = read_events(ran.err)
    assert any("every sample ended with an error" in event.get("message", "") for event in events)
    last = events[-1]
    assert (ran.code, last["state"], last["exit_code"]) == (5, "repeated error", 5)
    assert last["go_on"] == "evaluator batch --resume b" and "2 samples in a row" in last["reason"]


def test_an_interrupted_session_ends_with_the_resume_command_and_the_error(
    start: Any, server: HoldingServer
) -> None:
    process = start(*batch("--progress", "json", handler="wire"))
    assert server.asked.wait(WITHIN_S)
    process.send_signal(signal.SIGINT)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if b"press Ctrl-C again" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WITHIN_S)
    *_, last, error = read_events((b"".join(lines) + err).decode())
    assert (last["event"], last["state"], last["go_on"]) == (
        "ended",
        "stopped",
        "evaluator batch --resume b",
    )
    assert (error["event"], error["message"], error["exit_code"]) == ("error", "interrupted", 130)
    assert process.returncode == 130


# -- readers that exit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "plain"])
def test_a_batch_continues_when_the_reader_of_its_progress_exits(
    start: Any, server: HoldingServer, tmp_path: Path, kind: str
) -> None:
    process = start(
        *batch(
            "--progress",
            kind,
            "--threshold",
            "failed >= 99",
            "--threshold",
            "errors <= 30",
            handler="wire",
        )
    )
    assert process.stderr.readline()
    process.stderr.close()
    process.stderr = None
    assert server.asked.wait(WITHIN_S)
    server.release()
    out, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 4 and b"30 of 30 results" in out
    assert len((tmp_path / "b" / "results.jsonl").read_text().splitlines()) == 30
    assert manifest(tmp_path)["state"] == "complete" and (tmp_path / "b" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("kind", "threshold", "code"), [("json", "accuracy >= 0.9", 0), ("plain", "failed >= 5", 4)]
)
def test_pipes_without_a_reader_do_not_change_the_exit_code(
    start: Any, tmp_path: Path, kind: str, threshold: str, code: int
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(
        *batch("--progress", kind, "--threshold", threshold), stdout=writing, stderr=writing
    )
    os.close(writing)
    assert process.wait(WITHIN_S) == code
    assert manifest(tmp_path)["state"] == "complete" and (tmp_path / "b" / "summary.json").is_file()


def test_an_error_has_its_exit_code_without_a_reader(start: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*batch("--rows", "none.jsonl"), stdout=writing, stderr=writing)
    os.close(writing)
    assert process.wait(WITHIN_S) == 2


def test_a_full_disk_under_the_progress_does_not_end_the_batch(start: Any, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = start(*batch(), stderr=full, stdout=subprocess.DEVNULL)
        assert process.wait(WITHIN_S) == 0
    assert manifest(tmp_path)["state"] == "complete"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_summary_that_cannot_be_printed_is_followed_by_the_ended_event(
    start: Any, more: list[str]
) -> None:
    with open("/dev/full", "wb") as full:
        process = start(*batch("--progress", "json", *more), stdout=full)
        _, err = process.communicate(timeout=WITHIN_S)
    *_, last, error = read_events(err.decode())
    assert (last["event"], last["state"], last["go_on"], last["done"]) == (
        "ended",
        "complete",
        None,
        30,
    )
    assert "No space left" in last["reason"] and "exit_code" not in last
    assert (error["event"], error["exit_code"]) == ("error", 3) and process.returncode == 3


# -- a closed terminal -----------------------------------------------------------------------------------


def test_a_closed_terminal_stops_a_batch_cleanly(
    start: Any, cli: Any, server: HoldingServer, tmp_path: Path
) -> None:
    process = start(*batch("--concurrency", 1, "--progress", "plain", handler="wire"))
    assert server.asked.wait(WITHIN_S)
    process.send_signal(signal.SIGHUP)
    lines = iter(process.stderr.readline, b"")
    assert any(b"finishing the samples in flight" in line for line in lines)
    # A closed terminal sends the signal twice; the second one does not cancel.
    process.send_signal(signal.SIGHUP)
    server.release()
    _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert (
        b"Traceback" not in err and b"never retrieved" not in err and b"stopped: interrupted" in err
    )
    assert manifest(tmp_path)["state"] == "stopped"


def test_a_closed_terminal_may_signal_until_the_process_has_ended(
    start: Any, server: HoldingServer, tmp_path: Path
) -> None:
    process = start(*batch("--concurrency", 1, "--progress", "plain", handler="wire"))
    assert server.asked.wait(WITHIN_S)
    process.send_signal(signal.SIGHUP)
    assert any(
        b"finishing the samples in flight" in line for line in iter(process.stderr.readline, b"")
    )
    server.release()
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.002)
    _, err = process.communicate()
    assert process.returncode == 130 and b"stopped: interrupted" in err and b"Traceback" not in err
    assert manifest(tmp_path)["state"] == "stopped"


def test_a_batch_under_nohup_ignores_a_closed_terminal(
    start: Any, server: HoldingServer, tmp_path: Path
) -> None:
    process = start(
        *batch(handler="wire"), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    assert server.asked.wait(WITHIN_S)
    process.send_signal(signal.SIGHUP)
    server.release()
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0 and manifest(tmp_path)["state"] == "complete"
