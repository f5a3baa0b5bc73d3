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
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, compress
from operator import eq, ne
from typing import Any, TypeAlias, cast

from evaluator.batch.fields import MOST_FIELDS, reader_of
from evaluator.batch.identity import Interner
from evaluator.batch.records import SampleResult, Score, Verdict
from evaluator.batch.statistics import (
    cohen_kappa_of,
    krippendorff_alpha_of,
)
from evaluator.batch.summary.parts import (
    Amount,
    JudgeAgreement,
    PanelColumns,
    Spending,
    has_ratings,
)
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
        for _ in range(len(self.state), rows):
            self.state.append(ABSENT)
            self.value.append(math.nan)
            self.passed.append(NONE)
            self.answers.append(NONE)
            if self.votes is not None:
                self.votes.append(NONE)

    def put(self, row: int, score: Score | None) -> None:
        if score is None:
            metadata = {}
        else:
            metadata = score.metadata
        if metadata or self.votes is not None:
            self._put_votes(row, _ballot(metadata.get("votes")))
        if self.panel is None and score is not None and metadata and has_ratings(score):
            self.panel = PanelColumns()
        if self.panel is not None:
            self.panel.put(row, score)
        state = ABSENT
        value = math.nan
        passed = NONE
        answer = NONE
        if score is not None:
            state = UNSCORED
            if fault_of(score) is not None:
                state = FAULTY
            else:
                if score.passed is None:
                    passed = NONE
                else:
                    passed = int(score.passed)
                if score.value is not None:
                    state = VALUED
                    value = score.value
            answer = self.labels.number(score.answer)
            self.are_grades = self.are_grades or bool(metadata.get("is_grade"))
        self.state[row] = state
        self.value[row] = value
        self.passed[row] = passed
        self.answers[row] = answer

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
    if score.error is not None:
        return score.error
    if score.value is not None and not math.isfinite(score.value):
        return f"its value is {score.value}, which is not a finite number"
    return None


