"""An interactive session: one Handler for all queries, with its tools, memory for each query, and
one task file.

Each query and its outcome are a step of the record. A session that was killed continues from its
file: its queries are sent to the Handler again, which takes the answers from the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import field, replace
from functools import partial
from typing import Any

from evaluator.errors import RecordError, UsageError
from evaluator.errors.results import Outcome, Status, TaskResult
from evaluator.handler.conversation import plan_session
from evaluator.handler.session import Handler
from evaluator.interpreter.binding import BoundTask, prepare
from evaluator.interpreter.context import NOTHING, assemble, format_items, policy_of
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import Frame, Run, RunOptions, Services
from evaluator.interpreter.operators.atomic import choose, open_handler
from evaluator.interpreter.recovery import reopened, trusts_foreign
from evaluator.interpreter.requests import recorded_options, recorded_services
from evaluator.interpreter.runs import record_run
from evaluator.interpreter.sandboxing import check_sandboxes
from evaluator.interpreter.toolset import tools_for
from evaluator.language.scopes import Scope
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.budget import Budget
from evaluator.models.backend import Message
from evaluator.nodes import Atomic, HandlerSpec, Span, Text
from evaluator.output import split_thinking
from evaluator.record.recorded_steps import ResumedSteps, Unfinished
from evaluator.record.step_log import StepLog
from evaluator.record.steps import Step

CHAT = "chat"
_TASK = Atomic(description=Text("An interactive session", Span()))
_POLICY = replace(policy_of(_TASK), fresh_context="enabled")


@frozen
class ChatReply:
    """The outcome of one query. `from_record`: the reply was given before the session was
    resumed.
    """

    query: str
    outcome: Outcome
    from_record: bool = False


class Chat:
    """One session. `ask` gives the next query, None to end it; `show` gets each reply."""

    def __init__(
        self, ask: Callable[[], Awaitable[str | None]], show: Callable[[ChatReply], None]
    ) -> None:
        self._ask = ask
        self._show = show
        self._answering: asyncio.Task[Outcome] | None = None

    def cancel_answer(self) -> bool:
        """Cancels the answer in progress; the session continues. Returns False if there is none."""
        return self._answering is not None and self._answering.cancel()

    async def start(self, services: Services, options: RunOptions) -> Outcome:
        """Runs a new session to its end. Returns: the outcome of the session."""
        run = run_of(self, services)
        run.options = options
        run.extra = {"chat": True}
        return await record_run(run)

    async def resume(self, services: Services, task_id: int, callbacks: RunOptions) -> Outcome:
        """Continues a session from its task file; only the callbacks of `callbacks` count. Returns:
        as `start`.

        Raises: UsageError, if that is the file of something else; RecordError, as
        `TaskStore.reopen`.
        """
        async with reopened(services, task_id) as (journal, recording, store):
            header = recording.known_header()
            if not header.extra.get("chat"):
                raise UsageError(
                    f"TASK-{task_id} is not a chat; resume it with: evaluator tasks resume "
                    f"{task_id}{store.option}"
                )
            services = recorded_services(header, services)
            run = run_of(self, services)
            run.options = recorded_options(header, services, callbacks)
            earlier = ResumedSteps(recording, _tell, trust=trusts_foreign(services))
            steps = StepLog(journal, earlier, scrub=store.redactor)
            return await record_run(run, steps)

    async def _run(self, task: Atomic, run: Run, frame: Frame) -> Outcome:
        steps = run.steps
        await check_sandboxes(run, task, frame.domain)
        prepared = prepare(task, frame)
        budget = Budget(CHAT, parent=run.budget)
        bound = BoundTask(
            prepared,
            Scope(),
            values={},
            description=task.description.value,
            context=NOTHING,
            config=prepared.config_in(Scope()),
            budget=budget,
            frame=replace(frame, domain=prepared.domain),
        )
        choice = await choose(run, None, bound=bound)
        steps.note("resolve", "resolve", CHAT, None, {"model": choice.label, "why": choice.why})
        tools = await tools_for(run, task, bound=bound, provider=choice.endpoint)
        specs = ()
        if tools is not None:
            specs = tools.specs()
        plan = plan_session(bound.config, choice, specs)
        handler = open_handler(run, bound, plan, tools=tools)
        queries = _Queries(run, handler, bound=bound)
        last = ""
        try:
            while (query := await self._next(run, queries.count + 1)) is not None:
                reply = await self._answer(queries, query)
                last = reply.outcome.content or last
                self._show(reply)
        finally:
            handler.close()
            if tools is not None:
                await tools.aclose()
        notes = bound.notes(model=choice.label, queries=queries.count)
        return TaskResult(
            Status.COMPLETE, last, parsed_content=None, notes=notes, usage=budget.usage
        )

    async def _next(self, run: Run, number: int) -> str | None:
        """The recorded query of that number, else the user's next one, which is on disk before it
        is answered.

        Notifications of background tasks that have arrived since precede it.
        """
        steps = run.steps
        path = f"query[{number}]"
        background = run.services.background
        recorded = steps.recorded(path, "context", "", None)
        if recorded is not None:
            return str(recorded.output)
        query = await self._ask()
        if query is not None:
            if background is None:
                told = ""
            else:
                told = background.notifications(run.session(""), later=True)
            if told:
                query = f"{told}\n\n{query}"
            await _record(steps, path, name="query", output=query)
        return query

    async def _answer(self, queries: _Queries, query: str) -> ChatReply:
        queries.count += 1
        steps = queries.run.steps
        handler = queries.handler
        path = f"query[{queries.count}]/end"
        recorded = steps.recorded(path, "context", "", None)
        if recorded is not None and recorded.output["status"] != Status.COMPLETE.value:
            # It failed or was cancelled, and the session continued without it.
            handler.turns = recorded.output["turns"]
            return ChatReply(
                query, failure("execution_halted", recorded.output["message"]), from_record=True
            )
        outcome = await self._attempt(queries.answer(query))
        if recorded is None:
            if isinstance(outcome, TaskResult):
                message = ""
            else:
                message = outcome.message
            ended = {"status": outcome.status.value, "message": message, "turns": handler.turns}
            await _record(steps, path, name="answer", output=ended)
        return ChatReply(query, outcome, from_record=recorded is not None)

    async def _attempt(self, answer: Coroutine[Any, Any, Outcome]) -> Outcome:
        answering = self._answering = asyncio.ensure_future(answer)
        try:
            return await answering
        except asyncio.CancelledError:
            session = asyncio.current_task()
            if session is not None and session.cancelling():  # not only the answer
                raise
            return failure("execution_halted", "the answer was cancelled")
        except RecordError:
            raise
        except Exception as error:
            return to_task_error(error)
        finally:
            self._answering = None


def run_of(chat: Chat, services: Services, profile: str | None = None) -> Run:
    """The session as a run with this profile, also one below another task."""
    task = _TASK
    if profile is not None:
        task = replace(_TASK, handler=HandlerSpec(ref=profile))
    # Run is not public, Chat is.
    body = partial(chat._run, task)  # pyright: ignore[reportPrivateUsage]
    return Run(services, CHAT, inputs={}, body=body)


@dataclass(slots=True)
class _Queries:
    """State that the queries of a session share. `sources` are the context items that were already
    sent.
    """

    run: Run
    handler: Handler
    bound: BoundTask
    count: int = 0
    sources: set[str] = field(default_factory=set[str])

    async def answer(self, query: str) -> Outcome:
        """The answer within the limits of the profile, with the context from memory that was not
        sent yet.
        """
        config = self.bound.config
        budget = Budget(
            f"query {self.count}",
            max_turns=config.max_turns,
            max_cost_usd=config.max_cost_usd,
            timeout_s=config.timeout_s,
            parent=self.bound.budget,
        )
        path = f"query[{self.count}]"
        context = await assemble(
            self.run,
            self.bound.task,
            policy=_POLICY,
            inherited=(),
            description=query,
            scope=self.bound.scope,
            path=path,
            config=config,
            authority=self.bound.frame.domain.authority,
        )
        items = [item for item in context.items if item.source not in self.sources]
        self.sources.update(item.source for item in items)
        if items:
            query = f"{format_items(items)}\n\n{query}"
        messages = [Message("user", query)]
        if self.count == 1 and config.system:
            messages.insert(0, Message("system", config.system))
        try:
            with budget.deadline():
                answer = await self.handler.say(messages, budget)
        except TimeoutError:
            return failure(
                "execution_timeout", f"there was no answer within {config.timeout_s:g} s"
            )
        notes: dict[str, Any] = {
            "warnings": [*context.warnings, *answer.warnings],
            "context": [item.source for item in items],
        }
        reasoning, content = split_thinking(answer.content)
        if reasoning:
            notes["reasoning"] = reasoning
        return TaskResult(
            Status.COMPLETE, content, parsed_content=None, notes=notes, usage=answer.usage
        )


async def _record(steps: StepLog, path: str, name: str, output: Any) -> None:
    number = await steps.begin(path, "context", name, None, "")
    await steps.succeed(number, output, 0.0)


async def _tell(task_id: int, step: Step) -> Unfinished:
    # A user is present to decide what to do about what the model does not know.
    return "tell"
