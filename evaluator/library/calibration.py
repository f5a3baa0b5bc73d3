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
    # the share of the words of content, by weight, that it holds
    held: float
    # the share of words without content in what it holds
    bare: float


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
    held: float
    bare: float
    intercept: float

    def probability(self, evidence: Evidence) -> float:
        return 1 / (1 + math.exp(-self.logit(evidence)))

    def logit(self, evidence: Evidence) -> float:
        total = self.intercept
        for coefficient, value in zip(self, evidence, strict=False):
            total += coefficient * value
        return max(-30.0, min(30.0, total))


TEXT = Logistic(
    strength=3.3,
    missed=-1.35,
    margin=0.71,
    size=-0.96,
    words=1.12,
    question=-1.56,
    asks=-0.88,
    action=-0.91,
    added=0.0,
    held=1.4,
    bare=-0.54,
    intercept=1.1,
)
NODE = Logistic(
    strength=3.22,
    missed=-1.26,
    margin=1.91,
    size=-0.56,
    words=0.87,
    question=-1.58,
    asks=-0.9,
    action=-0.95,
    added=1.57,
    held=1.32,
    bare=-0.41,
    intercept=-0.83,
)

TEXT_VECTORS = Logistic(
    strength=3.51,
    missed=-2.42,
    margin=0.94,
    size=-0.81,
    words=1.39,
    question=-1.87,
    asks=-1.09,
    action=-1.18,
    added=0.0,
    held=2.03,
    bare=-0.02,
    intercept=-0.06,
)
NODE_VECTORS = Logistic(
    strength=3.53,
    missed=-2.37,
    margin=1.76,
    size=-0.55,
    words=1.13,
    question=-1.78,
    asks=-1.2,
    action=-1.18,
    added=1.5,
    held=1.98,
    bare=0.0,
    intercept=-1.24,
)

LONG_FACTOR = 0.85
"""A sentence of a long request may be data, so it counts less than the whole request."""
