"""A call that failed when it was recorded fails with what was recorded."""

from __future__ import annotations

from evaluator.handler.parking import recorded_failure
from evaluator.record.steps import NOT_RUN, TIMEOUT, EndStatus, StepEnd, abort_reason
from tests.tables import each_case

UNSENT = "the request was not submitted to the provider"
LATE = "no answer in time"


@each_case(
    ("status", "error", "kind", "message"),
    [
        ("aborted", abort_reason(NOT_RUN, UNSENT), "other", UNSENT),
        ("aborted", abort_reason(TIMEOUT, LATE), "timeout", LATE),
        ("failed", "rate_limit: HTTP 429", "rate_limit", "HTTP 429"),
        ("failed", "lost: by the provider", "server", "by the provider"),
    ],
)
def test_a_recorded_failure_has_the_kind_and_the_message_of_its_end(
    status: EndStatus, error: str, kind: str, message: str
) -> None:
    failure = recorded_failure(StepEnd(status, None, 0.0, error))
    assert (failure.kind, failure.message) == (kind, message)
