"""Runs the background tasks that this process starts, and ends those of them that anybody asks to kill."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from evaluator.background.clock import Clock, SystemClock
from evaluator.background.delivery import NoticeCallback, deliver
from evaluator.background.notifications import stall_notice
from evaluator.background.output import MAX_BYTES, Output
from evaluator.background.stall import CHECK_S, STALL_S, TAIL_BYTES, StallWatch, prompt_hint
from evaluator.background.store import BackgroundStore
from evaluator.background.tasks import BackgroundTask, End, Priority, Work, new_id
from evaluator.errors import EvaluatorError
from evaluator.processes.supervisor import run_to_end
from evaluator.record.owner import current_owner

LOOK_S = 0.25
"""Seconds between two looks at what other processes ask for and at the sizes of the outputs."""
_SUFFIXES = {"b": "log", "a": "jsonl", "w": "jsonl", "d": "log"}
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """A task of this process. `flood` is set once its output is too large."""

    task_id: str
    work: Work
    output: Output
    watch: StallWatch
    session: str | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    flood: bool = False
    tokens: tuple[int | None, int | None] = (None, None)


class BackgroundTasks:
    """The background tasks that this process runs, with their states and outputs in `folder`.

    One object serves one event loop. `callback` receives each notification of its tasks instead of their sessions;
    `max_output_bytes` is the size of an output at which its task is killed.

    Raises: as `BackgroundStore`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        callback: NoticeCallback | None = None,
        max_output_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        self.store = BackgroundStore(folder)
        self._callback = callback
        self._max_output_bytes = max_output_bytes
        self._clock = clock or SystemClock()
        self._notice = notice
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(
        self,
        work: Work,
        description: str,
        *,
        session: str | None = None,
        tool_use_id: str | None = None,
        priority: Priority = "later",
        notify_command: Sequence[str] | None = None,
    ) -> BackgroundTask:
        """Starts `work` and returns at once. The task ends with this process, at the latest.

        Raises: RecordError or OSError, if its state or its output cannot be written.
        """
        task_id = new_id(work.type)
        output = Output.create(self.store.folder, f"{task_id}.{_SUFFIXES[work.type]}")
        try:
            task = BackgroundTask(
                task_id, work.type, " ".join(description.split())[:200], "pending", str(output.path), time.time(),
                current_owner(), session, tool_use_id, priority,
                None if notify_command is None else tuple(notify_command),
            )  # fmt: skip
            self.store.add(task)
        except BaseException:
            output.close()
            output.path.unlink()
            raise
        running = _Running(task_id, work, output, StallWatch(self._clock.time()), session)
        self._running[task_id] = running
        runner = asyncio.get_running_loop().create_task(self._run(running))
        self._tasks.add(runner)
        runner.add_done_callback(self._tasks.discard)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return task

    async def wait(self, task_id: str, timeout_s: float | None = None) -> BackgroundTask:
        """Waits until the task has ended, at most `timeout_s`; returns its state then. It may be of another process.

        Raises: UsageError, if there is no such task.
        """
        running = self._running.get(task_id)
        try:
            async with asyncio.timeout(timeout_s):
                if running is not None:
                    await running.ended.wait()
                    return self.store.get(task_id)
                while not (task := self.store.get(task_id)).has_ended:
                    await self.end_orphans()
                    await asyncio.sleep(LOOK_S)
                return task
        except TimeoutError:
            return self.store.get(task_id)

    async def kill(self, task_id: str, reason: str, timeout_s: float | None = 10.0) -> BackgroundTask:
        """Kills a task of any process with everything that it started, and returns its state after at most `timeout_s`.

        A task that has ended stays as it is. Raises: UsageError, if there is no such task.
        """
        if self.store.request_kill(task_id, reason) == "killed":
            await deliver(self.store, self.store.get(task_id), self._callback)
        if task_id in self._running:
            self._running[task_id].work.kill()
        return await self.wait(task_id, timeout_s)

    async def end_session(self, session: str, reason: str = "the task that started it has ended") -> None:
        """Kills what this process runs for `session`; returns when nothing of it is running."""
        await self._end([running for running in self._running.values() if running.session == session], reason)

    async def end_orphans(self) -> list[BackgroundTask]:
        """Ends the tasks whose process is gone, and delivers their notifications."""
        ended = self.store.end_orphans()
        for task in ended:
            await deliver(self.store, task, None)
        return ended

    async def aclose(self) -> None:
        """Kills all tasks of this process, and closes the store."""
        await self._end(list(self._running.values()), "the process that ran it has ended")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        self.store.close()

    async def _end(self, running: Sequence[_Running], reason: str) -> None:
        for one in running:
            self.store.request_kill(one.task_id, reason)
            one.work.kill()
        if running:
            await run_to_end(_all_ended(running))

    async def _run(self, running: _Running) -> None:
        store, task_id = self.store, running.task_id
        try:
            end = End("killed")
            if store.begin(task_id):
                end = await self._result(running)
            running.output.cut(self._max_output_bytes)
            ended = store.end(task_id, end) or store.get(task_id)
            for warning in await deliver(store, ended, self._callback):
                self._notice(warning)
        except Exception as error:  # the disk is full, or a callback is wrong: the other tasks go on
            self._notice(f"the end of the background task {task_id} cannot be handled: {error}")
        finally:
            running.output.close()
            del self._running[task_id]
            running.ended.set()

    async def _result(self, running: _Running) -> End:
        try:
            end = await running.work.run(running.output)
        except EvaluatorError as error:
            return End("failed", reason=str(error))
        except Exception as error:
            return End("failed", reason=f"{type(error).__name__}: {error}")
        if not running.flood:
            return end
        limit = f"killed because its output passed {self._max_output_bytes:,} bytes"
        return replace(end, status="killed", reason=limit)

    # -- watching -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        version = None
        next_check = self._clock.time() + CHECK_S
        while self._running:
            if (seen := self.store.version()) != version:
                version = seen
                for task_id in self.store.kill_requests(current_owner()):
                    if task_id in self._running:
                        self._running[task_id].work.kill()
            is_check = self._clock.time() >= next_check
            for running in list(self._running.values()):
                size = running.output.size()
                if size > self._max_output_bytes and not running.flood:
                    running.flood = True
                    running.work.kill()
                if running.watch.note(self._clock.time(), size):
                    self.store.set_waiting(running.task_id, False)
                if is_check and running.work.is_watched:
                    self._check_stall(running)
                if is_check and running.work.tokens != running.tokens:
                    running.tokens = running.work.tokens
                    self.store.set_tokens(running.task_id, *running.tokens)
            if is_check:
                next_check = self._clock.time() + CHECK_S
            await self._clock.sleep(LOOK_S)

    def _check_stall(self, running: _Running) -> None:
        """Adds a notice if the output has stopped at a prompt. The task continues."""
        if not running.watch.is_due(self._clock.time()):
            return
        hint = prompt_hint(running.output.tail(TAIL_BYTES))
        if hint is not None:
            task = self.store.get(running.task_id)
            self.store.set_waiting(task.id, True)
            self.store.add_notice(task, "stall", "next", stall_notice(task, _advice(task, hint)))


async def _all_ended(running: Sequence[_Running]) -> None:
    for one in running:
        await one.ended.wait()


def _advice(task: BackgroundTask, hint: str) -> str:
    return (
        f"{task.description!r} seems to wait for an answer: {hint}, and its output has not grown for {STALL_S:g} s. "
        "It is still running. Kill it, and start it again with the answer in its arguments, or with an option (--yes)"
    )
