"""Thresholds that a batch has to meet: `accuracy >= 0.8`, `mean(f1)[variant=small] >= 50%`, `cost
<= 2`.

A threshold is incomplete, and not met, if results are pending or their number is unknown, if errors
reduce the results that the number is based on, or if the number is unknown. It is missed, however
many results are pending, if no outcome of these can meet it any more. A threshold that a batch can
never decide is refused before the batch runs.

    METRIC [ "(" SCORER or COUNT ")" ] [ "[" template=NAME, variant=NAME "]" ] OPERATOR NUMBER [ "%"
    ]

Without a scope, accuracy and other shares and means have to meet the threshold for every template
and variant, so that a good one does not hide a bad one. Counts, the share of errors, cost and
durations are those of the whole batch.
"""

from evaluator.batch.thresholds.language import METRICS as METRICS
from evaluator.batch.thresholds.language import Threshold as Threshold
from evaluator.batch.thresholds.language import check_fit as check_fit
from evaluator.batch.thresholds.language import measured_scorers as measured_scorers
from evaluator.batch.thresholds.language import parse_threshold as parse_threshold
from evaluator.batch.thresholds.results import ThresholdResult as ThresholdResult
from evaluator.batch.thresholds.results import ThresholdStatus as ThresholdStatus
from evaluator.batch.thresholds.results import check_thresholds as check_thresholds
