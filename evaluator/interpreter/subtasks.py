"""Subtasks: tasks that a model asks for with a tool call, which is answered in the same session.

The Evaluator validates the request, selects a template by matching, and runs it in its own Handler
with its own task file. Depth is bounded, a subtask equal to one of its ancestors is refused, and
its usage counts against the limits of the tasks above it. It has at most the authority of the task
whose model asked, see `authority`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.errors.messages import listed
from evaluator.errors.results import ErrorType, Outcome, Resource, TaskError
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.authority import READ_FILE, Authority, excess_of
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.context import task_list_at
from evaluator.interpreter.frame import Domain, Frame, OnBegin, Run, identity_of
from evaluator.interpreter.runs import record_run
from evaluator.language.scopes import Scope
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.library import Template, TemplateLibrary
from evaluator.models.backend import ToolSpec
from evaluator.nodes import (
    Atomic,
    ContextSettings,
    FilePaths,
    Input,
    OutputFormat,
    Span,
    Task,
    Text,
    TopLevel,
)
from evaluator.tools import Tool, ToolContext, ToolOutcome, ToolPreview
from evaluator.tools.registry import ask_consent
from evaluator.tools.tool import MANAGE_TASK, object_schema

SUBTASK = "subtask"
DESCRIPTION = "subtask_description"
"""The input that holds the description of a request."""

MAX_MATCHES = 5
_SPAN = Span("<subtask>", 1, column=1)

PARAMETERS = object_schema(
    {
        "type": {"type": "string", "enum": ["atomic"], "description": "The operator; atomic."},
        "description": {
            "type": "string",
            "minLength": 1,
            "description": "What the subtask is to do.",
        },
        "inputs": {"type": "object", "description": "Values by name that the subtask works on."},
        "hints": {
            **object_schema({"template": {"type": "string"}, "subtype": {"type": "string"}}),
            "description": "A template's name, or a subtype to look for.",
        },
        "context_management": object_schema(
            {
                "inherit_context": {"enum": ["full", "subset", "none"]},
                "fresh_context": {"enum": ["enabled", "disabled"]},
            }
        ),
        "max_depth": {
            "type": "integer",
            "minimum": 1,
            "description": "Levels of subtasks below this one.",
        },
        "file_paths": {"type": "array", "items": {"type": "string"}},
    },
    ["type", "description", "inputs"],
)


@frozen
class SubtaskRequest:
    """A validated request. `template` is the hint; `max_depth` counts levels below the subtask.

    `instructions` and `output` are for a subtask that no template fits; without them its
    description is its prompt.
    """

    description: str
    inputs: Mapping[str, Any]
    template: str | None = None
    subtype: str | None = None
    context: ContextSettings = ContextSettings()
    max_depth: int | None = None
    file_paths: tuple[str, ...] = ()
    instructions: Text | None = None
    output: OutputFormat | None = None


@dataclass(slots=True)
class Spawner:
    """Starts the subtasks of one task, which calls `provider`. `offered` are the tools that the
    task offers.
    """

    run: Run
    bound: BoundTask
    provider: str
    offered: dict[str, Tool] = field(default_factory=dict[str, Tool])

    @property
    def session(self) -> str:
        """Identifies the session of the task, see `Run.session`."""
        return self.run.session(self.bound.frame.path)

    async def spawn(
        self,
        request: SubtaskRequest,
        context: ToolContext,
        on_message: OnMessage | None = None,
        on_begin: OnBegin | None = None,
    ) -> Outcome:
        """Runs one subtask for the tool call of `context`. `on_message` gets the messages of its
        conversation, and `on_begin` the id of its task file.

        Raises: ToolError, for a request that is refused, with the reason for the model.
        """
        depth = self.run.depth + 1
        run = self.run
        if (refusal := self._depth_refusal()) is not None:
            return refusal
        chosen = self._choose(request, context)
        authority = await self._with_files(chosen.authority, request, context=context)
        identity = identity_of(chosen.template, request.description, inputs=request.inputs)
        if identity in run.identities():
            raise ToolError(
                "this subtask is equal to one that it would run inside of: it would never end"
            )
        node = chosen.node
        if chosen.template is not None:
            node = _with_request(node, request)
        max_depth = run.max_depth
        if request.max_depth is not None:
            max_depth = min(max_depth, depth + request.max_depth)
        declared = {i.name for i in node.inputs}
        subtask = Run(
            run.services,
            request.description,
            inputs=request.inputs,
            node=node,
            template=chosen.template,
            arguments={k: v for k, v in request.inputs.items() if k in declared},
            scope=Scope(dict(request.inputs)),
            match_score=chosen.score,
            depth_limit=max_depth,
        )
        return await self._start(subtask, authority, context, on_message, on_begin)

    async def converse(
        self, session: Run, context: ToolContext, on_message: OnMessage, on_begin: OnBegin
    ) -> Outcome:
        """Runs an interactive session (see `chat.run_of`) below this task, as `spawn` runs a
        subtask.
        """
        if (refusal := self._depth_refusal()) is not None:
            return refusal
        return await self._start(session, self.authority(), context, on_message, on_begin)

    def _depth_refusal(self) -> TaskError | None:
        depth = self.run.depth + 1
        limit = self.run.max_depth
        if depth <= limit:
            return None
        message = (
            f"subtasks are {limit} levels deep, which is the limit; do this part of the "
            "work yourself"
        )
        return TaskError(
            "RESOURCE_EXHAUSTION", message, resource=Resource("depth", depth, limit=limit)
        )

    async def _start(
        self,
        subtask: Run,
        authority: Authority,
        context: ToolContext,
        on_message: OnMessage | None,
        on_begin: OnBegin | None,
    ) -> Outcome:
        bound = self.bound
        domain = bound.frame.domain
        subtask.parent = self.run
        subtask.caller = Frame(
            subtask.scope,
            # Its own: the task is often made for this call, and must not be kept for later ones.
            Domain(domain.services, domain.handler, authority, sandbox=domain.sandbox),
            path=context.step_path,
            context=bound.context.items,
            arguments=subtask.arguments,
            is_subtask=True,
            budget=bound.budget,
        )
        subtask.options = replace(
            self.run.options.inner(), on_message=on_message, on_begin=on_begin
        )
        outcome = await record_run(subtask)
        self.check_not_refused()
        return outcome

    def check_not_refused(self) -> None:
        """Raises: CallRejected or MachineError, if a call of a started run was rejected: its
        outcome is not an answer, and nothing may continue from it.
        """
        if self.run.budget.refused is not None:
            raise self.run.budget.refused

    def refusals(self, template: str) -> list[str]:
        """Why the model may not choose `template`, each as the end of "it may not"; none if it
        may.
        """
        if self._is_granted(template):
            return []
        library = self.run.services.library
        known = library.get(template)
        found = excess_of(known.node, library, authority=self.authority())
        refusals = [excess.what for excess in found]
        if not isinstance(known.node, Atomic):
            refusals.insert(0, f"be a task of type {known.type}")
        return refusals

    def authority(self) -> Authority:
        """The authority of what the model chooses."""
        bound = self.bound
        return bound.frame.domain.authority.chosen_by_model(
            bound.config, self.offered.values(), self.provider
        )

    def _is_granted(self, template: str) -> bool:
        """Whether the task has the template itself as a tool."""
        tool = self.offered.get(template)
        return tool is not None and tool.kind == "subtask" and template in self.run.services.library

    def _choose(self, request: SubtaskRequest, context: ToolContext) -> _Chosen:
        """The task to run: the hinted template, else the best match, else the request itself as an
        atomic task.
        """
        from evaluator.library.matching import LOW_SCORE

        authority = self.authority()
        if request.template is not None:
            return self._hinted(request, request.template, authority=authority, context=context)
        bare = _bare_task(request)
        library = self.run.services.library
        asked = replace(
            bare,
            description=Text(request.description, _SPAN),
            inputs=tuple(declared for declared in bare.inputs if declared.name in request.inputs),
        )
        for match in library.match(asked, limit=MAX_MATCHES):
            if match.score < LOW_SCORE:
                break
            node = match.template.node
            if (
                isinstance(node, Task)
                and _fits(node, request)
                and not self.refusals(match.template.name)
            ):
                return _Chosen(node, match.template.name, score=match.score, authority=authority)
        return _Chosen(bare, None, score=None, authority=authority)

    def _hinted(
        self, request: SubtaskRequest, template: str, authority: Authority, context: ToolContext
    ) -> _Chosen:
        library = self.run.services.library
        task_authority = self.bound.frame.domain.authority
        node = _hinted_task(library, template)
        _check_inputs(node, template, request=request)
        if self._is_granted(template):
            return _Chosen(node, template, score=None, authority=task_authority.of_template_tools())
        refusals = self.refusals(template)
        if not refusals:
            return _Chosen(node, template, score=None, authority=authority)
        if context.has_consent:
            return _Chosen(node, template, score=None, authority=task_authority.approved())
        raise ToolError(
            f"the template {template!r} cannot be chosen here: a subtask of this task may not "
            f"{' or '.join(refusals)}. "
            "Choose another template, or do this part of the work yourself"
        )

    async def _with_files(
        self, authority: Authority, request: SubtaskRequest, context: ToolContext
    ) -> Authority:
        """`authority`, with the files of the request, which this task must be allowed to read
        itself; a task list is read with `manage_task` too.

        Raises: ToolError, for a path that it may not read.
        """
        task_authority = self.authority()
        for path in request.file_paths:
            if MANAGE_TASK in self.offered and task_list_at(self.run.services, path) is not None:
                continue
            policy = task_authority.reading(path, context.roots)
            if policy == "ask" and task_authority.reader is not None:
                consent = await ask_consent(task_authority.reader, {"path": path}, context=context)
                if isinstance(consent, ToolOutcome):
                    raise ToolError(f"file_paths: {consent.error}")
            elif policy != "allow":
                raise ToolError(
                    f"file_paths: this task may not read {path[:200]!r} itself ({READ_FILE})"
                )
        return authority.with_files(request.file_paths)


@frozen
class _Chosen:
    """The task that serves a request, its template if it has one, and what it may do."""

    node: Task
    template: str | None
    score: float | None
    authority: Authority


def spawning_tool(
    spawner: Spawner,
    spec: ToolSpec,
    request_in: Callable[[dict[str, Any]], SubtaskRequest],
    *,
    answer_of: Callable[[Outcome], str] = attrgetter("content"),
    accepted: Collection[ErrorType] = (),
    preview: ToolPreview | None = None,
) -> Tool:
    """A tool whose call runs a subtask: `request_in` reads the arguments of the call, and
    `answer_of` makes the tool's response of the outcome.

    An error of a type that is not `accepted` is a ToolError with the whole failure as JSON for the
    model, which may continue without the subtask.
    """

    async def spawn(arguments: dict[str, Any], context: ToolContext) -> str:
        request = request_in(arguments)
        outcome = await spawner.spawn(request, context)
        if isinstance(outcome, TaskError) and outcome.type not in accepted:
            failure = _failure(outcome, request, depth=spawner.run.depth + 1)
            raise ToolError(json.dumps(failure, ensure_ascii=False))
        return answer_of(outcome)

    return Tool(spec, spawn, kind="subtask", preview=preview)


def subtask_tool(spawner: Spawner) -> Tool:
    """The general subtask tool of one task."""

    async def preview(arguments: dict[str, Any], context: ToolContext) -> str:
        template = read_request(arguments).template
        shown = f"{SUBTASK} with {json.dumps(arguments, ensure_ascii=False)}"
        if template is None:
            return shown
        _hinted_task(spawner.run.services.library, template)
        needs = [
            f"\nThe template {template!r} would {what}." for what in spawner.refusals(template)
        ]
        return shown + "".join(needs)

    text = "Hands a part of the work to a fresh session of its own and returns its result."
    spec = ToolSpec(SUBTASK, text, parameters=PARAMETERS)
    return spawning_tool(spawner, spec, read_request, preview=preview)


def template_tool(spawner: Spawner, template: Template) -> Tool:
    """A tool that runs just `template`; its parameters are the template's inputs."""
    node = template.node
    if not isinstance(node, Task):
        raise ToolError(f"{template.name!r} is a function; only tasks can be tools")

    def request_in(arguments: dict[str, Any]) -> SubtaskRequest:
        return SubtaskRequest(node.description.value, arguments, template=template.name)

    spec = ToolSpec(template.name, node.description.value, parameters=inputs_schema(node))
    return spawning_tool(spawner, spec, request_in)


