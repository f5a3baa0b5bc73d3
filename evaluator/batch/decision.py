"""What a batch has to decide, and its decision: a difference from a baseline or a number, or which
of its variants are worse than the best one.

The design is recorded in the manifest before the first call, and each look when it is taken. A look
is at fixed rows and waits until all of them have a result, so that the order of the results does
not matter. A result with an error or without a score has no value: it makes no pair, and the look
has less information, which the boundaries take into account. A look that was taken stays as it is.

Compared is whether a result passed, or the value of one score; the epochs of a row are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from evaluator.batch.statistics import Dropped, StoppingRule
from evaluator.batch.statistics.sequential import ALPHA, MOST_LOOKS, POWER
from evaluator.errors import RecordError, UsageError
from evaluator.errors.messages import amount
from evaluator.fields import (
    Before,
    Checked,
    Count,
    Flag,
    JsonForm,
    Name,
    PathText,
    Positive,
    Range,
    Section,
    Share,
)
from evaluator.lazy_dataclass import frozen

Method = Literal["fixed", "group", "anytime", "race"]
LookVerdict = Literal["continue", "shown", "futile", "none shown", "decided", "ended"]
LOOKS = {"fixed": 1, "group": 5, "anytime": 20, "race": 5}


def _number_as_text(value: Any) -> Any:
    return repr(value) if isinstance(value, int | float) else value


def number_in(text: str) -> float | None:
    """The number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


@frozen
class Deciding(Checked, error=UsageError):
    """What a batch has to decide, and how many rows it may take.

    `detect`: the smallest difference that matters, of the share of passed results, in [0, 1], or
    with `measure` of the mean value of the score with this name.
    `power`: the probability to show it, if it is there. `baseline`: the folder of a batch of one
    template and variant over the same rows, or a number. `like`: an earlier batch like this one,
    whose spread is expected again. `stop_early`: look at the results five times, and stop when the
    difference is shown or improbable. `anytime`: 20 looks instead, with an interval that is valid
    at any time. `race`: compare the batch's own variants, and drop those that are worse than the
    best one.

    Raises: UsageError, for an invalid value.
    """

    detect: Annotated[
        Positive | None,
        Section("Planned and sequential evaluation"),
        Flag(
            "--detect",
            "Take as many rows and epochs as show this difference of the share of passed results, "
            "or of --measure.",
            "D",
        ),
    ] = None
    measure: Annotated[
        Name | None,
        Flag(
            "--measure",
            "The score whose values --detect or --race compares. Default: whether a result passed.",
            "SCORE",
        ),
    ] = None
    power: Annotated[
        Share, Flag("--power", "The probability that --detect is shown, if it is there.", "SHARE")
    ] = POWER
    baseline: Annotated[
        PathText | None,
        Before(_number_as_text),
        Flag(
            "--baseline",
            "What --detect compares with: a batch over the same rows, or a number.",
            metavar="FOLDER|NUMBER",
        ),
    ] = None
    like: Annotated[
        PathText | None,
        Flag(
            "--like",
            "An earlier batch like this one: its spread and its lengths are expected again.",
            metavar="FOLDER",
        ),
    ] = None
    stop_early: Annotated[
        bool,
        Flag(
            "--stop-early",
            "Look at the results 5 times, and stop when --detect is shown or improbable.",
        ),
    ] = False
    anytime: Annotated[
        bool,
        Flag(
            "--anytime",
            "With --stop-early: 20 looks, and an interval that is valid at each; takes more rows.",
        ),
    ] = False
    race: Annotated[
        bool,
        Flag("--race", "Drop variants that are worse than the best one, at 5 looks."),
    ] = False

    def check(self) -> None:
        if self.detect is not None and self.detect > 1 and self.measure is None:
            raise UsageError(
                f"detect is {self.detect:g}, expected a difference of shares such as 0.05"
            )
        if self.measure is not None and self.method is None:
            raise UsageError("measure is the score that detect or race compares: give one of them")
        if not 0.5 <= self.power <= 0.999:
            raise UsageError(f"power is {self.power:g}, expected a share from 0.5 to 0.999")
        if self.race and (self.detect or self.baseline or self.stop_early):
            raise UsageError(
                "race compares the variants of the batch with each other: give no detect, "
                "baseline and stop_early"
            )
        if self.detect is not None and self.baseline is None:
            raise UsageError(
                "detect needs a baseline to compare with: a batch's folder or a number"
            )
        if self.detect is None and (self.baseline is not None or self.stop_early):
            raise UsageError(
                "baseline and stop_early need detect, the smallest difference that matters"
            )
        if self.anytime and not self.stop_early:
            raise UsageError("anytime is a way of stop_early: give both")
        if self.number is not None and not 0 <= self.number <= 1:
            if self.measure is None:
                raise UsageError(f"baseline is {self.baseline}, expected a share from 0 to 1")
            if self.like is None:
                raise UsageError(
                    f"baseline is {self.baseline}, so the values of {self.measure} are not in "
                    "[0, 1]; give like, an earlier batch that shows how much they vary"
                )

    @property
    def method(self) -> Method | None:
        """None, if nothing is to be decided."""
        if self.race:
            return "race"
        if self.detect is None:
            return None
        if not self.stop_early:
            return "fixed"
        return "anytime" if self.anytime else "group"

    @property
    def folders(self) -> tuple[str, ...]:
        """The earlier batches that are read."""
        baseline = self.baseline if self.number is None else None
        return tuple(folder for folder in (baseline, self.like) if folder is not None)

    @property
    def number(self) -> float | None:
        """The baseline, if it is a number."""
        return None if self.baseline is None else number_in(self.baseline)


