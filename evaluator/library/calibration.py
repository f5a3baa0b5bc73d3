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
    size: float  # log of the number of templates
    words: float  # log of the number of words in the request
    question: float  # 1 for a question of general knowledge, unless the template takes such; else 0


class Logistic(NamedTuple):
    """The coefficients of each part of the evidence, and the intercept."""

    strength: float
    missed: float
    margin: float
    size: float
    words: float
    question: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept
        for coefficient, value in zip(self, evidence, strict=False):
            total += coefficient * value
        return max(-30.0, min(30.0, total))


TEXT = Logistic(3.09, -2.15, 2.25, -0.57, 1.82, -1.21, 0.39)
NODE = Logistic(2.96, -1.0, 2.72, -0.62, 0.79, -1.27, -1.28)

TEXT_VECTORS = Logistic(3.49, -2.82, 3.15, -0.58, 1.27, -1.29, 0.57)
NODE_VECTORS = Logistic(3.16, -2.23, 3.48, -0.56, 0.94, -1.31, -0.27)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
