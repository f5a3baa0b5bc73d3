"""Writes docs/reference/cli.md from the commands themselves: python docs/generate_cli.py

`page()` gives the text, so that a test can hold the committed file to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from evaluator.cli.main import cli

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 100

INTRODUCTION = """\
# Commands

<!-- Written by docs/generate_cli.py from the commands; change their help, not this page. -->

Results go to standard output; warnings, errors and the path of the task file to standard error. With `--json`
a command prints one JSON document for other programs.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the task failed, or what was checked has errors |
| 2 | wrong usage: an unknown option, an input that cannot be read, a template that does not exist |
| 3 | wrong configuration: a handler profile, a key, a folder, a task file that cannot be read |
| 4 | a threshold of a batch does not hold |
| 5 | a batch is incomplete, a threshold cannot be decided, or entries of a queue cannot run |
| 6 | a batch waits for provider batches |
| 130 | interrupted |
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    settings = {**cli.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    for path, text in _helps(cli, click.Context(cli, info_name="evaluator", **settings)):
        parts.append(f"\n## {path}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The help of a command and of those below it, as the command line prints it."""
    yield (
        context.command_path,
        "\n".join(line.rstrip() for line in command.get_help(context).splitlines()),
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _helps(found, click.Context(found, info_name=name, parent=context))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
