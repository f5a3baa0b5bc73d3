"""Subtasks: tasks that a model asks for with a tool call, which is answered in the same session.

The Evaluator validates the request, selects a template by matching, and runs it in its own Handler
with its own task file (see `spawning`). A subtask equal to one of its ancestors is refused. It has
at most the authority of the task whose model asked, see `authority`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.errors.messages import listed
from evaluator.errors.results import ErrorType, Outcome
from evaluator.handler.conversation import OnMessage
from evaluator.interpreter.authority import READ_FILE, Authority, excess_of
from evaluator.interpreter.context import task_list_at
from evaluator.interpreter.frame import OnBegin, Run, identity_of
from evaluator.interpreter.spawning import Spawner, Start, answer_to_model, check_allowed
from evaluator.language.scopes import Scope
from evaluator.language.syntax import plain_path
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
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
)
from evaluator.tools import Tool, ToolContext, ToolPreview
from evaluator.tools.mcp.servers import SCHEME
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


@frozen
class _Chosen:
    """The task that serves a request, its template if it has one, and what it may do."""

    node: Task
    template: str | None
    score: float | None
    authority: Authority


async def spawn(
    spawner: Spawner,
    request: SubtaskRequest,
    context: ToolContext,
    on_message: OnMessage | None = None,
    on_begin: OnBegin | None = None,
) -> Outcome:
    """Runs one subtask, as `Spawner.start`.

    Raises: ToolError, for a request that is refused, with the reason for the model.
    """

    async def choose() -> Start:
        return await _start(spawner, request, context)

    return await spawner.start(choose, context, on_message, on_begin)


async def _start(spawner: Spawner, request: SubtaskRequest, context: ToolContext) -> Start:
    run = spawner.run
    chosen = await _choose(spawner, request, context)
    for path in request.file_paths:
        await _check_file(spawner, path, context)
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
        max_depth = min(max_depth, spawner.depth + request.max_depth)
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
    return Start(subtask, chosen.authority.with_files(request.file_paths))


async def _choose(spawner: Spawner, request: SubtaskRequest, context: ToolContext) -> _Chosen:
    """The task to run: the hinted template, else the best match, else the request itself as an
    atomic task.
    """
    from evaluator.library.matching import LOW_SCORE

    if request.template is not None:
        return await _hinted(spawner, request, request.template, context)
    bare = _bare_task(request)
    asked = replace(
        bare,
        description=Text(request.description, _SPAN),
        inputs=tuple(declared for declared in bare.inputs if declared.name in request.inputs),
    )
    for match in spawner.run.services.library.match(asked, limit=MAX_MATCHES):
        if match.score < LOW_SCORE:
            break
        node = match.template.node
        name = match.template.name
        if not isinstance(node, Task) or not _fits(node, request):
            continue
        tool = _tool_of(spawner, name)
        if tool is None and not refusals(spawner, name):
            return _Chosen(node, name, score=match.score, authority=spawner.authority())
        if tool is not None and tool.policy_for(request.inputs, context.roots) == "allow":
            return _Chosen(node, name, score=match.score, authority=_of_author(spawner))
    return _Chosen(bare, None, score=None, authority=spawner.authority())


async def _hinted(
    spawner: Spawner, request: SubtaskRequest, template: str, context: ToolContext
) -> _Chosen:
    node = _task_called(template, spawner.run.services.library)
    _check_inputs(node, template, request=request)
    tool = _tool_of(spawner, template)
    if tool is not None:
        inputs = dict(request.inputs)
        if not context.has_consent or tool.policy_for(inputs, context.roots) == "deny":
            await check_allowed(tool, inputs, context)
        return _Chosen(node, template, score=None, authority=_of_author(spawner))
    reasons = refusals(spawner, template)
    if not reasons:
        return _Chosen(node, template, score=None, authority=spawner.authority())
    if context.has_consent:
        authority = spawner.bound.frame.domain.authority.approved()
        return _Chosen(node, template, score=None, authority=authority)
    raise ToolError(
        f"the template {template!r} cannot be chosen here: a subtask of this task may not "
        f"{' or '.join(reasons)}. "
        "Choose another template, or do this part of the work yourself"
    )


def refusals(spawner: Spawner, template: str) -> list[str]:
    """Why the model may not choose `template`, each as the end of "it may not"; none if it may."""
    if _tool_of(spawner, template) is not None:
        return []
    library = spawner.run.services.library
    node = library.get(template).node
    reasons = [excess.what for excess in excess_of(node, library, authority=spawner.authority())]
    if not isinstance(node, Atomic):
        reasons.insert(0, f"be a task of type {library.get(template).type}")
    return reasons


def _tool_of(spawner: Spawner, template: str) -> Tool | None:
    """The tool of the task that is `template` itself; None if it has none."""
    if template in spawner.templates:
        return spawner.offered.get(template)
    return None


def _of_author(spawner: Spawner) -> Authority:
    """The authority of a template that the task has as a tool."""
    return spawner.bound.frame.domain.authority.of_template_tools()


async def _check_file(spawner: Spawner, path: str, context: ToolContext) -> None:
    """Checks that the task may read a file of a request itself: a task list with `manage_task`,
    others with `read_file`.

    Raises: ToolError, if it may not.
    """
    name = READ_FILE
    arguments = {"path": path}
    task_list = task_list_at(spawner.run.services, path)
    if task_list is not None:
        name = MANAGE_TASK
        arguments = {"action": "read", "name": task_list}
    tool = spawner.offered.get(name)
    if tool is None or path.startswith(SCHEME):
        raise ToolError(f"file_paths: this task may not read {path[:200]!r} itself ({name})")
    await check_allowed(tool, arguments, context, "file_paths: ")


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

    async def call(arguments: dict[str, Any], context: ToolContext) -> str:
        request = request_in(arguments)
        outcome = await spawn(spawner, request, context)
        about = {
            "reason": "subtask_failure",
            "request": {
                "description": request.description,
                "inputs": dict(request.inputs),
                "template": request.template,
            },
            "depth": spawner.depth,
        }
        return answer_to_model(outcome, about, answer_of, accepted)

    return Tool(spec, call, kind="subtask", preview=preview)


def subtask_tool(spawner: Spawner) -> Tool:
    """The general subtask tool of one task."""

    async def preview(arguments: dict[str, Any], context: ToolContext) -> str:
        template = read_request(arguments).template
        shown = f"{SUBTASK} with {json.dumps(arguments, ensure_ascii=False)}"
        if template is None:
            return shown
        _task_called(template, spawner.run.services.library)
        needs = [
            f"\nThe template {template!r} would {what}." for what in refusals(spawner, template)
        ]
        return shown + "".join(needs)

    text = "Hands a part of the work to a fresh session of its own and returns its result."
    spec = ToolSpec(SUBTASK, text, parameters=PARAMETERS)
    return spawning_tool(spawner, spec, read_request, preview=preview)


def template_tool(spawner: Spawner, name: str) -> Tool:
    """A tool that runs just the template `name`; its parameters are the template's inputs."""
    node = _task_called(name, spawner.run.services.library)
    spawner.templates.add(name)

    def request_in(arguments: dict[str, Any]) -> SubtaskRequest:
        return SubtaskRequest(node.description.value, arguments, template=name)

    spec = ToolSpec(name, node.description.value, parameters=inputs_schema(node))
    return spawning_tool(spawner, spec, request_in)


