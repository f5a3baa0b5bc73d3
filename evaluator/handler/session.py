"""A Handler: one task's isolated conversation with a model, limited and recorded.

It is made for one task from resolved texts and an immutable configuration, and is gone with it. A turn is
one model response. Before each request the limits are checked, so that the call which would pass one is
never sent; transport failures are retried inside the step, each attempt recorded.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from evaluator.errors import LimitReached, NotLetIn, ProviderError, ProviderErrorKind, RecordError, SessionClosed
from evaluator.handler import prices
from evaluator.handler.attaching import make_room, with_what_is_taken
from evaluator.handler.attachments import Attachment, recorded_in
from evaluator.handler.backend import (
    Backend,
    FinishReason,
    Hints,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    ToolSpec,
)
from evaluator.handler.cache_key import identify
from evaluator.handler.config import HandlerConfig
from evaluator.handler.gate import NOT_MADE, UNWATCHED, Gate, Passage, PlannedCall
from evaluator.handler.limits import IN_DOUBT, WARN_AT, Budget
from evaluator.handler.responses import response_from_dict, response_to_dict
from evaluator.handler.structured import is_refusal, kind_of
from evaluator.handler.tokens import estimate_tokens
from evaluator.handler.tools import ToolContext, ToolRegistry
from evaluator.handler.tracing import UNTRACED, Tracer
from evaluator.record.steplog import StepLog
from evaluator.record.steps import StepEnd
from evaluator.results import Usage

if TYPE_CHECKING:
    from evaluator.handler.cache import ResponseCache

_MESSAGE_OVERHEAD_TOKENS = 6
NOT_REPEATED = (
    "error: the run was interrupted while this call was running; whether it took effect is not known, and it was "
    "not repeated. Find out before you call it again"
)
MAYBE_BILLED = "an attempt that came to no answer may have been billed: tokens and cost are not known in full"
Sleep = Callable[[float], Any]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The backend that answers, the model's id as the backend wants it, and why it was chosen.

    `is_stand_in`: the simulated model, because nothing else was found. `refused`: the kinds of schema that this
    model of this backend would not take, added to by the Handlers that find out. `endpoint` says where the
    model is reached, without secrets. Each attempt passes through `gate`; `cache` answers what it knows.
    """

    backend: Backend
    model: str
    label: str
    why: str
    is_stand_in: bool = False
    refused: set[str] = field(default_factory=set[str], compare=False)
    endpoint: str = ""
    gate: Gate | None = field(default=None, compare=False)
    cache: ResponseCache | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a conversation came to: the last response's text, why it ended, what it used, what to warn of."""

    content: str
    finish_reason: FinishReason
    usage: Usage
    warnings: tuple[str, ...]
    reasoning: str | None = None


