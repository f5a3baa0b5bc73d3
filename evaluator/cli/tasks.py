"""`evaluator tasks list|show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evaluator.cli.common import json_option, print_json, print_table, stdout_is_terminal
from evaluator.errors import RecordError, UsageError
from evaluator.record.store import TaskStore

STATUSES = ["running", "interrupted", "completed", "failed", "aborted"]

dir_option = click.option(
    "--tasks", "tasks_dir", default="tasks", show_default=True, type=click.Path(path_type=Path),
    help="The folder of task files.",
)  # fmt: skip


@click.group(epilog="Example:  evaluator tasks show 17")
def tasks() -> None:
    """List and show task files."""


@tasks.command("list", epilog="Example:  evaluator tasks list --status failed")
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--limit", type=click.IntRange(1), help="At most this many, the newest first.")
@dir_option
@json_option
def list_tasks(status: Any, limit: int | None, tasks_dir: Path, as_json: bool) -> None:
    """List task files, the newest first."""
    found = list(TaskStore(tasks_dir).list(status=status, limit=limit))
    if not tasks_dir.exists():
        click.echo(f"{tasks_dir}: there is no such folder yet; the first run makes it", err=True)
    if as_json:
        print_json(
            [
                {
                    "id": t.id, "status": t.status, "path": str(t.path), "error": t.error,
                    "header": None if t.header is None else t.header.to_dict(),
                    "duration_s": None if t.summary is None else t.summary.duration_s,
                    "reason": None if t.summary is None else t.summary.reason,
                }
                for t in found
            ]
        )  # fmt: skip
        return
    rows = [
        [
            str(t.id), t.status, "" if t.header is None else t.header.created,
            "" if t.summary is None else f"{t.summary.duration_s:.3f} s",
            ("" if t.header is None else t.header.template or "") or "-",
            t.error or ("" if t.summary is None else t.summary.reason or "")
            or ("" if t.header is None else t.header.request),
        ]
        for t in found
    ]  # fmt: skip
    print_table(["id", "status", "created", "duration", "template", "request or reason"], rows)


@tasks.command("show", epilog="Example:  evaluator tasks show 17 --json")
@click.argument("task")
@dir_option
@json_option
def show(task: str, tasks_dir: Path, as_json: bool) -> None:
    """Show one task file: TASK is its id or its path."""
    from evaluator.record.render import render_text

    store = TaskStore(tasks_dir)
    bare = task.removeprefix("TASK-")
    if bare.isascii() and bare.isdigit():
        try:
            path = store.path_of(int(bare))
        except RecordError as error:
            raise RecordError(f"{error}; see: evaluator tasks list --tasks {tasks_dir}") from error
        recording = store.read(path)
    elif Path(task).is_file():
        recording = store.read(Path(task))
    else:
        raise UsageError(f"{task!r} is neither a task's id nor a file; see: evaluator tasks list")
    if as_json:
        print_json(recording.to_dict())
    else:
        click.echo(render_text(recording, stdout_is_terminal()))
