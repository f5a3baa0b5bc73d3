"""Results as columns of numbers, a row each, so that 100,000 of them take some 20 MB and none is kept as an object.

A row is one (template, variant, sample, epoch): a result that comes for one that is there takes its place, in whatever
order they come, so the last one of a file wins. Two samples are two rows even where their inputs, and so their
identities, are the same.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from evaluator.batch.compact import Numbering
from evaluator.batch.fields import MOST_FIELDS, value_of
from evaluator.batch.records import SampleResult, Score, Verdict
from evaluator.batch.summary.shape import Amount, Spending
from evaluator.errors import UsageError
from evaluator.results import Usage

VERDICTS = tuple(Verdict)
_CODES = {verdict: code for code, verdict in enumerate(VERDICTS)}
ABSENT, VALUED, UNSCORED, FAULTY = range(4)
NONE = -1
MAX_LABELS = 30
_MAX_LABEL_CHARS = 60
MAX_VALUES = 1_000
_MAX_EXAMPLE_CHARS = 500
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_UNKNOWN = math.nan
_MAX_JUDGES = 30
_MAX_BALLOTS = 20_000
_MOST = 2**31 - 1
Ballot: TypeAlias = tuple[tuple[str, bool | None], ...]
"""Each judge with its vote; None: it had none."""


class Names:
    """Texts numbered in the order in which they were first seen."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def texts(self) -> list[str]:
        return list(self.numbers)


class Labels:
    """As `Names`, for a few short labels only: once there are more, `numbers` is None and nothing is kept."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, int] | None = {}

    def number(self, value: Any) -> int:
        if value is None or self.numbers is None:
            return NONE
        label = (
            json.dumps(value) if isinstance(value, (bool, int, float)) else value if isinstance(value, str) else None
        )
        if label is None or len(label := label.strip()) > _MAX_LABEL_CHARS:
            self.numbers = None
            return NONE
        number = self.numbers.setdefault(label, len(self.numbers))
        if len(self.numbers) > MAX_LABELS:
            self.numbers = None
            return NONE
        return number


class ScorerColumns:
    """What one scorer said, row by row. `state` is ABSENT, VALUED, UNSCORED or FAULTY; `passed` 1, 0 or NONE.

    `votes` number, for a scorer that is several judges, who of them voted what: the ballots in `ballots`. It is None
    where there are none.
    """

    __slots__ = ("answers", "ballots", "labels", "passed", "state", "value", "votes")

    def __init__(self) -> None:
        self.state = array("b")
        self.value = array("d")
        self.passed = array("b")
        self.answers = array("b")
        self.labels = Labels()
        self.votes: array[int] | None = None
        self.ballots: dict[Ballot, int] = {}

    def grow(self, rows: int) -> None:
        """Makes it `rows` long; new rows are absent."""
        more = rows - len(self.state)
        if more > 0:
            self.state.extend([ABSENT] * more)
            self.value.extend([_UNKNOWN] * more)
            self.passed.extend([NONE] * more)
            self.answers.extend([NONE] * more)
            if self.votes is not None:
                self.votes.extend([NONE] * more)

    def put(self, row: int, score: Score | None) -> None:
        self._vote(row, None if score is None else _ballot(score.metadata.get("votes")))
        if score is None:
            self.state[row], self.value[row], self.passed[row], self.answers[row] = ABSENT, _UNKNOWN, NONE, NONE
            return
        faulty = fault_of(score) is not None
        valued = not faulty and score.value is not None
        self.state[row] = FAULTY if faulty else VALUED if valued else UNSCORED
        self.value[row] = score.value if valued and score.value is not None else _UNKNOWN
        self.passed[row] = NONE if faulty or score.passed is None else int(score.passed)
        self.answers[row] = self.labels.number(score.answer)

    def _vote(self, row: int, ballot: Ballot | None) -> None:
        if ballot is not None and ballot not in self.ballots and len(self.ballots) >= _MAX_BALLOTS:
            ballot = None
        if self.votes is None:
            if ballot is None:
                return
            self.votes = array("i", [NONE]) * len(self.state)
        self.votes[row] = NONE if ballot is None else self.ballots.setdefault(ballot, len(self.ballots))


def _ballot(votes: Any) -> Ballot | None:
    """What judges voted, as `majority` puts it into a score's metadata; None where it is nothing of the kind."""
    if not isinstance(votes, Mapping) or not 2 <= len(cast("Mapping[Any, Any]", votes)) <= _MAX_JUDGES:
        return None
    ballot = tuple((str(judge)[:_MAX_LABEL_CHARS], vote) for judge, vote in cast("Mapping[Any, Any]", votes).items())
    return ballot if all(vote is None or isinstance(vote, bool) for _, vote in ballot) else None


