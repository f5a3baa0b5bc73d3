"""`evaluator improve`: exit codes, formats, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator import SimulatedBackend
from tests.improve.capitals import BETTER, TEMPLATE, USELESS, Model, rows


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose simulated model is that of `capitals`."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "capital.xml").write_text(TEMPLATE)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (tmp_path / "better.json").write_text(json.dumps([BETTER]))
    (tmp_path / "useless.json").write_text(json.dumps({"proposals": [USELESS]}))
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    model = Model()
    monkeypatch.setattr(SimulatedBackend, "_scripted", lambda self, request: model(request))
    return tmp_path


ARGUMENTS = ("improve", "capital", "--rows", "rows.jsonl", "--scorer", "exact", "--rounds", "1")


def test_a_search_is_planned_run_written_and_verified(project: Path, cli: Any) -> None:
    given = (*ARGUMENTS, "--handler", "offline", "--proposals", "better.json", "--output", "s")
    planned = cli(*given, "--dry-run")
    assert planned.code == 0
    assert "80 % power begins at a gain of" in planned.out
    assert "no limit (--max-cost)" in planned.out
    assert not (project / "s").exists()

    found = cli(*given, "--json")
    assert found.code == 0
    assert json.loads(found.out)["content"]["decision"]["accepted"]
    assert "nothing is written" in found.err
    assert (project / "templates" / "capital.xml").read_text() == TEMPLATE

    written = cli(*given, "--resume", "--write", "--markdown")
    assert written.code == 0
    assert "```diff" in written.out
    assert 'version="1.5"' in (project / "templates" / "capital.xml").read_text()

    verified = cli("improve", "--verify", "s/certificate.json")
    assert verified.code == 0
    assert "this user's signature" in verified.err
    (project / "s" / "template.xml").write_text("<task/>")
    changed = cli("improve", "--verify", "s/certificate.json")
    assert changed.code == 3
    assert "was changed after it was written" in changed.err


def test_no_significant_gain_is_exit_code_4(project: Path, cli: Any) -> None:
    found = cli(*ARGUMENTS, "--handler", "offline", "--proposals", "useless.json", "--write")
    assert found.code == 4
    assert (project / "templates" / "capital.xml").read_text() == TEMPLATE


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("improve",), "name a TEMPLATE"),
        ((*ARGUMENTS, "--proposals", "rows.jsonl"), "invalid JSON"),
        ((*ARGUMENTS, "--margin", "3"), "--margin"),
        ((*ARGUMENTS, "--resume"), "name it as output"),
        ((*ARGUMENTS, "--json", "--markdown"), "two formats"),
        (("improve", "capital", "--verify", "better.json"), "takes no TEMPLATE"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    project: Path, cli: Any, arguments: tuple[str, ...], why: str
) -> None:
    found = cli(*arguments)
    assert found.code == 2
    assert why in found.err


def test_a_shipped_template_cannot_be_written_and_says_so_before_the_search(
    project: Path, cli: Any
) -> None:
    given = ("improve", "grade_against_reference", "--rows", "judged.jsonl", "--scorer", "includes")
    row = {"question": "q", "reference": "r", "answer": "a"}
    lines = (json.dumps({**row, "id": str(n), "answer": f"a{n}"}) + "\n" for n in range(64))
    (project / "judged.jsonl").write_text("".join(lines))
    refused = cli(*given, "--handler", "offline", "--output", "s", "--write")
    assert refused.code == 2
    assert "ships with this package; to write it, copy its folder" in refused.err
    assert not (project / "s").exists()


@pytest.mark.usefixtures("project")
def test_a_budget_for_a_model_of_unknown_price_is_refused_with_what_is_missing(cli: Any) -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "a-key-of-a-test"}
    given = (*ARGUMENTS, "--model", "openai/nobody-knows", "--proposals", "better.json")
    planned = cli(*given, "--max-cost", "5", "--dry-run", env=env)
    assert planned.code == 5
    assert "no call is possible: the batch has a budget of $5 but" in planned.err
    assert "max_output_tokens=" in planned.err

    ended = cli(*given, "--max-cost", "5", "--output", "s", env=env)
    assert ended.code == 5
    assert "max_output_tokens=" in ended.err
    assert "larger --max-cost" not in ended.err
