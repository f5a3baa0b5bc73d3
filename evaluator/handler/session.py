"""A Handler: one task's isolated conversation with a model, limited and recorded.

A Handler is made for one task from resolved texts and an immutable configuration, and ends with the
task. A turn is one model response. The limits are checked before each request, so that a request
that would pass one is never sent.

The parts: `conversation` holds the messages, `model_caller` calls the model, `tool_runner` runs the
tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.errors import LimitReached, SessionClosed
from evaluator.errors.results import Usage
from evaluator.handler.config import HandlerConfig
from evaluator.handler.conversation import Conversation
from evaluator.handler.model_caller import (
    DEFAULT_SETTINGS,
    CallSettings,
    ModelCaller,
    SessionLog,
)
from evaluator.handler.model_choice import ModelChoice
from evaluator.handler.tool_runner import ToolRunner
from evaluator.limits.budget import Budget
from evaluator.models.backend import FinishReason, Message, ModelResponse, ToolCall, ToolSpec
from evaluator.models.prices import estimate_tokens
from evaluator.tools import ToolContext, ToolRegistry


@dataclass(frozen=True, slots=True)
class HandlerAnswer:
    """The model's last response to a query, the usage of the whole session, and the warnings."""

    content: str
    finish_reason: FinishReason
    usage: Usage
    warnings: tuple[str, ...]
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class Handler:
    """One task's session: call `run` once, or `say` as often as needed and then `close`. `turns`
    counts its turns.

    `tools` are offered to the model and run in the given context. `offered` are offered and not
    run: calls of them end the query and are in its answer.
    """

    def __init__(
        self,
        config: HandlerConfig,
        choice: ModelChoice,
        log: SessionLog,
        budget: Budget,
        *,
        settings: CallSettings = DEFAULT_SETTINGS,
        tools: tuple[ToolRegistry, ToolContext] | None = None,
        offered: tuple[ToolSpec, ...] = (),
    ) -> None:
        self.budget = budget
        self.turns = 0
        self._config = config
        self._log = log
        self._closed = False
        counts_tokens = (
            choice.limiter is not None or config.max_cost_usd is not None or budget.has_cost_limit
        )
        specs = offered if tools is None else tools[0].specs()
        self._only_offers = tools is None and bool(offered)
        self._conversation = Conversation(
            config, choice, tools=specs, schema=settings.schema, counts_tokens=counts_tokens
        )
        self._caller = ModelCaller(
            config, choice, conversation=self._conversation, settings=settings, log=log
        )
        warn = self._conversation.warn
        if tools is None:
            self._tools = None
        else:
            self._tools = ToolRunner(*tools, log, warn, config.backoff_s)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the last query, also of one that failed."""
        return (*self._conversation.warnings, *self.budget.warnings.values())

    @property
    def has_answer(self) -> bool:
        """Whether the model has answered, if only with a tool call."""
        return self._conversation.has_answer

    async def run(self, messages: Sequence[Message]) -> HandlerAnswer:
        """The only query of a task: `say`, then `close`.

        Raises: as `say`.
        """
        try:
            return await self.say(messages)
        finally:
            self.close()

    async def say(self, messages: Sequence[Message], budget: Budget | None = None) -> HandlerAnswer:
        """Sends `messages`, runs the tools that the model calls, and returns the model's last
        response.

        May be called again with further messages, each time with a `budget` of its own. After an
        error the messages of this query are removed from the conversation.

        Raises: LimitReached, with the partial content; ProviderError, after the last attempt;
        SessionClosed, after `close`.
        """
        if self._closed:
            raise SessionClosed("a Handler serves one task; the task of this one has ended")
        self.budget = budget or self.budget
        conversation = self._conversation
        conversation.warnings.clear()
        position = conversation.position()
        if self._tools is not None:
            self._tools.start_query()
        try:
            for message in messages:
                conversation.add(message)
                self._log.note(message)
            response = await self._answer()
        except BaseException:
            conversation.rewind(position)
            raise
        if response.finish_reason == "length":
            used = response.usage.output_tokens or estimate_tokens(response.content)
            raise LimitReached(
                "output",
                used,
                limit=self._config.max_output_tokens or used,
                message="the response was cut off at its output limit",
                partial=response.content,
            )
        return HandlerAnswer(
            response.content,
            response.finish_reason,
            usage=self.budget.usage,
            warnings=self.warnings,
            reasoning=response.reasoning,
            tool_calls=response.tool_calls if self._only_offers else (),
        )

    async def _answer(self) -> ModelResponse:
        """Takes turns until the model answers without calling a tool."""
        conversation = self._conversation
        while True:
            self.turns += 1
            conversation.check_context(self.budget.partial)
            response = await self._caller.call(self.turns, self.budget)
            self._log.note(conversation.add_response(response), response.usage)
            if not response.tool_calls or self._only_offers:
                return response
            if self._tools is None:
                names = ", ".join(call.name for call in response.tool_calls)
                conversation.warn(f"the model called {names}, but this task offers no tool")
                return response
            answers = await self._tools.run(response.tool_calls, self.turns, self.budget)
            conversation.add_answers(answers)
            for message, _ in answers:
                self._log.note(message)

    def close(self) -> None:
        """Ends the session: a later `say` raises SessionClosed."""
        self._closed = True
