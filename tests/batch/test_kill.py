"""A batch that is killed at any request continues where it stopped: nothing is lost, and few calls are repeated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator import TaskStore
from evaluator.batch import control_batch, open_batch
from tests.batch.killing import PROFILE, QUIZ, KillingServer, begun_calls, counted_calls
from tests.cli.conftest import PROGRAM

ROWS, CONCURRENCY = 40, 4
NO_REPEATS = '<retries max="0"/></handler>'


@pytest.fixture
def server() -> Iterator[KillingServer]:
    server = KillingServer()
    yield server
    server.shutdown()
    server.server_close()


def run(
    folder: Path,
    server: KillingServer,
    template: str,
    output: str,
    kill_at: int | None,
    after: bool,
    *options: str,
    codes: tuple[int, ...] = (-9, 0),
) -> int:
    """The exit code of one session, which the server may kill."""
    command = [
        PROGRAM,
        "batch",
        "--library",
        "quiz.xml",
        "--template",
        template,
        "--rows",
        "rows.jsonl",
        "--scorer",
        "exact",
        "--handler",
        "wire",
        "--concurrency",
        str(CONCURRENCY),
        "--progress",
        "none",
        *options,
    ]
    command += ["--resume" if (folder / output / "manifest.json").exists() else "--output", output]
    return session(folder, server, command, kill_at, after=after, codes=codes)


def session(
    folder: Path,
    server: KillingServer,
    command: list[str],
    kill_at: int | None,
    *,
    after: bool = False,
    codes: tuple[int, ...] = (-9, 0),
) -> int:
    """The exit code of a command, which the server may kill."""
    with server.lock:
        server.kill_at, server.after = None if kill_at is None else server.posts + kill_at, after
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        server.victim = process.pid
    out, err = process.communicate(timeout=300)
    assert process.returncode in codes, (out, err)
    return process.returncode


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    return {
        each.sample_id: (each.verdict.value, each.content) for each in open_batch(folder).results()
    }


def write(folder: Path, port: int) -> None:
    (folder / "quiz.xml").write_text(QUIZ)
    (folder / "handlers").mkdir()
    (folder / "handlers" / "wire.xml").write_text(PROFILE.format(port=port))
    write_rows(folder)


def write_rows(folder: Path) -> None:
    rows = [{"id": f"r{n}", "question": "x" * n, "target": str(n)} for n in range(1, ROWS + 1)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_what_runs_of_changed_rows_have_used_is_spending_of_earlier_runs(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    assert run(tmp_path, server, "twice", "killed", 30, after=False) == -9
    posts = server.posts
    results = open_batch(tmp_path / "killed").results()
    answered_rows = {result.sample_id: result.usage.turns for result in results}
    begun = begun_calls(tmp_path / "killed")
    assert posts <= begun < posts + CONCURRENCY
    abandoned_calls = begun - sum(answered_rows.values())
    rows = list(map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()))
    for row in rows:
        if row["id"] not in answered_rows:
            row["question"] += "!"
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for _ in range(2):
        assert run(tmp_path, server, "twice", "killed", None, after=False) == 0
        batch = open_batch(tmp_path / "killed")
        summary = batch.summarise()
        assert summary.complete and summary.spending.interrupted_calls == 0
        abandoned = batch.manifest["abandoned"]
        turns = sum(each["usage"]["turns"] for each in abandoned)
        earlier = summary.replaced_spending
        assert earlier is not None and 0 < earlier.interrupted_calls <= CONCURRENCY
        assert turns + earlier.interrupted_calls == abandoned_calls
        assert earlier.cost_usd.of == len(abandoned)
        text = " ".join(summary.to_text().split()).partition("earlier runs, in addition: ")[2]
        # An answered call has no known cost; a run whose only call was in flight has used nothing.
        if all(each["usage"]["cost_usd"] is None for each in abandoned):
            assert text.startswith("cost: unknown for all ")
        else:
            assert text.startswith("cost: at least $0.0000, known for ")
    # The rows are as before, and a further session is killed: no run is counted twice.
    write_rows(tmp_path)
    lines_before = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join(reversed(lines_before)))
    run(tmp_path, server, "twice", "killed", 12, False, "--changed", "run", codes=(-9,))
    run(tmp_path, server, "twice", "killed", None, False, "--changed", "run", codes=(0,))
    assert open_batch(tmp_path / "killed").summarise().complete
    begun = begun_calls(tmp_path / "killed")
    assert server.posts <= begun < server.posts + 2 * CONCURRENCY
    assert counted_calls(tmp_path / "killed") == begun


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["skip", "limit"])
def test_what_runs_of_samples_that_are_left_out_have_used_is_spending_of_earlier_runs(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    folder = tmp_path / "killed"
    assert run(tmp_path, server, "twice", "killed", 30, after=False) == -9
    answered_rows = {result.sample_id for result in open_batch(folder).results()}
    left = [f"r{n}" for n in range(1, ROWS + 1) if f"r{n}" not in answered_rows]
    options: list[str] = []
    if how == "skip":
        control_batch(folder, "skip", left, wait_s=0)
    else:
        first = next(n for n in range(1, ROWS + 1) if f"r{n}" in left)
        options = ["--limit", str(first - 1)] if first > 1 else ["--offset", str(ROWS - 1)]
    posts = server.posts
    run(tmp_path, server, "twice", "killed", None, False, *options, codes=(0, 5))
    summary = open_batch(folder).summarise()
    assert summary.complete and server.posts == posts + (2 if options[:1] == ["--offset"] else 0)
    begun = begun_calls(folder)
    assert server.posts <= begun < server.posts + CONCURRENCY
    assert counted_calls(folder) == begun
    earlier = summary.replaced_spending
    assert earlier is not None and earlier.interrupted_calls > 0
    unsent = begun - server.posts
    # Further sessions count the same, also one that does the samples after all.
    for further in ([], ["--retry-errors"]):
        run(tmp_path, server, "twice", "killed", None, False, *further, codes=(0, 5))
        assert counted_calls(folder) == begun_calls(folder) == server.posts + unsent


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("template", "calls_a_row", "after"), [("quiz", 1, False), ("twice", 2, True)]
)
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(
    server: KillingServer,
    tmp_path: Path,
    template: str,
    calls_a_row: int,
    after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    assert run(tmp_path, server, template, "whole", None, after) == 0
    expected = contents(tmp_path / "whole")
    assert len(expected) == ROWS
    server.asked.clear()
    server.answered.clear()

    killed = 0
    for kill_at in (1, 3, 7, 13):
        if run(tmp_path, server, template, "killed", kill_at, after) == 0:
            break
        killed += 1
    assert killed >= 4
    assert run(tmp_path, server, template, "killed", None, after) == 0

    assert contents(tmp_path / "killed") == expected
    repeated = server.posts - ROWS * calls_a_row
    assert len(server.asked) == ROWS * calls_a_row
    # A call in flight may be billed too, which the amounts do not contain: they are lower bounds.
    whole = open_batch(tmp_path / "whole").summarise()
    resumed = open_batch(tmp_path / "killed").summarise()
    interrupted = resumed.spending.interrupted_calls
    assert whole.spending.interrupted_calls == 0 and "in flight" not in whole.to_text()
    begun = begun_calls(tmp_path / "killed")
    assert interrupted == begun - ROWS * calls_a_row <= killed * CONCURRENCY
    assert server.posts <= begun and counted_calls(tmp_path / "killed") == begun
    assert f"({interrupted} calls were in flight when a process ended" in resumed.to_text()
    assert "tokens: at least" in resumed.to_text()
    assert repeated <= killed * CONCURRENCY, f"{repeated} calls were repeated after {killed} kills"
    assert run(tmp_path, server, template, "killed", None, after) == 0
    assert server.posts == ROWS * calls_a_row + repeated


@pytest.mark.timeout(300)
def test_calls_of_judges_that_a_kill_interrupts_are_counted(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    judged = ("--scorer", "reference", "--limit", "1")
    # The first request is the answer's, the second the judge's.
    assert run(tmp_path, server, "quiz", "killed", 2, False, *judged) == -9
    # The server's text is no verdict: the only sample is an error.
    assert run(tmp_path, server, "quiz", "killed", None, False, codes=(5,)) == 5
    (result,) = open_batch(tmp_path / "killed").results()
    assert server.posts == 3 and result.interrupted_calls == 1
    assert (result.usage.turns, result.scoring_usage.turns) == (1, 1)


@pytest.mark.timeout(300)
def test_calls_of_a_killed_retry_that_is_not_repeated_are_counted(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry resumes the task of the error, whose result was written before it."""
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    profile = tmp_path / "handlers" / "wire.xml"
    profile.write_text(profile.read_text().replace("</handler>", NO_REPEATS))
    folder = tmp_path / "killed"
    server.refused = ("again: xxx",)
    few = ("--limit", "4")
    run(tmp_path, server, "twice", "killed", None, False, *few, codes=(0,))
    assert counted_calls(folder) == begun_calls(folder) == 7
    retry = (*few, "--retry-errors")
    run(tmp_path, server, "twice", "killed", 1, False, *retry, codes=(-9,))
    library = ("--library", "quiz.xml")
    score = [PROGRAM, "score", "killed", "--scorer", "includes", *library, "--progress", "none"]
    for scores in (False, False, True):
        if scores:
            session(tmp_path, server, score, None, codes=(0,))
        else:
            run(tmp_path, server, "twice", "killed", None, False, *few, codes=(0,))
        earlier = open_batch(folder).summarise().replaced_spending
        assert earlier is not None and earlier.interrupted_calls == 1
        assert counted_calls(folder) == begun_calls(folder) == 8
    server.refused = ()
    again = [PROGRAM, "batch", "--resume", "killed", "--retry-errors", "--progress", "none"]
    session(tmp_path, server, again, None, codes=(0,))
    assert counted_calls(folder) == begun_calls(folder) == 9
    assert open_batch(folder).summarise().spending.interrupted_calls == 1


