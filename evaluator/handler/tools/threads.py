"""Runs a blocking function beside the event loop, in a thread that never holds up the end of the program."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(function: Callable[[], _T]) -> _T:
    """The function's result or exception. Context variables are carried over.

    What would end a thread or a program there (SystemExit, as argparse raises it, KeyboardInterrupt) ends nothing
    here: it comes out as a RuntimeError, since the event loop would pass it on and stop.

    When cancelled, the thread runs on unheard, for a thread cannot be stopped; it is a daemon, so that a
    function that never returns does not keep the process alive (the event loop's own executor would wait
    for it).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # a future refuses StopIteration
            told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = RuntimeError(f"the function raised {told}")
            failure.__cause__ = error
            future.set_exception(failure)

    def work() -> None:
        result: _T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has closed meanwhile; nobody waits any more

    threading.Thread(target=work, name="evaluator-tool", daemon=True).start()
    return await future
