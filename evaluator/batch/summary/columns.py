"""Results as columns of numbers, one row each: 100,000 results take about 20 MB and no result
object is kept.

A row is one (template, variant, sample, epoch). A later result for the same row replaces the
earlier one, so the last one of a file counts. Two samples are two rows even where their inputs, and
so their identities, are equal.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import index, ne
from typing import Any, TypeAlias, cast

from evaluator.batch.fields import MOST_FIELDS, reader_of
from evaluator.batch.identity import Interner
from evaluator.batch.records import Sample, Score, Verdict
from evaluator.batch.summary.parts import Amount, PanelColumns, Spending, has_ratings
from evaluator.errors import UsageError

VERDICTS = tuple(Verdict)
_CODES = {verdict: code for code, verdict in enumerate(VERDICTS)}
ABSENT, VALUED, UNSCORED, FAULTY = range(4)
NONE = -1
MAX_LABELS = 30
_MAX_LABEL_CHARS = 60
MAX_VALUES = 1_000
_MAX_EXAMPLE_CHARS = 500
_DOLLARS = ("cost_usd", "scoring_cost_usd", "cache_saved_usd")
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_MAX_JUDGES = 30
_MAX_BALLOTS = 20_000
_MOST = 2**31 - 1
_ERROR = Verdict.ERROR.value
_FRESH = 1_000
"""So many rows are appended to the columns at once."""
Ballot: TypeAlias = tuple[tuple[str, bool | None], ...]
"""Each judge with its vote; None where it did not vote."""


def values_at(column: array[Any], rows: Iterable[int]) -> Iterator[Any]:
    """The values of a column in these rows; a summary reads each of them several times, so that a
    generator would cost more than the values.
    """
    return map(column.__getitem__, rows)


def known_values(column: array[Any], rows: Iterable[int]) -> Iterator[Any]:
    """Those that are not NONE."""
    return filter(_is_known, values_at(column, rows))


def rows_where(
    is_wanted: Callable[[Any], bool], column: array[Any], rows: array[int]
) -> array[int]:
    """Those of `rows` whose value in a column is wanted."""
    return array("i", compress(rows, map(is_wanted, values_at(column, rows))))


_is_known = partial(ne, NONE)


def number_of(name: str, names: dict[str, int]) -> int:
    """The number of `name` in the order in which names were first seen; a new name gets the next
    one.
    """
    return names.setdefault(name, len(names))


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
        if isinstance(value, (bool, int, float)):
            label = json.dumps(value)
        else:
            label = value
        if isinstance(label, str) and len(label := label.strip()) <= _MAX_LABEL_CHARS:
            number = number_of(label, self.numbers)
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

    def __init__(self) -> None:
        self.state = array("b")
        self.value = array("d")
        self.passed = array("b")
        self.answers = array("b")
        self.labels = Labels()
        self.are_grades = False
        self.votes: array[int] | None = None
        self.panel: PanelColumns | None = None
        self.ballots: dict[Ballot, int] = {}

    def grow(self, rows: int) -> None:
        """Makes the columns `rows` long; new rows are absent."""
        missing = rows - len(self.state)
        self.state.extend([ABSENT] * missing)
        self.value.extend([math.nan] * missing)
        self.passed.extend([NONE] * missing)
        self.answers.extend([NONE] * missing)
        if self.votes is not None:
            self.votes.extend([NONE] * missing)

    def put(self, row: int, score: Mapping[str, Any] | None) -> None:
        """Sets the score of a row, as JSON (see `Score.to_dict`); None where there is none."""
        state = ABSENT
        value = math.nan
        passed = NONE
        answer = NONE
        metadata: Mapping[str, Any] = {}
        if score is not None:
            state = UNSCORED
            given = score["value"]
            if _fault_in(score.get("error"), given) is not None:
                state = FAULTY
            else:
                if score["passed"] is not None:
                    passed = int(score["passed"])
                if given is not None:
                    state = VALUED
                    value = given
            answer = self.labels.number(score.get("answer"))
            metadata = score.get("metadata", metadata)
        if row == len(self.state):
            self.state.append(state)
            self.value.append(value)
            self.passed.append(passed)
            self.answers.append(answer)
            if self.votes is not None:
                self.votes.append(NONE)
        else:
            if row > len(self.state):
                self.grow(row + 1)
            self.state[row] = state
            self.value[row] = value
            self.passed[row] = passed
            self.answers[row] = answer
        if metadata or self.votes is not None:
            self._put_votes(row, _ballot(metadata.get("votes")))
            self.are_grades = self.are_grades or bool(metadata.get("is_grade"))
        if self.panel is None and metadata and has_ratings(metadata):
            self.panel = PanelColumns()
        if self.panel is not None:
            self.panel.put(row, metadata)

    def _put_votes(self, row: int, ballot: Ballot | None) -> None:
        if ballot is not None and ballot not in self.ballots and len(self.ballots) >= _MAX_BALLOTS:
            ballot = None
        if self.votes is None:
            if ballot is None:
                return
            self.votes = array("i", [NONE]) * len(self.state)
        if ballot is None:
            self.votes[row] = NONE
        else:
            self.votes[row] = self.ballots.setdefault(ballot, len(self.ballots))


def _ballot(votes: Any) -> Ballot | None:
    """The votes in a score's metadata, as `majority` writes them; None without votes."""
    if (
        not isinstance(votes, Mapping)
        or not 2 <= len(cast("Mapping[Any, Any]", votes)) <= _MAX_JUDGES
    ):
        return None
    ballot = tuple(
        (str(judge)[:_MAX_LABEL_CHARS], vote)
        for judge, vote in cast("Mapping[Any, Any]", votes).items()
    )
    if all(vote is None or isinstance(vote, bool) for _, vote in ballot):
        return ballot
    return None