def inputs_schema(task: Task) -> dict[str, Any]:
    """The declared inputs of `task` as a JSON Schema of type object."""
    properties: dict[str, Any] = {}
    for declared in task.inputs:
        schema = _type_schema(declared.type)
        if declared.description:
            schema["description"] = declared.description
        properties[declared.name] = schema
    required = [i.name for i in task.inputs if i.required and i.default is None and i.task is None]
    return object_schema(properties, required)


def _type_schema(name: str) -> dict[str, Any]:
    if name == "any":
        return {}
    if not name.endswith("[]"):
        return {"type": name}
    schema: dict[str, Any] = {"type": "array"}
    if name != "[]":
        schema["items"] = _type_schema(name.removesuffix("[]"))
    return schema


def read_request(arguments: Mapping[str, Any]) -> SubtaskRequest:
    """The request in the arguments of a call, which fit PARAMETERS."""
    hints = cast("Mapping[str, Any]", arguments.get("hints", {}))
    settings = cast("Mapping[str, Any]", arguments.get("context_management", {}))
    return SubtaskRequest(
        arguments["description"],
        arguments["inputs"],
        template=hints.get("template"),
        subtype=hints.get("subtype"),
        context=ContextSettings(
            settings.get("inherit_context"), None, None, settings.get("fresh_context")
        ),
        max_depth=arguments.get("max_depth"),
        file_paths=tuple(arguments.get("file_paths", ())),
    )