def fault_of(score: Score) -> str | None:
    """What went wrong in the scorer, None where nothing did; a value that is no finite number is a fault too."""
    if score.error is not None:
        return score.error
    if score.value is not None and not math.isfinite(score.value):
        return f"its value is {score.value}, which is not a finite number"
    return None


class Columns:
    """Every result that was added, as columns; equal places in them are one row.

    `clusters` and `parts` number the values of the two metadata fields; NONE is a result without that field. `fields`
    are those that results have which lack one of the two.
    """

    def __init__(self, cluster: str | None, group_by: str | None) -> None:
        self.groups: dict[tuple[str, str], int] = {}
        self.sample_count = 0
        self.scorers: dict[str, ScorerColumns] = {}
        self.errors = Names()
        self.examples: dict[int, str] = {}
        self.cluster_names, self.part_names = Names(), Names()
        self.target_labels = Labels()
        self.group, self.sample, self.verdict = array("h"), array("i"), array("b")
        self.error, self.targets, self.cached_calls = array("h"), array("b"), array("i")
        self.duration, self.cost, self.scoring_cost = array("f"), array("d"), array("d")
        self.tokens = {name: array("i") for name in _TOKENS}
        self.clusters = None if cluster is None else array("i")
        self.parts = None if group_by is None else array("i")
        self.fields: dict[str, None] = {}
        self.replaced_count = self.left_out_count = 0
        self._cluster, self._group_by = cluster, group_by
        self._replaced = {name: _Tally() for name in ("cost_usd", "scoring_cost_usd", *_TOKENS)}
        self._replaced_cached = 0
        self._left_out, self._left_out_runs = Numbering(), array("i")
        self._run = array("i")
        self._columns: tuple[array[Any], ...] = (
            self.group, self.sample, self._run, self.verdict, self.error, self.targets, self.cached_calls,
            self.duration, self.cost, self.scoring_cost, *self.tokens.values(),
        )  # fmt: skip
        self._samples = Numbering()
        self._rows: dict[tuple[int, int], array[int]] = {}

    def __len__(self) -> int:
        return len(self.verdict)

    def add(self, result: SampleResult) -> None:
        """Takes a result in.

        Raises: UsageError, if the field to group by has more than MAX_VALUES values.
        """
        group = self.groups.setdefault((result.template, result.variant), len(self.groups))
        sample = self._samples.number(result.sample_id)
        usage = result.usage
        run = _run_of(result)
        values = (
            group, sample, run, _CODES[result.verdict], self._error_of(result),
            self.target_labels.number(result.target), min(result.cached_calls, _MOST), result.duration_s,
            _or_unknown(usage.cost_usd), _or_unknown(result.scoring_usage.cost_usd),
            *(_tokens(usage, name) for name in _TOKENS),
        )  # fmt: skip
        row = self._row(group, sample, result.epoch)
        if row == len(self):
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
            self.clusters[row] = self._number_in(self.cluster_names, result.metadata, self._cluster)
        if self.parts is not None:
            self.parts[row] = self._number_in(self.part_names, result.metadata, self._group_by)
            if len(self.part_names.numbers) > MAX_VALUES:
                raise UsageError(f"{self._group_by!r} has over {MAX_VALUES:,} values; group by a field with fewer")
        for name in result.scores:
            if name not in self.scorers:
                self.scorers[name] = ScorerColumns()
        for name, scorer in self.scorers.items():
            scorer.grow(len(self))
            scorer.put(row, result.scores.get(name))

    def leave_out(self, result: SampleResult) -> None:
        """Takes in only what a result used, as that of earlier runs. Its lines come in their order."""
        run, used = _run_of(result), result.usage
        place = self._left_out.number(result.key)
        is_new = place == len(self._left_out_runs)
        if is_new:
            self._left_out_runs.append(run)
        is_known = not is_new and self._left_out_runs[place] == run
        self._left_out_runs[place] = run
        scoring = result.scoring_usage.cost_usd
        if not is_known:
            self._spent(_or_unknown(used.cost_usd), _or_unknown(scoring), [_tokens(used, name) for name in _TOKENS])
            self._replaced_cached += min(result.cached_calls, _MOST)
        elif scoring != 0:
            self._replaced["scoring_cost_usd"].add(scoring or 0.0, scoring is None)

    def close(self) -> None:
        """Lets go of what only adding needs, the samples' ids above all. Nothing can be added any more."""
        self.sample_count = len(self._samples)
        self._samples = Numbering()
        self._rows.clear()
        self.left_out_count = len(self._left_out)
        self._left_out = Numbering()
        del self._run[:]

    def spending(self, rows: array[int]) -> Spending:
        """What the results in `rows` used."""
        return Spending(
            cost_usd=_amount(array("d", (self.cost[row] for row in rows))),
            scoring_cost_usd=_amount(array("d", (self.scoring_cost[row] for row in rows))),
            cached_calls=sum(self.cached_calls[row] for row in rows),
            **{name: _token_amount(array("q", (column[row] for row in rows))) for name, column in self.tokens.items()},
        )

    def replaced_spending(self) -> Spending | None:
        """What runs used whose results count no more; None where there are none."""
        if not any(tally.of for tally in self._replaced.values()):
            return None
        return Spending(
            **{name: tally.amount() for name, tally in self._replaced.items()}, cached_calls=self._replaced_cached
        )

    def _number_in(self, names: Names, metadata: Mapping[str, Any], field: str | None) -> int:
        value = None if field is None else value_of(metadata, field)
        if value is None:
            if len(self.fields) < MOST_FIELDS:
                self.fields.update(dict.fromkeys(metadata))
            return NONE
        return names.number(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))

    def _row(self, group: int, sample: int, epoch: int) -> int:
        """The row of a result, the next one if it has none yet."""
        rows = self._rows.get((group, epoch))
        if rows is None:
            rows = self._rows[group, epoch] = array("i")
        if sample >= len(rows):
            rows.extend([NONE] * (sample + 1 - len(rows)))
        if rows[sample] == NONE:
            rows[sample] = len(self)
        return rows[sample]

    def _replace(self, row: int, run: int) -> None:
        self.replaced_count += 1
        cost, scoring = self.cost[row], self.scoring_cost[row]
        if self._run[row] != run:
            self._spent(cost, scoring, [column[row] for column in self.tokens.values()])
            self._replaced_cached += self.cached_calls[row]
        # The same run again was scored anew: its own calls were paid for once, and its judges' twice.
        elif scoring != 0:
            self._replaced["scoring_cost_usd"].add(scoring, math.isnan(scoring))

    def _spent(self, cost: float, scoring: float, tokens: Sequence[int]) -> None:
        self._replaced["cost_usd"].add(cost, math.isnan(cost))
        self._replaced["scoring_cost_usd"].add(scoring, math.isnan(scoring))
        for name, count in zip(_TOKENS, tokens, strict=True):
            self._replaced[name].add(count, count == NONE)

    def _error_of(self, result: SampleResult) -> int:
        """The number of the kind of error, NONE where there is none; keeps what it says as the kind's example."""
        if result.failure is not None:
            kind, message = result.failure.kind, result.failure.message
        else:
            faults = ((name, fault_of(score)) for name, score in result.scores.items())
            found = next(((name, fault) for name, fault in faults if fault is not None), None)
            if found is None and result.verdict is not Verdict.ERROR:
                return NONE
            kind, message = ("unknown", "") if found is None else (f"scorer {found[0]}", found[1])
        number = self.errors.number(kind)
        self.examples[number] = message[:_MAX_EXAMPLE_CHARS]
        return number


class _Tally:
    """A sum as it grows."""

    __slots__ = ("known", "known_for", "of")

    def __init__(self) -> None:
        self.known, self.known_for, self.of = 0.0, 0, 0

    def add(self, value: float, unknown: bool) -> None:
        self.of += 1
        if not unknown:
            self.known += value
            self.known_for += 1

    def amount(self) -> Amount:
        return Amount(self.known, self.known_for, self.of)


def _run_of(result: SampleResult) -> int:
    """Which run of its sample a result came of: the task, which may have been gone on with; 31 bits tell two apart."""
    return hash((result.task_id, "" if result.task_id is not None else result.started)) & _MOST


def _or_unknown(value: float | None) -> float:
    return _UNKNOWN if value is None else value


def _tokens(usage: Usage, name: str) -> int:
    value: int | None = getattr(usage, name)
    return NONE if value is None else min(value, _MOST)


def _amount(values: array[float]) -> Amount:
    known = array("d", (value for value in values if not math.isnan(value)))
    return Amount(math.fsum(known), len(known), len(values))


def _token_amount(values: array[int]) -> Amount:
    known = array("q", (value for value in values if value != NONE))
    return Amount(sum(known), len(known), len(values))
