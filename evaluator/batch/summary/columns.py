"""Results as columns of numbers, one row each, on the disk: no result object is kept.

A row is one (template, variant, sample, epoch). A later result for the same row replaces the
earlier one, so the last one of a file counts. Two samples are two rows even where their inputs, and
so their identities, are equal.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import countOf, ne
from typing import Any, TypeAlias

from evaluator.batch.fields import MOST_FIELDS
from evaluator.batch.summary.kept_scores import KeptScores, without_kept
from evaluator.batch.summary.left_out import EarlierUse, LeftOutResults
from evaluator.batch.summary.parts import Amount, PanelColumns, Spending, has_ratings
from evaluator.batch.summary.rows import (
    ABSENT,
    DOLLARS,
    MAX_LABEL_CHARS,
    NONE,
    TOKENS,
    Ballot,
    Fields,
    ResultBlock,
    ResultRow,
    ResultRows,
    ScoreRow,
    ballot_of,
    calls_of,
    used_by,
)
from evaluator.errors import UsageError
from evaluator.fields.records import mapping_of
from evaluator.record.steps import INTERRUPTED_CALLS
from evaluator.store.columns import Column, Interner, Spool

MAX_LABELS = 30
MAX_VALUES = 1_000
_MAX_BALLOTS = 20_000
_MOST_USED = 1e15
_USED = (*DOLLARS, *TOKENS)
_SCORES = ResultBlock._fields.index("scores")
_FIELDS = ResultBlock._fields.index("fields")
_METADATA = 4
_JUDGED = 5
"""The places in a ScoreRow."""
_FRESH = 200
"""So many rows are appended to the columns at once."""
_MOST_SCATTERED = 128
"""With more groups, reading the blocks of all rows for each group costs more than to order them."""
Rows: TypeAlias = Sequence[int]
"""Numbers of rows, which ascend."""


def rows_where(is_wanted: Callable[[Any], bool], column: Column, rows: Rows) -> Rows:
    """Those of `rows` whose value in a column is wanted."""
    found = array("i", compress(rows, map(is_wanted, column.at(rows))))
    return rows if len(found) == len(rows) else found


is_known = partial(ne, NONE)


class Labels:
    """Numbers for at most MAX_LABELS short labels. With more, `numbers` is None and nothing is
    kept.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, int] | None = {}

    def number(self, value: Any) -> int:
        if value is None or self.numbers is None:
            return NONE
        if type(value) is str and value in self.numbers:
            return self.numbers[value]
        label = None
        if isinstance(value, (bool, int, float)):
            label = json.dumps(value)
        elif isinstance(value, str):
            label = value.strip()
        if label is not None and len(label) <= MAX_LABEL_CHARS:
            number = self.numbers.setdefault(label, len(self.numbers))
            if number < MAX_LABELS:
                return number
        self.numbers = None
        return NONE


