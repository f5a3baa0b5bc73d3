"""Makes a task ready to run, in two phases: `prepare` decides once what does not depend on the
values of its inputs, `bind` does the rest for each row.

Both serve every task, whatever starts it: a request, a row of a batch, a subtask, a call, an item
of an iteration. A domain keeps the tasks that are prepared in it, so that the inner task of a
reduction, or the template of a batch, is prepared once.

An input comes from the caller, a nested task, `from`, the enclosing scope, or its default. Nested
input tasks run first and in parallel. The task's texts are resolved in a scope with the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.results import Outcome, TaskError
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.calls import functions_in_text, usable_schema
from evaluator.interpreter.context import NOTHING, Assembled, ContextPolicy, assemble, policy_of
from evaluator.interpreter.frame import ContextItem, Domain, Frame, Run, value_of
from evaluator.interpreter.sandboxing import sandbox_of
from evaluator.language.inputs import bind_inputs, resolve_setting
from evaluator.language.sandbox import as_text, evaluate_expression, render, render_prompt
from evaluator.language.scopes import Scope, read_typed
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.limits.budget import Budget
from evaluator.nodes import HandlerSpec, Input, Node, Task, Text
from evaluator.nodes.declare import fields_with
from evaluator.processes.concurrency import run_together

_SETTINGS = tuple(field.name for field in fields_with(HandlerSpec, "setting"))
_LIMITS = ("max_turns", "max_cost_usd", "timeout_s")
_source_of: Callable[[ContextItem], str] = attrgetter("source")


# Data that a task hands to its parts.
_OF_THE_TASK = ("input:", "step:", "item:", "iteration:")


@dataclass(slots=True, eq=False)
class PreparedTask:
    """A task whose authority is checked, and whose profile, sandbox, schema, context policy and
    limits are known.

    `node` is the task as the template has it; `task` has the content of its schema file in place of
    the path. `domain` is that of the tasks inside. `config` is None where a setting of `profile`
    depends on a variable. `description` is None where the description holds one. `limits` are those
    of its budget; None where they depend on a variable. `binds_at_once`: no input is the result of
    a nested task or an expression. `reads_context`: it may see more than the items that it
    inherits. The operator keeps in `operator` what it prepares itself when the task first runs.
    """

    node: Task
    task: Task
    domain: Domain
    profile: HandlerConfig
    config: HandlerConfig | None
    policy: ContextPolicy
    description: str | None
    limits: Mapping[str, Any] | None
    binds_at_once: bool
    reads_context: bool
    operator: Any = None

    def config_in(self, scope: Scope) -> HandlerConfig:
        """The profile with the overrides of the template, placeholders resolved in `scope`.

        Raises: ExpressionError, if the value of a placeholder does not fit.
        """
        if self.config is not None:
            return self.config
        return _config_in(scope, self.task.handler, profile=self.profile, domain=self.domain)


def prepare(task: Task, frame: Frame) -> PreparedTask:
    """The task at `frame`, prepared; each task of a domain once.

    Raises: NotAllowed, if it needs more than its authority; ConfigurationError, for a profile or a
    sandbox that cannot be used; TemplateError, for a schema file that cannot be read.
    """
    is_root = not frame.path and not frame.is_subtask
    key = (id(task), is_root, frame.is_subtask)
    prepared = frame.domain.prepared.get(key)
    if prepared is None or not _is_current(prepared):
        prepared = _prepared(frame.domain, task, is_root=is_root, is_subtask=frame.is_subtask)
        frame.domain.prepared[key] = prepared
    return prepared


def _prepared(domain: Domain, node: Task, *, is_root: bool, is_subtask: bool) -> PreparedTask:
    # Every path that starts a task comes through here.
    services = domain.services
    domain.authority.check(node)
    spec = node.handler
    profile = domain.profile_of(node)
    inside = domain.inside(
        domain.authority.under(profile),
        sandbox_of(services, profile, task=node, above=domain.sandbox),
    )
    task = _with_schema(domain, node)
    policy = policy_of(task, is_subtask=is_subtask)
    if is_root:
        # Nothing is inherited here: the context was given with the request.
        policy = replace(policy, inherit_context="full")
    config = None
    if spec is None or not any(isinstance(getattr(spec, name), Text) for name in _SETTINGS):
        config = _config_in(Scope(), spec, profile=profile, domain=inside)
    description = None
    if not has_markup(task.description.value):
        description = task.description.value
    is_fresh = policy.fresh_context == "enabled" and services.memory is not None
    return PreparedTask(
        node,
        task,
        domain=inside,
        profile=profile,
        config=config,
        policy=policy,
        description=description,
        limits=None if config is None else _limits_of(task, config),
        binds_at_once=all(one.task is None and one.source is None for one in task.inputs),
        reads_context=is_fresh or task.file_paths is not None,
    )


def _limits_of(task: Task, config: HandlerConfig) -> dict[str, Any]:
    """The limits of a task's budget: all where it asks a model, else those that it declares."""
    spec = task.handler
    return {
        name: getattr(config, name)
        for name in _LIMITS
        if task.asks_model or (spec is not None and getattr(spec, name) is not None)
    }


