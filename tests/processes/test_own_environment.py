"""The command `evaluator` shows its variables to nobody and keeps them itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is a part of Linux")
SECRET = "not-a-real-key-0123456789"
LOOK = "import ctypes, os, subprocess, sys\n{hide}\nown = open('/proc/self/environ').read()\n"


def show(expression: str, *, hide: bool = True) -> str:
    hiding = "from evaluator.processes.own_environment import hide_own_environment as hide; hide()" if hide else ""
    code = LOOK.format(hide=hiding) + f"print({expression})"
    environment = {**os.environ, "OPENAI_API_KEY": SECRET, "EMPTY_TOKEN": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_initial_environment_keeps_only_what_scripts_get():
    assert SECRET in show("own", hide=False)
    names = {entry.partition("=")[0] for entry in show("own").split("\0") if entry}
    assert "PATH" in names
    assert {name for name in names if not name.startswith("LC_")} <= {"PATH", "HOME", "LANG", "TMPDIR"}


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


def test_a_script_of_the_command_finds_the_key_in_no_process_of_it(tmp_path):
    (tmp_path / "look.xml").write_text(
        """<task name="look" type="script"><description>d</description><command shell="true">
        what=$(cat); for p in /proc/[0-9]*; do tr '\\0' '\\n' &lt; $p/environ; done 2>/dev/null | grep -c "$what"
        true</command>
        <inputs><input name="stdin" type="string">what to look for</input></inputs></task>"""
    )
    environment = {**os.environ, "SOME_API_KEY": SECRET}
    arguments = ["run", "--template", "look", "--library", ".", "--handler", "offline", "--input"]
    arguments = [sys.executable, "-m", "evaluator", *arguments]

    def count(text: str) -> int:
        done = subprocess.run(
            [*arguments, f"stdin={text}"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert count("PATH=") > 0  # the control: environments can be read
    assert count(SECRET) == 0
