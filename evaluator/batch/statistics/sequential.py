"""Tests at several looks: when to stop, and p and intervals that are valid after stopping.

A look is a test of the results so far, at a time between 0 and 1 (the share of the planned rows).
z is its normal score; see below.

A rule stops where |z| reaches the efficacy boundary: a difference is shown. It also stops where |z|
is below the futility boundary. Efficacy ignores futility (it is non-binding), so that the error of
the first kind holds also if somebody continues after a futile look.

Sources: Lan and DeMets, Biometrika 70 (1983) 659, for spending as O'Brien and Fleming; Kim and
DeMets, Biometrika 74 (1987) 149, for spending in proportion to a power of time, and Pampallona,
Tsiatis and Kim, Drug Information Journal 35 (2001) 1113, for futility by spending; Jennison and
Turnbull, Group Sequential Methods (2000), chapter 8, for p and interval by the ordering of stages;
Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Annals of Statistics 52 (2024), for `anytime`.

The ways of a Brownian motion over the looks of a test, by numerical integration.

Time is the share of the planned information that a look has, from 0 to 1. z is the normal score of
the test there. If the true effect is worth `drift` at time 1, z · √time is a Brownian motion with
that drift.

Source: Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A 132 (1969) 235;
Jennison and Turnbull, Group Sequential Methods (2000), chapter 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal

from evaluator.batch.statistics.intervals import normal_below, normal_quantile, whole
from evaluator.batch.statistics.paired import signed_z
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen

_NODES_PER_DEVIATION = 1.5
"""The error of the probabilities is below 1e-9 with these, and eight more."""


class Paths:
    """Where the Brownian motion is among the ways that continue after a look, as weighted nodes.

    Without arguments: at 0, before the first look.
    """

    __slots__ = ("_nodes", "_time", "_weights")

    def __init__(
        self, time: float = 0.0, nodes: Sequence[float] = (0.0,), weights: Sequence[float] = (1.0,)
    ) -> None:
        self._time = time
        self._nodes = nodes
        self._weights = weights

    @property
    def total(self) -> float:
        """The probability to continue."""
        return math.fsum(self._weights)

    def chance_above(self, time: float, z: float, drift: float) -> float:
        """The probability to continue, and to have a score above `z` at `time`."""
        step = time - self._time
        deviation = math.sqrt(step)
        least = z * math.sqrt(time) - drift * step
        return math.fsum(
            weight * normal_below((node - least) / deviation)
            for node, weight in zip(self._nodes, self._weights, strict=True)
        )

    def chance_within(self, time: float, z: float, drift: float) -> float:
        """The probability to continue, and to have a score from −z to z at `time`."""
        above = self.chance_above(time, z, drift=drift)
        return self.chance_above(time, -z, drift=drift) - above

    def between(self, time: float, scores: Sequence[tuple[float, float]], drift: float) -> Paths:
        """The ways that continue at `time`, with a score in one of the intervals."""
        step = time - self._time
        deviation = math.sqrt(step)
        density = 1 / (deviation * math.sqrt(2 * math.pi))
        nodes: list[float] = []
        weights: list[float] = []
        root = math.sqrt(time)
        for low, high in scores:
            half = (high - low) * root / 2
            if half <= 0:
                continue
            middle = (high + low) * root / 2
            count = 8 + math.ceil(2 * half / deviation * _NODES_PER_DEVIATION)
            for place, part in _gauss_legendre(count):
                node = middle + half * place
                from_here = node - drift * step
                reached = math.fsum(
                    weight * math.exp(-(((from_here - before) / deviation) ** 2) / 2)
                    for before, weight in zip(self._nodes, self._weights, strict=True)
                )
                nodes.append(node)
                weights.append(half * part * density * reached)
        return Paths(time, nodes, weights)


@cache
def _gauss_legendre(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights in [−1, 1]: the roots of Legendre's polynomial, by Newton's method."""
    found: list[tuple[float, float]] = []
    for number in range(1, count + 1):
        x = math.cos(math.pi * (number - 0.25) / (count + 0.5))
        slope = 1.0
        for _ in range(100):
            before, value = 1.0, x
            for degree in range(2, count + 1):
                before, value = (
                    value,
                    ((2 * degree - 1) * x * value - (degree - 1) * before) / degree,
                )
            slope = count * (x * value - before) / (x * x - 1)
            change = value / slope
            x -= change
            if abs(change) < 1e-15:
                break
        found.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(found)


