"""`evaluator test` tests templates by what is beside them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.authoring.test_template_tests import CASES, put
from tests.cli.conftest import Run


def test_it_passes_and_fails_with_the_exit_code(cli: Run, tmp_path: Path) -> None:
    put(tmp_path / "templates")
    (tmp_path / "templates" / "capital.tests.toml").write_text(CASES)
    ran = cli("test", "--update")
    assert (ran.code, ran.out) == (0, "capital: 3 of 3 cases as expected\n")
    put(tmp_path / "templates", ask="Name the city of")
    failed = cli("test", "templates", "--json")
    problems = {each["case"]: each["problems"] for each in json.loads(failed.out)["cases"]}
    assert failed.code == 1 and len(problems["spain"]) == 2
    assert cli("test", "--template", "none").code == 2
    (tmp_path / "templates" / "capital.tests.toml").write_text("cases = 1")
    wrong = cli("test")
    assert wrong.code == 2 and "expected [[cases]]" in wrong.err


def test_a_template_with_an_error_is_not_skipped(cli: Run, tmp_path: Path) -> None:
    put(tmp_path / "templates", "good")
    put(tmp_path / "templates", "bad", ask="{{ nobody }}")
    ran = cli("test")
    assert ran.code == 1 and "good: 1 of 1" in ran.out
    assert "`nobody` is not defined" in ran.out + ran.err and "not tested" in ran.err


def test_without_templates_it_says_what_to_name(cli: Run) -> None:
    ran = cli("test")
    assert ran.code == 2 and "evaluator test FOLDER" in ran.err


def test_cases_without_a_template_are_an_error(cli: Run, tmp_path: Path) -> None:
    put(tmp_path / "templates")
    cases = tmp_path / "templates" / "capitol.tests.toml"
    cases.write_text(CASES)
    ran = cli("test")
    assert ran.code == 2 and "capitol.tests.toml: there is no template of this name" in ran.err
    cases.rename(cases.with_name("capital.tests.toml"))
    assert cli("test").code == 0
