"""Commands of another process act on a running batch, and outlive a kill between command and effect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, Evaluator, RecordError, UsageError, disk
from evaluator.batch import Command, Stop, Verdict, batch_status, control_batch, open_batch
from evaluator.batch.control import CONTROL, Action, ControlLog
from tests.batch.conftest import ROWS, Calls, Run
from tests.batch.killing import PROFILE, QUIZ

pytestmark = pytest.mark.timeout(600)
LONG_S = 200.0


class GateServer(ThreadingHTTPServer):
    """Answers a request when `gate` lets it through; with 400 if its prompt is in `refused`, once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.gate = threading.Semaphore(0)
        self.asked: Counter[str] = Counter()
        self.refused: set[str] = set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def open(self) -> None:
        self.gate.release(1_000)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side was killed."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GateServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        self.server.asked[prompt] += 1
        self.server.gate.acquire()
        is_refused = prompt in self.server.refused
        self.server.refused.discard(prompt)
        message = {"role": "assistant", "content": str(len(prompt))}
        answer: dict[str, Any] = {
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
        }
        data = json.dumps({"error": {"message": "no"}} if is_refused else answer).encode()
        self.send_response(400 if is_refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Batch:
    """A batch of 12 rows in `folder/b`, run by processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "b"
        self.server = GateServer()
        (folder / "quiz.xml").write_text(QUIZ)
        (folder / "handlers").mkdir()
        profile = PROFILE.format(port=self.server.server_port)
        (folder / "handlers" / "wire.xml").write_text(profile)
        rows = [{"id": f"r{n}", "question": "x" * n, "target": str(n)} for n in range(1, 13)]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.processes: list[subprocess.Popen[bytes]] = []

    def command(self, *arguments: Any) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "evaluator", "batch", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.processes.append(subprocess.Popen(words, cwd=self.folder, stdout=pipe, stderr=pipe))
        return self.processes[-1]

    def start(self, concurrency: int = 2) -> subprocess.Popen[bytes]:
        given = ["--library", "quiz.xml", "--template", "quiz", "--rows", "rows.jsonl"]
        given += ["--scorer", "exact", "--handler", "wire", "--concurrency", str(concurrency)]
        return self.command(*given, "--output", "b", "--progress", "none")

    def resume(self) -> subprocess.Popen[bytes]:
        return self.command("--resume", "b", "--progress", "plain")

    def send(self, action: Action, *arguments: str) -> Command:
        return control_batch(self.output, action, arguments, wait_s=LONG_S)

    def wait_for(self, calls: int) -> None:
        wait_until(lambda: self.server.asked.total() >= calls)

    def wait_for_state(self, number: int, state: str) -> None:
        log = ControlLog(self.output, str(open_batch(self.output).manifest["created"]))
        wait_until(lambda: any(c.id == number and c.state == state for c in log.read()))

    def results(self) -> dict[str, tuple[str, str | None]]:
        return {
            each.sample_id: (each.verdict.value, each.failure and each.failure.kind)
            for each in open_batch(self.output).results()
        }


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    batch = Batch(tmp_path)
    yield batch
    batch.server.open()
    for process in batch.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    batch.server.shutdown()
    batch.server.server_close()


def test_a_running_batch_is_paused_changed_continued_and_stopped(batch: Batch) -> None:
    session = batch.start()
    batch.wait_for(2)
    out, err = batch.command("pause", "b", "--json").communicate(timeout=LONG_S)
    # The command waits 5 s for the session, which may need longer.
    batch.wait_for_state(json.loads(out)["id"], "accepted")
    batch.server.gate.release(2)
    wait_until(lambda: batch_status(batch.output).done == 2)
    status = batch_status(batch.output)
    assert (status.state, status.is_running, status.total) == ("paused", True, 12)
    assert batch.server.asked.total() == 2

    assert batch.send("set", "concurrency=4", "requests_per_minute=60000").state == "done"
    wait_until(lambda: batch_status(batch.output).progress["limits"]["concurrency"] == 4)
    assert batch.server.asked.total() == 2
    assert batch.send("continue").state == "done"
    batch.wait_for(6)

    assert batch.send("stop").state == "done"
    batch.server.open()
    out, err = session.communicate(timeout=LONG_S)
    assert session.returncode == 130, (out, err)
    assert batch.server.asked.total() == 6
    status = batch_status(batch.output)
    assert (status.state, status.is_running, status.done) == ("stopped", False, 6)
    assert "command 4" in status.reason
    assert [command.state for command in status.commands] == ["done"] * 4

    # The limits are those of later sessions too, and a complete batch takes no command.
    resumed = batch.resume()
    out, err = resumed.communicate(timeout=LONG_S)
    assert resumed.returncode in (0, 4), (out, err)
    limits = open_batch(batch.output).manifest["arguments"]["limits"]
    assert limits == {"concurrency": 4, "requests_per_minute": 60_000}
    with pytest.raises(UsageError, match=r"the batch is complete.*--retry-errors"):
        batch.send("pause")


def test_a_lower_concurrency_holds_for_samples_that_waited_when_it_was_set(batch: Batch) -> None:
    session = batch.start(concurrency=4)
    batch.wait_for(4)
    batch.send("pause")
    batch.server.gate.release(4)
    wait_until(lambda: batch_status(batch.output).done == 4)
    assert batch.send("set", "concurrency=2").state == "done"
    assert batch.send("continue").state == "done"
    wait_until(lambda: batch_status(batch.output).progress["in_flight"] > 0)
    assert batch_status(batch.output).progress["in_flight"] == 2
    batch.server.open()
    out, err = session.communicate(timeout=LONG_S)
    assert session.returncode in (0, 4), (out, err)
    assert len(batch.results()) == 12


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "accepted"])
def test_a_command_survives_a_kill_before_its_effect(batch: Batch, is_read: bool) -> None:
    session = batch.start()
    batch.wait_for(2)
    if not is_read:
        os.kill(session.pid, signal.SIGSTOP)
    sent: list[tuple[Action, list[str]]] = [
        ("pause", []),
        ("skip", ["r12"]),
        ("set", ["concurrency=3"]),
    ]
    states = [
        control_batch(batch.output, action, given, wait_s=LONG_S if is_read else 0).state
        for action, given in sent
    ]
    assert states == (["accepted", "accepted", "done"] if is_read else ["sent"] * 3)
    session.kill()
    session.wait()
    assert batch_status(batch.output).state == "interrupted"

    resumed = batch.resume()
    batch.wait_for_state(1, "accepted")
    wait_until(lambda: batch_status(batch.output).is_running)
    assert batch_status(batch.output).state == "paused"
    assert batch.server.asked.total() == 2
    batch.server.open()
    assert batch.send("continue").state == "done"
    out, err = resumed.communicate(timeout=LONG_S)
    assert resumed.returncode in (0, 5), (out, err)
    results = batch.results()
    assert len(results) == 12 and results["r12"] == ("error", "execution_halted")
    assert {verdict for verdict, _ in results.values()} == {"passed", "error"}
    assert batch.server.asked["x" * 12] == 0
    assert [command.state for command in batch_status(batch.output).commands] == ["done"] * 4
    assert open_batch(batch.output).manifest["arguments"]["limits"] == {"concurrency": 3}


def test_errors_are_run_again_and_skipped_samples_too(batch: Batch) -> None:
    batch.server.refused = {"x", "xxx"}
    session = batch.start()
    batch.wait_for(2)
    assert batch.send("skip", "r11").state == "accepted"
    unknown = batch.send("skip", "nobody")
    assert unknown.state == "accepted"
    in_flight = batch.send("skip", "r1")
    assert in_flight.state == "refused" and "1 is in flight" in in_flight.message
    assert batch.send("retry", "provider_failure").state == "accepted"
    batch.server.open()
    out, err = session.communicate(timeout=LONG_S)
    assert session.returncode in (0, 5), (out, err)
    results = batch.results()
    assert results.pop("r11") == ("error", "execution_halted")
    assert set(results.values()) == {("passed", None)} and len(results) == 11
    assert batch.server.asked["x"] == batch.server.asked["xxx"] == 2
    commands = {c.id: (c.state, c.message) for c in batch_status(batch.output).commands}
    assert commands[2] == ("refused", "no row has the id nobody")
    assert commands[4] == ("done", "2 samples were run again")
    manifest = open_batch(batch.output).manifest
    assert (manifest["state"], manifest["total"]) == ("complete", 12)


def test_commands_sent_at_once_all_count(batch: Batch) -> None:
    session = batch.start()
    batch.wait_for(2)
    session.kill()
    session.wait()
    program = (
        "import sys; from evaluator.batch import control_batch\n"
        "for n in range(8): control_batch('b', 'set', [f'stop_after={n}'])"
    )
    commanders = [
        subprocess.Popen([sys.executable, "-c", program], cwd=batch.folder) for _ in range(2)
    ]
    assert [commander.wait(LONG_S) for commander in commanders] == [0, 0]
    commands = batch_status(batch.output).commands
    assert [command.id for command in commands] == list(range(1, 17))
    assert Counter(command.arguments for command in commands) == {
        (f"stop_after={n}",): 2 for n in range(8)
    }


# -- without a process of its own ------------------------------------------------------------------


@pytest.fixture
def stopped(run: Run, calls: Calls) -> BatchResult:
    """A batch of the quiz that was stopped after its first sample."""
    stop = Stop()
    answer = calls.otherwise

    def answer_and_stop(prompt: str) -> str:
        stop.ask()
        return answer(prompt)

    calls.otherwise = answer_and_stop
    result = run(stop=stop, limits={"concurrency": 1})
    calls.otherwise = answer
    assert result.ended.ran == 1
    return result


def test_a_log_that_is_removed_while_a_command_waits_is_an_error(
    stopped: BatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ControlLog.send

    def send_and_remove(log: ControlLog, action: Action, arguments: Any) -> Command:
        sent = send(log, action, arguments)
        log.path.unlink()
        return sent

    monkeypatch.setattr(ControlLog, "send", send_and_remove)
    with pytest.raises(RecordError, match="the command is not in this file any more"):
        control_batch(stopped.folder, "skip", ["r8"])


def test_a_line_that_a_killed_commander_left_is_not_a_command(
    stopped: BatchResult, run: Run
) -> None:
    log = stopped.folder / CONTROL
    control_batch(stopped.folder, "skip", ["r8"])
    control_batch(stopped.folder, "skip", ["r9"])
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    assert [c.arguments for c in batch_status(stopped.folder).commands] == [("r8",)]
    assert control_batch(stopped.folder, "skip", ["r7"]).id == 2
    result = run(resume=True)
    halted = {each.sample_id for each in result.results() if each.verdict is Verdict.ERROR}
    assert halted == {"r7", "r8"}
    # It is counted, and another session runs the samples again.
    assert result.is_complete and result.summary.counts.error == 2
    assert run(resume=True, retry_errors=True).summary.counts.passed == len(ROWS)


def test_a_stop_that_no_session_has_read_ends_the_next_one(
    stopped: BatchResult, run: Run, calls: Calls
) -> None:
    log = ControlLog(stopped.folder, str(open_batch(stopped.folder).manifest["created"]))
    log.send("stop")
    calls.clear()
    result = run(resume=True)
    assert (result.ended.state, result.ended.reason) == ("stopped", "stopped by command 1")
    assert not calls
    assert run(resume=True).is_complete


@pytest.mark.parametrize(
    ("action", "arguments", "message"),
    [
        ("set", ["max_cost=0"], "max_cost is 0, expected a number above 0"),
        ("set", ["concurency=3"], "did you mean"),
        ("set", ["concurrency"], "expected LIMIT=VALUE"),
        ("retry", ["provider_failur"], "did you mean"),
        ("skip", [], "skip needs the id of a sample"),
        ("stop", [], r"no session of the batch runs \(stopped\)"),
        ("continue", [], "no session of the batch runs"),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_not_written(
    stopped: BatchResult, action: Action, arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        control_batch(stopped.folder, action, arguments)
    assert not (stopped.folder / CONTROL).exists()


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(
    stopped: BatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(30, os.strerror(30))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", refuse)
        with pytest.raises(RecordError, match=r"control\.jsonl: a command cannot be written: Read"):
            control_batch(stopped.folder, "pause")
    assert batch_status(stopped.folder).commands == ()
    (stopped.folder / CONTROL).unlink()
    (stopped.folder / CONTROL).mkdir()
    with pytest.raises(RecordError, match=r"control\.jsonl"):
        control_batch(stopped.folder, "pause")


def test_a_command_is_written_whole_where_the_disk_takes_a_part_of_it(
    stopped: BatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", lambda fd, data: os.write(fd, data[:9]))
        control_batch(stopped.folder, "retry")
    status = batch_status(stopped.folder)
    assert [str(command) for command in status.commands] == ["retry"] and not status.ignored


def test_rows_that_can_be_read_once_are_not_run_again(
    quiz: Evaluator, run: Run, stopped: BatchResult
) -> None:
    control_batch(stopped.folder, "retry")
    result = run(iter(ROWS), resume=True)
    assert result.is_complete
    (command,) = batch_status(stopped.folder).commands
    assert command.state == "refused" and "read only once" in command.message


def test_a_command_is_answered_when_its_results_are_on_the_disk(
    run: Run, stopped: BatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the answer could otherwise lose what was reported as done."""
    control_batch(stopped.folder, "skip", ["r8"])
    control_batch(stopped.folder, "retry")
    written: dict[str, int] = {}
    answer = ControlLog.answer

    def counted(self: ControlLog, command: Command, state: Any, message: str) -> Any:
        if state == "done":
            lines = (stopped.folder / "results.jsonl").read_text().splitlines()
            written[command.action] = sum(json.loads(line)["sample_id"] == "r8" for line in lines)
        return answer(self, command, state, message)

    monkeypatch.setattr(ControlLog, "answer", counted)
    result = run(resume=True)
    assert result.is_complete and result.summary.counts.passed == 10
    assert written == {"skip": 1, "retry": 2}


def test_an_answer_is_on_the_disk_with_the_name_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender may have been killed before it synced the folder of the new log."""
    log = ControlLog(tmp_path, "now")
    command = log.send("pause")
    synced: list[str] = []
    fsync = disk.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(disk, "fsync", note)
    log.answer(command, "done")
    assert synced == [str(tmp_path / CONTROL), str(tmp_path)]