@frozen
class Design(JsonForm, error=RecordError):
    """How a batch decides, as it was fixed before the first call.

    `rows` are the most that it evaluates, `epochs` times in each of `variants`; `order` is the hash
    of the rows of each look, `expected` of the baseline's values of these rows. `effect` is the
    smallest difference that these rows show with the probability `power`, at the `spread` of the
    rows' differences, and `drift` that of the stopping rule. `notes` say what the numbers rest on.
    """

    method: Method
    looks: Annotated[int, Range(least=1, most=MOST_LOOKS)]
    rows: Count
    epochs: Count
    variants: Count
    order: str = ""
    alpha: Annotated[float, Range(above=0, most=0.5)] = ALPHA
    power: Annotated[float, Range(least=0.5, most=0.999)] = POWER
    detect: float | None = None
    measure: str | None = None
    baseline: str | None = None
    expected: str | None = None
    spread: float | None = None
    effect: float | None = None
    drift: Annotated[float, Range(least=0, most=100)] = 0.0
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> StoppingRule:
        method = "anytime" if self.method == "anytime" else "group"
        return StoppingRule(method, self.looks, self.alpha, self.power, self.drift)

    def lines(self) -> Iterator[str]:
        """The design for a person."""
        looks = "" if self.looks == 1 else f", with {self.looks} looks"
        size = f"at most {amount(self.rows, 'row')}, {amount(self.epochs, 'epoch')} each{looks}"
        if self.detect is None:
            pairs = self.variants * (self.variants - 1) // 2
            by = "" if self.measure is None else f" by the mean of {self.measure}"
            yield (
                f"race of {self.variants} variants{by}: {size}; a variant is dropped when it is "
                f"worse than the best one, with an error of {self.alpha:.0%} for "
                f"{amount(pairs, 'pair')}"
            )
        else:
            what = f"{100 * self.detect:g} points"
            if self.measure is not None:
                what = f"{self.detect:g} in the mean of {self.measure}"
            yield (
                f"to show a difference of {what} to {self.baseline} "
                f"with a power of {self.power:.0%}: {size}"
            )
        if self.looks > 1 and self.method != "race":
            rule = self.rule
            used = [round(self.rows * rule.expected_share(effect)) for effect in (1, 2, 0)]
            price = ""
            if self.method == "anytime":
                price = f", and the most is {rule.inflation - 1:.0%} more than with one look"
            effect = shown_difference(self.effect or 0, self.measure, ".3g")
            yield (
                f"on average {amount(used[0], 'row')} if the difference is {effect}, "
                f"{used[1]:,} if it is twice that, {used[2]:,} if there is none{price}"
            )
        yield from self.notes


@frozen
class LookResult(JsonForm, error=RecordError):
    """One look at the first `rows` rows of the design; `pairs` of them have all values that are
    compared, and `time` is their share of all rows.

    `difference` is the mean, `z` its normal score, which stops from `efficacy` on or below
    `futility`; None where the look could not test. `p`, `low` and `high` are valid after stopping;
    None where the batch continues and they are not. `dropped` are the variants that leave a race,
    `left` how many remain.
    """

    number: int
    rows: int
    pairs: int
    time: float
    verdict: LookVerdict
    difference: float | None = None
    z: float | None = None
    efficacy: float | None = None
    futility: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    dropped: tuple[Dropped, ...] = ()
    left: int = 1

    def line(self, design: Design) -> str:
        """The look for a person."""
        start = (
            f"look {self.number} of {design.looks}, {self.rows:,} of {amount(design.rows, 'row')}"
        )
        if design.method == "race":
            parts = [
                f"{each.name} is dropped ({shown_difference(each.difference, design.measure)} to "
                f"{each.by}, of {each.n:,})"
                for each in self.dropped
            ]
            return f"{start}: {'; '.join(parts) or 'no variant is dropped'}; {self.left} left"
        found = f"{start}, {self.pairs:,} with all values"
        if self.difference is None or self.z is None or self.efficacy is None:
            return f"{found}: nothing to test yet"
        limits = f"stops from {self.efficacy:.2f} on"
        if self.futility and self.verdict != "none shown":
            limits += f" or below {self.futility:.2f}"
        difference = shown_difference(self.difference, design.measure)
        result = f"{found}: {difference}, |z| = {abs(self.z):.2f} ({limits})"
        if self.low is not None and self.high is not None:
            low, high = (shown_difference(limit, design.measure) for limit in (self.low, self.high))
            result += f", interval {low} to {high}"
        if self.p is not None:
            result += f", p = {self.p:.2g}"
        return result


