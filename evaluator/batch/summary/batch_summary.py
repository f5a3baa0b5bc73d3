"""The summary of a batch: its numbers as values, as JSON, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from evaluator.batch.summary.group_tables import (
    cost_line,
    duration_line,
    group_tables,
    outcome_table,
    spending_lines,
)
from evaluator.batch.summary.parts import (
    ErrorKind,
    GroupSummary,
    Percentiles,
    Spending,
    VerdictCounts,
)
from evaluator.batch.summary.tables import Table, Tabular
from evaluator.fields import JsonForm, Key, to_dict

VERSION = 1


@dataclass(frozen=True, slots=True)
class BatchSummary(Tabular, JsonForm):
    """A whole batch. `counts`, `spending`, `durations` and `errors` cover all groups; `samples`
    have a result.

    `replaced` earlier results were replaced by later ones of the same sample (retries), and
    `left_out` results are not part of what the batch asks for now; what they used is only in
    `replaced_spending`. `unfinished` is why the batch is not complete although its counts may look
    complete; empty without such a reason. `notes` are what a reader of the numbers has to know.
    `with_cluster` results have the field `cluster`, `with_group_by` the field `group_by`; None
    where no field is named. Where no result has the field `cluster`, shares and means have no
    interval.

    `str` gives the text for a terminal, `to_text(width)` for another width, `to_markdown()` the
    Markdown that a notebook shows. The JSON is version 1: keys may be added without a new version,
    and none changes its meaning.
    """

    unfinished: str = field(default="", kw_only=True)
    counts: VerdictCounts
    samples: int
    epochs: int
    groups: tuple[GroupSummary, ...]
    spending: Spending
    durations: Annotated[Percentiles, Key("duration_s")]
    errors: tuple[ErrorKind, ...]
    replaced: int = 0
    left_out: int = 0
    replaced_spending: Spending | None = None
    cluster: str | None = None
    group_by: str | None = None
    with_cluster: int | None = None
    with_group_by: int | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if len(self.groups) != 1:
            groups = f"{len(self.groups):,} templates × variants"
        else:
            groups = repr(self.groups[0].name)
        return (
            f"<BatchSummary of {groups}: {self.counts}{'' if self.complete else ', not complete'}>"
        )

    @property
    def complete(self) -> bool:
        """Whether nothing is pending and nothing says that the batch is unfinished."""
        return self.counts.pending == 0 and not self.unfinished

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "complete": self.complete, **to_dict(self)}

    def tables(self) -> Iterable[Table]:
        yield Table("Batch", lines=list(self._lines()))
        if self.groups:
            parts = {group.name: group.part for group in self.groups}
            yield outcome_table("Passed, of the judged results", parts, first="template × variant")
        for group in self.groups:
            yield from group_tables(group, self.group_by or "", shows_spending=len(self.groups) > 1)
        if self.errors:
            rows = [[error.kind, f"{error.count:,}", error.example] for error in self.errors]
            yield Table("Errors", ["kind", "results", "example"], rows=rows)

    def _lines(self) -> Iterable[str]:
        counts = self.counts
        if counts.pending is None:
            results = f"{counts.results:,} results (total unknown)"
        else:
            results = f"{counts.results:,} of {counts.total:,} results"
        so_far = "" if counts.pending == 0 else " so far"
        yield (
            f"{results}, of {self.samples:,} samples{so_far}: {counts.passed:,} passed, "
            f"{counts.failed:,} failed, {counts.error:,} error, {counts.unscored:,} unscored"
        )
        yield from self.notes
        yield from spending_lines(self.spending)
        if self.replaced_spending is not None:
            yield f"earlier runs, in addition: {cost_line(self.replaced_spending)}"
        yield duration_line(self.durations)
        if self.with_cluster == 0 and counts.results:
            yield (
                f"no result has the cluster field {self.cluster!r}: shares and means have no "
                "intervals"
            )
        else:
            yield "intervals are at 95 %" + (
                f", with clusters by {self.cluster}" if self.cluster else ""
            )
