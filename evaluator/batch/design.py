"""Plans a batch that has to decide: the rows and epochs that it needs, and the rows of each look.

Rows are taken in an order that a hash of their ids gives, whole clusters at a time. So a sorted
file does not put one kind of row into the first look.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from statistics import fmean, pvariance

from evaluator.batch.decision import LOOKS, Deciding, Decision, Design, Method, shown_difference
from evaluator.batch.fields import reader_of
from evaluator.batch.identity import digest
from evaluator.batch.reading import open_batch
from evaluator.batch.records import Sample, SampleResult, Verdict
from evaluator.batch.rows import RowSource
from evaluator.batch.statistics import (
    RowSpread,
    anytime,
    group_sequential,
    mean_interval,
    paired_spread,
    pairs_needed,
    smallest_difference,
    variance,
)
from evaluator.errors import UsageError
from evaluator.errors.messages import agree, amount
from evaluator.lazy_dataclass import frozen

CORRELATION = 0.5
"""The guess of the correlation of two variants' results, where no earlier batch shows it."""
MOST_EPOCHS = 20
VALUES = {Verdict.PASSED: 1.0, Verdict.FAILED: 0.0}


@frozen
class PlannedDecision:
    """The decision of a planned batch. `look_of` has the look of each row that is evaluated, from
    0, `baseline` the value that each is compared with, `clusters` the cluster of each, if there
    are any.
    """

    decision: Decision
    look_of: Mapping[str, int]
    baseline: Mapping[str, float]
    clusters: Mapping[str, str] | None


def plan_decision(
    deciding: Deciding,
    method: Method,
    *,
    rows: RowSource,
    variants: int,
    epochs: int,
    cluster: str | None,
    recorded: Decision | None,
) -> PlannedDecision:
    """What a batch has to decide by `deciding`, whose method is `method`. Reads all rows.

    `recorded` is the one of the batch that is resumed.

    Raises: UsageError, if it cannot be planned, or is not the recorded one.
    """
    if not rows.is_repeatable or rows.is_live:
        raise UsageError("detect and race read the rows several times: give a file or a list")
    if method == "race" and variants < 2:
        raise UsageError("race needs several variants: name several models, handlers or templates")
    if method != "race" and variants > 1:
        raise UsageError(
            "detect compares one template with one model; for several use race, or a batch for each"
        )
    units = _units(rows, cluster)
    baseline: dict[str, list[float]] = {}
    if deciding.baseline is not None and deciding.number is None:
        baseline = _values_in(deciding.baseline, deciding.measure)
        units = _with_values(units, baseline)
        if not units:
            raise UsageError(
                f"no row of the batch is in the baseline {deciding.baseline}: rows are paired by id"
            )
    if recorded is not None:
        design = recorded.design
    elif deciding.detect is None:
        available = sum(map(len, units.values()))
        design = Design(
            method,
            LOOKS[method],
            available,
            epochs=epochs,
            variants=variants,
            measure=deciding.measure,
        )
    else:
        design = _Sizing(deciding, units, baseline=baseline).design(method, epochs)
    look_of = _deal(units, design)
    values = {name: fmean(baseline[name]) for name in look_of if name in baseline}
    if deciding.number is not None:
        values = dict.fromkeys(look_of, deciding.number)
    found = replace(design, rows=len(look_of), order=digest(look_of), expected=digest(values))
    if recorded is None:
        decision = Decision(found)
    elif (design.method, design.detect, design.measure) != (
        method,
        deciding.detect,
        deciding.measure,
    ):
        raise UsageError("the batch was begun with another decision: leave its options as they are")
    elif found.order != design.order:
        raise UsageError("the rows of the batch have changed since its decision was designed")
    elif found.expected != design.expected:
        raise UsageError(f"the baseline {design.baseline} has changed since the batch was begun")
    else:
        decision = recorded
    clusters = None
    if cluster is not None:
        clusters = {name: unit for unit, ids in units.items() for name in ids}
    return PlannedDecision(decision, look_of, baseline=values, clusters=clusters)


def _units(rows: RowSource, cluster: str | None) -> dict[str, list[str]]:
    """The ids of the rows that have to stay together, by cluster; a row without one is alone."""
    if cluster is None:
        read = None
    else:
        read = reader_of(cluster, "cluster")
    units: dict[str, list[str]] = {}

    def add(sample: Sample) -> None:
        group = None if read is None else read(sample)
        if group is None:
            name = f"row {sample.id}"
        else:
            name = f"cluster {json.dumps(group, default=str)}"
        units.setdefault(name, []).append(sample.id)

    rows.check(add, with_shots=False)
    return units


def _with_values(
    units: Mapping[str, Sequence[str]], values: Mapping[str, object]
) -> dict[str, list[str]]:
    """The units with only the rows that have a value."""
    found = {name: [row for row in ids if row in values] for name, ids in units.items()}
    return {name: ids for name, ids in found.items() if ids}


def value_of(result: SampleResult, measure: str | None) -> float | None:
    """What is compared of a result: the value of the score `measure`, or whether it passed; None
    without one.
    """
    if measure is None:
        return VALUES.get(result.verdict)
    score = result.scores.get(measure)
    return None if score is None else score.value


def _values_in(folder: str, measure: str | None) -> dict[str, list[float]]:
    """The values of each row of an earlier batch, one for each epoch that was judged.

    Raises: RecordError, if there is no batch; UsageError, if it has several variants or no value.
    """
    batch = open_batch(folder)
    if len(batch.cells) > 1:
        raise UsageError(
            f"{folder} has {len(batch.cells)} templates and variants; name a batch of one"
        )
    found: dict[str, list[float]] = {}
    for result in batch.results():
        value = value_of(result, measure)
        if value is not None:
            found.setdefault(result.sample_id, []).append(value)
    if not found:
        if measure is None:
            what = "result that passed or failed"
        else:
            what = f"value of {measure!r}"
        raise UsageError(f"{folder} has no {what}")
    return found


