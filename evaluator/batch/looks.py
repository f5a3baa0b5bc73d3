"""Takes the looks of a batch: tests its results when all rows of a look have one, and decides
whether the batch continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from evaluator.batch.decision import Decision, LookResult, cell_name
from evaluator.batch.design import VALUES, PlannedDecision, value_of
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import Cell, key_of
from evaluator.batch.result_index import ResultEntry
from evaluator.batch.statistics import Dropped, mean_difference, race, signed_z
from evaluator.errors.messages import amount

LEAST_ANYTIME = 30
"""The interval that is valid at any time is asymptotic: with fewer rows it is not used."""


class Looks:
    """The looks of one session. `record` is called with each decision before the batch continues.

    `cells` are the templates and variants of the batch, each evaluated `epochs` times.
    """

    def __init__(
        self,
        planned: PlannedDecision,
        cells: Sequence[Cell],
        folder: BatchFolder,
        record: Callable[[Decision], None],
    ) -> None:
        self.decision = planned.decision
        self._planned = planned
        self._cells = cells
        self._folder = folder
        self._record = record

    def cells_at(self, look: int) -> list[Cell]:
        """The cells that are evaluated for a look, counted from 0."""
        dropped = self.decision.dropped(look)
        return [
            cell for cell in self._cells if cell_name(cell.template, cell.variant) not in dropped
        ]

    @property
    def total(self) -> int:
        """How many results the batch will have, as far as it is decided."""
        rows = (self.decision.rows_of(cell.template, cell.variant) for cell in self._cells)
        return sum(rows) * self.decision.design.epochs

    def take(self, left_out: Collection[str]) -> str:
        """Takes the next look. Results with a key in `left_out` do not count.

        Returns: why it cannot be taken; empty, if it was.
        """
        design = self.decision.design
        number = len(self.decision.looks) + 1
        index = self._folder.index()
        rows = [row for row, look in self._planned.look_of.items() if look < number]
        columns: dict[str, list[float | None]] = {}
        missing = 0
        for cell in self.cells_at(number - 1):
            column: list[float | None] = []
            for row in rows:
                keys = (
                    key_of(row, epoch, template=cell.template, variant=cell.variant)
                    for epoch in range(1, design.epochs + 1)
                )
                entries = [index[key] for key in keys if key in index and key not in left_out]
                missing += design.epochs - len(entries)
                values = self._values(entries)
                column.append(fmean(values) if values else None)
            columns[cell_name(cell.template, cell.variant)] = column
        if missing:
            return (
                f"look {number} of {design.looks} waits for {amount(missing, 'result')}, such as "
                "those whose question has changed"
            )
        clusters = self._planned.clusters
        groups = None
        if clusters is not None:
            groups = [clusters[row] for row in rows]
        if design.method == "race":
            look = self._race(number, len(rows), columns, groups)
        else:
            (column,) = columns.values()
            look = self._test(number, rows, column, groups)
        self.decision = replace(self.decision, looks=(*self.decision.looks, look))
        self._record(self.decision)
        return ""

    def _values(self, entries: Sequence[ResultEntry]) -> list[float]:
        """What is compared of results, without those that have no value."""
        measure = self.decision.design.measure
        if measure is None:
            return [VALUES[each.verdict] for each in entries if each.verdict in VALUES]
        values = (value_of(self._folder.read_at(each.offset), measure) for each in entries)
        return [value for value in values if value is not None]

    def _test(
        self,
        number: int,
        rows: Sequence[str],
        column: Sequence[float | None],
        groups: Sequence[str] | None,
    ) -> LookResult:
        design = self.decision.design
        baseline = self._planned.baseline
        paired = [place for place, value in enumerate(column) if value is not None]
        differences = [(column[place] or 0.0) - baseline[rows[place]] for place in paired]
        clusters = None
        if groups is not None:
            clusters = [groups[place] for place in paired]
        is_last = number == design.looks
        # Of the looks that could test, and of this one.
        times = [look.time for look in self.decision.looks if look.efficacy is not None]
        times.append(len(paired) / design.rows)
        found = mean_difference(differences, clusters)
        z = signed_z(differences, clusters)
        look = LookResult(
            number,
            len(rows),
            pairs=len(paired),
            time=times[-1],
            verdict="none shown" if is_last else "continue",
            difference=found.mean,
        )
        is_too_early = design.method == "anytime" and len(paired) < LEAST_ANYTIME
        grows = len(times) < 2 or times[-1] > times[-2]
        if z is None or is_too_early or not grows:
            return look
        rule = design.rule
        boundary = rule.boundaries(times)[-1]
        look = replace(look, z=z, efficacy=boundary.efficacy, futility=boundary.futility)
        if abs(z) >= boundary.efficacy:
            look = replace(look, verdict="shown")
        elif not is_last and abs(z) < boundary.futility:
            look = replace(look, verdict="futile")
        if look.verdict == "continue" and design.method != "anytime":
            return look
        stopped = rule.after_stopping(times, z)
        if not found.se or not z:
            return replace(look, p=stopped.p)
        if found.mean is None:
            error = found.se
        else:
            error = found.mean / z
        return replace(look, p=stopped.p, low=stopped.low * error, high=stopped.high * error)

    def _race(
        self,
        number: int,
        rows: int,
        columns: Mapping[str, Sequence[float | None]],
        groups: Sequence[str] | None,
    ) -> LookResult:
        design = self.decision.design
        complete = sum(None not in values for values in zip(*columns.values(), strict=True))
        # A look without further rows, such as one that a large cluster has filled, tests nothing.
        earlier = sorted({look.time for look in self.decision.looks})
        times = [*earlier, rows / design.rows]
        dropped: list[Dropped] = []
        if not earlier or times[-1] > earlier[-1]:
            dropped = race(
                columns,
                times,
                looks=design.looks,
                variants=design.variants,
                clusters=groups,
                alpha=design.alpha,
            )
        left = len(columns) - len(dropped)
        verdict = "continue"
        if left == 1:
            verdict = "decided"
        elif number == design.looks:
            verdict = "ended"
        return LookResult(
            number,
            rows,
            pairs=complete,
            time=times[-1],
            verdict=verdict,
            dropped=tuple(dropped),
            left=left,
        )
