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

    strength: (
        float  # log of the weight of the words that it holds, of the meaning and of a node's inputs
    )
    missed: float  # log of the weight of those that it does not hold
    # its lead over the best other template, as a share of the request; negative except for the
    # first
    margin: float
    size: float  # log of the number of templates
    words: float  # log of the number of words in the request
    # 1 for a question of general knowledge, unless the template takes questions about anything;
    # else 0
    question: float
    asks: float  # 1 for any other question, else 0
    # how much it counts that the template does not hold the verb that the request begins with
    action: float
    # log of the weight of what inputs and output of a node add
    added: float


class Logistic(NamedTuple):
    """The coefficients of each part of the evidence, and the intercept."""

    strength: float
    missed: float
    margin: float
    size: float
    words: float
    question: float
    asks: float
    action: float
    added: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept
        for coefficient, value in zip(self, evidence, strict=False):
            total += coefficient * value
        return max(-30.0, min(30.0, total))


TEXT = Logistic(
    strength=3.58,
    missed=-1.7,
    margin=0.83,
    size=-0.94,
    words=1.1,
    question=-1.65,
    asks=-0.92,
    action=-0.93,
    added=0.0,
    intercept=2.07,
)
NODE = Logistic(
    strength=3.46,
    missed=-1.6,
    margin=2.16,
    size=-0.53,
    words=0.94,
    question=-1.67,
    asks=-0.95,
    action=-0.94,
    added=1.38,
    intercept=-0.09,
)

TEXT_VECTORS = Logistic(
    strength=3.94,
    missed=-3.11,
    margin=1.11,
    size=-0.83,
    words=1.46,
    question=-1.98,
    asks=-1.1,
    action=-1.22,
    added=0.0,
    intercept=1.81,
)
NODE_VECTORS = Logistic(
    strength=3.93,
    missed=-3.01,
    margin=2.02,
    size=-0.55,
    words=1.21,
    question=-1.92,
    asks=-1.16,
    action=-1.22,
    added=1.63,
    intercept=0.4,
)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
