"""`doctor` and `lint` say which sandboxes work before a token is spent."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from evaluator.cli import batch
from evaluator.tools import CallbackAsker
from tests.sandboxes import BUBBLEWRAP, StandIn, why_not

TASK = '<task name="s" type="script"><description>d</description><handler sandbox="{}"/><command>true</command></task>'


def test_the_doctor_tries_each_sandbox(
    cli: Any, write: Any, environment: Any, tmp_path: Any
) -> None:
    write(
        "handlers/boxed.xml", '<handler name="boxed"><sandbox kind="podman" image="img"/></handler>'
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = StandIn(programs, "podman")
    path = {"PATH": f"{programs}:{environment['PATH']}"}
    ran = cli("doctor", env=path)
    assert ran.code == 0
    assert "ok       sandbox podman: works\n" in ran.out
    assert "ok       handler boxed, sandbox podman:img: works\n" in ran.out
    assert ("ok       sandbox bubblewrap: works\n" in ran.out) == (why_not(BUBBLEWRAP) is None)
    assert "note     scripts without a sandbox: they can read and change what you can" in ran.out
    assert [words[0] for words in stand_in.calls()] == ["run", "rm"] * 2
    stand_in.broken.touch()
    ran = cli("doctor", env=path)
    assert ran.code == 1
    assert "PROBLEM  handler boxed, sandbox podman:img: " in ran.out
    assert "no such image" in ran.out


def test_the_doctor_names_the_packages_of_missing_sandboxes(cli: Any, tmp_path: Any) -> None:
    ran = cli("doctor", env={"PATH": str(tmp_path)})
    assert ran.code == 0
    assert "note     sandbox bubblewrap: " in ran.out
    assert "install the package bubblewrap" in ran.out


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("bubblewrap", 0, "warning: the sandbox bubblewrap needs"),
        ("docker", 1, "error: the sandbox docker needs an image"),
    ],
)
def test_lint_checks_the_sandbox_of_a_template(
    cli: Any, write: Any, tmp_path: Any, kind: str, code: int, words: str
) -> None:
    write("templates/s.xml", TASK.format(kind))
    ran = cli("lint", "templates", env={"PATH": str(tmp_path)})
    assert ran.code == code, ran
    assert words in ran.out + ran.err


def test_a_batch_in_a_sandbox_that_is_missing_does_not_start(
    cli: Any, write: Any, tmp_path: Any
) -> None:
    write("templates/s.xml", TASK.format("bubblewrap"))
    write("rows.jsonl", '{"a": 1}\n')
    batch = (
        "batch",
        "--template",
        "s",
        "--rows",
        "rows.jsonl",
        "--output",
        "out",
        "--handler",
        "offline",
    )
    missing = {"PATH": str(tmp_path)}
    checked = cli(*batch, "--dry-run", env=missing)
    assert (checked.code, "install the package bubblewrap" in checked.err) == (5, True)
    ran = cli(*batch, env=missing)
    assert (ran.code, "install the package bubblewrap" in ran.err) == (3, True)
    assert not (tmp_path / "out").exists()
    assert cli(*batch, "--sandbox", "none").code == 0
    assert cli(*batch, "--sandbox", "jail").code == 2


def test_a_batch_whose_scorer_needs_a_missing_sandbox_does_not_start(
    cli: Any, write: Any, tmp_path: Any
) -> None:
    write("rows.jsonl", '{"question": "?", "test": "assert True"}\n')
    write(
        "b.toml",
        'template = "answer_question"\nrows = "rows.jsonl"\nhandlers = ["offline"]\noutput = "out"\n[[scorers]]\n'
        'type = "graded"\ntemplate = "run_python_tests"\ninputs = { answer = "output", test = "metadata.test" }\n',
    )
    missing = {"PATH": str(tmp_path)}
    checked = cli("batch", "b.toml", "--dry-run", env=missing)
    assert (checked.code, "install the package bubblewrap" in checked.err) == (5, True)
    ran = cli("batch", "b.toml", env=missing)
    assert (ran.code, "install the package bubblewrap" in ran.err) == (3, True)
    assert not (tmp_path / "out").exists()


def test_the_code_project_runs_code_in_a_sandbox_or_asks(
    cli: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("init", "mine", "--example", "code").code == 0
    project = {"cwd": tmp_path / "mine", "env": {"PATH": f"{tmp_path}"}}
    ran = cli("batch", **project)
    assert (ran.code, "choose another one with --sandbox (none" in ran.err) == (3, True)
    monkeypatch.setattr(batch, "terminal_asker", lambda: CallbackAsker(lambda question: "no"))
    assert cli("batch", **project).code == 3
    # The control: a person allows it, or the option does.
    monkeypatch.setattr(batch, "terminal_asker", lambda: CallbackAsker(lambda question: "y"))
    (tmp_path / "python3").symlink_to(sys.executable)
    assert cli("batch", **project).code == 0
    monkeypatch.setattr(batch, "terminal_asker", lambda: None)
    assert cli("batch", "--sandbox", "none", **project).code == 0
    assert cli("batch", **project).code == 3


def test_the_loop_that_runs_programs_of_a_model_has_a_sandbox(cli: Any, tmp_path: Any) -> None:
    missing = {"PATH": str(tmp_path)}
    argv = ("run", "--template", "write_run_fix", "--input", "goal=Print 1.")
    ran = cli(*argv, "--handler", "offline", env=missing)
    assert ran.code == 3 and "install the package bubblewrap" in ran.err
