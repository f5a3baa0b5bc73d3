"""One model call of a session: answered by the record, else by the cache, else by the model, with
retries.

A transport failure is retried inside the call. Each attempt acquires a permit of the limiter and is
a step of its own in the record, begun on disk before the request is sent.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from evaluator import clock
from evaluator.errors import (
    CallParked,
    CallRejected,
    LimitReached,
    ProviderError,
    ProviderErrorKind,
    RecordError,
    machine_error,
)
from evaluator.errors.results import Usage
from evaluator.handler.conversation import OnText, Session, SessionPlan
from evaluator.handler.model_choice import ModelChoice
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.budget import UNKNOWN_USAGE
from evaluator.limits.call_limiter import (
    UNLIMITED,
    UNUSED,
    CallParking,
    ParkedCall,
    Permit,
    PlannedCall,
)
from evaluator.limits.endpoints import host_of
from evaluator.models import prices
from evaluator.models.backend import ModelRequest, ModelResponse, prepare
from evaluator.models.prompt_cache import CacheWrite
from evaluator.models.provider_batches import ProviderBatches, batches_of
from evaluator.models.structured import is_refusal, kind_of
from evaluator.record.steps import (
    NEXT,
    REASON_SEPARATOR,
    TIMEOUT,
    StepEnd,
    abort_reason,
    cut_off_reason,
)

if TYPE_CHECKING:
    from evaluator.models.cache import ResponseCache
    from evaluator.models.cache_store import CacheKey

MAYBE_BILLED = (
    "an attempt without an answer may have been billed: tokens and cost are not known in full"
)

_TURNS_BESIDE = 3
"""So many turns of the event loop a parked call leaves to the calls beside it in its run."""


@dataclass(slots=True)
class _TurnCall:
    """The model call of one turn: its session, its step, and the most that it may cost in US
    dollars (None where unknown).
    """

    session: Session
    path: str
    args: Mapping[str, Any]
    fingerprint: str
    max_cost_usd: float | None


async def call_model(session: Session) -> ModelResponse:
    """The response to the conversation so far, charged to the session's budget. What is sent is the
    conversation; nothing is added to it.

    Raises: LimitReached, before a call that would pass a limit; ProviderError, after the last
    attempt; MachineError, where this machine cannot make the call or record it.
    """
    path, args, fingerprint = session.next_step()
    budget = session.budget
    most = None
    if session.plan.choice.limiter is not None or budget.has_cost_limit:
        most = _max_turn_cost(session)
    call = _TurnCall(session, path, args=args, fingerprint=fingerprint, max_cost_usd=most)
    budget.reserve_turn(most)
    try:
        recorded = session.log.steps.recorded(path, "model", fingerprint, args)
        cache = session.plan.choice.cache
        if recorded is not None:
            response = _recorded_response(recorded, session)
            if cache is not None and session.log.steps.is_batch_answer(path):
                cache.put(_cache_key(session), response)
        elif cache is not None:
            response = await _cached_response(call, cache)
        else:
            response = await _attempts(call)
    finally:
        budget.release_turn(most)
    budget.charge(response.usage)
    return response


# -- prices ----------------------------------------------------------------------------------------


def _max_turn_cost(session: Session, *, is_batch: bool = False) -> float | None:
    plan = session.plan
    output = plan.max_output_tokens
    if output is None:
        return None
    if plan.is_free:
        return 0.0
    if session.cache_marks():
        written = session.tokens
    else:
        written = 0
    usage = Usage(session.tokens, output, cache_write_tokens=written)
    return _priced(plan, usage, is_batch=is_batch).cost_usd


def _priced(plan: SessionPlan, usage: Usage, *, is_batch: bool = False) -> Usage:
    if plan.is_free:
        return replace(usage, cost_usd=0.0)
    return prices.priced(plan.choice.label, usage, profile=plan.config.prices, is_batch=is_batch)


# -- record and cache ------------------------------------------------------------------------------


async def _cached_response(call: _TurnCall, cache: ResponseCache) -> ModelResponse:
    """The response of the cache, else one that is put into it."""
    session = call.session
    budget = session.budget
    key = _cache_key(session)
    async with AsyncExitStack() as stack:
        # Waiting for another task's call for the same answer does not count as this task's time.
        with budget.paused():
            await stack.enter_async_context(cache.one_at_a_time(key))
        cached = cache.get(key)
        if cached is not None:
            return await _record_cached(call, cached)
        miss = cache.explain_miss(key)
        if miss is None:
            extra = None
        else:
            extra = {"cache_miss": miss}
        response = await _attempts(call, extra)
        cache.put(key, response)
        return response


def _cache_key(session: Session) -> CacheKey:
    from evaluator.models.cache_store import CacheKey

    return CacheKey.of(
        _request(session),
        endpoint=session.plan.choice.endpoint,
        epoch=session.epoch,
        tool_calling=session.plan.config.tool_calling,
    )


async def _record_cached(call: _TurnCall, response: ModelResponse) -> ModelResponse:
    """Records a cached response as a step that took no time and cost nothing."""
    session = call.session
    steps = session.log.steps
    on_text = session.log.on_text
    number = await steps.begin(
        call.path, "model", session.plan.choice.label, call.args, call.fingerprint
    )
    session.budget.partial = response.content or session.budget.partial
    session.budget.count_cached()
    if on_text is not None and response.content:
        on_text(response.content)
    await steps.succeed(
        number, response.to_dict(), 0.0, usage=response.usage.non_zero(), extra={"cached": True}
    )
    return response


# -- attempts --------------------------------------------------------------------------------------


async def _attempts(call: _TurnCall, extra: Mapping[str, Any] | None = None) -> ModelResponse:
    """Calls the model until it answers; each attempt is a step of its own."""
    session = call.session
    log = session.log
    choice = session.plan.choice
    if choice.parking is not None:
        await _park(call, choice.parking)
    waits = session.plan.config.backoff_s
    attempt = 1
    attempts = len(waits) + 1
    retries = 0
    waited: float | None = None
    loading = prepare(choice.backend)
    if loading is not None:
        # A backend loads what it needs, which does not count as this task's time.
        with session.budget.paused():
            await loading
    while True:
        writing = await _wait_for_prefix(session)
        result: ModelResponse | ProviderError | None = None
        permit = UNLIMITED
        try:
            permit = await _acquire(call)
            number = await log.steps.begin(
                call.path,
                "model",
                choice.label,
                call.args,
                call.fingerprint,
                attempt=attempt,
                max_attempts=attempts,
                backoff_s=waited,
            )
            request = _request(session)
            with log.tracer.model_call(
                choice.backend.name, choice.label, choice.endpoint, request, attempt
            ) as span:
                result = await _attempt(call, request, number=number, permit=permit, extra=extra)
                span.set_result(result)
        except BaseException:
            permit.release(UNUSED, None, 0.0)  # has no effect where the attempt released it
            raise
        finally:
            if writing is not None:
                writing.leave(is_written=isinstance(result, ModelResponse))
        if not isinstance(result, ProviderError):
            return result
        attempt += 1
        if request.schema is not None and is_refusal(result):
            # Not a retry: the same request is sent at once without the field, once for each model.
            choice.refused_schemas.add(kind_of(request.schema))
            attempts = attempts + 1
            waited = None
            continue
        if not result.retryable or retries == len(waits):
            raise _located(result, choice)
        waited = waits[retries]
        if choice.limiter is None:
            # A limiter holds the endpoint for the `Retry-After`, for all its calls.
            waited = max(waited, result.retry_after_s or 0.0)
        retries += 1
        await _wait(session, waited, result)


# -- provider batches ------------------------------------------------------------------------------


async def _park(call: _TurnCall, parking: CallParking) -> None:
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
        raise _located(_failure_of(failed), choice)
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
            cost_usd=_max_turn_cost(session, is_batch=True),
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


def _batch_line(call: _TurnCall, batches: ProviderBatches, custom_id: str) -> bytes:
    """The request as a line. Raises: ProviderError, for one that the batch API cannot take."""
    session = call.session
    choice = session.plan.choice
    while True:
        request = _request(session)
        try:
            return batches.request_line(custom_id, request)
        except ProviderError as error:
            if request.schema is None or not is_refusal(error):
                raise _located(error, choice) from None
            choice.refused_schemas.add(kind_of(request.schema))


def _located(error: ProviderError, choice: ModelChoice) -> ProviderError:
    """`error` with the model and the host that it comes from."""
    host = host_of(choice.endpoint)
    if host == choice.endpoint:
        error.where = choice.label
    else:
        error.where = f"{choice.label} at {host}"
    return error


async def _wait_for_prefix(session: Session) -> CacheWrite | None:
    """Waits while another call of the batch writes the beginning of this prompt to the provider's
    cache; what is returned is to be left if this call does. The wait does not count as this task's
    time.
    """
    choice = session.plan.choice
    caches = choice.prompt_caches
    prefix = None if caches is None else session.prefix()
    if caches is None or prefix is None:
        return None
    with session.budget.paused():
        return await caches.enter(prefix, choice.label, choice.endpoint)


async def _acquire(call: _TurnCall) -> Permit:
    """Waits until the next attempt may be made. The wait does not count as this task's time."""
    session = call.session
    plan = session.plan
    budget = session.budget
    if budget.refused is not None:
        raise budget.refused
    limiter = plan.choice.limiter
    if limiter is None:
        return UNLIMITED
    planned = PlannedCall(
        plan.choice.label,
        plan.choice.endpoint,
        input_tokens=session.tokens,
        output_tokens=plan.max_output_tokens,
        cost_usd=call.max_cost_usd,
        connections=getattr(plan.choice.backend, "connections", None),
    )
    try:
        with budget.paused():
            return await limiter.acquire(planned)
    except CallRejected as error:
        budget.refuse(error)
        raise


