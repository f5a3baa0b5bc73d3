"""What a batch came to: counted in one pass and little memory, with n of N for every number; shown as text."""

from evaluator.batch.summary.counting import summarise
from evaluator.batch.summary.rendering import render_markdown, render_summary
from evaluator.batch.summary.shape import (
    Accuracy,
    Amount,
    BatchSummary,
    Confusion,
    Counts,
    ErrorKind,
    GroupSummary,
    Judges,
    Part,
    Percentiles,
    Reduced,
    ScorerSummary,
    Spending,
)

__all__ = [
    "Accuracy",
    "Amount",
    "BatchSummary",
    "Confusion",
    "Counts",
    "ErrorKind",
    "GroupSummary",
    "Judges",
    "Part",
    "Percentiles",
    "Reduced",
    "ScorerSummary",
    "Spending",
    "render_markdown",
    "render_summary",
    "summarise",
]