def _is_current(prepared: PreparedTask) -> bool:
    """Whether the schema file of the task, if it has one, is as it was."""
    if prepared.task is prepared.node:
        return True
    return _with_schema(prepared.domain, prepared.node).output == prepared.task.output


def _with_schema(domain: Domain, task: Task) -> Task:
    """`task` with the content of its schema file in place of the path. Raises: TemplateError."""
    output = task.output
    if output is None or output.schema is None:
        return task
    schema = usable_schema(domain.services, output.schema, span=output.span)
    if schema is output.schema:
        return task
    return replace(task, output=replace(output, schema=schema))


def _config_in(
    scope: Scope, spec: HandlerSpec | None, profile: HandlerConfig, domain: Domain
) -> HandlerConfig:
    """`profile` with the overrides of `spec`, within the limits of the tasks above, in the sandbox
    of `domain`.
    """
    config = profile
    if spec is not None:
        extra = None
        if spec.extra_body is not None:
            extra = {**config.extra_body, **spec.extra_body}
        settings = {name: resolve_setting(spec, name, scope=scope) for name in _SETTINGS}
        config = config.override(**settings, stop=spec.stop, extra_body=extra)
    config = domain.authority.limited(config)
    if domain.sandbox != config.sandbox:
        config = replace(config, sandbox=domain.sandbox)
    return config


@dataclass(slots=True, eq=False)
class BoundTask:
    """A task that is ready to run. `frame` is that of the task, in the domain of the tasks inside.

    `warnings`, `more` (further notes) and `details` are filled while the task runs; an error has
    them too. `used` is the data that the parts of the task used, besides their inputs.
    """

    prepared: PreparedTask
    scope: Scope
    values: Mapping[str, Any]
    description: str
    context: Assembled
    config: HandlerConfig
    budget: Budget
    frame: Frame
    warnings: list[str] = field(default_factory=list[str])
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    used: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def task(self) -> Task:
        return self.prepared.task

    def use(self, outcome: Outcome) -> None:
        """Notes the data that a part of the task used, other than its inputs and earlier parts."""
        for source in outcome.notes.get("data_usage", ()):
            if not str(source).startswith(_OF_THE_TASK):
                self.used[str(source)] = None

    def inside(
        self,
        segment: str,
        scope: Scope | None = None,
        *,
        context: tuple[ContextItem, ...] | None = None,
        wants_notes: bool | None = None,
    ) -> Frame:
        """The frame of a node inside this task, one segment down, with this task's scope, context
        and budget.

        `wants_notes`: whether a later step sees only the notes of the node's result; None: as of
        this task's result.
        """
        if context is None:
            items = self.context.items
        else:
            items = context
        if wants_notes is None:
            wants_notes = self.frame.wants_notes
        return self.frame.at(
            segment,
            scope=scope or self.scope,
            context=items,
            budget=self.budget,
            wants_notes=wants_notes,
        )

    @property
    def carries_notes(self) -> bool:
        """Whether later parts of this task see the notes of earlier ones, and not their text."""
        policy = self.prepared.policy
        return policy.accumulate_data and policy.accumulation_format == "notes_only"

    def notes(self, **more: Any) -> dict[str, Any]:
        """The notes that every result has; `more` is the operator's own."""
        sources = list(map(_source_of, self.context.items))
        data_usage = [f"input:{name}" for name in self.values]
        if sources or self.used:
            data_usage += dict.fromkeys((*sources, *self.used))
        return {
            "template": self.prepared.task.name,
            "data_usage": data_usage,
            "context": sources,
            "models": list(self.budget.models),
            "warnings": [*self.context.warnings, *self.warnings],
            **self.more,
            **more,
        }


@frozen
class BoundInputs:
    """The values of a task's inputs, and the scope with them."""

    scope: Scope
    values: Mapping[str, Any]


