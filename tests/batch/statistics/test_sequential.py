"""Group-sequential, anytime-valid and racing tests against printed tables, SciPy, and closed forms."""

from __future__ import annotations

import math

import pytest
import scipy

from evaluator import UsageError
from evaluator.batch.statistics import (
    RowSpread,
    anytime,
    group_sequential,
    paired_spread,
    pairs_needed,
    power_of,
    race,
    signed_z,
)
from evaluator.batch.statistics.sequential import StoppingRule

FIVE = [0.2, 0.4, 0.6, 0.8, 1.0]


def reached(times: list[float], limits: list[float], drift: float) -> float:
    """The probability that |z| is below all limits, by SciPy."""
    covariance = [[math.sqrt(min(a, b) / max(a, b)) for b in times] for a in times]
    return float(
        scipy.stats.multivariate_normal.cdf(
            limits,
            mean=[drift * math.sqrt(time) for time in times],
            cov=covariance,
            lower_limit=[-limit for limit in limits],
            abseps=1e-7,
            releps=1e-7,
            maxpts=500_000,
            rng=1,
        )
    )


def test_the_boundaries_are_the_printed_ones_of_obrien_and_fleming_by_spending() -> None:
    """R's ldbounds, `ldBounds(1:5/5, iuse=1, alpha=0.05)`; unequal: SciPy."""
    found = [each.efficacy for each in group_sequential(5).boundaries(FIVE)]
    assert found == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-4)
    assert group_sequential(1).boundaries([1.0])[0].efficacy == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize("times", [[0.5, 1.0], [0.3, 0.45, 1.0], [0.25, 0.6, 0.93]])
def test_alpha_is_spent_exactly_also_if_the_looks_are_not_as_planned(times: list[float]) -> None:
    """Information is less than planned in the last case: the last look spends what is left."""
    found = group_sequential(len(times)).boundaries(times)
    assert 1 - reached(times, [each.efficacy for each in found], drift=0) == pytest.approx(
        0.05, abs=2e-5
    )
    assert found[-1].futility == found[-1].efficacy


