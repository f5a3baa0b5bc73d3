"""Synchronous forms of async methods. One event loop runs in a separate thread, so the caller may
have its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from evaluator.errors import UsageError

T = TypeVar("T")
Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")

_END_S = 5.0
_LOOK_S = 0.5
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`. Ctrl-C cancels it, waits up to 5 s for its end, and is raised
    again.

    Raises: UsageError, if the caller runs inside an evaluation that was started here, as an async
    tool or an `on_text`
    does: waiting would block the loop that it waits for.
    """
    if _is_inside():
        coroutine.close()
        raise UsageError(
            "the sync form was called inside an evaluation; use the async one, with await"
        )
    loop = _background_loop()
    result = Future[T]()
    tasks = list[asyncio.Task[T]]()

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(partial(_settle, result))

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # Ctrl-C came before the start
            coroutine.close()
            _settle(result, None)

    try:
        loop.call_soon_threadsafe(start)
        # A signal just before a wait does not end the wait, so Ctrl-C is looked for between short
        # ones.
        while not result.done():
            wait([result], _LOOK_S)
        return result.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(cancel)
        wait([result], _END_S)
        raise


def _settle(result: Future[T], task: asyncio.Task[T] | None) -> None:
    """Gives `result` the end of `task`; None: there is no task."""
    if task is None or task.cancelled():
        result.cancel()
        result.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


def sync_form(
    method: Callable[Concatenate[Owner, Arguments], Coroutine[Any, Any, T]], doc: str
) -> Callable[Concatenate[Owner, Arguments], T]:
    """`method` for code that is not async, with the same arguments, for type checkers and `help`
    too.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        return run_sync(method(self, *args, **kwargs))

    call.__name__ = f"{name}_sync"
    call.__qualname__ = f"{method.__qualname__}_sync"
    call.__doc__ = doc
    return call


def _is_inside() -> bool:
    try:
        return asyncio.get_running_loop() is _loop
    except RuntimeError:
        return False


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        # After a fork the loop's thread does not exist in the child.
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(
                target=_run, args=(_loop,), name="evaluator-sync", daemon=True
            )
            _thread.start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            return loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # The task that raised it passes it to its waiter; the other tasks continue.
            continue
