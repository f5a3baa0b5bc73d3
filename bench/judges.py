"""How often intervals of corrected numbers contain the truth, and how often a difference that is
not there is found.

    python bench/judges.py [--rounds 2000] [--json]

A judge with known mistakes judges simulated answers, and people label some, drawn at random within
its verdicts. Per scenario: the share of rounds in which the corrected 95 % interval contains the
true share, and its mean width beside that of the labels alone. For the judge's own interval it is
the same share. Differences: two models that are equally good, with different judges, are compared;
p below 0.05 is an error of type I. Everything is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from figures import Figure, parser_for, report

from evaluator.batch.statistics import (
    PartlyLabelled,
    cautious_reach,
    corrected_difference,
    corrected_mean,
    proportion_interval,
)


@dataclass(frozen=True)
class Scenario:
    """`results` of which `right` are; a judge; `labels` of them. Results come in clusters of `size`
    whose difficulty is shared to the extent of `related`, from 0 to 1.
    """

    name: str
    results: int = 2000
    labels: int = 200
    right: float = 0.7
    sensitivity: float = 0.97
    wrong: float = 0.35
    size: int = 1
    related: float = 0.0
    strict: float = 0.5


SCENARIOS = (
    Scenario("a kind judge, 200 labels of 2,000"),
    Scenario("a kind judge, 50 labels of 500", results=500, labels=50),
    Scenario("a good judge (.95, .05), 100 labels", sensitivity=0.95, wrong=0.05, labels=100),
    Scenario("a judge that guesses, 100 labels", sensitivity=0.5, wrong=0.5, labels=100),
    Scenario("a rare class (5 % right), 200 labels", right=0.05, wrong=0.1),
    Scenario("a common class (97 % right), 100 labels", right=0.97, labels=100),
    Scenario("4 related epochs of 250 samples", results=1000, size=4, related=0.8),
    Scenario("100 clusters of 10", results=1000, size=10, related=0.4),
    Scenario("labels mostly of failed results", strict=0.8, labels=100, results=1000),
)


def draw(scenario: Scenario, rng: random.Random) -> PartlyLabelled:
    truth: list[float] = []
    clusters: list[int] = []
    for place in range(0, scenario.results, scenario.size):
        shared = rng.random() < scenario.right
        for _ in range(scenario.size):
            own = shared if rng.random() < scenario.related else rng.random() < scenario.right
            truth.append(float(own))
            clusters.append(place)
    verdicts = [
        float(rng.random() < (scenario.sensitivity if right else scenario.wrong)) for right in truth
    ]
    labels: list[float | None] = [None] * len(truth)
    for verdict, share in ((1.0, 1 - scenario.strict), (0.0, scenario.strict)):
        places = [place for place, found in enumerate(verdicts) if found == verdict]
        count = min(len(places), max(2, round(scenario.labels * share)))
        for place in rng.sample(places, count):
            labels[place] = truth[place]
    return PartlyLabelled(verdicts, labels, strata=verdicts, clusters=clusters)


def coverage(scenario: Scenario, rounds: int) -> Iterator[Figure]:
    rng = random.Random(scenario.name)
    covered = 0
    judge_covered = 0
    widths: list[float] = []
    for _ in range(rounds):
        drawn = draw(scenario, rng)
        clusters = drawn.clusters if scenario.size > 1 else None
        found = corrected_mean(
            drawn.predictions, drawn.labels, strata=drawn.strata, clusters=clusters
        )
        judge = proportion_interval(drawn.predictions, clusters)
        assert found.low is not None and found.high is not None
        assert judge.low is not None and judge.high is not None
        covered += found.low <= scenario.right <= found.high
        judge_covered += judge.low <= scenario.right <= judge.high
        widths.append(found.high - found.low)
    name = scenario.name
    yield Figure(f"{name}: contains the truth", 100 * covered / rounds, "%", 94, at_least=True)
    yield Figure(f"{name}: width", 100 * fmean(widths), "points")
    yield Figure(f"{name}: the judge's own contains the truth", 100 * judge_covered / rounds, "%")


def stopped(rounds: int, reach: float = 0.07, step: int = 5) -> Iterator[Figure]:
    """Labels are added until the interval is small enough, as `evaluator label` does."""
    scenario = Scenario("stopped", results=500, labels=400)
    rng = random.Random(scenario.name)
    covered = 0
    used: list[int] = []
    for _ in range(rounds):
        drawn = draw(scenario, rng)
        places = [place for place, label in enumerate(drawn.labels) if label is not None]
        rng.shuffle(places)
        for count in range(20, len(places) + 1, step):
            labels: list[float | None] = [None] * len(drawn.labels)
            for place in places[:count]:
                labels[place] = drawn.labels[place]
            if len({drawn.strata[place] for place in places[:count]}) < 2:
                continue
            found = corrected_mean(drawn.predictions, labels, strata=drawn.strata)
            side = replace(drawn, labels=labels)
            if (own := cautious_reach(side, found)) is None or own > reach:
                continue
            assert found.low is not None and found.high is not None
            covered += found.low <= scenario.right <= found.high
            used.append(count)
            break
    name = f"stopped at ± {100 * reach:.0f} points, looking every {step} labels"
    yield Figure(f"{name}: contains the truth", 100 * covered / len(used), "%", 94, at_least=True)
    yield Figure(f"{name}: labels", fmean(used), "")


def errors_of_type_1(rounds: int) -> Iterator[Figure]:
    base = Scenario("differences", results=600, labels=120)
    for name, change in (
        ("the same judge", lambda one: one),
        ("a kind and a strict judge", lambda one: replace(one, sensitivity=0.8, wrong=0.05)),
    ):
        yield Figure(
            f"difference that is not there, {name}: found",
            100 * _found(base, change, rounds) / rounds,
            "%",
            6,
        )


def _found(base: Scenario, change: Callable[[Scenario], Scenario], rounds: int) -> int:
    rng = random.Random(base.name)
    found = 0
    for _ in range(rounds):
        difference = corrected_difference(draw(base, rng), draw(change(base), rng))
        found += difference.p is not None and difference.p < 0.05
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args(arguments)
    figures = [figure for each in SCENARIOS for figure in coverage(each, options.rounds)]
    figures += stopped(options.rounds)
    figures += errors_of_type_1(options.rounds)
    report(figures, as_json=options.json)


if __name__ == "__main__":
    main()