async def bind(run: Run, prepared: PreparedTask, frame: Frame) -> BoundTask | TaskError:
    """The task at `frame` with its values, or the error of a nested input task that failed.

    Raises: as `bind_values`, and what resolving a text or assembling the context raises.
    """
    task = prepared.task
    if prepared.domain is not frame.domain:
        frame = replace(frame, domain=prepared.domain)
    inputs = await bind_values(run, prepared, frame)
    if isinstance(inputs, TaskError):
        return inputs
    scope = inputs.scope
    config = prepared.config or prepared.config_in(scope)
    description = prepared.description
    if description is None:
        functions = functions_in_text(run, frame, field="description")
        description = await render_prompt(task.description, scope, functions=functions)
    context = NOTHING
    policy = prepared.policy
    if prepared.reads_context or (frame.context and policy.inherit_context != "none"):
        context = await assemble(
            run,
            task,
            policy=policy,
            inherited=frame.context,
            description=description,
            scope=scope,
            path=frame.path,
            config=config,
            authority=prepared.domain.authority,
        )
    limits = prepared.limits
    if limits is None:
        limits = _limits_of(task, config)
    budget = Budget(
        task.name or frame.path or task.type, parent=frame.budget or run.budget, **limits
    )
    return BoundTask(
        prepared,
        scope,
        values=inputs.values,
        description=description,
        context=context,
        config=config,
        budget=budget,
        frame=frame,
    )


async def bind_values(run: Run, prepared: PreparedTask, frame: Frame) -> BoundInputs | TaskError:
    """The values of the task's inputs, or the error of a nested input task that failed.

    Raises: InputError, with one finding for each input that is missing, excess or of the wrong
    type.
    """
    task = prepared.task
    arguments: dict[str, Any] = dict(frame.arguments or {})
    if not task.inputs and not arguments:
        return BoundInputs(frame.scope, arguments)
    for declared in task.inputs:
        if declared.name not in arguments and declared.task is None and declared.source is None:
            await _from_scope(run, declared, arguments=arguments, frame=frame)
    if prepared.binds_at_once:
        values = bind_inputs(task.inputs, arguments, location=task.span)
        return BoundInputs(frame.scope.child(values), values)
    # Nested tasks and `from` see the task's plain inputs.
    frame = replace(frame, scope=frame.scope.child(dict(arguments)))
    nested = [(i, i.task) for i in task.inputs if i.task is not None and i.name not in arguments]
    for (declared, _), outcome in zip(
        nested, await _run_nested(run, nested, frame=frame), strict=True
    ):
        if isinstance(outcome, TaskError):
            details = {**outcome.details, "failed_input": declared.name}
            return replace(outcome, details=details, location=outcome.location or declared.span)
        arguments[declared.name] = _as_declared(value_of(outcome), declared)
    for declared in task.inputs:
        if declared.name not in arguments and declared.source is not None:
            functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.from")
            value = await evaluate_expression(declared.source, frame.scope, functions=functions)
            arguments[declared.name] = _as_declared(value, declared)
    values = bind_inputs(task.inputs, arguments, location=task.span)
    return BoundInputs(frame.scope.child(values), values)


async def _run_nested(run: Run, nested: list[tuple[Input, Node]], frame: Frame) -> list[Outcome]:
    """The outcomes of nested input tasks, which run in parallel."""
    return await run_together(
        *(
            run.services.evaluate(run, node, frame.at(f"inputs.{declared.name}"))
            for declared, node in nested
        )
    )


async def _from_scope(run: Run, declared: Input, arguments: dict[str, Any], frame: Frame) -> None:
    """Binds the variable of the same name in the enclosing scope, else the default."""
    scope = frame.scope
    if frame.arguments is None and declared.name in scope:
        arguments[declared.name] = scope.lookup(declared.name)
    elif declared.default is not None:
        functions = functions_in_text(run, frame, field=f"inputs.{declared.name}.default")
        text = await render(declared.default, scope.child(dict(arguments)), functions=functions)
        try:
            arguments[declared.name] = read_typed(text, declared.type)
        except UsageError as error:
            raise ExpressionError(
                f"the default of input {declared.name!r}: {error}",
                declared.default.span,
                code="wrong-type",
            ) from error


def _as_declared(value: Any, declared: Input) -> Any:
    """The value for an input; for type string, the text that `{{ … }}` would show."""
    if declared.type == "string" and not isinstance(value, str) and value is not None:
        return as_text(value)
    return value
