"""A summary for people: the same tables as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from evaluator.batch.statistics import Estimate, Variance
from evaluator.batch.summary.shape import (
    Amount,
    BatchSummary,
    Confusion,
    ErrorKind,
    GroupSummary,
    Judges,
    Part,
    Percentiles,
    ScorerSummary,
    Spending,
)
from evaluator.batch.summary.tables import Table, as_markdown, as_text

UNKNOWN = "–"


def render_summary(summary: BatchSummary, width: int = 100) -> str:
    """The summary as text for a terminal that is `width` columns wide. Ends with a newline."""
    return as_text(_tables(summary), width)


def render_markdown(summary: BatchSummary) -> str:
    """The summary as Markdown. Ends with a newline."""
    return as_markdown(_tables(summary))


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def standard_error(value: float | None) -> str:
    """With four digits, as `number`; below 1 with two."""
    return number(value) if value is None or value >= 1 else f"{value:.2g}"


def span(estimate: Estimate, as_percent: bool) -> str:
    """An interval, "–" where there is none."""
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    if as_percent:
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def money(amount: Amount) -> str:
    """A cost; where it is not known for all, that and what is known."""
    if amount.known_for == amount.of:
        return f"${amount.known:.4f}"
    return f"unknown; ${amount.known:.4f} for the {amount.known_for:,} of {amount.of:,} that it is known for"


def _tables(summary: BatchSummary) -> Iterable[Table]:
    yield Table("Batch", lines=list(_overall(summary)))
    groups = summary.groups
    if groups:
        yield _outcomes(
            "Passed, of those that were judged", {group.name: group.part for group in groups}, "template × variant"
        )
    for group in groups:
        yield from _group(group, summary)
    if summary.errors:
        yield Table("Errors", ["kind", "results", "one of them said"], [_error(error) for error in summary.errors])


def _overall(summary: BatchSummary) -> Iterable[str]:
    counts = summary.counts
    if counts.pending is None:
        results = f"{counts.results:,} results (how many there will be is not known)"
    else:
        results = f"{counts.results:,} of {counts.total:,} results"
    so_far = "" if counts.pending == 0 else " so far"
    yield (
        f"{results}, of {summary.samples:,} samples{so_far}: {counts.passed:,} passed, "
        f"{counts.failed:,} failed, {counts.error:,} error, {counts.unscored:,} unscored"
    )
    yield from summary.notes
    yield from _spending(summary.spending)
    if summary.replaced_spending is not None:
        yield f"earlier runs, besides: {_costs(summary.replaced_spending)}"
    yield f"duration: {_seconds(summary.durations)}"
    if summary.with_cluster == 0 and counts.results:
        yield f"no result has {summary.cluster!r}, by which to cluster: shares and means have no intervals"
    else:
        yield "intervals are at 95 %" + (f", with clusters by {summary.cluster}" if summary.cluster else "")


def _spending(spending: Spending) -> Iterable[str]:
    yield _costs(spending)
    cached = f", {spending.cached_calls:,} calls from the cache" if spending.cached_calls else ""
    yield f"tokens: {_tokens(spending.input_tokens)} in, {_tokens(spending.output_tokens)} out{cached}"


def _costs(spending: Spending) -> str:
    scoring = spending.scoring_cost_usd
    also = "" if scoring.total == 0 else f", and scoring {money(scoring)}"
    return f"cost: {money(spending.cost_usd)}{also}"


def _tokens(amount: Amount) -> str:
    if amount.known_for == amount.of:
        return f"{amount.known:,.0f}"
    return f"{amount.known:,.0f} ({amount.known_for:,} of {amount.of:,} known)"


def _seconds(found: Percentiles) -> str:
    if found.n == 0:
        return UNKNOWN
    return f"p50 {number(found.p50)} s, p90 {number(found.p90)} s, p99 {number(found.p99)} s, of {found.n:,}"


def _outcomes(title: str, parts: Mapping[str, Part], first: str) -> Table:
    head = [first, "passed", "share", "interval", "N", "error", "unscored", "pending"]
    rows = [_outcome(name, part) for name, part in parts.items()]
    return Table(title, head, rows, list(_bounds(parts)))


def _outcome(name: str, part: Part) -> list[str]:
    accuracy, counts = part.accuracy, part.counts
    return [
        name,
        f"{accuracy.passed:,} of {accuracy.judged:,}",
        percent(accuracy.estimate.mean),
        span(accuracy.estimate, True),
        f"{accuracy.of:,}",
        f"{counts.error:,}",
        f"{counts.unscored:,}",
        UNKNOWN if counts.pending is None else f"{counts.pending:,}",
    ]


def _bounds(parts: Mapping[str, Part]) -> Iterator[str]:
    for name, part in parts.items():
        accuracy, rest = part.accuracy, part.counts.results - part.counts.judged
        if rest:
            between = f"{percent(accuracy.if_failed)} to {percent(accuracy.if_passed)}"
            yield f"{name}: {between}, had the {rest:,} that are error or unscored failed or passed"


def _group(group: GroupSummary, summary: BatchSummary) -> Iterable[Table]:
    if group.part.scorers:
        head = ["scorer", "n of N", "mean", "± se", "interval", "passed", "failed"]
        rows = [_scorer(name, scorer) for name, scorer in group.part.scorers.items()]
        yield Table(f"Scorers: {group.name}", head, rows, list(_valueless(group.part.scorers)))
    if group.by:
        yield _outcomes(f"By {summary.group_by}: {group.name}", group.by, summary.group_by or "")
    if group.reduced:
        rows = [
            [
                f"{reduced.reducer} of {reduced.scorer or 'passed'}",
                f"{reduced.n:,} of {reduced.of:,}",
                number(reduced.estimate.mean),
                standard_error(reduced.estimate.se),
                span(reduced.estimate, False),
            ]
            for reduced in group.reduced
        ]
        head = ["", "n of N samples", "mean", "± se", "interval"]
        yield Table(f"Epochs, up to {group.epochs}: {group.name}", head, rows)
    if group.agreement:
        head = ["judges", "measure", "n of N", "value", "interval", "all the same"]
        yield Table(f"Agreement: {group.name}", head, [_judges(judges) for judges in group.agreement])
    if group.variance:
        rows = [_variance(name or "passed", found) for name, found in group.variance.items()]
        yield Table(f"Variance: {group.name}", ["", "within samples", "between samples", "samples", "values"], rows)
    if len(summary.groups) > 1:
        lines = [*_spending(group.spending), f"duration: {_seconds(group.durations)}"]
        yield Table(f"Used: {group.name}", lines=lines)
    for name, confusion in group.confusion.items():
        yield _confusion(name, confusion, group)


def _scorer(name: str, scorer: ScorerSummary) -> list[str]:
    return [
        name,
        f"{scorer.n:,} of {scorer.of:,}",
        number(scorer.value.mean),
        standard_error(scorer.value.se),
        span(scorer.value, False),
        f"{scorer.passed:,}",
        f"{scorer.failed:,}",
    ]


def _valueless(scorers: Mapping[str, ScorerSummary]) -> Iterator[str]:
    """Why results have no value by a scorer."""
    for name, scorer in scorers.items():
        counts = {"errors": scorer.errors, "unscored": scorer.unscored, "without an answer to judge": scorer.absent}
        if rest := [f"{count:,} {why}" for why, count in counts.items() if count]:
            yield f"{name}: {', '.join(rest)}, of {scorer.of:,}"


def _judges(judges: Judges) -> list[str]:
    found = judges.agreement
    names = " and ".join(judges.judges) if len(judges.judges) == 2 else f"all {len(judges.judges)}"
    if judges.votes_of is not None:
        names = f"{judges.votes_of}: {names}"
    interval = UNKNOWN if found.low is None or found.high is None else f"{found.low:.4g} to {found.high:.4g}"
    measure = {"cohen_kappa": "Cohen's κ", "krippendorff_alpha": "Krippendorff's α"}[judges.measure]
    return [names, measure, f"{found.n:,} of {found.of:,}", number(found.value), interval, percent(judges.same)]


def _variance(name: str, found: Variance) -> list[str]:
    return [name, number(found.within), number(found.between), f"{found.samples:,}", f"{found.values:,}"]


def _confusion(name: str, confusion: Confusion, group: GroupSummary) -> Table:
    rows = [
        [target, *(f"{count:,}" for count in counts), f"{missing:,}"]
        for target, counts, missing in zip(confusion.targets, confusion.counts, confusion.no_answer, strict=True)
    ]
    title = f"Answers of {name} by target, {confusion.n:,} of {confusion.of:,}: {group.name}"
    return Table(title, ["target ↓ answer →", *confusion.answers, "no answer"], rows)


def _error(error: ErrorKind) -> list[str]:
    return [error.kind, f"{error.count:,}", error.example]
