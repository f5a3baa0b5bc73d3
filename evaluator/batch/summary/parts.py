"""The parts of a batch summary: counts, shares, scores, spending and errors, for a whole batch or a
part of it.

Every unknown number is None (null in JSON). Shares are between 0 and 1, times are seconds, money is
US dollars.

The verdicts of judges that are asked several times about one answer, result by result, and how
stable they are.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import Annotated, Any, cast

from evaluator.batch.records import Score
from evaluator.batch.statistics import (
    Agreement,
    Estimate,
    JudgeVariance,
    Variance,
    judge_variance,
    noise_floor,
    panel_flips,
)
from evaluator.batch.summary.calibrated import Calibration
from evaluator.errors.messages import agree, amount
from evaluator.fields import MERGED, JsonForm, Key
from evaluator.lazy_dataclass import frozen

_MOST_JUDGES = 30
_NONE = -1


@frozen
class JudgeStability(JsonForm):
    """The stability of a scorer's verdicts, from the `n` of `of` results with at least two; each
    is asked `judges` times, of `models` models.

    Shares of pairs of verdicts on one answer that differ: `flips` of all, `flips_again` of one
    model that is asked again, `flips_model` between models; `flips_order` is the share of verdicts
    that change with the order of two candidates. `verdict_flips` is the probability that the
    majority decides otherwise when all are asked again. `variance` splits that of the values.

    Two judgings of the same answers differ by less than a noise floor in 95 % of cases:
    `noise_floor` for the share that passed, `value_noise_floor` for the mean of the values. None
    where a number is unknown.
    """

    n: int
    of: int
    judges: int
    models: int
    flips: float | None
    flips_again: float | None
    flips_model: float | None
    flips_order: float | None
    verdict_flips: float | None
    variance: JudgeVariance
    noise_floor: float | None
    value_noise_floor: float | None

    @property
    def value_noise(self) -> float | None:
        """The variance of a result's value that is due to the judges."""
        if self.variance.judge is None:
            return None
        return self.variance.judge / self.judges


class PanelColumns:
    """The ratings of several judges: for each judge a column of values and one of votes."""

    __slots__ = ("_flipped", "_models", "_swapped", "_values", "_votes")

    def __init__(self) -> None:
        self._models: dict[str, str] = {}
        self._values: dict[str, array[float]] = {}
        self._votes: dict[str, array[int]] = {}
        self._flipped = array("b")
        self._swapped = array("b")

    def put(self, row: int, metadata: Mapping[str, Any]) -> None:
        """Sets the ratings of a row to those in the metadata of a score, replacing earlier ones."""
        votes = _mapping(metadata.get("votes"))
        values = _mapping(metadata.get("values"))
        orders = metadata.get("flipped")
        if isinstance(orders, Mapping):
            flipped = list(_mapping(orders).values())
        else:
            flipped = [orders]
        flipped = [each for each in flipped if isinstance(each, bool)]
        known = row < len(self._flipped)
        if not (votes or flipped or known) or len(votes) > _MOST_JUDGES:
            return
        models = _mapping(metadata.get("models"))
        for judge in votes:
            if judge not in self._votes and len(self._votes) < _MOST_JUDGES:
                self._votes[judge] = array("b")
                self._values[judge] = array("d")
                self._models[judge] = str(models.get(judge, judge))
        for column in (self._flipped, self._swapped):
            _set(column, row, 0, missing=0)
        self._flipped[row] = sum(flipped)
        self._swapped[row] = len(flipped)
        for judge, column in self._votes.items():
            vote = votes.get(judge)
            _set(column, row, int(vote) if isinstance(vote, bool) else _NONE, missing=_NONE)
            value = values.get(judge)
            is_number = isinstance(value, int | float)
            _set(
                self._values[judge], row, float(value) if is_number else math.nan, missing=math.nan
            )

    def reorder(self, rows: Sequence[int]) -> None:
        """Replaces the ratings by those of `rows`, in this order."""

        def reordered(column: array[Any], missing: float) -> array[Any]:
            return array(column.typecode, (_at(column, row, missing) for row in rows))

        self._flipped = reordered(self._flipped, 0)
        self._swapped = reordered(self._swapped, 0)
        for judge, column in self._votes.items():
            self._votes[judge] = reordered(column, _NONE)
            self._values[judge] = reordered(self._values[judge], math.nan)

    def stability(self, rows: Sequence[int]) -> JudgeStability | None:
        """The stability over `rows`; None where no judge is asked twice in them."""
        ballots = Counter(
            tuple(_at(column, row, _NONE) for column in self._votes.values()) for row in rows
        )
        swapped = sum(_at(self._swapped, row, 0) for row in rows)
        counts = {ballot: n for ballot, n in ballots.items() if len(ballot) - ballot.count(-1) > 1}
        n = sum(counts.values())
        if not n and not swapped:
            return None
        models = list(self._models.values())
        again = [0, 0]
        other = [0, 0]
        for ballot, count in counts.items():
            for (i, first), (j, second) in combinations(enumerate(ballot), 2):
                if _NONE not in (first, second):
                    if models[i] == models[j]:
                        pairs = again
                    else:
                        pairs = other
                    pairs[0] += count * (first != second)
                    pairs[1] += count
        flips = [_share(again[0] + other[0], again[1] + other[1]), _share(*again), _share(*other)]
        passed = sum(count * ballot.count(1) for ballot, count in counts.items())
        votes = passed + sum(count * ballot.count(0) for ballot, count in counts.items())
        judges = len(models)
        if flips[1] is None:
            noise = flips[0]
        else:
            noise = flips[1]
        if noise is None:
            verdicts = None
        else:
            verdicts = panel_flips(passed / votes, noise, judges)
        if judges:
            variance = judge_variance(self._complete(rows))
        else:
            variance = judge_variance(())
        judge = variance.judge
        return JudgeStability(
            n or sum(_at(self._swapped, row, 0) > 0 for row in rows),
            len(rows),
            judges=max(judges, 1),
            models=max(len(set(models)), 1),
            flips=flips[0],
            flips_again=flips[1],
            flips_model=flips[2],
            flips_order=_share(sum(_at(self._flipped, row, 0) for row in rows), swapped),
            verdict_flips=verdicts,
            variance=variance,
            noise_floor=None if verdicts is None else noise_floor(verdicts / n),
            value_noise_floor=None if judge is None else noise_floor(2 * judge / judges / n),
        )

    def _complete(self, rows: Sequence[int]) -> Iterable[list[list[float]]]:
        """The values of every row that all judges rated, by model; of models that are asked
        equally often.
        """
        by_model: dict[str, list[array[float]]] = {}
        for judge, model in self._models.items():
            by_model.setdefault(model, []).append(self._values[judge])
        if len({len(columns) for columns in by_model.values()}) > 1:
            return
        for row in rows:
            values = [
                [_at(column, row, math.nan) for column in columns] for columns in by_model.values()
            ]
            if not any(math.isnan(value) for own in values for value in own):
                yield values


