"""Several simulated processes in one event loop, on one disk.

A process is a context: its tasks, timers and calls in threads carry it, and so the effects know whose
they are. A process is killed at a change of the disk, or from outside between two rounds; it is paused
by keeping what is ready of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.effects import JUMPS_S, Identity, boot_of, effects
from tests.simulation.simulated_disk import LIFE, Life, SimulatedDisk
from tests.simulation.simulated_loop import Hang, SimulatedLoop
from tests.simulation.simulated_sqlite import on_disk
from tests.simulation.workload import World

_MOST_CANCELS = 20


@dataclass(eq=False)
class SimulatedProcess:
    """A process and what it did. `ended` is set once nothing of it runs and what it had open is closed."""

    identity: Identity
    life: Life
    context: contextvars.Context
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    connections: list[sqlite3.Connection] = field(default_factory=list)
    outcome: Any = None
    error: BaseException | None = None
    died: bool = False
    is_paused: bool = False
    held: list[asyncio.Handle] = field(default_factory=list)
    held_timers: list[asyncio.TimerHandle] = field(default_factory=list)
    main: asyncio.Task[Any] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_ending: bool = False


PROCESS: ContextVar[SimulatedProcess | None] = ContextVar("PROCESS", default=None)


class _MachineLoop(SimulatedLoop):
    """Keeps what is ready of a paused process."""

    paused: int = 0

    def _run_once(self) -> None:
        if self.paused:
            self._hold()
        super()._run_once()

    def _hold(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        for handle in list(ready):
            process = handle._context.get(PROCESS)
            if process is not None and process.is_paused:
                ready.remove(handle)
                process.held.append(handle)
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        kept = []
        for handle in scheduled:
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.is_paused:
                process.held_timers.append(handle)
            else:
                kept.append(handle)
        if len(kept) < len(scheduled):
            heapq.heapify(kept)
            scheduled[:] = kept

    def release(self, process: SimulatedProcess) -> None:
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()
        for handle in process.held_timers:
            heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
        process.held_timers.clear()


class Machine:
    """The disk, the loop and the processes. What runs outside of any process is never killed."""

    def __init__(self, world: World, files: SimulatedDisk) -> None:
        self.world = world
        self.files = files
        self.loop = _MachineLoop(world.random, self._end_dead)
        self.loop.set_task_factory(self._task)
        self.processes: list[SimulatedProcess] = []
        self.is_on = asyncio.Event()
        self.is_on.set()
        self.count = 0
        self._outside = Identity(900, 1, "outside", boot_of(files), 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replaces every effect, by the process that causes it."""
        asyncio.set_event_loop(self.loop)
        self.world.is_dead = lambda: self.files.is_dead
        with (
            effects(
                self.world,
                self.files,
                self.loop,
                current=self._identity,
                alive=lambda: [each.identity for each in self.processes],
            ),
            on_disk(self.files, Random(self.world.random.random()), self._opened),
        ):
            try:
                yield
            finally:
                self._close()

    def _identity(self) -> Identity:
        process = PROCESS.get()
        return self._outside if process is None else process.identity

    def _opened(self, connection: sqlite3.Connection) -> None:
        process = PROCESS.get()
        if process is not None:
            process.connections.append(connection)

    def _task(self, loop: Any, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        process = PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda ended: process.tasks.pop(ended, None))
        return task

    def start(self, act: Callable[[], Awaitable[Any]], host: str, pid: int) -> SimulatedProcess:
        """Starts a process, whose id no living one on that host has."""
        self.count += 1
        identity = Identity(
            pid,
            self.count,
            host,
            boot_of(self.files),
            self.world.random.choice(JUMPS_S),
        )
        context = contextvars.copy_context()
        process = SimulatedProcess(identity, Life(), context)
        context.run(PROCESS.set, process)
        context.run(LIFE.set, process.life)
        self.processes.append(process)
        process.main = context.run(self.loop.create_task, self._live(process, act))
        return process

    async def _live(self, process: SimulatedProcess, act: Callable[[], Awaitable[Any]]) -> None:
        try:
            process.outcome = await act()
        except BaseException as error:
            process.error = error
        if not process.life.is_dead:
            # As at the end of a program: what is left of it has no time to do anything.
            process.context.run(self._end_quietly, process)

    def _end_quietly(self, process: SimulatedProcess) -> None:
        process.died = False
        self._begin_end(process)

    def _end_dead(self) -> None:
        for process in self.processes:
            if process.life.is_dead and not process.is_ending:
                process.died = True
                self._begin_end(process)

    def _begin_end(self, process: SimulatedProcess) -> None:
        process.is_ending = True
        process.life.is_dead = True
        self.resume(process)
        # Outside of the process.
        contextvars.Context().run(self.loop.create_task, self._end(process))

    async def _end(self, process: SimulatedProcess) -> None:
        for _ in range(_MOST_CANCELS):
            tasks = list(process.tasks)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)
        process.context.run(self._close_files, process)
        self.processes.remove(process)
        process.ended.set()

    def _close_files(self, process: SimulatedProcess) -> None:
        for connection in process.connections:
            connection.close()
        self.files.end_process()

    def kill(self, process: SimulatedProcess) -> None:
        process.life.is_dead = True

    def pause(self, process: SimulatedProcess) -> None:
        if not process.is_paused:
            process.is_paused = True
            self.loop.paused += 1

    def resume(self, process: SimulatedProcess) -> None:
        if process.is_paused:
            process.is_paused = False
            self.loop.paused -= 1
            self.loop.release(process)

    async def switch_off(self) -> None:
        """Ends every process at once, as a loss of power does. None starts until `is_on` is set."""
        self.is_on.clear()
        processes = list(self.processes)
        for process in processes:
            process.life.is_dead = True
        for process in processes:
            await process.ended.wait()
        gc.collect()
        self.files.generation += 1

    def _close(self) -> None:
        for process in list(self.processes):
            process.life.is_dead = True
        tasks = asyncio.all_tasks(self.loop)
        self.loop._before_round = lambda: None
        self.loop._random = Random(0)
        for process in list(self.processes):
            self.resume(process)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.begin_again()
            with suppress(Hang):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=10.0))
        for process in list(self.processes):
            process.context.run(self._close_files, process)
        self.loop.close()
        gc.collect()