def _failure(error: TaskError, request: SubtaskRequest, depth: int) -> dict[str, Any]:
    """The report of a failed subtask to its parent: the request, the depth, the error, any partial
    output.
    """
    return {
        "reason": "subtask_failure",
        "request": {
            "description": request.description,
            "inputs": dict(request.inputs),
            "template": request.template,
        },
        "depth": depth,
        "error": {
            "type": error.type,
            "reason": error.reason,
            "message": error.message,
            "resource": None if error.resource is None else error.resource.name,
        },
        "partial_output": error.content,
    }


def _hinted_task(library: TemplateLibrary, name: str) -> Task:
    """The template of that name. Raises: ToolError, if there is none, it is broken, or it is a
    function.
    """
    if name not in library:
        raise ToolError(f"no template is called {name!r}")
    node = library.get(name).node
    if not isinstance(node, Task):
        raise ToolError("a function cannot be a subtask; only tasks can")
    return node


def _check_inputs(node: Task, template: str, request: SubtaskRequest) -> None:
    """Raises: ToolError, for inputs that the hinted template does not declare."""
    declared = [i.name for i in node.inputs]
    unknown = sorted(set(request.inputs) - set(declared))
    if unknown:
        raise ToolError(
            f"the template {template!r} has no input {listed(unknown)}; its inputs are "
            f"{listed(declared)}. "
            "Put what else matters into the description"
        )


