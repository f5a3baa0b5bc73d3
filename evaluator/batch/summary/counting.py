"""Counts results into a summary: one pass fills columns, then the numbers are computed from the
columns.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from operator import eq, ne

from evaluator.batch.fields import nearest_field
from evaluator.batch.records import SampleResult
from evaluator.batch.statistics import (
    FEW_CLUSTERS,
    Estimate,
    Reducer,
    Variance,
    percentiles,
    proportion_interval,
    proportion_of,
    reducer,
    score_interval,
    variance,
)
from evaluator.batch.summary.batch_summary import BatchSummary
from evaluator.batch.summary.columns import (
    MAX_LABELS,
    Columns,
    Rows,
    ScorerColumns,
    is_known,
    rows_where,
)
from evaluator.batch.summary.judge_agreement import scorers_agreement, votes_agreement
from evaluator.batch.summary.parts import (
    Accuracy,
    ConfusionMatrix,
    ErrorKind,
    GroupSummary,
    JudgeAgreement,
    JudgeStability,
    Part,
    Percentiles,
    ReducedScore,
    ScorerSummary,
    Spending,
    VerdictCounts,
)
from evaluator.batch.summary.rows import ABSENT, FAULTY, NONE, UNSCORED, VALUED, VERDICTS
from evaluator.errors import UsageError
from evaluator.errors.messages import agree, amount
from evaluator.language.syntax import has_markup
from evaluator.store.columns import Column

_PASSED, _FAILED, _ERROR, _UNSCORED = range(len(VERDICTS))
_JUDGED = frozenset({_PASSED, _FAILED})
_WITHOUT = "(none)"
# A target that hardly ever repeats is an answer, not a label.
_LEAST_PER_LABEL = 2


def summarise(
    results: Iterable[SampleResult],
    *,
    total: int | Mapping[tuple[str, str], int] | None = None,
    cluster: str | None = None,
    group_by: str | None = None,
    reducers: Sequence[str] | None = None,
    unfinished: str = "",
) -> BatchSummary:
    """The summary of `results`, which are read once and not kept (see `columns`).

    Of several results for one (template, variant, sample, epoch) the last one counts, so every line
    ever written can be passed, in order. The others are `replaced`; what they used is in
    `replaced_spending`: where one task was scored again, the scores that were not kept, else all.

    `total` is the number of results that there will be, or that number for each (template,
    variant), which also gives the order of the groups and includes groups without a result.
    Otherwise groups are ordered by name. Missing results are pending. A plain number applies to a
    group only where there is one group. With None the total is unknown: the numbers cover the given
    results, and the batch is not `complete`. Nor is it with a reason in `unfinished`. If `results`
    are all there will be, pass their number.

    `cluster` and `group_by` name metadata fields. Results that share a value of `cluster`, and the
    epochs of a sample, are not treated as independent; a result without that field is clustered
    with its sample. Where no result has it, the clusters are unknown, and shares and means have no
    interval. Results without `group_by` form the group `(none)`; a field value that equals this
    text is quoted. `reducers` are names for `statistics.reducer`; None: mean, where a sample has
    several epochs.

    Raises: UsageError, for an unknown reducer, a `group_by` with more than 1,000 values, or more
    results than `total`.
    """
    columns = Columns(cluster, group_by)
    for result in results:
        columns.add(result.to_dict())
    return summarise_columns(
        columns,
        total=total,
        cluster=cluster,
        group_by=group_by,
        reducers=reducers,
        unfinished=unfinished,
    )


def summarise_columns(
    columns: Columns,
    *,
    total: int | Mapping[tuple[str, str], int] | None,
    cluster: str | None,
    group_by: str | None,
    reducers: Sequence[str] | None,
    unfinished: str,
) -> BatchSummary:
    """The summary of the results in `columns`, to which none can be added afterwards. Arguments and
    exceptions are those of `summarise`.
    """
    if reducers is None:
        wanted = None
    else:
        wanted = [reducer(name) for name in reducers]
    columns.close()
    totals = _totals(total, columns)
    for key in totals:
        columns.groups.setdefault(key, len(columns.groups))
    if isinstance(total, Mapping):
        order = totals
    else:
        order = sorted(columns.groups)
    made = _groups(columns, order, totals=totals)
    groups = [group.summary(key, wanted) for key, group in zip(order, made, strict=True)]
    if len(made) == 1:
        whole = made[0]
        counts = groups[0].counts
    else:
        everything = range(len(columns))
        whole = _Group(columns, everything, total=None)
        pending = None
        if total is not None:
            expected = sum(total.values()) if isinstance(total, Mapping) else total
            pending = _remaining(expected, len(columns))
        counts = _counts(columns, everything, pending=pending)
    return BatchSummary(
        unfinished=unfinished,
        counts=counts,
        samples=columns.sample_count,
        epochs=max((group.epochs for group in groups), default=0),
        groups=tuple(groups),
        spending=whole.spending,
        durations=whole.durations,
        errors=whole.errors,
        replaced=columns.replaced_count,
        left_out=columns.left_out_count,
        replaced_spending=columns.replaced_spending(),
        cluster=cluster,
        group_by=group_by,
        with_cluster=columns.with_cluster,
        with_group_by=columns.with_group_by,
        notes=tuple(_notes(columns, counts, cluster, group_by, unfinished, made)),
    )


def _groups(
    columns: Columns, order: Iterable[tuple[str, str]], totals: Mapping[tuple[str, str], int]
) -> list[_Group]:
    if len(columns.groups) == 1:
        rows_of: list[Rows] = [range(len(columns))]
    else:
        found = [array("i") for _ in columns.groups]
        for row, group in enumerate(columns.group):
            found[group].append(row)
        rows_of = [*found]
    return [_Group(columns, rows_of[columns.groups[key]], total=totals.get(key)) for key in order]


def _totals(
    total: int | Mapping[tuple[str, str], int] | None, columns: Columns
) -> dict[tuple[str, str], int]:
    if isinstance(total, Mapping):
        if unexpected := [key for key in columns.groups if key not in total]:
            raise UsageError(f"there are results of {unexpected[0]}, which the total does not name")
        return dict(total)
    if total is not None and len(columns.groups) == 1:
        return dict.fromkeys(columns.groups, total)
    return {}


def _remaining(total: int, results: int) -> int:
    if results > total:
        raise UsageError(f"there are {results:,} results, more than the total of {total:,}")
    return total - results


class _Group:
    """The rows of one template and variant."""

    def __init__(self, columns: Columns, rows: Rows, total: int | None) -> None:
        self.columns = columns
        self.rows = rows
        if total is None:
            self.pending = None
        else:
            self.pending = _remaining(total, len(rows))
        sample = columns.sample
        if isinstance(sample, range) or columns.sample_count == len(columns):
            self.samples = len(rows)
            self.epochs = min(len(rows), 1)
        else:
            epochs = array("i", bytes(4 * columns.sample_count))
            for number in sample.at(rows):
                epochs[number] += 1
            self.samples = sum(map(bool, epochs))
            self.epochs = max(epochs, default=0)

    def summary(self, key: tuple[str, str], wanted: list[Reducer] | None) -> GroupSummary:
        columns = self.columns
        rows = self.rows
        if wanted is None:
            if self.epochs > 1:
                wanted = [reducer("mean")]
            else:
                wanted = []
        return GroupSummary(
            *key,
            part=self.part(rows, self.pending),
            by={value: self.part(part, None) for value, part in self.parts().items()},
            samples=self.samples,
            epochs=self.epochs,
            reduced=tuple(self.reduced(wanted)) if wanted else (),
            variance=self.variances() if self.epochs > 1 else {},
            spending=self.spending,
            durations=self.durations,
            output_tokens=_percentiles(
                array("i", filter(is_known, columns.used["output_tokens"].at(rows)))
            ),
            errors=self.errors,
            confusion=dict(self.confusions()),
            agreement=tuple(self.agreements()),
            stability=dict(self.stabilities()),
        )

    @cached_property
    def spending(self) -> Spending:
        return self.columns.spending(self.rows)

    @cached_property
    def durations(self) -> Percentiles:
        return _percentiles(array("f", self.columns.duration.at(self.rows)))

    @cached_property
    def errors(self) -> tuple[ErrorKind, ...]:
        """The kinds of errors, the most frequent first."""
        columns = self.columns
        seen = Counter(filter(is_known, columns.error.at(self.rows)))
        kinds = list(columns.errors)
        found = [
            ErrorKind(kinds[number], count, columns.examples[number])
            for number, count in seen.items()
        ]
        return tuple(sorted(found, key=lambda error: (-error.count, error.kind)))

    def part(self, rows: Rows, pending: int | None) -> Part:
        columns = self.columns
        counts = _counts(columns, rows, pending=pending)
        results = counts.results
        judged = rows
        if counts.judged < results:
            judged = rows_where(_JUDGED.__contains__, columns.verdict, rows)
        clusters = self.clusters(judged)
        if clusters is None:
            share = proportion_of(counts.passed, counts.judged)
        else:
            values = array("b", map(partial(eq, _PASSED), columns.verdict.at(judged)))
            share = self.with_known_interval(proportion_interval(values, clusters))
        accuracy = Accuracy(
            counts.passed,
            counts.judged,
            counts.total,
            share,
            counts.passed / results if results else None,
            (results - counts.failed) / results if results else None,
        )
        scorers: dict[str, ScorerSummary] = {}
        for name, scorer in columns.scorers.items():
            scorers[name] = self.scorer(scorer, rows)
        return Part(counts, accuracy, scorers)

    def scorer(self, scorer: ScorerColumns, rows: Rows) -> ScorerSummary:
        states = Counter(scorer.state.at(rows))
        valued = rows
        if states[VALUED] < len(rows):
            valued = rows_where(partial(eq, VALUED), scorer.state, rows)
        judged = rows_where(is_known, scorer.passed, rows)
        passes = array("b", scorer.passed.at(judged))
        clusters = self.clusters(valued)
        if judged is valued:
            clusters_of_judged = clusters
        else:
            clusters_of_judged = self.clusters(judged)
        passed = sum(passes)
        # How often a judge gave each grade, the most frequent first.
        grades: dict[str, int] = {}
        if scorer.are_grades:
            names = list(scorer.labels.numbers or ())
            for number, count in Counter(filter(is_known, scorer.answers.at(rows))).most_common():
                grades[names[number]] = count
        waiting = 0
        if 0 < states[ABSENT] < len(rows):
            absent = rows_where(partial(eq, ABSENT), scorer.state, rows)
            waiting = len(rows_where(partial(ne, _ERROR), self.columns.verdict, absent))
        return ScorerSummary(
            states[VALUED],
            len(rows),
            errors=states[FAULTY],
            unscored=states[UNSCORED],
            absent=states[ABSENT] - waiting,
            value=self.with_known_interval(
                score_interval(array("d", scorer.value.at(valued)), clusters)
            ),
            passed=passed,
            failed=len(passes) - passed,
            pass_rate=self.with_known_interval(proportion_interval(passes, clusters_of_judged)),
            grades=grades,
            waiting=waiting,
        )

    def clusters(self, rows: Rows) -> Rows | None:
        """The cluster of each row; None where all rows are independent."""
        clusters = self.columns.clusters
        if clusters is None and self.epochs > 1:
            clusters = self.columns.sample
        if isinstance(clusters, Column):
            return array("i", clusters.at(rows))
        return None

    def with_known_interval(self, estimate: Estimate) -> Estimate:
        """The estimate, without an interval where no result has the cluster field: the clusters are
        unknown then.
        """
        if self.columns.with_cluster == 0:
            return replace(estimate, se=None, low=None, high=None, clusters=None)
        return estimate

    def cluster_count(self) -> int | None:
        """The number of clusters of its results; None where all results are independent."""
        clusters = self.clusters(self.rows)
        if clusters is None:
            count = len(self.rows)
        else:
            count = len(set(clusters))
        if count < len(self.rows):
            return count
        return None

    def parts(self) -> dict[str, Rows]:
        columns = self.columns
        if columns.parts is None:
            return {}
        names = [
            json.dumps(name) if name == _WITHOUT or name[:1] == '"' else name
            for name in columns.part_names
        ]
        found: dict[str, array[int]] = {}
        for row, number in zip(self.rows, columns.parts.at(self.rows), strict=True):
            found.setdefault(_WITHOUT if number == NONE else names[number], array("i")).append(row)
        return dict[str, Rows](sorted(found.items()))

    def reduced(self, wanted: list[Reducer]) -> Iterable[ReducedScore]:
        for name in (None, *self.columns.scorers):
            for one in wanted:
                numbers = array("d")
                rows = array("i")
                for row, found in self.by_sample(name, one.of_passes):
                    if len(found) >= one.least:
                        numbers.append(one.reduce(found))
                        rows.append(row)
                estimate = score_interval(
                    numbers, None if self.columns.clusters is None else self.clusters(rows)
                )
                yield ReducedScore(
                    name, one.name, self.with_known_interval(estimate), len(numbers), self.samples
                )

    def by_sample(self, name: str | None, passes: bool) -> Iterator[tuple[int, list[float]]]:
        """The first row of each judged sample, and the scorer's value of each epoch, or whether the
        epoch passed.

        Without a name it is whether the whole result passed.
        """
        for _, found in groupby(self.ordered, self.columns.sample.__getitem__):
            rows = list(found)
            values = [self.judged(row, name, passes=passes) for row in rows]
            if judged := [value for value in values if value is not None]:
                yield rows[0], judged

    def judged(self, row: int, name: str | None, passes: bool) -> float | None:
        columns = self.columns
        if name is None:
            return {_PASSED: 1.0, _FAILED: 0.0}.get(columns.verdict[row])
        scorer = columns.scorers[name]
        if passes:
            if scorer.passed[row] == NONE:
                return None
            return float(scorer.passed[row])
        if scorer.state[row] == VALUED:
            return scorer.value[row]
        return None

    @cached_property
    def ordered(self) -> Rows:
        """The rows, ordered by sample."""
        return array("i", sorted(self.rows, key=self.columns.sample.__getitem__))

    def variances(self) -> dict[str, Variance]:
        names = (None, *self.columns.scorers)
        return {
            name or "": variance(values for _, values in self.by_sample(name, False))
            for name in names
        }

    def confusions(self) -> Iterable[tuple[str, ConfusionMatrix]]:
        columns = self.columns
        targets = columns.target_labels.numbers
        if targets is None or len(targets) < 2:
            return
        rows = rows_where(is_known, columns.targets, self.rows)
        if len(rows) < _LEAST_PER_LABEL * len(targets):
            return
        for name, scorer in columns.scorers.items():
            answers = scorer.labels.numbers
            if not answers or len({*targets, *answers}) > MAX_LABELS:
                continue
            pairs = Counter(zip(columns.targets.at(rows), scorer.answers.at(rows), strict=True))
            wanted = sorted(targets)
            given = sorted(answers)
            yield (
                name,
                ConfusionMatrix(
                    tuple(wanted),
                    tuple(given),
                    tuple(tuple(pairs[targets[a], answers[b]] for b in given) for a in wanted),
                    tuple(pairs[targets[label], NONE] for label in wanted),
                ),
            )

    def stabilities(self) -> Iterator[tuple[str, JudgeStability]]:
        for name, scorer in self.columns.scorers.items():
            if scorer.panel is None:
                found = None
            else:
                found = scorer.panel.stability(self.rows)
            if found is not None:
                yield name, found

    def agreements(self) -> Iterator[JudgeAgreement]:
        for name, scorer in self.columns.scorers.items():
            yield from votes_agreement(name, scorer, rows=self.rows)
        yield from scorers_agreement(self.columns.scorers, self.rows)


def _counts(columns: Columns, rows: Rows, pending: int | None) -> VerdictCounts:
    seen = Counter(columns.verdict.at(rows))
    return VerdictCounts(seen[_PASSED], seen[_FAILED], seen[_ERROR], seen[_UNSCORED], pending)


def _percentiles(values: Sequence[float]) -> Percentiles:
    p50, p90, p99 = percentiles(values, (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, len(values))


def _notes(
    columns: Columns,
    counts: VerdictCounts,
    cluster: str | None,
    group_by: str | None,
    unfinished: str,
    groups: Sequence[_Group],
) -> Iterable[str]:
    if unfinished:
        yield f"not finished: {unfinished}"
        yield "what runs without a result have used is not counted yet"
    if counts.pending:
        yield (
            f"{counts.pending:,} of {amount(counts.total, 'result')} "
            f"{agree(counts.pending, 'is', 'are')} pending: every number may still change"
        )
    for name, known, otherwise in (
        (cluster, columns.with_cluster, "each is clustered with its sample"),
        (group_by, columns.with_group_by, f"they form the group {_WITHOUT}"),
    ):
        if name is None or known is None or known == len(columns):
            continue
        if known == 0 and has_markup(name):
            yield f"{name} has no value for any result: {otherwise}"
        elif known == 0:
            yield f"no result has {name!r} in its metadata; {nearest_field(name, columns.fields)}"
        else:
            unknown = len(columns) - known
            yield (
                f"{unknown:,} of {amount(len(columns), 'result')} {agree(unknown, 'has', 'have')} "
                f"no {name!r}: {otherwise}"
            )
    cluster_counts = [count for group in groups if (count := group.cluster_count()) is not None]
    if columns.with_cluster != 0 and cluster_counts and min(cluster_counts) < FEW_CLUSTERS:
        if columns.clusters is None:
            by = "samples with several epochs"
        else:
            by = f"{cluster!r}"
        yield (
            f"clusters by {by}: {min(cluster_counts):,}; with fewer than {FEW_CLUSTERS} "
            "intervals are approximate"
        )
    if columns.replaced_count:
        replaced = amount(columns.replaced_count, "earlier result")
        were = agree(columns.replaced_count, "was", "were")
        yield f"{replaced} {were} replaced by later ones of the same sample"
    if columns.left_out_count:
        left_out = amount(columns.left_out_count, "more result")
        are = agree(columns.left_out_count, "is", "are")
        yield f"{left_out} {are} not part of what the batch asks for now"