def flips_of(score: Score) -> float | None:
    """The share of the pairs of verdicts behind `score` that differ; None without two verdicts."""
    votes = _mapping(score.metadata.get("votes")).values()
    passed = sum(vote is True for vote in votes)
    failed = sum(vote is False for vote in votes)
    return _share(passed * failed, math.comb(passed + failed, 2))


def has_ratings(metadata: Mapping[str, Any]) -> bool:
    """Whether several verdicts are behind the score with this metadata."""
    return "votes" in metadata or "flipped" in metadata


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _set(column: array[Any], row: int, value: float, *, missing: float) -> None:
    if row >= len(column):
        column.extend([missing] * (row + 1 - len(column)))
    column[row] = value


def _at(column: array[Any], row: int, missing: Any) -> Any:
    return column[row] if row < len(column) else missing


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


@frozen
class VerdictCounts(JsonForm):
    """The number of results with each verdict. `pending` ones do not exist yet; None where their
    number is unknown.
    """

    computed = ("results", "judged", "total")
    passed: int = 0
    failed: int = 0
    error: int = 0
    unscored: int = 0
    pending: int | None = None

    def __str__(self) -> str:
        if self.pending is None:
            of = ""
        else:
            of = f" of {self.total:,}"
        return (
            f"{self.results:,}{of} results ({self.passed:,} passed, {self.failed:,} failed, "
            f"{self.error:,} error, "
            f"{self.unscored:,} unscored)"
        )

    @property
    def results(self) -> int:
        return self.passed + self.failed + self.error + self.unscored

    @property
    def judged(self) -> int:
        return self.passed + self.failed

    @property
    def total(self) -> int:
        """N: the results and the pending ones."""
        return self.results + (self.pending or 0)


@frozen
class Accuracy(JsonForm):
    """passed / (passed + failed) as `estimate`, with its bounds over errors and unscored results.

    `if_failed` counts all of these as failed, `if_passed` all as passed; None without a result.
    Pending results are in neither.
    """

    passed: int
    judged: int
    of: int
    estimate: Estimate
    if_failed: float | None
    if_passed: float | None


@frozen
class ScorerSummary(JsonForm):
    """The scores of one scorer for `of` results.

    `n` have a value, on `errors` the scorer failed, `unscored` it could not judge, `absent` have no
    answer to score, and `waiting` have one that it has not scored, as after an `evaluator score`
    that was stopped; the five make up `of`. `value` is the mean of the values, `pass_rate`
    the share of `passed` among `passed` and `failed`. `grades` counts each grade of a judge that
    gives grades.
    """

    n: int
    of: int
    errors: int
    unscored: int
    absent: int
    value: Estimate
    passed: int
    failed: int
    pass_rate: Estimate
    grades: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting: int = 0


@frozen
class Part(JsonForm):
    """The results of one template and variant, or those of them that share a value of a metadata
    field.
    """

    counts: VerdictCounts
    accuracy: Accuracy
    scorers: Mapping[str, ScorerSummary]


@frozen
class ReducedScore(JsonForm):
    """The mean over samples after `reducer` has combined each sample's epochs into one number.

    `scorer` None: whether the whole result passed. `n` of `of` samples have enough judged epochs.
    """

    scorer: str | None
    reducer: str
    estimate: Estimate
    n: int
    of: int


