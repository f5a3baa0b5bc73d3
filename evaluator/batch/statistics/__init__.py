"""The numbers of batches: pure functions of plain values, in pure Python, each with its source.

Values are checked where they enter: what is not a finite number is refused, never averaged in or left out.
"""

from evaluator.batch.statistics.agreement import (
    Agreement,
    cohen_kappa,
    cohen_kappa_of,
    krippendorff_alpha,
    krippendorff_alpha_of,
)
from evaluator.batch.statistics.epochs import Reducer, Variance, pass_at_k, pass_hat_k, reducer, variance
from evaluator.batch.statistics.intervals import (
    FEW_CLUSTERS,
    Estimate,
    mean_interval,
    percentiles,
    proportion_interval,
    proportion_of,
    score_interval,
    wilson,
)
from evaluator.batch.statistics.paired import (
    Difference,
    bootstrap_difference,
    mcnemar_difference,
    mcnemar_p,
    mean_difference,
    pairs_needed,
    smallest_difference,
)

__all__ = [
    "FEW_CLUSTERS",
    "Agreement",
    "Difference",
    "Estimate",
    "Reducer",
    "Variance",
    "bootstrap_difference",
    "cohen_kappa",
    "cohen_kappa_of",
    "krippendorff_alpha",
    "krippendorff_alpha_of",
    "mcnemar_difference",
    "mcnemar_p",
    "mean_difference",
    "mean_interval",
    "pairs_needed",
    "pass_at_k",
    "pass_hat_k",
    "percentiles",
    "proportion_interval",
    "proportion_of",
    "reducer",
    "score_interval",
    "smallest_difference",
    "variance",
    "wilson",
]