class Columns:
    """Every added result as columns; a row is the same index in each of them.

    `clusters` and `parts` number the values of the two metadata fields, which `with_cluster` and
    `with_group_by` results have; None without such a field. A result without the field is NONE, and
    in `clusters`, once closed, its sample's own negative number. `fields` are the metadata fields
    of results that lack one of the two. All columns of scorers are as long as these.
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
        self._samples = Interner()
        self._rows: dict[tuple[int, int], array[int]] = {}

    def __len__(self) -> int:
        return len(self.verdict)

    def add(self, result: SampleResult) -> None:
        """Adds a result, or replaces the earlier one for its row.

        Raises: UsageError, if the field to group by has more than MAX_VALUES values.
        """
        group = self.groups.setdefault((result.template, result.variant), len(self.groups))
        sample = self._samples.number(result.sample_id)
        run = _run_of(result)
        values = (
            group,
            sample,
            run,
            _CODES[result.verdict],
            self._error_of(result),
            self.target_labels.number(result.target),
            min(result.cached_calls, _MOST),
            round(result.duration_s, 6),
            *_used(result),
        )
        count = len(self.verdict)
        row = self._row(group, sample, epoch=result.epoch)
        if row == count:
            count += 1
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            for column in (self.clusters, self.parts):
                if column is not None:
                    column.append(0)
        else:
            self._replace(row, run)
            for column, value in zip(self._columns, values, strict=True):
                column[row] = value
        if self.clusters is not None:
            self.clusters[row] = self._number_in(self.cluster_names, result, read=self._cluster)
        if self.parts is not None:
            self.parts[row] = self._number_in(self.part_names, result, read=self._group_by)
            if len(self.part_names) > MAX_VALUES:
                raise UsageError(
                    f"{self._group_name!r} has over {MAX_VALUES:,} values; group by a field with "
                    "fewer"
                )
        for name in result.scores:
            if name not in self.scorers:
                self.scorers[name] = ScorerColumns()
        for name, scorer in self.scorers.items():
            scorer.grow(count)
            scorer.put(row, result.scores.get(name))

    def leave_out(self, result: SampleResult) -> None:
        """Adds only what a result used, as for earlier runs. Results have to come in the order of
        their lines.
        """
        run = _run_of(result)
        place = self._left_out.number(result.key)
        is_new = place == len(self._left_out_runs)
        if is_new:
            self._left_out_runs.append(run)
        is_same_run = not is_new and self._left_out_runs[place] == run
        self._left_out_runs[place] = run
        self._add_replaced(_used(result), min(result.cached_calls, _MOST), is_same_run=is_same_run)

    def close(self) -> None:
        """Frees what only adding needs, above all the samples' ids. Nothing can be added
        afterwards.
        """
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

    def _number_in(
        self,
        names: dict[str, int],
        result: SampleResult,
        read: Callable[[SampleResult], Any] | None,
    ) -> int:
        value = None if read is None else read(result)
        if value is None:
            if len(self.fields) < MOST_FIELDS:
                self.fields.update(dict.fromkeys(result.metadata))
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
            rows[sample] = len(self.verdict)
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

    def _error_of(self, result: SampleResult) -> int:
        """The number of the error's kind, NONE without an error; keeps the message as the kind's
        example.
        """
        if result.failure is not None:
            kind = result.failure.kind
            message = result.failure.message
            if result.verdict is not Verdict.ERROR and result.failure.resource is not None:
                kind = f"{result.failure.resource} limit, not an error"
        else:
            kind = message = ""
            for name, score in result.scores.items():
                fault = fault_of(score)
                if fault is not None:
                    kind = f"scorer {name}"
                    message = fault
                    break
            if not kind:
                if result.verdict is not Verdict.ERROR:
                    return NONE
                kind = "unknown"
        number = number_of(kind, self.errors)
        self.examples[number] = message[:_MAX_EXAMPLE_CHARS]
        return number


def _run_of(result: SampleResult) -> int:
    """Identifies the run of its sample, resumed or not, that a result comes from: a 31-bit hash of
    the task.
    """
    return hash((result.task_id, "" if result.task_id is not None else result.started)) & _MOST


def _used(result: SampleResult) -> tuple[float, ...]:
    """The costs, the savings and the tokens of a result, NONE where unknown, in the order of
    `Columns.used`.
    """
    usage = result.usage
    cost = usage.cost_usd
    scoring = result.scoring_usage
    saved = usage.cache_saved_usd
    if scoring.cache_saved_usd is None or saved is None:
        saved = NONE
    else:
        saved += scoring.cache_saved_usd
    return (
        NONE if cost is None else cost,
        NONE if scoring.cost_usd is None else scoring.cost_usd,
        saved,
        _count(usage.input_tokens),
        _count(usage.output_tokens),
        _count(usage.cached_tokens),
        _count(usage.reasoning_tokens),
    )


def _count(tokens: int | None) -> int:
    if tokens is None:
        return NONE
    return tokens if tokens < _MOST else _MOST


def _amount(column: array[Any], rows: Sequence[int]) -> Amount:
    known = array("d" if column.typecode == "d" else "q", known_values(column, rows))
    return Amount(math.fsum(known) if known.typecode == "d" else sum(known), len(known), len(rows))


Rating = Hashable | None


def votes_agreement(name: str, scorer: ScorerColumns, rows: array[int]) -> Iterator[JudgeAgreement]:
    """The agreement of one scorer's judges: Krippendorff's alpha of all, then Cohen's kappa of each
    two.

    Empty where the scorer has no two votes on the same result in `rows`.
    """
    votes = scorer.votes
    if votes is None:
        return
    seen = Counter(votes[row] for row in rows if votes[row] != NONE)
    ballots: list[Ballot] = list(scorer.ballots)
    judges = tuple(dict.fromkeys(judge for number in seen for judge, _ in ballots[number]))
    counts = Counter[tuple[Rating, ...]]()
    for number, count in seen.items():
        given = dict(ballots[number])
        counts[tuple(given.get(judge) for judge in judges)] += count
    alpha = krippendorff_alpha_of(counts, len(judges))
    if alpha.n:
        yield JudgeAgreement(judges, name, "krippendorff_alpha", _same(counts.items()), alpha)
    for (i, first), (j, second) in combinations(enumerate(judges), 2):
        pairs = Counter[tuple[Rating, Rating]]()
        for ratings, count in counts.items():
            pairs[ratings[i], ratings[j]] += count
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield JudgeAgreement((first, second), name, "cohen_kappa", _same(pairs.items()), kappa)


def scorers_agreement(
    scorers: Mapping[str, ScorerColumns], rows: array[int]
) -> Iterator[JudgeAgreement]:
    """Cohen's kappa of each two scorers with binary scores, where both judged some result in
    `rows`.

    A scorer is binary if each of its values in `rows` is 1 and passed, or 0 and failed.
    """
    ratings = {
        name: list(map(_RATINGS.__getitem__, values_at(scorer.passed, rows)))
        for name, scorer in scorers.items()
        if _is_binary(scorer, rows)
    }
    for names in combinations(ratings, 2):
        pairs = Counter[tuple[Rating, Rating]](
            zip(ratings[names[0]], ratings[names[1]], strict=True)
        )
        kappa = cohen_kappa_of(pairs)
        if kappa.n:
            yield JudgeAgreement(names, None, "cohen_kappa", _same(pairs.items()), kappa)


def _is_binary(scorer: ScorerColumns, rows: array[int]) -> bool:
    valued = rows_where(partial(eq, VALUED), scorer.state, rows)
    judged = rows_where(partial(ne, NONE), scorer.passed, valued)
    return all(map(eq, values_at(scorer.value, judged), values_at(scorer.passed, judged)))


_RATINGS = (False, True, None)
"""By the values of `ScorerColumns.passed`, where NONE is the last one."""


def _same(counts: Iterable[tuple[tuple[Rating, ...], int]]) -> float | None:
    """The share of equal ratings among results with at least two ratings."""
    same = of = 0
    for ratings, count in counts:
        given = [rating for rating in ratings if rating is not None]
        if len(given) > 1:
            of += count
            same += count * (len(set(given)) == 1)
    if of:
        return same / of
    return None