@frozen
class MetricValue(JsonForm):
    """A metric's value, computed from `n` of `of` results. None where it is unknown; `error` says
    why.

    `se`, `low` and `high` are its standard error and 95 % interval, where they are known. A
    function that returns it leaves `of` out.
    """

    value: float | None
    n: int
    of: int = 0
    error: str = ""
    se: float | None = None
    low: float | None = None
    high: float | None = None


@frozen
class Amount(JsonForm):
    """A sum over results: `known` covers `known_for` of `of` results. `total` is None unless it
    covers all of them.
    """

    known: float
    known_for: int
    of: int

    @property
    def total(self) -> float | None:
        if self.known_for == self.of:
            return self.known
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "known": self.known,
            "known_for": self.known_for,
            "of": self.of,
        }


@frozen
class Spending(JsonForm):
    """The usage of results. `scoring_cost_usd` is the cost of scoring them, with its tokens in
    `scoring_input_tokens` and `scoring_output_tokens`; `cache_saved_usd` is what the prompt caches
    of providers saved of both costs; the other fields count only the tasks.
    `interrupted_calls` were in flight when a process ended and may be billed too: with them, the
    amounts are lower bounds.
    """

    cost_usd: Amount
    scoring_cost_usd: Amount
    cache_saved_usd: Amount
    input_tokens: Amount
    output_tokens: Amount
    cached_tokens: Amount
    reasoning_tokens: Amount
    scoring_input_tokens: Amount
    scoring_output_tokens: Amount
    cached_calls: int
    interrupted_calls: int


def interrupted_text(calls: int) -> str:
    """Why amounts are lower bounds, for a person; empty without such calls."""
    if not calls:
        return ""
    what = f"{amount(calls, 'call')} {agree(calls, 'was', 'were')}"
    return f"{what} in flight when a process ended and may be billed too"


@frozen
class Percentiles(JsonForm):
    """The median, 90th and 99th percentile of `n` results; None where n is 0."""

    p50: float | None
    p90: float | None
    p99: float | None
    n: int


@frozen
class ErrorKind(JsonForm):
    """The number of results with one kind of error, and one of its messages.

    `kind` is the failure's kind, or `scorer NAME` where the task succeeded and the scorer failed.
    """

    kind: str
    count: int
    example: str


@frozen
class ConfusionMatrix(JsonForm):
    """A scorer's extracted answers by target: `counts[i][j]` times `answers[j]` for `targets[i]`.

    `no_answer[i]` results with that target had no answer. `n` is the sum of counts, `of` the sum of
    both.
    """

    computed = ("n", "of")
    targets: tuple[str, ...]
    answers: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    no_answer: tuple[int, ...]

    @property
    def n(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def of(self) -> int:
        return self.n + sum(self.no_answer)


@frozen
class JudgeAgreement(JsonForm):
    """The agreement of `judges`, beyond chance, on whether results passed.

    They are the judges of the scorer `votes_of`; with `votes_of` None they are two scorers whose
    values are all 0 or 1. `measure` is `cohen_kappa` for two judges and `krippendorff_alpha` for
    all judges of a vote. `same` is the share of `agreement.n` results on which all ratings are
    equal; None where n is 0.
    """

    judges: tuple[str, ...]
    votes_of: str | None
    measure: str
    same: float | None
    agreement: Annotated[Agreement, MERGED]


@frozen
class GroupSummary(JsonForm):
    """All results of one template with one variant. `by` has a part for each value of the
    `group_by` field.

    `variance` has the variance components for each scorer, and under the empty name those of
    whether the whole result passed. It is empty where no sample has two epochs. `metrics` are the
    values of the batch's metrics by name. `calibrations` has the scorers with labels, `stability`
    those with several verdicts on one answer.
    """

    template: str
    variant: str
    part: Annotated[Part, MERGED]
    by: Mapping[str, Part]
    samples: int
    epochs: int
    reduced: tuple[ReducedScore, ...]
    variance: Mapping[str, Variance]
    spending: Spending
    durations: Annotated[Percentiles, Key("duration_s")]
    output_tokens: Percentiles
    errors: tuple[ErrorKind, ...]
    confusion: Mapping[str, ConfusionMatrix]
    agreement: tuple[JudgeAgreement, ...] = ()
    metrics: Mapping[str, MetricValue] = field(default_factory=dict[str, MetricValue])
    calibrations: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])
    stability: Mapping[str, JudgeStability] = field(default_factory=dict[str, JudgeStability])

    # The names of the JSON object.

    @property
    def counts(self) -> VerdictCounts:
        return self.part.counts

    @property
    def accuracy(self) -> Accuracy:
        return self.part.accuracy

    @property
    def scorers(self) -> Mapping[str, ScorerSummary]:
        return self.part.scorers

    @property
    def duration_s(self) -> Percentiles:
        return self.durations

    @property
    def name(self) -> str:
        if self.variant:
            return f"{self.template} × {self.variant}"
        return self.template
