"""Runs the rest of a command in a process of its own, which outlives the command and its
terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from evaluator.errors import ConfigurationError, EvaluatorError, MachineError, UsageError
from evaluator.processes import starting

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
