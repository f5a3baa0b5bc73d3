"""`evaluator tasks export`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator import disk
from evaluator.cli.common import json_option, print_json
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import tasks_option
from evaluator.cli.tasks.list import find_task
from evaluator.errors import RecordError, UsageError
from evaluator.files.atomic import write_atomic
from evaluator.record.store import TaskStore


@click.command("export", epilog="Example:  evaluator tasks export 17 18 --to files")
@click.argument("tasks", nargs=-1)
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to; it is created if it is missing.",
)
@tasks_option
@json_option
def export(tasks: tuple[str, ...], folder: Path, tasks_dir: Path, as_json: bool) -> None:
    """Write tasks as files TASK-N.md, one each: TASKS are their ids. Default: all.

    Tasks of a batch are packed into a few files; this makes the file of each from them. A file
    that exists is not replaced.
    """
    store = TaskStore(tasks_dir)
    if tasks:
        numbers = [_number(store, task) for task in tasks]
    else:
        numbers = sorted(set(store.ids()))
    try:
        disk.make_folders(folder)
    except OSError as error:
        raise RecordError(f"{folder}: cannot be created: {error.strerror}") from error
    paths: list[str] = []
    for number in numbers:
        path = folder / f"TASK-{number}.md"
        try:
            write_atomic(path, store.content_of(number), sync=False, replace=False)
        except FileExistsError:
            raise RecordError(f"{path}: exists already; name another folder") from None
        paths.append(str(path))
        if not as_json:
            echo(str(path))
    if as_json:
        print_json(paths)


def _number(store: TaskStore, task: str) -> int:
    found = find_task(store, task)
    if isinstance(found, Path):
        raise UsageError(f"{task[:100]!r} is a file; give the id of a task")
    return found
