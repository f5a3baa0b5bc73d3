"""Batch summaries: results counted in one pass with bounded memory, every number as n of N, shown
as tables.
"""

from evaluator.batch.summary.batch_summary import BatchSummary as BatchSummary
from evaluator.batch.summary.calibrated import Calibration as Calibration
from evaluator.batch.summary.calibrated import CorrectedShare as CorrectedShare
from evaluator.batch.summary.calibrated import JudgeBias as JudgeBias
from evaluator.batch.summary.calibrated import PeopleAgreement as PeopleAgreement
from evaluator.batch.summary.columns import Columns as Columns
from evaluator.batch.summary.counting import summarise as summarise
from evaluator.batch.summary.counting import summarise_columns as summarise_columns
from evaluator.batch.summary.parts import Accuracy as Accuracy
from evaluator.batch.summary.parts import Amount as Amount
from evaluator.batch.summary.parts import ConfusionMatrix as ConfusionMatrix
from evaluator.batch.summary.parts import ErrorKind as ErrorKind
from evaluator.batch.summary.parts import GroupSummary as GroupSummary
from evaluator.batch.summary.parts import JudgeAgreement as JudgeAgreement
from evaluator.batch.summary.parts import JudgeStability as JudgeStability
from evaluator.batch.summary.parts import MetricValue as MetricValue
from evaluator.batch.summary.parts import Part as Part
from evaluator.batch.summary.parts import Percentiles as Percentiles
from evaluator.batch.summary.parts import ReducedScore as ReducedScore
from evaluator.batch.summary.parts import ScorerSummary as ScorerSummary
from evaluator.batch.summary.parts import Spending as Spending
from evaluator.batch.summary.parts import VerdictCounts as VerdictCounts
from evaluator.batch.summary.parts import interrupted_text as interrupted_text
from evaluator.batch.summary.rows import ResultBlock as ResultBlock
from evaluator.batch.summary.tables import Table as Table
