"""`evaluator tasks`: the record of what ran, and the tasks that people and models keep by hand."""

from __future__ import annotations

import click

from evaluator.cli.tasks.list import list_tasks
from evaluator.cli.tasks.show import show


@click.group(epilog="Example:  evaluator tasks show 17")
def tasks() -> None:
    """List and show task files."""


for command in (list_tasks, show):
    tasks.add_command(command)
