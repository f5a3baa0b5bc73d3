"""The operator atomic: one Handler, its conversation, and the reading of its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from logging import WARNING
from operator import attrgetter
from typing import Any, cast

from evaluator.errors import Diagnostic, RecordError, TemplateError
from evaluator.errors.messages import log
from evaluator.errors.results import Outcome, Status, TaskError, TaskResult
from evaluator.handler.conversation import SessionLog, SessionPlan, plan_session
from evaluator.handler.model_choice import ModelChoice
from evaluator.handler.session import Handler, HandlerAnswer
from evaluator.handler.tool_runner import Tools
from evaluator.interpreter.binding import BoundTask, PreparedTask
from evaluator.interpreter.frame import Run, join, value_of
from evaluator.interpreter.notes import read_notes, summary_of
from evaluator.interpreter.offered_functions import OfferedFunctions, offered_functions
from evaluator.interpreter.operators.outcomes import failed, read_output
from evaluator.interpreter.prompt import (
    PreparedPrompt,
    asks_for_notes,
    build_messages,
    hints_for,
    later_messages,
    prepare_prompt,
)
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import as_text, render
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import dataclass
from evaluator.library.structure import host_in, model_with_host
from evaluator.models.backend import Hints, Message, ModelRequest, ModelResponse
from evaluator.models.logprobs import to_rows
from evaluator.models.structured import native_schema
from evaluator.nodes import Atomic, Text, Turn
from evaluator.output import split_thinking
from evaluator.output.schema import schema_problem
from evaluator.record.entries import Note
from evaluator.record.steps import StepEnd, StepStart
from evaluator.tools import ToolContext, ToolRegistry

_source_of = attrgetter("source")
# Reading a member of an enumeration runs Python code before 3.12.
_COMPLETE = Status.COMPLETE


@dataclass(slots=True, eq=False)
class _PreparedAtomic:
    """What is the same for every row of an atomic task. `named` is the model that the template
    names, unless it depends on a variable. `plans` are those of sessions without tools, by the id
    of the model's choice.
    """

    prompt: PreparedPrompt
    hints: Hints
    schema: Mapping[str, Any] | None
    named: str | None
    is_named_by_variable: bool
    plans: dict[int, SessionPlan]


def _prepared_atomic(prepared: PreparedTask, task: Atomic) -> _PreparedAtomic:
    """Raises: TemplateError, for an unusable schema or model, before a call would cost money."""
    if task.output is not None and task.output.schema is not None:
        problem = schema_problem(task.output.schema)
        if problem is not None:
            raise TemplateError(
                [Diagnostic("error", "bad-schema", message=problem, span=task.output.span)]
            )
    model = task.model
    is_named_by_variable = model is not None and has_markup(model.value)
    named = None
    if model is not None and not is_named_by_variable:
        named = _checked_model(model, model.value)
    schema = None
    if prepared.profile.native_output:
        schema = native_schema(task.output)
    return _PreparedAtomic(
        prepare_prompt(task, prepared.profile.system),
        hints=hints_for(task),
        schema=schema,
        named=named,
        is_named_by_variable=is_named_by_variable,
        plans={},
    )


async def run_atomic(run: Run, task: Atomic, bound: BoundTask) -> Outcome:
    config = bound.config
    prepared = bound.prepared
    atomic: _PreparedAtomic | None = prepared.operator
    if atomic is None:
        atomic = prepared.operator = _prepared_atomic(prepared, task)
    prompt = atomic.prompt
    messages = await build_messages(run, task, prompt, bound=bound)
    later: tuple[Message | Turn, ...] = ()
    if prompt.later:
        later = await later_messages(run, prompt, bound=bound)
    named = atomic.named
    if atomic.is_named_by_variable and task.model is not None:
        named = _checked_model(task.model, await render(task.model, bound.scope))
    choice = await choose(run, named, bound=bound, role=task.model_role)
    _note_choice(run, task, choice, bound=bound)
    functions = None
    tools = None
    if task.tools_from is not None:
        functions = offered_functions(task.tools_from, bound.scope)
        plan = plan_session(config, choice, functions.specs, atomic.schema)
    elif config.tools or task.tools:
        from evaluator.interpreter.toolset import tools_for

        tools = await tools_for(run, task, bound=bound, provider=choice.endpoint)
        specs = ()
        if tools is not None:
            specs = tools.specs()
        plan = plan_session(config, choice, specs, atomic.schema)
    else:
        plan = atomic.plans.get(id(choice))
        if plan is None or plan.config is not config:
            plan = atomic.plans[id(choice)] = plan_session(config, choice, (), atomic.schema)
    about = atomic.hints
    hints = Hints(
        about.task,
        about.examples,
        bound.values,
        about.output_type,
        about.schema,
        target=run.options.target,
    )
    _note_model(run, task, choice, bound=bound)
    handler = open_handler(run, bound, plan, tools=tools, hints=hints)
    warnings: dict[str, None] = {}
    try:
        if later:
            talk = _Talk(run, handler, prompt=prompt, bound=bound, warnings=warnings)
            outcome = await talk.converse(messages, later)
        else:
            outcome = await handler.run(messages)
    finally:
        warnings.update(dict.fromkeys(handler.warnings))
        bound.warnings.extend(warnings)
        for warning in warnings:
            log("models", WARNING, run.services.redactor, "%s: %s", task.name or "task", warning)
        if handler.has_answer:
            bound.budget.add_model(choice.label)
        if tools is not None:
            await tools.aclose()
    if isinstance(outcome, TaskError):
        return outcome
    return _read_answer(run, task, prompt=prompt, bound=bound, answer=outcome, functions=functions)


def _note_choice(run: Run, task: Atomic, choice: ModelChoice, bound: BoundTask) -> None:
    """Records what the task sees and the model that it asks."""
    frame = bound.frame
    run.steps.add_note(
        _resolution(
            join(frame.path, "resolve"),
            task.name or "task",
            inputs=tuple(bound.values),
            context=tuple(map(_source_of, bound.context.items)),
            chosen=(choice.label, choice.why, bound.config.name),
        )
    )
    run.event(frame.path, task.name or "task")
    if run.steps.earlier is not None:
        run.steps.earlier.progress.context_warnings += bound.context.warnings


def _note_model(run: Run, task: Atomic, choice: ModelChoice, bound: BoundTask) -> None:
    """Notes the model of the task, and warns where it simulates or where its role has no model."""
    bound.more["model"] = choice.label
    if choice.is_stand_in:
        bound.warnings.append(f"the answer is simulated: {choice.why}")
    role = task.model_role
    if role is None or task.model is not None or role in run.unmapped:
        return
    if role not in (run.options.model_roles or {}) and role not in bound.config.roles:
        run.unmapped.add(role)
        bound.warnings.append(f"role {role!r} is not mapped: {choice.label} answers")


def open_handler(
    run: Run,
    bound: BoundTask,
    plan: SessionPlan,
    tools: ToolRegistry | None,
    hints: Hints = Hints(),  # noqa: B008
) -> Handler:
    """The Handler of a task, which runs the `tools` of the plan; without them it only offers
    those.
    """
    services = run.services
    options = run.options
    path = bound.frame.path
    runs = None
    if tools is not None:
        context = ToolContext(
            services.files,
            services.asker,
            step_path=path,
            remaining_s=0.0,
            script_memory_bytes=bound.config.script_memory_bytes,
            sandbox=bound.config.sandbox,
        )
        runs = Tools(tools, context)
    log = SessionLog(run.steps, path, services.tracer, options.on_text, options.on_message)
    return Handler(plan, log, bound.budget, hints=hints, epoch=options.epoch, tools=runs)


def _read_answer(
    run: Run,
    task: Atomic,
    prompt: PreparedPrompt,
    bound: BoundTask,
    answer: HandlerAnswer,
    functions: OfferedFunctions | None,
) -> Outcome:
    """The outcome of a task whose conversation ended with `answer`, with its notes."""
    notes = bound.notes()
    content = answer.content
    reasoning = answer.reasoning
    if prompt.is_plain_text:
        thought, content = split_thinking(content)
        if thought:
            if reasoning:
                reasoning = f"{reasoning}\n\n{thought}"
            else:
                reasoning = thought
    if reasoning:
        notes["reasoning"] = reasoning
    if answer.logprobs:
        notes["logprobs"] = to_rows(answer.logprobs)
    model_notes = read_notes(content, asked=asks_for_notes(prompt, bound))
    content = model_notes.content
    notes["summary"] = model_notes.summary or summary_of(content)
    if model_notes.data_usage is not None:
        notes["data_usage"] = model_notes.data_usage
    if answer.finish_reason in ("content_filter", "refusal"):
        if answer.finish_reason == "content_filter":
            what = "was stopped by a content filter"
        else:
            what = "is a refusal"
        return TaskError(
            "TASK_FAILURE",
            f"the model's answer {what}",
            reason="provider_failure",
            location=task.span,
            content=answer.content,
            notes=notes,
            usage=answer.usage,
        )
    if answer.finish_reason == "unknown":
        notes["warnings"].append(
            "the provider gave no known reason for ending: the answer may be incomplete"
        )
    if functions is not None:
        calls = functions.calls(answer.tool_calls)
        if calls or not content.strip():
            content = json.dumps(calls, ensure_ascii=False)
        return TaskResult(_COMPLETE, content, parsed_content=calls, notes=notes, usage=answer.usage)
    if not content.strip():
        return TaskError(
            "INVALID_OUTPUT",
            "the model returned nothing",
            reason="output_format_failure",
            location=task.span,
            content=answer.content,
            notes=notes,
            usage=answer.usage,
            retryable=True,
        )
    result = TaskResult(_COMPLETE, content, None, notes, answer.usage)
    return read_output(run, result, declared=task.output, path=bound.frame.path)


class _Talk:
    """The conversation of a task with several turns, which adds the warnings of its answers to
    `warnings`.
    """

    def __init__(
        self,
        run: Run,
        handler: Handler,
        prompt: PreparedPrompt,
        bound: BoundTask,
        warnings: dict[str, None],
    ) -> None:
        self._warnings = warnings
        self._run = run
        self._handler = handler
        self._is_plain_text = prompt.is_plain_text
        self._bound = bound
        self._turns: list[dict[str, str]] = []
        # Whether the conversation may go on.
        self._is_open = True

    async def converse(
        self, messages: tuple[Message, ...], later: tuple[Message | Turn, ...]
    ) -> HandlerAnswer | TaskError:
        """The last answer, after all messages or the first that is not answered; the error of a
        task that plays the user. `turns` of the notes has the conversation so far.
        """
        self._bound.more["turns"] = self._turns
        try:
            answer = await self._ask(messages)
            for at, turn in enumerate(later, 2):
                if isinstance(turn, Message):
                    if self._is_open:
                        answer = await self._ask((turn,))
                    continue
                most: int = resolve_setting(turn, "most", scope=self._bound.scope)
                for number in range(1, most + 1):
                    played = None
                    if self._is_open:
                        played = await self._played(turn, f"turns[{at}][{number}]")
                    if isinstance(played, TaskError):
                        what = f"turn {at}, which plays the user,"
                        return failed(played, self._bound, what=what)
                    if played is None:
                        break
                    answer = await self._ask((Message("user", played),))
            return answer
        finally:
            self._handler.close()

    async def _ask(self, messages: tuple[Message, ...]) -> HandlerAnswer:
        self._turns.append({"role": "user", "content": messages[-1].content})
        answer = await self._handler.say(messages)
        text = answer.content
        if self._is_plain_text:
            text = split_thinking(text)[1]
        self._turns.append({"role": "assistant", "content": text})
        self._warnings.update(dict.fromkeys(self._handler.warnings))
        is_answered = answer.finish_reason not in ("content_filter", "refusal")
        self._is_open = bool(text.strip()) and is_answered
        return answer

    async def _played(self, turn: Turn, segment: str) -> str | TaskError | None:
        """The message that the task of a turn writes: its text, or the field `message` of an
        object; None: it ends.
        """
        if turn.node is None:
            return None
        bound = self._bound
        scope = bound.scope.child({"turns": [dict(turn_so_far) for turn_so_far in self._turns]})
        outcome = await self._run.services.evaluate(
            self._run, turn.node, bound.inside(segment, scope, wants_notes=False)
        )
        if isinstance(outcome, TaskError):
            return outcome
        value = value_of(outcome)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get("message")
        text = ""
        if value is not None:
            text = as_text(value)
        if text.strip():
            return text
        return None


def _checked_model(model: Text, resolved: str) -> str:
    """The model that a template names. Raises: TemplateError, if the resolved id names a host."""
    named = resolved.strip()
    reason = host_in(named)
    if reason is not None:
        raise TemplateError([model_with_host(model, reason)])
    return named


@lru_cache(maxsize=256)
def _resolution(
    path: str,
    name: str,
    inputs: tuple[str, ...],
    context: tuple[str, ...],
    chosen: tuple[str, str, str],
) -> Note:
    """The record of what a task sees, the names of its inputs and context items, and of its model,
    why it was chosen, and the profile.
    """
    seen: dict[str, list[str]] = {}
    if inputs:
        seen["inputs"] = sorted(inputs)
    if context:
        seen["context"] = list(context)
    output = dict(zip(("model", "why", "profile"), chosen, strict=True))
    return Note(StepStart(path, "resolve", name, seen or None), StepEnd("success", output, 0.0))


async def choose(
    run: Run, named: str | None, bound: BoundTask, role: str | None = None
) -> ModelChoice:
    """The model for this task. A replay takes the model from the record if nothing names one.

    Looking for a local server blocks, so the first choice runs in a thread.

    Raises: NotAllowed, for a provider that the task may not call.
    """
    chooser = run.services.chooser
    config = bound.config
    explicit = run.options.model
    if role:
        # A role is more specific than a model for the whole run.
        of_role = (run.options.model_roles or {}).get(role) or config.roles.get(role)
        explicit = of_role or explicit
    earlier = run.steps.earlier
    if earlier is not None and not earlier.may_run():
        label = explicit or named or config.model or earlier.model_at(bound.frame.path) or "none"
        return ModelChoice(_NoModel(), label, label=label, why="replayed")
    choice = chooser.chosen(explicit, named, config)
    if choice is None:
        choice = await asyncio.to_thread(chooser.choose, explicit, named, config)
    authority = bound.prepared.domain.authority
    is_named_by_user = run.options.model is not None or role in (run.options.model_roles or {})
    if authority.providers is not None and not is_named_by_user:
        authority.check_provider(bound.task, choice.endpoint, config.name)
    return choice


class _NoModel:
    """A Backend that refuses every request, because a replay never needs one."""

    name = "replay"

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        raise RecordError("a replay makes no call")

    async def aclose(self) -> None:
        """Nothing is open."""
