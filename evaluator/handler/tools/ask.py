"""Who answers a task's question: a person at the terminal, or a callback of the embedding program."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from evaluator.errors import ToolError
from evaluator.handler.tools.threads import in_thread

_LINE_BYTES = 65536


@runtime_checkable
class Asker(Protocol):
    """Asks one question; the answer as given, without its line end. Raises ToolError for no answer."""

    async def ask(self, question: str) -> str: ...


class TerminalAsker:
    """Asks on standard error and reads a line from standard input, where that is a terminal.

    Questions of parallel tasks wait for each other. Control characters of the question are shown as
    `\\x1b`, so that a model's text cannot drive the terminal. One instance belongs to one event loop.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ask(self, question: str) -> str:
        if not terminal_present():
            raise ToolError("there is nobody to ask: standard input is not a terminal")
        async with self._turn:
            print(f"{visible(question)}\n> ", end="", file=sys.stderr, flush=True)
            line = await _read_line(sys.stdin.fileno())
        if not line:
            raise ToolError("the question was left unanswered (end of input)")
        return line.decode("utf-8", "replace").rstrip("\r\n")


class CallbackAsker:
    """Asks a function, sync or async. A sync one runs in a thread."""

    def __init__(self, answer: Callable[[str], str | Awaitable[str]]) -> None:
        self._answer = answer

    async def ask(self, question: str) -> str:
        given = await in_thread(lambda: self._answer(question))
        return given if isinstance(given, str) else await given


def terminal_present() -> bool:
    """Whether somebody sits there. False for a pipe, a file, a closed input and inside a test runner."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


def visible(text: str) -> str:
    """The text with every character that is not printable, save line feed and tab, written as an escape."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


async def _read_line(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, on_ready)
    try:
        await ready
        return os.read(descriptor, _LINE_BYTES)  # a terminal hands over one whole line
    except OSError as error:
        raise ToolError(f"the terminal cannot be read: {error.strerror}") from error
    finally:
        loop.remove_reader(descriptor)
