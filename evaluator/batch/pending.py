"""The work left in a batch: rows x templates x variants x epochs, without what an earlier session
has done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter
from typing import Any, ClassVar

from evaluator.batch.abandoned import uncounted_runs
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import Cell, Identity, changed_parts, changed_settings, digest
from evaluator.batch.options import OnChanged
from evaluator.batch.records import Sample, SampleResult, Score, Verdict
from evaluator.batch.result_index import EarlierResults, ResultEntry, ResultIndex
from evaluator.batch.rows.checked_samples import SLICE, PackedSamples
from evaluator.batch.work import sample_label
from evaluator.batch.work_items import Variant, WorkItem, scored_by
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.record.store import TaskStore

MAX_EXPLAINED = 100_000
_MISSING = object()


@frozen
class Changed:
    """A sample whose question has changed since it was answered, and what has changed."""

    sample_id: str
    epoch: int
    template: str
    variant: str
    what: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.sample_id} (epoch {self.epoch}, {self.template}, {self.variant})"
        return f"{where}: changed {', '.join(self.what)}"


@dataclass(slots=True)
class Counts:
    """Counts of the samples of the rows read so far.

    `done`: have a result that stays. `judged_anew`: get new scores, without a call. `retried`:
    ended with an error and run again. `changed`: have a result whose question has changed;
    `explained` has the first MAX_EXPLAINED of them.
    """

    rows: int = 0
    samples: int = 0
    done: int = 0
    judged_anew: int = 0
    retried: int = 0
    changed: int = 0
    explained: list[Changed] = field(default_factory=list[Changed])


@dataclass(slots=True)
class PendingWork:
    """The work that is left, row by row.

    `earlier` is the index of existing results by key. Keys are removed as their rows are read; in
    the end those are left that no row asks for. An existing result stays, except in three cases:

    - It is an error, and `retry_errors` is set.
    - The scorers, the target or the metadata have changed: it is judged again, without a model
      call. Scores of the same scorer (`versions`) for the same target and metadata stay.
    - Its question has changed. `on_changed` says whether it is "run" again, "keep"s its place, or
      is "leave"d out: neither run nor counted. `stale` has the keys of the last kind.

    `on_kept` is called for each result that stays. `settings` are the settings of handlers by their
    hash, now and in earlier sessions, as far as they are known (see `storable_settings`). With
    `is_counted`, `counts.samples` is known before the rows are read.
    """

    is_counted: ClassVar[bool] = False

    cells: Sequence[tuple[Cell, Variant]]
    epochs: int
    earlier: EarlierResults
    read_result: Callable[[int], SampleResult]
    on_kept: Callable[[Verdict], None]
    scoring_part: str
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    retry_errors: bool = False
    on_changed: OnChanged = "leave"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    counts: Counts = field(default_factory=Counts)
    stale: set[str] = field(default_factory=set[str])

    async def work(
        self, slices: AsyncIterator[Sequence[Sample]]
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        """The work that is left in slices of the rows, as far as there is any; not more at once
        than a row or SLICE have. Raises: what reading the rows raises.
        """
        most = max(1, SLICE // max(1, self.epochs * len(self.cells)))
        async for samples in slices:
            for start in range(0, len(samples), most):
                part = samples[start : start + most]
                if self.earlier:
                    works = [work for sample in part for work in self._work_of(sample)]
                else:
                    works = self._new_work(part)
                if works:
                    yield works

    def _new_work(self, samples: Sequence[Sample]) -> list[WorkItem]:
        """All work of samples that no earlier result can belong to."""
        given = samples.packed if isinstance(samples, PackedSamples) else samples
        epochs = range(1, self.epochs + 1)
        works = [
            WorkItem.of(sample, epoch, cell=cell, variant=variant, scoring_part=self.scoring_part)
            for sample in given
            for epoch in epochs
            for cell, variant in self.cells
        ]
        self.counts.rows += len(given)
        self.counts.samples += len(works)
        return works

    def _work_of(self, sample: Sample) -> list[WorkItem]:
        counts = self.counts
        counts.rows += 1
        judged_by = scored_by(self.scoring_part, sample)
        # Of one work only, it is left to the process that evaluates.
        inputs_part = ""
        if self.epochs * len(self.cells) > 1:
            inputs_part = digest(sample.inputs)
        left: list[WorkItem] = []
        for epoch in range(1, self.epochs + 1):
            for cell, variant in self.cells:
                counts.samples += 1
                identity = Identity.of(cell, sample, epoch, inputs_part)
                entry = self.earlier.pop(identity.key, None)
                if entry is not None and self._stays(entry, identity, judged_by):
                    counts.done += 1
                    self.on_kept(entry.verdict)
                    continue
                work = WorkItem(
                    sample,
                    epoch,
                    cell=cell,
                    variant=variant,
                    identity=identity,
                    scored_by=judged_by,
                    scoring_part=self.scoring_part,
                )
                if entry is None:
                    left.append(work)
                elif (again := self._work_again(entry, work)) is not None:
                    left.append(again)
        return left

    def _stays(self, entry: ResultEntry, identity: Identity, judged_by: str) -> bool:
        """Whether the question and the scoring of a result are those of now, and it is no error to
        run again.
        """
        return (
            entry.identity == identity.value.encode()
            and entry.scored_by == judged_by.encode()
            and not (self.retry_errors and entry.verdict is Verdict.ERROR)
        )

    def _work_again(self, entry: ResultEntry, work: WorkItem) -> WorkItem | None:
        """The work that is left for a sample with a result that does not stay."""
        counts = self.counts
        if entry.identity != work.identity.value.encode():
            counts.changed += 1
            if len(counts.explained) < MAX_EXPLAINED:
                counts.explained.append(self._explain(self.read_result(entry.offset), work))
            if self.on_changed == "run":
                return work
            if self.on_changed == "leave":
                self.stale.add(work.identity.key)
            else:
                self.on_kept(entry.verdict)
            return None
        if entry.verdict is Verdict.ERROR and self.retry_errors:
            counts.retried += 1
            result = self.read_result(entry.offset)
            # A failed transfer is repeated inside its task, and a failed judge needs no new answer.
            # Any other failure would only repeat itself, so that task starts again.
            if result.failure is None:
                keeps = self._scores_to_keep(result, work.sample)
                return replace(work, answered=result, keeps=keeps)
            if entry.retryable:
                return replace(work, resumes=result.task_id)
            return replace(work, retry_of=result.task_id)
        counts.judged_anew += 1
        result = self.read_result(entry.offset)
        keeps = self._scores_to_keep(result, work.sample)
        return replace(work, answered=result, keeps=keeps)

    def _scores_to_keep(self, result: SampleResult, sample: Sample) -> dict[str, Score]:
        if (result.target, result.metadata) != (sample.target, sample.metadata):
            return {}
        return {
            name: score
            for name, score in result.scores.items()
            if score.error is None and score.version == self.versions.get(name)
        }

    def _explain(self, result: SampleResult, work: WorkItem) -> Changed:
        what: list[str] = []
        for part in changed_parts(result.parts, work.identity.parts):
            if part == "inputs":
                now = work.sample.inputs
                what += [
                    f"input {name!r}"
                    for name in {**result.inputs, **now}
                    if result.inputs.get(name, _MISSING) != now.get(name, _MISSING)
                ]
            elif part == "handler":
                what += self._changed_settings(
                    result.parts.get("handler", ""), work.cell.handler_part
                )
            else:
                what.append(f"template {work.cell.template!r}" if part == "template" else part)
        return Changed(
            result.sample_id,
            result.epoch,
            template=result.template,
            variant=result.variant,
            what=tuple(what or ["the format"]),
        )

    def _changed_settings(self, was: str, now: str) -> list[str]:
        before = self.settings.get(was)
        after = self.settings.get(now)
        if before is None or after is None:
            found = []
        else:
            found = changed_settings(before, after)
        return found or ["model or handler"]


class CompleteWork(PendingWork):
    """No work: every result stays. An earlier session has compared all of them with the rows."""

    __slots__ = ()
    is_counted: ClassVar[bool] = True

    @classmethod
    def of(
        cls, folder: BatchFolder, earlier: ResultIndex, on_kept: Callable[[Verdict], None]
    ) -> CompleteWork:
        for verdict in earlier.verdicts():
            on_kept(verdict)
        return cls(
            (),
            1,
            earlier={},
            read_result=folder.read_at,
            on_kept=on_kept,
            scoring_part="",
            counts=Counts(samples=len(earlier), done=len(earlier)),
        )

    async def work(
        self, slices: AsyncIterator[Sequence[Sample]]
    ) -> AsyncGenerator[Sequence[WorkItem]]:
        for works in ():
            yield works


MakeWork = Callable[[BatchFolder, ResultIndex, Callable[[Verdict], None]], PendingWork]
"""Makes the work of a session from the folder, the index of its results, and `on_kept`."""


@frozen
class UnrecordedRuns:
    """Task files of samples and of their judges that no result counts, or not all of it: the label
    and the id of each in `runs`, in the order of the ids. `ended`: those that a later session may
    not find again. `newest`: those that a session continues, by label. `counted`: completed ones
    that results count, whose answers are asked for again, as where a row, a template or the scorers
    are again what they were before.
    """

    runs: Sequence[tuple[str, int]] = ()
    ended: Sequence[tuple[str, int]] = ()
    newest: dict[str, int] = field(default_factory=dict[str, int])
    counted: dict[str, int] = field(default_factory=dict[str, int])


def find_unrecorded(
    store: TaskStore,
    earlier: ResultIndex,
    folder: BatchFolder,
    before: Iterable[tuple[str, int]] = (),
) -> UnrecordedRuns:
    """For a sample that ended with an error, also those of a further try. One that has failed is
    not continued. `before` were found by an earlier session.
    """
    recorded = earlier.by_identity()
    before = list(before)
    found: list[tuple[str, int]] = []
    ended = {task_id for _, task_id in before}
    # A loss of power may take a task, and give its id to another one.
    gone = {task_id: label for label, task_id in before}
    failed: set[int] = set()
    completed: dict[str, int] = {}
    for task_id, status, labels in store.labelled():
        label = sample_label(labels)
        was_found = gone.pop(task_id, "") == label
        if not label:
            continue
        identity, is_judge, rest = label.partition("/")
        entry = recorded(identity)
        is_error = entry is not None and entry.verdict is Verdict.ERROR
        is_of_others = entry is None or (
            bool(is_judge) and entry.scored_by.decode() != rest.partition("/")[0]
        )
        has_ended = status in ("completed", "failed")
        # Of most samples the index says enough.
        if is_of_others or is_error or not has_ended:
            found.append((label, task_id))
            if has_ended:
                ended.add(task_id)
            if is_error and status == "failed":
                failed.add(task_id)
            # An error is judged again by its own scorers.
            if status == "completed" and (is_of_others or not is_judge):
                completed[label] = max(task_id, completed.get(label, 0))
        elif was_found:
            found.append((label, task_id))
    found += [(label, task_id) for task_id, label in gone.items()]
    runs = sorted(set(found), key=itemgetter(1))
    runs = [(label, task_id) for label, task_id, _ in uncounted_runs(store, runs, folder)]
    newest = {label: task for label, task in runs if task not in gone and task not in failed}
    uncounted = {task for _, task in runs}
    counted = {
        label: task
        for label, task in completed.items()
        if label not in newest and task not in uncounted
    }
    return UnrecordedRuns(
        runs, [run for run in runs if run[1] in ended], newest=newest, counted=counted
    )
