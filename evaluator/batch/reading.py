"""Reads a batch from its folder, also while a process works on it, or after one was killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from evaluator.batch.abandoned import still_abandoned
from evaluator.batch.calibration import (
    Grouping,
    JudgedResults,
    family_bias,
    judge_cells,
    labelled_scorer,
    length_bias,
    position_bias,
)
from evaluator.batch.decision import Decision
from evaluator.batch.folder import LABELS, BatchFolder
from evaluator.batch.identity import unfinished_reason
from evaluator.batch.labels import CurrentLabels, read_labels
from evaluator.batch.metrics import Metric, compute_metrics, stored_metrics
from evaluator.batch.records import SampleResult
from evaluator.batch.summary import (
    BatchSummary,
    Columns,
    GroupSummary,
    MetricValue,
    summarise_columns,
)
from evaluator.batch.summary.calibrated import Calibration
from evaluator.fields.records import items_of
from evaluator.lazy_dataclass import frozen


@frozen
class Declared:
    """The manifest's declarations about the results of a batch, or of some of its cells.

    `total` is how many there will be; None if unknown. `unfinished` is why the batch is not
    finished; empty if it is. `cluster` is the metadata field by which it is clustered. `scorers` is
    what determines the judgements of each scorer, by its name, `count_as_failed` which errors count
    as failed, and `limited` what a cut-off answer is; None if the manifest has none. `judges` are
    the models that a scorer asks, by its name, as far as they are known. `stopped` says at which
    look the batch stopped, if it looked at its results; else empty.
    """

    total: int | None = None
    unfinished: str = ""
    cluster: str | None = None
    scorers: Mapping[str, Mapping[str, Any]] | None = None
    count_as_failed: tuple[str, ...] | None = None
    limited: str | None = None
    judges: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    stopped: str = ""


class Results(Iterator[SampleResult]):
    """The results of a batch, one at a time, with what the manifest declares about them."""

    def __init__(self, results: Iterator[SampleResult], declared: Declared) -> None:
        self._results = results
        self.declared = declared

    def __next__(self) -> SampleResult:
        return next(self._results)


@frozen
class Batch:
    """A batch in its folder.

    `totals` is the number of results that each template and variant will have; None if unknown, as
    for rows from an iterator that was not read to its end.
    """

    folder: Path
    manifest: Mapping[str, Any]
    totals: Mapping[tuple[str, str], int] | None

    @property
    def name(self) -> str:
        return self.manifest.get("name") or self.folder.name

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The templates and variants of the last session."""
        return [(cell["template"], cell["variant"]) for cell in self.manifest.get("cells", [])]

    @property
    def cluster(self) -> str | None:
        """The metadata field whose values cluster the batch's standard errors; None if there is
        none.
        """
        return self.manifest.get("cluster") or None

    def results(self, cell: tuple[str, str] | None = None) -> Results:
        """The current results of the last session's cells, or of one of them, one at a time;
        without results of rows that the last session did not have, and without results whose
        question has changed.

        Raises: RecordError, if a line of the results was changed.
        """
        if cell is None:
            cells = set(self.cells)
        else:
            cells = {cell}
        is_left_out = self._left_out(cells)
        found = (
            result
            for result in BatchFolder.reader(self.folder).results()
            if not is_left_out(result)
        )
        return Results(found, self._declared(cells))

    def _declared(self, cells: set[tuple[str, str]]) -> Declared:
        manifest = self.manifest
        handlers = self._handlers(cells)
        scorers = manifest.get("scorers")
        reasons = manifest.get("count_as_failed")
        decision = self.decision
        stopped = ""
        if decision is not None and decision.design.looks > 1:
            stopped = decision.status
        return Declared(
            None if self.totals is None else sum(self.totals.get(cell, 0) for cell in cells),
            unfinished_reason(manifest),
            cluster=self.cluster,
            scorers=None
            if scorers is None
            else {name: _with_handlers(part, handlers) for name, part in scorers.items()},
            count_as_failed=None if reasons is None else tuple(reasons),
            limited=manifest.get("limited"),
            judges=self._judges(handlers),
            stopped=stopped,
        )

    def _handlers(self, cells: Collection[tuple[str, str]]) -> set[str]:
        """The handler profiles of cells; "" if none is named."""
        return {
            cell.get("handler") or ""
            for cell in self.manifest.get("cells", [])
            if (cell["template"], cell["variant"]) in cells
        }

    def _judges(self, handlers: set[str]) -> dict[str, list[str]]:
        """The models that each scorer asks under these handlers."""
        found: dict[str, list[str]] = {}
        for name, by_handler in self.manifest.get("judges", {}).items():
            roles = [by_handler.get(handler, {}) for handler in handlers]
            found[name] = sorted(
                {model for each in roles for models in each.values() for model in models}
            )
        return found

    def _left_out(self, cells: set[tuple[str, str]]) -> Callable[[SampleResult], bool]:
        keys = set(self.manifest.get("left_out", []))
        return lambda result: (
            (result.template, result.variant) not in cells or (bool(keys) and result.key in keys)
        )

    def is_left_out(self) -> Callable[[str, str, str], bool]:
        """A function of a result's template, variant and key: whether `results` leaves it out."""
        cells = set(self.cells)
        keys = set(self.manifest.get("left_out", []))
        return lambda template, variant, key: (template, variant) not in cells or key in keys

    def summarise(
        self, metrics: Sequence[Metric] | None = None, measured: Collection[str] = ()
    ) -> BatchSummary:
        """The numbers as they are now. Raises: as `results`.

        `metrics` are computed with it; None: those of the manifest. Their functions are not run:
        they have the values that the last session computed, if the results are still the same.
        Scorers with labels have their corrected numbers; so have those in `measured`, by the labels
        of the only other scorer that has some.
        """
        columns = Columns(self.manifest.get("cluster"), self.manifest.get("group_by"))
        is_left_out = self.is_left_out()

        def add(result: Mapping[str, Any]) -> None:
            if is_left_out(result["template"], result["variant"], result["key"]):
                columns.leave_out(result)
            else:
                columns.add(result)

        BatchFolder.reader(self.folder).give_lines(add)
        return self.summarise_columns(columns, metrics, measured)

    def summarise_columns(
        self,
        columns: Columns,
        metrics: Sequence[Metric] | None = None,
        measured: Collection[str] = (),
    ) -> BatchSummary:
        """As `summarise`, of the results in `columns`, which are all of the batch that count."""
        manifest = self.manifest
        abandoned = items_of(manifest.get("abandoned"))
        for run in still_abandoned(abandoned, BatchFolder.reader(self.folder)):
            columns.abandon(run)
        summary = summarise_columns(
            columns,
            total=self.totals,
            cluster=manifest.get("cluster"),
            group_by=manifest.get("group_by"),
            reducers=manifest.get("reducers"),
            unfinished=unfinished_reason(manifest),
        )
        labelled: list[str] = []
        calibrations: dict[tuple[str, str], dict[str, Calibration]] = {}
        if os.path.lexists(self.folder / LABELS):
            labelled = self.labels().scorers
            calibrations = self.calibrations()
            for scorer in measured if len(labelled) == 1 else ():
                for cell, found in self.calibrations(scorer).items():
                    calibrations[cell] |= found
        has_metrics = bool(self.manifest.get("metrics") if metrics is None else metrics)
        groups: list[GroupSummary] = []
        for group in summary.groups:
            cell = (group.template, group.variant)
            if has_metrics:
                values = self._metrics(cell, group.part.counts.total, metrics)
                group = replace(group, metrics=values)
            if cell in calibrations:
                group = replace(group, calibrations=calibrations[cell])
            groups.append(group)
        decision = self.decision
        notes = [*summary.notes, *self._notes_on_judges(labelled)]
        if decision is not None:
            notes.insert(len(summary.notes), decision.status)
        return replace(summary, decision=decision, notes=tuple(notes), groups=tuple(groups))

    @property
    def decision(self) -> Decision | None:
        """What the batch had to decide. Raises: RecordError, if its record is damaged."""
        if self.manifest.get("decision") is None:
            return None
        return Decision.of(self.manifest)

    def labels(self) -> CurrentLabels:
        """The labels of people that count. Raises: RecordError, for damaged labels."""
        return CurrentLabels(read_labels(self.folder))

    def calibrations(
        self, scorer: str | None = None
    ) -> dict[tuple[str, str], dict[str, Calibration]]:
        """Scorers measured against the labels of people, by template and variant and by scorer.

        `scorer` None: each scorer with labels. A scorer without labels of its own is measured
        against those of the only other one with labels. Scorers that judged nothing are left out.
        Raises: UsageError, if `scorer` has no labels and several others have; RecordError, for
        damaged results or labels.
        """
        labels = self.labels()
        if scorer is None:
            scorers = {name: name for name in labels.scorers}
        else:
            scorers = {scorer: labelled_scorer(scorer, labels)}
        if not scorers:
            return {}
        has_groups = bool(self.manifest.get("group_by"))
        judged_cells = judged_results(self, scorers, labels)
        families = {
            name: family_bias([cell[name] for cell in judged_cells.values() if name in cell])
            for name in scorers
        }
        calibrations: dict[tuple[str, str], dict[str, Calibration]] = {}
        for cell, found in judged_cells.items():
            calibrations[cell] = {}
            for name, judged in found.items():
                if len(judged):
                    bias = (length_bias(judged), position_bias(judged), families[name])
                    calibrations[cell][name] = replace(
                        judged.calibration(has_groups=has_groups),
                        bias=tuple(each for each in bias if each is not None),
                    )
        return calibrations

    def _notes_on_judges(self, labelled: Collection[str]) -> Iterator[str]:
        """Which numbers are those of a model, and which labels are not used; `labelled` are the
        scorers with labels.
        """
        for scorer, models in self._judges(self._handlers(self.cells)).items():
            if models and scorer not in labelled:
                yield (
                    f"{scorer}: a model judged ({', '.join(models)}), and no answer is labelled by "
                    "a person, so it is unknown how often the judge is wrong"
                )
        scorers = self.manifest.get("scorers")
        for scorer in labelled:
            if scorers is not None and scorer not in scorers:
                yield (
                    f"the labels for the scorer {scorer} are not used here, as the batch has no "
                    "such scorer; evaluator calibrate measures another one against them"
                )

    def metrics_of(self, cell: tuple[str, str]) -> Mapping[str, MetricValue]:
        """The metrics of a template and variant, as `summarise` has them."""
        if not self.manifest.get("metrics"):
            return {}
        if self.totals is None:
            of = None
        else:
            of = self.totals.get(cell)
        return self._metrics(cell, sum(1 for _ in self.results(cell)) if of is None else of)

    def _metrics(
        self, cell: tuple[str, str], of: int, metrics: Sequence[Metric] | None = None
    ) -> Mapping[str, MetricValue]:
        manifest = self.manifest
        if metrics is None:
            known = manifest.get("metric_values") or {}
            is_current = known.get("bytes") == BatchFolder.reader(self.folder).size
            if is_current:
                groups = known.get("groups", ())
            else:
                groups = ()
            stored = {(template, variant): values for template, variant, values in groups}
            metrics = stored_metrics(manifest.get("metrics") or (), stored.get(cell, {}))
        return compute_metrics(metrics, lambda: self.results(cell), of=of)


