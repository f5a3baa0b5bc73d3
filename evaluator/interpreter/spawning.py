"""Starts runs that a model asks for with a tool call: subtasks, requested evaluations, sessions,
interrupted runs.

What all of them have in common is here: the levels of subtasks, the authority and the limits of
the task whose model asks, the record, and the answer of the tool. What is started is decided by
`subtasks`, `evaluation`, `run_access` and the background tools.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

from evaluator.errors import ToolError
from evaluator.errors.results import ErrorType, Outcome, Resource, TaskError
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.authority import Authority
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Domain, Frame, OnBegin, Run
from evaluator.interpreter.runs import record_run
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.tools import Tool, ToolContext, ToolOutcome
from evaluator.tools.registry import ask_consent


@frozen
class Start:
    """A run that a model starts, and what it may cause."""

    run: Run
    authority: Authority


@dataclass(slots=True)
class Spawner:
    """Starts the runs that the model of one task asks for. The task calls `provider`; `offered` are
    the tools that it offers, `templates` the names of those that are templates.
    """

    run: Run
    bound: BoundTask
    provider: str
    offered: dict[str, Tool] = field(default_factory=dict[str, Tool])
    templates: set[str] = field(default_factory=set[str])

    @property
    def session(self) -> str:
        """Identifies the session of the task, see `Run.session`."""
        return self.run.session(self.bound.frame.path)

    @property
    def depth(self) -> int:
        """The level of what is started."""
        return self.run.depth + 1

    def authority(self) -> Authority:
        """The authority of what the model chooses."""
        bound = self.bound
        return bound.frame.domain.authority.chosen_by_model(
            bound.config, self.offered.values(), self.provider
        )

    async def start(
        self,
        choose: Callable[[], Awaitable[Start]],
        context: ToolContext,
        on_message: OnMessage | None = None,
        on_begin: OnBegin | None = None,
    ) -> Outcome:
        """Starts what `choose` returns, for the tool call of `context`. `on_message` gets the
        messages of its conversation, and `on_begin` the id of its task file.

        Raises: ToolError, if `choose` refuses, with the reason for the model; as
        `check_not_refused`.
        """
        if self.depth > self.run.max_depth:
            limit = self.run.max_depth
            return TaskError(
                "RESOURCE_EXHAUSTION",
                f"subtasks are {limit} levels deep, which is the limit; do this part of the work "
                "yourself",
                resource=Resource("depth", self.depth, limit=limit),
            )
        start = await choose()
        bound = self.bound
        domain = bound.frame.domain
        started = start.run
        started.parent = self.run
        started.caller = Frame(
            started.scope,
            # Its own: the task is often made for this call, and must not be kept for later ones.
            Domain(
                domain.services,
                domain.handler,
                start.authority,
                sandbox=domain.sandbox,
                is_reparsed=domain.is_reparsed,
            ),
            path=context.step_path,
            context=bound.context.items,
            arguments=started.arguments,
            is_subtask=True,
            budget=bound.budget,
        )
        started.options = replace(
            self.run.options.inner(), on_message=on_message, on_begin=on_begin
        )
        outcome = await record_run(started)
        self.check_not_refused()
        return outcome

    async def resume(self, task_id: int) -> Outcome:
        """Continues an interrupted run with at most what the task may do itself.

        Raises: ToolError, where no run can be resumed; RecordError, as `recovery.resume`.
        """
        services = self.run.services
        if services.resume is None:
            raise ToolError("runs cannot be resumed here")
        domain = self.bound.frame.domain
        limited = replace(
            services,
            least_sandbox=domain.sandbox,
            authority=self.authority(),
            max_depth=max(0, self.run.max_depth - self.run.depth),
            reparse=services.reparse and not domain.is_reparsed,
        )
        outcome = await services.resume(limited, task_id, self.bound.budget)
        self.check_not_refused()
        return outcome

    def check_not_refused(self) -> None:
        """Raises: CallRejected or MachineError, if a call of a started run was rejected: its
        outcome is not an answer, and nothing may continue from it.
        """
        if self.run.budget.refused is not None:
            raise self.run.budget.refused


def answer_to_model(
    outcome: Outcome,
    about: Mapping[str, Any],
    answer_of: Callable[[Outcome], str] = attrgetter("content"),
    accepted: Collection[ErrorType] = (),
) -> str:
    """The tool's answer that `answer_of` makes of the outcome of a run.

    Raises: ToolError, for an error of a type that is not `accepted`, with `about`, the error and
    the partial output as JSON for the model, which may continue without the run.
    """
    if not isinstance(outcome, TaskError) or outcome.type in accepted:
        return answer_of(outcome)
    error = {
        "type": outcome.type,
        "reason": outcome.reason,
        "message": outcome.message,
        "resource": None if outcome.resource is None else outcome.resource.name,
    }
    report = {**about, "error": error, "partial_output": outcome.content}
    raise ToolError(json.dumps(report, ensure_ascii=False))


async def check_allowed(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, what: str = ""
) -> None:
    """Checks that the model could call `tool` itself; a person is asked where its policy says so.

    Raises: ToolError, with `what` before the reason, if it could not.
    """
    consent = await ask_consent(tool, arguments, context=context)
    if isinstance(consent, ToolOutcome):
        raise ToolError(f"{what}{consent.error}")
