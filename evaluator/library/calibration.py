"""From what a search finds to the probability that the template is right: one logistic for texts, one for nodes.

The coefficients were fitted by `bench/match_fit.py` on the train parts of public collections (see `bench/README.md`),
on the tuning half of `tests/library/match_requests.json`, each collection with equal weight, and on the off-topic
requests of `bench/off_topic.txt`.
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
    question: float  # 1 for a question of general knowledge, unless the template takes questions about anything; else 0
    asks: float  # the same for any other question


class Logistic(NamedTuple):
    """The coefficients of each part of the evidence, and the intercept."""

    strength: float
    missed: float
    margin: float
    size: float
    words: float
    question: float
    asks: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept
        for coefficient, value in zip(self, evidence, strict=False):
            total += coefficient * value
        return max(-30.0, min(30.0, total))


TEXT = Logistic(3.94, -2.04, 0.84, -0.73, 1.2, -1.69, -1.05, 0.51)
NODE = Logistic(3.54, -1.3, 0.9, -0.73, 0.74, -1.58, -0.93, -0.43)

TEXT_VECTORS = Logistic(4.24, -3.38, 1.22, -0.67, 1.39, -1.98, -1.33, 0.85)
NODE_VECTORS = Logistic(3.83, -2.76, 1.22, -0.64, 1.1, -1.84, -1.2, 0.06)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
