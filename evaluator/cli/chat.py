"""`evaluator chat`: an interactive session at the terminal, recorded, and resumable after a
crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import echo_text, exit_code_of, stdin_is_terminal, stdout_is_terminal
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import BACKGROUND_FOLDER, EvaluatorOptions, evaluator_options
from evaluator.cli.run import write_piece
from evaluator.cli.tasks.list import parse_id
from evaluator.errors.results import Outcome, TaskError

if TYPE_CHECKING:
    from evaluator.interpreter.chat import Chat, ChatReply


@click.command(
    "chat",
    epilog="Examples:\n\n\b\n  evaluator chat --handler default\n  evaluator chat --resume 17",
)
@click.option("--resume", "resumed", metavar="ID", help="Continue the session of this task file.")
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
def chat(resumed: str | None, options: EvaluatorOptions) -> None:
    """Talk with a model that has the profile's tools and limits; a line is a query.

    Ctrl-C cancels the answer, or ends the session where nothing is being answered; so do Ctrl-D and
    /exit. The session is one task file; after a crash continue it with --resume. With --memory, the
    index is brought up to date in the background once a day.
    """
    evaluator = options.make_evaluator()
    terminal = _Terminal()

    async def session() -> Outcome:
        async with maintenance(options):
            with terminal:
                outcome = await evaluator.chat(
                    terminal.ask,
                    terminal.show,
                    resume=None if resumed is None else parse_id(resumed),
                    on_text=write_piece if stdout_is_terminal() else None,
                    on_start=terminal.attach,
                )
        await evaluator.aclose()
        return outcome

    outcome = asyncio.run(session())
    if isinstance(outcome, TaskError):
        echo(f"error: {outcome}", err=True)
        raise click.exceptions.Exit(exit_code_of(outcome))
    echo(f"task file: {options.tasks_dir / 'done' / f'TASK-{outcome.task_id}.md'}", err=True)


@contextlib.asynccontextmanager
async def maintenance(options: EvaluatorOptions) -> AsyncGenerator[None]:
    """Consolidates the index of the session in the background, if it is due. The end of the session
    ends it.
    """
    if options.memory is None or not options.memory.is_file():
        yield
        return
    from evaluator.background import BackgroundTasks
    from evaluator.jobs.in_process import ConsolidationLock, ConsolidationWork

    if not ConsolidationLock(options.memory).is_due():
        yield
        return
    async with BackgroundTasks(options.tasks_dir / BACKGROUND_FOLDER) as tasks:
        tasks.start(ConsolidationWork(options.memory.absolute()), f"consolidate {options.memory}")
        yield


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

    def attach(self, session: Chat) -> None:
        self._chat = session

    def _interrupt(self) -> None:
        if self._chat is not None and self._chat.cancel_answer():
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
                echo("> ", nl=False, err=True)
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
        if line or newline:
            return line.decode("utf-8", "replace")
        return None

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        descriptor = sys.stdin.fileno()
        self._waiting = loop.create_future()
        try:
            loop.add_reader(descriptor, self._wake)
        except PermissionError:
            # A regular file is always readable and cannot be waited for.
            return
        try:
            await self._waiting
        finally:
            loop.remove_reader(descriptor)

    def show(self, reply: ChatReply) -> None:
        """Prints the reply, unless it was streamed; with its query, if it comes from the record."""
        if reply.from_record:
            echo_text(f"> {reply.query}")
        for warning in reply.outcome.notes.get("warnings", ()):
            echo(f"warning: {warning}", err=True)
        if isinstance(reply.outcome, TaskError):
            echo(f"error: {reply.outcome.message}", err=True)
        elif reply.from_record or not stdout_is_terminal():
            echo_text(reply.outcome.content)
        else:
            echo()