class ScorerColumns:
    """The scores of one scorer, row by row. `state` is ABSENT, VALUED, UNSCORED or FAULTY; `passed`
    1, 0 or NONE.

    `are_grades`: its answers are the grades of a judge. For a scorer with several judges, `votes`
    are numbers of `ballots`, which say who voted what, and `panel` has their ratings; None for
    other scorers.
    """

    __slots__ = (
        "_spool",
        "answers",
        "are_grades",
        "ballots",
        "labels",
        "panel",
        "passed",
        "state",
        "value",
        "votes",
    )

    def __init__(self, spool: Spool) -> None:
        self.state = Column("b", spool)
        self.value = Column("d", spool)
        self.passed = Column("b", spool)
        self.answers = Column("b", spool)
        self.labels = Labels()
        self.are_grades = False
        self.votes: Column | None = None
        self.panel: PanelColumns | None = None
        self.ballots: dict[Ballot, int] = {}
        self._spool = spool

    def grow(self, rows: int) -> None:
        """Makes the columns `rows` long; new rows are absent."""
        missing = rows - len(self.state)
        if missing:
            columns = (self.state, self.value, self.passed, self.answers)
            for column, value in zip(columns, (ABSENT, math.nan, NONE, NONE), strict=True):
                column.extend([value] * missing)
        if self.votes is not None:
            self.votes.extend([NONE] * (rows - len(self.votes)))

    def reorder(self, rows: Rows) -> None:
        """Replaces the scores by those of `rows`, in this order."""
        self.state = self.state.reordered(rows)
        self.value = self.value.reordered(rows)
        self.passed = self.passed.reordered(rows)
        self.answers = self.answers.reordered(rows)
        if self.votes is not None:
            self.votes = self.votes.reordered(rows)
        if self.panel is not None:
            self.panel.reorder(rows)

    def add(self, row: int, scores: Sequence[Sequence[Any]]) -> None:
        """Adds scores, given as in a ResultBlock, from `row` on; rows before it that have none are
        absent. Their metadata are left to `put_metadata`.
        """
        self.grow(row)
        states, values, passed, answers, *_ = scores
        self.state.extend(states)
        self.value.extend(values)
        self.passed.extend(passed)
        self.answers.extend(map(self._label, answers))

    def replace(self, row: int, scores: Sequence[Sequence[Any]] | None) -> None:
        """Replaces the score of a row; None where there is none any more."""
        if scores is None:
            scores = ((ABSENT,), (math.nan,), (NONE,), (None,), (None,))
        (state,), (value,), (passed,), (answer,), (metadata,), *_ = scores
        self.grow(max(row + 1, len(self.state)))
        self.state[row] = state
        self.value[row] = value
        self.passed[row] = passed
        self.answers[row] = self._label(answer)
        self.put_metadata(row, metadata or {})

    def _label(self, answer: Any) -> int:
        return NONE if answer is None else self.labels.number(answer)

    def put_metadata(self, row: int, metadata: Mapping[str, Any]) -> None:
        """Sets the votes and the ratings of a row from the metadata of its score."""
        if metadata or self.votes is not None:
            self._put_votes(row, ballot_of(metadata.get("votes")))
        if metadata:
            self.are_grades = self.are_grades or bool(metadata.get("is_grade"))
            if self.panel is None and has_ratings(metadata):
                self.panel = PanelColumns()
        if self.panel is not None:
            self.panel.put(row, metadata)

    def _put_votes(self, row: int, ballot: Ballot | None) -> None:
        if ballot is not None and ballot not in self.ballots and len(self.ballots) >= _MAX_BALLOTS:
            ballot = None
        if self.votes is None:
            if ballot is None:
                return
            self.votes = Column("i", self._spool)
        missing = row + 1 - len(self.votes)
        if missing > 0:
            self.votes.extend([NONE] * missing)
        if ballot is None:
            self.votes[row] = NONE
        else:
            self.votes[row] = self.ballots.setdefault(ballot, len(self.ballots))


