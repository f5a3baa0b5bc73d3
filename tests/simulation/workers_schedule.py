"""One seed: a batch with worker processes, faults of any of its processes, and what must hold after each."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evaluator import clock
from evaluator.batch.engines import host, process_engine
from evaluator.batch.engines.base import HostLost
from evaluator.batch.engines.host import Host, portable_error
from tests.simulation import batch_schedule
from tests.simulation.batch_schedule import act, answers_of, check_batch, results_found
from tests.simulation.machine import PROCESS, Machine, SimulatedProcess
from tests.simulation.machine_schedule import PATIENCE_S, MachineSchedule
from tests.simulation.schedule import Plan, Report, Violation, evaluator_of

FORM = "workers"
WORKERS = 2
# Seconds until the other end of a pipe has a message, and until it learns that there is none any more.
PIPE_S = 0.01
LOST_S = 0.05


class SimulatedHost:
    """A worker process of the batch, and the pipe to it. Replaces `ProcessHost`.

    What one end has sent arrives, also if that process has ended meanwhile. A call that was not
    answered is lost with the worker, and the worker ends with the process that started it.
    """

    def __init__(self, machine: Machine, pid: int) -> None:
        parent = PROCESS.get()
        assert parent is not None
        self._machine = machine
        self._host: Host | None = None
        self._is_up = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._calls: set[asyncio.Future[Any]] = set()
        self._parent = contextvars.copy_context()
        outside = contextvars.Context()
        self._process = outside.run(machine.start, self._serve, parent.identity.host, pid)
        self._watching = machine.loop.create_task(self._note_end())
        outside.run(machine.loop.create_task, self._end_with(parent))

    async def _serve(self) -> None:
        await clock.sleep(self._delay())
        self._host = Host()
        self._is_up.set()
        await asyncio.Event().wait()

    async def _end_with(self, parent: SimulatedProcess) -> None:
        await parent.ended.wait()
        await asyncio.sleep(self._delay())
        self._machine.kill(self._process)

    async def _note_end(self) -> None:
        await self._process.ended.wait()
        await clock.sleep(LOST_S)
        self._has_ended.set()
        self._is_up.set()
        for answer in self._calls:
            if not answer.done():
                answer.set_exception(HostLost("the process has ended"))
                answer.exception()  # the caller may be gone

    def _delay(self) -> float:
        return self._machine.world.random.uniform(0.0001, PIPE_S)

    async def call(self, method: str, *arguments: Any) -> Any:
        await self._is_up.wait()
        await clock.sleep(self._delay())
        if self._has_ended.is_set():
            raise HostLost("the process has ended")
        answer = self._machine.loop.create_future()
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        answering = self._answer(answer, method, arguments=arguments)
        self._process.context.run(self._machine.loop.create_task, answering)
        return await answer

    async def listen(self, deliver: Callable[[bytes], None]) -> None:
        while True:
            deliver(await self.call("listen"))

    async def _answer(
        self, answer: asyncio.Future[Any], method: str, arguments: tuple[Any, ...]
    ) -> None:
        try:
            value = await getattr(self._host, method)(*arguments)
        except Exception as error:
            value = portable_error(error)

        def arrive() -> None:
            if not answer.done():
                answer.set_result(value)

        if not self._process.life.is_dead:
            self._parent.run(self._machine.loop.call_later, self._delay(), arrive)

    def kill(self) -> None:
        self._machine.kill(self._process)

    async def finish(self) -> None:
        self.kill()
        await self._watching


_shared: list[Any] = []


def _shared_object(place: int) -> Any:
    return _shared[place]


class _Reference:
    def __init__(self, value: Any) -> None:
        _shared.append(value)

    def __reduce__(self) -> Any:
        return _shared_object, (len(_shared) - 1,)


def _pack(value: Any, what: str) -> bytes:
    """The provider is the same for all processes, and what else they get does not change."""
    return pickle.dumps(value if what.startswith("the scorer") else _Reference(value))


class WorkersSchedule(MachineSchedule):
    """Runs a plan with a batch of the engine `processes`; a batch that ends early is resumed."""

    SPAN_S = 4.0
    CHANGES = 40
    # Within the time limit of a task.
    PAUSES_S = (1.0, 70.0, 250.0)

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.path = Path(root) / "batch"
        self.outcome: Any = None

    @classmethod
    def warm(cls, plan: Plan) -> None:
        batch_schedule.reference(plan.sync, FORM)

    def run(self) -> Report:
        _shared.clear()
        with (
            patch.object(process_engine, "ProcessHost", self._host),
            patch.object(host, "pack", _pack),
            patch.object(host, "guard_process", lambda _: None),
        ):
            return super().run()

    def _host(self) -> SimulatedHost:
        self.hosts += 1
        return SimulatedHost(self.machine, 2000 + self.hosts)

    def programs(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep_running()]

    async def _keep_running(self) -> None:
        self.outcome = await self.complete(
            0, self.path, form=FORM, engine="processes", workers=WORKERS
        )

    async def complete(self, number: int, path: Path, **options: Any) -> Any:
        """Runs the batch in a folder, in one process after the other, until it is complete."""

        async def batch() -> Any:
            evaluator = evaluator_of(self.world, self.files, self.plan.sync)
            return await act(evaluator, path, repair=self.is_damaged, **options)

        while self.machine.loop.time() < PATIENCE_S:
            process = await self.live(number, batch)
            if process.outcome is not None and process.outcome.is_complete:
                return process.outcome
            if process.outcome is not None and not self.may_be_incomplete(process):
                raise Violation(f"the batch ended {process.outcome.ended}")
            await asyncio.sleep(self.random.uniform(0.0, 20.0))
        raise Violation("the batch does not end")

    def may_be_incomplete(self, process: SimulatedProcess) -> bool:
        return self.has_failed_disk(process)

    def has_failed_disk(self, process: SimulatedProcess) -> bool:
        # The process that started a worker reports its errors.
        return self.report.counts["full"] + self.report.counts["fails"] > 0

    async def finish(self) -> None:
        """Nothing: the batch is complete."""

    def _recorded(self) -> set[str]:
        self.is_damaged = False
        results = results_found(self.path, self._check_damage)
        answers = answers_of(self.path).values()
        return {mark for marks in answers for mark in marks} | {
            f"RESULT-{identity}" for identity in results
        }

    def check(self, *, is_end: bool = False) -> None:
        if self.world.known_again:
            raise Violation(f"recorded answers were asked for again: {self.world.known_again}")
        lost = self.files.written - self._recorded()
        if lost:
            raise Violation(f"recorded answers or results are lost: {sorted(lost)}")
        if not is_end:
            return
        expected, _, _, _, cost = batch_schedule.reference(self.plan.sync, FORM)
        check_batch(self.path, self.outcome, expected, None if self.plan.provider_faults else cost)
        if not self.has_lost:
            self.check_ledger(self.path / "tasks")