async def _wait(session: Session, seconds: float, error: ProviderError) -> None:
    """Waits before a retry, which counts as this task's time. Raises: LimitReached, if no retry may
    follow.
    """
    budget = session.budget
    limiter = session.plan.choice.limiter
    remaining = budget.remaining_s()
    if remaining is not None and seconds >= remaining:
        raise LimitReached(
            "time",
            round(budget.elapsed_s(), 3),
            limit=budget.timeout_s or remaining,
            message=f"waiting {seconds:,.0f} s to retry would pass the time limit; the last error "
            f"was: {error.message}",
        ) from error
    if limiter is None:
        await clock.sleep(seconds)
    else:
        try:
            await limiter.rest(seconds)
        except CallRejected as rejected:
            budget.refuse(rejected)
            raise
    budget.check_time()
    budget.check_reserved()


async def _attempt(
    call: _TurnCall,
    request: ModelRequest,
    number: int,
    permit: Permit,
    extra: Mapping[str, Any] | None,
) -> ModelResponse | ProviderError:
    """One attempt, as the step `number`: its response with its cost, or the error."""
    session = call.session
    steps = session.log.steps
    budget = session.budget
    started = clock.monotonic()
    streamed: list[str] = []
    try:
        response = await _complete(session, request, streamed)
    except ProviderError as error:
        duration = clock.monotonic() - started
        if (trouble := machine_error(error)) is not None:
            # The call was not made, or its answer did not arrive, for a reason that is not the
            # provider's.
            permit.release(None, None, duration)
            steps.abort(number, error.partial or "", duration, str(trouble))
            raise trouble from error
        permit.release(None, error, duration)
        budget.partial = error.partial or budget.partial
        if error.maybe_billed:
            usage = _charge_unknown(call)
        else:
            usage = None
        partial = error.partial or ""
        if error.kind == "timeout":
            reason = abort_reason(TIMEOUT, error.message)
            await steps.refuse(number, partial, duration, reason, usage=usage)
        else:
            reason = f"{error.kind}: {error.message}"
            await steps.fail(number, partial, duration, reason, usage=usage)
        return error
    except BaseException as error:
        duration = clock.monotonic() - started
        permit.release(None, None, duration)
        text = "".join(streamed)
        budget.partial = text or budget.partial
        budget.maybe_billed = True
        _charge_unknown(call)
        steps.abort(number, text, duration, cut_off_reason(error, is_late=budget.is_late()))
        raise
    duration = clock.monotonic() - started
    if response.usage.cost_usd is None:
        response = replace(response, usage=_priced(session.plan, response.usage))
    permit.release(response.usage, None, duration)
    budget.partial = response.content or budget.partial
    try:
        await steps.succeed(
            number, response.to_dict(), duration, usage=response.usage.non_zero(), extra=extra
        )
    except RecordError:
        # The call was billed even though the record cannot be written.
        budget.charge(response.usage)
        raise
    return response


