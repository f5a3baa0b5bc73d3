"""Subtasks: tasks that a model asks for with a tool call, which is answered in the same session.

The Evaluator validates the request, selects a template by matching, and runs it in its own Handler with its own task
file. Depth is bounded, a subtask equal to one of its ancestors is refused, and its usage counts against the limits of
the tasks above it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from evaluator.errors import ToolError
from evaluator.errors.results import Resource, TaskError, TaskResult
from evaluator.interpreter.frame import Outcome, Run
from evaluator.interpreter.prepared import Prepared
from evaluator.interpreter.runs import Parent, RunSpec, record_run
from evaluator.language.scopes import Scope
from evaluator.library import Template, TemplateLibrary
from evaluator.library.matching import LOW_SCORE
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
from evaluator.record.steps import fingerprint
from evaluator.tools import Tool, ToolContext

SUBTASK = "subtask"
_SPAN = Span("<subtask>", 1, 1)

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
    """A validated request. `template` is the hint; `max_depth` counts levels below the subtask.

    `instructions` and `output` are for a subtask that no template fits; without them its description is its prompt.
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
        description = {"description": declared.description} if declared.description else {}
        properties[declared.name] = _type_schema(declared.type) | description
    required = [i.name for i in task.inputs if i.required and i.default is None and i.task is None]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type_schema(name: str) -> dict[str, Any]:
    if name == "any":
        return {}
    if name.endswith("[]"):
        item = name.removesuffix("[]")
        return {"type": "array", "items": {"type": item}} if item else {"type": "array"}
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

    Raises: ToolError, with the whole failure as JSON for the model, which may continue without the subtask.
    """
    outcome = await spawn_subtask(run, prepared, request, context.step_path)
    if isinstance(outcome, TaskResult):
        return outcome.content
    raise ToolError(json.dumps(subtask_failure(outcome, request, run.depth + 1), ensure_ascii=False))


def subtask_failure(error: TaskError, request: SubtaskRequest, depth: int) -> dict[str, Any]:
    """The report of a failed subtask to its parent: the request, the depth, the error, any partial output."""
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
    node, template, score = _select(run.services.library, request)
    identity = fingerprint({"template": template, "description": request.description, "inputs": dict(request.inputs)})
    if identity in run.ancestors:
        raise ToolError("this subtask is equal to one that it would run inside of: it would never end")
    max_depth = run.max_depth if request.max_depth is None else min(run.max_depth, depth + request.max_depth)
    declared = {i.name for i in node.inputs}
    spec = RunSpec(
        request.description, request.inputs, node, template,
        arguments={k: v for k, v in request.inputs.items() if k in declared},
        scope=Scope(dict(request.inputs)), match_score=score,
    )  # fmt: skip
    parent = Parent(run, path, prepared.budget, prepared.context.items, identity, max_depth, prepared.frame.sandbox)
    outcome = await record_run(run.services, spec, run.options.inner(), parent=parent)
    if run.budget.refused is not None:
        # The outcome is not an answer, and nothing may continue from it.
        raise run.budget.refused
    return outcome


def _select(library: TemplateLibrary, request: SubtaskRequest) -> tuple[Task, str | None, float | None]:
    """The task to run: the hinted template, else the best match, else the request itself as an atomic task."""
    bare = _bare_task(request)
    if request.template is not None:
        if request.template not in library:
            raise ToolError(f"no template is called {request.template!r}")
        node = library.get(request.template).node
        if not isinstance(node, Task):
            raise ToolError("a function cannot be a subtask; only tasks can")
        return _with_request(node, request), request.template, None
    best = next(iter(library.match(bare, limit=1)), None)
    if best is not None and best.score >= LOW_SCORE and _fits(best.template.node, request):
        return _with_request(cast("Task", best.template.node), request), best.template.name, best.score
    return bare, None, None


def _fits(node: TopLevel, request: SubtaskRequest) -> bool:
    """Whether a matched template can serve the request. Instructions require a template of the same subtype."""
    if not isinstance(node, Task) or (request.instructions is not None and node.subtype != request.subtype):
        return False
    needed = {i.name for i in node.inputs if i.required and i.default is None}
    return needed <= set(request.inputs) <= {i.name for i in node.inputs}


def _with_request(node: Task, request: SubtaskRequest) -> Task:
    asked, own = request.context, node.context
    context = replace(
        own,
        inherit_context=asked.inherit_context or own.inherit_context,
        fresh_context=asked.fresh_context or own.fresh_context,
    )
    return replace(node, context=context, file_paths=_files(request) or node.file_paths)


def _bare_task(request: SubtaskRequest) -> Atomic:
    # The description is data from a model: it is bound as a value, so that braces in it are not variables.
    description = Text(_literal(request.description), _SPAN)
    inputs = tuple(Input(name, "any", False, None, None, None, "", _SPAN) for name in request.inputs)
    values = "".join(f"\n\n{name}:\n{{{{ {name} }}}}" for name in request.inputs if name.isidentifier())
    if request.instructions is None:
        inputs += (Input("subtask_description", "string", False, description, None, None, "", _SPAN),)
    return Atomic(
        description=description, subtype=request.subtype, output=request.output,
        instructions=request.instructions or Text("{{ subtask_description }}" + values, _SPAN),
        inputs=inputs, context=request.context, file_paths=_files(request), span=_SPAN,
    )  # fmt: skip


def _literal(text: str) -> str:
    """Template text that renders to exactly `text`, whatever it contains."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if "{" in text else text


def _files(request: SubtaskRequest) -> FilePaths | None:
    if not request.file_paths:
        return None
    return FilePaths("literal", tuple(Text(_literal(path), _SPAN) for path in request.file_paths), _SPAN)
