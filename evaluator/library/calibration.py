"""From what a search finds to the probability that the template is right: one logistic for texts, one for nodes.

The coefficients were fitted by `bench/match_fit.py` on the train parts of public collections (see `bench/README.md`)
and on the tuning half of `tests/library/match_requests.json`, each collection with equal weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Evidence(NamedTuple):
    """What is known of a template that a search found for a request."""

    strength: float  # log of the weight of the words that it holds
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


TEXT = Logistic(3.68, -0.36, 2.37, -0.86, -0.89, -1.48)
NODE = Logistic(2.86, 0.24, 3.6, -1.68, -0.88, -1.64)

TEXT_VECTORS = Logistic(3.14, -0.24, 2.77, -0.82, -0.81, -0.8)
NODE_VECTORS = Logistic(2.81, -0.01, 3.15, -1.16, -0.8, -0.93)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