def fault_of(score: Score) -> str | None:
    """What went wrong in the scorer; None where nothing did. A value that is not a finite number is
    a fault.
    """
    return _fault_in(score.error, score.value)


def _fault_in(error: str | None, value: float | None) -> str | None:
    if error is not None:
        return error
    if value is not None and not math.isfinite(value):
        return f"its value is {value}, which is not a finite number"
    return None


class Columns:
    """Every added result as columns; a row is the same index in each of them.

    `clusters` and `parts` number the values of the two metadata fields, which `with_cluster` and
    `with_group_by` results have; None without such a field. A result without the field is NONE, and
    in `clusters`, once closed, its sample's own negative number. `fields` are the metadata fields
    of results that lack one of the two. Once closed, all columns are equally long.
    """

    def __init__(self, cluster: str | None, group_by: str | None) -> None:
        self.groups: dict[tuple[str, str], int] = {}
        self.sample_count = 0
        self.scorers: dict[str, ScorerColumns] = {}
        self.errors: dict[str, int] = {}
        self.examples: dict[int, str] = {}
        self.cluster_names: dict[str, int] = {}
        self.part_names: dict[str, int] = {}
        self.target_labels = Labels()
        self.group = array("h")
        self.sample = array("i")
        self.verdict = array("b")
        self.error = array("h")
        self.targets = array("b")
        self.cached_calls = array("i")
        self.duration = array("f")
        self.used: dict[str, array[Any]] = {name: array("d") for name in _DOLLARS}
        self.used |= {name: array("i") for name in _TOKENS}
        self.clusters = None if cluster is None else array("i")
        self.parts = None if group_by is None else array("i")
        self.with_cluster: int | None = None
        self.with_group_by: int | None = None
        self.fields: dict[str, None] = {}
        self.replaced_count = self.left_out_count = 0
        if cluster is None:
            self._cluster = None
        else:
            self._cluster = reader_of(cluster, "cluster")
        if group_by is None:
            self._group_by = None
        else:
            self._group_by = reader_of(group_by, "group_by")
        self._group_name = group_by
        self._replaced = {name: array(column.typecode) for name, column in self.used.items()}
        self._replaced_cached = 0
        self._left_out = Interner()
        self._left_out_runs = array("i")
        self._run = array("i")
        self._columns: tuple[array[Any], ...] = (
            self.group,
            self.sample,
            self._run,
            self.verdict,
            self.error,
            self.targets,
            self.cached_calls,
            self.duration,
            *self.used.values(),
        )
        self._fresh: list[tuple[float, ...]] = []
        self._count = 0
        self._samples = Interner()
        self._rows: dict[tuple[int, int], array[int]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, result: Mapping[str, Any]) -> None:
        """Adds a result as JSON (see `SampleResult.to_dict`), or replaces the earlier one for its
        row.

        Raises: UsageError, if the field to group by has more than MAX_VALUES values; KeyError,
        TypeError or ValueError, for something else than a result.
        """
        group = self.groups.setdefault((result["template"], result["variant"]), len(self.groups))
        sample = self._samples.number(result["sample_id"])
        run = _run_of(result)
        values = (
            group,
            sample,
            run,
            _CODES[result["verdict"]],
            self._error_of(result),
            self.target_labels.number(result["target"]),
            _cached_calls(result),
            round(float(result["duration_s"]), 6),
            *_used(result),
        )
        row = self._row(group, sample, epoch=result["epoch"])
        if row == self._count:
            self._count += 1
            self._fresh.append(values)
            if len(self._fresh) == _FRESH:
                self._add_fresh()
        else:
            self._add_fresh()
            self._replace(row, run)
            for column, value in zip(self._columns, values, strict=True):
                column[row] = value
        if self.clusters is not None or self.parts is not None:
            self._number_fields(row, result)
        scores = result["scores"]
        for name in scores:
            if name not in self.scorers:
                self.scorers[name] = ScorerColumns()
        for name, scorer in self.scorers.items():
            scorer.put(row, scores.get(name))

    def _add_fresh(self) -> None:
        """Appends the latest rows to the columns, many at once."""
        if self._fresh:
            for column, values in zip(self._columns, zip(*self._fresh, strict=True), strict=True):
                column.extend(values)
            self._fresh.clear()

    def leave_out(self, result: Mapping[str, Any]) -> None:
        """Adds only what a result used, as for earlier runs. Results have to come in the order of
        their lines.
        """
        run = _run_of(result)
        place = self._left_out.number(result["key"])
        is_new = place == len(self._left_out_runs)
        if is_new:
            self._left_out_runs.append(run)
        is_same_run = not is_new and self._left_out_runs[place] == run
        self._left_out_runs[place] = run
        self._add_replaced(_used(result), _cached_calls(result), is_same_run=is_same_run)

    def close(self) -> None:
        """Frees what only adding needs, above all the samples' ids. Nothing can be added
        afterwards.
        """
        self._add_fresh()
        for scorer in self.scorers.values():
            scorer.grow(self._count)
        self.sample_count = len(self._samples)
        self._samples = Interner()
        self._rows.clear()
        self.left_out_count = len(self._left_out)
        self._left_out = Interner()
        del self._run[:]
        if self.parts is not None:
            self.with_group_by = len(self) - self.parts.count(NONE)
        if self.clusters is not None:
            self.with_cluster = len(self) - self.clusters.count(NONE)
            for row, number in enumerate(self.clusters):
                if number == NONE:
                    self.clusters[row] = -1 - self.sample[row]

    def spending(self, rows: array[int]) -> Spending:
        """The usage of the results in `rows`."""
        amounts = {name: _amount(column, rows) for name, column in self.used.items()}
        return Spending(**amounts, cached_calls=sum(values_at(self.cached_calls, rows)))

    def replaced_spending(self) -> Spending | None:
        """The usage of replaced and left out results; None without such results."""
        if not any(self._replaced.values()):
            return None
        amounts = {
            name: _amount(column, range(len(column))) for name, column in self._replaced.items()
        }
        return Spending(**amounts, cached_calls=self._replaced_cached)

    def _number_fields(self, row: int, result: Mapping[str, Any]) -> None:
        """Sets the cluster and the part of a row."""
        sample = Sample(
            result["sample_id"],
            result["inputs"],
            target=result["target"],
            metadata=result["metadata"],
        )
        for column in (self.clusters, self.parts):
            if column is not None and row == len(column):
                column.append(NONE)
        if self.clusters is not None:
            self.clusters[row] = self._number_in(self.cluster_names, sample, read=self._cluster)
        if self.parts is not None:
            self.parts[row] = self._number_in(self.part_names, sample, read=self._group_by)
            if len(self.part_names) > MAX_VALUES:
                raise UsageError(
                    f"{self._group_name!r} has over {MAX_VALUES:,} values; group by a field with "
                    "fewer"
                )

    def _number_in(
        self,
        names: dict[str, int],
        sample: Sample,
        read: Callable[[Sample], Any] | None,
    ) -> int:
        value = None if read is None else read(sample)
        if value is None:
            if len(self.fields) < MOST_FIELDS:
                self.fields.update(dict.fromkeys(sample.metadata))
            return NONE
        return number_of(
            value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str),
            names,
        )

    def _row(self, group: int, sample: int, epoch: int) -> int:
        """The row of a result; the next free one for a new result."""
        rows = self._rows.get((group, epoch))
        if rows is None:
            rows = self._rows[group, epoch] = array("i")
        if sample >= len(rows):
            rows.extend([NONE] * (sample + 1 - len(rows)))
        if rows[sample] == NONE:
            rows[sample] = self._count
        return rows[sample]

    def _replace(self, row: int, run: int) -> None:
        self.replaced_count += 1
        used = [column[row] for column in self.used.values()]
        self._add_replaced(used, self.cached_calls[row], is_same_run=self._run[row] == run)

    def _add_replaced(self, used: Sequence[float], cached_calls: int, is_same_run: bool) -> None:
        """Adds to `replaced_spending`. The same run again was only scored again: its own calls were
        paid for once.
        """
        for (name, column), value in zip(self._replaced.items(), used, strict=True):
            if not is_same_run or (name == "scoring_cost_usd" and value != 0):
                column.append(value)
        if not is_same_run:
            self._replaced_cached += cached_calls

    def _error_of(self, result: Mapping[str, Any]) -> int:
        """The number of the error's kind, NONE without an error; keeps the message as the kind's
        example.
        """
        is_error = result["verdict"] == _ERROR
        failure = result["failure"]
        if failure is not None:
            kind = failure["kind"]
            message = failure["message"]
            resource = failure.get("resource")
            if not is_error and resource is not None:
                kind = f"{resource} limit, not an error"
        else:
            kind = message = ""
            for name, score in result["scores"].items():
                fault = _fault_in(score.get("error"), score["value"])
                if fault is not None:
                    kind = f"scorer {name}"
                    message = fault
                    break
            if not kind:
                if not is_error:
                    return NONE
                kind = "unknown"
        number = number_of(kind, self.errors)
        self.examples[number] = message[:_MAX_EXAMPLE_CHARS]
        return number


