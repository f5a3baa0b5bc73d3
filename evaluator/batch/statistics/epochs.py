"""Several epochs of one sample made one number, and how much of the spread lies within samples and between them."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from evaluator.batch.statistics.arguments import check_finite
from evaluator.batch.statistics.intervals import mean_of
from evaluator.errors import UsageError

_PASSES = re.compile(r"pass([@^])([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Reducer:
    """One number for a sample's epochs. `of_passes`: it wants 0 and 1, whether an epoch passed, and not the values.

    `least` is how many judged epochs a sample must have.
    """

    name: str
    reduce: Callable[[Sequence[float]], float]
    of_passes: bool = False
    least: int = 1


@dataclass(frozen=True, slots=True)
class Variance:
    """The variance of values in samples: `within` a sample, and of the samples' own means `between` them.

    None where the values cannot say: `within` without a sample of two values, `between` without two samples as well.
    `samples` and `values` are how many there were.
    """

    within: float | None
    between: float | None
    samples: int
    values: int

    def to_dict(self) -> dict[str, Any]:
        return {"within": self.within, "between": self.between, "samples": self.samples, "values": self.values}


def reducer(name: str) -> Reducer:
    """The reducer of that name: mean, median, mode, max, min, pass@k or pass^k with k from 1.

    mode is the commonest value and, of several that are equally common, the lowest.

    Raises: UsageError, if there is none of that name.
    """
    if name in _PLAIN:
        return Reducer(name, _PLAIN[name])
    found = _PASSES.fullmatch(name)
    if found is None:
        raise UsageError(f"no reducer {name!r}; there are {', '.join(_PLAIN)}, pass@k and pass^k (pass@3, say)")
    k, estimate = int(found[2]), pass_at_k if found[1] == "@" else pass_hat_k
    return Reducer(name, lambda passes: estimate(len(passes), round(sum(passes)), k), True, k)


def pass_at_k(n: int, passed: int, k: int) -> float:
    """How likely at least one of k tries passes, estimated without bias from `passed` of n: 1 − C(n − c, k) / C(n, k).

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021, arXiv:2107.03374), equation 1.

    Raises: UsageError, if it is not 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k)
    ways = math.comb(n, k)
    return (ways - math.comb(n - passed, k)) / ways


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """How likely all of k tries pass, estimated without bias from `passed` of n: C(c, k) / C(n, k).

    Source: Yao et al., "τ-bench" (2024, arXiv:2406.12045).

    Raises: UsageError, if it is not 0 <= passed <= n and 1 <= k <= n.
    """
    _check_passes(n, passed, k)
    return math.comb(passed, k) / math.comb(n, k)


def _check_passes(n: int, passed: int, k: int) -> None:
    if not 0 <= passed <= n:
        raise UsageError(f"{passed} of {n} tries cannot have passed")
    if not 1 <= k <= n:
        raise UsageError(f"of {n} tries nothing can be said of k = {k}; it is from 1 to {n}")


def variance(samples: Iterable[Sequence[float]]) -> Variance:
    """The components of variance of values in samples, which may have different numbers of epochs.

    `within` is the mean square within samples; `between` the mean square between them less `within`, divided by the
    (adjusted) number of epochs, and 0 where that is negative. Samples without a value are left out.

    Source: the one-way analysis of variance with random effects; Searle, Casella and McCulloch, Variance Components
    (1992).

    Raises: UsageError, if a value is not finite.
    """
    k, n, squares, total = 0, 0, 0, 0.0
    sizes, means, inside = array("q"), array("d"), array("d")
    for values in samples:
        if not len(values):
            continue
        check_finite(values)
        mean = mean_of(values)
        inside.append(math.fsum((value - mean) ** 2 for value in values))
        sizes.append(len(values))
        means.append(mean)
        k, n, squares, total = k + 1, n + len(values), squares + len(values) ** 2, total + math.fsum(values)
    if n == k:
        return Variance(None, None, k, n)
    within = math.fsum(inside) / (n - k)
    if k < 2:
        return Variance(within, None, k, n)
    overall = total / n
    square_between = math.fsum(size * (mean - overall) ** 2 for size, mean in zip(sizes, means, strict=True)) / (k - 1)
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
