"""From what a search finds to the probability that the template is right: one logistic for texts, one for nodes.

The coefficients were fitted by `bench/match_fit.py` on the train parts of public collections (see `bench/README.md`)
and on the tuning half of `tests/library/match_requests.json`, each collection with equal weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Evidence(NamedTuple):
    """What is known of a template that a search found for a request."""

    coverage: float  # its score as a share of what a template could reach for the request
    margin: float  # its score less that of the best other template; negative except for the first
    unknown: float  # the share of the request, by weight, that no template has
    length: float  # log of the number of words of content
    size: float  # log of the number of templates


class Logistic(NamedTuple):
    """The coefficients of each part of the evidence, and the intercept."""

    coverage: float
    margin: float
    unknown: float
    length: float
    size: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept + sum(a * b for a, b in zip(self[:5], evidence, strict=True))
        return max(-30.0, min(30.0, total))


TEXT = Logistic(3.42, 5.86, -0.62, 0.38, 0.11, -2.55)
NODE = Logistic(0.86, 5.73, -1.23, 0.21, 0.11, -1.4)

TEXT_VECTORS = Logistic(3.93, 6.33, -0.34, 0.25, 0.12, -2.71)
NODE_VECTORS = Logistic(2.39, 6.07, -0.66, 0.19, 0.1, -1.94)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
