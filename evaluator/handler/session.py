"""A Handler: one task's isolated conversation with a model, limited and recorded.

A Handler is made for one task from resolved texts and an immutable plan, and ends with the task. A
turn is one model response. The limits are checked before each request, so that a request that would
pass one is never sent.

A Handler is the session itself: `conversation` holds its messages, `model_caller` calls the model
for it, and `tool_runner` runs its tools.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from evaluator.errors import LimitReached, SessionClosed
from evaluator.errors.results import Usage
from evaluator.handler.conversation import Session, SessionLog, SessionPlan
from evaluator.handler.model_caller import call_model
from evaluator.handler.tool_runner import RepeatedCalls, Tools, run_tools
from evaluator.lazy_dataclass import dataclass
from evaluator.limits.budget import Budget
from evaluator.models.backend import FinishReason, Hints, Message, ToolCall
from evaluator.models.logprobs import TokenLogprob
from evaluator.models.prices import estimate_tokens


@dataclass(frozen=True, slots=True)
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
                response = await call_model(self)
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
        return HandlerAnswer(
            response.content,
            response.finish_reason,
            usage=self.budget.usage,
            warnings=self.warnings,
            reasoning=response.reasoning,
            tool_calls=response.tool_calls if self._only_offers else (),
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
