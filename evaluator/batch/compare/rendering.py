"""A comparison for people: the same tables as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from evaluator.batch.statistics import Difference
from evaluator.batch.summary.tables import Table, as_markdown, as_text

if TYPE_CHECKING:
    from evaluator.batch.compare.comparison import Comparison, Side

POWER = 0.8
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)
_SHOWN_IDS = 20


def render_comparison(comparison: Comparison, width: int = 100) -> str:
    """The comparison as text for a terminal that is `width` columns wide. Ends with a newline."""
    return as_text(_tables(comparison), width)


def render_comparison_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown. Ends with a newline."""
    return as_markdown(_tables(comparison))


def in_a_line(comparison: Comparison) -> str:
    difference, what = comparison.difference, "passed" if comparison.scorer is None else repr(comparison.scorer)
    pairs = f"{comparison.n:,} of {comparison.of:,} samples make a pair"
    if difference.mean is None:
        return f"<Comparison of {what}: {pairs}>"
    return (
        f"<Comparison of {what}: b − a is {signed(difference.mean)}, {_interval(difference)}, "
        f"p = {_number(difference.p)}, {pairs}>"
    )


def signed(value: float) -> str:
    return f"{value:+.4g}"


def _tables(comparison: Comparison) -> Iterable[Table]:
    difference = comparison.difference
    what = "passed" if comparison.scorer is None else f"value of {comparison.scorer}"
    lines = [f"{comparison.n:,} of {comparison.of:,} samples make a pair, by {comparison.by}"]
    if difference.mean is None:
        lines.append("without a pair there is no difference")
    else:
        lines.append(f"{what}, b − a: {signed(difference.mean)} ± {_number(difference.se)} (standard error)")
        clustered = f" by {comparison.cluster}" if comparison.cluster else ""
        lines.append(f"{_interval(difference)}, p = {_number(difference.p)} ({difference.method}{clustered})")
    lines.extend(_undecided(comparison))
    lines.extend(f"warning: {warning}" for warning in comparison.warnings)
    yield Table("Comparison", lines=lines)
    head = ["side", "template × variant", "results", "samples", "only here", "error", "unscored", "mean of pairs"]
    yield Table("Sides", head, [_side("a", comparison.a), _side("b", comparison.b)])
    yield Table(
        "Flipped",
        lines=[
            f"{len(comparison.gained):,} failed in a and passed in b{_ids(comparison.gained)}",
            f"{len(comparison.lost):,} passed in a and failed in b{_ids(comparison.lost)}",
        ],
    )
    yield from _needed(comparison)


def _undecided(comparison: Comparison) -> Iterator[str]:
    if not comparison.undecided:
        return
    both, worst, best = comparison.a.samples - comparison.a.only, comparison.if_worst, comparison.if_best
    said = f"{comparison.undecided:,} of {both:,} samples in both have an error or no score on a side"
    if worst is None or best is None or worst.mean is None or best.mean is None:
        yield f"{said}; what they could change is not known, as values of {comparison.scorer} need not lie in [0, 1]"
    else:
        yield f"{said}: b − a is {signed(worst.mean)} to {signed(best.mean)}, had they come out worst or best for b"


def _needed(comparison: Comparison) -> Iterator[Table]:
    smallest, spread, effect = comparison.smallest(), comparison.spread, comparison.design_effect
    if smallest is None:
        return
    rows = [[_number(size), f"{comparison.needed(size):,}"] for size in DIFFERENCES]
    clusters = "" if effect is None else f", in clusters like these (design effect {_number(effect)})"
    lines = [
        f"to see it with a power of {POWER:.0%}, at this spread of differences ({_number(spread)}){clusters};",
        f"these {comparison.n:,} pairs show one of {_number(smallest)}",
    ]
    yield Table("Samples needed", ["true difference", "pairs"], rows, lines)


def _side(name: str, side: Side) -> list[str]:
    group = " × ".join(part for part in (*side.templates, *side.variants) if part)
    results = f"{side.results:,}" if side.of is None else f"{side.results:,} of {side.of:,}"
    counts = (side.samples, side.only, side.errors, side.unscored)
    return [name, group, results, *(f"{count:,}" for count in counts), _number(side.mean)]


def _ids(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    more = len(ids) - _SHOWN_IDS
    return f": {', '.join(ids[:_SHOWN_IDS])}{f' and {more:,} more' if more > 0 else ''}"


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "95 % interval –"
    return f"95 % interval {signed(difference.low)} to {signed(difference.high)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
