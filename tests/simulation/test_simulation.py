"""A few hundred simulated crashes hold every invariant, and planted faults are found."""

from __future__ import annotations

import asyncio
from random import Random
from unittest.mock import patch

import pytest

from evaluator.errors import RecordError, TaskNotBegun
from evaluator.record.journal import Journal
from evaluator.record.step_log import StepLog
from evaluator.record.store import TaskStore
from tests.simulation.schedule import plan_of, reference, run
from tests.simulation.simulated_loop import Hang, SimulatedLoop

SEEDS = 300
# How many schedules a planted fault may take until it is found.
MOST = 20


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_every_invariant_holds_in_each_schedule(first):
    reports = [run(plan_of(seed)) for seed in range(first, first + 100)]
    assert [f"{report.plan}: {report.violation}" for report in reports if report.violation] == []
    kinds = {kind for report in reports for kind in report.counts}
    assert {"kill", "power", "full", "fails", "completed"} <= kinds


def test_a_seed_repeats_a_schedule():
    for seed in range(20):
        first, second = run(plan_of(seed)), run(plan_of(seed))
        assert first == second and first.trace == second.trace


def test_a_run_that_waits_for_ever_is_a_hang():
    async def wait():
        await asyncio.get_running_loop().create_future()

    loop = SimulatedLoop(Random(1), lambda: None)
    main = loop.create_task(wait())
    with pytest.raises(Hang, match="no timer"):
        loop.run_until_complete(main)
    main.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(main)
    loop.close()


def _nothing(*_, **__):
    return None


async def _nothing_async(*_, **__):
    return None


async def _begin_without_flush(begin, self, *args, **named):
    with patch.object(StepLog, "_flush", _nothing_async):
        return await begin(self, *args, **named)


def _mutants():
    begin = StepLog.begin

    async def begin_late(self, *args, **named):
        return await _begin_without_flush(begin, self, *args, **named)

    reopen = TaskStore.reopen

    def reopen_existing(self, task_id, **named):
        try:
            return reopen(self, task_id, **named)
        except TaskNotBegun as error:
            raise RecordError(str(error)) from error

    def sync_file_only(self):
        self._to_disk(self._fd)

    return {
        "nothing is synced": (Journal, "sync", _nothing),
        "a file is synced and its name is not": (Journal, "sync", sync_file_only),
        "a call is made before its beginning is recorded": (StepLog, "begin", begin_late),
        "a subtask that never began is an error": (TaskStore, "reopen", reopen_existing),
    }


# The seed from which each is looked for: all are found from 0 too, in up to 260 schedules.
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("nothing is synced", 0),
        ("a file is synced and its name is not", 0),
        ("a call is made before its beginning is recorded", 0),
        ("a subtask that never began is an error", 250),
    ],
)
def test_a_planted_fault_is_found(name, first):
    owner, attribute, value = _mutants()[name]
    plans = [plan_of(seed) for seed in range(first, first + MOST)]
    for plan in plans:
        reference(plan.case, plan.sync)  # of the right code
    with patch.object(owner, attribute, value):
        assert any(run(plan).violation for plan in plans)
