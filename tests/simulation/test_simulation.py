"""A few hundred simulated crashes hold every invariant, and planted faults are found."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from random import Random

import pytest

from evaluator import RecordError
from evaluator.batch.folder import BatchFolder
from evaluator.errors import BatchDamaged
from tests.simulation import batch_schedule
from tests.simulation.mutants import MUTANTS, found_after
from tests.simulation.schedule import plan_of, run
from tests.simulation.simulated_loop import Hang, SimulatedLoop

SEEDS = 1000
BATCH_SEEDS = 10
MACHINE_SEEDS = 10
# How many schedules a planted fault may take until it is found.
MOST = 80


@pytest.fixture(scope="module", autouse=True)
def freed_heap():
    """Schedules freeze what was there before them. What they leave is freed, and the collected tests stay frozen."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_every_invariant_holds_in_each_schedule(first):
    reports = [run(plan_of(seed)) for seed in range(first, first + 100)]
    assert [f"{report.plan}: {report.violation}" for report in reports if report.violation] == []
    kinds = {kind for report in reports for kind in report.counts}
    assert {"kill", "power", "full", "fails", "completed"} <= kinds


@pytest.mark.parametrize(
    ("workload", "count"),
    [
        ("single", 8),
        ("batch", 1),
        ("queue", 2),
        ("background", 2),
        ("workers", 1),
        ("together", 1),
        ("controlled", 1),
    ],
)
def test_a_seed_repeats_a_schedule(workload, count):
    for seed in range(2, 2 + count):
        first, second = run(plan_of(seed, workload)), run(plan_of(seed, workload))
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


# The seed from which each is looked for; the table in docs/explanation/simulation.md is from seed 0.
FOUND_SOON = {
    "nothing is synced": 0,
    "a file is synced and its name is not": 0,
    "a call is made before its beginning is recorded": 0,
    "an answer is used before it is recorded": 385,
    "a recorded answer is not used": 0,
    "a recorded charge is counted twice": 0,
    "a torn end is not cut off": 0,
    "an error of the disk is ignored": 0,
    "a subtask that never began is an error": 250,
    "a subtask's file is synced after the step that names it": 21,
    "an index is written before its tasks are synced": 920,
    "the tasks of a lost worker are not looked for": 15,
    "a provider batch that may exist is created again": 12,
    "the answers of a cancelled provider batch are not collected": 2,
    "the log of provider batches is not synced": 0,
    "parked calls are not synced": 0,
    "no folder is synced": 4,
    "a manifest is published before its content is synced": 17,
    "an incomplete line of results stays": 4,
    "task files of samples are not repaired": 9,
    "interrupted samples are not looked for": 0,
    "a stored response is not looked for": 1,
    "shards give the same ids to tasks": 0,
    "a segment is not synced": 0,
    "a task in a segment is not found": 0,
    "a worker without its lease ends an entry": 5,
    "a queue's transactions are not synced": 25,
    "an entry is done before its answer is synced": 22,
    "an edit of a person is overwritten": 0,
    "an interrupted attempt is not resumed": 8,
    "a background task ends twice": 107,
    "a background task's state is not synced": 22,
    "a notification is delivered before it is claimed": 0,
}


@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_planted_fault_is_found(name):
    (mutant,) = (each for each in MUTANTS if each.name == name)
    assert found_after(mutant, FOUND_SOON[name], MOST)


@pytest.mark.parametrize("workload", ["batch", "packed"])
@pytest.mark.parametrize("first", range(0, BATCH_SEEDS, 10))
def test_every_invariant_holds_for_a_batch(first, workload):
    reports = [run(plan_of(seed, workload)) for seed in range(first, first + 10)]
    assert [f"{report.plan}: {report.violation}" for report in reports if report.violation] == []


