"""From what a search finds to the probability that the template is right: one logistic for texts, one for nodes.

The coefficients were fitted by `bench/match_fit.py` on the train parts of public collections (see `bench/README.md`)
and on the tuning half of `tests/library/match_requests.json`, each collection with equal weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Evidence(NamedTuple):
    """What is known of a template that a search found for a request."""

    strength: float  # log of the weight of the words that it holds, with that of the meaning
    missed: float  # log of the weight of those that it does not hold
    margin: float  # its lead over the best other template, as a share of the request; negative except for the first
    unknown: float  # the share of the request, by weight, that no template has
    size: float  # log of the number of templates


class Logistic(NamedTuple):
    """The coefficients of each part of the evidence, and the intercept."""

    strength: float
    missed: float
    margin: float
    unknown: float
    size: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept + sum(a * b for a, b in zip(self[:5], evidence, strict=True))
        return max(-30.0, min(30.0, total))


TEXT = Logistic(3.54, -0.19, 2.2, -1.34, -0.83, -1.77)
NODE = Logistic(2.9, 0.28, 3.23, -1.94, -0.83, -1.87)

TEXT_VECTORS = Logistic(3.73, -1.36, 2.91, -1.29, -0.81, -1.17)
NODE_VECTORS = Logistic(3.14, -0.82, 3.54, -1.73, -0.79, -1.42)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