async def _complete(session: Session, request: ModelRequest, streamed: list[str]) -> ModelResponse:
    """The backend's answer. A backend that raises CancelledError or SystemExit itself has failed at
    this call.
    """
    on_text = session.log.on_text
    choice = session.plan.choice
    if on_text is None:
        listen = None
    else:
        listen = partial(_stream, on_text, streamed)
    try:
        response: Any = await choice.backend.complete(request, on_text=listen)
    except (asyncio.CancelledError, SystemExit) as error:
        if _is_from_outside(error, on_text):
            raise
        message = f"the backend ended with {type(error).__name__}: {error}".removesuffix(": ")
        raise ProviderError(
            message, kind="other", maybe_billed=True, partial="".join(streamed) or None
        ) from error
    except Exception as error:
        if not isinstance(error, ProviderError):
            error.add_note(f"while the backend {choice.backend.name!r} answered")
        raise
    if not isinstance(response, ModelResponse) or type(response.usage) is not Usage:
        if not isinstance(response, ModelResponse):
            what = type(response).__name__
        else:
            what = "one without its usage"
        raise ProviderError(
            f"the backend returned {what}, expected a ModelResponse",
            kind="malformed_response",
            maybe_billed=True,
        )
    wrong = response.usage.invalid()
    if not wrong:
        return response
    message = (
        f"{choice.label} reported an impossible usage ({', '.join(wrong)}), which counts as unknown"
    )
    session.warn(message)
    return replace(response, usage=response.usage.without_invalid())


