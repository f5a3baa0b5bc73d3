"""Askers: pass a task's question to a person at the terminal, to a function, or through a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from evaluator import clock, disk
from evaluator.errors import ToolError
from evaluator.errors.messages import visible
from evaluator.files.atomic import write_atomic
from evaluator.files.open_below import read_regular
from evaluator.processes.concurrency import in_thread

_LINE_BYTES = 65536
_ANSWER_BYTES = 1_000_000


@runtime_checkable
class Asker(Protocol):
    """Asks one question; returns the answer without its line end. Raises: ToolError, if there is no
    answer.
    """

    async def ask(self, question: str) -> str: ...


class TerminalAsker:
    """Asks on standard error and reads a line from standard input, if that is a terminal.

    Questions of parallel tasks wait for each other. Control characters of the question are shown as
    `\\x1b`, so that a model's text cannot control the terminal. One instance belongs to one event
    loop.
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
            raise ToolError("the question was not answered (end of input)")
        return line.decode("utf-8", "replace").rstrip("\r\n")


class CallbackAsker:
    """Asks a function. A function that is not async runs in a thread."""

    def __init__(self, answer: Callable[[str], str | Awaitable[str]]) -> None:
        self._answer = answer

    async def ask(self, question: str) -> str:
        answer = await in_thread(lambda: self._answer(question))
        if isinstance(answer, str):
            return answer
        return await answer


class FileAsker:
    """Asks through files, for unattended runs: `question-N.txt` in `folder`, answered by
    `answer-N.txt`.

    An answer is read as soon as the file exists: write it under another name and rename it. The
    question is deleted when it was answered or is no longer asked; the answer stays. Several
    processes may share a folder. Only the task's time limit ends the wait. `look_every_s`: the time
    between two looks, in seconds.
    """

    def __init__(self, folder: str | Path, *, look_every_s: float = 0.5) -> None:
        self._folder = Path(folder)
        self._look_every_s = look_every_s

    async def ask(self, question: str) -> str:
        try:
            # Not in a thread: a cancelled task must not leave a question behind.
            asked = self._put(question)
        except OSError as error:
            raise ToolError(
                f"the question cannot be written to {self._folder}: {error.strerror}"
            ) from error
        try:
            answer = asked.with_name(asked.name.replace("question", "answer"))
            while True:
                text = await in_thread(lambda: _answer_in(answer))
                if text is not None:
                    return text
                await clock.sleep(self._look_every_s)
        finally:
            disk.remove(asked)

    def _put(self, question: str) -> Path:
        """Publishes the question under the first number that no question or answer has; returns the
        path.
        """
        disk.make_folders(self._folder, 0o700)
        if question.endswith("\n"):
            text = question
        else:
            text = f"{question}\n"
        data = text.encode("utf-8", "backslashreplace")
        number = 1
        while True:
            path = self._folder / f"question-{number}.txt"
            if not path.with_name(f"answer-{number}.txt").exists():
                with contextlib.suppress(FileExistsError):
                    write_atomic(path, data, sync=False, replace=False, error=None)
                    return path
            number += 1


def _answer_in(path: Path) -> str | None:
    """The answer without its line end; None while it is missing."""
    try:
        data = read_regular(path, _ANSWER_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolError(f"the answer cannot be read from {path}: {error.strerror}") from error
    return data.decode("utf-8", "replace").rstrip("\r\n")


def terminal_present() -> bool:
    """Whether standard input is a terminal. False for a pipe, a file, a closed input and in a test
    runner.
    """
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


async def _read_line(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, on_ready)
    try:
        await ready
        return os.read(descriptor, _LINE_BYTES)  # a terminal returns one complete line
    except OSError as error:
        # Not as the cause: EIO means that the terminal was closed, and not that a disk fails.
        raise ToolError(f"the terminal cannot be read: {error.strerror}") from None
    finally:
        loop.remove_reader(descriptor)
