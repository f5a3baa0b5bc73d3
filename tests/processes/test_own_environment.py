"""The command `evaluator` shows its variables to nobody and keeps them itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="/proc is a part of Linux"
)
SECRET = f"not-a-real-key-{uuid.uuid4()}"  # not that of the same test in another process
LOOK = "import ctypes, os, subprocess, sys\n{hide}\nown = open('/proc/self/environ').read()\n"


def show(expression: str, *, hide: bool = True) -> str:
    hiding = (
        "from evaluator.processes.own_environment import hide_own_environment as hide; hide()"
        if hide
        else ""
    )
    code = LOOK.format(hide=hiding) + f"print({expression})"
    environment = {**os.environ, "OPENAI_API_KEY": SECRET, "EMPTY_TOKEN": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_initial_environment_keeps_only_what_scripts_get():
    assert SECRET in show("own", hide=False)
    names = {entry.partition("=")[0] for entry in show("own").split("\0") if entry}
    assert "PATH" in names
    assert {name for name in names if not name.startswith("LC_")} <= {
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
    }


@pytest.mark.parametrize(
    "expression",
    [
        "os.environ['OPENAI_API_KEY']",
        "subprocess.run(['printenv', 'OPENAI_API_KEY'], capture_output=True, text=True).stdout",
        "(lambda c: (setattr(c.getenv, 'restype', ctypes.c_char_p), c.getenv(b'OPENAI_API_KEY').decode())[1])"
        "(ctypes.CDLL(None))",
    ],
)
def test_the_process_its_libraries_and_its_children_keep_their_variables(expression):
    assert show(expression) == SECRET


def test_other_processes_of_the_user_cannot_read_the_memory():
    get = "ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    assert (show(get, hide=False), show(get)) == ("1", "0")


LOOK_AROUND = """<task name="look" type="script"><description>d</description><command shell="true">
        what=$(cat); for p in /proc/[0-9]*; do tr '\\0' '\\n' &lt; $p/environ; done 2>/dev/null | grep -c "$what"
        true</command>
        <inputs><input name="stdin" type="string">what to look for</input></inputs></task>"""


@pytest.fixture
def command(tmp_path):
    """`command(*arguments)`: runs `evaluator` with a key in its environment."""
    (tmp_path / "look.xml").write_text(LOOK_AROUND)
    environment = {**os.environ, "SOME_API_KEY": SECRET}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "evaluator", *arguments, "--library", "."]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_a_script_of_the_command_finds_the_key_in_no_process_of_it(command):
    def count(text: str) -> int:
        return int(
            command(
                "run", "--template", "look", "--handler", "offline", "--input", f"stdin={text}"
            ).stdout
        )

    assert count("PATH=") > 0  # the control: environments can be read
    assert count(SECRET) == 0


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_script_of_a_batch_finds_the_key_in_no_process_of_it(command, tmp_path, engine):
    def passes(text: str, folder: str) -> bool:
        row = {"stdin": text, "target": "0"}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        ran = command(
            "batch",
            "--template",
            "look",
            "--rows",
            "rows.jsonl",
            "--scorer",
            "exact",
            "--threshold",
            "accuracy >= 1",
            "--handler",
            "offline",
            "--engine",
            engine,
            "--output",
            folder,
            "--progress",
            "none",
        )
        assert ran.returncode in (0, 4), ran.stderr
        return ran.returncode == 0

    assert not passes("PATH=", "control")
    assert passes(SECRET, "secret")
