"""`evaluator tasks show`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import json_option, print_json, stdout_is_terminal
from evaluator.cli.tasks.common import dir_option, path_of
from evaluator.record.store import TaskStore


@click.command("show", epilog="Example:  evaluator tasks show 17 --json")
@click.argument("task")
@dir_option
@json_option
def show(task: str, tasks_dir: Path, as_json: bool) -> None:
    """Show one task file: TASK is its id or its path."""
    from evaluator.record.render import render_text

    store = TaskStore(tasks_dir)
    recording = store.read(path_of(store, task))
    if as_json:
        print_json(recording.to_dict())
    else:
        click.echo(render_text(recording, stdout_is_terminal()))
