"""One seed: background tasks of several processes, faults, and what must hold after each."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.background import BackgroundTasks, EvaluationWork
from evaluator.jobs.background_store import BackgroundStore
from evaluator.jobs.in_process import type_of
from evaluator.jobs.tasks import Notice
from tests.simulation.machine import PROCESS, SimulatedProcess
from tests.simulation.machine_schedule import PATIENCE_S, MachineSchedule
from tests.simulation.schedule import Plan, Violation, evaluator_of, folder
from tests.simulation.workload import BACKGROUND

STARTERS = 3
WORKS: list[tuple[str, dict[str, Any]]] = [
    ("ask", {"what": "part one"}),
    ("story", {}),
    ("ask", {"what": "part two"}),
]


@dataclass
class Started:
    """A task whose start was reported, by which process, and what was seen of it."""

    process: SimulatedProcess
    name: str
    status: str = "pending"
    asked_to_end: bool = False


@cache
def reference() -> None:
    with folder() as root:
        report = BackgroundSchedule(Plan(0, BACKGROUND.name, "off", 0.0, ()), root).run()
        assert report.violation is None, report


class BackgroundSchedule(MachineSchedule):
    """Runs a plan with background tasks: their processes, one that kills some of them, and one that looks."""

    # As `BackgroundTasks.start` documents.
    ERRORS = (*MachineSchedule.ERRORS, OSError)
    CHANGES = 160

    @classmethod
    def warm(cls, plan: Plan) -> None:
        reference()

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.path = Path(root) / "background"
        self.started: dict[str, Started] = {}
        self.delivered = Counter[str]()

    def programs(self) -> list[Coroutine[Any, Any, None]]:
        return [*(self._start(n) for n in range(STARTERS)), self._kill_some(), self._look_on()]

    async def _start(self, number: int) -> None:
        """A process that starts tasks, for itself or for a session, and waits until they have ended."""
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        callback = self._deliver if number == 0 else None

        async def work() -> None:
            process = PROCESS.get()
            assert process is not None
            evaluator = evaluator_of(self.world, self.files, self.plan.sync)
            async with BackgroundTasks(
                self.path, callback=callback, notice=self.notices.append
            ) as tasks:
                ids: list[str] = []
                for template, inputs in WORKS:
                    inputs = {name: f"{text} of {number}" for name, text in inputs.items()}
                    task = tasks.start(
                        _work(evaluator, template, inputs),
                        f"{template} of {number}",
                        session=None if number == 0 else f"session-{number}",
                    )
                    self.started[task.id] = Started(process, template)
                    ids.append(task.id)
                    await asyncio.sleep(self.random.uniform(0.0, 0.5))
                for each in ids:
                    ended = await tasks.wait(each)
                    self._note(ended.id, ended.status)
                for notice in tasks.store.claim(session=f"session-{number}"):
                    self._deliver(notice)

        await self.live(number, work)

    async def _kill_some(self) -> None:
        """A process that asks to kill a task."""
        await asyncio.sleep(self.random.uniform(0.5, 3.0))

        async def kill() -> None:
            async with BackgroundTasks(self.path, notice=self.notices.append) as tasks:
                known = [each for each in tasks.store.list() if each.id in self.started]
                if known:
                    task = self.random.choice(sorted(known, key=lambda each: each.created_at))
                    self.started[task.id].asked_to_end = True
                    ended = await tasks.kill(task.id, "not needed")
                    self._note(ended.id, ended.status)

        await self.live(91, kill)

    async def _look_on(self) -> None:
        """A process that ends the tasks of processes that are gone, while others run."""
        await asyncio.sleep(self.random.uniform(1.0, 6.0))
        await self.live(92, self._look)

    async def _look(self) -> None:
        """Waits until every task has ended, and takes what no session has taken."""
        async with BackgroundTasks(self.path, notice=self.notices.append) as tasks:
            for each in list(self.started):
                ended = await tasks.wait(each, PATIENCE_S)
                self._note(each, ended.status)
                if not ended.has_ended:
                    raise Violation(f"{each} is still {ended.status}, by nobody")
            for number in range(STARTERS):
                for notice in tasks.store.claim(session=f"session-{number}"):
                    self._deliver(notice)

    async def finish(self) -> None:
        process = await self.live(93, self._look)
        if process.died:
            await self.live(94, self._look)

    def _deliver(self, notice: Notice) -> None:
        if self.files.is_dead or notice.kind != "end":
            return
        self.delivered[notice.task_id] += 1
        if self.delivered[notice.task_id] > 1:
            raise Violation(f"{notice.task_id} has two notifications of its end")

    def _note(self, number: str, status: str) -> None:
        """What somebody has seen of a task."""
        if self.files.is_dead:
            return
        seen = self.started[number]
        if seen.status in ("completed", "failed", "killed") and status != seen.status:
            raise Violation(f"{number} was {seen.status} and is {status}")
        seen.status = status

    def check(self, *, is_end: bool = False) -> None:
        if not self.path.exists():
            if self.started:
                raise Violation("the folder of background tasks is lost")
            return
        with closing(BackgroundStore(self.path)) as store:
            known = {each.id: each for each in store.list()}
            for number, seen in self.started.items():
                task = known.get(number)
                if task is None:
                    raise Violation(f"{number} was started and is lost")
                self._note(number, task.status)
                ends = [each for each in store.notices(number) if each.kind == "end"]
                if len(ends) != task.has_ended:
                    raise Violation(f"{number} is {task.status} with {len(ends)} notifications")
                is_alive = seen.process in self.machine.processes and not seen.process.is_ending
                if task.status == "failed" and is_alive and not self._was_disturbed(seen):
                    raise Violation(f"{number} is failed ({task.reason}), and its process lives")
                if task.status == "killed" and not seen.asked_to_end and is_alive:
                    raise Violation(f"{number} was killed ({task.reason}), and nobody asked for it")
                if is_end and not task.has_ended:
                    raise Violation(f"{number} is {task.status} in the end")
                if task.status == "completed":
                    self._check_output(Path(task.output_file))

    def _was_disturbed(self, seen: Started) -> bool:
        return self.was_paused or bool(seen.process.life.fails)

    def _check_output(self, path: Path) -> None:
        if self.has_lost:
            return  # what an output holds is not synced
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if not lines or lines[-1]["type"] != "outcome":
            raise Violation(f"{path.name} of a completed task has no outcome")


def _work(evaluator: Any, template: str, inputs: dict[str, Any]) -> EvaluationWork:
    node = evaluator.library.get(template).node

    async def evaluate(on_message: Any, on_begin: Any) -> Any:
        return await evaluator.evaluate(template, inputs, on_message=on_message, on_begin=on_begin)

    return EvaluationWork(type_of(node), evaluate, evaluator.services.redactor)
