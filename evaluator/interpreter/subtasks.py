"""Subtasks: tasks that a model asks for. To the model a tool call as any other, answered in the same session.

The Evaluator validates the request, selects a template by matching, and runs it in a Handler of its own with
a task file of its own. Depth is bounded, a subtask equal to one of its ancestors is refused, and what the
chain uses counts against the limits of the tasks above it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from evaluator.binding.scopes import Scope
from evaluator.errors import ToolError
from evaluator.handler.backend import ToolSpec
from evaluator.handler.tools import Tool, ToolContext
from evaluator.interpreter.frame import Outcome, Run
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.library import Template
from evaluator.library.matching import LOW_SCORE
from evaluator.nodes import (
    Atomic,
    ContextSettings,
    FilePaths,
    Input,
    Node,
    OutputFormat,
    Span,
    Task,
    Text,
    TopLevel,
)
from evaluator.record.steps import fingerprint
from evaluator.results import Resource, TaskError, TaskResult

SUBTASK = "subtask"

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["atomic"], "description": "The operator; atomic."},
        "description": {"type": "string", "minLength": 1, "description": "What the subtask is to do."},
        "inputs": {"type": "object", "description": "Values by name that the subtask works on."},
        "hints": {
            "type": "object",
            "properties": {"template": {"type": "string"}, "subtype": {"type": "string"}},
            "additionalProperties": False,
            "description": "A template's name, or a subtype to look for.",
        },
        "context_management": {
            "type": "object",
            "properties": {
                "inherit_context": {"enum": ["full", "subset", "none"]},
                "fresh_context": {"enum": ["enabled", "disabled"]},
            },
            "additionalProperties": False,
        },
        "max_depth": {"type": "integer", "minimum": 1, "description": "Levels of subtasks below this one."},
        "file_paths": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["type", "description", "inputs"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class SubtaskRequest:
    """A validated request; `template` is the hint, `max_depth` counts levels below the subtask.

    `instructions` and `output` are those of a subtask that no template fits; without them it is asked in the
    words of its description.
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


def subtask_tool(run: Run, prepared: Prepared) -> Tool:
    """The general subtask tool of one task."""

    async def spawn(arguments: dict[str, Any], context: ToolContext) -> str:
        return await _answer(run, prepared, _request(arguments), context)

    text = "Hands a part of the work to a fresh session of its own and returns its result."
    return Tool(ToolSpec(SUBTASK, text, PARAMETERS), spawn, kind="subtask")


def template_tool(run: Run, prepared: Prepared, template: Template) -> Tool:
    """A tool that runs just `template`; its parameters are the template's inputs."""
    node = template.node
    if not isinstance(node, Task):
        raise ToolError(f"{template.name!r} is a function; only tasks can be tools")

    async def spawn(arguments: dict[str, Any], context: ToolContext) -> str:
        request = SubtaskRequest(node.description.value, arguments, template.name)
        return await _answer(run, prepared, request, context)

    spec = ToolSpec(template.name, node.description.value, inputs_schema(node))
    return Tool(spec, spawn, kind="subtask")


def inputs_schema(task: Task) -> dict[str, Any]:
    """The declared inputs of `task` as a JSON Schema of type object."""
    properties: dict[str, Any] = {}
    for declared in task.inputs:
        properties[declared.name] = _type_schema(declared.type)
        if declared.description:
            properties[declared.name]["description"] = declared.description
    required = [i.name for i in task.inputs if i.required and i.default is None and i.task is None]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type_schema(name: str) -> dict[str, Any]:
    if name == "any":
        return {}
    if name == "[]":
        return {"type": "array"}
    if name.endswith("[]"):
        return {"type": "array", "items": {"type": name[:-2]}}
    return {"type": name}


def _request(arguments: Mapping[str, Any]) -> SubtaskRequest:
    hints = cast("Mapping[str, Any]", arguments.get("hints", {}))
    settings = cast("Mapping[str, Any]", arguments.get("context_management", {}))
    return SubtaskRequest(
        arguments["description"],
        arguments["inputs"],
        hints.get("template"),
        hints.get("subtype"),
        ContextSettings(settings.get("inherit_context"), None, None, settings.get("fresh_context")),
        arguments.get("max_depth"),
        tuple(arguments.get("file_paths", ())),
    )


async def _answer(run: Run, prepared: Prepared, request: SubtaskRequest, context: ToolContext) -> str:
    """The subtask's text, as the tool's response.

    Raises: ToolError, with the whole failure as JSON for the model, which may then do without.
    """
    outcome = await spawn_subtask(run, prepared, request, context.step_path)
    if isinstance(outcome, TaskResult):
        return outcome.content
    raise ToolError(json.dumps(subtask_failure(outcome, request, run.depth + 1), ensure_ascii=False))


