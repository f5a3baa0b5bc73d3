"""Runs one session in the open folder of a batch: its limiter, its store of task files, its worker,
its provider batches and the commands of other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from evaluator.batch.abandoned import (
    ContinuedRuns,
    abandoned_runs,
    label_and_task,
    still_abandoned,
)
from evaluator.batch.control import ControlLog
from evaluator.batch.decision import Decision
from evaluator.batch.display import NoDisplay, SafeDisplay, make_display
from evaluator.batch.engines import Engine
from evaluator.batch.folder import DAMAGED, PROVIDER, BatchFolder
from evaluator.batch.identity import REPAIR
from evaluator.batch.looks import Looks
from evaluator.batch.options import BatchLimits, BatchOptions, Stop, limits_to_dict
from evaluator.batch.pending import CompleteWork, MakeWork, UnrecordedRuns, find_unrecorded
from evaluator.batch.permissions import is_own, sign
from evaluator.batch.plan import BatchPlan
from evaluator.batch.progress import Tally
from evaluator.batch.result_index import ResultIndex
from evaluator.batch.result_writer import ResultWriter
from evaluator.batch.rows.object_rows import shard_of
from evaluator.batch.session import Session, SessionEnd, interrupted_state
from evaluator.batch.steering import Steering, budget_of, pace_of
from evaluator.batch.summary import Columns
from evaluator.batch.work import Worker
from evaluator.errors import BatchDamaged, UsageError
from evaluator.errors.messages import amount
from evaluator.fields import to_dict
from evaluator.fields.records import items_of
from evaluator.files.trust import is_signed, signature
from evaluator.limits.rate_limiter import RateLimiter
from evaluator.models.provider_batches import ProviderBatches, batches_of
from evaluator.record.journal import now
from evaluator.record.store import TaskStore

if TYPE_CHECKING:
    from evaluator.batch.waves import Waves
    from evaluator.interpreter.evaluator import Evaluator

SHARD_IDS = 10**12
"""Task ids of a shard begin at its number times this, so that the task files of all shards fit into
one folder.
"""


class SessionManifest:
    """The manifest of a batch during a session, which every change is written to. `before` is that
    of the earlier sessions, `created` when the batch was created.
    """

    def __init__(
        self, folder: BatchFolder, manifest: dict[str, Any], before: Mapping[str, Any]
    ) -> None:
        self.before = before
        self.created = ""
        self._folder = folder
        self._manifest = manifest
        self._session: dict[str, Any] = {}

    def begin(self, plan: BatchPlan, total: int | None) -> None:
        """Adds the session to the earlier ones."""
        before = self.before
        versions = dict(before.get("scorer_versions", {}))
        for name, version in plan.versions.items():
            versions[version] = {"scorer": name, "part": plan.scorer_parts[name]}
        self._session = {"started": now(), "ended": None, "state": None}
        self.created = before.get("created", self._session["started"])
        self._manifest |= {
            "created": self.created,
            "state": "running",
            "total": total,
            "scorer_versions": versions,
            "abandoned": items_of(before.get("abandoned")),
            "unrecorded": items_of(before.get("unrecorded")),
            "sessions": [*before.get("sessions", []), self._session],
        }
        self._folder.write_manifest(self._manifest)

    def store_limits(self, limits: BatchLimits) -> None:
        """Stores the limits that a command has set."""
        manifest = self._manifest
        is_signed = is_own(manifest)
        manifest["limits"] = limits_to_dict(limits)
        if manifest["arguments"]:
            changed = to_dict(limits, only_changed=True)
            manifest["arguments"] = {**manifest["arguments"], "limits": changed}
        if is_signed:
            manifest.update(sign(manifest))
        self._folder.write_manifest(manifest)

    def store_decision(self, decision: Decision) -> None:
        """Stores the looks that were taken."""
        self._manifest["decision"] = decision.to_dict()
        self._folder.write_manifest(self._manifest)

    def interrupt(self, error: BaseException, ran: int) -> None:
        """Stores that `error` ended the session after `ran` results."""
        state, reason = interrupted_state(error)
        self._session |= {"ended": now(), "state": state, "reason": reason, "ran": ran}
        self._folder.write_manifest(self._manifest | {"state": state})

    def store_unrecorded(self, runs: Iterable[tuple[str, int]]) -> None:
        """Stores the runs that have ended and that no result counts when the session begins. A
        result that it writes may hide that one of them is not counted from a session after it.
        """
        found = [{"label": label, "task_id": task_id} for label, task_id in runs]
        if found != self._manifest["unrecorded"]:
            self._manifest["unrecorded"] = found
            self._folder.write_manifest(self._manifest)

    def store_abandoned(
        self, store: TaskStore, unrecorded: Iterable[tuple[str, int]], *, is_complete: bool
    ) -> None:
        """Stores the `abandoned_runs` of this session, if the batch is complete, beside those of
        earlier sessions that no result has continued.
        """
        stored = self._manifest["abandoned"]
        runs: list[dict[str, Any]] = []
        if is_complete:
            runs = abandoned_runs(store, unrecorded, self._folder, stored)
            self._manifest["unrecorded"] = []
        left = still_abandoned(stored, self._folder, besides=runs)
        self._manifest["abandoned"] = [*left, *runs]

    def end(self, ended: SessionEnd, checked: str | None) -> None:
        """Stores the end of the session, and the mark of `sign_checked`."""
        self._session |= {
            "ended": now(),
            "state": ended.state,
            "reason": ended.reason,
            "ran": ended.ran,
        }
        self._manifest |= {
            "state": ended.state,
            "total": ended.total,
            "left_out": sorted(ended.stale | ended.orphans),
            "checked": checked,
        }
        self._folder.write_manifest(self._manifest)


def sign_checked(
    plan: BatchPlan, folder: BatchFolder, created: str, ended: SessionEnd
) -> str | None:
    """The mark that each result in the folder is one that `plan` asks for, and none is missing.
    None where the next session has to compare them.
    """
    if (
        ended.state != "complete"
        or ended.stale
        or ended.orphans
        or ended.counts.changed
        or ended.error is not None
        or plan.options.provider_batch
        or plan.work_part is None
        or not plan.rows.is_as_described()
    ):
        return None
    return signature(_checked_part(plan.work_part, folder, created))


def _keeps_all(plan: BatchPlan, folder: BatchFolder, before: Mapping[str, Any]) -> bool:
    """Whether an earlier session has compared all results in the folder with what `plan` asks for,
    and all of them stay.
    """
    mark = before.get("checked")
    if mark is None or plan.options.retry_errors or plan.options.provider_batch:
        return False
    work = plan.work_part
    return work is not None and is_signed(
        _checked_part(work, folder, created=before.get("created")), mark
    )


def _checked_part(work: str, folder: BatchFolder, created: object) -> bytes:
    size, time_ns = folder.last_write()
    return f"checked results\0{created}\0{work}\0{size}\0{time_ns}".encode()


async def run_session(
    evaluator: Evaluator,
    plan: BatchPlan,
    folder: BatchFolder,
    engine: Engine,
    manifest: SessionManifest,
    tally: Tally,
    notices: Sequence[str],
    make_work: MakeWork | None = None,
) -> tuple[SessionEnd, Columns | None]:
    """The end of the session, and all results of the batch; None if they have to be read."""
    options = plan.options
    limiter = RateLimiter(pace_of(options.limits), budget=budget_of(options.limits))
    columns, earlier = _read_earlier(folder, options)
    if make_work is None and earlier and _keeps_all(plan, folder, manifest.before):
        make_work = CompleteWork.of
    stop = options.stop or Stop()
    display = _make_display(options)
    waves = _make_waves(
        evaluator, plan, folder, limiter, stop=stop, display=display, created=manifest.created
    )
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(
            _evaluator_of_session(evaluator, options, folder=folder, limiter=limiter, waves=waves)
        )
        store = own.services.store
        unrecorded = UnrecordedRuns()
        if store is not None:
            if waves is not None:
                stack.push_async_callback(waves.aclose)
                await _begin_waves(waves, store, folder, options)
            part = shard_of(options.select)
            if part is not None:
                store.skip_to(part.number * SHARD_IDS)
            unrecorded = _unrecorded(store, options, manifest.before, folder, earlier)
            manifest.store_unrecorded(unrecorded.ended)
        worker = _make_worker(own, plan, limiter, unrecorded=unrecorded)
        for line in (*plan.notices, *notices, *_repair_notices(folder)):
            display.show("notice", line)
        stack.enter_context(_stopping(stop, limiter))
        steering = Steering(
            ControlLog(folder.path, manifest.created),
            plan,
            folder=folder,
            limiter=limiter,
            engine=engine,
            stop=stop,
            display=display,
            on_limits=manifest.store_limits,
            waves=waves,
        )
        with own.services.tracer.batch(plan.name) as span:
            session = Session(
                plan,
                folder,
                worker=worker,
                limiter=limiter,
                engine=engine,
                stop=stop,
                display=display,
                steering=steering,
                results=ResultWriter(
                    folder,
                    tally,
                    columns=columns,
                    scrub=None if store is None else store.redactor,
                    continued=ContinuedRuns(store, unrecorded.newest),
                ),
                make_work=make_work,
                looks=_make_looks(plan, folder, manifest.store_decision),
                waves=waves,
            )
            ended = await session.run(earlier)
            span.set_result(ended)
        # Calls that were parked in this session are among those of the worker.
        runs = {*unrecorded.runs, *worker.unrecorded.items()}
        if store is not None and runs:
            manifest.store_abandoned(store, sorted(runs), is_complete=ended.state == "complete")
        return ended, session.results.columns


def _make_display(options: BatchOptions) -> SafeDisplay:
    if options.display is None:
        return SafeDisplay(NoDisplay())
    return SafeDisplay(make_display(options.display))


def _evaluator_of_session(
    evaluator: Evaluator,
    options: BatchOptions,
    *,
    folder: BatchFolder,
    limiter: RateLimiter,
    waves: Waves | None,
) -> Evaluator:
    """The Evaluator whose calls pass through the limiter of the batch, with task files in its
    folder.
    """
    return evaluator.with_limiter(
        limiter,
        folder.tasks,
        options.cache,
        [folder.path],
        is_packed=options.task_files == "packed",
        parking=waves,
    )


def _stopping(stop: Stop, limiter: RateLimiter) -> AbstractContextManager[None]:
    """Inside, a stop ends the waiting for `limiter` too."""
    loop = asyncio.get_running_loop()
    reason = "the batch was stopped before it was this call's turn"
    return stop.calling(lambda: loop.call_soon_threadsafe(limiter.stop, reason))


def _read_earlier(folder: BatchFolder, options: BatchOptions) -> tuple[Columns | None, ResultIndex]:
    """The columns and the index of the results of earlier sessions; no columns after an error,
    which the summary raises again.
    """
    columns = Columns(options.cluster, options.group_by)
    try:
        return columns, folder.index(columns)
    except UsageError:
        return None, folder.index()


def _unrecorded(
    store: TaskStore,
    options: BatchOptions,
    before: Mapping[str, Any],
    folder: BatchFolder,
    earlier: ResultIndex,
) -> UnrecordedRuns:
    """The task files of earlier sessions that no result counts. Those of abandoned runs too: a row
    that was removed may be back.

    Raises: BatchDamaged, if there is damage and `options` do not repair it.
    """
    if not options.retry_errors and _has_all_results(before, len(earlier)):
        runs = sorted(_runs_in(before.get("abandoned")), key=itemgetter(1))
        return UnrecordedRuns(runs, runs, newest=dict(runs))
    damage = store.damage(repair=options.repair)
    if damage and not options.repair:
        raise BatchDamaged(f"{damage[0]}; to evaluate the samples that follow it again, {REPAIR}")
    return find_unrecorded(store, earlier, folder, _runs_in(before.get("unrecorded")))


def _runs_in(entries: Any) -> list[tuple[str, int]]:
    """The label and the task of runs in a manifest."""
    runs = map(label_and_task, items_of(entries))
    return [run for run in runs if run is not None]


def _has_all_results(before: Mapping[str, Any], results: int) -> bool:
    """Whether every task of the earlier sessions has its result; `results` is how many results
    there are.
    """
    sessions = before.get("sessions", [])
    total = before.get("total")
    return not sessions or (
        sessions[-1].get("state") == "complete" and isinstance(total, int) and results >= total
    )


def _make_worker(
    evaluator: Evaluator, plan: BatchPlan, limiter: RateLimiter, unrecorded: UnrecordedRuns
) -> Worker:
    options = plan.options
    return Worker(
        evaluator,
        plan.scorers,
        budget_ended=lambda: None if limiter.refused is None else str(limiter.refused),
        versions=plan.versions,
        count_as_failed=options.count_as_failed,
        limited=options.limited,
        unrecorded=unrecorded.newest,
        counted=unrecorded.counted,
        unfinished=options.unfinished,
        repair=options.repair,
        cluster=options.cluster,
        group_by=options.group_by,
    )


def _make_looks(
    plan: BatchPlan, folder: BatchFolder, on_decision: Callable[[Decision], None]
) -> Looks | None:
    """The looks of a batch that has to decide; None for any other."""
    if plan.deciding is None:
        return None
    return Looks(plan.deciding, [cell for cell, _ in plan.cells], folder, record=on_decision)


def _repair_notices(folder: BatchFolder) -> list[str]:
    """What was removed from the results when the folder was opened."""
    notices: list[str] = []
    if folder.torn_bytes:
        notices.append(
            f"{folder.path}: removed an incomplete last line of {amount(folder.torn_bytes, 'byte')}"
        )
    if folder.damaged_lines:
        moved = f"moved {amount(folder.damaged_lines, 'damaged result')} to {DAMAGED}"
        notices.append(f"{folder.path}: {moved}; their samples are pending")
    return notices


async def _begin_waves(
    waves: Waves, store: TaskStore, folder: BatchFolder, options: BatchOptions
) -> None:
    """Raises: UsageError, if calls wait that `options` do not collect."""
    store.parked_end = waves.end_of
    await waves.begin()
    if waves.calls and not options.provider_batch:
        raise UsageError(
            f"{waves.reason()}; resume with --provider-batch, or cancel them: evaluator batch "
            f"cancel {folder.path}"
        )


def _make_waves(
    evaluator: Evaluator,
    plan: BatchPlan,
    folder: BatchFolder,
    limiter: RateLimiter,
    *,
    stop: Stop,
    display: SafeDisplay,
    created: str,
) -> Waves | None:
    """The provider batches of a batch; None if it has none."""
    options = plan.options
    if not options.provider_batch and not (folder.path / PROVIDER).exists():
        return None
    from evaluator.batch.submissions import Submissions
    from evaluator.batch.wave_log import WaveLog
    from evaluator.batch.waves import Waves

    services = evaluator.services

    def resolve(label: str, profile: str) -> ProviderBatches | None:
        choice = services.chooser.choose(label, None, services.profile(profile))
        return batches_of(choice.backend, choice.model)

    batches = Submissions(
        WaveLog(folder.path, created),
        limiter,
        stop,
        resolve,
        notice=lambda line: display.show("notice", line),
        scrub=services.redactor,
        rest=options.provider_batch_rest,
        keep=options.keep_provider_files,
        unfinished=options.unfinished,
    )
    return Waves(
        batches,
        is_parking=options.provider_batch,
        is_waiting=options.wait,
        deadline_s=options.provider_batch_deadline,
    )
