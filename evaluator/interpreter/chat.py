"""An interactive session: one Handler that stays, with its tools, memory for each query, and one task file.

What is said, and how each query ended, are steps of the record. So a session that was killed goes on from its
file: what was said is said again to the Handler, which takes the answers from the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.binding.scopes import Scope
from evaluator.errors import RecordError, UsageError
from evaluator.handler.backend import Message
from evaluator.handler.limits import Budget
from evaluator.handler.session import Handler
from evaluator.handler.tools import ToolContext
from evaluator.interpreter.context import DEFAULTS, NOTHING, assemble, format_items
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import Frame, Outcome, Run
from evaluator.interpreter.operators.atomic import choose
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.prompt import hints_for
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.interpreter.services import Services
from evaluator.interpreter.toolset import tools_for
from evaluator.nodes import Atomic, Span, Text
from evaluator.output import split_thinking
from evaluator.record.recovery import Resumed, Unfinished
from evaluator.record.steplog import StepLog
from evaluator.record.steps import Header, Step
from evaluator.results import Status, TaskResult

CHAT = "chat"
_TASK = Atomic(description=Text("An interactive session", Span()))
_POLICY = replace(DEFAULTS["atomic"], fresh_context="enabled")


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of one query. `from_record`: it was given before the session was resumed."""

    query: str
    outcome: Outcome
    from_record: bool = False


@dataclass(slots=True)
class Chat:
    """One session. `ask` gives the next query, None to end it; `show` gets each reply."""

    ask: Callable[[], Awaitable[str | None]]
    show: Callable[[Reply], None]
    _answering: asyncio.Task[Outcome] | None = None
    _sources: set[str] = field(default_factory=set[str])

    def break_off(self) -> bool:
        """Breaks the answer off that is being given; the session goes on. False, if there is none."""
        return self._answering is not None and self._answering.cancel()

    async def run(self, run: Run, frame: Frame) -> Outcome:
        """The session as the body of a run."""
        config = run.services.profile(run.profile)
        budget = Budget(CHAT, parent=run.budget)
        prepared = Prepared(_TASK, Scope(), _TASK.description.value, _POLICY, NOTHING, config, budget, frame, {})
        choice = await choose(run, None, prepared)
        run.steps.note("resolve", "resolve", CHAT, None, {"model": choice.label, "why": choice.why})
        tools = await tools_for(run, _TASK, prepared)
        services, memory = run.services, config.script_memory_bytes
        context = None if tools is None else ToolContext(services.files, services.asker, "", 0.0, memory)
        handler = Handler(
            config, choice, steps=run.steps, path="", budget=budget, tools=tools, tool_context=context,
            hints=hints_for(run, _TASK, {}), on_text=run.on_text, epoch=run.epoch, tracer=run.services.tracer,
        )  # fmt: skip
        number, last = 0, ""
        try:
            while (said := await self._next(run.steps, number + 1)) is not None:
                number += 1
                query, from_record = said
                outcome = await self._answer(run, handler, prepared, query, number)
                last = outcome.content or last
                self.show(Reply(query, outcome, from_record))
        finally:
            handler.close()
            if tools is not None:
                await tools.aclose()
        return TaskResult(Status.COMPLETE, last, None, prepared.notes(model=choice.label, queries=number), budget.usage)

    async def _next(self, steps: StepLog, number: int) -> tuple[str, bool] | None:
        """What was said before the session was resumed, else what is said now, on disk before it is answered."""
        path = f"query[{number}]"
        recorded = steps.recorded(path, "context", "", None)
        if recorded is not None:
            return str(recorded.output), steps.recorded(f"{path}/end", "context", "", None) is not None
        query = await self.ask()
        if query is not None:
            await _record(steps, path, "query", query)
        return None if query is None else (query, False)

    async def _answer(self, run: Run, handler: Handler, prepared: Prepared, query: str, number: int) -> Outcome:
        path = f"query[{number}]/end"
        ended = run.steps.recorded(path, "context", "", None)
        if ended is not None and ended.output["status"] != Status.COMPLETE.value:
            # It failed or was broken off, and the session went on without it.
            handler.turns = ended.output["turns"]
            return failure("execution_halted", ended.output["message"])
        outcome = await self._attempt(run, handler, prepared, query, number)
        if ended is None:
            message = "" if isinstance(outcome, TaskResult) else outcome.message
            said = {"status": outcome.status.value, "message": message, "turns": handler.turns}
            await _record(run.steps, path, "answer", said)
        return outcome

    async def _attempt(self, run: Run, handler: Handler, prepared: Prepared, query: str, number: int) -> Outcome:
        self._answering = asyncio.ensure_future(self._say(run, handler, prepared, query, number))
        try:
            return await self._answering
        except asyncio.CancelledError:
            if not self._answering.cancelled():
                self._answering.cancel()
                raise
            return failure("execution_halted", "the answer was broken off")
        except Exception as error:
            if isinstance(error, RecordError):
                raise
            return to_task_error(error)
        finally:
            self._answering = None

    async def _say(self, run: Run, handler: Handler, prepared: Prepared, query: str, number: int) -> Outcome:
        """One query within the limits of the profile, with what memory knows and was not said yet."""
        config = prepared.config
        budget = Budget(
            f"query {number}", max_turns=config.max_turns, max_cost_usd=config.max_cost_usd,
            timeout_s=config.timeout_s, parent=prepared.budget,
        )  # fmt: skip
        found = await assemble(
            _TASK, _POLICY, (), query, prepared.scope, run.services, run.steps, f"query[{number}]", config.mcp
        )  # fmt: skip
        items = [item for item in found.items if item.source not in self._sources]
        self._sources.update(item.source for item in items)
        messages = [Message("user", f"{format_items(items)}\n\n{query}" if items else query)]
        if number == 1 and config.system:
            messages.insert(0, Message("system", config.system))
        try:
            async with budget.deadline():
                answer = await handler.say(messages, budget)
        except TimeoutError:
            return failure("execution_timeout", f"there was no answer within {config.timeout_s:g} s")
        notes: dict[str, Any] = {
            "warnings": [*found.warnings, *answer.warnings], "context": [item.source for item in items],
        }  # fmt: skip
        thought, said = split_thinking(answer.content)
        if thought:
            notes["reasoning"] = thought
        return TaskResult(Status.COMPLETE, said, None, notes, answer.usage)


