"""What the commands on task files share."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.errors import RecordError, UsageError
from evaluator.record.store import TaskStore

dir_option = click.option(
    "--tasks", "tasks_dir", default="tasks", show_default=True, type=click.Path(path_type=Path),
    help="The folder of task files.",
)  # fmt: skip


def task_id(text: str) -> int | None:
    """The id in `17` or `TASK-17`; None for anything else."""
    bare = text.removeprefix("TASK-")
    return int(bare) if bare.isascii() and bare.isdigit() else None


def parse_id(text: str) -> int:
    """As `task_id`. Raises: UsageError, for what is no id."""
    number = task_id(text)
    if number is None:
        raise UsageError(f"{text!r} is no task's id; write 17 or TASK-17")
    return number


def store_beside(path: Path, store: TaskStore) -> TaskStore:
    """The store of which `path` is a file; `store` where it lies in none."""
    return TaskStore(path.parent.parent) if path.parent.name in ("active", "done") else store


def path_of(store: TaskStore, task: str) -> Path:
    """Where the file of TASK is, which is an id or a path.

    Raises: RecordError, if there is no such task; UsageError, if it is neither.
    """
    number = task_id(task)
    if number is not None:
        try:
            return store.path_of(number)
        except RecordError as error:
            raise RecordError(f"{error}; see: evaluator tasks list --tasks {store.root}") from error
    if Path(task).is_file():
        return Path(task)
    raise UsageError(f"{task!r} is neither a task's id nor a file; see: evaluator tasks list")
