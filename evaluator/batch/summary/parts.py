"""The parts of a batch summary: counts, shares, scores, spending and errors, for a whole batch or a
part of it.

Every unknown number is None (null in JSON). Shares are between 0 and 1, times are seconds, money is
US dollars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from evaluator.batch.statistics import Agreement, Estimate, Variance
from evaluator.batch.summary.calibrated import Calibration
from evaluator.batch.summary.stability import JudgeStability
from evaluator.fields import MERGED, JsonForm, Key, to_dict
from evaluator.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Part(JsonForm):
    """The results of one template and variant, or those of them that share a value of a metadata
    field.
    """

    counts: VerdictCounts
    accuracy: Accuracy
    scorers: Mapping[str, ScorerSummary]


@dataclass(frozen=True, slots=True)
class ReducedScore(JsonForm):
    """The mean over samples after `reducer` has combined each sample's epochs into one number.

    `scorer` None: whether the whole result passed. `n` of `of` samples have enough judged epochs.
    """

    scorer: str | None
    reducer: str
    estimate: Estimate
    n: int
    of: int


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        return {"total": self.total, **to_dict(self)}


@dataclass(frozen=True, slots=True)
class Spending(JsonForm):
    """The usage of results. `scoring_cost_usd` is the cost of scoring them, `cache_saved_usd` what
    the prompt caches of providers saved of both costs; the other fields count only the tasks.
    """

    cost_usd: Amount
    scoring_cost_usd: Amount
    cache_saved_usd: Amount
    input_tokens: Amount
    output_tokens: Amount
    cached_tokens: Amount
    reasoning_tokens: Amount
    cached_calls: int


@dataclass(frozen=True, slots=True)
class Percentiles(JsonForm):
    """The median, 90th and 99th percentile of `n` results; None where n is 0."""

    p50: float | None
    p90: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, slots=True)
class ErrorKind(JsonForm):
    """The number of results with one kind of error, and one of its messages.

    `kind` is the failure's kind, or `scorer NAME` where the task succeeded and the scorer failed.
    """

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
