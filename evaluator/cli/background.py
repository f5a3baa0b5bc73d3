"""`evaluator start`, `ps`, `logs`, `wait` and `kill`: tasks in the background, from any terminal."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evaluator.cli.common import (
    input_option,
    json_option,
    print_json,
    print_table,
    read_inputs,
    stdout_is_terminal,
)
from evaluator.cli.detach import detach
from evaluator.cli.echo import echo, echo_raw
from evaluator.cli.evaluator_options import BACKGROUND_FOLDER, EvaluatorOptions, evaluator_options, tasks_option
from evaluator.errors import UsageError
from evaluator.errors.messages import visible

if TYPE_CHECKING:
    from evaluator.background import BackgroundTask, BackgroundTasks
    from evaluator.background.tasks import Work

_FOLLOW_S = 0.25
_RECENT_S = 24 * 3600.0
_T = TypeVar("_T")

ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.command(
    epilog="Examples:\n\n\b\n  evaluator start -- make all\n  evaluator start --template summarise -i document=@a.md"
)
@click.argument("command", nargs=-1)
@click.option("--template", metavar="NAME", help="Evaluate this template.")
@click.option(
    "--consolidate",
    "index",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Bring this index of `evaluator memory` up to date with its folders.",
)
@input_option
@click.option("--notify", metavar="COMMAND", help="Gets the notification of the end, as XML, on standard input.")
@click.option(
    "--max-output", type=click.IntRange(min=1), default=1 << 30, show_default=True, metavar="BYTES",
    help="Kill the task when its output is larger.",
)  # fmt: skip
@evaluator_options(
    "handler", "model", "model-role", "library", "root", "memory", "tasks", "sync", "sandbox", "trust"
)  # fmt: skip
@json_option
def start(
    command: tuple[str, ...], template: str | None, index: Path | None, inputs: tuple[str, ...], notify: str | None,
    max_output: int, as_json: bool, options: EvaluatorOptions,
) -> None:  # fmt: skip
    """Start a command, a template or the maintenance of an index in the background, and print its id.

    A command runs without a shell, with an empty standard input and the limits of scripts, in the first --root. It gets
    PATH, HOME, LANG, LC_* and TMPDIR of the environment, and nothing else. The task outlives this terminal.
    """
    if sum((bool(command), template is not None, index is not None)) != 1:
        raise UsageError("give either a command after -- or --template NAME or --consolidate FILE")
    if inputs and template is None:
        raise UsageError("--input is for --template; a command gets its arguments after --")
    notify_command = None if notify is None else shlex.split(notify)

    def run(ready: Callable[[str], None]) -> None:
        if index is not None:
            work, description = _consolidation(index)
        elif template is not None:
            work, description = _evaluation(template, inputs, options)
        else:
            work, description = _script(command, options)
        asyncio.run(_host(work, description, options.tasks_dir / BACKGROUND_FOLDER, notify_command, max_output, ready))

    task_id = detach(run)
    if as_json:
        print_json(_read(options.tasks_dir, lambda tasks: _state_of(tasks, task_id)).to_dict())
    else:
        echo(task_id)


async def _state_of(tasks: BackgroundTasks, task_id: str) -> BackgroundTask:
    return tasks.store.get(task_id)


def _script(command: tuple[str, ...], options: EvaluatorOptions) -> tuple[Work, str]:
    from evaluator.background import ScriptWork
    from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox

    root = (options.roots or (Path.cwd(),))[0].absolute()
    sandbox = NO_SANDBOX if options.sandbox is None else Sandbox.parse(options.sandbox)
    return ScriptWork(command, cwd=root, sandbox=sandbox), shlex.join(command)


def _evaluation(template: str, inputs: tuple[str, ...], options: EvaluatorOptions) -> tuple[Work, str]:
    from evaluator.background import EvaluationWork
    from evaluator.background.evaluations import type_of
    from evaluator.nodes import Function

    evaluator = options.make_evaluator()
    node = evaluator.library.get(template).node
    if isinstance(node, Function):
        raise UsageError(f"{template!r} is a function; only tasks can be started")
    values = read_inputs(inputs, node)

    async def evaluate(on_message: Any) -> Any:
        try:
            return await evaluator.evaluate(template, values, on_message=on_message)
        finally:
            await evaluator.aclose()

    return EvaluationWork(type_of(node), evaluate, evaluator.services.redactor), template


def _consolidation(index: Path) -> tuple[Work, str]:
    from evaluator.background.consolidation import ConsolidationWork

    return ConsolidationWork(index.absolute()), f"consolidate {index}"


async def _host(
    work: Work, description: str, folder: Path, notify: list[str] | None, max_output: int, ready: Callable[[str], None]
) -> None:
    """Runs one task to its end in this process, which serves nothing else."""
    from evaluator.background import BackgroundTasks

    async with BackgroundTasks(folder, max_output_bytes=max_output) as tasks:
        task = tasks.start(work, description, notify_command=notify)
        loop, kills = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            reason = f"its process got {signal.Signals(number).name}"
            loop.add_signal_handler(
                number, lambda reason=reason: kills.add(loop.create_task(tasks.kill(task.id, reason)))
            )  # fmt: skip
        ready(task.id)
        await tasks.wait(task.id)
        await asyncio.gather(*kills)


@click.command(epilog="Example:  evaluator ps --all --json")
@click.option("--all", "every", is_flag=True, help="Also tasks that ended more than a day ago.")
@tasks_option
@json_option
def ps(every: bool, tasks_dir: Path, as_json: bool) -> None:
    """List background tasks: running ones and those that ended in the last day.

    A task whose process is gone is reported as failed; its output is kept.
    """

    async def read(tasks: BackgroundTasks) -> list[BackgroundTask]:
        await tasks.end_orphans()
        return tasks.store.list()

    since = time.time() - _RECENT_S
    found = [task for task in _read(tasks_dir, read) if every or task.ended_at is None or task.ended_at > since]
    if as_json:
        print_json([task.to_dict() for task in found])
        return
    rows = [[task.id, task.type, _state(task), _duration(task), _tokens(task), task.description] for task in found]
    print_table(["id", "type", "status", "time", "tokens", "description"], rows)


def _state(task: BackgroundTask) -> str:
    if task.is_waiting:
        return "running, waits for an answer"
    code = "" if task.exit_code is None else f" ({task.exit_code})"
    return f"{task.status}{code}"


def _duration(task: BackgroundTask) -> str:
    if task.started_at is None:
        return "-"
    return f"{(task.ended_at or time.time()) - task.started_at:,.0f} s"


def _tokens(task: BackgroundTask) -> str:
    if task.input_tokens is None or task.output_tokens is None:
        return "-"
    return f"{task.input_tokens:,} in, {task.output_tokens:,} out"


@click.command(epilog="Examples:\n\n\b\n  evaluator logs b3f9k2m1x --follow\n  evaluator logs b3f9k2m1x --offset 4096")
@click.argument("task_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the task has ended.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="BYTES", help="Start here. Default: 0.")
@click.option("--all", "every", is_flag=True, help="All messages of a transcript. Default: the last 50.")
@tasks_option
def logs(task_id: str, follow: bool, offset: int, every: bool, tasks_dir: Path) -> None:
    """Print the output of a background task: that of a command, or the messages of a conversation as JSON lines."""
    from evaluator.background.output import read_output, window_start

    async def show(tasks: BackgroundTasks) -> None:
        task = tasks.store.get(task_id)
        path, position = Path(task.output_file), offset
        if not offset and not every and path.suffix == ".jsonl":
            position = window_start(path)
        while True:
            has_ended = tasks.store.get(task_id).has_ended  # before reading, so that nothing is missed
            while data := read_output(path, position, 1 << 20):
                position += len(data)
                _show(data)
            if has_ended or not follow:
                return
            await tasks.wait(task_id, _FOLLOW_S)

    _read(tasks_dir, show)


def _show(data: bytes) -> None:
    """Writes output as it is into a file or a pipe; at a terminal it cannot control the terminal."""
    if stdout_is_terminal():
        echo_raw(visible(data.decode("utf-8", "replace")), nl=False)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


@click.command(epilog="Example:  evaluator wait b3f9k2m1x --timeout 600")
@ids_argument
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer. Default: no limit.")
@tasks_option
@json_option
def wait(ids: tuple[str, ...], timeout: float | None, tasks_dir: Path, as_json: bool) -> None:
    """Wait until the tasks have ended. Exit code 0 if all have completed, else 1."""

    async def until_ended(tasks: BackgroundTasks) -> list[BackgroundTask]:
        return await asyncio.gather(*(tasks.wait(each, timeout) for each in ids))

    found = _read(tasks_dir, until_ended)
    _report(found, as_json)
    if any(task.status != "completed" for task in found):
        raise click.exceptions.Exit(1)


@click.command(epilog="Example:  evaluator kill b3f9k2m1x")
@ids_argument
@click.option(
    "--reason", default="killed by the user", show_default=True, metavar="TEXT", help="Recorded as the reason."
)
@tasks_option
@json_option
def kill(ids: tuple[str, ...], reason: str, tasks_dir: Path, as_json: bool) -> None:
    """Kill tasks with everything that they started. Exit code 0 if all are killed, 1 if one has ended otherwise."""

    async def end(tasks: BackgroundTasks) -> list[BackgroundTask]:
        return await asyncio.gather(*(tasks.kill(each, reason) for each in ids))

    found = _read(tasks_dir, end)
    _report(found, as_json)
    for task in found:
        if not task.has_ended:
            echo(f"{task.id}: process {task.owner.pid} has not answered within 10 s", err=True)
    if any(task.status != "killed" for task in found):
        raise click.exceptions.Exit(1)


def _report(found: list[BackgroundTask], as_json: bool) -> None:
    from evaluator.background.notifications import end_summary

    if as_json:
        print_json([task.to_dict() for task in found])
        return
    for task in found:
        echo(f"{task.id}: {end_summary(task) if task.has_ended else task.status}")


def _read(tasks_dir: Path, work: Callable[[BackgroundTasks], Coroutine[Any, Any, _T]]) -> _T:
    """Calls `work` with the tasks of a folder. This process runs none of them."""
    from evaluator.background import BackgroundTasks

    async def run() -> _T:
        async with BackgroundTasks(tasks_dir / BACKGROUND_FOLDER) as tasks:
            return await work(tasks)

    return asyncio.run(run())
