"""Results and manifests that were changed, cut or removed are refused, and repaired without a second call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import BatchResult, RecordError
from evaluator.batch import NoDisplay, open_batch
from evaluator.batch.identity import is_sealed, seal_line
from evaluator.cli import main
from evaluator.errors.messages import amount
from tests.batch.conftest import Calls, Run

Damage = Callable[[Path], object]


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["results.jsonl", "manifest.json"])
def test_of_240_flipped_bits_none_changes_the_numbers_silently(
    run: Run, tmp_path: Path, name: str
) -> None:
    numbers = run().summary.to_dict()
    path = tmp_path / "batch" / name
    whole = path.read_bytes()
    refused = 0
    for n in range(120):
        at = n * (len(whole) - 1) // 119
        flip(path, at, n % 8)
        if at == len(whole) - 1 and name == "results.jsonl":
            # The end of the last line: it reads as a line that is still being written.
            assert not open_batch(path.parent).summarise().complete
        else:
            with pytest.raises(RecordError, match=rf"{name}.*--repair"):
                open_batch(path.parent).summarise()
            refused += 1
        path.write_bytes(whole)
    assert refused >= 119
    assert open_batch(path.parent).summarise().to_dict() == numbers


@pytest.mark.parametrize(
    "changed",
    [
        {"cached_calls": "two"},
        {"cached_calls": 2.5},
        {"interrupted_calls": "two"},
        {"duration_s": 10**400},
        {"epoch": [1]},
        {"usage": {"cost_usd": "free"}},
        {"usage": {"input_tokens": "many"}},
        {"usage": {"input_tokens": 2.5}},
        {"scores": {"exact": {"value": "high", "passed": True}}},
        {"scores": {"exact": {"value": 1.0, "passed": 1000}}},
    ],
)
def test_a_line_with_a_checksum_that_is_not_a_result_is_refused_by_its_number(
    run: Run, tmp_path: Path, changed: dict[str, Any]
) -> None:
    run()
    path = tmp_path / "batch" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)

    def write(changed: dict[str, Any]) -> None:
        data = json.loads(lines[3]) | changed
        del data["crc32"]
        text = json.dumps(data, separators=(",", ":"))
        path.write_bytes(b"".join([*lines[:3], seal_line(text), *lines[4:]]))

    write(changed)
    with pytest.raises(RecordError, match=r"results\.jsonl:4: (Type|Overflow)Error"):
        open_batch(path.parent).summarise()
    with pytest.raises(RecordError, match=r"results\.jsonl:4: (Type|Overflow)Error"):
        run(resume=True)
    write({"cached_calls": 2, "interrupted_calls": 3})
    spending = run(resume=True).summary.spending
    assert (spending.cached_calls, spending.interrupted_calls) == (2, 3)


@pytest.mark.parametrize("place", ["3", 2**64, -1, True, None])
def test_a_result_whose_place_is_no_count_is_refused(run: Run, tmp_path: Path, place: Any) -> None:
    _write_fourth_line(run, tmp_path, {"place": place})
    with pytest.raises(RecordError, match=r"results\.jsonl:4: TypeError: the place of a row is"):
        list(open_batch(tmp_path / "batch").results())


@pytest.mark.parametrize("tasks", [["../../TASK-3"], [-1], [True], [[3]], 3, None])
def test_a_result_whose_judges_are_no_tasks_is_refused(
    run: Run, tmp_path: Path, tasks: Any
) -> None:
    _write_fourth_line(run, tmp_path, {"judge_tasks": tasks})
    with pytest.raises(RecordError, match=r"results\.jsonl:4: TypeError: "):
        list(open_batch(tmp_path / "batch").results())


def _write_fourth_line(run: Run, folder: Path, changed: dict[str, Any]) -> None:
    run()
    path = folder / "batch" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    data = json.loads(lines[3]) | changed
    del data["crc32"]
    line = seal_line(json.dumps(data, separators=(",", ":")))
    path.write_bytes(b"".join([*lines[:3], line, *lines[4:]]))


def test_lines_of_a_version_without_interrupted_calls_are_read(run: Run, tmp_path: Path) -> None:
    run()
    path = tmp_path / "batch" / "results.jsonl"
    before = open_batch(path.parent).summarise().to_dict()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["crc32"]
        assert line.pop("interrupted_calls") == 0
    path.write_bytes(b"".join(seal_line(json.dumps(line, separators=(",", ":"))) for line in lines))
    assert open_batch(path.parent).summarise().to_dict() == before
    assert [each.interrupted_calls for each in open_batch(path.parent).results()] == [0] * len(
        lines
    )
    assert run(resume=True).summary.to_dict() == before


def edit_score(path: Path) -> None:
    text = (path / "results.jsonl").read_text()
    (path / "results.jsonl").write_text(
        text.replace('"value":0.0', '"value":1.0').replace('"value":1.0', '"value":0.5', 1)
    )


@pytest.mark.parametrize("command", ["summary", "report", "export", "compare", "batch"])
@pytest.mark.parametrize("what", ["score", "manifest", "removed", "an earlier version"])
def test_every_command_refuses_a_damaged_folder_and_says_how_to_continue(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, what: str
) -> None:
    run()
    folder = tmp_path / "batch"
    if what == "score":
        edit_score(folder)
    elif what == "manifest":
        text = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text(text.replace('"total": 10', '"total": 5'))
    elif what == "removed":
        (folder / "results.jsonl").unlink()
    else:
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        texts = [
            json.dumps({key: value for key, value in line.items() if key != "crc32"})
            for line in lines
        ]
        (folder / "results.jsonl").write_text("\n".join(texts) + "\n")
    argv = {
        "summary": [str(folder)],
        "report": [str(folder), "-o", str(tmp_path / "r.html")],
        "export": [str(folder), "-f", "csv", "-o", str(tmp_path / "r.csv")],
        "compare": [str(folder), str(folder)],
        "batch": ["--resume", str(folder)],
    }[command]
    with pytest.raises(SystemExit) as ended:
        main([command, *argv])
    error = capfd.readouterr().err
    if command == "batch" and what != "manifest":
        # This batch was run from Python, which the command says first.
        assert ended.value.code == 2
        with pytest.raises(RecordError, match="--repair"):
            run(resume=True)
        return
    assert ended.value.code == 3, error
    assert "--repair" in error and ("results.jsonl" in error or "manifest.json" in error)
    if what == "score":
        assert "results.jsonl:1:" in error


class Removing(NoDisplay):
    """Damages the file of results when half of them are written."""

    def __init__(self, damage: Damage, folder: Path, after: int) -> None:
        self.damage, self.folder, self.left = damage, folder, after

    def result(self, result: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.damage(self.folder / "results.jsonl")


def replaced(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


REMOVED = (Path.unlink, "was removed")
REPLACED = (replaced, "was replaced")
EMPTIED = (lambda path: os.truncate(path, 0), "instead of")
CUT = (lambda path: os.truncate(path, path.stat().st_size - 10), "instead of")


@pytest.mark.parametrize(
    ("damage", "what", "after"),
    [
        *[(*damage, after) for damage in (REMOVED, REPLACED) for after in (1, 2, 5, 10)],
        # A result is shown before its line is written: after the first there is nothing to cut.
        *[(*damage, after) for damage in (EMPTIED, CUT) for after in (2, 5, 10)],
    ],
)
def test_results_that_are_lost_while_the_batch_runs_end_it_with_an_error(
    run: Run, calls: Calls, tmp_path: Path, damage: Damage, what: str, after: int
) -> None:
    folder = tmp_path / "batch"
    display = Removing(damage, folder, after)
    with pytest.raises(RecordError, match=rf"results\.jsonl: .*{what}"):
        run(display=display, limits={"concurrency": 1})
    assert json.loads((folder / "manifest.json").read_text())["state"] == "incomplete"
    made = len(calls)
    resumed = run(resume=True, repair=True)
    assert resumed.is_complete and resumed.summary.counts.passed == 10
    assert len(calls) == 10 and len(set(calls)) == 10 and made <= 10


def content_of(result: BatchResult) -> dict[str, Any]:
    return {
        one.sample_id: (one.verdict, one.content, one.scores, one.usage) for one in result.results()
    }


@pytest.mark.parametrize("lines", [[0], [3, 4], list(range(10))], ids=str)
def test_repair_moves_damaged_lines_aside_and_takes_their_answers_from_the_task_files(
    run: Run, calls: Calls, tmp_path: Path, lines: list[int]
) -> None:
    before = content_of(run())
    folder, shown = tmp_path / "batch", list[str]()
    path = folder / "results.jsonl"
    damaged = path.read_bytes().splitlines(keepends=True)
    for n in lines:
        damaged[n] = damaged[n].replace(b'"passed":true', b'"passed":null')
    path.write_bytes(b"".join(damaged))

    class Shown(NoDisplay):
        def notice(self, line: str) -> None:
            shown.append(line)

    resumed = run(resume=True, repair=True, display=Shown())
    assert resumed.is_complete and len(calls) == 10
    assert content_of(resumed) == before
    assert any(
        f"moved {amount(len(lines), 'damaged result')} to damaged.jsonl" in line for line in shown
    )
    assert (folder / "damaged.jsonl").read_bytes() == b"".join(damaged[n] for n in lines)
    assert all(is_sealed(line) for line in path.read_bytes().splitlines(keepends=True))


def test_lines_that_were_deleted_from_a_complete_batch_are_taken_from_the_task_files(
    run: Run, calls: Calls, tmp_path: Path
) -> None:
    run()
    path = tmp_path / "batch" / "results.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    assert not open_batch(path.parent).summarise().complete
    assert run(resume=True).is_complete and len(calls) == 10


def test_the_command_line_ends_and_repairs_a_batch_whose_results_are_removed(
    tmp_path: Path,
) -> None:
    rows = [json.dumps({"id": str(n), "n": str(n), "target": "x"}) for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "q.xml").write_text(
        '<task name="q" type="atomic"><description>d</description><inputs><input name="n"/></inputs></task>'
    )
    (tmp_path / "scorer.py").write_text(
        "import os\n"
        "def score(output, target):\n"
        "    if os.path.exists('b/results.jsonl') and os.path.getsize('b/results.jsonl') and not os.path.exists('once'):\n"
        "        open('once', 'w').close()\n"
        "        os.unlink('b/results.jsonl')\n"
        "    return 1.0\n"
    )
    environment = os.environ | {"EVALUATOR_TRUST": str(tmp_path)}
    common: dict[str, Any] = {
        "cwd": tmp_path,
        "capture_output": True,
        "text": True,
        "env": environment,
    }
    program = [sys.executable, "-m", "evaluator", "batch"]
    options = [
        "--template",
        "q",
        "--rows",
        "rows.jsonl",
        "--handler",
        "offline",
        "--output",
        "b",
        "--concurrency",
        "1",
    ]
    ended = subprocess.run([*program, *options, "--scorer", "scorer.py:score"], **common)
    assert ended.returncode == 3 and "results.jsonl: was removed" in ended.stderr, ended
    assert "resume with: evaluator batch --resume b --repair" in ended.stderr
    repaired = subprocess.run([*program, "--resume", "b", "--repair"], **common)
    assert repaired.returncode == 0 and "6 of 6 results" in repaired.stdout, repaired


def test_repair_accepts_a_changed_manifest(run: Run, calls: Calls, tmp_path: Path) -> None:
    run()
    path = tmp_path / "batch" / "manifest.json"
    path.write_text(path.read_text().replace('"total": 10', '"total": 5'))
    with pytest.raises(RecordError, match="manifest"):
        run(resume=True)
    assert run(resume=True, repair=True).is_complete and len(calls) == 10
    assert (
        json.loads(path.read_text())["total"] == 10
        and open_batch(path.parent).manifest["total"] == 10
    )


def test_a_line_is_sealed_until_a_byte_of_it_changes() -> None:
    line = seal_line('{"key":"é","a":1}')
    assert is_sealed(line) and json.loads(line)["a"] == 1
    assert not any(
        is_sealed(line[:n] + bytes([line[n] ^ 32]) + line[n + 1 :]) for n in range(len(line) - 1)
    )
    assert not is_sealed(b'{"key":"x"}\n') and not is_sealed(b"\n") and not is_sealed(b"")
