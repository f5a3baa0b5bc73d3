"""Shells complete commands, options and their values."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import click
import pytest

from evaluator.cli import main
from evaluator.cli.main import COMMANDS
from tests.tables import each_case


def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> list[str]:
    monkeypatch.setenv("_EVALUATOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["evaluator", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        main([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ba"], ["batch"]),
        (["tasks", "res"], ["resume"]),
        (["batch", "--progress", "p"], ["plain"]),
        (["init", "--example", "j"], ["judge"]),
        (["batch", "--thr"], ["--threshold"]),
    ],
)
def test_words_are_completed(words, found, monkeypatch, capsys):
    assert complete(monkeypatch, capsys, *words) == found


def test_every_command_is_completed(monkeypatch, capsys):
    assert complete(monkeypatch, capsys, "") == [name for name in COMMANDS if " " not in name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert not ended.value.code
    script = capsys.readouterr().out
    assert f"_EVALUATOR_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        (tmp_path / "script").write_text(script, encoding="utf-8")
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


@each_case("name", COMMANDS)
def test_the_function_of_a_command_has_its_name(name: str) -> None:
    module, line = COMMANDS[name]
    word = name.rpartition(" ")[2]
    # No function can be named `continue`.
    attribute = f"{word}_" if iskeyword(word) else word
    function = getattr(import_module(f"evaluator.cli.{module}"), attribute, None)
    assert isinstance(function, click.Command), (
        f"evaluator/cli/{module}.py needs a command with the name of {name!r}"
    )
    assert line.endswith(".")
