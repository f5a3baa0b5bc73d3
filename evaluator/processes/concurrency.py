"""Runs coroutines as tasks that end together, many short tasks, and functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar

from evaluator.processes import starting

TASKS_A_TURN = 32
"""So many tasks of many begin in one turn of the event loop. If a thousand began in one, the first
request would be sent when all are prepared, and the answers would come together too, again and
again: this process would wait for the endpoint, and then the endpoint for it.
"""


async def run_together(*parts: Awaitable[Any]) -> list[Any]:
    """Returns the results of all. The first error cancels the others and is raised when they have
    ended.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks and returns when they have ended, however they end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Python 3.12 starts with some hundred frozen objects of its own; a program has thousands.
_FROZEN_BY_PYTHON = 1_000
_GC_THRESHOLD = 50_000
"""Allocations between two garbage collections while many tasks run. Python's default is 700 up to
3.12; with a thousand tasks in flight these collections take a fifth of the time, and free next to
nothing, since tasks leave no reference cycles.
"""
_GC_THRESHOLD_PER_TASK = 150
"""More objects than a task in flight has. With fewer, tasks that begin together would start
collections, which free nothing.
"""
_MOST_TASKS = 10_000
"""For more tasks the threshold does not grow: what has cycles would stay too long."""
_short_tasks_lock = threading.Lock()
_short_task_runs = 0
_threshold_before = 0
_threshold_inside = 0
# Whether the program was seen to freeze objects itself: counting them takes milliseconds.
_program_freezes = False


@contextmanager
def short_tasks(concurrency: int = 1) -> Generator[None]:
    """Inside, with `concurrency` tasks in flight, the garbage collector runs rarely
    (`gc.set_threshold`), and does not look again and again through what existed before
    (`gc.freeze`).

    Tasks in flight count as long-lived objects, so that a thousand of them start a full pass, which
    would take a tenth of the time. Garbage from before is collected afterwards. A higher threshold
    of the program stays. Nothing is frozen in a program that has frozen objects itself.
    """
    global _short_task_runs, _program_freezes, _threshold_before, _threshold_inside
    with _short_tasks_lock:
        threshold, *others = gc.get_threshold()
        if _short_task_runs == 0:
            _program_freezes = _program_freezes or gc.get_freeze_count() > _FROZEN_BY_PYTHON
            if not _program_freezes:
                gc.freeze()
            _threshold_before = threshold
            _threshold_inside = threshold
        tasks = min(concurrency, _MOST_TASKS)
        wanted = max(_GC_THRESHOLD, tasks * _GC_THRESHOLD_PER_TASK)
        if threshold == _threshold_inside and 0 < threshold < wanted:
            gc.set_threshold(wanted, *others)
            _threshold_inside = wanted
        _short_task_runs += 1
    try:
        yield
    finally:
        with _short_tasks_lock:
            _short_task_runs -= 1
            if _short_task_runs == 0:
                if not _program_freezes:
                    gc.unfreeze()
                threshold, *others = gc.get_threshold()
                # Unless the program has set another one meanwhile.
                if threshold == _threshold_inside:
                    gc.set_threshold(_threshold_before, *others)


_T = TypeVar("_T")


async def in_thread(function: Callable[[], _T]) -> _T:
    """The result or exception of `function`, called in a new thread with the caller's context
    variables.

    Exceptions that would end a thread or a program (SystemExit, as argparse raises it,
    KeyboardInterrupt) become a RuntimeError, because they would stop the event loop.

    When cancelled, the thread continues and its result is discarded, because a thread cannot be
    stopped. It is a daemon thread, so a function that never returns does not keep the process
    alive; the event loop's own executor would wait for it.
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
            failure = RuntimeError(
                f"the function raised {type(error).__name__}: {error}".removesuffix(": ")
            )
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
            pass  # the loop has been closed

    starting.start_thread(work, "evaluator-tool")
    return await future
