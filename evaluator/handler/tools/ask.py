"""Who answers a task's question: a person at the terminal, a callback of the embedding program, or a file."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Protocol, runtime_checkable

from evaluator.errors import ToolError
from evaluator.handler.tools.threads import in_thread

_LINE_BYTES = 65536
_ANSWER_BYTES = 1_000_000


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


class FileAsker:
    """Asks in a file, for runs that nobody sits at: `question-N.txt` in `folder`, answered by `answer-N.txt`.

    An answer is read once it is there under that name: write it under another one and rename it. The question is
    removed when it was answered or is no longer asked; the answer stays. Several processes may share a folder. The
    wait has no end of its own: the task's time limit is one. `look_every_s`: how often it looks, in seconds.
    """

    def __init__(self, folder: str | Path, *, look_every_s: float = 0.5) -> None:
        self._folder = Path(folder)
        self._look_every_s = look_every_s

    async def ask(self, question: str) -> str:
        try:
            # Not in a thread: what is given up meanwhile must not leave a question behind.
            asked = self._put(question)
        except OSError as error:
            raise ToolError(f"the question cannot be written to {self._folder}: {error.strerror}") from error
        try:
            answer = asked.with_name(asked.name.replace("question", "answer"))
            while True:
                text = await in_thread(lambda: _answer_in(answer))
                if text is not None:
                    return text
                await asyncio.sleep(self._look_every_s)
        finally:
            asked.unlink(missing_ok=True)

    def _put(self, question: str) -> Path:
        """The question in a file of a number that none has used; whole before it is there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".question-{os.getpid()}-{secrets.token_hex(8)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(question if question.endswith("\n") else f"{question}\n")
            for number in count(1):
                name = self._folder / f"question-{number}.txt"
                if name.with_name(f"answer-{number}.txt").exists():
                    continue
                try:
                    os.link(draft, name)
                except FileExistsError:
                    continue
                return name
            raise AssertionError("there is always a next number")
        finally:
            draft.unlink(missing_ok=True)


def _answer_in(path: Path) -> str | None:
    """The answer, without its line end; None while there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolError(f"the answer cannot be read from {path}: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        data = file.read(_ANSWER_BYTES + 1)
    if len(data) > _ANSWER_BYTES:
        raise ToolError(f"the answer in {path} is longer than {_ANSWER_BYTES:,} bytes")
    return data.decode("utf-8", "replace").rstrip("\r\n")


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
