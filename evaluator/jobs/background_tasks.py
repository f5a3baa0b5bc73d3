"""Runs the background tasks that this process starts, and ends those of them that anybody asks to
kill.

Delivers the notifications of a task that no session takes: to a command of the user, or to a
callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from evaluator import clock, disk
from evaluator.errors import EvaluatorError, RecordError, ToolError
from evaluator.jobs.background_store import LEASE_S, BackgroundStore
from evaluator.jobs.output import (
    CHECK_S,
    MAX_BYTES,
    STALL_S,
    SUFFIXES,
    TAIL_BYTES,
    Output,
    StallWatch,
    prompt_hint,
)
from evaluator.jobs.tasks import (
    Activity,
    BackgroundTask,
    End,
    Notice,
    Priority,
    Work,
    new_id,
    running_notice,
)
from evaluator.lazy_dataclass import dataclass
from evaluator.processes.scripts import run_script
from evaluator.processes.supervisor import run_to_end
from evaluator.record.redact import Redactor
from evaluator.store.owners import current_owner, is_visible

COMMAND_S = 60.0
NOT_OWN = "the notification command is not run, because it comes from somebody else"
NoticeCallback = Callable[[Notice], None]


async def deliver(
    store: BackgroundStore, task: BackgroundTask, callback: NoticeCallback | None = None
) -> list[str]:
    """Claims the notifications of `task` and passes each to the task's command and to `callback`.

    Without either, they stay for the session that started the task. The command of a task that
    somebody else wrote is not run. Returns: a warning for each failed command; the last one is also
    in the task's state.
    """
    if task.notify_command is None and callback is None:
        return []
    if task.notify_command is not None and not store.is_own(task.id):
        store.note(task.id, notify_error=NOT_OWN)
        return [f"{task.id}: {NOT_OWN}"]
    warnings: list[str] = []
    for notice in store.claim(task_id=task.id):
        if callback is not None:
            callback(notice)
        if task.notify_command is None:
            continue
        try:
            result = await run_script(task.notify_command, stdin=notice.xml, timeout_s=COMMAND_S)
        except ToolError as error:
            warnings.append(f"the notification command cannot be run: {error}")
        else:
            if result.exit_code != 0:
                why = result.stderr.strip()[:500] or f"exit code {result.exit_code}"
                warnings.append(f"the notification command failed: {why}")
    if warnings:
        store.note(task.id, notify_error=warnings[-1])
    return [f"{task.id}: {warning}" for warning in warnings]


LOOK_S = 0.25
"""Seconds between two looks at what other processes ask for and at the sizes of the outputs."""
_EVICT_EVERY = 256
_TRANSCRIPTS = "atwm"
"""The types whose output is JSON lines."""
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


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
    task_file: str | None = None
    activity: Activity | None = None
    delivery: asyncio.Task[None] | None = None


class BackgroundTasks:
    """The background tasks that this process runs, with their states and outputs in `folder`.

    One object serves one event loop. `callback` receives each notification of its tasks instead of
    their sessions; `max_output_bytes` is the size of an output at which its task is killed.

    Raises: as `BackgroundStore`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        callback: NoticeCallback | None = None,
        max_output_bytes: int = MAX_BYTES,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        self.store = BackgroundStore(folder)
        self._callback = callback
        self._max_output_bytes = max_output_bytes
        self._notice = notice
        self._redactor = Redactor.from_environment()
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = 0
        self._version: int | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_closing = False

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
        priority: Priority | None = None,
        notify_command: Sequence[str] | None = None,
    ) -> BackgroundTask:
        """Starts `work` and returns at once. The task ends with this process, at the latest.

        Without `priority`, its notifications have that of its type. Raises: RecordError or OSError,
        if its state or its output cannot be written.
        """
        if self._started % _EVICT_EVERY == 0:
            self.store.evict()
        self._started += 1
        task_id = new_id(work.type)
        suffix = SUFFIXES[work.type in _TRANSCRIPTS]
        output = Output.create(self.store.folder, f"{task_id}.{suffix}")
        try:
            task = BackgroundTask(
                task_id,
                work.type,
                description=self._redactor.redact(" ".join(description.split()))[:200],
                status="pending",
                output_file=str(output.path),
                created_at=clock.wall(),
                owner=current_owner(),
                session=session,
                tool_use_id=tool_use_id,
                priority=priority or work.priority,
                notify_command=None if notify_command is None else tuple(notify_command),
            )
            self.store.add(task)
        except BaseException:
            output.close()
            disk.unlink(output.path)
            raise
        running = _Running(
            task_id, work, output=output, watch=StallWatch(clock.monotonic()), session=session
        )
        work.on_task_file = partial(self._note_at_once, running)
        self._running[task_id] = running
        self._create(self._run(running))
        if self._watcher is None or self._watcher.done():
            self._version = None
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return task

    async def wait(
        self, task_id: str, timeout_s: float | None = None, *, idle: bool = False
    ) -> BackgroundTask:
        """Waits until the task has ended, at most `timeout_s`; returns its state then. It may be of
        another process.

        `idle`: a session is waited for until it has answered everything that was sent to it.

        Raises: UsageError, if there is no such task.
        """
        running = self._running.get(task_id)
        try:
            async with asyncio.timeout(timeout_s):
                if running is not None and not idle:
                    await running.ended.wait()
                    return self.store.get(task_id)
                while not (task := self.store.get(task_id)).has_ended and not (
                    idle and task.activity == "idle"
                ):
                    await self.end_orphans()
                    await clock.sleep(LOOK_S)
                return task
        except TimeoutError:
            return self.store.get(task_id)

    async def kill(
        self, task_id: str, reason: str, timeout_s: float | None = 10.0
    ) -> BackgroundTask:
        """Kills a task of any process with everything that it started, and returns its state after
        at most `timeout_s`, or LEASE_S later if its process may be gone unseen.

        A task that has ended stays as it is. Raises: UsageError, if there is no such task.
        """
        try:
            requested = self.store.request_kill(task_id, reason)
        finally:  # also where the disk is full
            if task_id in self._running:
                self._running[task_id].work.kill(reason)
        task = self.store.get(task_id)
        if requested == "killed":
            await self._deliver(task)
        if timeout_s is not None and not is_visible(task.owner):
            timeout_s += LEASE_S
        return await self.wait(task_id, timeout_s)

    async def send(self, task_id: str, text: str | None) -> None:
        """Sends a message to a session of any process; None ends it after what was sent before.

        Raises: UsageError, as `BackgroundStore.send`.
        """
        await self.end_orphans()
        self.store.send(task_id, text)
        if task_id in self._running:
            self._pass_messages(task_id)

    async def end_session(self, session: str) -> None:
        """Kills what this process runs for `session`; returns when nothing of it is running."""
        await self._end(
            [running for running in self._running.values() if running.session == session],
            "the task that started it has ended",
        )

    async def end_orphans(self) -> list[BackgroundTask]:
        """Ends the tasks whose process is gone, and delivers their notifications."""
        ended = self.store.end_orphans()
        for task in ended:
            await deliver(self.store, task, callback=None)
        return ended

    async def aclose(self) -> None:
        """Kills all tasks of this process, and closes the store."""
        self._is_closing = True
        await self._end(list(self._running.values()), "the process that ran it has ended")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        if self._tasks:
            await asyncio.wait(self._tasks)  # notifications that are being delivered
        self.store.close()

    async def _end(self, running: Sequence[_Running], reason: str) -> None:
        for one in running:
            one.work.kill(reason)
            try:
                self.store.request_kill(one.task_id, reason)
            except RecordError as error:  # the disk is full: nothing of it may run on
                self._notice(
                    f"the reason for the end of the background task {one.task_id} cannot be "
                    f"written: {error}"
                )
        if running:
            await run_to_end(_all_ended(running))

    async def _run(self, running: _Running) -> None:
        store = self.store
        task_id = running.task_id
        end = End("failed", reason="it could not be started")
        try:
            if store.begin(task_id):
                end = await self._result(running)
            else:
                end = End("killed")
            running.output.cut(self._max_output_bytes)
            await self._deliver(store.end(task_id, end) or store.get(task_id))
        except (
            Exception
        ) as error:  # the disk is full, or a callback is wrong: the other tasks go on
            self._notice(f"the end of the background task {task_id} cannot be handled: {error}")
            if isinstance(error, RecordError):
                self._create(self._end_later(task_id, end))
        finally:
            running.output.close()
            del self._running[task_id]
            running.ended.set()

    async def _end_later(self, task_id: str, end: End) -> None:
        """Records an end that the disk has refused, as soon as it takes it: others wait for it as
        long as this process runs.
        """
        while not self._is_closing:
            await clock.sleep(LOOK_S)
            with contextlib.suppress(RecordError):
                ended = self.store.end(task_id, end) or self.store.get(task_id)
                return await self._deliver_quietly(ended)

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

    async def _deliver(self, task: BackgroundTask) -> None:
        for warning in await deliver(self.store, task, callback=self._callback):
            self._notice(warning)

    # -- watching ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        next_check = clock.monotonic() + CHECK_S
        told = ""
        while self._running:
            is_check = clock.monotonic() >= next_check
            try:
                self._look_at_all(is_check)
            except Exception as error:
                # The disk is full, or the database is locked: it may be better the next time.
                if str(error) != told:
                    told = str(error)
                    self._notice(f"the background tasks cannot be watched: {error}")
            if is_check:
                next_check = clock.monotonic() + CHECK_S
            await clock.sleep(LOOK_S)

    def _look_at_all(self, is_check: bool) -> None:
        if (seen := self.store.version()) != self._version:
            self._take_requests()
            self._version = seen
        for running in list(self._running.values()):
            self._look(running)
            if is_check:
                self._check(running)
        if is_check:
            self.store.renew_lease()
            self._create(self._end_orphans_quietly())

    def _take_requests(self) -> None:
        """Passes on what other processes ask of the tasks here: kills, and messages to sessions."""
        for task_id in self.store.kill_requests(current_owner()):
            if task_id in self._running:
                reason = self.store.get(task_id).kill_reason
                self._running[task_id].work.kill(reason or "")
        for task_id in self.store.addressees():
            if task_id in self._running:
                self._pass_messages(task_id)

    def _pass_messages(self, task_id: str) -> None:
        running = self._running[task_id]
        for message in self.store.take_messages(task_id):
            running.activity = "active"  # as the store has it since the message was sent
            running.work.receive(message)

    def _look(self, running: _Running) -> None:
        """Enforces the size of the output, and notes what has changed."""
        work = running.work
        task_id = running.task_id
        size = running.output.size()
        if size > self._max_output_bytes and not running.flood:
            running.flood = True
            work.kill()
        if running.watch.note(clock.monotonic(), size):
            self.store.note(task_id, is_waiting=False)
        is_delivering = running.delivery is not None and not running.delivery.done()
        if not is_delivering and (event := work.take_event()):
            task = self.store.get(task_id)
            self.store.set_event(task, running_notice(task, f"{task.description!r}: {event}"))
            self._deliver_soon(running, task)
        self._note_task_file(running)
        if work.activity != running.activity:
            running.activity = work.activity
            self.store.set_activity(task_id, work.activity)

    def _note_task_file(self, running: _Running) -> None:
        task_file = running.work.task_file
        if task_file is not None and task_file != running.task_file:
            self.store.note(running.task_id, task_file=task_file)
            running.task_file = task_file

    def _note_at_once(self, running: _Running) -> None:
        """Before a call is made: with the task file it can be continued if this process dies."""
        with contextlib.suppress(RecordError):  # the watcher tries again, and reports the error
            self._note_task_file(running)

    def _check(self, running: _Running) -> None:
        if running.work.is_watched:
            self._check_stall(running)
        if running.work.tokens != running.tokens:
            running.tokens = used, made = running.work.tokens
            self.store.note(running.task_id, input_tokens=used, output_tokens=made)

    def _check_stall(self, running: _Running) -> None:
        """Adds a notice if the output has stopped at a prompt. The task continues."""
        if not running.watch.is_due(clock.monotonic()):
            return
        hint = prompt_hint(running.output.tail(TAIL_BYTES), running.work.is_waiting())
        if hint is not None:
            task = self.store.get(running.task_id)
            self.store.note(task.id, is_waiting=True)
            self.store.add_notice(task, "stall", "next", running_notice(task, _advice(task, hint)))
            self._deliver_soon(running, task)

    def _deliver_soon(self, running: _Running, task: BackgroundTask) -> None:
        """Delivers the open notifications of a task, while all are watched."""
        if task.notify_command is not None or self._callback is not None:
            running.delivery = self._create(self._deliver_quietly(task))

    async def _end_orphans_quietly(self) -> None:
        try:
            await self.end_orphans()
        except Exception as error:  # the disk is full, or a row is damaged
            self._notice(f"the tasks of processes that are gone cannot be ended: {error}")

    async def _deliver_quietly(self, task: BackgroundTask) -> None:
        try:
            await self._deliver(task)
        except Exception as error:  # a callback is wrong
            self._notice(
                f"a notification of the background task {task.id} cannot be delivered: {error}"
            )

    def _create(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _all_ended(running: Sequence[_Running]) -> None:
    for one in running:
        await one.ended.wait()


def _advice(task: BackgroundTask, hint: str) -> str:
    return (
        f"{task.description!r} seems to wait for an answer: {hint}, and its output has not grown "
        f"for {STALL_S:g} s. "
        "It is still running. Kill it, and start it again with the answer in its arguments, or "
        "with an option (--yes)"
    )


def with_tasks(folder: Path, work: Callable[[BackgroundTasks], Coroutine[Any, Any, _T]]) -> _T:
    """Calls `work` with the tasks of a folder. This process runs none of them."""

    async def run() -> _T:
        async with BackgroundTasks(folder) as tasks:
            return await work(tasks)

    return asyncio.run(run())