def open_batch(folder: str | Path) -> Batch:
    """The batch in `folder`.

    Raises: RecordError, if there is no batch or it cannot be read.
    """
    path = Path(folder)
    manifest = BatchFolder.reader(path).manifest()
    batch = Batch(path, manifest, totals=None)
    total = manifest.get("total")
    cells = batch.cells
    decision = batch.decision
    if decision is not None:
        epochs = decision.design.epochs
        return replace(batch, totals={cell: epochs * decision.rows_of(*cell) for cell in cells})
    if isinstance(total, int) and cells:
        return replace(batch, totals=dict.fromkeys(cells, total // len(cells)))
    return batch


def judged_results(
    batch: Batch, scorers: Mapping[str, str], labels: CurrentLabels
) -> dict[tuple[str, str], dict[str, JudgedResults]]:
    """The current results of each template and variant by scorer, with their labels (see
    `judge_cells`). Raises: as `Batch.results`.
    """
    grouping = Grouping(batch.cluster, batch.manifest.get("group_by"))
    return judge_cells(batch.results(), labels, scorers, grouping=grouping)


def _with_handlers(part: Mapping[str, Any], handlers: set[str]) -> Mapping[str, Any]:
    """A scorer in the manifest, with only the judges under `handlers`."""
    judges = part.get("judges")
    if judges is None:
        return part
    return {**part, "judges": sorted({judges.get(name, "") for name in handlers})}
