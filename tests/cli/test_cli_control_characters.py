"""No text from outside controls the terminal: whatever a command prints has its control characters made visible."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator.testing import Answer, LoopbackServer
from tests.cli.conftest import Ran

ESCAPE = "\x1b]0;owned\x07"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
TASK = '<task name="t" type="atomic"><description>d</description>{}</task>'


def assert_visible(ran: Ran, shown: str = "\\x1b]0;owned") -> None:
    for text in (ran.out, ran.err):
        assert not CONTROL.search(text), ascii(text)
    # The control: the text was printed, in its visible form.
    assert shown in ran.out + ran.err


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "command", [["lint"], ["templates"], ["match", "is this review positive?"]]
)
def test_the_names_of_template_files(
    cli: Callable[..., Ran], tmp_path: Path, command: list[str]
) -> None:
    write(tmp_path / "templates", f"a{ESCAPE}.xml", "<task>")
    assert_visible(cli(*command))


@pytest.mark.parametrize("command", ["handlers", "doctor"])
def test_the_names_of_profiles(cli: Callable[..., Ran], tmp_path: Path, command: str) -> None:
    write(tmp_path / "handlers", f"a{ESCAPE}.xml", "<handler>")
    assert_visible(cli(command))


def test_standard_error_of_a_command_in_file_paths(cli: Callable[..., Ran], tmp_path: Path) -> None:
    write(tmp_path, "bad.sh", f"printf '%s' '{ESCAPE}' >&2; exit 3")
    body = '<file_paths source="command"><command>sh bad.sh</command></file_paths>'
    write(tmp_path / "templates", "t.xml", TASK.format(body))
    assert_visible(cli("run", "--template", "t", "--handler", "offline"))


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_a_model_says(
    cli: Callable[..., Ran], environment: dict[str, str], tmp_path: Path, flags: list[str]
) -> None:
    write(tmp_path / "templates", "t.xml", TASK.format(""))
    answer = Answer(
        "ok" if not flags else "ok \x9b31m \u202e", "tool_calls", [("c", f"tool{ESCAPE}", "{}")]
    )
    with LoopbackServer(answer) as server:
        env = environment | {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.base_url}
        ran = cli("run", "--template", "t", "--model", "openai/m", *flags, env=env)
    assert ran.code == 0, ran.err
    assert_visible(ran, "\\u001b]0;owned" if flags else "\\x1b]0;owned")


@pytest.mark.parametrize(
    "arguments",
    [["run", "--template", f"t{ESCAPE}"], ["run", f"--option{ESCAPE}"], ["summary", f"b{ESCAPE}"]],
)
def test_arguments_in_errors(cli: Callable[..., Ran], arguments: list[Any]) -> None:
    assert_visible(cli(*arguments))