def inputs_schema(task: Task) -> dict[str, Any]:
    """The declared inputs of `task` as a JSON Schema of type object."""
    properties: dict[str, Any] = {}
    for declared in task.inputs:
        schema = _type_schema(declared.type)
        if declared.description:
            schema["description"] = declared.description
        properties[declared.name] = schema
    return object_schema(properties, [i.name for i in task.inputs if i.must_be_given])


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


def _task_called(name: str, library: TemplateLibrary) -> Task:
    """The template of that name. Raises: ToolError, if there is none, it is broken, or it is a
    function.
    """
    if name not in library:
        raise ToolError(f"no template is called {name!r}")
    node = library.get(name).node
    if not isinstance(node, Task):
        raise ToolError(f"{name!r} is a function; only tasks can be subtasks and tools")
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


def _fits(node: Task, request: SubtaskRequest) -> bool:
    """Whether a matched template can serve the request. Instructions require a template of the same
    subtype.
    """
    if request.instructions is not None and node.subtype != request.subtype:
        return False
    needed = {i.name for i in node.inputs if i.must_be_given}
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
        inputs += (_input(DESCRIPTION, "string", said),)
    return replace(
        node, context=context, file_paths=_files(request) or node.file_paths, inputs=inputs
    )


def _says_more(request: SubtaskRequest, node: Task) -> bool:
    """Whether the description of the request differs from that of the template, and can be an input
    of it.
    """
    is_known = any(declared.name == DESCRIPTION for declared in node.inputs)
    return not is_known and request.description.split() != node.description.value.split()


def _input(name: str, type_name: str, default: Text | None = None) -> Input:
    """An input of a request, which needs no value."""
    return Input(
        name,
        type_name,
        required=False,
        default=default,
        source=None,
        task=None,
        description="",
        span=_SPAN,
    )


def _bare_task(request: SubtaskRequest) -> Atomic:
    # The description is data from a model: it is bound as a value, so that braces in it are not
    # variables.
    description = Text(_literal(request.description), _SPAN)
    inputs = tuple(_input(name, "any") for name in request.inputs)
    # The value of an input that no text can name is appended to the prompt.
    values = "".join(
        f"\n\n{name}:\n{{{{ {name} }}}}" for name in request.inputs if plain_path(name) is not None
    )
    own_name = DESCRIPTION
    while own_name in request.inputs:
        own_name += "_"
    if request.instructions is None:
        inputs += (_input(own_name, "string", description),)
    return Atomic(
        description=description,
        subtype=request.subtype,
        output=request.output,
        instructions=request.instructions or Text(f"{{{{ {own_name} }}}}{values}", _SPAN),
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
