"""The summary of a batch: its numbers as values, as JSON, as text and as Markdown.

The tables of one template and variant, for a terminal and for Markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from evaluator.batch.decision import Decision
from evaluator.batch.statistics import Estimate
from evaluator.batch.summary.calibrated import corrected_table
from evaluator.batch.summary.parts import (
    Amount,
    ErrorKind,
    GroupSummary,
    JudgeAgreement,
    Part,
    Percentiles,
    ScorerSummary,
    Spending,
    VerdictCounts,
    interrupted_text,
)
from evaluator.batch.summary.tables import (
    UNKNOWN,
    Table,
    Tabular,
    interval,
    number,
    percent,
    percent_interval,
)
from evaluator.errors.messages import amount as counted
from evaluator.errors.messages import duration_text
from evaluator.fields import JsonForm, Key, to_dict
from evaluator.lazy_dataclass import frozen

MOST_PARTS = 20
"""Groups of one table; more are folded."""
_MEASURES = {"cohen_kappa": "Cohen's κ", "krippendorff_alpha": "Krippendorff's α"}


def group_tables(group: GroupSummary, group_by: str, *, shows_spending: bool) -> Iterable[Table]:
    """Every table of a group that has something in it."""
    if group.part.scorers and not _repeats_verdicts(group.part):
        head = ["scorer", "n of N", "mean", "± se", "interval", "passed", "failed"]
        rows = [_scorer_row(name, scorer) for name, scorer in group.part.scorers.items()]
        yield Table(
            f"Scorers: {group.name}",
            head,
            rows=rows,
            lines=list(_missing_values(group.part.scorers)),
        )
    if group.calibrations:
        yield corrected_table(group.name, group.calibrations)
    if group.by:
        yield _folded(f"By {group_by}: {group.name}", group.by, first=group_by)
    if group.metrics:
        yield _metrics_table(group)
    if group.reduced:
        rows = [
            [
                f"{reduced.reducer} of {reduced.scorer or 'passed'}",
                f"{reduced.n:,} of {reduced.of:,}",
                *_mean_cells(reduced.estimate),
            ]
            for reduced in group.reduced
        ]
        head = ["", "n of N samples", "mean", "± se", "interval"]
        yield Table(f"Epochs, up to {group.epochs}: {group.name}", head, rows=rows)
    if group.agreement:
        head = ["judges", "measure", "n of N", "value", "interval", "all equal"]
        yield Table(
            f"Agreement: {group.name}",
            head,
            rows=[_agreement_row(found) for found in group.agreement],
        )
    if group.stability:
        yield _stability_table(group)
    if group.variance:
        rows = [
            [
                name or "passed",
                number(found.within),
                number(found.between),
                f"{found.samples:,}",
                f"{found.values:,}",
            ]
            for name, found in group.variance.items()
        ]
        yield Table(
            f"Variance: {group.name}",
            ["", "within samples", "between samples", "samples", "values"],
            rows=rows,
        )
    if shows_spending:
        yield Table(
            f"Used: {group.name}",
            lines=[*spending_lines(group.spending), duration_line(group.durations)],
        )
    for name, confusion in group.confusion.items():
        rows = [
            [target, *(f"{count:,}" for count in counts), f"{missing:,}"]
            for target, counts, missing in zip(
                confusion.targets, confusion.counts, confusion.no_answer, strict=True
            )
        ]
        title = f"Answers of {name} by target, {confusion.n:,} of {confusion.of:,}: {group.name}"
        yield Table(title, ["target ↓ answer →", *confusion.answers, "no answer"], rows=rows)


def _metrics_table(group: GroupSummary) -> Table:
    rows = [
        [
            name,
            f"{one.n:,} of {one.of:,}",
            number(one.value),
            _error_cell(one.se),
            interval(one.low, one.high),
        ]
        for name, one in group.metrics.items()
    ]
    lines = [f"{name}: {one.error}" for name, one in group.metrics.items() if one.error]
    head = ["metric", "n of N", "value", "± se", "interval"]
    return Table(f"Metrics: {group.name}", head, rows=rows, lines=lines)


def _stability_table(group: GroupSummary) -> Table:
    rows: list[list[str]] = []
    lines: list[str] = []
    for name, found in group.stability.items():
        shares = (found.flips, found.flips_again, found.flips_model, found.flips_order)
        variance = found.variance
        rows.append(
            [
                name,
                f"{found.n:,} of {found.of:,}",
                f"{found.judges}",
                *(percent(share) for share in shares),
                number(variance.rows),
                number(variance.model),
                number(variance.judge),
            ]
        )
        if found.noise_floor is not None:
            lines.append(
                f"{name}: asked again, {percent(found.verdict_flips)} of verdicts would change; "
                f"differences of the share below ± {100 * found.noise_floor:.1f} points are noise "
                "of the judge"
            )
    head = ["scorer", "n of N", "asked", "flips", "again", "other model", "swapped"]
    head += ["variance: rows", "model", "judge"]
    return Table(f"Stability of verdicts: {group.name}", head, rows=rows, lines=lines)


def _repeats_verdicts(part: Part) -> bool:
    """Whether the only scorer says just what the verdicts say: it passed and failed the same
    results, with 1 and 0.
    """
    if len(part.scorers) != 1:
        return False
    (scorer,) = part.scorers.values()
    verdicts = (
        part.counts.passed,
        part.counts.failed,
        part.accuracy.judged,
        part.accuracy.estimate.mean,
    )
    return (
        scorer.passed,
        scorer.failed,
        scorer.n,
        scorer.value.mean,
    ) == verdicts and scorer.n == scorer.of


def _folded(title: str, parts: Mapping[str, Part], first: str) -> Table:
    """The table of `parts`; of many, the first ones with the lowest and with the highest share."""
    if len(parts) <= MOST_PARTS:
        return outcome_table(title, parts, first=first)
    ranked = sorted(parts, key=lambda name: parts[name].accuracy.estimate.mean or 0.0)
    half = MOST_PARTS // 2
    shown = outcome_table(
        title, {name: parts[name] for name in (*ranked[:half], *ranked[-half:])}, first=first
    )
    line = (
        f"the {half} with the lowest and the {half} with the highest share, of {len(parts):,}; "
        "--json has all"
    )
    return replace(shown, lines=[line, *shown.lines])


def outcome_table(title: str, parts: Mapping[str, Part], first: str) -> Table:
    """The share of passed results for each part, with bounds if some results were not judged."""
    head = [first, "passed", "share", "interval", "N", "error", "unscored", "pending"]
    rows: list[list[str]] = []
    lines: list[str] = []
    for name, part in parts.items():
        accuracy = part.accuracy
        counts = part.counts
        rows.append(
            [
                name,
                f"{accuracy.passed:,} of {accuracy.judged:,}",
                percent(accuracy.estimate.mean),
                percent_interval(accuracy.estimate),
                f"{accuracy.of:,}",
                f"{counts.error:,}",
                f"{counts.unscored:,}",
                UNKNOWN if counts.pending is None else f"{counts.pending:,}",
            ]
        )
        if rest := counts.results - counts.judged:
            bounds = f"{percent(accuracy.if_failed)} to {percent(accuracy.if_passed)}"
            lines.append(
                f"{name}: {bounds} if all {rest:,} error or unscored results had failed or passed"
            )
    return Table(title, head, rows=rows, lines=lines)


def spending_lines(spending: Spending) -> Iterable[str]:
    yield cost_line(spending)
    if spending.cached_calls:
        cached = f", {counted(spending.cached_calls, 'call')} from the cache"
    else:
        cached = ""
    if spending.interrupted_calls:
        bound = "at least "
    else:
        bound = ""
    yield (
        f"tokens: {bound}{_tokens(spending.input_tokens)} in, {_tokens(spending.output_tokens)} "
        f"out{_scoring_tokens(spending, bound)}{cached}"
    )
    sent = spending.input_tokens
    if spending.cache_saved_usd.known or spending.cached_tokens.known:
        share = spending.cached_tokens.known / max(1, sent.known)
        yield (
            f"prompt caches: {percent(share)} of the tokens in, saved "
            f"{_money(spending.cache_saved_usd)}"
        )


def _scoring_tokens(spending: Spending, bound: str) -> str:
    sent = spending.scoring_input_tokens
    received = spending.scoring_output_tokens
    if sent.total == 0 and received.total == 0:
        return ""
    return f", and scoring {bound}{_tokens(sent)} in, {_tokens(received)} out"


def cost_line(spending: Spending) -> str:
    interrupted = spending.interrupted_calls
    scoring = spending.scoring_cost_usd
    if scoring.total == 0:
        scoring_cost = ""
    else:
        scoring_cost = f", and scoring {_money(scoring, is_bound=interrupted > 0)}"
    line = f"cost: {_money(spending.cost_usd, is_bound=interrupted > 0)}{scoring_cost}"
    if interrupted:
        line += f" ({interrupted_text(interrupted)})"
    return line


def duration_line(found: Percentiles) -> str:
    if found.n == 0:
        return f"duration: {UNKNOWN}"
    shares = (("p50", found.p50), ("p90", found.p90), ("p99", found.p99))
    shown = ", ".join(
        f"{name} {UNKNOWN if value is None else duration_text(value)}" for name, value in shares
    )
    return f"duration: {shown}, of {found.n:,}"


def _money(amount: Amount, *, is_bound: bool = False) -> str:
    """The amount in dollars; `is_bound`: it is a lower bound, also where it is known for all."""
    if amount.known_for == amount.of:
        bound = "at least " if is_bound else ""
        return f"{bound}${amount.known:.4f}"
    if not amount.known_for:
        results = counted(amount.of, "result")
        return f"unknown for {'all ' if amount.of != 1 else ''}{results}"
    results = counted(amount.of, "result")
    return f"at least ${amount.known:.4f}, known for {amount.known_for:,} of {results}"


def _tokens(amount: Amount) -> str:
    if amount.known_for == amount.of:
        known = ""
    else:
        known = f" ({amount.known_for:,} of {amount.of:,} known)"
    return f"{amount.known:,.0f}{known}"


def _scorer_row(name: str, scorer: ScorerSummary) -> list[str]:
    counts = (f"{scorer.passed:,}", f"{scorer.failed:,}")
    return [name, f"{scorer.n:,} of {scorer.of:,}", *_mean_cells(scorer.value), *counts]


def _mean_cells(estimate: Estimate) -> tuple[str, str, str]:
    """The mean, its standard error (below 1 with two digits; none of one result) and its
    interval.
    """
    se = estimate.se if estimate.n > 1 else None
    return (number(estimate.mean), _error_cell(se), interval(estimate.low, estimate.high))


def _error_cell(se: float | None) -> str:
    if se is None or se >= 1:
        return number(se)
    return f"{se:.2g}"


def _missing_values(scorers: Mapping[str, ScorerSummary]) -> Iterator[str]:
    """Why results have no value from a scorer, and how often a judge gave each grade."""
    for name, scorer in scorers.items():
        counts = {
            "errors": scorer.errors,
            "unscored": scorer.unscored,
            "without an answer to score": scorer.absent,
            "not scored yet": scorer.waiting,
        }
        if reasons := [f"{count:,} {why}" for why, count in counts.items() if count]:
            yield f"{name}: {', '.join(reasons)}, of {scorer.of:,}"
        if scorer.grades:
            shares = (
                f"{grade} {count:,} of {scorer.of:,} ({percent(count / scorer.of)})"
                for grade, count in scorer.grades.items()
            )
            yield f"{name}: {', '.join(shares)}"


def _agreement_row(found: JudgeAgreement) -> list[str]:
    agreement = found.agreement
    if len(found.judges) == 2:
        names = " and ".join(found.judges)
    else:
        names = f"all {len(found.judges)}"
    if found.votes_of is not None:
        names = f"{found.votes_of}: {names}"
    counts = f"{agreement.n:,} of {agreement.of:,}"
    value = number(agreement.value)
    return [
        names,
        _MEASURES[found.measure],
        counts,
        value,
        interval(agreement.low, agreement.high),
        percent(found.same),
    ]


VERSION = 1


@frozen
class BatchSummary(Tabular, JsonForm):
    """A whole batch. `counts`, `spending`, `durations` and `errors` cover all groups; `samples`
    have a result.

    `replaced` earlier results were replaced by later ones of the same sample (retries), and
    `left_out` results are not part of what the batch asks for now; what they used is only in
    `replaced_spending`. `unfinished` is why the batch is not complete although its counts may look
    complete; empty without such a reason. `notes` are what a reader of the numbers has to know.
    `with_cluster` results have the field `cluster`, `with_group_by` the field `group_by`; None
    where no field is named. Where no result has the field `cluster`, shares and means have no
    interval. `decision` is what the batch had to decide, and its looks.

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
    decision: Decision | None = None

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
        data = {"version": VERSION, "complete": self.complete, **to_dict(self)}
        if self.decision is not None:
            data["decision"] = self.decision.shown()
        return data

    def tables(self) -> Iterable[Table]:
        yield Table("Batch", lines=list(self._lines()))
        if self.decision is not None and self.decision.looks:
            yield Table("Decision", lines=list(self.decision.lines()))
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
            results = f"{counted(counts.results, 'result')} (total unknown)"
        else:
            results = f"{counts.results:,} of {counted(counts.total, 'result')}"
        so_far = "" if counts.pending == 0 else " so far"
        yield (
            f"{results}, of {counted(self.samples, 'sample')}{so_far}: {counts.passed:,} passed, "
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