def _run_of(result: Mapping[str, Any]) -> int:
    """Identifies the run of its sample, resumed or not, that a result comes from: a 31-bit hash of
    the task.
    """
    task_id = result["task_id"]
    return hash((task_id, "" if task_id is not None else result["started"])) & _MOST


def _used(result: Mapping[str, Any]) -> tuple[float, ...]:
    """The costs, the savings and the tokens of a result, NONE where unknown, in the order of
    `Columns.used`.
    """
    used = result["usage"].get
    scoring_cost = scoring_saved = 0.0
    for score in result["scores"].values():
        if "usage" in score:
            scoring = score["usage"].get
            scoring_cost = _sum(scoring_cost, scoring("cost_usd", 0.0))
            scoring_saved = _sum(scoring_saved, scoring("cache_saved_usd", 0.0))
    cost = _sum(used("cost_usd", 0.0), 0.0)
    saved = _sum(used("cache_saved_usd", 0.0), scoring_saved)
    return (
        NONE if cost is None else cost,
        NONE if scoring_cost is None else scoring_cost,
        NONE if saved is None else saved,
        _count(used("input_tokens", 0)),
        _count(used("output_tokens", 0)),
        _count(used("cached_tokens", 0)),
        _count(used("reasoning_tokens", 0)),
    )


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _count(tokens: int | None) -> int:
    if tokens is None or tokens < 0:
        return NONE
    return min(index(tokens), _MOST)


def _cached_calls(result: Mapping[str, Any]) -> int:
    return min(max(index(result["cached_calls"]), 0), _MOST)


def _amount(column: array[Any], rows: Sequence[int]) -> Amount:
    known = array("d" if column.typecode == "d" else "q", known_values(column, rows))
    return Amount(math.fsum(known) if known.typecode == "d" else sum(known), len(known), len(rows))
