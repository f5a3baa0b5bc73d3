"""The tables of one template and variant, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from evaluator.batch.statistics import Agreement, Estimate
from evaluator.batch.summary.parts import (
    Amount,
    GroupSummary,
    JudgeAgreement,
    MetricValue,
    Part,
    Percentiles,
    ScorerSummary,
    Spending,
)
from evaluator.batch.summary.tables import UNKNOWN, Table, number
from evaluator.errors.messages import duration_text

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
    if group.by:
        yield _folded(f"By {group_by}: {group.name}", group.by, first=group_by)
    if group.metrics:
        rows = [
            [
                name,
                f"{one.n:,} of {one.of:,}",
                number(one.value),
                _error_cell(one.se),
                _interval(one),
            ]
            for name, one in group.metrics.items()
        ]
        lines = [f"{name}: {one.error}" for name, one in group.metrics.items() if one.error]
        yield Table(
            f"Metrics: {group.name}",
            ["metric", "n of N", "value", "± se", "interval"],
            rows=rows,
            lines=lines,
        )
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
                _percent(accuracy.estimate.mean),
                _percent_interval(accuracy.estimate),
                f"{accuracy.of:,}",
                f"{counts.error:,}",
                f"{counts.unscored:,}",
                UNKNOWN if counts.pending is None else f"{counts.pending:,}",
            ]
        )
        if rest := counts.results - counts.judged:
            bounds = f"{_percent(accuracy.if_failed)} to {_percent(accuracy.if_passed)}"
            lines.append(
                f"{name}: {bounds} if all {rest:,} error or unscored results had failed or passed"
            )
    return Table(title, head, rows=rows, lines=lines)


def spending_lines(spending: Spending) -> Iterable[str]:
    yield cost_line(spending)
    if spending.cached_calls:
        cached = f", {spending.cached_calls:,} calls from the cache"
    else:
        cached = ""
    yield (
        f"tokens: {_tokens(spending.input_tokens)} in, {_tokens(spending.output_tokens)} "
        f"out{cached}"
    )


def cost_line(spending: Spending) -> str:
    scoring = spending.scoring_cost_usd
    if scoring.total == 0:
        scoring_cost = ""
    else:
        scoring_cost = f", and scoring {_money(scoring)}"
    return f"cost: {_money(spending.cost_usd)}{scoring_cost}"


def duration_line(found: Percentiles) -> str:
    if found.n == 0:
        return f"duration: {UNKNOWN}"
    shares = (("p50", found.p50), ("p90", found.p90), ("p99", found.p99))
    shown = ", ".join(
        f"{name} {UNKNOWN if value is None else duration_text(value)}" for name, value in shares
    )
    return f"duration: {shown}, of {found.n:,}"


def _money(amount: Amount) -> str:
    if amount.known_for == amount.of:
        return f"${amount.known:.4f}"
    if not amount.known_for:
        return f"unknown for all {amount.of:,} results"
    return f"at least ${amount.known:.4f}, known for {amount.known_for:,} of {amount.of:,} results"


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
    return (number(estimate.mean), _error_cell(se), _interval(estimate))


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
        }
        if reasons := [f"{count:,} {why}" for why, count in counts.items() if count]:
            yield f"{name}: {', '.join(reasons)}, of {scorer.of:,}"
        if scorer.grades:
            shares = (
                f"{grade} {count:,} of {scorer.of:,} ({_percent(count / scorer.of)})"
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
        _interval(agreement),
        _percent(found.same),
    ]


def _percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f} %"


def _percent_interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"


def _interval(found: Estimate | Agreement | MetricValue) -> str:
    if found.low is None or found.high is None:
        return UNKNOWN
    return f"{found.low:.4g} to {found.high:.4g}"
