"""Runs a batch: `run_batch` plans it, runs or resumes it, summarises the results and checks the
thresholds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from evaluator import clock
from evaluator.batch.decision import Deciding
from evaluator.batch.display import Display, DisplayName
from evaluator.batch.engines import Engine, make_engine
from evaluator.batch.folder import BatchFolder
from evaluator.batch.labels import repair_labels
from evaluator.batch.options import (
    BatchLimits,
    BatchOptions,
    Empty,
    OnChanged,
    ProviderBatchRest,
    Stop,
    TaskFiles,
)
from evaluator.batch.pending import MakeWork
from evaluator.batch.permissions import sign
from evaluator.batch.plan import BatchPlan, make_manifest, make_plan, was_begun
from evaluator.batch.progress import Tally
from evaluator.batch.reading import Results, open_batch
from evaluator.batch.records import COUNTED, Limited
from evaluator.batch.rows import FewShot, RowsInput, Selection
from evaluator.batch.rows.object_rows import Shard, shard_of
from evaluator.batch.run_session import SessionManifest, run_session, sign_checked
from evaluator.batch.session import SessionEnd
from evaluator.batch.summary import BatchSummary
from evaluator.batch.thresholds import (
    Threshold,
    ThresholdResult,
    check_thresholds,
    measured_scorers,
)
from evaluator.errors import EvaluatorError, UsageError, messages
from evaluator.errors.messages import amount, type_of
from evaluator.files.locations import given_path
from evaluator.interpreter.recovery import OnUnfinished
from evaluator.interpreter.sync import run_sync
from evaluator.lazy_dataclass import frozen
from evaluator.limits.call_limiter import fit_concurrency
from evaluator.processes.concurrency import short_tasks
from evaluator.processes.sandboxes import Sandbox

if TYPE_CHECKING:
    from evaluator.batch.metrics import MetricSpec
    from evaluator.batch.scorers import ScorerSpec
    from evaluator.interpreter.evaluator import Evaluator
    from evaluator.models.cache import ResponseCache

BATCHES = "batches"
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@frozen
class BatchResult:
    """The summary of a batch and its folder. `ended` says how the session ended; `folder` is
    absolute.
    """

    folder: Path
    ended: SessionEnd
    summary: BatchSummary
    thresholds: tuple[ThresholdResult, ...] = ()

    def __repr__(self) -> str:
        met = sum(threshold.met for threshold in self.thresholds)
        if self.thresholds:
            thresholds = f", {met} of {amount(len(self.thresholds), 'threshold')} met"
        else:
            thresholds = ""
        return (
            f"<BatchResult, {self.ended.state}: {self.summary.counts}{thresholds}, in "
            f"{str(self.folder)!r}>"
        )

    def __str__(self) -> str:
        return str(self.summary)

    def _repr_markdown_(self) -> str:
        return self.summary.to_markdown()

    def _repr_html_(self) -> str:
        shown = {"state": self.ended.state, "reason": self.ended.reason, "folder": self.folder}
        thresholds = {"thresholds": "\n".join(map(str, self.thresholds))}
        return messages.fields("Batch", shown | thresholds) + self.summary.to_html()

    @property
    def is_complete(self) -> bool:
        return self.ended.state == "complete"

    @property
    def ok(self) -> bool:
        """Complete, and every threshold is met."""
        return self.is_complete and all(threshold.met for threshold in self.thresholds)

    def results(self) -> Results:
        """The results in the order in which they were written, one at a time, from the folder."""
        return open_batch(self.folder).results()


async def run_batch(
    templates: str | Sequence[str],
    rows: RowsInput,
    *,
    evaluator: Evaluator | None = None,
    name: str = "",
    inputs: Mapping[str, str] | None = None,
    id: str | None = None,
    target: str | None = None,
    answers: str | None = None,
    shuffle_choices: int | None = None,
    empty: Empty = "keep",
    fewshot: FewShot | Mapping[str, Any] | None = None,
    metadata: Sequence[str] | Mapping[str, str] | None = None,
    select: Selection | Mapping[str, Any] | None = None,
    scorers: Sequence[ScorerSpec] = (),
    metrics: Sequence[MetricSpec] = (),
    epochs: int = 1,
    reducers: str | Sequence[str] | None = None,
    models: str | Sequence[str] = (),
    handlers: str | Sequence[str] = (),
    thresholds: str | Sequence[str | Threshold] = (),
    count_as_failed: str | Sequence[str] = COUNTED,
    limited: Limited = "scored",
    decide: Deciding | Mapping[str, Any] | None = None,
    limits: BatchLimits | Mapping[str, Any] | None = None,
    provider_batch: bool = False,
    provider_batch_rest: ProviderBatchRest = "batch",
    provider_batch_deadline: float | str | None = None,
    keep_provider_files: bool = False,
    wait: bool = False,
    cluster: str | None = None,
    group_by: str | None = None,
    output: str | Path | None = None,
    task_files: TaskFiles = "packed",
    resume: bool = False,
    retry_errors: bool = False,
    repair: bool = False,
    on_changed: OnChanged = "leave",
    unfinished: OnUnfinished = "ask",
    cache: ResponseCache | str | Path | None = None,
    engine: Engine | str | None = None,
    workers: int | None = None,
    sandbox: Sandbox | str | None = None,
    display: Display | DisplayName | None = "auto",
    stop: Stop | None = None,
) -> BatchResult:
    """Evaluates each row with each template, model and handler, and scores the answers.

    >>> from evaluator import Evaluator, run_batch_sync
    >>> rows = [{"question": "What is the symbol of iron?", "target": "Fe"}]
    >>> offline = Evaluator(handler="offline", tasks_dir=None)
    >>> result = run_batch_sync("answer_question", rows, evaluator=offline, scorers=["includes"])
    >>> result.summary.groups[0].accuracy.estimate.mean
    1.0

    `rows`: a file (JSONL, JSON, CSV, TSV, Parquet), a list, an iterator, an async iterator, a data
    frame or a `datasets.Dataset`. `evaluator`: default, an `Evaluator()` that is closed at the end.
    `evaluator.batch.BatchOptions` describes the other arguments. Everything is stored in the folder
    `output` (default: a new one in `batches/`): results as they arrive, task files, manifest,
    summary. Cancelling the call cancels the samples in flight, and the folder says that it was
    stopped.

    Returns: the numbers, the outcomes of the thresholds and the results; a row that fails is a
    result with an error.
    Raises: UsageError, TemplateError or ConfigurationError, before anything runs, for anything that
    cannot be used; UsageError later, for a row of a stream that cannot be used, after the samples
    in flight; RecordError, for a folder that cannot be used or written; TaskBusy, if another
    process works on it.
    """
    arguments = locals().copy()
    del arguments["templates"], arguments["rows"], arguments["evaluator"]
    options = BatchOptions(**arguments)
    from evaluator.interpreter.evaluator import Evaluator

    if evaluator is None:
        async with Evaluator(tasks_dir=None) as own:
            return await run_plan(own, make_plan(own, templates, rows=rows, options=options))
    if not isinstance(evaluator, Evaluator):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"evaluator is {type_of(evaluator)}, expected an Evaluator")
    return await run_plan(evaluator, make_plan(evaluator, templates, rows=rows, options=options))


def sync_form(
    function: Callable[_Arguments, Coroutine[Any, Any, _Result]],
) -> Callable[_Arguments, _Result]:
    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return run_sync(function(*args, **kwargs))

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    call.__doc__ = (
        f"`{function.__name__}` for code that is not async; also works inside a running event loop."
    )
    return call


run_batch_sync = sync_form(run_batch)


async def run_plan(
    evaluator: Evaluator, plan: BatchPlan, arguments: Mapping[str, Any] | None = None
) -> BatchResult:
    """Runs everything in `plan` that has no result in its folder yet. The manifest stores
    `arguments`.

    Raises: as `run_batch`.
    """
    if plan.options.sandbox is not None:
        evaluator = evaluator.with_sandbox(plan.options.sandbox)
    evaluator = await evaluator.check_sandboxes(plan.evaluations)
    if not was_begun(plan.options):
        evaluator.check_reached(plan.evaluations, imports=True)
    if plan.options.output is None and plan.options.resume:
        raise UsageError("resume continues the batch in a folder: name it as output")
    plan, notices = _fit_to_machine(plan)
    options = plan.options
    path = absolute(
        given_path(options.output or new_folder(plan.name, shard_of(options.select)), "output")
    )
    engine = make_engine(options.engine, options.limits.concurrency, workers=options.workers)
    exists = options.resume and (path / "manifest.json").exists()
    with (
        BatchFolder.open(path, repair=options.repair)
        if exists
        else BatchFolder.create(path) as folder
    ):
        if exists:
            if options.repair:
                repair_labels(path)
            before = folder.manifest(repair=options.repair)
        else:
            before = {}
        if exists and before.get("shard") != options.select.shard:
            have = before.get("shard") or "all rows"
            want = options.select.shard or "all rows"
            raise UsageError(
                f"{path}: holds the batch of shard {have}, not {want}; name another folder"
            )
        manifest = sign(make_manifest(plan, arguments or {}))
        manifest["settings"] = before.get("settings", {}) | manifest["settings"]
        return await run_in_folder(
            evaluator,
            plan,
            folder=folder,
            engine=engine,
            manifest=manifest,
            before=before,
            notices=notices,
        )


async def run_in_folder(
    evaluator: Evaluator,
    plan: BatchPlan,
    folder: BatchFolder,
    engine: Engine,
    manifest: dict[str, Any],
    before: Mapping[str, Any],
    notices: Sequence[str] = (),
    make_work: MakeWork | None = None,
) -> BatchResult:
    """Runs a session in the open `folder`, with `manifest` as its new manifest; `before` is that of
    the earlier sessions. `make_work`: see `Session`.

    Raises: as `run_batch`.
    """
    path = folder.path
    kept = SessionManifest(folder, manifest, before)
    kept.begin(plan, total=plan.total if make_work is None else before.get("total"))
    tally = Tally()
    with short_tasks(plan.options.limits.concurrency):
        try:
            ended, columns = await run_session(
                evaluator,
                plan,
                folder=folder,
                engine=engine,
                manifest=kept,
                tally=tally,
                notices=notices,
                make_work=make_work,
            )
            folder.sync()
        except BaseException as error:
            # `error` is raised even if the manifest cannot be written. There is no summary, because
            # a cancelled call has to end soon.
            with suppress(EvaluatorError, OSError):
                kept.interrupt(error, tally.ran)
            raise
        checked = None
        if make_work is None:
            checked = sign_checked(plan, folder, kept.created, ended)
        kept.end(ended, checked)
        folder.write_changed(ended.counts.explained)
        # The thresholds of a shard are those of its whole batch.
        thresholds = () if plan.options.select.shard else plan.thresholds
        measured = measured_scorers(plan.thresholds) if plan.thresholds else ()
        batch = open_batch(path)
        if (
            columns is None
            or ended.stale
            or ended.orphans
            or not columns.groups.keys() <= set(batch.cells)
        ):
            summary = batch.summarise(plan.metrics, measured)
        else:
            summary = batch.summarise_columns(columns, plan.metrics, measured)
        if plan.metrics:
            folder.write_manifest(manifest | {"metric_values": _metric_values(summary, folder)})
        folder.write_summary(summary.to_dict())
    if ended.error is not None:
        raise ended.error
    if thresholds:
        met = tuple(check_thresholds(summary, thresholds))
    else:
        met = ()
    return BatchResult(path, ended, summary=summary, thresholds=met)


def _metric_values(summary: BatchSummary, folder: BatchFolder) -> dict[str, Any]:
    """The values of metrics as the manifest stores them, with the size of the results that they
    belong to.
    """
    groups = [
        [
            group.template,
            group.variant,
            {name: value.to_dict() for name, value in group.metrics.items()},
        ]
        for group in summary.groups
    ]
    return {"bytes": folder.size, "groups": groups}


def _fit_to_machine(plan: BatchPlan) -> tuple[BatchPlan, list[str]]:
    """`plan` with a concurrency that the limit on open files allows, and notices about what was
    changed.

    Raises the soft limit as far as needed. The samples of other engines than "local" are not in
    this process.
    """
    wanted = plan.options.limits.concurrency
    options = plan.options
    fitting = fit_concurrency(wanted)
    if fitting == wanted or options.engine not in (None, "local"):
        return plan, []
    limits = replace(options.limits, concurrency=fitting)
    notice = (
        f"evaluating {amount(fitting, 'sample')} at once instead of {wanted}: this process may "
        "open no more files; for more, raise the hard limit (ulimit -Hn)"
    )
    return replace(plan, options=replace(options, limits=limits)), [notice]


def absolute(path: str | Path) -> Path:
    """`path`, independent of later changes of the current folder."""
    return Path(os.path.abspath(path))


def new_folder(name: str, shard: Shard | None = None) -> Path:
    """`batches/NAME-DATE-TIME`, with a number appended if that exists already."""
    if shard is not None:
        name = f"{name[:40]}-shard-{shard.number}-of-{shard.of}"
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "batch"
    stamp = clock.now().strftime("%Y%m%d-%H%M%S")
    path = Path(BATCHES) / f"{word}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = Path(BATCHES) / f"{word}-{stamp}-{number}"
    return path
