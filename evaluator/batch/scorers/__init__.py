"""Scorers: what judges a result. Shipped ones by name, Python functions, and templates of the library as judges."""

from evaluator.batch.scorers.contract import Evaluate, Scored, Scorer, judge
from evaluator.batch.scorers.functions import FunctionScorer, scorer
from evaluator.batch.scorers.majority import members
from evaluator.batch.scorers.making import (
    SCORERS,
    Spec,
    describe_scorer,
    is_bounded,
    make_scorer,
    make_scorers,
    parse_scorer,
)

__all__ = [
    "SCORERS",
    "Evaluate",
    "FunctionScorer",
    "Scored",
    "Scorer",
    "Spec",
    "describe_scorer",
    "is_bounded",
    "judge",
    "make_scorer",
    "make_scorers",
    "members",
    "parse_scorer",
    "scorer",
]
