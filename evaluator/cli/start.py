"""`evaluator start`: a task in the background, in a process that outlives the terminal.

Runs the rest of a command in a process of its own, which outlives the command and its
terminal.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from evaluator.cli.background import look_at_tasks
from evaluator.cli.common import input_option, json_option, print_json, read_inputs
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import BACKGROUND_FOLDER, EvaluatorOptions, evaluator_options
from evaluator.errors import ConfigurationError, EvaluatorError, MachineError, UsageError
from evaluator.processes import starting

if TYPE_CHECKING:
    from evaluator.background import Work
    from evaluator.tools.mcp import McpServer

_KINDS: dict[bytes, type[EvaluatorError]] = {b"usage": UsageError, b"machine": MachineError}


def detach(run: Callable[[Callable[[str], None]], None]) -> str:
    """Calls `run` in a new process, in a session of its own and with empty standard input.

    `run` gets a function `ready`, to be called once with a text when it has started; from then on
    its output goes nowhere. Returns: that text, in this process. Must be called before this process
    starts a thread or an event loop.

    Raises: the error that `run` raised before it called `ready`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    if starting.fork() == 0:
        os.close(reading)
        _run_detached(run, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        kind, _, text = pipe.read().partition(b"\n")
    if kind == b"ready":
        return text.decode()
    raise _KINDS.get(kind, ConfigurationError)(
        text.decode() or "the new process ended before it had started the task"
    )


def _run_detached(run: Callable[[Callable[[str], None]], None], writing: int) -> NoReturn:
    """Never returns, and runs no exit handlers: those are the first process's."""
    code = 1
    is_ready = False
    nothing = os.open(os.devnull, os.O_RDWR)

    def ready(text: str) -> None:
        nonlocal is_ready
        is_ready = True
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        _send(writing, b"ready", text=text)

    try:
        os.setsid()
        os.dup2(nothing, 0)
        run(ready)
        code = 0
    except BaseException as error:
        if not is_ready:
            if isinstance(error, UsageError):
                kind = b"usage"
            else:
                kind = b"configuration"
            _send(
                writing,
                b"machine" if isinstance(error, MachineError) else kind,
                text=str(error) or type(error).__name__,
            )
    finally:
        os._exit(code)


def _send(writing: int, kind: bytes, text: str) -> None:
    os.write(writing, kind + b"\n" + text.encode("utf-8", "replace"))
    os.close(writing)


_WHAT = "a command after --, --template NAME, --session, --watch SERVER, or --consolidate FILE"


@click.command(
    epilog="Examples:\n\n\b\n  evaluator start -- make all\n  evaluator start --template "
    "summarise -i document=@a.md\n"
    "  evaluator start --session --handler default\n  evaluator start --watch "
    "mcp://notes/memo://today"
)
@click.argument("command", nargs=-1)
@click.option(
    "--node",
    metavar="NAME",
    help="Run the command or the template on this node of the Ray cluster at RAY_ADDRESS, or on "
    "`any`.",
)
@click.option("--template", metavar="NAME", help="Evaluate this template.")
@click.option(
    "--session",
    is_flag=True,
    help="An interactive session, which answers what `evaluator send` sends to it.",
)
@click.option(
    "--watch",
    "watched",
    metavar="SERVER",
    multiple=True,
    help="Watch this MCP server of the profile, or its resource mcp://SERVER/URI. Repeatable for "
    "resources.",
)
@click.option(
    "--events",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --watch: complete after N events.",
)
@click.option(
    "--consolidate",
    "index",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Bring this index of `evaluator memory` up to date with its folders.",
)
@input_option
@click.option(
    "--notify",
    metavar="COMMAND",
    help="A program and its arguments, which gets each notification on standard input, as XML; "
    "the last is the end.",
)
@click.option(
    "--max-output",
    type=click.IntRange(min=1),
    default=1 << 30,
    show_default=True,
    metavar="BYTES",
    help="Kill the task when its output is larger.",
)
@evaluator_options(
    "--handler",
    "--model",
    "--model-role",
    "--library",
    "--root",
    "--memory",
    "--tasks",
    "--sync",
    "--sandbox",
    "--trust",
)
@json_option
def start(
    command: tuple[str, ...],
    node: str | None,
    template: str | None,
    session: bool,
    watched: tuple[str, ...],
    events: int | None,
    index: Path | None,
    inputs: tuple[str, ...],
    notify: str | None,
    max_output: int,
    as_json: bool,
    options: EvaluatorOptions,
) -> None:
    """Start a task in the background and print its id: a command, a template, an interactive
    session, a watch on an MCP server, or the maintenance of an index.

    A command runs without a shell, with an empty standard input and the limits of scripts, in the
    first --root. It gets PATH, HOME, LANG, LC_* and TMPDIR of the environment, and nothing else.
    The task outlives this terminal.
    """
    if sum((bool(command), template is not None, session, bool(watched), index is not None)) != 1:
        raise UsageError(f"give one of: {_WHAT}")
    if inputs and template is None:
        raise UsageError("--input is for --template; a command gets its arguments after --")
    if node is not None and not command and template is None:
        raise UsageError("--node is for --template, and for a command after --")
    if events is not None and not watched:
        raise UsageError("--events is for --watch")

    def make() -> tuple[Work, str]:
        if index is not None:
            from evaluator.jobs.in_process import ConsolidationWork

            return ConsolidationWork(index.absolute()), f"consolidate {index}"
        if template is not None:
            return _evaluation(template, inputs, node, options=options)
        if session:
            return _session(options)
        if watched:
            return _watch(watched, events, options=options)
        return _script(command, node, options=options)

    task_id = _start_detached(make, options, notify=notify, max_output=max_output)
    if as_json:
        print_json(look_at_tasks(options.tasks_dir, lambda store: store.get(task_id)).to_dict())
    else:
        echo(task_id)


def _start_detached(
    make: Callable[[], tuple[Work, str]],
    options: EvaluatorOptions,
    notify: str | None,
    max_output: int,
) -> str:
    """Runs the work that `make` makes in a process of its own. Returns: the id of its task."""
    if notify is None:
        notify_command = None
    else:
        notify_command = _words(notify)
    folder = options.tasks_dir / BACKGROUND_FOLDER

    context = click.get_current_context()

    def run(ready: Callable[[str], None]) -> None:
        # The context of the command ends in the first process only.
        with click.Context(context.command, parent=context):
            asyncio.run(
                _host(make, folder, notify=notify_command, max_output=max_output, ready=ready)
            )

    return detach(run)


def _words(notify: str) -> list[str]:
    """The notification command. Raises: UsageError, if it cannot be run: nobody would see that
    later.
    """
    try:
        words = shlex.split(notify)
    except ValueError as error:
        raise UsageError(
            f"--notify {notify!r} cannot be split into words ({error}); close the quotation"
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--notify {notify!r} does not begin with a program; name one that is on the PATH, or "
            "its path"
        )
    return words


def _script(
    command: tuple[str, ...], node: str | None, options: EvaluatorOptions
) -> tuple[Work, str]:
    from evaluator.background import NodeWork, ScriptWork
    from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox

    root = (options.roots or (Path.cwd(),))[0].absolute()
    if options.sandbox is None:
        sandbox = NO_SANDBOX
    else:
        sandbox = Sandbox.parse(options.sandbox)
    if node is None:
        return ScriptWork(command, cwd=root, sandbox=sandbox), shlex.join(command)
    from evaluator.batch.engines.ray_engine import ray_node
    from evaluator.processes.supervisor import Command

    return NodeWork(
        Command(command, math.inf, cwd=root, sandbox=sandbox), ray_node(node)
    ), shlex.join(command)


def _evaluation(
    template: str, inputs: tuple[str, ...], node_name: str | None, options: EvaluatorOptions
) -> tuple[Work, str]:
    from evaluator.background import EvaluationWork
    from evaluator.jobs.in_process import type_of
    from evaluator.nodes import Function

    evaluator = options.make_evaluator()
    node = evaluator.library.get(template).node
    if isinstance(node, Function):
        raise UsageError(f"{template!r} is a function; only tasks can be started")
    values = read_inputs(inputs, node)
    if node_name is not None:
        from evaluator.batch.engines.node_template import NodeTemplate, TemplateWork
        from evaluator.batch.engines.ray_engine import ray_node

        open_node = ray_node(node_name, kind=NodeTemplate)
        return TemplateWork(evaluator, template, values, open_node), template

    async def evaluate(on_message: Any, on_begin: Any) -> Any:
        try:
            return await evaluator.evaluate(
                template, values, on_message=on_message, on_begin=on_begin
            )
        finally:
            await evaluator.aclose()

    return EvaluationWork(type_of(node), evaluate, redactor=evaluator.services.redactor), template


def _session(options: EvaluatorOptions) -> tuple[Work, str]:
    from evaluator.background import SessionWork

    evaluator = options.make_evaluator()

    async def converse(ask: Any, show: Any, on_message: Any, on_begin: Any) -> Any:
        try:
            return await evaluator.chat(ask, show, on_message=on_message, on_begin=on_begin)
        finally:
            await evaluator.aclose()

    return SessionWork(
        converse, evaluator.services.redactor
    ), f"session with {evaluator.services.default_profile.name}"


def _watch(
    watched: tuple[str, ...], events: int | None, options: EvaluatorOptions
) -> tuple[Work, str]:
    from evaluator.background import WatchWork
    from evaluator.tools.mcp.servers import SCHEME, split_resource

    services = options.make_evaluator().services
    servers = services.default_profile.mcp
    found = [
        split_resource(each, servers) if each.startswith(SCHEME) else (_server(each, servers), None)
        for each in watched
    ]
    if any(server != found[0][0] for server, _ in found):
        raise UsageError("one task watches one server; start one for each")
    uris = tuple(dict.fromkeys(uri for _, uri in found if uri is not None))
    services.mcp.check([found[0][0]])
    return WatchWork(
        found[0][0], uris, cwd=services.root, max_events=events
    ), f"watch {' '.join(watched)}"


def _server(name: str, servers: tuple[McpServer, ...]) -> McpServer:
    found = next((server for server in servers if server.name == name), None)
    if found is None:
        known = ", ".join(server.name for server in servers) or "none"
        raise UsageError(f"the profile has no MCP server {name!r}; its servers are: {known}")
    return found


async def _host(
    make: Callable[[], tuple[Work, str]],
    folder: Path,
    notify: list[str] | None,
    max_output: int,
    ready: Callable[[str], None],
) -> None:
    """Runs one task to its end in this process, which serves nothing else."""
    from evaluator.background import BackgroundTasks

    work, description = make()
    async with BackgroundTasks(folder, max_output_bytes=max_output) as tasks:
        task = tasks.start(work, description, notify_command=notify)
        loop = asyncio.get_running_loop()
        kills = set[asyncio.Task[Any]]()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            reason = f"its process got {signal.Signals(number).name}"
            loop.add_signal_handler(
                number,
                lambda reason=reason: kills.add(loop.create_task(tasks.kill(task.id, reason))),
            )
        ready(task.id)
        await tasks.wait(task.id)
        await asyncio.gather(*kills)
