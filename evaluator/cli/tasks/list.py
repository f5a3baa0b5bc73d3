"""`evaluator tasks list`, `show` and `export`, and the task file that a command names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from evaluator import disk
from evaluator.cli import common
from evaluator.cli.echo import echo, echo_raw
from evaluator.cli.evaluator_options import tasks_option
from evaluator.errors import RecordError, UsageError
from evaluator.errors.messages import cut, duration_text
from evaluator.files.atomic import write_atomic
from evaluator.record.render import cost_text, tokens_text
from evaluator.record.search import find, models_of
from evaluator.record.steps import RunStatus
from evaluator.record.store import TaskStore
from evaluator.record.task_folder import TaskSummary

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


def store_beside(task: Path | int, store: TaskStore) -> TaskStore:
    """The store that contains the file `task`; `store` if none does, and for an id."""
    if isinstance(task, Path) and task.parent.name in ("active", "done"):
        return TaskStore(task.parent.parent)
    return store


def find_task(store: TaskStore, task: str) -> Path | int:
    """What `store.read` takes for `task`, which is an id or the path of a file.

    Raises: RecordError, if there is no such task; UsageError, if it is neither.
    """
    number = task_id(task)
    if number is not None:
        try:
            store.check(number)
        except RecordError as error:
            raise RecordError(f"{error}; see: evaluator tasks list --tasks {store.root}") from error
        return number
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


# Columns that are left out, in this order, where the terminal is too narrow.
SPARE = ("steps", "model", "duration", "tokens", "cost")
LAST_WIDTH = 20
NAME_WIDTH = 20


@click.command("list", epilog="Example:  evaluator tasks list --status failed --since 2h")
@click.option("--status", type=click.Choice(get_args(RunStatus)), help="Only these.")
@click.option("--interrupted", is_flag=True, help="Short for --status interrupted.")
@click.option(
    "--template", metavar="PATTERN", help="Only runs of templates of this name, e.g. 'review*'."
)
@click.option(
    "--model",
    metavar="PATTERN",
    help="Only runs that called a model of this name, e.g. 'openai/*'.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Only those created since: 2026-03-01, 2026-03-01T14:30 (UTC), 2h, 3d.",
)
@click.option("--until", metavar="TIME", help="Only those created until then; a day is included.")
@click.option(
    "--error", metavar="TEXT", help="Only those whose reason, or whose file's error, contains TEXT."
)
@click.option("--parent", metavar="ID", help="Only subtasks of this task.")
@click.option("--limit", type=click.IntRange(1), help="At most this many, the newest first.")
@tasks_option
@common.json_option
def list_tasks(
    status: Any,
    interrupted: bool,
    parent: str | None,
    tasks_dir: Path,
    as_json: bool,
    **conditions: Any,
) -> None:
    """List task files, the newest first. Conditions combine; names are shell patterns (*, ?,
    [abc]).
    """
    if interrupted and status not in (None, "interrupted"):
        raise UsageError(f"--interrupted and --status {status} exclude each other")
    found = list(
        find(
            TaskStore(tasks_dir),
            status="interrupted" if interrupted else status,
            parent=None if parent is None else parse_id(parent),
            **conditions,
        )
    )
    if not tasks_dir.exists():
        echo(f"{tasks_dir}: there is no such folder yet; the first run creates it", err=True)
    unnumbered = TaskStore(tasks_dir).unnumbered()
    if unnumbered:
        names = (
            f"{unnumbered[0]}{f' and {len(unnumbered) - 1} more' if len(unnumbered) > 1 else ''}"
        )
        echo(
            f"not listed, because its id is not a number: {names}; see: evaluator tasks import "
            f"{tasks_dir}",
            err=True,
        )
    if as_json:
        common.print_json([_as_json(task) for task in found])
    else:
        _print_tasks(found)


def _as_json(task: TaskSummary) -> dict[str, Any]:
    if task.summary is None:
        summary = {}
    else:
        summary = task.summary.to_dict()
    return {
        "id": task.id,
        "status": task.status,
        "path": str(task.path),
        "error": task.error,
        "header": None if task.header is None else task.header.to_dict(),
        **{
            name: summary.get(name)
            for name in (
                "duration_s",
                "reason",
                "steps",
                "retries",
                "planned",
                "usage",
                "interrupted_calls",
            )
        },
    }


def _print_tasks(tasks: Sequence[TaskSummary]) -> None:
    """Prints a table without columns that are empty for all tasks or that the terminal is too
    narrow for.
    """
    head = [
        "id",
        "status",
        "created",
        "duration",
        "steps",
        "tokens",
        "cost",
        "template",
        "model",
        "request or reason",
    ]
    rows = [_cells(task) for task in tasks]
    widths = {
        name: max([len(name), *(len(row[i]) for row in rows)])
        for i, name in enumerate(head[:-1])
        if name not in ("model", "cost", "tokens") or any(row[i] not in ("", "?") for row in rows)
    }
    room = common.terminal_width() - LAST_WIDTH
    for name in SPARE:
        if sum(widths.values()) + 2 * len(widths) > room:
            widths.pop(name, None)
    kept = [i for i, name in enumerate(head) if name in widths or name == head[-1]]
    common.print_table([head[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _cells(task: TaskSummary) -> list[str]:
    header = task.header
    summary = task.summary
    return [
        str(task.id),
        task.status,
        "" if header is None else header.created[:16].replace("T", " "),
        "" if summary is None else duration_text(summary.duration_s),
        "" if summary is None else str(summary.steps),
        "" if summary is None else tokens_text(summary.usage),
        "" if summary is None else cost_text(summary.usage, summary.interrupted_calls),
        cut("" if header is None else header.template or "", NAME_WIDTH) or "-",
        cut(", ".join(models_of(task)), NAME_WIDTH),
        task.error or (summary and summary.reason) or (header and header.request) or "",
    ]


@click.command("show", epilog="Example:  evaluator tasks show 17 --messages")
@click.argument("task")
@click.option(
    "--tree", "as_tree", is_flag=True, help="Its steps, one line each, and those of its subtasks."
)
@click.option(
    "--messages",
    "as_messages",
    is_flag=True,
    help="Its conversations with the model, message by message.",
)
@tasks_option
@common.json_option
def show(task: str, as_tree: bool, as_messages: bool, tasks_dir: Path, as_json: bool) -> None:
    """Show one task file: TASK is its id or its path."""
    if as_tree and as_messages:
        raise UsageError("--tree and --messages exclude each other; give one of them")
    store = TaskStore(tasks_dir)
    found = find_task(store, task)
    recording = store.read(found)
    colour = common.stdout_is_terminal()
    if as_tree:
        from evaluator.record.tree import read_tree, render_tree

        tree = read_tree(store_beside(found, store), recording)
        _print(tree.to_dict() if as_json else render_tree(tree, colour))
    elif as_messages:
        from evaluator.record.conversation import conversations
        from evaluator.record.render import render_messages

        _print(
            {
                "id": None if recording.header is None else recording.header.task_id,
                "status": recording.status,
                "conversations": [
                    conversation.to_dict() for conversation in conversations(recording)
                ],
            }
            if as_json
            else render_messages(recording, colour)
        )
    else:
        from evaluator.record.render import render_text

        _print(recording.to_dict() if as_json else render_text(recording, colour))


def _print(shown: str | dict[str, object]) -> None:
    if isinstance(shown, str):
        echo_raw(shown, nl=False)
    else:
        common.print_json(shown)


@click.command("export", epilog="Example:  evaluator tasks export 17 18 --to files")
@click.argument("tasks", nargs=-1)
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    required=True,
    type=common.FOLDER,
    help="The folder to write to; it is created if it is missing.",
)
@tasks_option
@common.json_option
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
        common.print_json(paths)


def _number(store: TaskStore, task: str) -> int:
    found = find_task(store, task)
    if isinstance(found, Path):
        raise UsageError(f"{task[:100]!r} is a file; give the id of a task")
    return found