def _charge_unknown(call: _TurnCall) -> Mapping[str, Any] | None:
    """Charges an attempt that may have been billed and whose usage is unknown; returns the usage to
    record.
    """
    session = call.session
    if session.plan.is_free:
        return None
    session.budget.maybe_billed = True
    session.budget.charge_unknown(call.max_cost_usd)
    session.warn(MAYBE_BILLED)
    return UNKNOWN_USAGE.non_zero()


def _request(session: Session) -> ModelRequest:
    remaining = session.budget.remaining_s()
    if remaining is None:
        timeout_s = session.plan.config.timeout_s
    else:
        timeout_s = max(0.001, remaining)
    return session.request(timeout_s)


def _stream(on_text: OnText, streamed: list[str], piece: str) -> None:
    """Passes on a piece of text, and adds it to `streamed`."""
    streamed.append(piece)
    on_text(piece)


def _recorded_response(end: StepEnd, session: Session) -> ModelResponse:
    """Raises: ProviderError, for a call that failed when it was recorded, and is not made again."""
    budget = session.budget
    if end.status != "success":
        raise _located(_failure_of(end), session.plan.choice)
    response = ModelResponse.from_dict(end.output, end.usage)
    if end.extra is not None and end.extra.get("cached") is True:
        budget.count_cached()
    budget.partial = response.content or budget.partial
    return response


def _failure_of(end: StepEnd) -> ProviderError:
    """The error of a call that failed when it was recorded."""
    if end.reason_word == TIMEOUT:
        separator = REASON_SEPARATOR
    else:
        separator = ": "
    kind, _, message = (end.error or "").partition(separator)
    known: ProviderErrorKind = "server"
    if kind in get_args(ProviderErrorKind):
        known = cast("ProviderErrorKind", kind)
    return ProviderError(message or kind, kind=known)


def _is_from_outside(error: asyncio.CancelledError | SystemExit, on_text: OnText | None) -> bool:
    """Whether this task is being cancelled, or `on_text` or a signal handler ends the program.

    A signal handler may run inside any code.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    outside = on_text, *map(signal.getsignal, signal.valid_signals())
    codes = {getattr(function, "__code__", None) for function in outside}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
