"""A Handler: one task's isolated conversation with a model, limited and recorded.

A Handler is made for one task from resolved texts and an immutable plan, and ends with the task. A
turn is one model response. The limits are checked before each request, so that a request that would
pass one is never sent. `conversation` holds its messages, and `tool_runner` runs its tools.

A model call is answered by the record, else by the cache, else by the model, with retries. A
transport failure is retried inside the call. Each attempt acquires a permit of the limiter and is a
step of its own in the record, begun on disk before the request is sent.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluator import clock
from evaluator.errors import (
    CallRejected,
    LimitReached,
    ProviderError,
    SessionClosed,
    machine_error,
)
from evaluator.errors.results import Usage
from evaluator.handler.conversation import OnText, Session, SessionLog, SessionPlan, TurnCall
from evaluator.handler.tool_runner import RepeatedCalls, Tools, run_tools
from evaluator.lazy_dataclass import frozen
from evaluator.limits.budget import UNKNOWN_USAGE, Budget
from evaluator.limits.call_limiter import UNLIMITED, UNUSED, CallLimiter, Permit, PlannedCall
from evaluator.models.backend import (
    FinishReason,
    Hints,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    estimate_tokens,
    prepare,
)
from evaluator.models.logprobs import TokenLogprob
from evaluator.models.prompt_cache import CacheWrite, PromptCaches
from evaluator.models.structured import is_refusal, kind_of
from evaluator.record.steps import TIMEOUT, StepEnd, abort_reason, cut_off_reason

if TYPE_CHECKING:
    from evaluator.models.cache import ResponseCache
    from evaluator.models.cache_store import CacheKey

MAYBE_BILLED = (
    "an attempt without an answer may have been billed: tokens and cost are not known in full"
)


@frozen
class HandlerAnswer:
    """The model's last response to a query, the usage of the whole session, and the warnings."""

    content: str
    finish_reason: FinishReason
    usage: Usage
    warnings: tuple[str, ...]
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Handler(Session):
    """One task's session: call `run` once, or `say` as often as needed and then `close`.

    `tools` are those of the plan. Without them, the tools of the plan are offered and not run:
    calls of them end the query and are in its answer.
    """

    __slots__ = ("_closed", "_only_offers", "_tools")

    def __init__(
        self,
        plan: SessionPlan,
        log: SessionLog,
        budget: Budget,
        *,
        hints: Hints = Hints(),  # noqa: B008
        epoch: int = 1,
        tools: Tools | None = None,
    ) -> None:
        super().__init__(plan, log, budget, hints=hints, epoch=epoch)
        self._closed = False
        self._only_offers = tools is None and bool(plan.tools)
        self._tools = tools

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the last query, also of one that failed."""
        return (*self.notices, *self.budget.warnings.values())

    def run(self, messages: Sequence[Message]) -> Coroutine[Any, Any, HandlerAnswer]:
        """The only query of a task: `say`, then `close`.

        Raises: as `say`.
        """
        return self.say(messages, is_last=True)

    async def say(
        self, messages: Sequence[Message], budget: Budget | None = None, *, is_last: bool = False
    ) -> HandlerAnswer:
        """Sends `messages`, runs the tools that the model calls, and returns the model's last
        response.

        Unless it `is_last`, it may be called again with further messages, each time with a `budget`
        of its own. After an error the messages of this query are removed from the conversation.

        Raises: LimitReached, with the partial content; ProviderError, after the last attempt;
        SessionClosed, after `close`.
        """
        if self._closed:
            raise SessionClosed("a Handler serves one task; the task of this one has ended")
        self._closed = is_last
        self.continues = self._tools is not None or not is_last
        self.budget = budget or self.budget
        self.notices.clear()
        position = self.position()
        if self._tools is not None:
            # A user may ask for the same again.
            self._tools.repeats = RepeatedCalls()
        try:
            for message in messages:
                self.add(message)
                if self.log.on_message is not None:
                    self.log.note(message)
            while True:
                self.turns += 1
                self.check_context()
                response = await _call_model(self)
                self.add_response(response)
                if not response.tool_calls or not await self._run_tools(response.tool_calls):
                    break
        except BaseException:
            self.rewind(position)
            raise
        if response.finish_reason == "length":
            used = response.usage.output_tokens or estimate_tokens(response.content)
            raise LimitReached(
                "output",
                used,
                limit=self.plan.config.max_output_tokens or used,
                message="the response was cut off at its output limit",
                partial=response.content,
            )
        calls: tuple[ToolCall, ...] = ()
        if self._only_offers:
            calls = response.tool_calls
        return HandlerAnswer(
            response.content,
            response.finish_reason,
            self.budget.usage,
            self.warnings,
            response.reasoning,
            tool_calls=calls,
            logprobs=response.logprobs,
        )

    async def _run_tools(self, calls: Sequence[ToolCall]) -> bool:
        """Adds the answers of tools to the conversation. Returns: whether the model gets another
        turn; not where nothing runs the tools.
        """
        if self._only_offers:
            return False
        if self._tools is None:
            names = ", ".join(call.name for call in calls)
            self.warn(f"the model called {names}, but this task offers no tool")
            return False
        answers = await run_tools(self, self._tools, calls)
        self.add_answers(answers)
        for message, _ in answers:
            self.log.note(message)
        return True

    def close(self) -> None:
        """Ends the session: a later `say` raises SessionClosed."""
        self._closed = True


async def _call_model(session: Session) -> ModelResponse:
    """The response to the conversation so far, charged to the session's budget. What is sent is the
    conversation; nothing is added to it.

    Raises: LimitReached, before a call that would pass a limit; ProviderError, after the last
    attempt; MachineError, where this machine cannot make the call or record it.
    """
    call = session.next_call()
    budget = session.budget
    budget.reserve_turn(call.max_cost_usd)
    try:
        recorded = session.log.steps.recorded(call.path, "model", call.fingerprint, call.args)
        cache = session.plan.choice.cache
        if recorded is not None:
            response = _recorded_response(recorded, session)
            if cache is not None and session.log.steps.is_batch_answer(call.path):
                cache.put(_cache_key(session), response)
        elif cache is not None:
            response = await _cached_response(call, cache)
        else:
            response = await _attempts(call)
    finally:
        budget.release_turn(call.max_cost_usd)
    budget.charge(response.usage)
    return response


# -- record and cache ------------------------------------------------------------------------------


async def _cached_response(call: TurnCall, cache: ResponseCache) -> ModelResponse:
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
        session.request(),
        endpoint=session.plan.choice.endpoint,
        epoch=session.epoch,
        tool_calling=session.plan.config.tool_calling,
    )


async def _record_cached(call: TurnCall, response: ModelResponse) -> ModelResponse:
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


async def _attempts(call: TurnCall, extra: Mapping[str, Any] | None = None) -> ModelResponse:
    """Calls the model until it answers; each attempt is a step of its own."""
    session = call.session
    log = session.log
    choice = session.plan.choice
    if choice.parking is not None:
        from evaluator.handler.parking import park

        await park(call, choice.parking)
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
        writing = None
        if choice.prompt_caches is not None and session.plan.cache_terms is not None:
            writing = await _wait_for_prefix(session, choice.prompt_caches)
        result: ModelResponse | ProviderError | None = None
        permit = UNLIMITED
        try:
            if session.budget.refused is not None:
                raise session.budget.refused
            if choice.limiter is not None:
                permit = await _acquire(call, choice.limiter)
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
            request = session.request()
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
            from evaluator.handler.parking import located

            raise located(result, choice)
        waited = waits[retries]
        if choice.limiter is None:
            # A limiter holds the endpoint for the `Retry-After`, for all its calls.
            waited = max(waited, result.retry_after_s or 0.0)
        retries += 1
        await _wait(session, waited, result)


async def _wait_for_prefix(session: Session, caches: PromptCaches) -> CacheWrite | None:
    """Waits while another call of the batch writes the beginning of this prompt to the provider's
    cache; what is returned is to be left if this call does. The wait does not count as this task's
    time.
    """
    choice = session.plan.choice
    prefix = session.prefix()
    if prefix is None:
        return None
    with session.budget.paused():
        return await caches.enter(prefix, choice.label, choice.endpoint)


async def _acquire(call: TurnCall, limiter: CallLimiter) -> Permit:
    """Waits until the next attempt may be made. The wait does not count as this task's time."""
    session = call.session
    plan = session.plan
    budget = session.budget
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
    call: TurnCall,
    request: ModelRequest,
    number: int,
    permit: Permit,
    extra: Mapping[str, Any] | None,
) -> ModelResponse | ProviderError:
    """One attempt, as the step `number`: its response with its cost, or the error."""
    session = call.session
    steps = session.log.steps
    budget = session.budget
    streamed: list[str] = []
    listen = None
    if session.log.on_text is not None:
        listen = partial(_stream, session.log.on_text, streamed)
    started = clock.monotonic()
    try:
        try:
            answer = await session.plan.choice.backend.complete(request, on_text=listen)
        except BaseException as error:
            failure = _failure_of_backend(session, error, streamed)
            if failure is None:
                raise
            raise failure from error
        response = _checked(session, answer)
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
        text = error.partial or ""
        if error.kind == "timeout":
            reason = abort_reason(TIMEOUT, error.message)
            await steps.refuse(number, text, duration, reason, usage=usage)
        else:
            reason = f"{error.kind}: {error.message}"
            await steps.fail(number, text, duration, reason, usage=usage)
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
        usage = session.plan.priced(response.usage)
        if usage is not response.usage:
            response = replace(response, usage=usage)
    permit.release(response.usage, None, duration)
    budget.partial = response.content or budget.partial
    try:
        await steps.succeed(
            number, response.to_dict(), duration, usage=response.usage.non_zero(), extra=extra
        )
    except BaseException:
        # The call was billed, also if its record cannot be written, or the time is up meanwhile.
        budget.charge(response.usage)
        raise
    return response


