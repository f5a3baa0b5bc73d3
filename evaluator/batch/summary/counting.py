"""Results counted into a summary: one pass over them, then the numbers from columns."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import TypeAlias

from evaluator.batch.fields import nearest_field
from evaluator.batch.records import SampleResult
from evaluator.batch.statistics import (
    FEW_CLUSTERS,
    Estimate,
    Reducer,
    Variance,
    percentiles,
    proportion_interval,
    reducer,
    score_interval,
    variance,
)
from evaluator.batch.summary.agreeing import scorers_agreement, votes_agreement
from evaluator.batch.summary.columns import (
    ABSENT,
    FAULTY,
    MAX_LABELS,
    NONE,
    UNSCORED,
    VALUED,
    VERDICTS,
    Columns,
    ScorerColumns,
)
from evaluator.batch.summary.shape import (
    Accuracy,
    BatchSummary,
    Confusion,
    Counts,
    ErrorKind,
    GroupSummary,
    Judges,
    Part,
    Percentiles,
    Reduced,
    ScorerSummary,
)
from evaluator.errors import UsageError

Rows: TypeAlias = "array[int]"
_PASSED, _FAILED, _ERROR, _UNSCORED = range(len(VERDICTS))
_WITHOUT = "(none)"
# A target that hardly ever comes again is an answer, and not a label.
_LEAST_PER_LABEL = 2


def summarise(
    results: Iterable[SampleResult],
    *,
    total: int | Mapping[tuple[str, str], int] | None = None,
    cluster: str | None = None,
    group_by: str | None = None,
    reducers: Sequence[str] | None = None,
    unfinished: str = "",
    left_out: Callable[[SampleResult], bool] | None = None,
) -> BatchSummary:
    """The summary of `results`, read once and none kept: 100,000 take about 20 MB.

    Of several results for one (template, variant, sample, epoch) the last one counts, so every line that was ever
    written can be handed over, in order; the others are `replaced`, and what they used is in `replaced_spending`: of
    one task that was only scored anew what judging it used, of others everything. Results for which `left_out` is true
    count in nothing else either.

    `total` is how many results there will be, or how many for each (template, variant), which says it for groups
    without a result too, and in which order groups come; else they are ordered by name. What of it is not here is
    pending. A plain number goes to a group only where there is one group. None: nobody knows; the numbers are of what
    is here, and the batch is not `complete`, nor is one that is `unfinished`, a reason in words. Who has all results
    in hand says so with their number.

    `cluster` and `group_by` name metadata fields. Results that share a value of `cluster` are not taken as
    independent, and neither are a sample's epochs; a result without that field belongs with its sample. Where none has
    it, nobody knows what belongs together: shares and means have no interval. Results without `group_by` are the group
    `(none)`; a text that reads so stands in quotes. `reducers` are names for `statistics.reducer`; None: mean, where a
    sample has several epochs.

    Raises: UsageError, for an unknown reducer, a `group_by` with more than 1,000 values, or more results than `total`.
    """
    wanted = None if reducers is None else [reducer(name) for name in reducers]
    columns = Columns(cluster, group_by)
    for result in results:
        if left_out is not None and left_out(result):
            columns.leave_out(result)
        else:
            columns.add(result)
    columns.close()
    totals = _totals(total, columns)
    for key in totals:
        columns.groups.setdefault(key, len(columns.groups))
    order = totals if isinstance(total, Mapping) else sorted(columns.groups)
    rows_of = [array("i") for _ in columns.groups]
    for row, group in enumerate(columns.group):
        rows_of[group].append(row)
    made = [_Group(columns, rows_of[columns.groups[key]], totals.get(key)) for key in order]
    groups = tuple(group.summary(key, wanted) for key, group in zip(order, made, strict=True))
    everything = array("i", range(len(columns)))
    counts = _counts(columns, everything, _pending(total, columns))
    return BatchSummary(
        counts,
        groups,
        columns.sample_count,
        max((group.epochs for group in groups), default=0),
        columns.spending(everything),
        _durations(columns, everything),
        _errors(columns, everything),
        columns.replaced_count,
        columns.replaced_spending(),
        cluster,
        group_by,
        tuple(_notes(columns, counts, cluster, group_by, unfinished, made)),
        columns.left_out_count,
        unfinished,
        _known(columns.clusters),
        _known(columns.parts),
    )


def _totals(total: int | Mapping[tuple[str, str], int] | None, columns: Columns) -> dict[tuple[str, str], int]:
    if isinstance(total, Mapping):
        if unexpected := [key for key in columns.groups if key not in total]:
            raise UsageError(f"there are results of {unexpected[0]}, of which the total says nothing")
        return dict(total)
    if total is not None and len(columns.groups) == 1:
        return dict.fromkeys(columns.groups, total)
    return {}


def _pending(total: int | Mapping[tuple[str, str], int] | None, columns: Columns) -> int | None:
    if total is None:
        return None
    return _left(sum(total.values()) if isinstance(total, Mapping) else total, len(columns))


def _left(total: int, results: int) -> int:
    if results > total:
        raise UsageError(f"{results:,} results where there should be {total:,} in all")
    return total - results


class _Group:
    """The rows of one template and variant."""

    def __init__(self, columns: Columns, rows: Rows, total: int | None) -> None:
        self.columns, self.rows = columns, rows
        self.pending = None if total is None else _left(total, len(rows))
        epochs = array("i", bytes(4 * columns.sample_count))
        for row in rows:
            epochs[columns.sample[row]] += 1
        self.samples, self.epochs = sum(map(bool, epochs)), max(epochs, default=0)

    def summary(self, key: tuple[str, str], wanted: list[Reducer] | None) -> GroupSummary:
        columns, rows = self.columns, self.rows
        if wanted is None:
            wanted = [reducer("mean")] if self.epochs > 1 else []
        tokens = columns.tokens["output_tokens"]
        return GroupSummary(
            *key,
            self.part(rows, self.pending),
            {value: self.part(part, None) for value, part in self.parts().items()},
            self.samples,
            self.epochs,
            tuple(self.reduced(wanted)) if wanted else (),
            self.variances() if self.epochs > 1 else {},
            columns.spending(rows),
            _durations(columns, rows),
            _percentiles(array("d", (tokens[row] for row in rows if tokens[row] != NONE))),
            _errors(columns, rows),
            dict(self.confusions()),
            tuple(self.agreements()),
        )

    def part(self, rows: Rows, pending: int | None) -> Part:
        columns = self.columns
        counts = _counts(columns, rows, pending)
        judged = array("i", (row for row in rows if columns.verdict[row] in (_PASSED, _FAILED)))
        values = array("d", (columns.verdict[row] == _PASSED for row in judged))
        results = counts.results
        accuracy = Accuracy(
            self.as_sure(proportion_interval(values, self.clusters(judged))),
            counts.passed,
            counts.judged,
            counts.total,
            counts.passed / results if results else None,
            (results - counts.failed) / results if results else None,
        )
        return Part(counts, accuracy, {name: self.scorer(scorer, rows) for name, scorer in columns.scorers.items()})

    def scorer(self, scorer: ScorerColumns, rows: Rows) -> ScorerSummary:
        states = Counter(scorer.state[row] if row < len(scorer.state) else ABSENT for row in rows)
        valued = array("i", (row for row in rows if row < len(scorer.state) and scorer.state[row] == VALUED))
        judged = array("i", (row for row in rows if row < len(scorer.state) and scorer.passed[row] != NONE))
        passes = array("d", (scorer.passed[row] for row in judged))
        passed = int(sum(passes))
        return ScorerSummary(
            states[VALUED],
            len(rows),
            states[FAULTY],
            states[UNSCORED],
            states[ABSENT],
            self.as_sure(score_interval(array("d", (scorer.value[row] for row in valued)), self.clusters(valued))),
            passed,
            len(passes) - passed,
            self.as_sure(proportion_interval(passes, self.clusters(judged))),
        )

    def clusters(self, rows: Rows) -> Rows | None:
        """The cluster of each row; None where each is independent of the others."""
        columns = self.columns
        if columns.clusters is not None:
            return array("i", (self.cluster(row) for row in rows))
        return array("i", (columns.sample[row] for row in rows)) if self.epochs > 1 else None

    def cluster(self, row: int) -> int:
        assert self.columns.clusters is not None
        number = self.columns.clusters[row]
        return number if number != NONE else -1 - self.columns.sample[row]

    def as_sure(self, estimate: Estimate) -> Estimate:
        """An estimate as sure as it can be: where no result has the field to cluster by, nobody knows how sure."""
        if self.is_cluster_known:
            return estimate
        return replace(estimate, se=None, low=None, high=None, clusters=None)

    @cached_property
    def is_cluster_known(self) -> bool:
        return _known(self.columns.clusters) != 0

    def cluster_count(self) -> int | None:
        """How many clusters its results are in; None where each is independent of the others."""
        clusters = self.clusters(self.rows)
        count = len(self.rows) if clusters is None else len(set(clusters))
        return count if count < len(self.rows) else None

    def parts(self) -> dict[str, Rows]:
        columns = self.columns
        if columns.parts is None:
            return {}
        names = [
            json.dumps(name) if name == _WITHOUT or name[:1] == '"' else name for name in columns.part_names.texts()
        ]
        found: dict[str, Rows] = {}
        for row in self.rows:
            number = columns.parts[row]
            found.setdefault(_WITHOUT if number == NONE else names[number], array("i")).append(row)
        return dict(sorted(found.items()))

    def reduced(self, wanted: list[Reducer]) -> Iterable[Reduced]:
        for name in (None, *self.columns.scorers):
            for one in wanted:
                numbers, clusters = array("d"), array("i")
                for row, found in self.by_sample(name, one.of_passes):
                    if len(found) >= one.least:
                        numbers.append(one.reduce(found))
                        clusters.append(0 if self.columns.clusters is None else self.cluster(row))
                estimate = score_interval(numbers, None if self.columns.clusters is None else clusters)
                yield Reduced(name, one.name, self.as_sure(estimate), len(numbers), self.samples)

    def by_sample(self, name: str | None, passes: bool) -> Iterator[tuple[int, list[float]]]:
        """The first row of each sample that was judged, and what a scorer's epochs came to, or whether they passed.

        Without a name it is whether the whole result passed.
        """
        for _, found in groupby(self.ordered, self.columns.sample.__getitem__):
            rows = list(found)
            values = [self.judged(row, name, passes) for row in rows]
            if judged := [value for value in values if value is not None]:
                yield rows[0], judged

    def judged(self, row: int, name: str | None, passes: bool) -> float | None:
        columns = self.columns
        if name is None:
            return {_PASSED: 1.0, _FAILED: 0.0}.get(columns.verdict[row])
        scorer = columns.scorers[name]
        if row >= len(scorer.state):
            return None
        if passes:
            return None if scorer.passed[row] == NONE else float(scorer.passed[row])
        return scorer.value[row] if scorer.state[row] == VALUED else None

    @cached_property
    def ordered(self) -> Rows:
        """The rows, those of a sample together."""
        return array("i", sorted(self.rows, key=self.columns.sample.__getitem__))

    def variances(self) -> dict[str, Variance]:
        names = (None, *self.columns.scorers)
        return {name or "": variance(values for _, values in self.by_sample(name, False)) for name in names}

    def confusions(self) -> Iterable[tuple[str, Confusion]]:
        columns = self.columns
        targets = columns.target_labels.numbers
        if targets is None or len(targets) < 2:
            return
        rows = [row for row in self.rows if columns.targets[row] != NONE]
        if len(rows) < _LEAST_PER_LABEL * len(targets):
            return
        for name, scorer in columns.scorers.items():
            answers = scorer.labels.numbers
            if not answers or len({*targets, *answers}) > MAX_LABELS:
                continue
            pairs = Counter(
                (columns.targets[row], scorer.answers[row] if row < len(scorer.answers) else NONE) for row in rows
            )
            wanted, given = sorted(targets), sorted(answers)
            yield (
                name,
                Confusion(
                    tuple(wanted),
                    tuple(given),
                    tuple(tuple(pairs[targets[a], answers[b]] for b in given) for a in wanted),
                    tuple(pairs[targets[label], NONE] for label in wanted),
                ),
            )

    def agreements(self) -> Iterator[Judges]:
        for name, scorer in self.columns.scorers.items():
            yield from votes_agreement(name, scorer, self.rows)
        yield from scorers_agreement(self.columns.scorers, self.rows)


def _counts(columns: Columns, rows: Rows, pending: int | None) -> Counts:
    seen = Counter(columns.verdict[row] for row in rows)
    return Counts(seen[_PASSED], seen[_FAILED], seen[_ERROR], seen[_UNSCORED], pending)


def _known(numbers: Rows | None) -> int | None:
    return None if numbers is None else sum(number != NONE for number in numbers)


def _durations(columns: Columns, rows: Rows) -> Percentiles:
    return _percentiles(array("d", (columns.duration[row] for row in rows)))


def _percentiles(values: Sequence[float]) -> Percentiles:
    p50, p90, p99 = percentiles(values, (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, len(values))


def _errors(columns: Columns, rows: Rows) -> tuple[ErrorKind, ...]:
    """Kinds of errors, the commonest first."""
    seen = Counter(columns.error[row] for row in rows if columns.error[row] != NONE)
    kinds = columns.errors.texts()
    found = [ErrorKind(kinds[number], count, columns.examples[number]) for number, count in seen.items()]
    return tuple(sorted(found, key=lambda error: (-error.count, error.kind)))


def _notes(
    columns: Columns,
    counts: Counts,
    cluster: str | None,
    group_by: str | None,
    unfinished: str,
    groups: Sequence[_Group],
) -> Iterable[str]:
    if unfinished:
        yield f"not finished: {unfinished}"
    if counts.pending:
        yield f"{counts.pending:,} of {counts.total:,} results are pending: every number may still change"
    for name, numbers, otherwise in (
        (cluster, columns.clusters, "each belongs with its sample"),
        (group_by, columns.parts, f"they are the group {_WITHOUT}"),
    ):
        with_it = _known(numbers)
        if name is None or with_it is None or with_it == len(columns):
            continue
        if with_it == 0:
            yield f"no result has {name!r} in its metadata; {nearest_field(name, columns.fields)}"
        else:
            yield f"{len(columns) - with_it:,} of {len(columns):,} results have no {name!r}: {otherwise}"
    few = (
        []
        if _known(columns.clusters) == 0
        else [count for group in groups if (count := group.cluster_count()) is not None and count < FEW_CLUSTERS]
    )
    if few:
        by = "samples with several epochs" if columns.clusters is None else f"{cluster!r}"
        yield f"clusters by {by}: {min(few):,}; with fewer than {FEW_CLUSTERS} intervals are only rough"
    if columns.replaced_count:
        yield f"{columns.replaced_count:,} earlier results gave way to later ones of the same sample"
    if columns.left_out_count:
        yield f"{columns.left_out_count:,} more results are no part of what is asked for now"