def subtask_failure(error: TaskError, request: SubtaskRequest, depth: int) -> dict[str, Any]:
    """What a parent learns of a failed subtask: the request, the depth, the error, what there was of an output."""
    return {
        "reason": "subtask_failure",
        "request": {
            "description": request.description, "inputs": dict(request.inputs), "template": request.template,
        },
        "depth": depth,
        "error": {
            "type": error.type, "reason": error.reason, "message": error.message,
            "resource": None if error.resource is None else error.resource.name,
        },
        "partial_output": error.content,
    }  # fmt: skip


async def spawn_subtask(run: Run, prepared: Prepared, request: SubtaskRequest, path: str) -> Outcome:
    """Runs one subtask of the task `prepared`; `path` is the step that asked for it."""
    depth = run.depth + 1
    if depth > run.max_depth:
        message = f"subtasks are {run.max_depth} levels deep, which is the limit; do this part of the work yourself"
        return TaskError("RESOURCE_EXHAUSTION", message, resource=Resource("depth", depth, run.max_depth))
    node, template, score = select(run, request)
    identity = fingerprint({"template": template, "description": request.description, "inputs": dict(request.inputs)})
    if identity in run.ancestors:
        raise ToolError("this subtask is equal to one that it would run inside of: it would never end")
    max_depth = run.max_depth if request.max_depth is None else min(run.max_depth, depth + request.max_depth)
    declared = {i.name for i in node.inputs} if isinstance(node, Task) else set[str]()
    start = RunStart(
        template=template, request=request.description, inputs=request.inputs, node=node,
        arguments={k: v for k, v in request.inputs.items() if k in declared},
        scope=Scope(dict(request.inputs)), context=prepared.context.items, is_subtask=True,
        parent=run, parent_path=path, budget=prepared.budget, depth=depth, max_depth=max_depth,
        ancestors=(*run.ancestors, identity), match_score=score,
    )  # fmt: skip
    outcome = await record_run(run.services, start)
    if run.budget.refused is not None:
        # What came back is no answer, and nobody is to go on from it.
        raise run.budget.refused
    return outcome


def select(run: Run, request: SubtaskRequest) -> tuple[Node, str | None, float | None]:
    """The node to run: the hinted template, else the best match, else the request itself as an atomic task."""
    library = run.services.library
    bare = _bare_task(request)
    if request.template is not None:
        if request.template not in library:
            raise ToolError(f"no template is called {request.template!r}")
        return _with_request(library.get(request.template).node, request), request.template, None
    best = next(iter(library.match(bare, limit=1)), None)
    if best is not None and best.score >= LOW_SCORE and _may_serve(best.template.node, request):
        node = best.template.node
        assert isinstance(node, Task)
        missing = [i.name for i in node.inputs if i.required and i.default is None and i.name not in request.inputs]
        if not missing and set(request.inputs) <= {i.name for i in node.inputs}:
            return _with_request(node, request), best.template.name, best.score
    return bare, None, None


def _may_serve(node: TopLevel, request: SubtaskRequest) -> bool:
    """A request with instructions of its own is for templates made for it alone."""
    return request.instructions is None or (isinstance(node, Task) and node.subtype == request.subtype)


def _with_request(node: Any, request: SubtaskRequest) -> Node:
    if not isinstance(node, Task):
        raise ToolError("a function cannot be a subtask; only tasks can")
    said, own = request.context, node.context
    context = replace(
        own,
        inherit_context=said.inherit_context or own.inherit_context,
        fresh_context=said.fresh_context or own.fresh_context,
    )
    return replace(node, context=context, file_paths=_files(request) or node.file_paths)


def _bare_task(request: SubtaskRequest) -> Atomic:
    span = Span("<subtask>", 1, 1)
    # The description is data from a model: it is bound as a value, so that braces in it are not variables.
    inputs = tuple(Input(name, "any", False, None, None, None, "", span) for name in request.inputs)
    values = "".join(f"\n\n{name}:\n{{{{ {name} }}}}" for name in request.inputs if name.isidentifier())
    instructions = request.instructions or Text("{{ subtask_description }}" + values, span)
    return Atomic(
        description=Text(_literal(request.description), span), instructions=instructions, subtype=request.subtype,
        output=request.output,
        inputs=(*inputs, _description_input(request, span)), context=request.context,
        file_paths=_files(request), span=span,
    )  # fmt: skip


def _description_input(request: SubtaskRequest, span: Span) -> Input:
    default = Text(_literal(request.description), span)
    return Input("subtask_description", "string", False, default, None, None, "", span)


def _literal(text: str) -> str:
    """Template text that renders to exactly `text`, whatever it holds."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if "{" in text else text


def _files(request: SubtaskRequest) -> FilePaths | None:
    if not request.file_paths:
        return None
    span = Span("<subtask>", 1, 1)
    return FilePaths("literal", tuple(Text(_literal(path), span) for path in request.file_paths), span)
