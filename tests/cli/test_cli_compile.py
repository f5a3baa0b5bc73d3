"""`evaluator compile`: the task is shown before it is run, and run only on request."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from evaluator.xml.generated import read_generated_task
from tests.cli.conftest import PROGRAM, Ran, Run

WORDS = "suggest five titles for an article"
SERVED = """<library><task name="compile_task" type="atomic"><description>d</description>
<inputs><input name="request"/><input name="templates"/><input name="allowed"/></inputs>
<examples><example><output><![CDATA[{answer}]]></output></example></examples></task></library>"""
GREET = """Sure!
<task name="greet" type="atomic"><description>Greet {{ who }}</description>
<inputs><input name="who" type="string" required="true"/></inputs><colour>red</colour>
<examples><example><input name="who">Ann</input><output>Hello Ann</output></example></examples></task>"""
SCRIPT = (
    '<task name="s" type="script"><description>d</description><command>touch pwned</command></task>'
)


@pytest.fixture
def command(tmp_path: Path, environment: dict[str, str], cli: Run):
    """`command(*argv)` in `tmp_path`, where a library may make the simulated model answer what the test says."""

    def run(*argv: str, answer: str | None = None, terminal: bytes | None = None) -> Ran:
        extra: list[str] = []
        if answer is not None:
            (tmp_path / "t.xml").write_text(SERVED.replace("{answer}", answer))
            extra = ["--library", "t.xml"]
        arguments = ["compile", *argv, "--handler", "offline", *extra]
        if terminal is None:
            return cli(*arguments)
        primary, secondary = pty.openpty()
        os.write(primary, terminal)
        process = subprocess.run(
            [PROGRAM, *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=secondary,
            capture_output=True,
            timeout=200,
            check=False,
        )
        os.close(primary)
        os.close(secondary)
        ran = Ran(process.returncode, process.stdout.decode(), process.stderr.decode())
        assert "Traceback" not in ran.err and "bug of evaluator" not in ran.err, ran.err
        return ran

    return run


def test_the_xml_goes_to_standard_output_and_the_bound_to_standard_error(command, tmp_path):
    ran = command(WORDS, answer=GREET.replace("<colour>red</colour>", ""))
    assert ran.code == 0, ran.err
    written = read_generated_task(ran.out)
    assert (written.warnings, written.errors, written.xml + "\n") == ((), (), ran.out)
    assert "note: the answer is simulated" in ran.err
    assert "a run makes at most" in ran.err or "no upper bound" in ran.err
    assert [path.name for path in (tmp_path / "tasks" / "done").iterdir()] == ["TASK-1.md"]


def test_a_simulated_model_says_that_it_cannot_write_a_task(command):
    ran = command(WORDS)
    assert (ran.code, ran.out) == (3, "")
    assert "a simulated model cannot write a task from words; name a model with --model" in ran.err


def test_each_repair_is_shown_with_its_line(command):
    ran = command("greet somebody", answer=GREET)
    assert ran.code == 0
    assert (
        "answer, line 3: warning: <colour> is not known in <task>; left out with its content [left-out]"
        in ran.err
    )
    assert "colour" not in ran.out
    assert "a run makes at most 1 model call" in ran.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (SCRIPT, "may not run a script"),
        ("I cannot", "the answer contains no <task>"),
        ('<task type="atomic"><description>{{ x }}</description></task>', "`x` is not defined"),
    ],
)
def test_an_answer_that_cannot_be_used_is_shown_and_the_exit_code_is_1(
    command, tmp_path, answer, said
):
    ran = command("words", answer=answer)
    assert (ran.code, ran.out) == (1, "")
    assert said in ran.err
    assert answer in ran.err
    assert not (tmp_path / "pwned").exists()


def test_allowed_scripts_are_written_and_not_run(command, tmp_path):
    ran = command("touch a file", "--allow-scripts", answer=SCRIPT)
    assert ran.code == 0 and "<arg>touch</arg>" in ran.out
    assert not (tmp_path / "pwned").exists()


def test_the_xml_is_written_to_a_new_file_and_never_over_an_existing_one(command, tmp_path):
    ran = command("greet somebody", "--out", "greet.xml", answer=GREET)
    assert (tmp_path / "greet.xml").read_text() == ran.out
    (tmp_path / "greet.xml").write_text("mine")
    again = command("greet somebody", "--out", "greet.xml", answer=GREET)
    assert (again.code, (tmp_path / "greet.xml").read_text()) == (2, "mine")
    assert len(list((tmp_path / "tasks" / "done").iterdir())) == 1


def test_it_can_be_printed_as_json(command):
    ran = command("greet somebody", "--json", answer=GREET)
    told = json.loads(ran.out)
    assert (told["max_calls"], told["errors"], told["result"], told["task_id"]) == (1, [], None, 1)
    assert told["xml"].startswith('<task name="greet"')
    assert [(one["code"], one["line"]) for one in told["warnings"]][-1] == ("left-out", 3)


def test_with_yes_it_is_shown_and_run(command):
    ran = command("greet somebody", "--run", "--yes", "--input", "who=Ann", answer=GREET)
    assert (ran.code, ran.out) == (0, "Hello Ann\n")
    assert ran.err.index("<description>Greet {{ who }}</description>") < ran.err.index("TASK-2.md")


@pytest.mark.parametrize(("typed", "out"), [(b"y\n", "Hello Ann\n"), (b"n\n", ""), (b"\n", "")])
def test_at_a_terminal_it_asks_after_it_has_shown_the_task(command, tmp_path, typed, out):
    ran = command("greet somebody", "--run", "-i", "who=Ann", answer=GREET, terminal=typed)
    assert (ran.code, ran.out) == (0, out)
    assert ran.err.index("<description>Greet") < ran.err.index("run it? [y/N]")
    assert (tmp_path / "tasks" / "done" / "TASK-2.md").exists() == bool(out)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["w", "--run"], "--yes"),
        (["w", "--yes"], "--run"),
        (["w", "--input", "a=b"], "--run"),
        (["  "], "nothing to compile"),
        (["w", "--model", " "], "--model is empty"),
    ],
)
def test_wrong_usage_is_reported_before_a_call_is_made(command, tmp_path, argv, said):
    ran = command(*argv)
    assert ran.code == 2
    assert said in ran.err
    assert not (tmp_path / "tasks").exists()


def test_a_run_that_fails_gives_its_exit_code(command):
    ran = command("greet somebody", "--run", "--yes", answer=GREET)
    assert (ran.code, ran.out) == (1, "")
    assert "the required input 'who'" in ran.err
