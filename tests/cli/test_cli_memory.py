"""`evaluator memory` as a user has it: index a folder, ask it, see what it holds."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evaluator import ConfigurationError, UsageError
from evaluator.cli.main import cli

Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> Path:
    """The current folder, with three files."""
    write("src/ferry.py", '"""Ferries across the strait."""\ndef depart(): ...\n')
    write("docs/tides.md", "# Tides of the north\n")
    write("image.bin", b"\0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path) -> Command:
    """`command(*args)`: what `evaluator memory …` comes to; an error of ours is raised."""

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(cli, ["memory", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def test_a_folder_is_indexed_asked_and_counted(
    command: Command, folder: Path, monkeypatch: Any
) -> None:
    said = command("index").output
    assert said.startswith(f"2 files found in {folder}: 2 added, 0 changed, 0 removed, in ")
    assert "  skipped 1: is a binary file (image.bin)\n" in said
    assert (folder / ".evaluator" / "memory.sqlite").is_file()
    assert (folder / ".evaluator" / ".gitignore").read_text() == "*\n"
    (folder / "docs/tides.md").unlink()
    assert "0 added, 0 changed, 1 removed" in command("index").output

    lines = command("query", "when do ferries depart?").output.splitlines()
    assert lines[0].split() == ["path", "score", "why"]
    assert lines[1].startswith("src/ferry.py  0.") and "depart (definition)" in lines[1]
    assert (
        command("query", "zebra").output
        == "No file in the index shares a word with this request.\n"
    )

    monkeypatch.chdir(folder / "src")
    assert "\nferry.py  0." in command("query", "ferries").output
    said = command("stats").output
    assert said.startswith(f"{folder}/.evaluator/memory.sqlite: 1 file, ")
    assert [" ".join(line.split()) for line in said.splitlines()[2:]] == [
        f"root {folder} 1",
        "language python 1",
        "skipped is a binary file 1",
    ]


def test_everything_is_to_be_had_as_json(command: Command, folder: Path) -> None:
    report = json.loads(command("index", "--json").output)
    assert report.pop("seconds") > 0
    assert report == {
        "root": str(folder),
        "kind": "folder",
        "files": 2,
        "added": 2,
        "changed": 0,
        "removed": 0,
        "skipped": {"is a binary file": 1, "is hidden": 1},
        "examples": [
            {"path": ".evaluator", "reason": "is hidden"},
            {"path": "image.bin", "reason": "is a binary file"},
        ],
    }
    (found,) = json.loads(command("query", "strait", "--json").output)
    assert found["path"] == "src/ferry.py" and 0 < found["score"] <= 1
    assert [(why["term"], why["field"]) for why in found["why"]] == [("strait", "summary")]
    assert json.loads(command("query", "zebra", "--json").output) == []
    stats = json.loads(command("stats", "--json").output)
    assert (stats["files"], stats["vectors"], stats["languages"]) == (
        2,
        0,
        {"markdown": 1, "python": 1},
    )


def test_limit_and_another_database(command: Command, folder: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "else" / "where.sqlite")
    command("index", "src", "--db", database)
    assert not (folder / "src" / ".evaluator").exists()
    assert (
        "src/ferry.py" in command("query", "python ferry", "--db", database, "--limit", "1").output
    )
    assert json.loads(command("stats", "--db", database, "--json").output)["roots"] == {
        str(folder / "src"): 1
    }


def test_in_a_repository_what_git_tracks_is_indexed_unless_said_otherwise(
    command: Command, folder: Path
) -> None:
    subprocess.run(["git", "init"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["git", "add", "src"], cwd=folder, check=True, capture_output=True)
    assert "1 file tracked by git" in command("index").output
    assert "1 file tracked by git" in command("index", "src").output
    assert "2 files found" in command("index", "--no-git").output
    # Its own folder is neither offered to git nor indexed.
    seen = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, check=True, capture_output=True, text=True
    )
    assert ".evaluator" not in seen.stdout
    assert "1 file tracked by git" in command("index", "--git").output


WRONG: list[tuple[list[str], type[Exception], str]] = [
    (["index", "missing"], UsageError, "missing: no such folder"),
    (["index", "--git"], UsageError, "not a git repository"),
    (
        ["query", "x"],
        UsageError,
        r"no .evaluator/memory.sqlite here or above.*evaluator memory index",
    ),
    (["stats"], UsageError, "evaluator memory index"),
    (["query", "x", "--db", "missing.sqlite"], UsageError, "missing.sqlite: no such index"),
    (["stats", "--db", "other.sqlite"], ConfigurationError, "another program"),
]


@pytest.mark.parametrize(("args", "kind", "says"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_usage_says_what_to_do(
    args: list[str], kind: type[Exception], says: str, command: Command, folder: Path
) -> None:
    with sqlite3.connect(folder / "other.sqlite") as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(kind, match=says):
        command(*args)
    assert not (folder / "missing.sqlite").exists()


@pytest.mark.parametrize(
    "args", [["query"], ["query", "x", "--limit", "0"], ["index", "src/ferry.py"], ["nothing"]]
)
def test_arguments_are_checked(args: list[str], command: Command) -> None:
    assert command(*args).exit_code == 2


def test_a_name_that_would_act_on_a_terminal_is_shown_harmless(
    command: Command, write: Any
) -> None:
    write("ferry\x1b[31m.md", "# Ferry")
    command("index")
    assert "\x1b" not in command("query", "ferry").output