class Handler:
    """One task's session: `run` once, or `say` as often as there is something to say. `turns` counts its turns.

    `epoch` tells repetitions of the same task apart to the cache.
    """

    def __init__(
        self,
        config: HandlerConfig,
        choice: ModelChoice,
        *,
        steps: StepLog,
        path: str,
        budget: Budget,
        tools: ToolRegistry | None = None,
        tool_context: ToolContext | None = None,
        hints: Hints | None = None,
        schema: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
        epoch: int = 1,
        sleep: Sleep = asyncio.sleep,
        tracer: Tracer = UNTRACED,
    ) -> None:
        self.config = config
        self.choice = choice
        self.budget = budget
        self._steps = steps
        self._path = path
        self._tools = tools
        self._tool_context = tool_context
        self._specs: tuple[ToolSpec, ...] = tools.specs() if tools is not None else ()
        self._hints = hints or Hints()
        self._schema = schema if config.native_output else None
        self._on_text = on_text
        self._epoch = epoch
        self._sleep = sleep
        self._tracer = tracer
        self._messages: list[Message] = []
        self._sent = 0
        self.turns = 0
        self._answered: dict[int, str] = {}
        self._history = ""
        self._context_tokens = self._tool_tokens()
        self._correction = 1.0
        self._warnings: list[str] = []
        self._warned_context = False
        self._closed = False
        self._one_tool = asyncio.Lock()
        window = config.context_window
        if window is None and choice.backend.name != "simulated":
            window = prices.context_window(choice.label)
        self._window = window
        self._is_counted = choice.gate is not None or self._has_cost_limit()

    # -- context accounting ---------------------------------------------------------------------------------

    def remaining_context(self) -> int | None:
        """Tokens that the next request may still add to this session, at least 0; None if the window is unknown.

        Estimated locally, then corrected to the provider's count after each response. The estimate may exceed
        the true figure, never undercut it.

        Raises: SessionClosed, if the task that owned this session has ended.
        """
        if self._closed:
            raise SessionClosed("the task that owned this session has ended")
        limit = self._context_limit()
        return None if limit is None else max(0, limit - self._context_tokens)

    def _context_limit(self) -> int | None:
        return None if self._window is None else int(self._window * self.config.max_context_fraction)

    def _tool_tokens(self) -> int:
        return sum(estimate_tokens(f"{s.name} {s.description} {s.parameters}") for s in self._specs)

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        if self._window is None and not self._is_counted:
            return
        tokens = estimate_tokens(message.content) + _MESSAGE_OVERHEAD_TOKENS
        tokens += sum(attachment.tokens for attachment in message.attachments)
        for call in message.tool_calls:
            tokens += estimate_tokens(call.name) + estimate_tokens(call.arguments)
        self._context_tokens += tokens

    def _check_context(self) -> None:
        limit = self._context_limit()
        if limit is None:
            return
        if self._context_tokens > limit:
            raise LimitReached(
                "context", self._context_tokens, limit,
                f"the next request would hold about {self._context_tokens} tokens; "
                f"{self.config.max_context_fraction:g} of the window of {self.choice.label} is {limit}",
                self.budget.partial,
            )  # fmt: skip
        if not self._warned_context and self._context_tokens >= WARN_AT * limit:
            self._warned_context = True
            self._warnings.append(f"context is at {self._context_tokens} of {limit} tokens")

    def _turn_cost(self) -> float | None:
        """The most that the next turn may cost in US dollars; None where its price or its longest answer is unknown."""
        output = self._most_output()
        if output is None:
            return None
        written = self._context_tokens if self.config.cache else 0
        return self._cost(Usage(self._context_tokens, output, 0, 0, None, 1), written)

    def _most_output(self) -> int | None:
        """Tokens that the model may answer with at most, None where that is unknown."""
        output = self.config.max_output_tokens
        if output is None:
            output = prices.max_output_tokens(self.choice.label) if not self._is_free() else 0
        return output

    def _is_free(self) -> bool:
        return self.choice.backend.name in ("simulated", "replay")

    def _cost(self, usage: Usage, cache_write_tokens: int = 0) -> float | None:
        if self._is_free():
            return 0.0
        if self.config.prices is not None:
            if usage.input_tokens is None or usage.output_tokens is None:
                return None
            per_input, per_output = self.config.prices
            return (usage.input_tokens * per_input + usage.output_tokens * per_output) / 1e6
        return prices.cost_usd(self.choice.label, usage, cache_write_tokens)

    # -- the conversation -----------------------------------------------------------------------------------

    async def run(self, messages: Sequence[Message]) -> Outcome:
        """The one conversation of a task: `say`, after which the Handler is closed.

        Raises: as `say`.
        """
        try:
            return await self.say(messages)
        finally:
            self.close()

    async def say(self, messages: Sequence[Message], budget: Budget | None = None) -> Outcome:
        """Sends `messages`, executes the tools that the model calls, and returns its last response.

        May be called again, with what is said next; then each time with a `budget` of its own. After an error
        what was said and not answered is forgotten.

        Raises: LimitReached, with the partial content; ProviderError, after the last attempt; SessionClosed,
        after `close`.
        """
        if self._closed:
            raise SessionClosed("a Handler serves one task; this one has ended")
        self.budget = budget or self.budget
        self._warnings = []
        before = len(self._messages), self._context_tokens
        for message in messages:
            self._add(self._taken(message))
        try:
            response = await self._answer()
        except BaseException:
            self._forget(*before)
            raise
        if response.finish_reason == "length":
            used = response.usage.output_tokens or estimate_tokens(response.content)
            raise LimitReached(
                "output", used, self.config.max_output_tokens or used,
                "the response was cut off at its output limit", response.content,
            )  # fmt: skip
        warnings = (*self._warnings, *self.budget.warnings)
        return Outcome(response.content, response.finish_reason, self.budget.usage, warnings, response.reasoning)

    def _forget(self, messages: int, context_tokens: int) -> None:
        """Back to what the session was: calls of tools without their results would be refused by providers."""
        del self._messages[messages:]
        self._sent = min(self._sent, messages)
        self._answered = {place: path for place, path in self._answered.items() if place < messages}
        self._context_tokens = context_tokens

    async def _answer(self) -> ModelResponse:
        """Turns until the model answers without calling a tool."""
        while True:
            self.turns += 1
            response = await self._turn(self.turns)
            if not response.tool_calls:
                return response
            if self._tools is None:
                names = ", ".join(call.name for call in response.tool_calls)
                self._warnings.append(f"the model called {names}, but this task offers no tool")
                return response
            await self._call_tools(response.tool_calls, self.turns)

    def close(self) -> None:
        """Ends the session: nothing more can be said."""
        self._closed = True

    async def _turn(self, turn: int) -> ModelResponse:
        self._check_context()
        path = f"{self._path}/turn[{turn}]" if self._path else f"turn[{turn}]"
        # Model and settings are one session's, and said at its first turn.
        args: dict[str, Any] = {"after": f"turn[{turn - 1}]"} if self._sent else {
            "model": self.choice.label, "settings": self._settings(),
        }  # fmt: skip
        args["messages"] = self._new_messages()
        fingerprint = self._fingerprint()
        most = self._turn_cost() if self._is_counted else None
        self.budget.reserve_turn(most)
        try:
            response = await self._response(path, args, fingerprint, most)
        finally:
            self.budget.release_turn(most)
        usage = response.usage
        self.budget.charge(usage)
        if usage.input_tokens is not None and usage.output_tokens is not None:
            self._context_tokens = usage.input_tokens
        for warning in response.warnings:
            self._warn(warning)
        self._add(response.message())
        self._sent = len(self._messages)
        return response

    def _taken(self, message: Message) -> Message:
        return with_what_is_taken(message, self.choice.label, self.config.tool_calling == "text", self._warn)

    def _warn(self, warning: str) -> None:
        if warning not in self._warnings:
            self._warnings.append(warning)

    def _new_messages(self) -> list[dict[str, Any]]:
        """What the record says of the messages since the last turn: a tool's answer stands at its own step."""
        shown: list[dict[str, Any]] = []
        for place, message in enumerate(self._messages[self._sent :], self._sent):
            data = message.to_dict()
            if place in self._answered:
                del data["content"]
                data["content_of"] = self._answered[place]
            shown.append(data)
        return shown

    def _fingerprint(self) -> str:
        """Of the whole conversation up to the next turn: its last messages, and the fingerprint of what came before."""
        new = self._messages[max(0, self._sent - 1) :]
        seen: dict[str, Any] = {
            "model": self.choice.label,
            "settings": self._settings(),
            "tools": [
                [spec.name, spec.description, spec.parameters, *([] if spec.native is None else [dict(spec.native)])]
                for spec in self._specs
            ],
            "messages": [message.to_dict() for message in new],
            "after": self._history,
        }
        if self._schema is not None:
            # What was asked for: whether the provider takes it is found out on the way, each run anew.
            seen["schema"] = self._schema
        self._history = self._steps.fingerprint(seen)
        return self._history

    def _has_cost_limit(self) -> bool:
        scope: Budget | None = self.budget
        while scope is not None:
            if scope.max_cost_usd is not None:
                return True
            scope = scope.parent
        return False

    def _settings(self) -> dict[str, Any]:
        config = self.config
        settings: dict[str, Any] = {}
        if config.temperature is not None:
            settings["temperature"] = config.temperature
        if config.seed is not None:
            settings["seed"] = config.seed
        if config.max_output_tokens is not None:
            settings["max_output_tokens"] = config.max_output_tokens
        if self._specs:
            settings["tools"] = [spec.name for spec in self._specs]
            if config.tool_calling != "native":
                settings["tool_calling"] = config.tool_calling
        if self._schema is not None:
            settings["native_output"] = True
        return settings

    async def _response(
        self, path: str, args: Mapping[str, Any], fingerprint: str, most: float | None
    ) -> ModelResponse:
        """The response to what is to be sent next: from the record, else from the cache, else from the model."""
        recorded = self._steps.recorded(path, "model", fingerprint, args)
        if recorded is not None:
            return self._recorded_response(recorded)
        cache, budget = self.choice.cache, self.budget
        if cache is None:
            return await self._attempts(path, args, fingerprint, most)
        asked = identify(
            self._request(), endpoint=self.choice.endpoint, epoch=self._epoch,
            tool_calling=self.config.tool_calling, task=self._hints.task,
        )  # fmt: skip
        async with AsyncExitStack() as flight:
            # Somebody else's call for the same answer is not this task's time.
            budget.pause()
            try:
                await flight.enter_async_context(cache.flight(asked))
            finally:
                budget.resume()
            cached = cache.get(asked)
            if cached is not None:
                return await self._take_cached(path, args, fingerprint, cached)
            missed = cache.why_missed(asked)
            extra = None if missed is None else {"cache_miss": str(missed)}
            response = await self._attempts(path, args, fingerprint, most, extra)
            cache.put(asked, response)
            return response

    async def _take_cached(
        self, path: str, args: Mapping[str, Any], fingerprint: str, response: ModelResponse
    ) -> ModelResponse:
        """Records a response of the cache as a step that took no time and cost nothing."""
        number = await self._steps.begin(path, "model", self.choice.label, args, fingerprint)
        self.budget.partial = response.content or self.budget.partial
        self.budget.count_cached()
        if self._on_text is not None and response.content:
            self._on_text(response.content)
        await self._steps.succeed(
            number, response_to_dict(response), 0.0, usage=response.usage.said(), extra={"cached": True}
        )
        return response

    async def _attempts(
        self,
        path: str,
        args: Mapping[str, Any],
        fingerprint: str,
        most: float | None,
        extra: Mapping[str, Any] | None = None,
    ) -> ModelResponse:
        """One model call with its retries; each attempt is a step of its own in the record."""
        config = self.config
        attempts = len(config.backoff_s) + 1
        waits = iter(config.backoff_s)
        waited: float | None = None
        for attempt in itertools.count(1):
            passage = await self._enter(most)
            try:
                number = await self._steps.begin(
                    path, "model", self.choice.label, args, fingerprint,
                    attempt=attempt, max_attempts=attempts, backoff_s=waited,
                )  # fmt: skip
                request = self._request()
                choice = self.choice
                with self._tracer.model_call(
                    choice.backend.name, choice.label, choice.endpoint, request, attempt
                ) as span:
                    came = await self._attempt(request, number, passage, most, extra)
                    span.ended(came)
            finally:
                passage.leave(NOT_MADE, None, 0.0)
            if not isinstance(came, ProviderError):
                return came
            if request.schema is not None and is_refusal(came):
                # No retry, but the same without the field: at once, and only once a model.
                self.choice.refused.add(kind_of(request.schema))
                attempts, waited = attempts + 1, None
                continue
            if not came.retryable or attempt == attempts:
                raise came
            waited = next(waits)
            if came.retry_after_s is not None:
                waited = max(waited, came.retry_after_s)
            self._wait_fits(waited, came)
            await self._rest(waited)
            self._check_time()
            self.budget.check_reserved()
        raise AssertionError("the last attempt returns or raises")

    async def _enter(self, most: float | None) -> Passage:
        """Waits until the next attempt may be made. The wait is not this task's time, and no step is begun."""
        choice, budget = self.choice, self.budget
        if choice.gate is None:
            return UNWATCHED
        if budget.refused is not None:
            raise budget.refused
        call = PlannedCall(choice.label, choice.endpoint, self._context_tokens, self._most_output(), most)
        budget.pause()
        try:
            return await choice.gate.enter(call)
        except NotLetIn as error:
            budget.refuse(error)
            raise
        finally:
            budget.resume()

    async def _rest(self, seconds: float) -> None:
        """The wait before a retry, which is this task's own time."""
        if self.choice.gate is None:
            await self._sleep(seconds)
            return
        try:
            await self.choice.gate.rest(seconds)
        except NotLetIn as error:
            self.budget.refuse(error)
            raise

    async def _attempt(
        self,
        request: ModelRequest,
        number: int,
        passage: Passage,
        most: float | None,
        extra: Mapping[str, Any] | None,
    ) -> ModelResponse | ProviderError:
        """One attempt, as the step `number`: its response, with what it cost, or how it failed."""
        steps = self._steps
        started = time.perf_counter()
        heard: list[str] = []
        try:
            response = await self._complete(request, heard)
        except ProviderError as error:
            duration = time.perf_counter() - started
            passage.leave(None, error, duration)
            self.budget.partial = error.partial or self.budget.partial
            usage = self._charge_in_doubt(most) if error.maybe_billed else None
            await steps.fail(number, error.partial or "", duration, f"{error.kind}: {error.message}", usage=usage)
            return error
        except BaseException as error:
            duration = time.perf_counter() - started
            passage.leave(None, None, duration)
            text = "".join(heard)
            self.budget.partial = text or self.budget.partial
            self.budget.maybe_billed = True
            self._charge_in_doubt(most)
            steps.abort(number, text, duration, f"{type(error).__name__}: {error}")
            raise
        duration = time.perf_counter() - started
        if response.usage.cost_usd is None:
            cost_usd = self._cost(response.usage, response.cache_write_tokens or 0)
            if cost_usd is not None:
                response = replace(response, usage=replace(response.usage, cost_usd=cost_usd))
        passage.leave(response.usage, None, duration)
        self.budget.partial = response.content or self.budget.partial
        try:
            await steps.succeed(number, response_to_dict(response), duration, usage=response.usage.said(), extra=extra)
        except RecordError:
            # It was paid for: the caller gets it, although the record could not be written.
            self.budget.charge(response.usage)
            raise
        return response

    async def _complete(self, request: ModelRequest, heard: list[str]) -> ModelResponse:
        """What the backend answers. One that ends more than its call, on its own account, has failed at this call."""
        try:
            response: Any = await self.choice.backend.complete(request, on_text=self._hearing(heard))
        except (asyncio.CancelledError, SystemExit) as error:
            if _is_from_outside(error, self._on_text):
                raise
            message = f"the backend ended with {type(error).__name__}: {error}".removesuffix(": ")
            raise ProviderError(message, kind="other", maybe_billed=True, partial="".join(heard) or None) from error
        if not isinstance(response, ModelResponse) or type(response.usage) is not Usage:
            given = type(response).__name__ if not isinstance(response, ModelResponse) else "one without its usage"
            raise ProviderError(
                f"the backend returned {given}, expected a ModelResponse", kind="malformed_response", maybe_billed=True
            )
        sound = response.usage.sound()
        return response if sound is response.usage else replace(response, usage=sound)

    def _charge_in_doubt(self, most: float | None) -> Mapping[str, Any] | None:
        """Counts an attempt that may have been billed as one whose cost is unknown; for the record, what it used."""
        if self._is_free():
            return None
        self.budget.maybe_billed = True
        self.budget.charge_in_doubt(most)
        self._warn(MAYBE_BILLED)
        return IN_DOUBT.said()

    def _native(self) -> Mapping[str, Any] | None:
        """The schema that the next request carries as a field of its own."""
        schema = self._schema
        if schema is None:
            return None
        label, refused = self.choice.label, self.choice.refused
        if kind_of(schema) not in refused and prices.supports(label, "response_schema") is not False:
            return schema
        self._warn(f"{label} takes no such JSON schema as a field of the request: it was told in words only")
        return None

    def _recorded_response(self, end: StepEnd) -> ModelResponse:
        """Raises: ProviderError, for a call that failed when it was recorded, and is not made again."""
        if end.status != "success":
            kind, _, message = (end.error or "").partition(": ")
            known = cast("ProviderErrorKind", kind) if kind in get_args(ProviderErrorKind) else "server"
            raise ProviderError(message or kind, kind=known)
        response = response_from_dict(end.output, end.usage)
        if end.extra is not None and end.extra.get("cached") is True:
            self.budget.count_cached()
        self.budget.partial = response.content or self.budget.partial
        return response

    def _hearing(self, heard: list[str]) -> Callable[[str], None] | None:
        """Passes streamed text on and keeps it, for a call that is cut off."""
        on_text = self._on_text
        if on_text is None:
            return None

        def hear(piece: str) -> None:
            heard.append(piece)
            on_text(piece)

        return hear

    def _check_time(self) -> None:
        scope: Budget | None = self.budget
        while scope is not None:
            scope.check_time()
            scope = scope.parent

    def _wait_fits(self, wait_s: float, error: ProviderError) -> None:
        remaining = self.budget.remaining_s()
        if remaining is not None and wait_s >= remaining:
            raise LimitReached(
                "time", round(self.budget.elapsed_s(), 3), self.budget.timeout_s or remaining,
                f"waiting {wait_s:g} s to retry would pass the time limit; the last error was: {error.message}",
            ) from error  # fmt: skip

    def _request(self) -> ModelRequest:
        remaining = self.budget.remaining_s()
        return ModelRequest(
            self.choice.model,
            tuple(self._messages),
            self._specs,
            self.config.max_output_tokens,
            self.config.temperature,
            self.config.seed,
            self.config.timeout_s if remaining is None else max(0.001, remaining),
            self._hints,
            self._native(),
            self.config.cache,
        )

    # -- tools ----------------------------------------------------------------------------------------------

    async def _call_tools(self, calls: Sequence[ToolCall], turn: int) -> None:
        """Runs the calls of one turn and adds their answers in the order of the calls.

        Subtasks run side by side; other tools one after the other, since one may depend on what another did.
        """
        answers = await asyncio.gather(
            *(self._call_tool(call, f"turn[{turn}]/tool[{i}]") for i, call in enumerate(calls, 1)),
            return_exceptions=True,
        )
        for number, (call, answer) in enumerate(zip(calls, answers, strict=True), 1):
            if isinstance(answer, BaseException):
                raise answer
            self._answered[len(self._messages)] = f"turn[{turn}]/tool[{number}]"
            content, images = answer
            answer = Message("tool", content, tool_call_id=call.id, attachments=images)
            self._add(self._taken(answer))
        make_room(self._messages, self._warn)
        self.budget.charge(Usage(tool_calls=len(calls)))

    async def _call_tool(self, call: ToolCall, segment: str) -> tuple[str, tuple[Attachment, ...]]:
        """What the model is told and shown."""
        path = f"{self._path}/{segment}" if self._path else segment
        args = {"tool": call.name, "arguments": call.arguments}
        steps = self._steps
        fingerprint = steps.fingerprint(args)
        recorded = steps.recorded(path, "tool", fingerprint, args)
        if recorded is not None:
            spent = steps.spent_at(f"{path}/subtask")
            if spent is not None:
                self.budget.charge(Usage.from_dict(spent))
            return str(recorded.output), self._shown_again(recorded, path)
        if self._is_direct(call.name):
            async with self._one_tool:
                return await self._run_tool(call, path, args, fingerprint)
        return await self._run_tool(call, path, args, fingerprint)

    def _shown_again(self, recorded: StepEnd, path: str) -> tuple[Attachment, ...]:
        """The images of a recorded answer, with the bytes that were kept."""
        images: list[Attachment] = []
        for named in recorded_in(recorded.extra):
            data = self._steps.kept(named["sha256"])
            images.append(Attachment.from_dict(named, data or b""))
            if data is None and self._steps.journal is not None:
                self._warn(f"{path}: {named['source']} is not sent again: its bytes are not beside the task files")
        return tuple(images)

    def _is_direct(self, name: str) -> bool:
        tool = None if self._tools is None else self._tools.get(name)
        return tool is None or tool.kind == "direct"

    def _does_harm_twice(self, name: str) -> bool:
        tool = None if self._tools is None else self._tools.get(name)
        return tool is not None and tool.kind == "direct" and tool.effect and not tool.retryable

    async def _run_tool(
        self, call: ToolCall, path: str, args: Mapping[str, Any], fingerprint: str
    ) -> tuple[str, tuple[Attachment, ...]]:
        assert self._tools is not None and self._tool_context is not None
        steps = self._steps
        if self._does_harm_twice(call.name) and not await steps.may_repeat(path):
            number = await steps.begin(path, "tool", call.name, args, fingerprint)
            await steps.fail(number, NOT_REPEATED, 0.0, "not repeated")
            return NOT_REPEATED, ()
        number = await steps.begin(path, "tool", call.name, args, fingerprint)
        started = time.perf_counter()
        left = self.budget.remaining_s()
        context = replace(self._tool_context, step_path=path, remaining_s=float("inf") if left is None else left)
        try:
            with self._tracer.tool_call(call, self._tools.get(call.name)) as span:
                outcome = await self._tools.call(call.name, call.arguments, context)
                span.ended(outcome)
        except BaseException as error:
            steps.abort(number, "", time.perf_counter() - started, f"{type(error).__name__}: {error}")
            raise
        if steps.halted is not None and not self._is_direct(call.name):
            # What came back is not the subtask's answer; the step stays open, to be gone on with.
            raise steps.halted
        duration = time.perf_counter() - started
        if outcome.ok:
            for image in outcome.images:
                await steps.keep(image.data)
            shown = [image.to_dict() for image in outcome.images]
            await steps.succeed(number, outcome.content, duration, extra={"attachments": shown} if shown else None)
            return outcome.content, outcome.images
        answer = f"error: {outcome.error or outcome.content}"
        # A tool's error is an answer to the model, hence a completed step; the record still says that it failed.
        await steps.fail(number, answer, duration, outcome.error or "tool error")
        return answer, ()


def _is_from_outside(error: asyncio.CancelledError | SystemExit, on_text: Callable[[str], None] | None) -> bool:
    """Whether this task is being cancelled, or the program is ended by `on_text` or by a signal's handler, which may
    come upon any code."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    outside = on_text, *map(signal.getsignal, signal.valid_signals())
    codes = {getattr(each, "__code__", None) for each in outside}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
