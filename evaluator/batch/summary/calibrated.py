"""A scorer's verdicts measured by labels: values, and the tables that show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from evaluator.batch.statistics import Agreement, Estimate, JudgeCounts, JudgeRates
from evaluator.batch.summary.tables import (
    UNKNOWN,
    Table,
    interval,
    number,
    percent,
    percent_interval,
)
from evaluator.errors.messages import agree, amount
from evaluator.fields import MERGED, JsonForm
from evaluator.lazy_dataclass import frozen

CORRECTED_HEAD = ("judge", "says", "interval", "corrected", "interval", "labels")


@frozen
class CorrectedShare(JsonForm):
    """The share of results that a scorer passed, and that share corrected by labels.

    `labels` of the `of` results that the scorer judged have a label. `missing` is why `corrected`
    has no mean, or no interval; empty where it has both.
    """

    labels: int
    of: int
    judge: Estimate
    corrected: Estimate
    missing: str = ""


@frozen
class PeopleAgreement(JsonForm):
    """The agreement of several labellers on the results that at least two of them have labelled:
    Krippendorff's alpha, and the share of these results on which all are equal.
    """

    labellers: tuple[str, ...]
    same: float | None
    alpha: Annotated[Agreement, MERGED]


@frozen
class JudgeBias(JsonForm):
    """How much more a judge favours the results `a` than the results `b`, which differ `by` their
    length, the model that answered, or the place where the judge saw them.

    `a_bias` and `b_bias` are the share that the judge passed less that of the labels; `a_labels`
    and `b_labels` are their numbers. By position, they are the share of pairs where the judge
    preferred this place. `low` and `high` are the 95 % interval of the difference a − b.
    """

    by: str
    a: str
    b: str
    a_bias: float
    b_bias: float
    difference: float
    low: float | None
    high: float | None
    a_labels: int
    b_labels: int


@frozen
class Calibration(JsonForm):
    """A scorer's verdicts against the labels of people, for one template and variant.

    `labels_for` is the scorer that the labels are for: `scorer` itself, or the only one that has
    labels. `share` is the corrected number, whose mean is the base rate of `rates`. `value` is the
    mean of the scorer's values, corrected likewise, where every label has a value; else None.
    `counts` are those of results on which the labellers are not split. `labellers` counts the
    labels of each. Labels that do not count: `undecided`, of labellers who could not decide;
    `stale`, as the text changed; `unjudged`, of results without a verdict of the scorer. `split`:
    results on which as many labellers say passed as failed; they count as one half. `by` has the
    corrected share of each group, `bias` what the judge favours, as far as the data show it.
    """

    scorer: str
    labels_for: str
    share: Annotated[CorrectedShare, MERGED]
    value: CorrectedShare | None
    counts: JudgeCounts
    rates: JudgeRates
    people: PeopleAgreement | None
    labellers: Mapping[str, int]
    undecided: int
    stale: int
    unjudged: int
    split: int
    by: Mapping[str, CorrectedShare]
    bias: tuple[JudgeBias, ...] = ()


def corrected_table(name: str, calibrations: Mapping[str, Calibration]) -> Table:
    """The judge's number beside the corrected one, for each scorer with labels."""
    rows: list[list[str]] = []
    lines: list[str] = []
    for scorer, found in calibrations.items():
        rows.append(corrected_row(scorer, found.share))
        if found.value is not None:
            rows.append(corrected_row(f"{scorer} (mean)", found.value))
        lines.extend(f"{scorer}: {line}" for line in _label_lines(found))
    return Table(f"Corrected by labels: {name}", CORRECTED_HEAD, rows=rows, lines=lines)