@pytest.mark.parametrize("rule", [group_sequential(2, power=0.9), group_sequential(2)])
def test_the_power_is_the_planned_one(rule: StoppingRule) -> None:
    """Two looks: stops above at the first, or continues on either side and is above at the second."""
    first, last = rule.boundaries([0.5, 1.0])
    mean = [rule.drift * math.sqrt(0.5), rule.drift]
    both = scipy.stats.multivariate_normal(mean, [[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])

    def later(low: float, high: float) -> float:
        return float(both.cdf([high, math.inf], lower_limit=[low, last.efficacy]))

    power = scipy.stats.norm.sf(first.efficacy - mean[0])
    power += later(first.futility, first.efficacy) + later(-first.efficacy, -first.futility)
    assert power == pytest.approx(rule.power, abs=1e-4)


def test_five_looks_save_rows_and_the_anytime_rule_says_its_price() -> None:
    """Rows on average, divided by those of the test at one look."""
    rule = group_sequential(5)
    assert rule.inflation == pytest.approx(1.057, abs=1e-3)
    used = [rule.inflation * rule.expected_share(effect) for effect in (0, 1, 2)]
    assert used == pytest.approx([0.793, 0.812, 0.511], abs=1e-3)
    assert anytime(20).inflation == pytest.approx(1.748, abs=1e-3)


@pytest.mark.parametrize("z", [2.5, -0.7, 4.0])
def test_with_one_look_p_and_interval_are_those_of_the_normal_test(z: float) -> None:
    found = group_sequential(1).after_stopping([1.0], z)
    assert found.p == pytest.approx(2 * scipy.stats.norm.sf(abs(z)))
    assert (found.low, found.high) == (pytest.approx(z - 1.959964), pytest.approx(z + 1.959964))


def test_p_is_alpha_and_the_interval_ends_at_0_on_the_last_boundary() -> None:
    rule = group_sequential(5)
    last = rule.boundaries(FIVE)[-1].efficacy
    found = rule.after_stopping(FIVE, last)
    assert found.p == pytest.approx(0.05) and found.low == pytest.approx(0, abs=1e-8)
    assert rule.after_stopping(FIVE, last + 0.01).p < 0.05 < rule.after_stopping(FIVE, 2.0).p


def test_p_after_the_second_look_is_the_chance_of_the_outcomes_that_are_as_extreme() -> None:
    """Above the first boundary, or not and above z at the second look; mirrored for negative z."""
    rule = group_sequential(2)
    first = rule.boundaries([0.5, 1.0])[0].efficacy
    both = scipy.stats.multivariate_normal([0, 0], [[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    above = scipy.stats.norm.sf(first) + both.cdf([first, math.inf], lower_limit=[-first, 2.2])
    found = rule.after_stopping([0.5, 1.0], 2.2)
    mirrored = rule.after_stopping([0.5, 1.0], -2.2)
    assert found.p == pytest.approx(2 * above, abs=1e-6) == mirrored.p
    assert (found.low, found.high) == (pytest.approx(-mirrored.high), pytest.approx(-mirrored.low))
    assert found.low < 2.2 < found.high


def test_an_early_crossing_is_more_extreme_than_a_late_one() -> None:
    rule = group_sequential(5)
    early = rule.after_stopping(FIVE[:2], 3.4)
    assert early.p < rule.after_stopping(FIVE[:3], 3.4).p < 0.05
    assert early.low > 0


def test_the_anytime_p_is_a_test_martingale_and_agrees_with_its_boundary() -> None:
    """1 / p has the mean 1 under no difference, at each time (before p is limited to 1)."""
    rule = anytime(20)
    for time in (0.05, 0.5, 1.0):
        limit = rule.boundaries([time])[0].efficacy
        assert rule.after_stopping([time], limit).p == pytest.approx(0.05)
        at = rule.after_stopping([time], limit)
        assert at.low == pytest.approx(0) and at.high == pytest.approx(2 * limit)
        # The e-value as the exponent that p is made of, from its value at two scores.
        slope = -2 * math.log(rule.after_stopping([time], 5.0).p / at.p) / (25 - limit**2)
        level = math.log(at.p) + slope * limit**2 / 2
        mean, _ = scipy.integrate.quad(
            lambda z, s=slope, c=level: math.exp((s - 1) * z * z / 2 - c), -60, 60
        )
        assert mean / math.sqrt(2 * math.pi) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_sequential(0), "looks is 0"),
        (lambda: group_sequential(51), "looks is 51"),
        (lambda: group_sequential(5, power=0.3), "power is 0.3"),
        (lambda: group_sequential(5, alpha=0.7), "alpha is 0.7"),
        (lambda: group_sequential(2).boundaries([0.5, 0.4]), "times of looks"),
        (lambda: group_sequential(2).boundaries([0.2, 0.5, 1]), "times of looks"),
        (lambda: race({"a": [1], "b": [1, 0]}, [1.0], 1, variants=2), "numbers of rows"),
        (lambda: paired_spread(0.2, RowSpread(0.2), 1.5), "correlation is 1.5"),
        (lambda: power_of(0.0, 0.1, 10), "spread above 0"),
    ],
)
def test_wrong_arguments_are_refused(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()  # type: ignore[operator]


def test_the_score_of_pairs_is_that_of_the_t_test_and_of_signs_without_a_spread() -> None:
    values = [0.0, 1.0, 1.0, 0.0, -1.0, 1.0, 0.0, 1.0]
    p = scipy.stats.ttest_1samp(values, 0).pvalue
    assert signed_z(values) == pytest.approx(scipy.stats.norm.isf(p / 2))
    assert signed_z([-value for value in values]) == pytest.approx(-scipy.stats.norm.isf(p / 2))
    assert signed_z([1.0] * 20) == pytest.approx(scipy.stats.norm.isf(0.5**20))
    assert signed_z([0.0] * 20) == 0
    assert signed_z([1.0]) is None
    assert signed_z([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"]) == pytest.approx(
        scipy.stats.norm.isf(scipy.stats.ttest_1samp([1.0, 0.0], 0).pvalue / 2)
    )


def test_the_spread_of_pairs_is_that_of_their_differences() -> None:
    """Rows 0 and 1 on both sides; epochs lower only their own part."""
    a = [1.0, 1, 1, 0, 0, 1, 0, 1]
    b = [1.0, 1, 0, 0, 1, 1, 1, 1]
    differences = [y - x for x, y in zip(a, b, strict=True)]
    found = paired_spread(
        scipy.stats.tvar(a),
        RowSpread(scipy.stats.tvar(b)),
        float(scipy.stats.pearsonr(a, b).statistic),
    )
    assert found.with_epochs(1) == pytest.approx(scipy.stats.tstd(differences))
    assert RowSpread(0.04, 0.36).with_epochs(4) == pytest.approx(math.sqrt(0.13))


def test_the_pairs_needed_have_the_power_and_one_less_has_not() -> None:
    needed = pairs_needed(0.45, 0.05)
    assert power_of(0.45, 0.05, needed) >= 0.8 > power_of(0.45, 0.05, needed - 2)
    reach = scipy.stats.norm.isf(0.025)
    drift = 0.05 / 0.45 * math.sqrt(200)
    assert power_of(0.45, 0.05, 200) == pytest.approx(
        scipy.stats.norm.sf(reach - drift) + scipy.stats.norm.cdf(-reach - drift)
    )


def test_a_race_drops_the_hopeless_variant_and_keeps_the_close_one() -> None:
    """At the first of two looks. A row without a value makes no pair; None is not 0."""
    best = [1.0, 1, 1, 1, 1, 0, 1, 1, 1, 1] * 8
    close: list[float | None] = [1.0, 1, 1, 1, 0, 0, 1, 1, 1, 1] * 8
    worse: list[float | None] = [0.0, 1, 0, 0, 1, 0, 0, 1, 0, 0] * 8
    worse[0] = None
    dropped = race({"best": best, "close": close, "worse": worse}, [0.5], 2, variants=3)
    assert [(each.name, each.by, each.n) for each in dropped] == [("worse", "best", 79)]
    assert dropped[0].z < -dropped[0].boundary
    # With more variants at the start each pair has less of alpha.
    fewer = race({"best": best, "worse": worse}, [0.5], 2, variants=2)
    assert fewer[0].boundary < dropped[0].boundary
    assert race({"best": best, "worse": [None] * 80}, [0.5], 2, variants=2) == []
    # One cluster for all rows proves nothing.
    assert race({"a": best, "b": worse}, [0.5], 2, variants=2, clusters=[0] * 80) == []
