"""The ways of a Brownian motion over the looks of a test, by numerical integration.

Time is the share of the planned information that a look has, from 0 to 1. z is the normal score of
the test there. If the true effect is worth `drift` at time 1, z · √time is a Brownian motion with
that drift.

Source: Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A 132 (1969) 235;
Jennison and Turnbull, Group Sequential Methods (2000), chapter 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from evaluator.batch.statistics.distributions import normal_below

_NODES_PER_DEVIATION = 4


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
            count = min(128, 16 + math.ceil(2 * half / deviation) * _NODES_PER_DEVIATION)
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