def root(
    function: Callable[[float], float], low: float, high: float, digits: float = 1e-10
) -> float:
    """Where an increasing function is 0; the nearer end if that is outside. By bisection and
    regula falsi (the Illinois method).
    """
    at_low = function(low)
    at_high = function(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    side = 0
    while high - low > digits:
        x = (low * at_high - high * at_low) / (at_high - at_low)
        if not low < x < high:
            x = (low + high) / 2
        value = function(x)
        if value == 0:
            return x
        if value > 0:
            high, at_high = x, value
            if side > 0:
                at_low /= 2
            side = 1
        else:
            low, at_low = x, value
            if side < 0:
                at_high /= 2
            side = -1
        if abs(value) < 1e-14:
            return x
    return (low + high) / 2


Method = Literal["group", "anytime"]
ALPHA = 0.05
POWER = 0.8
MOST_LOOKS = 50
_FUTILE_FROM = 0.5
_UNREACHABLE = 8.0
"""No z is as far from 0 as this."""


@frozen
class Boundary(JsonForm):
    """Boundaries of |z| at one look: it stops from `efficacy` on, and below `futility`."""

    efficacy: float
    futility: float


@frozen
class Stopped(JsonForm):
    """The result of a test that stopped: two-sided p of no difference, and the interval, in z of
    the look where it stopped.
    """

    p: float
    low: float
    high: float


@frozen
class StoppingRule(JsonForm):
    """When a test at `looks` looks stops. It has the error `alpha` of the first kind, two-sided.

    `drift` is the mean of z at the last look for the smallest effect that the rule finds with the
    probability `power`. It depends on the looks being equally far apart; boundaries are found for
    the looks as they are.
    """

    method: Method
    looks: int
    alpha: float
    power: float
    drift: float

    @property
    def inflation(self) -> float:
        """Rows that the rule may need, divided by those of a test at one fixed look."""
        return (self.drift / _fixed_drift(self.alpha, self.power)) ** 2

    def expected_share(self, effect: float) -> float:
        """The share of the rows that is used on average, for `effect` times the planned effect."""
        times = _equal_times(self.looks)
        chances = _chances(times, self.boundaries(times), drift=self.drift * effect)
        return math.fsum(
            time * chance
            for time, (up, down, futile) in zip(times, chances, strict=True)
            for chance in (up, down, futile)
        )

    def boundaries(self, times: Sequence[float]) -> list[Boundary]:
        """The boundary at each look so far. They depend on no later look.

        The last of all looks spends what is left of alpha, also if its time is not 1.

        Raises: UsageError, if times do not increase from above 0, or there are more than `looks`.
        """
        _check_times(times, self.looks)
        return list(
            _boundaries(self.method, self.looks, self.alpha, self.power, self.drift, *times)
        )

    def after_stopping(self, times: Sequence[float], z: float) -> Stopped:
        """p and interval of the test that stopped at the last of `times` with the score `z`.

        For "group", outcomes are ordered by their looks: an earlier crossing is more extreme. For
        "anytime", they hold at any look, whether it stops or not. Where z has reached the efficacy
        boundary, p is at most alpha and the interval excludes 0.

        Raises: UsageError, as `boundaries`.
        """
        boundaries = self.boundaries(times)
        if self.method == "anytime":
            return Stopped(
                _anytime_p(z, times[-1], self.alpha),
                z - boundaries[-1].efficacy,
                z + boundaries[-1].efficacy,
            )
        above = _as_high(times, boundaries, z=z, drift=0.0)
        scale = math.sqrt(times[-1])

        def limit(probability: float) -> float:
            reach = 2 * _UNREACHABLE / math.sqrt(times[0])
            return scale * root(
                lambda drift: _as_high(times, boundaries, z=z, drift=drift) - probability,
                z / scale - reach,
                z / scale + reach,
            )

        return Stopped(
            min(1.0, 2 * min(above, 1 - above)), limit(self.alpha / 2), limit(1 - self.alpha / 2)
        )


def group_sequential(looks: int = 5, alpha: float = ALPHA, power: float = POWER) -> StoppingRule:
    """A rule for few looks at fixed shares of the rows, with boundaries as O'Brien and Fleming's.

    Raises: UsageError, if `looks` is not from 1 to 50, or `alpha` or `power` cannot be used.
    """
    return _rule("group", looks, alpha, power)


def anytime(looks: int = 20, alpha: float = ALPHA, power: float = POWER) -> StoppingRule:
    """A rule whose p and interval are valid at any number of looks, planned or not.

    It needs more rows than `group_sequential`. The interval is asymptotic: a look needs about 30
    rows. It is futile where the interval excludes the planned effect in both directions.

    Raises: UsageError, as `group_sequential`.
    """
    return _rule("anytime", looks, alpha, power)


def _rule(method: Method, looks: int, alpha: float, power: float) -> StoppingRule:
    if not 1 <= whole("looks", looks) <= MOST_LOOKS:
        raise UsageError(f"looks is {looks}, expected 1 to {MOST_LOOKS}")
    if not 0 < alpha < 0.5:
        raise UsageError(f"alpha is {alpha}, expected a number between 0 and 0.5")
    if not 0.5 <= power < 1:
        raise UsageError(f"the power is {power}, expected a number from 0.5 to below 1")
    return StoppingRule(method, looks, alpha, power, _drift(method, looks, alpha, power))


@lru_cache(64)
def _drift(method: Method, looks: int, alpha: float, power: float) -> float:
    times = _equal_times(looks)
    fixed = _fixed_drift(alpha, power)

    def excess(drift: float) -> float:
        found = _boundaries(method, looks, alpha, power, drift, *times)
        return math.fsum(up for up, _, _ in _chances(times, found, drift=drift)) - power

    return root(excess, fixed, 2 * fixed, digits=1e-7)


def _fixed_drift(alpha: float, power: float) -> float:
    return normal_quantile(1 - alpha / 2) + normal_quantile(power)


def _equal_times(looks: int) -> list[float]:
    return [number / looks for number in range(1, looks + 1)]


def _check_times(times: Sequence[float], looks: int) -> None:
    increase = all(before < after for before, after in zip((0.0, *times), times, strict=False))
    if not increase or not 1 <= len(times) <= looks:
        raise UsageError(
            f"the times of looks are {list(times)}, expected 1 to {looks} that increase from 0"
        )


# -- boundaries ------------------------------------------------------------------------------------


@lru_cache(256)
def _boundaries(
    method: Method, looks: int, alpha: float, power: float, drift: float, *times: float
) -> tuple[Boundary, ...]:
    if method == "anytime":
        limits = [_anytime_limit(time, alpha) for time in times]
        futile = [max(0.0, drift * math.sqrt(t) - e) for t, e in zip(times, limits, strict=True)]
    else:
        limits = _efficacy_limits(alpha, looks, *times)
        futile = _futility(times, limits, looks=looks, beta=1 - power, drift=drift)
    if len(times) == looks:
        futile[-1] = limits[-1]
    return tuple(
        Boundary(efficacy, min(efficacy, futility))
        for efficacy, futility in zip(limits, futile, strict=True)
    )


def _alpha_spent(alpha: float, time: float) -> float:
    """The part of `alpha`, of one tail, that is spent up to `time`."""
    return 2 * normal_below(-normal_quantile(1 - alpha / 2) / math.sqrt(min(1.0, time)))


def _beta_spent(beta: float, time: float) -> float:
    """Late looks get most of it, so that few rows are added to those of a test without futility."""
    return beta * min(1.0, time) ** 3


@lru_cache(64)
def _efficacy_limits(alpha: float, looks: int, *times: float) -> list[float]:
    limits: list[float] = []
    paths = Paths()
    spent = 0.0
    for number, time in enumerate(times, 1):
        if number == looks:
            total = alpha / 2
        else:
            total = _alpha_spent(alpha / 2, time)
        step = total - spent
        limit = root(
            lambda z, at=paths, t=time, s=step: s - at.chance_above(t, z, drift=0.0),
            0.0,
            _UNREACHABLE,
        )
        limits.append(limit)
        spent = total
        paths = paths.between(time, [(-limit, limit)], drift=0.0)
    return limits


def _futility(
    times: Sequence[float], efficacy: Sequence[float], looks: int, beta: float, drift: float
) -> list[float]:
    """The limits of futility; 0 before half of the rows. Few results with ties have |z| near 0 much
    more often than a normal variable.
    """
    limits: list[float] = []
    paths = Paths()
    spent = 0.0
    for number, (time, most) in enumerate(zip(times, efficacy, strict=True), 1):
        limit = 0.0
        if time >= _FUTILE_FROM or number == looks:
            if number == looks:
                total = beta
            else:
                total = _beta_spent(beta, time)
            step = total - spent
            limit = root(
                lambda z, at=paths, t=time, s=step: at.chance_within(t, z, drift=drift) - s,
                0.0,
                most,
            )
            spent = total
        limits.append(limit)
        paths = paths.between(time, [(-most, -limit), (limit, most)], drift=drift)
    return limits


@cache
def _anytime_scale(alpha: float) -> float:
    """The parameter of the mixture for which the interval is narrowest at half of the rows."""
    scale = 8.0
    for _ in range(100):
        scale = math.log((scale + 1) / alpha**2)
    return 2 * scale


def _anytime_limit(time: float, alpha: float) -> float:
    x = _anytime_scale(alpha) * time
    return math.sqrt((x + 1) / x * math.log((x + 1) / alpha**2))


def _anytime_p(z: float, time: float, alpha: float) -> float:
    x = _anytime_scale(alpha) * time
    return min(1.0, math.sqrt(x + 1) * math.exp(-z * z * x / (2 * (x + 1))))


# -- probabilities ---------------------------------------------------------------------------------


def _chances(
    times: Sequence[float], boundaries: Sequence[Boundary], drift: float
) -> list[tuple[float, float, float]]:
    """The probabilities to stop at each look: above, below, and for futility."""
    found: list[tuple[float, float, float]] = []
    paths = Paths()
    for time, each in zip(times, boundaries, strict=True):
        up = paths.chance_above(time, each.efficacy, drift=drift)
        down = paths.total - paths.chance_above(time, -each.efficacy, drift=drift)
        found.append((up, down, paths.chance_within(time, each.futility, drift=drift)))
        paths = paths.between(
            time,
            [(-each.efficacy, -each.futility), (each.futility, each.efficacy)],
            drift=drift,
        )
    return found


def _as_high(
    times: Sequence[float], boundaries: Sequence[Boundary], z: float, drift: float
) -> float:
    """The probability to stop as high as with `z` at the last look, by the ordering of looks."""
    paths = Paths()
    above = 0.0
    for time, each in zip(times[:-1], boundaries, strict=False):
        above += paths.chance_above(time, each.efficacy, drift=drift)
        paths = paths.between(time, [(-each.efficacy, each.efficacy)], drift=drift)
    return above + paths.chance_above(times[-1], z, drift=drift)


# -- races -----------------------------------------------------------------------------------------


@frozen
class Dropped(JsonForm):
    """A variant that a race drops: `by` is the better one, `n` of the rows have both values.

    `difference` is its mean less that of `by`, below 0; `z` is below −`boundary`.
    """

    name: str
    by: str
    difference: float
    z: float
    boundary: float
    n: int


def race(
    values: Mapping[str, Sequence[float | None]],
    times: Sequence[float],
    looks: int,
    variants: int,
    clusters: Sequence[Hashable] | None = None,
    alpha: float = ALPHA,
) -> list[Dropped]:
    """The variants to drop at a look of a race, the worst first.

    `values` are those of the variants that are left, over the same rows in the same order, None for
    a row without a value; `clusters` has the cluster of each row. `times` are the shares of the
    rows at the looks so far, this one last. `looks` and `variants` are those of the whole race.

    A variant is dropped that is worse than the best one. The probability that the race ever drops
    one for another that is not better is at most `alpha`: each of the variants · (variants − 1) / 2
    pairs has its part of it (Bonferroni), and spends it over the looks as `group_sequential`.

    Raises: UsageError, as `StoppingRule.boundaries`, and if the variants have not the same rows.
    """
    pairs = max(1, variants * (variants - 1) // 2)
    _check_times(times, looks)
    boundary = _efficacy_limits(alpha / pairs, looks, *times)[-1]
    if len({len(each) for each in values.values()}) > 1:
        raise UsageError("the variants of a race have different numbers of rows")
    means = {
        name: math.fsum(known) / len(known)
        for name, found in values.items()
        if (known := [value for value in found if value is not None])
    }
    if not means:
        return []
    best = max(means, key=lambda name: means[name])
    dropped: list[Dropped] = []
    for name in means:
        if name == best:
            continue
        rows = [
            (place, own - other)
            for place, (own, other) in enumerate(zip(values[name], values[best], strict=True))
            if own is not None and other is not None
        ]
        differences = [difference for _, difference in rows]
        if clusters is None:
            groups = None
        else:
            groups = [clusters[place] for place, _ in rows]
        z = signed_z(differences, groups)
        if z is not None and z <= -boundary:
            mean = math.fsum(differences) / len(differences)
            dropped.append(Dropped(name, best, mean, z=z, boundary=boundary, n=len(rows)))
    return sorted(dropped, key=lambda each: each.z)
