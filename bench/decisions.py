"""How often batches that stop early decide wrongly, how often they find the planned difference, and
how many rows they save.

    python bench/decisions.py [--rounds 100000] [--json]

Rows are pairs of results that passed or failed, so that a difference is −1, 0 or 1. A batch is
planned for a difference of 5 points with the spread of its pairs, and decided with the rules, the
test and the boundaries of `evaluator.batch.statistics`; only the counts of pairs at each look are
drawn with NumPy. Everything is seeded. The boundaries are compared with closed forms and SciPy in
tests/batch/statistics/test_sequential.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from figures import Figure, parser_for, report
from scipy import special

from evaluator.batch.statistics import (
    StoppingRule,
    anytime,
    group_sequential,
    pairs_needed,
    race,
)

LEAST_ANYTIME = 30
COVERED = 1_000


@dataclass(frozen=True)
class Outcome:
    """Of all rounds: the share that shows a difference, and is futile; rows used on average."""

    shown: float
    right: float
    futile: float
    rows: float
    covered: float


def scores(plus: np.ndarray, minus: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The normal score of the paired t test, of the sign test without a spread, and its error."""
    mean = (plus - minus) / n
    variance = ((plus + minus) / n - mean**2) * n / (n - 1)
    error = np.sqrt(np.maximum(variance, 0) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = special.stdtr(n - 1, -np.abs(mean / error))
    tails = np.where(error > 0, tails, 0.5 ** np.broadcast_to(n, mean.shape))
    tails = np.where(mean == 0, 0.5, np.maximum(tails, 5e-301))
    return -np.sign(mean) * special.ndtri(tails), error


def simulate(
    rule: StoppingRule,
    difference: float,
    rounds: int,
    rng: np.random.Generator,
    detect: float,
    differ: float,
) -> tuple[Outcome, int]:
    """The outcome of `rounds` batches, and the rows of the test at one look. `differ` is the share of
    pairs whose results differ.
    """
    spread = math.sqrt(differ - detect**2)
    fixed = pairs_needed(spread, detect, rule.power)
    rows = math.ceil(fixed * rule.inflation)
    ends = np.array([rows * look // rule.looks for look in range(1, rule.looks + 1)])
    sizes = np.diff(ends, prepend=0)
    up = (differ + difference) / 2
    down = (differ - difference) / 2
    drawn = np.stack(
        [rng.multinomial(size, [up, down, 1 - up - down], size=rounds) for size in sizes], axis=1
    ).cumsum(axis=1)
    z, errors = scores(drawn[:, :, 0], drawn[:, :, 1], ends)
    times = [float(end / rows) for end in ends]
    boundaries = rule.boundaries(times)
    is_late = ends >= (LEAST_ANYTIME if rule.method == "anytime" else 2)
    shown = (np.abs(z) >= [each.efficacy for each in boundaries]) & is_late
    futile = (np.abs(z) < [each.futility for each in boundaries]) & is_late & ~shown
    stops = shown | futile
    stops[:, -1] = True
    at = stops.argmax(axis=1)
    every = np.arange(rounds)
    is_shown = shown[every, at]
    covered = 0
    for round_ in range(min(COVERED, rounds)):
        look = at[round_]
        found = rule.after_stopping(times[: look + 1], float(z[round_, look]))
        error = errors[round_, look]
        covered += found.low * error <= difference <= found.high * error
    return Outcome(
        shown=float(is_shown.mean()),
        right=float((is_shown & (z[every, at] > 0)).mean()),
        futile=float((futile[every, at] & (at < rule.looks - 1)).mean()),
        rows=float(ends[at].mean()),
        covered=covered / min(COVERED, rounds),
    ), fixed


def simulate_race(
    shares: list[float], rounds: int, rng: np.random.Generator, rows: int = 400, looks: int = 5
) -> tuple[float, float]:
    """The share of races that drop a variant that is as good as the best one, and the share of rows
    that is used.
    """
    wrong = 0
    used = 0
    best = max(shares)
    for _ in range(rounds):
        # Rows are easy or hard for all variants: half of each result is the row's own.
        shared = rng.random(rows)
        results = [
            np.where(rng.random(rows) < 0.5, shared, rng.random(rows)) < share for share in shares
        ]
        left = list(range(len(shares)))
        times: list[float] = []
        for look in range(1, looks + 1):
            end = rows * look // looks
            times.append(end / rows)
            used += len(left) * (end - rows * (look - 1) // looks)
            values = {str(each): results[each][:end].astype(float).tolist() for each in left}
            dropped = {int(each.name) for each in race(values, times, looks, len(shares))}
            wrong_now = any(shares[each] == best for each in dropped)
            left = [each for each in left if each not in dropped]
            if wrong_now:
                wrong += 1
                used += len(left) * (rows - end)
                break
            if len(left) == 1:
                break
    return wrong / rounds, used / (rounds * rows * len(shares))


def measure(rounds: int) -> list[Figure]:
    rng = np.random.default_rng(20261123)
    figures: list[Figure] = []
    for name, rule, detect, differ in (
        ("5 looks", group_sequential(5), 0.05, 0.2),
        ("5 looks, 140 rows", group_sequential(5), 0.15, 0.4),
        ("20 looks, anytime", anytime(20), 0.05, 0.2),
    ):
        for effect in (0.0, 1.0, 2.0):
            found, fixed = simulate(rule, detect * effect, rounds, rng, detect, differ)
            label = f"{name}, {effect:g} times the difference"
            if effect == 0:
                goal = 0.05 + 2 * math.sqrt(0.05 * 0.95 / rounds)
                figures.append(
                    Figure(f"{label}: shown (type I)", 100 * found.shown, "%", 100 * goal)
                )
                figures.append(Figure(f"{label}: futile", 100 * found.futile, "%"))
            elif effect == 1:
                figures.append(
                    Figure(f"{label}: shown (power)", 100 * found.right, "%", 79, at_least=True)
                )
            figures.append(
                Figure(f"{label}: rows, of the fixed test's", 100 * found.rows / fixed, "%")
            )
            figures.append(Figure(f"{label}: interval covers", 100 * found.covered, "%", 94, True))
    for name, shares in (
        ("4 equal variants", [0.7] * 4),
        ("one of 4 better by 10 points", [0.8, 0.7, 0.7, 0.7]),
        ("one of 4 worse by 20 points", [0.7, 0.7, 0.7, 0.5]),
    ):
        wrong, used = simulate_race(shares, max(200, rounds // 100), rng)
        figures.append(Figure(f"race, {name}: drops a best one", 100 * wrong, "%", 5))
        figures.append(Figure(f"race, {name}: rows used", 100 * used, "%"))
    return figures


if __name__ == "__main__":
    parser = parser_for(__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    arguments = parser.parse_args()
    report(measure(arguments.rounds), as_json=arguments.json)
