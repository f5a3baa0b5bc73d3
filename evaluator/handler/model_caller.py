"""One model call of a session: answered by the record, else by the cache, else by the model, with
retries.

A transport failure is retried inside the call. Each attempt acquires a permit of the limiter and is
a step of its own in the record, begun on disk before the request is sent.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, get_args

from evaluator import clock
from evaluator.errors import (
    CallRejected,
    LimitReached,
    ProviderError,
    ProviderErrorKind,
    RecordError,
)
from evaluator.errors.machine import machine_error
from evaluator.errors.results import Usage
from evaluator.handler.config import HandlerConfig
from evaluator.handler.conversation import Conversation
from evaluator.handler.model_choice import ModelChoice
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.limits.budget import UNKNOWN_USAGE, Budget
from evaluator.limits.call_limiter import UNLIMITED, UNUSED, Permit, PlannedCall
from evaluator.limits.endpoints import host_of
from evaluator.models import prices
from evaluator.models.backend import Hints, Message, ModelRequest, ModelResponse, prepare
from evaluator.models.cache_store import CacheKey
from evaluator.models.structured import is_refusal, kind_of
from evaluator.record.step_log import StepLog
from evaluator.record.steps import REASON_SEPARATOR, TIMEOUT, StepEnd, abort_reason, cut_off_reason

MAYBE_BILLED = (
    "an attempt without an answer may have been billed: tokens and cost are not known in full"
)
OnText = Callable[[str], None]
OnMessage = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class SessionLog:
    """The outputs of a session: its record, with steps below `path`, its trace, `on_text` for
    streamed text, and `on_message` for each message with the path.
    """

    steps: StepLog
    path: str = ""
    tracer: Tracer = UNTRACED
    on_text: OnText | None = None
    on_message: OnMessage | None = None

    def note(self, message: Message, usage: Usage | None = None) -> None:
        """Passes on a message of the conversation, with the usage of an answer."""
        if self.on_message is not None:
            used = {} if usage is None else {"usage": usage.to_dict()}
            self.on_message(self.path, {**message.to_dict(), **used})

    def path_of(self, segment: str) -> str:
        if self.path:
            return f"{self.path}/{segment}"
        return segment


@dataclass(frozen=True, slots=True)
class CallSettings:
    """The settings of a session's model calls, besides its profile.

    `schema` is a JSON Schema of the answer for the provider to enforce. `epoch` separates
    repetitions of the same task in the cache.
    """

    hints: Hints = Hints()
    schema: Mapping[str, Any] | None = None
    epoch: int = 1


DEFAULT_SETTINGS = CallSettings()


@dataclass(slots=True)
class _TurnCall:
    """The model call of one turn: its step, and the most that it may cost in US dollars (None where
    unknown).
    """

    path: str
    args: Mapping[str, Any]
    fingerprint: str
    budget: Budget
    max_cost_usd: float | None


class ModelCaller:
    """Calls the model of one session. The conversation holds what is sent; the caller adds nothing
    to it.
    """

    def __init__(
        self,
        config: HandlerConfig,
        choice: ModelChoice,
        conversation: Conversation,
        settings: CallSettings,
        log: SessionLog,
    ) -> None:
        self._config = config
        self._choice = choice
        self._conversation = conversation
        self._settings = settings
        self._log = log

    async def call(self, turn: int, budget: Budget) -> ModelResponse:
        """The response to the conversation so far, charged to `budget`.

        Raises: LimitReached, before a call that would pass a limit; ProviderError, after the last
        attempt; MachineError, where this machine cannot make the call or record it.
        """
        conversation = self._conversation
        args = conversation.step_args(turn)
        fingerprint = conversation.fingerprint(self._log.steps)
        is_priced = self._choice.limiter is not None or budget.has_cost_limit
        most = self._max_turn_cost() if is_priced else None
        call = _TurnCall(
            self._log.path_of(f"turn[{turn}]"),
            args,
            fingerprint=fingerprint,
            budget=budget,
            max_cost_usd=most,
        )
        budget.reserve_turn(most)
        try:
            response = await self._response(call)
        finally:
            budget.release_turn(most)
        budget.charge(response.usage)
        return response

    # -- prices ------------------------------------------------------------------------------------

    def _max_turn_cost(self) -> float | None:
        output = self._max_output_tokens()
        if output is None:
            return None
        tokens = self._conversation.tokens
        return self._cost(
            Usage(tokens, output, cached_tokens=0, reasoning_tokens=0, cost_usd=None, turns=1),
            tokens if self._config.cache else 0,
        )

    def _max_output_tokens(self) -> int | None:
        if self._config.max_output_tokens is not None:
            return self._config.max_output_tokens
        if self._choice.is_free:
            return 0
        return prices.max_output_tokens(self._choice.label)

    def _cost(self, usage: Usage, cache_write_tokens: int = 0) -> float | None:
        if self._choice.is_free:
            return 0.0
        if self._config.prices is None:
            return prices.cost_usd(self._choice.label, usage, cache_write_tokens)
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        per_input, per_output = self._config.prices
        return (usage.input_tokens * per_input + usage.output_tokens * per_output) / 1e6

    # -- record and cache --------------------------------------------------------------------------

    async def _response(self, call: _TurnCall) -> ModelResponse:
        recorded = self._log.steps.recorded(call.path, "model", call.fingerprint, call.args)
        if recorded is not None:
            try:
                return _recorded_response(recorded, call.budget)
            except ProviderError as error:
                raise self._located(error) from None
        cache = self._choice.cache
        settings = self._settings
        if cache is None:
            return await self._attempts(call)
        key = CacheKey.of(
            self._request(call.budget),
            endpoint=self._choice.endpoint,
            epoch=settings.epoch,
            tool_calling=self._config.tool_calling,
        )
        async with AsyncExitStack() as stack:
            # Waiting for another task's call for the same answer does not count as this task's
            # time.
            with call.budget.paused():
                await stack.enter_async_context(cache.one_at_a_time(key))
            cached = cache.get(key)
            if cached is not None:
                return await self._record_cached(call, cached)
            miss = cache.explain_miss(key)
            response = await self._attempts(call, None if miss is None else {"cache_miss": miss})
            cache.put(key, response)
            return response

    async def _record_cached(self, call: _TurnCall, response: ModelResponse) -> ModelResponse:
        """Records a cached response as a step that took no time and cost nothing."""
        steps = self._log.steps
        on_text = self._log.on_text
        number = await steps.begin(
            call.path, "model", self._choice.label, call.args, call.fingerprint
        )
        call.budget.partial = response.content or call.budget.partial
        call.budget.count_cached()
        if on_text is not None and response.content:
            on_text(response.content)
        await steps.succeed(
            number, response.to_dict(), 0.0, usage=response.usage.non_zero(), extra={"cached": True}
        )
        return response

    # -- attempts ----------------------------------------------------------------------------------

    async def _attempts(
        self, call: _TurnCall, extra: Mapping[str, Any] | None = None
    ) -> ModelResponse:
        """Calls the model until it answers; each attempt is a step of its own."""
        choice = self._choice
        budget = call.budget
        waits = self._config.backoff_s
        attempt = 1
        attempts = len(waits) + 1
        retries = 0
        waited: float | None = None
        await self._prepare(budget)
        while True:
            permit = await self._acquire(call)
            try:
                number = await self._log.steps.begin(
                    call.path,
                    "model",
                    choice.label,
                    call.args,
                    call.fingerprint,
                    attempt=attempt,
                    max_attempts=attempts,
                    backoff_s=waited,
                )
                request = self._request(budget)
                tracer = self._log.tracer
                with tracer.model_call(
                    choice.backend.name, choice.label, choice.endpoint, request, attempt
                ) as span:
                    result = await self._attempt(
                        call, request, number=number, permit=permit, extra=extra
                    )
                    span.set_result(result)
            finally:
                permit.release(UNUSED, None, 0.0)
            if not isinstance(result, ProviderError):
                return result
            attempt += 1
            if request.schema is not None and is_refusal(result):
                # Not a retry: the same request is sent at once without the field, once for each
                # model.
                choice.refused_schemas.add(kind_of(request.schema))
                attempts = attempts + 1
                waited = None
                continue
            if not result.retryable or retries == len(waits):
                raise self._located(result)
            # A limiter holds the endpoint for the `Retry-After`, for all its calls.
            waited = max(
                waits[retries], 0.0 if choice.limiter is not None else result.retry_after_s or 0.0
            )
            retries += 1
            await self._wait(waited, result, budget=budget)

    def _located(self, error: ProviderError) -> ProviderError:
        """`error` with the model and the host that it comes from."""
        host = host_of(self._choice.endpoint)
        if host == self._choice.endpoint:
            error.where = self._choice.label
        else:
            error.where = f"{self._choice.label} at {host}"
        return error

    async def _prepare(self, budget: Budget) -> None:
        """Lets the backend load what it needs, which does not count as this task's time."""
        loading = prepare(self._choice.backend)
        if loading is not None:
            with budget.paused():
                await loading

    async def _acquire(self, call: _TurnCall) -> Permit:
        """Waits until the next attempt may be made. The wait does not count as this task's time."""
        choice = self._choice
        budget = call.budget
        if budget.refused is not None:
            raise budget.refused
        if choice.limiter is None:
            return UNLIMITED
        planned = PlannedCall(
            choice.label,
            choice.endpoint,
            input_tokens=self._conversation.tokens,
            output_tokens=self._max_output_tokens(),
            cost_usd=call.max_cost_usd,
            connections=getattr(choice.backend, "connections", None),
        )
        try:
            with budget.paused():
                return await choice.limiter.acquire(planned)
        except CallRejected as error:
            budget.refuse(error)
            raise

    async def _wait(self, seconds: float, error: ProviderError, budget: Budget) -> None:
        """Waits before a retry, which counts as this task's time. Raises: LimitReached, if no retry
        may follow.
        """
        remaining = budget.remaining_s()
        if remaining is not None and seconds >= remaining:
            raise LimitReached(
                "time",
                round(budget.elapsed_s(), 3),
                limit=budget.timeout_s or remaining,
                message=f"waiting {seconds:,.0f} s to retry would pass the time limit; the last "
                f"error was: {error.message}",
            ) from error
        if self._choice.limiter is None:
            await clock.sleep(seconds)
        else:
            try:
                await self._choice.limiter.rest(seconds)
            except CallRejected as rejected:
                budget.refuse(rejected)
                raise
        budget.check_time()
        budget.check_reserved()

    async def _attempt(
        self,
        call: _TurnCall,
        request: ModelRequest,
        number: int,
        permit: Permit,
        extra: Mapping[str, Any] | None,
    ) -> ModelResponse | ProviderError:
        """One attempt, as the step `number`: its response with its cost, or the error."""
        steps = self._log.steps
        budget = call.budget
        started = clock.monotonic()
        streamed: list[str] = []
        try:
            response = await self._complete(request, streamed)
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
                usage = self._charge_unknown(call)
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
            self._charge_unknown(call)
            steps.abort(number, text, duration, cut_off_reason(error, is_late=budget.is_late()))
            raise
        duration = clock.monotonic() - started
        if response.usage.cost_usd is None:
            cost_usd = self._cost(response.usage, response.cache_write_tokens or 0)
            if cost_usd is not None:
                response = replace(response, usage=replace(response.usage, cost_usd=cost_usd))
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

    async def _complete(self, request: ModelRequest, streamed: list[str]) -> ModelResponse:
        """The backend's answer. A backend that raises CancelledError or SystemExit itself has
        failed at this call.
        """
        on_text = self._log.on_text
        if on_text is None:
            listen = None
        else:
            listen = partial(_stream, on_text, streamed)
        try:
            response: Any = await self._choice.backend.complete(request, on_text=listen)
        except (asyncio.CancelledError, SystemExit) as error:
            if _is_from_outside(error, on_text):
                raise
            message = f"the backend ended with {type(error).__name__}: {error}".removesuffix(": ")
            raise ProviderError(
                message, kind="other", maybe_billed=True, partial="".join(streamed) or None
            ) from error
        except Exception as error:
            if not isinstance(error, ProviderError):
                error.add_note(f"while the backend {self._choice.backend.name!r} answered")
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
            f"{self._choice.label} reported an impossible usage ({', '.join(wrong)}), which "
            "counts as unknown"
        )
        self._conversation.warn(message)
        return replace(response, usage=response.usage.without_invalid())

    def _charge_unknown(self, call: _TurnCall) -> Mapping[str, Any] | None:
        """Charges an attempt that may have been billed and whose usage is unknown; returns the
        usage to record.
        """
        if self._choice.is_free:
            return None
        call.budget.maybe_billed = True
        call.budget.charge_unknown(call.max_cost_usd)
        self._conversation.warn(MAYBE_BILLED)
        return UNKNOWN_USAGE.non_zero()

    def _request(self, budget: Budget) -> ModelRequest:
        remaining = budget.remaining_s()
        if remaining is None:
            timeout_s = self._config.timeout_s
        else:
            timeout_s = max(0.001, remaining)
        return self._conversation.request(timeout_s, self._settings.hints)


def _stream(on_text: OnText, streamed: list[str], piece: str) -> None:
    """Passes on a piece of text, and adds it to `streamed`."""
    streamed.append(piece)
    on_text(piece)


def _recorded_response(end: StepEnd, budget: Budget) -> ModelResponse:
    """Raises: ProviderError, for a call that failed when it was recorded, and is not made again."""
    if end.status != "success":
        separator = REASON_SEPARATOR if end.reason_word == TIMEOUT else ": "
        kind, _, message = (end.error or "").partition(separator)
        if kind in get_args(ProviderErrorKind):
            known = cast("ProviderErrorKind", kind)
        else:
            known = "server"
        raise ProviderError(message or kind, kind=known)
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
