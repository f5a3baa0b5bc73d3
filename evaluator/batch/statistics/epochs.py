"""Combines the epochs of a sample into one number; variance within and between samples."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from evaluator.batch.json_form import JsonForm
from evaluator.batch.statistics.argument_checks import check_finite
from evaluator.batch.statistics.intervals import mean_of
from evaluator.errors import UsageError

_PASSES = re.compile(r"pass([@^])([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Reducer:
    """Combines a sample's epochs into one number. `of_passes`: from 0 and 1 for whether each
    passed, not from the values.

    `least` is the number of judged epochs that a sample needs.
    """

    name: str
    reduce: Callable[[Sequence[float]], float]
    of_passes: bool = False
    least: int = 1


@dataclass(frozen=True, slots=True)
class Variance(JsonForm):
    """The variance of values `within` samples, and of the samples' means `between` them.

    Each is None without a sample of two values, `between` also without two samples. `samples` and
    `values` are counts.
    """

    within: float | None
    between: float | None
    samples: int
    values: int


def reducer(name: str) -> Reducer:
    """The reducer of that name: mean, median, mode, max, min, pass@k or pass^k with k from 1.

    mode is the most frequent value; the lowest of several equally frequent ones.

    Raises: UsageError, for an unknown name.
    """
    if name in _PLAIN:
        return Reducer(name, _PLAIN[name])
    found = _PASSES.fullmatch(name)
    if found is None:
        raise UsageError(
            f"unknown reducer {name!r}; reducers: {', '.join(_PLAIN)}, pass@k and pass^k (such as "
            "pass@3)"
        )
    k = int(found[2])
    estimate = pass_at_k if found[1] == "@" else pass_hat_k
    return Reducer(
        name, lambda passes: estimate(len(passes), round(sum(passes)), k), of_passes=True, least=k
    )


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The probability that at least one of k tries passes, an unbiased estimate from `passed` of n
    tries.

    It is 1 − C(n − passed, k) / C(n, k).

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021,
    arXiv:2107.03374), equation 1.

    Raises: UsageError, unless 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k=k)
    ways = math.comb(n, k)
    return (ways - math.comb(n - passed, k)) / ways


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """The probability that all of k tries pass, an unbiased estimate from `passed` of n tries.

    It is C(passed, k) / C(n, k).

    Source: Yao et al., "τ-bench" (2024, arXiv:2406.12045).

    Raises: UsageError, unless 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k=k)
    return math.comb(passed, k) / math.comb(n, k)


def _check_passes(n: int, passed: int, k: int) -> None:
    if not 0 <= passed <= n:
        raise UsageError(f"{passed} of {n} tries cannot have passed")
    if not 1 <= k <= n:
        raise UsageError(f"k is {k}, expected 1 to {n} for {n} tries")


def variance(samples: Iterable[Sequence[float]]) -> Variance:
    """The components of variance of values in samples, which may have different numbers of epochs.

    `within` is the mean square within samples; `between` the mean square between them less
    `within`, divided by the (adjusted) number of epochs, and 0 where that is negative. Samples
    without a value are ignored.

    Source: the one-way analysis of variance with random effects; Searle, Casella and McCulloch,
    Variance Components (1992).

    Raises: UsageError, if a value is not finite.
    """
    k = 0
    n = 0
    squares = 0
    total = 0.0
    sizes = array("q")
    means = array("d")
    inside = array("d")
    for values in samples:
        if not len(values):
            continue
        check_finite(values)
        mean = mean_of(values)
        inside.append(math.fsum((value - mean) ** 2 for value in values))
        sizes.append(len(values))
        means.append(mean)
        k = k + 1
        n = n + len(values)
        squares = squares + len(values) ** 2
        total = total + math.fsum(values)
    if n == k:
        return Variance(None, None, k, n)
    within = math.fsum(inside) / (n - k)
    if k < 2:
        return Variance(within, None, k, n)
    overall = total / n
    square_between = math.fsum(
        size * (mean - overall) ** 2 for size, mean in zip(sizes, means, strict=True)
    ) / (k - 1)
    epochs = (n - squares / n) / (k - 1)
    return Variance(within, max(0.0, (square_between - within) / epochs), k, n)


def _mode(values: Sequence[float]) -> float:
    counts = Counter(values)
    most = max(counts.values())
    return min(value for value, count in counts.items() if count == most)


_PLAIN: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": mean_of,
    "median": median,
    "mode": _mode,
    "max": max,
    "min": min,
}