def _failure_of_backend(
    session: Session, error: BaseException, streamed: list[str]
) -> ProviderError | None:
    """What an exception of a backend that raises CancelledError or SystemExit itself is, which has
    failed at this call; None for any other exception.
    """
    if isinstance(error, asyncio.CancelledError | SystemExit):
        if _is_from_outside(error, session.log.on_text):
            return None
        message = f"the backend ended with {type(error).__name__}: {error}".removesuffix(": ")
        return ProviderError(
            message, kind="other", maybe_billed=True, partial="".join(streamed) or None
        )
    if isinstance(error, Exception) and not isinstance(error, ProviderError):
        error.add_note(f"while the backend {session.plan.choice.backend.name!r} answered")
    return None


def _checked(session: Session, response: Any) -> ModelResponse:
    """The answer of a backend, with a usage that is possible. Raises: ProviderError, if it is not
    one.
    """
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
    session.warn(
        f"{session.plan.choice.label} reported an impossible usage ({', '.join(wrong)}), which "
        "counts as unknown"
    )
    return replace(response, usage=response.usage.without_invalid())


def _charge_unknown(call: TurnCall) -> Mapping[str, Any] | None:
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


def _stream(on_text: OnText, streamed: list[str], piece: str) -> None:
    """Passes on a piece of text, and adds it to `streamed`."""
    streamed.append(piece)
    on_text(piece)


def _recorded_response(end: StepEnd, session: Session) -> ModelResponse:
    """Raises: ProviderError, for a call that failed when it was recorded, and is not made again."""
    budget = session.budget
    if end.status != "success":
        from evaluator.handler.parking import located, recorded_failure

        raise located(recorded_failure(end), session.plan.choice)
    response = ModelResponse.from_dict(end.output, end.usage)
    if end.extra is not None and end.extra.get("cached") is True:
        budget.count_cached()
    budget.partial = response.content or budget.partial
    return response


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