async def _record(steps: StepLog, path: str, name: str, output: Any) -> None:
    number = await steps.begin(path, "context", name, None, "")
    await steps.succeed(number, output, 0.0)


async def chat(services: Services, session: Chat, start: RunStart) -> Outcome:
    """Begins a session; `start` says profile, model and callbacks. The outcome of the whole, when it has ended."""
    origin = {**start.origin, "chat": True}
    return await record_run(services, replace(start, request=CHAT, origin=origin, body=session.run))


async def resume_chat(
    services: Services, session: Chat, task_id: int, finish: Callable[[RunStart, Header], RunStart]
) -> Outcome:
    """Goes on with a session from its task file.

    Raises: UsageError, if that is the file of something else; RecordError, as `TaskStore.reopen`.
    """
    store = services.store
    if store is None:
        raise UsageError("there is no folder of task files to resume from")
    journal, recording = await asyncio.to_thread(store.reopen, task_id)
    try:
        header = recording.header
        assert header is not None
        if not header.extra.get("chat"):
            raise UsageError(f"TASK-{task_id} is no interactive session; see: evaluator tasks resume {task_id}")
        earlier = Resumed(recording, _tell)
        earlier.progress.scrub = store.redactor
        start = finish(RunStart(None, CHAT, {}, body=session.run), header)
        return await record_run(services, replace(start, steps=StepLog(journal, earlier, store.redactor)))
    finally:
        journal.abandon()


async def _tell(task_id: int, step: Step) -> Unfinished:
    # Somebody sits there: the model says what it does not know, and the person decides.
    return "tell"
