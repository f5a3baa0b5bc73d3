"""Prepares tasks: what does not depend on the values of a task's inputs is decided once.

`prepare` serves every task, whatever starts it: a request, a row of a batch, a subtask, a call, an
item of an iteration. A domain keeps the tasks that are prepared in it, so that the inner task of a
reduction, or the template of a batch, is prepared once. `binding` does the rest for each row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.calls import usable_schema
from evaluator.interpreter.context import ContextPolicy, policy_of
from evaluator.interpreter.frame import Domain, Frame
from evaluator.interpreter.sandboxing import sandbox_of
from evaluator.language.inputs import resolve_setting
from evaluator.language.scopes import Scope
from evaluator.language.syntax import has_markup
from evaluator.lazy_dataclass import dataclass
from evaluator.nodes import HandlerSpec, Task, Text
from evaluator.nodes.declare import fields_with

_SETTINGS = tuple(field.name for field in fields_with(HandlerSpec, "setting"))
_LIMITS = ("max_turns", "max_cost_usd", "timeout_s")


@dataclass(slots=True, eq=False)
class PreparedTask:
    """A task whose authority is checked, and whose profile, sandbox, schema, context policy and
    limits are known.

    `node` is the task as the template has it; `task` has the content of its schema file in place of
    the path. `domain` is that of the tasks inside. `config` is None where a setting of `profile`
    depends on a variable. `description` is None where the description holds one. `limits` are the
    names of the limits that its budget has. `binds_at_once`: no input is the result of a nested
    task or an expression. `reads_context`: it may see more than the items that it inherits. The
    operator keeps in `operator` what it prepares itself when the task first runs.
    """

    node: Task
    task: Task
    domain: Domain
    profile: HandlerConfig
    config: HandlerConfig | None
    policy: ContextPolicy
    description: str | None
    limits: frozenset[str]
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
    named = None if spec is None else spec.ref
    profile = services.profile(domain.handler or named)
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
        limits=frozenset(
            name
            for name in _LIMITS
            if task.asks_model or (spec is not None and getattr(spec, name) is not None)
        ),
        binds_at_once=all(one.task is None and one.source is None for one in task.inputs),
        reads_context=is_fresh or task.file_paths is not None,
    )


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
