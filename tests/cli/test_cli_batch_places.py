"""A batch and the folder in which it was begun: gone on with from elsewhere, after a move, and without it."""

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
    """`project(name)`: a folder with all that the batch needs; `others`: with the same names and other contents."""

    def make(name: str, *, others: bool = False) -> Path:
        folder = tmp_path / name
        files = {
            "templates/quiz.xml": QUIZ.format(more="Be wrong." if others else ""),
            "handlers/wire.xml": PROFILE.format(url=NOWHERE if others else server.base_url),
            "checks.py": CHECKS.format(value="False" if others else "output == target"),
            "rows.jsonl": "\n".join(json.dumps({**row, "target": "9"} if others else row) for row in ROWS),
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


def begun(cli: Any, folder: Path, *more: Any) -> Path:
    """A batch of which two of six samples are done."""
    ran = cli("batch", "--template", "quiz", "--rows", "rows.jsonl", "--scorer", "checks.py:same", "--handler", "wire",
              "--limit", 2, "--output", "b", *more, cwd=folder)  # fmt: skip
    assert ran.code == 0, ran.err
    return folder / "b"


def resumed(cli: Any, batch: Path, cwd: Path, *more: Any) -> dict[str, Any]:
    ran = cli("batch", "--resume", batch, "--limit", 6, "--json", *more, cwd=cwd)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def passed(told: dict[str, Any]) -> int:
    return told["summary"]["counts"]["passed"]


def test_from_elsewhere_the_files_of_where_it_was_begun_are_used(cli: Any, project: Any, server: LoopbackServer):
    batch = begun(cli, project("a"))
    told = resumed(cli, batch, project("elsewhere", others=True))
    assert (told["ran"], passed(told), told["changed"]) == (4, 6, [])
    assert server.posts == 6


def test_files_that_are_named_with_it_are_those_where_the_command_is_given(
    cli: Any, project: Any, server: LoopbackServer
):
    batch, elsewhere = begun(cli, project("a")), project("elsewhere", others=True)
    (elsewhere / "more.jsonl").write_text("\n".join(json.dumps({**row, "target": "3"}) for row in ROWS))
    (elsewhere / "checks.py").write_text("def less(output, target):\n    return output < target\n")
    options = ["--rows", "more.jsonl", "--scorer", "checks.py:less", "--cache", "c.sqlite", "--root", "templates"]
    assert passed(resumed(cli, batch, elsewhere, *options)) == 6
    assert (elsewhere / "c.sqlite").exists() and not (batch.parent / "c.sqlite").exists()
    # They are still the same ones the next time.
    assert resumed(cli, batch, batch.parent)["ran"] == 0
    library = cli("batch", "--resume", batch, "--library", "templates", "--json", cwd=elsewhere)
    assert len(json.loads(library.out)["changed"]) == 6
    assert server.posts == 6


def test_where_the_place_is_gone_the_error_says_what_to_give_and_nothing_is_run(
    cli: Any, project: Any, tmp_path: Path, server: LoopbackServer
):
    batch = begun(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    before = (batch / "results.jsonl").read_bytes()
    ran = cli("batch", "--resume", batch, "--limit", 6, cwd=project("elsewhere", others=True))
    assert ran.code == 2 and f"{tmp_path / 'a'}, which is not there" in ran.err
    assert (batch / "results.jsonl").read_bytes() == before and server.posts == 2
    # What it says to give, given where the files are now.
    said = " ".join(ran.err.split()).rpartition("give: evaluator ")[2]
    ran = cli(*shlex.split(said), "--limit", 6, "--json", cwd=tmp_path / "moved")
    assert ran.code == 0 and "its files are looked for here" in ran.err, ran.err
    told = json.loads(ran.out)
    assert (told["ran"], passed(told), told["changed"], server.posts) == (4, 6, [], 6)
    # And it knows its new place.
    assert resumed(cli, batch, tmp_path)["ran"] == 0


def test_roots_that_the_batch_had_are_the_ones_to_give(cli: Any, project: Any, tmp_path: Path):
    batch = begun(cli, project("a"), "--root", "templates", "--root", "handlers").rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    ran = cli("batch", "--resume", batch, cwd=tmp_path)
    assert ran.code == 2 and "--root templates --root handlers" in " ".join(ran.err.split())


def test_a_place_that_is_a_file_now_is_gone_too(cli: Any, project: Any, tmp_path: Path):
    batch = begun(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a").write_text("")
    ran = cli("batch", "--resume", batch, cwd=tmp_path)
    assert ran.code == 2 and "which is not there" in ran.err


def test_what_came_of_a_batch_is_shown_without_the_place(cli: Any, project: Any, tmp_path: Path):
    batch = begun(cli, project("a")).rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "moved")
    elsewhere = project("elsewhere", others=True)
    for command in (["summary", batch, "--gate", "accuracy >= 1"], ["report", batch], ["compare", batch, batch],
                    ["export", batch, "--format", "csv", "--output", "out.csv"]):  # fmt: skip
        ran = cli(*command, cwd=elsewhere)
        assert ran.code == 0, ran.err


def test_a_samples_identity_is_the_same_in_every_place(cli: Any, project: Any):
    def identities(batch: Path) -> set[tuple[str, str]]:
        results = map(json.loads, (batch / "results.jsonl").read_text().splitlines())
        return {(result["key"], result["identity"]) for result in results}

    first = identities(begun(cli, project("a"), "--root", project("a")))
    assert len(first) == 2
    assert first == identities(begun(cli, project("other/place")))