@pytest.mark.parametrize(
    ("workload", "count"),
    [
        ("generated", 100),
        ("decided", 3),
        ("shards", 4),
        ("workers", 8),
        ("waves", 3),
        ("controlled", 3),
        ("together", 4),
        ("fifty", 1),
    ],
)
def test_every_invariant_holds_in_the_other_workloads(workload, count):
    reports = [run(plan_of(seed, workload)) for seed in range(count)]
    assert [f"{report.plan}: {report.violation}" for report in reports if report.violation] == []
    assert sum(report.counts["completed"] for report in reports) == count


def test_a_decided_batch_of_the_simulation_stops_at_a_look():
    results = batch_schedule.reference("off", "decided")[0]
    assert 0 < len(results) < len(batch_schedule.ROWS) * batch_schedule.EPOCHS


def test_a_merged_batch_keeps_the_synced_records_of_its_shards():
    """The merge synced neither the copied task files nor their names: a loss of power took them."""
    plan = replace(plan_of(64, "shards"), provider_faults=0.0, faults=(("power", 0.936, "half"),))
    assert plan.sync == "step"
    assert run(plan).violation is None


@pytest.mark.parametrize("workload", ["queue", "background"])
def test_every_invariant_holds_for_several_processes(workload):
    reports = [run(plan_of(seed, workload)) for seed in range(MACHINE_SEEDS)]
    assert [f"{report.plan}: {report.violation}" for report in reports if report.violation] == []
    kinds = {kind for report in reports for kind in report.counts}
    assert {"kill", "power", "pause", "full", "completed"} <= kinds


# A task whose start was reported was lost; one whose end met a full disk never ended; one seemed old.
@pytest.mark.parametrize("seed", [13, 292, 54424855])
def test_a_seed_of_several_processes_that_failed_once_holds_now(seed):
    assert run(plan_of(seed, "background")).violation is None


# The record of a subtask that was run again, because its file was lost, did not name the new file: the next kill
# lost its answer.
def test_a_subtask_that_runs_again_is_named_by_the_record():
    assert run(plan_of(2001001291)).violation is None


# A batch's folder that a loss of power took; damaged task files of samples that `repair` did not reach.
@pytest.mark.parametrize("seed", [27, 31, 49, 83])
def test_a_seed_that_failed_once_holds_now(seed):
    assert run(plan_of(seed, "batch")).violation is None


def test_a_batch_of_which_a_loss_of_power_left_only_the_manifest_is_damaged(tmp_path):
    """Until their folder is synced, the name of the manifest may be certain before that of the results."""
    path = tmp_path / "batch"
    with BatchFolder.create(path) as folder:
        folder.write_manifest({})
    (path / "results.jsonl").unlink()
    damage: list[RecordError] = []
    assert batch_schedule.results_found(path, damage.append) == set()
    assert [type(error) for error in damage] == [BatchDamaged]


# A segment whose index was synced and whose tasks were not; a probe that a full disk kept.
@pytest.mark.parametrize("seed", [7, 13, 17, 27])
def test_a_seed_of_worker_processes_that_failed_once_holds_now(seed):
    assert run(plan_of(seed, "workers")).violation is None


# A loss of power took the unsynced file of a resumed task, which hid its record in a segment.
@pytest.mark.parametrize(("seed", "workload"), [(758793821, "packed"), (245568156, "shards")])
def test_a_file_that_replaces_the_record_of_a_segment_is_synced(seed, workload):
    assert run(plan_of(seed, workload)).violation is None


@pytest.mark.parametrize("seed", [6, 16])
def test_a_loss_of_power_takes_no_record_of_a_call_that_a_provider_batch_has(seed):
    plan = plan_of(seed, "waves")
    assert plan.sync != "step" and "power" in {kind for kind, *_ in plan.faults}
    assert run(plan).violation is None


def test_a_schedule_does_not_depend_on_those_before():
    """Descriptors of ended processes were once closed again in a later schedule."""
    alone = [run(plan_of(seed)) for seed in range(5)]
    for seed in range(200, 210):
        run(plan_of(seed))
    again = [run(plan_of(seed)) for seed in reversed(range(5))]
    assert [report.trace for report in again] == [report.trace for report in reversed(alone)]
