"""`evaluator chat`: an interactive session at the terminal, recorded, and gone on with after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.common import (
    echo_text,
    exit_code_of,
    handler_option,
    library_option,
    load_library,
    model_option,
    read_roles,
    role_option,
    stdin_is_terminal,
    stdout_is_terminal,
    warn_of_unknown_roles,
)
from evaluator.cli.run import memory_option, open_memory, root_option, sync_option, write_piece
from evaluator.cli.tasks.common import dir_option, parse_id
from evaluator.results import TaskError, TaskResult

if TYPE_CHECKING:
    from evaluator.interpreter.chat import Chat, Reply


@click.command("chat", epilog="Examples:\n\n\b\n  evaluator chat --handler default\n  evaluator chat --resume 17")
@click.option("--resume", "resumed", metavar="ID", help="Go on with the session of this task file.")
@handler_option
@model_option
@role_option
@library_option
@root_option
@memory_option
@dir_option
@sync_option
def chat(
    resumed: str | None,
    handler: str | None,
    model: str | None,
    model_roles: tuple[str, ...],
    folders: tuple[Path, ...],
    roots: tuple[Path, ...],
    memory: Path | None,
    tasks_dir: Path,
    sync: Any,
) -> None:
    """Talk with a model that has the profile's tools and limits; a line is a query.

    Ctrl-C breaks the answer off, and ends the session where nothing is being answered; so do Ctrl-D and /exit. The
    session is one task file; a killed one goes on with --resume.
    """
    from evaluator.handler.tools import TerminalAsker
    from evaluator.interpreter.evaluator import Evaluator

    library, roles = load_library(folders), read_roles(model_roles)
    warn_of_unknown_roles(library, roles)
    evaluator = Evaluator(
        library, handler, model=model, model_roles=roles, roots=roots,
        tasks_dir=tasks_dir, sync=sync, memory=open_memory(memory), notice=lambda line: click.echo(line, err=True),
        asker=TerminalAsker() if stdin_is_terminal() else None,
    )  # fmt: skip
    terminal = _Terminal()

    async def session() -> TaskResult | TaskError:
        with terminal:
            outcome = await evaluator.chat(
                terminal.ask, terminal.show, resume=None if resumed is None else parse_id(resumed),
                on_text=write_piece if stdout_is_terminal() else None, on_start=terminal.started,
            )  # fmt: skip
        await evaluator.aclose()
        return outcome

    outcome = asyncio.run(session())
    if isinstance(outcome, TaskError):
        click.echo(f"error: {outcome}", err=True)
        raise click.exceptions.Exit(exit_code_of(outcome))
    click.echo(f"task file: {tasks_dir / 'done' / f'TASK-{outcome.task_id}.md'}", err=True)


class _Terminal:
    """Reads queries from standard input, line by line, and shows the replies."""

    def __init__(self) -> None:
        self._chat: Chat | None = None
        self._buffer = b""
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def started(self, session: Chat) -> None:
        self._chat = session

    def _interrupt(self) -> None:
        if self._chat is not None and self._chat.break_off():
            return
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def ask(self) -> str | None:
        """The next line that is not empty; None at the end of input."""
        while True:
            if stdin_is_terminal():
                click.echo("> ", nl=False, err=True)
            line = await self._line()
            if line is None or line.strip() == "/exit":
                return None
            if line.strip():
                return line

    async def _line(self) -> str | None:
        while b"\n" not in self._buffer and not self._ended:
            await self._readable()
            if self._ended:
                break
            piece = os.read(sys.stdin.fileno(), 65536)
            self._ended = not piece
            self._buffer += piece
        line, newline, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace") if line or newline else None

    async def _readable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
        self._waiting = loop.create_future()
        try:
            loop.add_reader(descriptor, self._wake)
        except PermissionError:
            # A regular file can always be read, and cannot be waited for.
            return
        try:
            await self._waiting
        finally:
            loop.remove_reader(descriptor)

    def show(self, reply: Reply) -> None:
        """The reply, unless it was streamed already; with the query, where it comes from the record."""
        if reply.from_record:
            echo_text(f"> {reply.query}")
        for warning in reply.outcome.notes.get("warnings", ()):
            click.echo(f"warning: {warning}", err=True)
        if isinstance(reply.outcome, TaskError):
            click.echo(f"error: {reply.outcome.message}", err=True)
        elif reply.from_record or not stdout_is_terminal():
            echo_text(reply.outcome.content)
        else:
            click.echo()
