"""`evaluator ps`, `logs`, `send`, `wait` and `kill`: tasks in the background, from any terminal."""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evaluator import clock
from evaluator.cli.common import json_option, print_json, print_json_or_table, stdout_is_terminal
from evaluator.cli.echo import echo, echo_raw
from evaluator.cli.evaluator_options import BACKGROUND_FOLDER, tasks_option
from evaluator.errors import UsageError
from evaluator.errors.messages import cut, duration_text, visible

if TYPE_CHECKING:
    from evaluator.background import BackgroundStore, BackgroundTask, BackgroundTasks

_FOLLOW_S = 0.25
_RECENT_S = 24 * 3600.0
_WIDTH = 40
"""Of a description in the list, which a remark may follow."""
_T = TypeVar("_T")

ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.command(epilog="Example:  evaluator ps --all --json")
@click.option("--all", "every", is_flag=True, help="Also tasks that ended more than a day ago.")
@tasks_option
@json_option
def ps(every: bool, tasks_dir: Path, as_json: bool) -> None:
    """List background tasks: running ones and those that ended in the last day.

    A task whose process is gone is reported as failed; its output is kept. Nothing is changed: its
    notification is delivered by `evaluator wait` or `kill`.
    """

    since = clock.wall() - _RECENT_S
    tasks = look_at_tasks(tasks_dir, lambda store: [store.as_seen(t) for t in store.list()])
    found = [task for task in tasks if every or task.ended_at is None or task.ended_at > since]
    rows = [
        [
            task.id,
            task.type,
            _state(task),
            _duration(task),
            _tokens(task),
            cut(task.description, _WIDTH),
            "; ".join(text for text in (task.reason, task.notify_error) if text),
        ]
        for task in found
    ]
    head = ["id", "type", "status", "time", "tokens", "description", "remark"]
    print_json_or_table(as_json, [task.to_dict() for task in found], head=head, rows=rows)


def _state(task: BackgroundTask) -> str:
    if task.is_waiting:
        return "running, waits for an answer"
    if task.activity is not None:
        return f"{task.status}, {task.activity}"
    if task.exit_code is not None:
        return f"{task.status} ({task.exit_code})"
    return task.status


def _duration(task: BackgroundTask) -> str:
    if task.started_at is None:
        return "-"
    # A clock that was set back does not make it negative.
    return duration_text(max(0, (task.ended_at or clock.wall()) - task.started_at))


def _tokens(task: BackgroundTask) -> str:
    if task.input_tokens is None or task.output_tokens is None:
        return "-"
    return f"{task.input_tokens:,} in, {task.output_tokens:,} out"


@click.command(
    epilog="Examples:\n\n\b\n  evaluator logs b3f9k2m1x --follow\n  evaluator logs b3f9k2m1x "
    "--offset 4096"
)
@click.argument("task_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the task has ended.")
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="BYTES",
    help="Start here. Default: 0.",
)
@click.option(
    "--all", "every", is_flag=True, help="All messages of a transcript. Default: the last 50."
)
@tasks_option
def logs(task_id: str, follow: bool, offset: int, every: bool, tasks_dir: Path) -> None:
    """Print the output of a background task: that of a command, or messages and events as JSON
    lines.
    """
    from evaluator.jobs.output import read_output, window_start

    def has_ended(store: BackgroundStore) -> bool:
        task = store.find(task_id)
        return task is None or store.as_seen(task).has_ended

    path = look_at_tasks(tasks_dir, lambda store: store.output_of(task_id))
    position = offset
    if not offset and not every and path.suffix == ".jsonl":
        position = window_start(path)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        # Before reading, so that nothing is missed.
        is_last = not follow or look_at_tasks(tasks_dir, has_ended)
        while data := read_output(path, position, max_bytes=1 << 20):
            position += len(data)
            # It cannot control a terminal; a file or a pipe has it as it is.
            if stdout_is_terminal():
                echo_raw(visible(decoder.decode(data)), nl=False)
            else:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
        if is_last:
            # A character whose end is missing.
            echo_raw(decoder.decode(b"", final=True), nl=False)
            return
        clock.pause(_FOLLOW_S)


