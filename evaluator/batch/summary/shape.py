"""The summary of a batch as values, and its JSON.

The JSON is version 1: keys are added to it without a new version, and none changes its meaning or goes. Every
number that is unknown is null. Shares are between 0 and 1, times seconds, money US dollars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.batch.statistics import Agreement, Estimate, Variance

VERSION = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """How many results have which verdict. `pending` have none yet; None where nobody said how many there will be."""

    passed: int = 0
    failed: int = 0
    error: int = 0
    unscored: int = 0
    pending: int | None = None

    def __str__(self) -> str:
        of = "" if self.pending is None else f" of {self.total:,}"
        return (
            f"{self.results:,}{of} results ({self.passed:,} passed, {self.failed:,} failed, {self.error:,} error, "
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
        """N: results and what is pending."""
        return self.results + (self.pending or 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "failed": self.failed,
            "error": self.error,
            "unscored": self.unscored,
            "pending": self.pending,
            "results": self.results,
            "judged": self.judged,
            "total": self.total,
        }


@dataclass(frozen=True, slots=True)
class Accuracy:
    """passed / (passed + failed), as `estimate`, with what it would be if errors and unscored had come to something.

    `if_failed` counts them all as failed, `if_passed` all as passed; None where there is no result. What is pending
    is in neither.
    """

    estimate: Estimate
    passed: int
    judged: int
    of: int
    if_failed: float | None
    if_passed: float | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "judged": self.judged,
            "of": self.of,
            "estimate": self.estimate.to_dict(),
            "if_failed": self.if_failed,
            "if_passed": self.if_passed,
        }


@dataclass(frozen=True, slots=True)
class ScorerSummary:
    """What one scorer said of `of` results: it gave `n` a value, failed on `errors`, could not judge `unscored`, and
    `absent` had no answer to give it. The four make up `of`. `value` is the mean of its values; `pass_rate` the
    share of `passed` among `passed` and `failed`.
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

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "of": self.of,
            "errors": self.errors,
            "unscored": self.unscored,
            "absent": self.absent,
            "value": self.value.to_dict(),
            "passed": self.passed,
            "failed": self.failed,
            "pass_rate": self.pass_rate.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Part:
    """The results of a template and variant, or those among them that share a value of the metadata."""

    counts: Counts
    accuracy: Accuracy
    scorers: Mapping[str, ScorerSummary]

    def to_dict(self) -> dict[str, Any]:
        return {
            "counts": self.counts.to_dict(),
            "accuracy": self.accuracy.to_dict(),
            "scorers": {name: scorer.to_dict() for name, scorer in self.scorers.items()},
        }


@dataclass(frozen=True, slots=True)
class Reduced:
    """Samples' epochs made one number each, and the mean of those. `scorer` None: whether the whole result passed.

    It is of the `n` of `of` samples that have enough judged epochs.
    """

    scorer: str | None
    reducer: str
    estimate: Estimate
    n: int
    of: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "scorer": self.scorer,
            "reducer": self.reducer,
            "estimate": self.estimate.to_dict(),
            "n": self.n,
            "of": self.of,
        }


@dataclass(frozen=True, slots=True)
class Amount:
    """A sum of what is `known`, which it is for `known_for` of `of` results; `total` only where it is for all."""

    known: float
    known_for: int
    of: int

    @property
    def total(self) -> float | None:
        return self.known if self.known_for == self.of else None

    def to_dict(self) -> dict[str, Any]:
        return {"total": self.total, "known": self.known, "known_for": self.known_for, "of": self.of}


@dataclass(frozen=True, slots=True)
class Spending:
    """What results used. `cost_usd` and tokens are the tasks' own, `scoring_cost_usd` what judging them cost."""

    cost_usd: Amount
    scoring_cost_usd: Amount
    input_tokens: Amount
    output_tokens: Amount
    cached_tokens: Amount
    reasoning_tokens: Amount
    cached_calls: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "cost_usd": self.cost_usd.to_dict(),
            "scoring_cost_usd": self.scoring_cost_usd.to_dict(),
            "input_tokens": self.input_tokens.to_dict(),
            "output_tokens": self.output_tokens.to_dict(),
            "cached_tokens": self.cached_tokens.to_dict(),
            "reasoning_tokens": self.reasoning_tokens.to_dict(),
            "cached_calls": self.cached_calls,
        }