def _fits(node: TopLevel, request: SubtaskRequest) -> bool:
    """Whether a matched template can serve the request. Instructions require a template of the same
    subtype.
    """
    if not isinstance(node, Task) or (
        request.instructions is not None and node.subtype != request.subtype
    ):
        return False
    needed = {i.name for i in node.inputs if i.required and i.default is None}
    return needed <= set(request.inputs) <= {i.name for i in node.inputs}


def _with_request(node: Task, request: SubtaskRequest) -> Task:
    asked = request.context
    settings = node.context
    context = replace(
        settings,
        inherit_context=asked.inherit_context or settings.inherit_context,
        fresh_context=asked.fresh_context or settings.fresh_context,
    )
    inputs = node.inputs
    if isinstance(node, Atomic) and _says_more(request, node):
        # No text names this input, so it is appended to the prompt.
        said = Text(_literal(request.description), _SPAN)
        inputs += (Input(DESCRIPTION, "string", False, said, None, None, "", _SPAN),)
    return replace(
        node, context=context, file_paths=_files(request) or node.file_paths, inputs=inputs
    )


def _says_more(request: SubtaskRequest, node: Task) -> bool:
    """Whether the description of the request differs from that of the template, and can be an input
    of it.
    """
    is_known = any(declared.name == DESCRIPTION for declared in node.inputs)
    return not is_known and request.description.split() != node.description.value.split()


def _bare_task(request: SubtaskRequest) -> Atomic:
    # The description is data from a model: it is bound as a value, so that braces in it are not
    # variables.
    description = Text(_literal(request.description), _SPAN)
    inputs = tuple(
        Input(name, "any", False, None, None, None, "", _SPAN) for name in request.inputs
    )
    values = "".join(
        f"\n\n{name}:\n{{{{ {name} }}}}" for name in request.inputs if name.isidentifier()
    )
    if request.instructions is None:
        inputs += (Input(DESCRIPTION, "string", False, description, None, None, "", _SPAN),)
    return Atomic(
        description=description,
        subtype=request.subtype,
        output=request.output,
        instructions=request.instructions or Text("{{ subtask_description }}" + values, _SPAN),
        inputs=inputs,
        context=request.context,
        file_paths=_files(request),
        span=_SPAN,
    )


def _literal(text: str) -> str:
    """Template text that renders to exactly `text`, whatever it contains."""
    if "{" in text:
        return "{{ " + json.dumps(text, ensure_ascii=False) + " }}"
    return text


def _files(request: SubtaskRequest) -> FilePaths | None:
    if not request.file_paths:
        return None
    return FilePaths(
        "literal", tuple(Text(_literal(path), _SPAN) for path in request.file_paths), _SPAN
    )
