"""Checks that need more than the library: tools, profiles, schemas, examples."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.errors.messages import correction, did_you_mean
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.interpreter.toolset import TASK_TOOLS
from evaluator.library import TemplateLibrary
from evaluator.library.shapes import (
    SchemaFileError,
    folder_of,
    is_file,
    is_model,
    of_schema,
    read_schema,
)
from evaluator.nodes import Task, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.output import parse_output
from evaluator.output.schema import schema_problem
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox, SandboxKind
from evaluator.tools.mcp import McpServer
from evaluator.tools.mcp.servers import server_of_tool

if TYPE_CHECKING:
    from evaluator.interpreter.frame import Services


def check_surroundings(
    library: TemplateLibrary,
    tools: Collection[str],
    profiles: Collection[str],
    servers: Collection[McpServer] = (),
    sandboxes: Mapping[str, Sandbox] = MappingProxyType({}),
    roots: Sequence[str] = (".",),
) -> list[Diagnostic]:
    """An error for each unknown tool or profile that a template names, and for each invalid schema;
    a warning for each example whose output does not fit, and for a sandbox that is not installed. A
    `module:Model` is not imported here. `sandboxes` has those of the profiles. Schema files are
    below their template's folder or `roots`.
    """
    known = known_tools(library, tools)
    nodes = [*(template.node for template in library.templates.values()), *library.unusable]
    problems = [
        problem
        for node in nodes
        for problem in check_node(node, known, profiles, servers, sandboxes, roots)
    ]
    return list(dict.fromkeys(problems))


_FATAL = frozenset({"unknown-tool", "bad-schema"})
"""Codes of errors that fail every task that has them."""


def check_reached(services: Services, name: str) -> None:
    """Checks the template `name` and those that it may call for errors that would fail its runs
    after the first calls.

    Raises: TemplateError; UsageError, for a template that is missing.
    """
    library = services.library
    reached = [library.get(each).node for each in (name, *library.called_by(name))]
    found = [task for node in reached for task in tasks(node) if task.tools or task.output]
    if not found:
        return
    # Only where a task names one: to know the tools, they are all made.
    tools = services.tools.names() if any(task.tools for task in found) else ()
    known = known_tools(library, tools)
    servers = [server for profile in services.profiles.values() for server in profile.mcp]
    roots = [*map(str, services.files.roots.folders)]
    problems = [
        problem
        for task in found
        for problem in (*_of_tools(task, known, servers), *_of_output(task, roots))
        if problem.code in _FATAL
    ]
    if problems:
        raise TemplateError(list(dict.fromkeys(problems)))


def known_tools(library: TemplateLibrary, tools: Collection[str]) -> set[str]:
    """What a template may name as a tool: `tools`, those of every task, and templates."""
    return {*tools, *TASK_TOOLS, *BACKGROUND_TOOLS, *library.templates, *library.broken}


def check_node(
    node: TopLevel,
    known: Collection[str],
    profiles: Collection[str],
    servers: Collection[McpServer],
    sandboxes: Mapping[str, Sandbox],
    roots: Sequence[str] = (".",),
) -> list[Diagnostic]:
    """The findings of `check_surroundings` about one template; `known` are the tools."""
    problems: list[Diagnostic] = []
    for task in tasks(node):
        problems += _of_tools(task, known, servers)
        ref = task.profile
        if task.handler is not None and ref is not None and ref not in profiles:
            message = f"no handler profile is called {ref!r}"
            hint = did_you_mean(ref, sorted(profiles))
            problems.append(
                Diagnostic(
                    "error",
                    "unknown-handler",
                    message=message,
                    span=task.handler.span,
                    hint=hint,
                    fix=_fix(ref, profiles),
                )
            )
        problems += _of_output(task, roots)
        problems += _of_sandbox(task, sandboxes)
    return problems


def _of_tools(
    task: Task, known: Collection[str], servers: Collection[McpServer]
) -> list[Diagnostic]:
    problems: list[Diagnostic] = []
    for number, tool in enumerate(task.tools):
        # The tools of an MCP server are known only while it runs.
        if tool and tool not in known and server_of_tool(tool, servers) is None:
            message = f"no tool and no template is called {tool!r}"
            hint = did_you_mean(tool, sorted(known))
            if task.tool_spans:
                span = task.tool_spans[number]
            else:
                span = task.span
            problems.append(
                Diagnostic(
                    "error",
                    "unknown-tool",
                    message=message,
                    span=span,
                    hint=hint,
                    fix=_fix(tool, known),
                )
            )
    return problems


def _fix(name: str, known: Collection[str]) -> tuple[str, str] | None:
    meant = correction(name, known)
    if meant is None:
        return None
    return name, meant


def _of_sandbox(task: Task, sandboxes: Mapping[str, Sandbox]) -> list[Diagnostic]:
    if task.handler is None or task.handler.sandbox is None:
        return []
    severity: Literal["error", "warning"] = "error"
    try:
        profile_sandbox = sandboxes.get(task.handler.ref or "default", NO_SANDBOX)
        sandbox = profile_sandbox.stricter(cast("SandboxKind", task.handler.sandbox))
        severity = "warning"  # another machine may have the program
        sandbox.program()
    except ConfigurationError as error:
        return [Diagnostic(severity, "sandbox", message=str(error), span=task.handler.span)]
    return []


def _is_readable(schema: str) -> bool:
    """Whether a declared schema is a known name, a file or JSON."""
    if schema.lstrip().startswith("{"):
        try:
            json.loads(schema)
        except (ValueError, RecursionError):
            return False
        return True
    try:
        of_schema(schema, None)
    except SchemaFileError:
        return False
    return True


def _of_output(task: Task, roots: Sequence[str]) -> list[Diagnostic]:
    output = task.output
    if (
        output is None
        or output.type == "text"
        or (output.schema is not None and is_model(output.schema))
    ):
        return []
    schema = output.schema
    if schema is not None and not _is_readable(schema):
        return []  # reported where the template was read
    try:
        if schema is not None and is_file(schema):
            schema = read_schema(schema, folder_of(output.span.file), roots=roots)
    except SchemaFileError as bad:
        return [Diagnostic("error", bad.code, message=bad.message, span=output.span, hint=bad.hint)]
    problem = schema_problem(schema)
    if problem is not None:
        return [Diagnostic("error", "bad-schema", message=problem, span=output.span)]
    problems: list[Diagnostic] = []
    for example in task.examples:
        error = parse_output(example.output, output.type, schema=schema).error
        if error is not None:
            message = f"the output of this example does not fit output_format: {error.message}"
            place = example.places.get(None, example.span)
            problems.append(Diagnostic("warning", "example-output", message=message, span=place))
    return problems
