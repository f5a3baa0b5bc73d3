"""A schedule of several processes on one machine: faults, and the processes that follow."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluator import EvaluatorError, RecordError, TaskStore
from tests.simulation.machine import Machine, SimulatedProcess
from tests.simulation.schedule import Plan, Report, Schedule, Violation, marks_of
from tests.simulation.simulated_disk import DISK_FAILS, DISK_FULL, Loss
from tests.simulation.simulated_loop import Hang

# Virtual seconds after which what has not ended never will.
PATIENCE_S = 7200.0
# Virtual seconds in which a disk is full or fails.
FAILS_S = 60.0


class MachineSchedule(Schedule):
    """Runs a plan with several processes. `SPAN_S`: in about how many virtual seconds an undisturbed
    run ends; `CHANGES`: about how many changes of the disk a process makes in it; `PAUSES_S`: how long one
    stands still; `ERRORS`: of a disk that fails.
    """

    ERRORS: tuple[type[BaseException], ...] = (EvaluatorError, asyncio.CancelledError)
    SPAN_S = 12.0
    CHANGES = 220
    PAUSES_S = (1.0, 70.0, 400.0)

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.machine = Machine(self.world, self.files)
        self.is_one_host = self.random.random() < 0.5
        self.was_paused = False
        self.notices: list[str] = []
        self.hosts = 0

    def run(self) -> Report:
        with self.machine.running():
            main = self.machine.loop.create_task(self._run())
            try:
                self.machine.loop.run_until_complete(main)
            except Violation as violation:
                self.report.violation = str(violation)
            except Hang as hang:
                self.report.violation = f"hangs: {hang}"
        return self.report

    async def _run(self) -> None:
        self.world.is_known = lambda digest: f"ANS-{digest}" in self.files.written
        tasks = [asyncio.create_task(each) for each in self.programs()]
        try:
            for kind, at, how in self.plan.faults:
                await self._fault(kind, at, how)
            await asyncio.gather(*tasks)
            await self.finish()
        finally:
            for task in tasks:
                task.cancel()
        for process in list(self.machine.processes):
            self.machine.resume(process)
            await process.ended.wait()
        self.check(is_end=True)
        self.report.counts["completed"] += 1

    @abstractmethod
    def programs(self) -> list[Coroutine[Any, Any, None]]:
        """What starts the processes, and starts them again."""

    @abstractmethod
    async def finish(self) -> None:
        """What runs undisturbed in the end."""

    @abstractmethod
    def check(self, *, is_end: bool = False) -> None:
        """Raises: Violation."""

    async def edit(self) -> None:
        """What a person does meanwhile."""

    def _place(self, number: int) -> tuple[str, int]:
        """Where a process runs: one machine with ids that differ, or containers of which each sees
        itself as the process 1 and may be started again under its host's name.
        """
        self.hosts += 1
        if self.is_one_host:
            return "simulated", 1000 + self.hosts
        if self.random.random() < 0.5 and not any(
            each.identity.host == f"host-{number}" for each in self.machine.processes
        ):
            return f"host-{number}", 1
        return f"container-{self.hosts}", 1

    async def live(self, number: int, act: Callable[[], Any]) -> SimulatedProcess:
        await self.machine.is_on.wait()
        host, pid = self._place(number)
        process = self.machine.start(act, host, pid)
        await process.ended.wait()
        self.report.trace.append((process.life.changes, sum(self.world.billed.values())))
        error = process.error
        if error is None or process.died:
            return process
        if not self.has_failed_disk(process):
            raise Violation(f"a process ends with {type(error).__name__}: {error}")
        if not isinstance(error, self.ERRORS):
            raise Violation(f"a failing disk is a {type(error).__name__}: {error}")
        return process

    def has_failed_disk(self, process: SimulatedProcess) -> bool:
        """Whether the process may end with an error because its disk failed."""
        return bool(process.life.fails)

    async def _fault(self, kind: str, at: float, how: str) -> None:
        self.report.counts[kind] += 1
        await asyncio.sleep(self.random.uniform(0.0, self.SPAN_S) * at)
        if kind in ("edit", "command"):
            await self.edit()
            return
        processes = [each for each in self.machine.processes if not each.life.is_dead]
        if not processes:
            return
        process = self.random.choice(processes)
        if kind == "pause":
            self.was_paused = True
            self.machine.pause(process)
            self.machine.loop.call_later(
                self.random.choice(self.PAUSES_S), self.machine.resume, process
            )
            return
        if kind == "jump":
            process.identity.jump_s += self.random.choice((-1e6, -3600.0, 3600.0, 1e5))
            return
        life = process.life
        life.how = how  # type: ignore[assignment]
        life.crash_at = life.changes + 1 + int(at * self.CHANGES)
        if kind in ("full", "fails"):
            life.fails = DISK_FULL if kind == "full" else DISK_FAILS
            # Some time later it works again.
            self.machine.loop.call_later(FAILS_S, setattr, life, "crash_at", None)
            return
        # Until it is killed; one that ends before is not.
        self.machine.resume(process)
        await process.ended.wait()
        if kind == "power":
            await self._lose_power()
        self.check()

    async def _lose_power(self) -> None:
        await self.machine.switch_off()
        self.has_lost = True
        loss = Loss(
            self.random.choice(("ordered", "folders", "none")),
            self.random.choice(("prefix", "any", "zero")),
        )
        promised = set(self.files.recorded) if self.plan.sync == "step" else set()
        self.files.lose_power(self.random, loss)
        found = self._recorded()
        lost = promised - found
        if lost:
            raise Violation(f"recorded answers are lost: {sorted(lost)}")
        self.files.written = found - self._given_up()
        self.files.recorded = set(found)
        self.machine.is_on.set()

    def _given_up(self) -> set[str]:
        """The recorded answers that nothing goes on from, as their files are damaged."""
        return set()

    def _recorded(self, *, repair: bool = True) -> set[str]:
        """The answers in the task files."""
        found: set[str] = set()
        store = TaskStore(f"{self.files.root}/tasks")
        for path in sorted(Path(self.files.root).glob("tasks/*/TASK-*.md")):
            with suppress(RecordError):
                for step in store.read(path, repair=repair).steps:
                    if step.is_answer and step.end is not None:
                        found |= marks_of(json.dumps(step.end.output))
        return found
