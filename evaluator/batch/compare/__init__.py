"""Two batches over the same samples, compared pair by pair."""

from evaluator.batch.compare.comparison import Comparison, Side
from evaluator.batch.compare.pairs import at_odds, compare
from evaluator.batch.compare.rendering import render_comparison, render_comparison_markdown

__all__ = ["Comparison", "Side", "at_odds", "compare", "render_comparison", "render_comparison_markdown"]
