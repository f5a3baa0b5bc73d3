"""The statistics of batches: pure functions of plain values, in pure Python, each with its source.

Arguments are checked where they enter: a value that is not a finite number is refused, never
averaged or dropped.
"""

from evaluator.batch.statistics.agreement import Agreement as Agreement
from evaluator.batch.statistics.agreement import JudgeCounts as JudgeCounts
from evaluator.batch.statistics.agreement import JudgeRates as JudgeRates
from evaluator.batch.statistics.agreement import JudgeVariance as JudgeVariance
from evaluator.batch.statistics.agreement import cohen_kappa as cohen_kappa
from evaluator.batch.statistics.agreement import cohen_kappa_of as cohen_kappa_of
from evaluator.batch.statistics.agreement import judge_rates as judge_rates
from evaluator.batch.statistics.agreement import judge_variance as judge_variance
from evaluator.batch.statistics.agreement import krippendorff_alpha as krippendorff_alpha
from evaluator.batch.statistics.agreement import krippendorff_alpha_of as krippendorff_alpha_of
from evaluator.batch.statistics.agreement import noise_floor as noise_floor
from evaluator.batch.statistics.agreement import panel_flips as panel_flips
from evaluator.batch.statistics.averages import Reducer as Reducer
from evaluator.batch.statistics.averages import Variance as Variance
from evaluator.batch.statistics.averages import pass_at_k as pass_at_k
from evaluator.batch.statistics.averages import pass_hat_k as pass_hat_k
from evaluator.batch.statistics.averages import reducer as reducer
from evaluator.batch.statistics.averages import stratified_interval as stratified_interval
from evaluator.batch.statistics.averages import variance as variance
from evaluator.batch.statistics.averages import weighted_interval as weighted_interval
from evaluator.batch.statistics.corrected import PartlyLabelled as PartlyLabelled
from evaluator.batch.statistics.corrected import cautious_reach as cautious_reach
from evaluator.batch.statistics.corrected import corrected_difference as corrected_difference
from evaluator.batch.statistics.corrected import corrected_mean as corrected_mean
from evaluator.batch.statistics.intervals import FEW_CLUSTERS as FEW_CLUSTERS
from evaluator.batch.statistics.intervals import Estimate as Estimate
from evaluator.batch.statistics.intervals import mean_interval as mean_interval
from evaluator.batch.statistics.intervals import percentiles as percentiles
from evaluator.batch.statistics.intervals import proportion_interval as proportion_interval
from evaluator.batch.statistics.intervals import proportion_of as proportion_of
from evaluator.batch.statistics.intervals import score_interval as score_interval
from evaluator.batch.statistics.intervals import wilson as wilson
from evaluator.batch.statistics.paired import PairedDifference as PairedDifference
from evaluator.batch.statistics.paired import RowSpread as RowSpread
from evaluator.batch.statistics.paired import bootstrap_difference as bootstrap_difference
from evaluator.batch.statistics.paired import mcnemar_difference as mcnemar_difference
from evaluator.batch.statistics.paired import mcnemar_p as mcnemar_p
from evaluator.batch.statistics.paired import mean_difference as mean_difference
from evaluator.batch.statistics.paired import paired_spread as paired_spread
from evaluator.batch.statistics.paired import pairs_needed as pairs_needed
from evaluator.batch.statistics.paired import power_of as power_of
from evaluator.batch.statistics.paired import signed_z as signed_z
from evaluator.batch.statistics.paired import smallest_difference as smallest_difference
from evaluator.batch.statistics.sequential import Boundary as Boundary
from evaluator.batch.statistics.sequential import Dropped as Dropped
from evaluator.batch.statistics.sequential import Stopped as Stopped
from evaluator.batch.statistics.sequential import StoppingRule as StoppingRule
from evaluator.batch.statistics.sequential import anytime as anytime
from evaluator.batch.statistics.sequential import group_sequential as group_sequential
from evaluator.batch.statistics.sequential import race as race
