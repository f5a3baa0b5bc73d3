"""Compares two batches over the same samples, pair by pair."""

from evaluator.batch.compare.comparison import Comparison as Comparison
from evaluator.batch.compare.comparison import Side as Side
from evaluator.batch.compare.pairs import clusters_differ as clusters_differ
from evaluator.batch.compare.pairs import compare as compare