@dataclass(frozen=True, slots=True)
class Percentiles:
    """What half, nine tenths and 99 of 100 of `n` results do not exceed; None where n is 0."""

    p50: float | None
    p90: float | None
    p99: float | None
    n: int

    def to_dict(self) -> dict[str, Any]:
        return {"p50": self.p50, "p90": self.p90, "p99": self.p99, "n": self.n}


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How many results have an error of one kind, and what one of them said. `kind` is that of the failure, or
    `scorer NAME` where the task came to an answer and the scorer failed.
    """

    kind: str
    count: int
    example: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "example": self.example}


@dataclass(frozen=True, slots=True)
class Confusion:
    """What a scorer read out of results whose target is a label: `counts[i][j]` times `answers[j]` for `targets[i]`.

    `no_answer[i]` results with that target had none to read. `n` is the sum of counts, `of` that of both.
    """

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

    def to_dict(self) -> dict[str, Any]:
        return {
            "targets": list(self.targets),
            "answers": list(self.answers),
            "counts": [list(row) for row in self.counts],
            "no_answer": list(self.no_answer),
            "n": self.n,
            "of": self.of,
        }


@dataclass(frozen=True, slots=True)
class Judges:
    """How far `judges` agree on whether results passed, beyond chance.

    They are the judges of the scorer `votes_of`, or with `votes_of` None two scorers that say yes or no. `measure` is
    `cohen_kappa` for two and `krippendorff_alpha` for all judges of a vote. `same` is the share of `agreement.n`
    results of which every rating is the same, None where n is 0.
    """

    judges: tuple[str, ...]
    votes_of: str | None
    measure: str
    agreement: Agreement
    same: float | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "judges": list(self.judges),
            "votes_of": self.votes_of,
            "measure": self.measure,
            "same": self.same,
            **self.agreement.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """All results of one template with one variant. `by` has a part for each value of the metadata field asked for.

    `variance` has the components for each scorer, and under the empty name for whether the whole result passed; it is
    empty where no sample has two epochs.
    """

    template: str
    variant: str
    part: Part
    by: Mapping[str, Part]
    samples: int
    epochs: int
    reduced: tuple[Reduced, ...]
    variance: Mapping[str, Variance]
    spending: Spending
    durations: Percentiles
    output_tokens: Percentiles
    errors: tuple[ErrorKind, ...]
    confusion: Mapping[str, Confusion]
    agreement: tuple[Judges, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.template} × {self.variant}" if self.variant else self.template

    def to_dict(self) -> dict[str, Any]:
        return {
            "template": self.template,
            "variant": self.variant,
            **self.part.to_dict(),
            "by": {value: part.to_dict() for value, part in self.by.items()},
            "samples": self.samples,
            "epochs": self.epochs,
            "reduced": [reduced.to_dict() for reduced in self.reduced],
            "variance": {name: variance.to_dict() for name, variance in self.variance.items()},
            "spending": self.spending.to_dict(),
            "duration_s": self.durations.to_dict(),
            "output_tokens": self.output_tokens.to_dict(),
            "errors": [error.to_dict() for error in self.errors],
            "confusion": {name: confusion.to_dict() for name, confusion in self.confusion.items()},
            "agreement": [judges.to_dict() for judges in self.agreement],
        }


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A whole batch. `counts`, `spending`, `durations` and `errors` are of all groups together; `samples` are those
    with a result.

    `replaced` earlier results gave way to later ones of the same sample (retries), and `left_out` results are no part
    of what the batch asks for now; what they used is in `replaced_spending` and nowhere else. `unfinished` is why the
    batch is not complete although its counts may look so, empty where there is no such reason. `notes` say what a
    reader of the numbers has to know. `with_cluster` results have the field `cluster`, and `with_group_by` the field
    `group_by`; None where none is named. Where none has the field `cluster`, shares and
    means have no interval.

    As a text it is `render_summary`, in a notebook `render_markdown`.
    """

    counts: Counts
    groups: tuple[GroupSummary, ...]
    samples: int
    epochs: int
    spending: Spending
    durations: Percentiles
    errors: tuple[ErrorKind, ...]
    replaced: int = 0
    replaced_spending: Spending | None = None
    cluster: str | None = None
    group_by: str | None = None
    notes: tuple[str, ...] = ()
    left_out: int = 0
    unfinished: str = ""
    with_cluster: int | None = None
    with_group_by: int | None = None

    def __repr__(self) -> str:
        groups = f"{len(self.groups):,} templates × variants" if len(self.groups) != 1 else repr(self.groups[0].name)
        return f"<BatchSummary of {groups}: {self.counts}{'' if self.complete else ', not complete'}>"

    def __str__(self) -> str:
        from evaluator.batch.summary.rendering import render_summary

        return render_summary(self)

    def _repr_markdown_(self) -> str:
        from evaluator.batch.summary.rendering import render_markdown

        return render_markdown(self)

    @property
    def complete(self) -> bool:
        """Nothing is pending, as far as anybody knows how many results there will be."""
        return self.counts.pending == 0 and not self.unfinished

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "complete": self.complete,
            "unfinished": self.unfinished,
            "counts": self.counts.to_dict(),
            "samples": self.samples,
            "epochs": self.epochs,
            "groups": [group.to_dict() for group in self.groups],
            "spending": self.spending.to_dict(),
            "duration_s": self.durations.to_dict(),
            "errors": [error.to_dict() for error in self.errors],
            "replaced": self.replaced,
            "left_out": self.left_out,
            "replaced_spending": None if self.replaced_spending is None else self.replaced_spending.to_dict(),
            "cluster": self.cluster,
            "group_by": self.group_by,
            "with_cluster": self.with_cluster,
            "with_group_by": self.with_group_by,
            "notes": list(self.notes),
        }