@pytest.mark.timeout(300)
def test_the_judge_of_a_killed_retry_is_counted_and_resumed(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    folder = tmp_path / "killed"
    judged = ("--scorer", "reference", "--limit", "1")
    # The server's text is no verdict: the only sample is an error.
    run(tmp_path, server, "quiz", "killed", None, False, *judged, codes=(5,))
    retry = (*judged, "--retry-errors")
    run(tmp_path, server, "quiz", "killed", 1, False, *retry, codes=(-9,))
    assert server.posts == 3
    run(tmp_path, server, "quiz", "killed", None, False, *judged, codes=(5,))
    earlier = open_batch(folder).summarise().replaced_spending
    assert earlier is not None and earlier.interrupted_calls == 1
    assert counted_calls(folder) == begun_calls(folder) == 3
    run(tmp_path, server, "quiz", "killed", None, False, *retry, codes=(5,))
    assert counted_calls(folder) == begun_calls(folder) == server.posts == 4
    (result,) = open_batch(folder).results()
    assert result.interrupted_calls == 1 and len(set(result.judge_tasks)) == 2


@pytest.mark.timeout(300)
def test_a_killed_task_says_how_many_calls_may_be_billed_too(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    library = ("--library", "quiz.xml")
    begin = ["run", "--template", "twice", "-i", "question=four", "--handler", "wire", *library]
    resume = ["tasks", "resume", "1", *library]
    assert session(tmp_path, server, [PROGRAM, *begin], 2) == -9
    assert session(tmp_path, server, [PROGRAM, *resume], 1) == -9
    assert session(tmp_path, server, [PROGRAM, *resume], None) == 0
    assert server.posts == 4
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.summary is not None and recording.summary.result is not None
    assert recording.summary.result["usage"]["turns"] == 2
    assert recording.summary.result["notes"]["interrupted_calls"] == 2


@pytest.mark.timeout(300)
def test_the_process_that_writes_the_results_of_others_is_killed(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers end with it; what they have answered and nobody has written is read back."""
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    processes = ("--engine", "processes", "--workers", "2")
    for kill_at, after in ((7, True), (11, False)):
        assert run(tmp_path, server, "quiz", "killed", kill_at, after, *processes) == -9
    assert run(tmp_path, server, "quiz", "killed", None, False, *processes) == 0

    expected = {f"r{n}": ("passed", str(n)) for n in range(1, ROWS + 1)}
    assert contents(tmp_path / "killed") == expected
    begun = begun_calls(tmp_path / "killed")
    assert ROWS <= server.posts <= begun <= ROWS + 2 * CONCURRENCY
    assert counted_calls(tmp_path / "killed") == begun
