"""Checks that need more than the library: tools, profiles, schemas, examples."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.errors.messages import correction, did_you_mean
from evaluator.interpreter.frame import Domain, Run
from evaluator.interpreter.sandboxing import check_sandboxes
from evaluator.library import TemplateLibrary
from evaluator.library.shapes import (
    SchemaFileError,
    folder_of,
    is_file,
    is_model,
    of_schema,
    read_schema,
)
from evaluator.nodes import Atomic, Function, Node, Span, Task, TopLevel
from evaluator.nodes.walk import tasks
from evaluator.output.schema import schema_imports, schema_problem
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox, SandboxKind
from evaluator.tools.mcp.servers import server_of_tool

if TYPE_CHECKING:
    from evaluator.tools.mcp import McpServer


async def check_start(run: Run, node: TopLevel | Node, domain: Domain) -> None:
    """Checks, before the first call of a run of `node` in `domain`, what would fail it later: the
    tools, schemas and sandboxes of the tasks that it reaches. Once for each node of a domain, and
    only where something is run for real.

    A resumed run whose record has steps is not refused for the tools and schemas of later ones;
    nor is a subtask, which may have only the tools of the task that asks for it.

    Raises: TemplateError, for a tool or a schema; ConfigurationError, for a sandbox or a profile.
    """
    earlier = run.steps.earlier
    has_begun = earlier is not None and bool(earlier.recording.steps)
    if not has_begun and run.caller is None and not run.services.dry_run:
        root = node
        if run.template is not None and run.template_sha256 is not None:
            root = run.template
        check_reached(domain, root)
        for problem in choice_problems(domain, root):
            run.services.notice(problem)
    await check_sandboxes(run, node, domain)


def check_reached(domain: Domain, root: str | TopLevel | Node) -> None:
    """Checks the tasks and functions that a run of `root`, a node or the name of a template,
    reaches by name in `domain` for unknown tools and invalid schemas, which fail every such task.

    A `module:Model` is imported, as the `schema_imports` in force say. What only a model may choose
    does not refuse the run, see `choice_problems`.

    Raises: TemplateError; UsageError, for a template that is missing.
    """
    problems = [
        problem
        for task in domain.services.library.needs(root).doubtful
        for problem in _fatal(domain, task)
    ]
    if problems:
        raise TemplateError(list(dict.fromkeys(problems)))


def choice_problems(domain: Domain, root: str | TopLevel | Node) -> list[str]:
    """What would fail each template that a run of `root` offers to a model as a tool: a model need
    not choose it, so the run is not refused. Nothing is imported.
    """
    library = domain.services.library
    offered: dict[str, None] = {}
    for task in library.needs(root).doubtful:
        if isinstance(task, Atomic):
            offered.update(dict.fromkeys(tool for tool in task.tools if tool in library))
    problems: list[str] = []
    with schema_imports("none"):
        for name in offered:
            found = [each for task in library.needs(name).doubtful for each in _fatal(domain, task)]
            problems += [
                f"{problem.span}: a model may choose the template {name!r} as a tool, which then "
                f"fails: {problem.message}"
                for problem in dict.fromkeys(found)
            ]
    return problems


def _fatal(domain: Domain, task: Task | Function) -> list[Diagnostic]:
    """The findings about a task or a function that fail it whenever it runs."""
    services = domain.services
    roots = [*map(str, services.files.roots.folders)]
    problems: list[Diagnostic] = []
    if isinstance(task, Function):
        return _fatal_schema(task.returns, task.span, roots)
    # Only the model of an atomic task is offered its tools.
    if task.tools and isinstance(task, Atomic):
        from evaluator.tools.controls import OF_TASK_TOOLS

        library = services.library
        if not all(
            name in OF_TASK_TOOLS or name in library or name in services.tools
            for name in task.tools
        ):
            tools = services.tools.names()
            problems += _of_tools(
                task,
                known_tools(library, tools),
                domain.profile_of(task).mcp,
                otherwise=f"the tools are: {', '.join([*tools, *OF_TASK_TOOLS])}",
            )
    if task.output is not None and task.output.type != "text":
        problems += _fatal_schema(task.output.schema, task.output.span, roots)
    return problems


def _fatal_schema(schema: str | None, span: Span, roots: Sequence[str]) -> list[Diagnostic]:
    """The error in a schema, which fails what it is declared for."""
    if schema is not None and is_model(schema):
        problem = schema_problem(schema)
        if problem is None:
            return []
        return [Diagnostic("error", "bad-schema", message=problem, span=span)]
    _, problems = _schema_of(schema, span, roots)
    return [problem for problem in problems if problem.code == "bad-schema"]


def known_tools(library: TemplateLibrary, tools: Collection[str]) -> set[str]:
    """What a template may name as a tool: `tools`, those of every task, and templates."""
    from evaluator.tools.controls import OF_TASK_TOOLS

    return {*tools, *OF_TASK_TOOLS, *library.templates, *library.broken}


def check_node(
    node: TopLevel,
    known: Collection[str],
    profiles: Collection[str],
    servers: Collection[McpServer],
    sandboxes: Mapping[str, Sandbox],
    roots: Sequence[str] = (".",),
) -> list[Diagnostic]:
    """An error for each unknown tool or profile that the template names, and for each invalid
    schema; a warning for each example whose output does not fit, and for a sandbox that is not
    installed. A `module:Model` is not imported here. `known` are the tools. `sandboxes` has those
    of the profiles. Schema files are below the template's folder or `roots`.
    """
    problems: list[Diagnostic] = []
    if isinstance(node, Function):
        problems += _schema_of(node.returns, node.span, roots)[1]
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
    task: Task,
    known: Collection[str],
    servers: Iterable[McpServer],
    *,
    otherwise: str | None = None,
) -> list[Diagnostic]:
    """A finding for each unknown tool; `otherwise` is its hint where no known name is near."""
    problems: list[Diagnostic] = []
    for number, tool in enumerate(task.tools):
        # The tools of an MCP server are known only while it runs.
        if not tool or tool in known or server_of_tool(tool, servers) is not None:
            continue
        message = f"no tool and no template is called {tool!r}"
        hint = did_you_mean(tool, sorted(known), otherwise=otherwise)
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
    schema, problems = _schema_of(output.schema, output.span, roots)
    if problems or (schema is None and output.schema is not None):
        return problems
    from evaluator.output import parse_output

    for example in task.examples:
        error = parse_output(example.output, output.type, schema=schema).error
        if error is not None:
            message = f"the output of this example does not fit output_format: {error.message}"
            place = example.places.get(None, example.span)
            problems.append(Diagnostic("warning", "example-output", message=message, span=place))
    return problems


def _schema_of(
    schema: str | None, span: Span, roots: Sequence[str]
) -> tuple[str | None, list[Diagnostic]]:
    """A declared schema, without access to its file, and the error in it. None for no schema, one
    that is imported, and one whose error is reported where the template was read.
    """
    if schema is None or is_model(schema) or not _is_readable(schema):
        return None, []
    try:
        if is_file(schema):
            schema = read_schema(schema, folder_of(span.file), roots=roots)
    except SchemaFileError as bad:
        return None, [Diagnostic("error", bad.code, message=bad.message, span=span, hint=bad.hint)]
    problem = schema_problem(schema)
    if problem is not None:
        return None, [Diagnostic("error", "bad-schema", message=problem, span=span)]
    return schema, []
