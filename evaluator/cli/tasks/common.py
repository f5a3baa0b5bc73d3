"""Finding the task file that a command names."""

from __future__ import annotations

import re
from pathlib import Path

from evaluator.errors import RecordError, UsageError
from evaluator.record.store import TaskStore

_MAX_DIGITS = 18
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def task_id(text: str) -> int | None:
    """The id in `17` or `TASK-17`; None for anything else."""
    bare = text.removeprefix("TASK-")
    if bare.isascii() and bare.isdigit() and len(bare) <= _MAX_DIGITS:
        return int(bare)
    return None


def parse_id(text: str) -> int:
    """As `task_id`. Raises: UsageError, for anything else."""
    number = task_id(text)
    if number is None:
        raise UsageError(f"{text[:100]!r} is not a task's id; write 17 or TASK-17")
    return number


def store_beside(path: Path, store: TaskStore) -> TaskStore:
    """The store that contains the file `path`; `store` if none does."""
    if path.parent.name in ("active", "done"):
        return TaskStore(path.parent.parent)
    return store


def path_of(store: TaskStore, task: str) -> Path:
    """The path of the file of `task`, which is an id or a path.

    Raises: RecordError, if there is no such task; UsageError, if it is neither.
    """
    number = task_id(task)
    if number is not None:
        try:
            return store.path_of(number)
        except RecordError as error:
            raise RecordError(f"{error}; see: evaluator tasks list --tasks {store.root}") from error
    try:
        if Path(task).is_file():
            return Path(task)
    except (OSError, ValueError):
        pass  # too long for a path, or with a NUL
    if _NAME.fullmatch(task):
        # The id of another program may not be a number.
        for place in (".", "active", "done"):
            path = store.root / place / f"TASK-{task.removeprefix('TASK-')}.md"
            if path.is_file():
                return path
    raise UsageError(f"{task[:100]!r} is neither a task's id nor a file; see: evaluator tasks list")
