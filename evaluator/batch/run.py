"""A batch from its arguments to its numbers: made ready, run or gone on with, summed up, checked against its gates."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.batch.definition import BatchLimits, read_limits, read_reasons, read_select, read_texts
from evaluator.batch.engines import Engine, LocalEngine
from evaluator.batch.folder import BatchFolder, Entry
from evaluator.batch.gates import GateResult, check_fit, check_gates, parse_gate
from evaluator.batch.judges import judges_of
from evaluator.batch.pending import OnChanged
from evaluator.batch.plan import BatchPlan, calls_of, cells_of, described, inputs_of, manifest_of, variants_of
from evaluator.batch.progress import Display, Endpoint, NoDisplay, Sheltered, Tally
from evaluator.batch.reading import Results, open_batch
from evaluator.batch.rows import RowMapping, Selection, open_rows
from evaluator.batch.scorers import is_bounded, make_scorers
from evaluator.batch.session import Ended, Session, Stop, broken_off, unrecorded_tasks
from evaluator.batch.statistics import reducer
from evaluator.batch.summary import BatchSummary, render_markdown
from evaluator.batch.work import Worker
from evaluator.errors import EvaluatorError, UsageError
from evaluator.handler.pacing import BatchBudget, Pace, Pacer
from evaluator.interpreter.recovery import ON_UNFINISHED, OnUnfinished
from evaluator.record.journal import now

if TYPE_CHECKING:
    from evaluator.handler.cache import ResponseCache
    from evaluator.interpreter.evaluator import Evaluator

BATCHES = "batches"
STOPPED = "the batch was asked to stop before this call's turn came"


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a session is run: nothing of it changes what is asked or how it is judged.

    `retry_errors` runs samples again that ended with an error. `on_changed`: what becomes of results that answer
    another question than the one asked now (see `Pending`). `unfinished`: what becomes of side effects in doubt.
    """

    resume: bool = False
    retry_errors: bool = False
    on_changed: OnChanged = "leave"
    unfinished: OnUnfinished = "ask"
    engine: Engine | None = None
    cache: ResponseCache | str | Path | None = None
    display: Display = field(default_factory=NoDisplay)
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        if self.unfinished not in ON_UNFINISHED:
            raise UsageError(f"unfinished is one of {', '.join(ON_UNFINISHED)}, not {self.unfinished!r}")
        if self.on_changed not in ("leave", "run", "keep"):
            raise UsageError(f"on_changed is one of leave, run, keep, not {self.on_changed!r}")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch: its numbers, and where everything is. `ended` says how the session ended; `folder` is
    absolute."""

    folder: Path
    ended: Ended
    summary: BatchSummary
    gates: tuple[GateResult, ...] = ()

    def __repr__(self) -> str:
        gates = f", {sum(gate.met for gate in self.gates)} of {len(self.gates)} gates met" if self.gates else ""
        return f"<BatchResult, {self.ended.state}: {self.summary.counts}{gates}, in {str(self.folder)!r}>"

    def __str__(self) -> str:
        return str(self.summary)

    def _repr_markdown_(self) -> str:
        return render_markdown(self.summary)

    @property
    def is_complete(self) -> bool:
        return self.ended.state == "complete"

    @property
    def ok(self) -> bool:
        """Complete, and every gate holds."""
        return self.is_complete and all(gate.met for gate in self.gates)

    def results(self) -> Results:
        """The results, in the order in which they came; one at a time, from the folder."""
        return open_batch(self.folder).results()


def make_plan(
    evaluator: Evaluator,
    templates: str | Sequence[str],
    rows: Any,
    *,
    name: str = "",
    inputs: Mapping[str, str] | None = None,
    id: str | None = None,
    target: str | None = None,
    metadata: Sequence[str] | None = None,
    select: Selection | Mapping[str, Any] | None = None,
    epochs: int = 1,
    models: Sequence[str] = (),
    handlers: Sequence[str] = (),
    scorers: Sequence[Any] = (),
    gates: Sequence[Any] = (),
    count_as_failed: Sequence[str] = (),
    limits: BatchLimits | Mapping[str, Any] | None = None,
    cluster: str | None = None,
    group_by: str | None = None,
    reducers: Sequence[str] | None = None,
) -> BatchPlan:
    """A batch made ready; nothing is run, no call made.

    Raises: UsageError, TemplateError or ConfigurationError, for whatever of it cannot be used.
    """
    names = read_texts("templates", templates)
    if not names:
        raise UsageError("name a template")
    models, handlers = read_texts("models", models), read_texts("handlers", handlers)
    gates = [gates] if isinstance(gates, str) else list(gates)
    reducers = None if reducers is None else read_texts("reducers", reducers)
    count_as_failed = read_reasons("count_as_failed", count_as_failed)
    metadata = None if metadata is None else read_texts("metadata", metadata)
    if type(epochs) is not int or epochs < 1:
        raise UsageError(f"epochs is {epochs!r}, expected an integer, 1 or more")
    made = make_scorers(scorers)
    cells = cells_of(evaluator, names, variants_of(models, handlers))
    said = described(evaluator, made, cells)
    checked = [parse_gate(gate) if isinstance(gate, str) else gate for gate in gates]
    given = None if reducers is None else tuple(each.name for each in map(reducer, reducers))
    needed = check_fit(
        checked,
        scorers=[scorer.name for scorer in made],
        cells=[(cell.template, cell.variant) for cell, _ in cells],
        epochs=epochs,
        reducers=given,
        bounded=[scorer for scorer in said if is_bounded(said[scorer])],
    )
    declared, required = inputs_of(evaluator, names)
    source = open_rows(
        rows,
        RowMapping(inputs, id, target, None if metadata is None else list(metadata)),
        select if isinstance(select, Selection) else Selection(**read_select("select", select or {})),
        declared=declared,
        required=required,
    )
    return BatchPlan(
        name or ", ".join(names), cells, epochs, source, made,
        limits if isinstance(limits, BatchLimits) else read_limits("limits", limits or {}),
        checked,
        count_as_failed, calls_of(evaluator, cells),
        said, cluster, group_by,
        needed, judges_of(evaluator, made, cells),
    )  # fmt: skip


async def run_plan(
    evaluator: Evaluator,
    plan: BatchPlan,
    output: str | Path | None,
    settings: BatchSettings,
    arguments: Mapping[str, Any] | None = None,
) -> BatchResult:
    """Runs what of `plan` is not in the folder `output` yet; `arguments` are kept in the manifest.

    Cancelling it cancels the calls that are in flight; the folder then says that the session was stopped.

    Raises: RecordError, if the folder cannot be used or written, or another process has it; UsageError, for a row
    that cannot be read, after what was in flight is finished and recorded.
    """
    if output is None and settings.resume:
        raise UsageError("resume goes on with what is in a folder: name it as output")
    path = _from_the_root(new_folder(plan.name) if output is None else output)
    is_there = settings.resume and (path / "manifest.json").exists()
    with BatchFolder.open(path) if is_there else BatchFolder.create(path) as folder:
        manifest = manifest_of(plan, evaluator, arguments or {})
        before = folder.manifest() if is_there else {}
        started = now()
        manifest |= {"created": before.get("created", started), "state": "running", "total": plan.total}
        manifest["settings"] = {**before.get("settings", {}), **manifest["settings"]}
        manifest["sessions"] = [*before.get("sessions", []), {"started": started, "ended": None, "state": None}]
        folder.write_manifest(manifest)
        tally = Tally()
        try:
            ended = await _session(evaluator, plan, folder, settings, _was_clean(before), tally)
        except BaseException as error:
            _write_broken_off(folder, manifest, tally.ran, error)
            raise
        manifest["sessions"][-1] |= {"ended": now(), "state": ended.state, "reason": ended.reason, "ran": ended.ran}
        manifest |= {"state": ended.state, "total": ended.total, "left_out": sorted(ended.stale | ended.orphans)}
        folder.write_manifest(manifest)
        folder.write_changed(ended.counts.explained)
        summary = open_batch(path).summarise()
        folder.write_summary(summary.to_dict())
        folder.sync()
        if ended.error is not None:
            raise ended.error
        return BatchResult(path, ended, summary, tuple(check_gates(summary, plan.gates)))


def _from_the_root(path: str | Path) -> Path:
    """`path` so that it stays the same wherever the process goes meanwhile or afterwards."""
    return Path(os.path.abspath(path))


def _write_broken_off(folder: BatchFolder, manifest: dict[str, Any], ran: int, error: BaseException) -> None:
    """The end of a session that `error` ended. What cannot be written of it is left: `error` is what is raised. The
    numbers are left too: counting takes its time, and who cancels has none."""
    state, reason = broken_off(error)
    manifest["sessions"][-1] |= {"ended": now(), "state": state, "reason": reason, "ran": ran}
    manifest["state"] = state
    with suppress(EvaluatorError, OSError):
        folder.write_manifest(manifest)


def _was_clean(manifest: Mapping[str, Any]) -> bool:
    """Whether every task of the earlier sessions has its result."""
    sessions = manifest.get("sessions", [])
    return not sessions or sessions[-1].get("state") == "complete"


async def _session(
    evaluator: Evaluator, plan: BatchPlan, folder: BatchFolder, settings: BatchSettings, is_clean: bool,
    tally: Tally,
) -> Ended:  # fmt: skip
    limits = plan.limits
    pace = Pace(
        start=limits.concurrency,
        most=limits.concurrency,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
    )
    budget = BatchBudget(max_cost_usd=limits.max_cost, max_tokens=limits.max_tokens, max_seconds=limits.max_time)
    pacer = Pacer(pace, budget=budget)

    def budget_ended() -> str | None:
        return None if pacer.refused is None else str(pacer.refused)

    earlier: dict[str, Entry] = folder.index()
    display = Sheltered(settings.display)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(evaluator.behind(pacer, folder.tasks, settings.cache, [folder.path]))
        store = own.services.store
        assert store is not None
        unrecorded = {} if is_clean and not settings.retry_errors else unrecorded_tasks(store, earlier)
        worker = Worker(own, plan.scorers, pacer, budget_ended, plan.count_as_failed, unrecorded, settings.unfinished)

        def endpoints() -> tuple[Endpoint, ...]:
            return tuple(Endpoint(state.label, state.in_flight, state.limit, state.waiting) for state in pacer.state())

        session = Session(
            plan, folder, settings.engine or LocalEngine(limits.concurrency), worker, display, settings.stop,
            settings.retry_errors, settings.on_changed, store.redactor, endpoints, tally,
        )  # fmt: skip
        for line in plan.notices:
            display.notice(line)
        if folder.torn_bytes:
            display.notice(f"{folder.path}: a torn line of {folder.torn_bytes} bytes was cut off the results")
        loop = asyncio.get_running_loop()
        stack.enter_context(settings.stop.told_to(lambda: loop.call_soon_threadsafe(pacer.stop, STOPPED)))
        with own.services.tracer.batch(plan.name) as span:
            ended = await session.run(earlier)
            span.ended(ended)
        return ended


def new_folder(name: str) -> Path:
    """`batches/NAME-DATE-TIME`, with a number where that is taken."""
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "batch"
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path, number = Path(BATCHES) / f"{word}-{stamp}", 1
    while path.exists():
        number += 1
        path = Path(BATCHES) / f"{word}-{stamp}-{number}"
    return path
