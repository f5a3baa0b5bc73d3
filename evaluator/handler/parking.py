"""Parks a model call in a provider batch, and names where a call failed."""

from __future__ import annotations

from typing import cast, get_args

from evaluator import clock
from evaluator.errors import CallParked, CallRejected, ProviderError, ProviderErrorKind
from evaluator.handler.conversation import TurnCall
from evaluator.handler.model_choice import ModelChoice
from evaluator.limits.call_limiter import CallParking, ParkedCall, PlannedCall
from evaluator.limits.endpoints import host_of
from evaluator.models.provider_batches import ProviderBatches, batches_of
from evaluator.models.structured import is_refusal, kind_of
from evaluator.record.steps import NEXT, NOT_RUN, REASON_SEPARATOR, TIMEOUT, StepEnd

_TURNS_BESIDE = 3
"""So many turns of the event loop a parked call leaves to the calls beside it in its run."""


async def park(call: TurnCall, parking: CallParking) -> None:
    """Leaves the call to a provider batch. Returns if it is to be made at once: the model has no
    batch API, or the batch had no answer and the rest is made interactively.

    Raises: CallParked; ProviderError, if a batch had no answer and no other is tried.
    """
    session = call.session
    plan = session.plan
    choice = plan.choice
    steps = session.log.steps
    budget = session.budget
    failed = steps.batch_failure(call.path)
    if failed is None or failed.extra is None:
        following = None
    else:
        following = failed.extra[NEXT]
    batches = batches_of(choice.backend, choice.model)
    if batches is None or following == "interactive":
        return
    if failed is not None and following == "error":
        raise located(recorded_failure(failed), choice)
    if not parking.is_open:
        return
    if budget.refused is not None:
        raise budget.refused
    custom_id = parking.new_id()
    line = _batch_line(call, batches, custom_id)
    if not parking.may_hold(line):
        return
    parked = ParkedCall(
        custom_id,
        line,
        batches,
        plan.config.name,
        planned=PlannedCall(
            choice.label,
            choice.endpoint,
            input_tokens=session.tokens,
            output_tokens=plan.max_output_tokens,
            cost_usd=session.max_turn_cost(is_batch=True),
        ),
        prices=plan.config.prices,
        is_further=failed is not None,
    )
    error: CallRejected = CallParked()
    try:
        parking.reserve(parked)
        await steps.begin(
            call.path, "model", choice.label, call.args, call.fingerprint, custom_id=custom_id
        )
        parking.park(parked)
        # Calls that run beside this one are parked too, instead of in a later batch.
        for _ in range(_TURNS_BESIDE):
            await clock.sleep(0)
    except CallRejected as rejected:
        error = rejected
    budget.refuse(error)
    raise error


def _batch_line(call: TurnCall, batches: ProviderBatches, custom_id: str) -> bytes:
    """The request as a line. Raises: ProviderError, for one that the batch API cannot take."""
    session = call.session
    choice = session.plan.choice
    while True:
        request = session.request()
        try:
            return batches.request_line(custom_id, request)
        except ProviderError as error:
            if request.schema is None or not is_refusal(error):
                raise located(error, choice) from None
            choice.refused_schemas.add(kind_of(request.schema))


def located(error: ProviderError, choice: ModelChoice) -> ProviderError:
    """`error` with the model and the host that it comes from."""
    host = host_of(choice.endpoint)
    if host == choice.endpoint:
        error.where = choice.label
    else:
        error.where = f"{choice.label} at {host}"
    return error


def recorded_failure(end: StepEnd) -> ProviderError:
    """The error of a call that failed when it was recorded."""
    if end.reason_word in (TIMEOUT, NOT_RUN):
        separator = REASON_SEPARATOR
    else:
        separator = ": "
    kind, _, message = (end.error or "").partition(separator)
    known: ProviderErrorKind = "server"
    if kind == NOT_RUN:
        # No provider had the call.
        known = "other"
    elif kind in get_args(ProviderErrorKind):
        known = cast("ProviderErrorKind", kind)
    return ProviderError(message or kind, kind=known)