class Columns:
    """Every added result as columns; a row is the same index in each of them.

    `keys` number the keys of the results: a row has the number of its key.
    `clusters` and `parts` number the values of the two metadata fields, which `with_cluster` and
    `with_group_by` results have; None without such a field. A result without the field is NONE, and
    in `clusters`, once closed, its sample's own negative number. `fields` are the metadata fields
    of results that lack one of the two. Once closed, all columns are equally long,
    and with many groups the rows are ordered by group.
    """

    def __init__(self, cluster: str | None, group_by: str | None) -> None:
        self.groups: dict[tuple[str, str], int] = {}
        self.sample_count = 0
        self.scorers: dict[str, ScorerColumns] = {}
        self.errors: dict[str, int] = {}
        self.examples: dict[int, str] = {}
        self.part_names: dict[str, int] = {}
        self.target_labels = Labels()
        self._spool = spool = Spool()
        self.group = Column("h", spool)
        self.sample: Column | range = range(0)
        self.verdict = Column("b", spool)
        self.error = Column("h", spool)
        self.targets = Column("b", spool)
        self.cached_calls = Column("i", spool)
        self.interrupted_calls = Column("i", spool)
        self.duration = Column("f", spool)
        self.used: dict[str, Column] = {}
        for name in DOLLARS:
            self.used[name] = Column("d", spool)
        for name in TOKENS:
            self.used[name] = Column("i", spool)
        self.clusters: Column | None = None
        self.parts: Column | None = None
        self.with_cluster: int | None = None
        self.with_group_by: int | None = None
        self.fields: dict[str, None] = {}
        self.replaced_count = self.left_out_count = 0
        if cluster is not None:
            self.clusters = Column("i", spool)
            self._cluster_names = Interner()
        if group_by is not None:
            self.parts = Column("i", spool)
        self._rows = ResultRows(cluster, group_by)
        self._group_name = group_by
        self._run = Column("i", spool)
        # Made for the first result that is replaced or left out.
        self._replaced: dict[str, Column] = {}
        self._left_out: LeftOutResults | None = None
        self._replaced_cached = 0
        self._replaced_interrupted = 0
        self._kept_scores = KeptScores(spool)
        self._sample_hash = Column("q", spool)
        self._columns: tuple[Column, ...] = (
            self.group,
            self._sample_hash,
            self._run,
            self.verdict,
            self.error,
            self.targets,
            self.cached_calls,
            self.interrupted_calls,
            self.duration,
            *self.used.values(),
        )
        # Rows that are not in the columns yet.
        self._fresh: list[ResultRow] = []
        self._count = 0
        self.keys = Interner()
        self._epochs: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return self._count

    def add(self, result: Mapping[str, Any]) -> int:
        """Adds a result as JSON (see `SampleResult.to_dict`), or replaces the earlier one for its
        row. Returns: the row, which is the number of its key.

        Raises: UsageError, if the field to group by has more than MAX_VALUES values; KeyError,
        TypeError or ValueError, for something else than a result.
        """
        values = self._rows.row_of(result)
        row = self.keys.number_of_hash(hash(values[0]))
        self._put(row, values)
        return row

    def put_block(self, block: ResultBlock) -> None:
        """As `add`, for all results of a block."""
        self._add_fresh()
        first = self._count
        rows = list(map(self.keys.number_of_hash, map(hash, block.keys)))
        if rows[-1] != first + len(rows) - 1:  # some replace earlier ones
            for row, result in zip(rows, block.rows(), strict=True):
                self._put(row, result)
            return
        self._count += len(rows)
        self._add_block(block)
        for name, scores in block.scores.items():
            if not any(scores[_METADATA]):
                continue
            put_metadata = self.scorers[name].put_metadata
            for row, metadata in enumerate(scores[_METADATA], first):
                if metadata:
                    put_metadata(row, metadata)
        if any(block.fields):
            for row, fields in enumerate(block.fields, first):
                if fields is not None:
                    self._number_fields(row, fields)

    def _put(self, row: int, result: ResultRow) -> None:
        if row == self._count:
            self._count += 1
            self._fresh.append(result)
            self._put_metadata(row, result[_SCORES])
            if len(self._fresh) == _FRESH:
                self._add_fresh()
        else:
            self._add_fresh()
            self._replace(row, ResultBlock.of([result]))
        fields = result[_FIELDS]
        if fields is not None:
            self._number_fields(row, fields)

    def _put_metadata(self, row: int, scores: Mapping[str, ScoreRow]) -> None:
        """Sets the votes and the ratings of a row, also before the row is in the columns."""
        for name, score in scores.items():
            metadata = score[_METADATA]
            if metadata:
                if name not in self.scorers:
                    self._add_fresh()
                self.scorers[name].put_metadata(row, metadata)

    def _add_fresh(self) -> None:
        if self._fresh:
            block = ResultBlock.of(self._fresh)
            self._fresh = []
            self._add_block(block)

    def _add_block(self, block: ResultBlock) -> None:
        """Appends results to the columns."""
        row = len(self.group)
        for column, values in zip(self._columns, self._values(block), strict=True):
            column.extend(values)
        for name, scores in block.scores.items():
            scorer = self.scorers.get(name)
            if scorer is None:
                scorer = self.scorers[name] = ScorerColumns(self._spool)
            scorer.add(row, scores)
            self._kept_scores.add(row, name, scores[_JUDGED])

    def _values(self, block: ResultBlock) -> list[Iterable[float]]:
        """What the columns have of a block."""
        groups = [self.groups.setdefault(cell, len(self.groups)) for cell in block.cells]
        self._epochs.update(zip(groups, block.epochs, strict=True))
        number = self.target_labels.number
        return [
            groups,
            map(hash, block.sample_ids),
            block.runs,
            block.verdicts,
            [NONE if error is None else self._error_number(*error) for error in block.errors],
            [NONE if target is None else number(target) for target in block.targets],
            *block.numbers,
        ]

    def leave_out(self, result: Mapping[str, Any]) -> None:
        """Adds only what a result used, as for earlier runs. Results have to come in the order of
        their lines.
        """
        if self._left_out is None:
            self._left_out = LeftOutResults(self._spool)
        earlier = self._left_out.put(result)
        if earlier is not None:
            self._add_replaced(earlier)

    def abandon(self, run: Any) -> None:
        """Adds what a run without a result has used to `replaced_spending`: as scoring, where it is
        that of a judge. The manifest has it, so that it may be anything: what is no amount is
        unknown.
        """
        usage = mapping_of(run).get("usage")
        if isinstance(usage, Mapping):
            used = {name: _amount_in(usage, name) for name in usage if name in _USED}
        else:
            used = dict.fromkeys(_USED)
        calls = mapping_of(run).get(INTERRUPTED_CALLS, 0)
        if "/" in str(mapping_of(run).get("label")):
            result = {"usage": {}, "scores": {"": {"usage": used}}}
        else:
            result = {"usage": used, "scores": {}}
        interrupted = calls_of(calls) if type(calls) is int and calls >= 0 else 1
        self._add_replaced(EarlierUse(tuple(used_by(result)), 0, interrupted_calls=interrupted))

    def close(self) -> None:
        """Numbers the samples. Nothing can be added afterwards."""
        self._add_fresh()
        for scorer in self.scorers.values():
            scorer.grow(self._count)
        self.sample_count = self._count
        self.sample = range(self._count)
        if len(self._epochs) > 1:
            samples = Interner()
            self.sample = Column("i", self._spool)
            self.sample.extend(map(samples.number_of_hash, self._sample_hash))
            self.sample_count = len(samples)
        if self._left_out is not None:
            self.left_out_count = len(self._left_out)
            for last in self._left_out.rest():
                self._add_replaced(last)
            self._left_out = None
        if self.parts is not None:
            self.with_group_by = len(self) - countOf(self.parts, NONE)
        if self.clusters is not None:
            self.with_cluster = len(self) - countOf(self.clusters, NONE)
            numbers = Column("i", self._spool)
            numbers.extend(
                -1 - sample if number == NONE else number
                for number, sample in zip(self.clusters, self.sample, strict=True)
            )
            self.clusters = numbers
        if len(self.groups) > _MOST_SCATTERED:
            self._order_by_group()

    def _order_by_group(self) -> None:
        """Puts the rows of each group side by side, so that they are in few blocks."""
        groups = array("h", self.group)
        rows = array("i", sorted(range(len(groups)), key=groups.__getitem__))
        self.group = self.group.reordered(rows)
        if isinstance(self.sample, Column):
            self.sample = self.sample.reordered(rows)
        self.verdict = self.verdict.reordered(rows)
        self.error = self.error.reordered(rows)
        self.targets = self.targets.reordered(rows)
        self.cached_calls = self.cached_calls.reordered(rows)
        self.interrupted_calls = self.interrupted_calls.reordered(rows)
        self.duration = self.duration.reordered(rows)
        self.used = {name: column.reordered(rows) for name, column in self.used.items()}
        if self.clusters is not None:
            self.clusters = self.clusters.reordered(rows)
        if self.parts is not None:
            self.parts = self.parts.reordered(rows)
        for scorer in self.scorers.values():
            scorer.reorder(rows)

    def spending(self, rows: Rows) -> Spending:
        """The usage of the results in `rows`."""
        amounts = {name: _amount(column, rows) for name, column in self.used.items()}
        return Spending(
            **amounts,
            cached_calls=sum(self.cached_calls.at(rows)),
            interrupted_calls=sum(self.interrupted_calls.at(rows)),
        )

    def replaced_spending(self) -> Spending | None:
        """The usage of replaced and left out results; None without such results."""
        if not any(self._replaced.values()):
            return None
        amounts = {
            name: _amount(column, range(len(column))) for name, column in self._replaced.items()
        }
        return Spending(
            **amounts,
            cached_calls=self._replaced_cached,
            interrupted_calls=self._replaced_interrupted,
        )

    def _number_fields(self, row: int, fields: Fields) -> None:
        """Sets the cluster and the part of a row."""
        cluster, part, names = fields
        if names and len(self.fields) < MOST_FIELDS:
            self.fields.update(dict.fromkeys(names))
        for column in (self.clusters, self.parts):
            if column is not None and row == len(column):
                column.append(NONE)
        if self.clusters is not None:
            name = _name_of(cluster)
            self.clusters[row] = NONE if name is None else self._cluster_names.number(name)
        if self.parts is not None:
            name = _name_of(part)
            if name is None:
                self.parts[row] = NONE
            else:
                self.parts[row] = self.part_names.setdefault(name, len(self.part_names))
            if len(self.part_names) > MAX_VALUES:
                raise UsageError(
                    f"{self._group_name!r} has over {MAX_VALUES:,} values; group by a field with "
                    "fewer"
                )

    def _replace(self, row: int, block: ResultBlock) -> None:
        """Replaces a row by the result of a block of one."""
        self.replaced_count += 1
        used = [column[row] for column in self.used.values()]
        judged = {name: scores[_JUDGED][0] for name, scores in block.scores.items()}
        kept, are_all = self._kept_scores.replace(row, judged)
        earlier = EarlierUse(
            tuple(without_kept(used, kept, are_all=are_all)),
            self.cached_calls[row],
            interrupted_calls=self.interrupted_calls[row],
            is_same_run=self._run[row] == block.runs[0],
        )
        self._add_replaced(earlier)
        for column, values in zip(self._columns, self._values(block), strict=True):
            (column[row],) = values
        for name in block.scores.keys() - self.scorers.keys():
            self.scorers[name] = ScorerColumns(self._spool)
        for name, scorer in self.scorers.items():
            scorer.replace(row, block.scores.get(name))

    def _add_replaced(self, earlier: EarlierUse) -> None:
        """Adds to `replaced_spending`. The same run again was only scored again, or resumed: the
        later result counts its own calls. So it does those of the scores that it keeps: see
        `without_kept`.
        """
        if not self._replaced:
            for name, column in self.used.items():
                self._replaced[name] = Column(column.typecode, self._spool)
        is_same_run = earlier.is_same_run
        for (name, column), value in zip(self._replaced.items(), earlier.used, strict=True):
            if not is_same_run or (name.startswith("scoring_") and value != 0):
                column.append(value)
        if not is_same_run:
            self._replaced_cached += earlier.cached_calls
            self._replaced_interrupted += earlier.interrupted_calls

    def _error_number(self, kind: str, example: str) -> int:
        """The number of a kind of errors; the last example of each kind is kept."""
        number = self.errors.setdefault(kind, len(self.errors))
        self.examples[number] = example
        return number


def _amount_in(usage: Mapping[Any, Any], name: str) -> float | None:
    value = usage[name]
    is_amount = type(value) is int or (type(value) is float and name in DOLLARS)
    return value if is_amount and 0 <= value <= _MOST_USED else None


def _name_of(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def _amount(column: Column, rows: Rows) -> Amount:
    unknown = countOf(column.at(rows), NONE)
    values = column.at(rows)
    if unknown:
        values = filter(is_known, values)
    if column.typecode == "d":
        total = math.fsum(values)
    else:
        total = sum(values)
    return Amount(total, len(rows) - unknown, len(rows))
