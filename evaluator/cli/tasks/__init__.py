"""`evaluator tasks`: the files of runs, and the task lists that people and models keep."""

from __future__ import annotations

import click

from evaluator.cli.tasks.list import export, list_tasks, show
from evaluator.cli.tasks.lists import COMMANDS as TASK_LISTS
from evaluator.cli.tasks.resume import import_tasks, replay, resume


@click.group(epilog="Example:  evaluator tasks show 17")
def tasks() -> None:
    """Show, resume and replay runs from their task files, and keep task lists."""


for command in (list_tasks, show, export, resume, replay, import_tasks, *TASK_LISTS):
    tasks.add_command(command)