@click.command(epilog="Example:  evaluator wait b3f9k2m1x --timeout 600")
@ids_argument
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait no longer. Default: no limit.",
)
@click.option(
    "--idle", is_flag=True, help="Wait for a session only until it has answered everything."
)
@tasks_option
@json_option
def wait(
    ids: tuple[str, ...], timeout: float | None, idle: bool, tasks_dir: Path, as_json: bool
) -> None:
    """Wait until the tasks have ended. Exit code 0 if all have completed (or are idle, with
    --idle), else 1.
    """

    async def until_ended(tasks: BackgroundTasks) -> list[BackgroundTask]:
        return await asyncio.gather(*(tasks.wait(each, timeout, idle=idle) for each in ids))

    found = act_on_tasks(tasks_dir, until_ended)
    _report(found, as_json)
    if any(task.status != "completed" and not (idle and task.activity == "idle") for task in found):
        raise click.exceptions.Exit(1)


@click.command(
    epilog="Examples:\n\n\b\n  evaluator send t3f9k2m1x 'And now in French.'\n  evaluator send "
    "t3f9k2m1x --end"
)
@click.argument("task_id", metavar="ID")
@click.argument("text", required=False)
@click.option("--end", is_flag=True, help="End the session after its last answer.")
@tasks_option
def send(task_id: str, text: str | None, end: bool, tasks_dir: Path) -> None:
    """Send a message to an interactive session; `-` reads it from standard input. Read the answer
    with logs.
    """
    if text is None and not end:
        raise UsageError("give the text of the message, or --end to end the session")
    message = sys.stdin.read() if text == "-" else text

    async def send_all(tasks: BackgroundTasks) -> None:
        if message is not None:
            await tasks.send(task_id, message)
        if end:
            await tasks.send(task_id, None)

    act_on_tasks(tasks_dir, send_all)


@click.command(epilog="Example:  evaluator kill b3f9k2m1x")
@ids_argument
@click.option(
    "--reason",
    default="killed by the user",
    show_default=True,
    metavar="TEXT",
    help="Recorded as the reason.",
)
@tasks_option
@json_option
def kill(ids: tuple[str, ...], reason: str, tasks_dir: Path, as_json: bool) -> None:
    """Kill tasks with everything that they started. Exit code 0 if all are killed, 1 if one has
    ended otherwise.
    """

    async def end(tasks: BackgroundTasks) -> list[BackgroundTask]:
        return await asyncio.gather(*(tasks.kill(each, reason) for each in ids))

    found = act_on_tasks(tasks_dir, end)
    _report(found, as_json)
    for task in found:
        if not task.has_ended:
            echo(f"{task.id}: process {task.owner.pid} has not answered within 10 s", err=True)
    if any(task.status != "killed" for task in found):
        raise click.exceptions.Exit(1)


def _report(found: list[BackgroundTask], as_json: bool) -> None:
    from evaluator.jobs.tasks import end_summary

    if as_json:
        print_json([task.to_dict() for task in found])
        return
    for task in found:
        echo(f"{task.id}: {end_summary(task) if task.has_ended else _state(task)}")
        if task.notify_error is not None:
            echo(f"{task.id}: {task.notify_error}", err=True)


def look_at_tasks(tasks_dir: Path, look: Callable[[BackgroundStore], _T]) -> _T:
    """Calls `look` with a snapshot of the tasks of a folder. Nothing is created or changed."""
    from evaluator.background import BackgroundStore

    with BackgroundStore(tasks_dir / BACKGROUND_FOLDER, is_snapshot=True) as store:
        return look(store)


def act_on_tasks(tasks_dir: Path, work: Callable[[BackgroundTasks], Coroutine[Any, Any, _T]]) -> _T:
    """Calls `work` with the tasks of a folder. This process runs none of them."""
    from evaluator.jobs.background_tasks import with_tasks

    return with_tasks(tasks_dir / BACKGROUND_FOLDER, work)
