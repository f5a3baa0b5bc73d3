"""From what a search finds to the probability that the template is right: one logistic for texts,
one for nodes.

The coefficients were fitted by `bench/match_fit.py` on the train parts of public collections (see
`bench/README.md`), on the tuning half of `tests/library/match_requests.json`, each collection with
equal weight, and on the off-topic requests of `bench/off_topic.txt`.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Evidence(NamedTuple):
    """What is known of a template that a search found for a request."""

    strength: float  # log of the weight of the words that it holds, with that of the meaning
    missed: float  # log of the weight of those that it does not hold
    # its lead over the best other template, as a share of the request; negative except for the
    # first
    margin: float
    size: float  # log of the number of templates
    words: float  # log of the number of words in the request
    # 1 for a question of general knowledge, unless the template takes questions about anything;
    # else 0
    question: float
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


TEXT = Logistic(
    3.81, -1.98, margin=0.84, size=-0.82, words=1.25, question=-1.49, asks=-0.96, intercept=1.3
)
NODE = Logistic(
    3.4, -1.18, margin=0.91, size=-0.82, words=0.77, question=-1.38, asks=-0.85, intercept=0.21
)

TEXT_VECTORS = Logistic(
    4.1, -3.54, margin=1.14, size=-0.72, words=1.51, question=-1.74, asks=-1.18, intercept=2.15
)
NODE_VECTORS = Logistic(
    3.73, -3.0, margin=1.14, size=-0.69, words=1.28, question=-1.62, asks=-1.08, intercept=1.43
)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
