"""One seed: shards that run at once with few-shot examples and one response cache, and their merge."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evaluator import EvaluatorError
from evaluator.batch import batch_status, control_batch, merge_shards
from evaluator.models import cache_store
from evaluator.store import database
from tests.simulation import batch_schedule
from tests.simulation.batch_schedule import (
    SHARDS,
    answers_of,
    check_batch,
    results_found,
    shards_of,
)
from tests.simulation.machine import SimulatedProcess
from tests.simulation.machine_schedule import PATIENCE_S
from tests.simulation.schedule import Plan, Report, Violation
from tests.simulation.workers_schedule import WORKERS, WorkersSchedule

FORM = "together"
COMMANDS = ("pause", "set", "stop")


class SharedCache:
    """What the processes do with one response cache: which answers are stored, and how often none was found."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored: dict[str, str] = {}
        self.misses = Counter[str]()
        self._find = cache_store.find
        self._write = cache_store.write

    def find(self, connection: Any, key: str) -> Any:
        found = self._find(connection, key)
        if found is None:
            if key in self.stored:
                raise Violation(f"a stored answer is not found: {key}")
            self.misses[key] += 1
        return found

    def write(self, connection: Any, rows: Any, *counts: Any) -> None:
        rows = list(rows)
        self._write(connection, rows, *counts)
        for row in rows:
            self.stored[row.request.key] = json.loads(row.response)["model"].removeprefix("ANS-")

    def read_again(self) -> None:
        """After a loss of power: what is stored still."""
        kept: set[str] = set()
        # A copy in memory: a connection of another kind would make or change files.
        with (
            suppress(EvaluatorError, OSError, sqlite3.Error),
            closing(database.snapshot(self.path, cache_store.FORMAT)) as connection,
        ):
            kept = {key for (key,) in connection.execute("SELECT key FROM response")}
        self.stored = {key: digest for key, digest in self.stored.items() if key in kept}

    def check(self, billed: Counter[str]) -> None:
        misses = Counter[str]()
        for key, digest in self.stored.items():
            misses[digest] += self.misses[key]
        paid = {digest: count for digest, count in misses.items() if billed[digest] > count}
        if paid:
            raise Violation(f"answers that were stored and paid again, by their misses: {paid}")


class TogetherSchedule(WorkersSchedule):
    """Runs a plan with two shards at once; the merged batch is that of one process."""

    SPAN_S = 6.0
    CHANGES = 100

    def __init__(self, plan: Plan, root: str) -> None:
        super().__init__(plan, root)
        self.cache = SharedCache(Path(root) / "cache.sqlite")
        self.engines = [self.random.choice(("local", "processes")) for _ in range(SHARDS)]
        self.was_commanded = False

    @classmethod
    def warm(cls, plan: Plan) -> None:
        batch_schedule.reference(plan.sync, FORM)

    def run(self) -> Report:
        with (
            patch.object(cache_store, "find", self.cache.find),
            patch.object(cache_store, "write", self.cache.write),
        ):
            return super().run()

    async def _keep_running(self) -> None:
        """Runs the shards until they are complete, merges them, and resumes what the merge made."""
        while self.machine.loop.time() < PATIENCE_S:
            if self.path.exists():
                self.outcome = await self.complete(0, self.path, form=FORM, cache=self.cache.path)
                return
            await asyncio.gather(*(self._shard(number) for number in range(1, SHARDS + 1)))
            await self.live(0, self._merge)
            await asyncio.sleep(self.random.uniform(0.0, 20.0))
        raise Violation("the shards are not merged")

    async def _shard(self, number: int) -> None:
        await asyncio.sleep(self.random.uniform(0.0, self.SPAN_S))
        engine = self.engines[number - 1]
        await self.complete(
            number,
            shards_of(self.path)[number - 1],
            form=FORM,
            cache=self.cache.path,
            select={"shard": f"{number}/{SHARDS}"},
            engine=engine,
            workers=WORKERS if engine == "processes" else None,
        )

    async def _merge(self) -> None:
        merge_shards(shards_of(self.path), self.path)

    def may_be_incomplete(self, process: SimulatedProcess) -> bool:
        return self.was_commanded or super().may_be_incomplete(process)

    # -- a person ----------------------------------------------------------------------------------

    async def edit(self) -> None:
        """A person stops the session of a shard, pauses it for some time, or changes its concurrency."""
        self.was_commanded = True
        shard = self.random.choice(shards_of(self.path))
        action = self.random.choice(COMMANDS)
        arguments = ["concurrency=2"] if action == "set" else []

        async def command() -> None:
            with suppress(EvaluatorError):  # nothing runs there
                control_batch(shard, action, arguments, wait_s=0.0)

        async def go_on() -> None:
            with suppress(EvaluatorError):
                control_batch(shard, "continue", wait_s=0.0)

        await self.live(95, command)
        while action == "pause":
            # Also if the session has not read the command yet.
            await asyncio.sleep(self.random.uniform(1.0, 60.0))
            await self.live(96, go_on)
            if not self._is_paused(shard):
                break

    def _is_paused(self, shard: Path) -> bool:
        with suppress(EvaluatorError):
            return batch_status(shard).is_paused
        return False

    # -- invariants --------------------------------------------------------------------------------

    def _folders(self) -> list[Path]:
        return [*shards_of(self.path), self.path]

    def _recorded(self) -> set[str]:
        self.is_damaged = False
        found: set[str] = set()
        for path in self._folders():
            found |= {f"RESULT-{each}" for each in results_found(path, self._check_damage)}
            found |= {mark for marks in answers_of(path).values() for mark in marks}
        return found

    async def _lose_power(self) -> None:
        await super()._lose_power()
        self.cache.read_again()

    def check(self, *, is_end: bool = False) -> None:
        lost = self.files.written - self._recorded()
        if lost:
            raise Violation(f"recorded answers or results are lost: {sorted(lost)}")
        if not is_end:
            return
        expected = batch_schedule.reference(self.plan.sync, FORM)[0]
        check_batch(self.path, self.outcome, expected, None)
        if not self.has_lost:
            self.check_ledger(self.path / "tasks")
            is_sound = self.plan.provider_faults == 0.0
            if is_sound and not (self.report.counts["full"] or self.report.counts["fails"]):
                self.cache.check(self.world.billed)
