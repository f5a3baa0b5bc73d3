"""A batch and the folder where it was started: resumed from elsewhere, after a move, and without it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.testing import Answer, LoopbackServer

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{{{ question }}}} {more}</instructions></task>"
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>{url}</base_url></handler>"""
CHECKS = "def same(output, target):\n    return {value}\n"
ROWS = [{"id": f"r{n}", "question": f"How much is {n} and 1?", "target": "2"} for n in range(6)]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(default=Answer("2")) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, server: LoopbackServer) -> Callable[..., Path]:
    """`project(name)`: a folder with the files of the batch; `others`: the same names, other contents."""

    def make(name: str, *, others: bool = False) -> Path:
        folder = tmp_path / name
        files = {
            "templates/quiz.xml": QUIZ.format(more="Be wrong." if others else ""),
            "handlers/wire.xml": PROFILE.format(url=NOWHERE if others else server.base_url),
            "checks.py": CHECKS.format(value="False" if others else "output == target"),
            "rows.jsonl": "\n".join(
                json.dumps({**row, "target": "9"} if others else row) for row in ROWS
            ),
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


def start_batch(cli: Any, folder: Path, *more: Any) -> Path:
    """A batch with two of six samples done."""
    ran = cli(
        "batch",
        "--template",
        "quiz",
        "--rows",
        "rows.jsonl",
        "--scorer",
        "checks.py:same",
        "--handler",
        "wire",
        "--limit",
        2,
        "--output",
        "b",
        *more,
        cwd=folder,
    )
    assert ran.code == 0, ran.err
    return folder / "b"


def resume_batch(cli: Any, batch: Path, cwd: Path, *more: Any) -> dict[str, Any]:
    ran = cli("batch", "--resume", batch, "--limit", 6, "--json", *more, cwd=cwd)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def passed(told: dict[str, Any]) -> int:
    return told["summary"]["counts"]["passed"]


def test_from_elsewhere_the_files_where_it_was_started_are_used(
    cli: Any, project: Any, server: LoopbackServer
):
    batch = start_batch(cli, project("a"))
    told = resume_batch(cli, batch, project("elsewhere", others=True))
    assert (told["ran"], passed(told), told["changed"]) == (4, 6, [])
    assert server.posts == 6


def test_paths_in_flags_are_relative_to_where_the_command_is_run(
    cli: Any, project: Any, server: LoopbackServer
):
    batch, elsewhere = start_batch(cli, project("a")), project("elsewhere", others=True)
    (elsewhere / "more.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    (elsewhere / "checks.py").write_text("def less(output, target):\n    return output < target\n")
    options = [
        "--rows",
        "more.jsonl",
        "--cache",
        "c.sqlite",
        "--root",
        "templates",
    ]
    assert passed(resume_batch(cli, batch, elsewhere, *options)) == 6
    assert (elsewhere / "c.sqlite").exists() and not (batch.parent / "c.sqlite").exists()
    # The manifest has them, so that the next session uses the same.
    assert resume_batch(cli, batch, batch.parent)["ran"] == 0
    scored = cli("score", batch, "--scorer", "checks.py:less", "--json", cwd=elsewhere)
    assert json.loads(scored.out)["scored"] == 6, scored.err
    library = cli("batch", "--resume", batch, "--library", "templates", "--json", cwd=elsewhere)
    assert len(json.loads(library.out)["changed"]) == 6
    assert server.posts == 6


def test_if_that_folder_is_gone_the_error_has_the_command_and_nothing_runs(
    cli: Any, project: Any, tmp_path: Path, server: LoopbackServer
):
    batch = start_batch(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    before = (batch / "results.jsonl").read_bytes()
    ran = cli("batch", "--resume", batch, "--limit", 6, cwd=project("elsewhere", others=True))
    assert ran.code == 2 and f"{tmp_path / 'a'}, which does not exist" in ran.err
    assert (batch / "results.jsonl").read_bytes() == before and server.posts == 2
    # The advised command, in the folder where the files are now.
    said = " ".join(ran.err.split()).rpartition("run: evaluator ")[2]
    ran = cli(*shlex.split(said), "--limit", 6, "--json", cwd=tmp_path / "moved")
    assert ran.code == 0 and "using files in this folder" in ran.err, ran.err
    told = json.loads(ran.out)
    assert (told["ran"], passed(told), told["changed"], server.posts) == (4, 6, [], 6)
    # The manifest now has its new folder.
    assert resume_batch(cli, batch, tmp_path)["ran"] == 0


def test_the_advised_command_has_the_roots_of_the_batch(cli: Any, project: Any, tmp_path: Path):
    batch = start_batch(cli, project("a"), "--root", "templates", "--root", "handlers").rename(
        tmp_path / "b"
    )
    (tmp_path / "a").rename(tmp_path / "moved")
    ran = cli("batch", "--resume", batch, cwd=tmp_path)
    assert ran.code == 2 and "--root templates --root handlers" in " ".join(ran.err.split())


def test_a_folder_that_is_a_file_now_is_gone_too(cli: Any, project: Any, tmp_path: Path):
    batch = start_batch(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a").write_text("")
    ran = cli("batch", "--resume", batch, cwd=tmp_path)
    assert ran.code == 2 and "which does not exist" in ran.err


def test_results_are_shown_without_that_folder(cli: Any, project: Any, tmp_path: Path):
    batch = start_batch(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    elsewhere = project("elsewhere", others=True)
    for command in (
        ["summary", batch, "--threshold", "accuracy >= 1"],
        ["report", batch],
        ["compare", batch, batch],
        ["export", batch, "--format", "csv", "--output", "out.csv"],
    ):
        ran = cli(*command, cwd=elsewhere)
        assert ran.code == 0, ran.err


def test_a_samples_identity_is_the_same_in_every_place(cli: Any, project: Any):
    def identities(batch: Path) -> set[tuple[str, str]]:
        results = map(json.loads, (batch / "results.jsonl").read_text().splitlines())
        return {(result["key"], result["identity"]) for result in results}

    first = identities(start_batch(cli, project("a"), "--root", project("a")))
    assert len(first) == 2
    assert first == identities(start_batch(cli, project("other/place")))
