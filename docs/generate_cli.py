"""Writes docs/cli.md from the commands themselves: python docs/generate_cli.py

`page()` gives the text, so that a test can hold the committed file to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from evaluator.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100

INTRODUCTION = """\
# Commands

<!-- Written by docs/generate_cli.py from the commands; change their help, not this page. -->

Results go to standard output, everything else (warnings, errors, the path of the task file) to standard error. With
`--json` a command prints one JSON document for other programs.

| exit code | means |
|---|---|
| 0 | all well |
| 1 | the task failed, or what was checked has errors |
| 2 | wrong usage: an unknown option, an input that cannot be read, a template that does not exist |
| 3 | configuration: a handler profile, a key, a folder, a task file that cannot be read |
| 130 | interrupted |
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for path, command in _commands(cli, "evaluator", None):
        parts.append(f"\n## {path}\n\n```text\n{_help(path, command)}\n```\n")
    return "".join(parts)


def _commands(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=name, parent=parent) as context:
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                assert found is not None
                yield from _commands(found, f"{name} {child}", context)


def _help(path: str, command: click.Command) -> str:
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": WIDTH, "max_content_width": WIDTH}
    with click.Context(command, info_name=path, **settings) as context:  # pyright: ignore[reportArgumentType]
        lines = command.get_help(context).splitlines()
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
