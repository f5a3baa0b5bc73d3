"""A batch with few-shot examples, turns, functions of rows and metrics, killed at several requests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import open_batch
from tests.batch.killing import PROFILE, KillingServer
from tests.cli.conftest import PROGRAM

SECRET = "sk-" + "ant-api03-" + "a1B2" * 6
INPUTS = '<inputs><input name="question" type="string" required="true"/><input name="functions" default="[]"/></inputs>'
TEMPLATES = f"""<library>
<task name="plain" type="atomic"><description>Answer</description><instructions>{{{{ question }}}}</instructions>
<inputs><input name="question" type="string" required="true"/></inputs></task>
<task name="talk" type="atomic"><description>Talk</description><turns><turn>{{{{ question }}}}</turn>
<turn>more of {{{{ question }}}}</turn></turns>
<inputs><input name="question" type="string" required="true"/></inputs></task>
<task name="call" type="atomic"><description>Call</description><instructions>call {{{{ question }}}}</instructions>
<tools from="functions"/>{INPUTS}</task></library>"""
CHECKS = """
from evaluator.batch import metric

@metric(values=("letters", "calls"))
def own(results):
    texts = [result.content for result in results]
    return {"letters": sum(map(len, texts)), "calls": sum(text.startswith("[") for text in texts)}
"""
ROWS, CALLS_A_ROW = 5, 4
DEFINITION = """
templates = ["plain", "talk", "call"]
rows = "rows.jsonl"
handlers = ["wire"]
library = ["templates.xml"]
scorers = ["exact"]
metrics = ["macro:by=of", "weighted:weight=points", "checks.py:own"]
fewshot = { rows = "dev.jsonl", k = 2 }
limits = { concurrency = 1 }
"""


@pytest.fixture
def server() -> Iterator[KillingServer]:
    server = KillingServer()
    yield server
    server.shutdown()
    server.server_close()


def write(folder: Path, port: int) -> None:
    (folder / "handlers").mkdir()
    (folder / "handlers" / "wire.xml").write_text(PROFILE.format(port=port))
    files = {"templates.xml": TEMPLATES, "checks.py": CHECKS, "evaluator.toml": DEFINITION}
    rows = [
        {
            "question": "x" * n,
            "target": str(n),
            "of": "ab"[n % 2],
            "points": n,
            "functions": [{"name": f"f{n}"}],
        }
        for n in range(1, ROWS + 1)
    ]
    dev = [{"question": f"{n} {SECRET}", "target": f"{n}: {SECRET}"} for n in range(2)]
    for name, data in (("rows.jsonl", rows), ("dev.jsonl", dev)):
        files[name] = "".join(json.dumps(row) + "\n" for row in data)
    for name, text in files.items():
        (folder / name).write_text(text)


def session(folder: Path, server: KillingServer, output: str, kill_at: int | None = None) -> int:
    """The exit code of one session, which the server may kill instead of answering its request number `kill_at`."""
    command = [PROGRAM, "batch", "--progress", "none"]
    command += ["--resume" if (folder / output / "manifest.json").exists() else "--output", output]
    with server.lock:
        server.kill_at = None if kill_at is None else server.posts + kill_at
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        server.victim = process.pid
    out, err = process.communicate(timeout=200)
    assert process.returncode in (-9, 0), (out, err)
    return process.returncode


def numbers(folder: Path) -> Any:
    """The summary, without durations and the calls that kills have interrupted."""
    left_out = ("duration_s", "interrupted_calls")

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(each) for name, each in value.items() if name not in left_out}
        return [kept(each) for each in value] if isinstance(value, list) else value

    return kept(json.loads((folder / "summary.json").read_text()))


def test_a_killed_session_pays_nothing_twice_and_ends_with_the_same_numbers(
    server: KillingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATOR_TRUST", str(tmp_path))
    write(tmp_path, server.server_port)
    assert session(tmp_path, server, "whole") == 0
    whole, seen = server.posts, sorted(server.seen)
    assert whole == ROWS * CALLS_A_ROW and all(SECRET in each for each in seen)
    server.asked.clear()
    server.seen.clear()

    kills = (3, 2)  # in a second turn, then in a call of functions
    assert [session(tmp_path, server, "killed", kill_at) for kill_at in kills] == [-9] * len(kills)
    assert session(tmp_path, server, "killed") == 0

    assert server.posts == whole + len(kills)
    assert set(server.seen) == set(seen)
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    interrupted = [
        open_batch(tmp_path / name).summarise().spending.interrupted_calls
        for name in ("whole", "killed")
    ]
    assert interrupted == [0, len(kills)]
    values = numbers(tmp_path / "killed")["groups"][0]["metrics"]
    assert values.keys() == {"macro", "weighted", "own.letters", "own.calls"}
    assert not any(
        SECRET in path.read_text() for path in tmp_path.glob("killed/**/*") if path.is_file()
    )