class _Sizing:
    """The rows and epochs that a test of one difference takes."""

    def __init__(
        self,
        deciding: Deciding,
        units: Mapping[str, Sequence[str]],
        baseline: Mapping[str, Sequence[float]],
    ) -> None:
        assert deciding.detect is not None
        self._deciding = deciding
        self._detect = deciding.detect
        self._units = units
        self._available = sum(map(len, units.values()))
        known: dict[str, float] = {}
        number = deciding.number
        if deciding.like is not None:
            like = _values_in(deciding.like, deciding.measure)
            known = {
                name: fmean(values) - (number if number is not None else fmean(baseline[name]))
                for name, values in like.items()
                if number is not None or name in baseline
            }
            if len(known) < 2:
                raise UsageError(f"{deciding.like} has fewer than two rows of the baseline")
            within = variance(like.values()).within or 0.0
            epochs = fmean(map(len, like.values()))
            rows = max(0.0, pvariance(known.values()) - within / epochs)
            self._spread = RowSpread(rows, within)
            source = f"that of {deciding.like}"
        elif number is not None:
            self._spread = RowSpread(number * (1 - number))
            source = f"that of results if {number:.0%} pass; --like FOLDER measures it"
            if deciding.measure is not None:
                source = (
                    f"the most that values in [0, 1] with the mean {number:g} have; "
                    "--like FOLDER measures it"
                )
        else:
            known = {name: fmean(values) for name, values in baseline.items()}
            parts = variance(baseline.values())
            measured = pvariance(known.values())
            own = RowSpread(measured)
            if parts.between is not None and parts.within is not None:
                own = RowSpread(parts.between, parts.within)
            self._spread = paired_spread(measured, own, CORRELATION)
            source = (
                f"from the variance of the baseline and a correlation of {CORRELATION}, which is a "
                "guess; --like FOLDER measures it"
            )
        if deciding.measure is None:
            # For a difference of this size some results have to differ.
            least = self._detect * (1 - self._detect) - self._spread.epoch
            self._spread = replace(self._spread, rows=max(least, self._spread.rows))
        elif self._spread.with_epochs(1) <= 0:
            raise UsageError(
                f"the values of {deciding.measure} do not vary, so no number of rows can be "
                "planned; give --like FOLDER, a batch where they do"
            )
        self._design_effect = self._effect_of_clusters(known)
        self._source = source
        self._is_measured = bool(known)

    def _effect_of_clusters(self, known: Mapping[str, float]) -> float:
        """The variance of the mean with clusters, divided by that without; at least 1."""
        pairs = [
            (known[row], unit) for unit, ids in self._units.items() for row in ids if row in known
        ]
        values = [value for value, _ in pairs]
        plain = mean_interval(values).se
        clustered = mean_interval(values, [unit for _, unit in pairs]).se
        if not plain or not clustered or len(self._units) == self._available:
            return 1.0
        return max(1.0, (clustered / plain) ** 2)

    def design(self, method: Method, epochs: int) -> Design:
        deciding = self._deciding
        looks = LOOKS[method]
        if method == "anytime":
            rule = anytime(looks, power=deciding.power)
        else:
            rule = group_sequential(looks, power=deciding.power)
        if self._available < looks:
            raise UsageError(
                f"{looks} looks need at least {looks} rows; there are {self._available}"
            )
        more = rule.inflation * self._design_effect

        def needed(epochs: int) -> int:
            spread = self._spread.with_epochs(epochs)
            return math.ceil(pairs_needed(spread, self._detect, power=deciding.power) * more)

        chosen = epochs
        if epochs == 1 and self._spread.epoch:
            fitting = (
                each for each in range(1, MOST_EPOCHS + 1) if needed(each) <= self._available
            )
            chosen = next(fitting, epochs)
        rows = min(max(looks, needed(chosen)), self._available)
        spread = self._spread.with_epochs(chosen)
        effect = smallest_difference(spread, max(1, int(rows / more)), power=deciding.power)
        notes = [f"the spread of the rows' differences is taken as {spread:.2f}: {self._source}"]
        if self._design_effect > 1:
            notes.append(f"clusters take {self._design_effect:.2f} times the rows")
        elif len(self._units) < self._available and not self._is_measured:
            notes.append("rows in clusters count as independent, as no earlier batch shows more")
        if needed(chosen) > self._available:
            shown = shown_difference(effect, deciding.measure, ".1f")
            notes.append(
                f"{amount(needed(chosen), 'row')} {agree(needed(chosen), 'is', 'are')} needed, "
                f"and {self._available:,} can be compared: "
                f"they show a difference of {shown}"
            )
        return Design(
            method,
            looks,
            rows,
            epochs=chosen,
            variants=1,
            power=deciding.power,
            detect=self._detect,
            measure=deciding.measure,
            baseline=deciding.baseline,
            spread=spread,
            effect=max(effect, self._detect) if rows == self._available else self._detect,
            drift=rule.drift,
            notes=tuple(notes),
        )


def _deal(units: Mapping[str, Sequence[str]], design: Design) -> dict[str, int]:
    """The look of each row that is taken, from 0."""
    taken: list[Sequence[str]] = []
    rows = 0
    order = sorted(units, key=lambda name: blake2b(name.encode(errors="surrogatepass")).digest())
    for name in order:
        if rows >= design.rows:
            break
        taken.append(units[name])
        rows += len(units[name])
    look_of: dict[str, int] = {}
    for ids in taken:
        look = len(look_of) * design.looks // rows
        look_of.update(dict.fromkeys(ids, look))
    return look_of
