"""`evaluator score` adds scorers to a batch in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import open_batch
from tests.cli.conftest import Run

BATCH = ("batch", "--template", "answer_question", "--rows", "rows.jsonl", "--handler", "offline")


@pytest.fixture
def folder(cli: Run, write: Any, tmp_path: Path) -> Path:
    rows = [{"id": f"r{n}", "question": f"{n}?", "target": str(n)} for n in range(3)]
    write("rows.jsonl", "\n".join(map(json.dumps, rows)))
    assert cli(*BATCH, "--scorer", "exact", "--output", "b", "--progress", "none").code == 0
    (tmp_path / "rows.jsonl").rename(tmp_path / "moved.jsonl")
    return tmp_path / "b"


def test_scorers_are_added_and_a_resumed_batch_has_them(
    folder: Path, cli: Run, tmp_path: Path
) -> None:
    ran = cli("score", "b", "--scorer", "f1", "--json")
    shown = json.loads(ran.out)
    assert ran.code == 0 and shown["scored"] == 3
    assert set(shown["summary"]["groups"][0]["scorers"]) == {"exact", "f1"}
    (tmp_path / "moved.jsonl").rename(tmp_path / "rows.jsonl")
    resumed = cli("batch", "--resume", "b", "--json", "--progress", "none")
    assert resumed.code == 0 and json.loads(resumed.out)["ran"] == 0
    replaced = cli("score", "b", "--scorer", "f1:pass_at=0.9", "--replace", "--max-cost", "1")
    assert replaced.code == 0 and "f1" in replaced.out
    scorers = open_batch(folder).manifest["arguments"]["scorers"]
    assert scorers == ["exact", "f1:pass_at=0.9"]
    history = cli("score", "b", "--history").out.splitlines()
    assert [line.split()[0] for line in history[-3:]] == ["exact", "f1", "f1"]


def test_resume_adds_no_scorer_and_names_the_command_that_does(folder: Path, cli: Run) -> None:
    ran = cli("batch", "--resume", "b", "--scorer", "f1")
    assert ran.code == 2 and "evaluator score" in ran.err and "--scorer f1" in ran.err
    assert set(open_batch(folder).manifest["scorers"]) == {"exact"}


def test_what_cannot_be_scored_is_an_error(folder: Path, cli: Run) -> None:
    for words, said in (
        (("b",), "name a scorer with --scorer"),
        (("b", "--scorer", "exac"), "did you mean `exact`"),
        (("b", "--scorer", "exact:ignore_case=true"), "replace it (--replace"),
    ):
        ran = cli("score", *words)
        assert ran.code != 0 and said in ran.err, ran
    assert set(open_batch(folder).manifest["scorers"]) == {"exact"}