@frozen
class Decision(JsonForm, error=RecordError):
    """The design of a batch, and the looks that were taken."""

    design: Design
    looks: tuple[LookResult, ...] = ()

    @property
    def last(self) -> LookResult | None:
        return self.looks[-1] if self.looks else None

    @property
    def is_over(self) -> bool:
        """Whether the batch evaluates no further row."""
        return self.last is not None and self.last.verdict != "continue"

    @property
    def rows(self) -> int:
        """The rows that the batch asks for: those up to the look where it stopped."""
        if self.is_over and self.last is not None:
            return self.last.rows
        return self.design.rows

    def dropped(self, looks: int) -> frozenset[str]:
        """The variants that have left the race after so many looks."""
        return frozenset(each.name for look in self.looks[:looks] for each in look.dropped)

    def rows_of(self, template: str, variant: str) -> int:
        """The rows that the batch asks for from one of its variants."""
        name = cell_name(template, variant)
        for look in self.looks:
            if any(each.name == name for each in look.dropped):
                return look.rows
        return self.rows

    @property
    def status(self) -> str:
        """How far it is, as every output shows it, such as "stopped at look 3 of 5: …"."""
        of = self.design.looks
        last = self.last
        if last is None:
            return f"no look of {of} yet"
        if last.verdict == "continue":
            return f"look {last.number} of {of} taken: not decided yet"
        meaning = _MEANINGS[last.verdict]
        if of == 1:
            return f"after all rows: {meaning}"
        if last.number < of:
            return f"stopped at look {last.number} of {of}: {meaning}"
        return f"ended at look {of} of {of}: {meaning}"

    def lines(self) -> Iterator[str]:
        """The decision for a person."""
        yield next(self.design.lines())
        for look in self.looks:
            yield look.line(self.design)
        if self.is_over and self.design.method == "group":
            yield (
                "p and interval of the last look are valid after stopping; other intervals are "
                "those of a fixed number of rows"
            )

    def ahead(self) -> list[dict[str, Any]]:
        """The looks that are left: number, rows, and the boundaries at that share of the rows, None
        for a race.
        """
        if self.is_over:
            return []
        design = self.design
        times = sorted({look.time for look in self.looks if look.efficacy is not None})
        found: list[dict[str, Any]] = []
        for number in range(len(self.looks) + 1, design.looks + 1):
            rows = -(-number * design.rows // design.looks)
            look = {"number": number, "rows": rows, "efficacy": None, "futility": None}
            time = rows / design.rows if design.rows else 0.0
            if design.method != "race" and time > max(times, default=0.0):
                times.append(time)
                look |= asdict(design.rule.boundaries(times)[-1])
            found.append(look)
        return found

    def shown(self) -> dict[str, Any]:
        """The decision as pages and exports have it: its JSON, with the status, the design in words
        and the looks that are left.
        """
        words = list(self.design.lines())
        return {"status": self.status, "words": words, **self.to_dict(), "ahead": self.ahead()}

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Decision | None:
        """The decision of a batch; None if it has none. Raises: RecordError, if it is damaged."""
        found = manifest.get("decision")
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise RecordError("the manifest's decision is damaged")
        return cls.from_table(found)  # pyright: ignore[reportUnknownArgumentType]


_MEANINGS: dict[LookVerdict, str] = {
    "shown": "a difference is shown",
    "futile": "the difference to detect is improbable",
    "none shown": "no difference is shown",
    "decided": "one variant is left",
    "ended": "several variants are left",
}


def cell_name(template: str, variant: str) -> str:
    """The name of a variant in a race."""
    return f"{template} × {variant}"


def shown_difference(value: float, measure: str | None, form: str = "+.1f") -> str:
    """A difference for a person: in points of the share of passed results, or of the values of
    `measure`.
    """
    if measure is None:
        return f"{100 * value:{form}} points"
    return f"{value:{form.replace('.1f', '.3g')}}"
