"""Scorers: shipped ones by name, Python functions, and templates of the library as judges."""

from evaluator.batch.scorers.contract import EvaluateTemplate as EvaluateTemplate
from evaluator.batch.scorers.contract import Scorer as Scorer
from evaluator.batch.scorers.contract import ScorerInput as ScorerInput
from evaluator.batch.scorers.contract import run_scorer as run_scorer
from evaluator.batch.scorers.contract import run_scores as run_scores
from evaluator.batch.scorers.contract import score_names as score_names
from evaluator.batch.scorers.function_scorer import FunctionScorer as FunctionScorer
from evaluator.batch.scorers.function_scorer import scorer as scorer
from evaluator.batch.scorers.scorer_registry import SCORERS as SCORERS
from evaluator.batch.scorers.scorer_registry import ScorerSpec as ScorerSpec
from evaluator.batch.scorers.scorer_registry import describe_scorer as describe_scorer
from evaluator.batch.scorers.scorer_registry import is_bounded as is_bounded
from evaluator.batch.scorers.scorer_registry import make_scorer as make_scorer
from evaluator.batch.scorers.scorer_registry import make_scorers as make_scorers
from evaluator.batch.scorers.scorer_registry import member_scorers as member_scorers
from evaluator.batch.scorers.scorer_registry import parse_scorer as parse_scorer