def calibration_tables(name: str, found: Calibration) -> Iterator[Table]:
    """Every table of a calibration."""
    title = f"{found.scorer}: {name}"
    yield corrected_table(name, {found.scorer: found})
    counts = found.counts
    yield Table(
        f"Verdicts and labels of {title}",
        ["judge ↓ people →", "passed", "failed", "labels", "results"],
        rows=[
            [
                "passed",
                f"{counts.passed_passed:,}",
                f"{counts.passed_failed:,}",
                f"{counts.passed_passed + counts.passed_failed:,}",
                f"{counts.passed:,}",
            ],
            [
                "failed",
                f"{counts.failed_passed:,}",
                f"{counts.failed_failed:,}",
                f"{counts.failed_passed + counts.failed_failed:,}",
                f"{counts.failed:,}",
            ],
        ],
    )
    yield _rates_table(title, found)
    people = found.people
    if people is not None:
        yield Table(
            f"Agreement of people: {name}",
            ["labellers", "Krippendorff's α", "n of N", "all equal"],
            rows=[
                [
                    ", ".join(people.labellers),
                    number(people.alpha.value),
                    f"{people.alpha.n:,} of {people.alpha.of:,}",
                    percent(people.same),
                ]
            ],
            lines=["a judge cannot agree with people more than they agree with each other"],
        )
    if found.bias:
        yield Table(
            f"Bias of {title}",
            ["by", "answers", "bias", "other answers", "bias", "difference", "interval"],
            rows=[_bias_row(bias) for bias in found.bias],
            lines=[
                "a positive difference: the judge favours the first; 0 in the interval: no "
                "sign of it"
            ],
        )
    if found.by:
        yield Table(
            f"By group, {title}",
            ["group", *CORRECTED_HEAD[1:]],
            rows=[corrected_row(group, share) for group, share in found.by.items()],
            lines=[
                f"{group}: {share.missing}" for group, share in found.by.items() if share.missing
            ],
        )


def _rates_table(title: str, found: Calibration) -> Table:
    rates = found.rates
    base = percent(found.share.corrected.mean)
    rows = [
        [name, percent(rate.mean), percent_interval(rate), base]
        for name, rate in (
            ("passes what people pass (sensitivity)", rates.sensitivity),
            ("fails what people fail (specificity)", rates.specificity),
        )
    ]
    for name, measure in (("Cohen's κ", rates.kappa), ("Krippendorff's α", rates.alpha)):
        rows.append([name, number(measure.value), interval(measure.low, measure.high), base])
    return Table(f"Rates of {title}", ["", "value", "interval", "base rate"], rows=rows)


def _bias_row(bias: JudgeBias) -> list[str]:
    of_bias = UNKNOWN
    if bias.low is not None and bias.high is not None:
        of_bias = f"{100 * bias.low:+.1f} to {100 * bias.high:+.1f}"
    shares = [f"{100 * share:+.1f}" for share in (bias.a_bias, bias.b_bias, bias.difference)]
    return [bias.by, bias.a, shares[0], bias.b, *shares[1:], of_bias]


def corrected_row(first: str, found: CorrectedShare) -> list[str]:
    """The cells below `CORRECTED_HEAD`; the first one is given."""
    return [
        first,
        percent(found.judge.mean),
        percent_interval(found.judge),
        percent(found.corrected.mean),
        percent_interval(found.corrected),
        f"{found.labels:,} of {found.of:,}",
    ]


def _label_lines(found: Calibration) -> Iterable[str]:
    if found.share.missing:
        yield found.share.missing
    if found.stale:
        labels = f"{amount(found.stale, 'label')} {agree(found.stale, 'is', 'are')}"
        yield f"{labels} stale, as the text has changed; {_not_counted(found.stale)}"
    if found.undecided:
        labels = f"{amount(found.undecided, 'label')} {agree(found.undecided, 'does', 'do')}"
        yield f"{labels} not decide; {_not_counted(found.undecided)}"
    if found.unjudged:
        results = amount(found.unjudged, "labelled result")
        yield f"{results} {agree(found.unjudged, 'has', 'have')} no verdict of the judge"
    if found.split:
        yield f"on {amount(found.split, 'result')} labellers are split; each counts as one half"


def _not_counted(labels: int) -> str:
    return f"{agree(labels, 'it does', 'they do')} not count"
