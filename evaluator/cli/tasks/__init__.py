"""`evaluator tasks`: the record of what ran, and the tasks that people and models keep by hand."""

from __future__ import annotations

import click

from evaluator.cli.tasks.list import list_tasks
from evaluator.cli.tasks.named import COMMANDS as NAMED
from evaluator.cli.tasks.replay import replay
from evaluator.cli.tasks.resume import resume
from evaluator.cli.tasks.show import show


@click.group(epilog="Example:  evaluator tasks show 17")
def tasks() -> None:
    """What ran, and what is to be gone on with: task files, and tasks that are kept by hand."""


for command in (list_tasks, show, resume, replay, *NAMED):
    tasks.add_command(command)
