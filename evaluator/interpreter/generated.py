"""Checks whether a generated task is allowed, and valid with the library that it would run with.

An `Allowance` says what the task may contain. It applies to templates that the task calls or takes parts from, too: one
that runs a process is refused like a process in the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from evaluator.errors import Diagnostic, TemplateError
from evaluator.library import TemplateLibrary
from evaluator.library.calls import calls_of
from evaluator.library.checks import Checked, check_each
from evaluator.nodes import FilePaths, Node, Span, Task, TopLevel
from evaluator.nodes.values import of_type
from evaluator.nodes.walk import tasks
from evaluator.xml.generated import GeneratedTask, read_generated_task

_NAME = "\x00generated"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a generated task may contain. `who` names it in messages.

    `tools` are those that it may name; with `templates_as_tools` it may name any template too. `files` are the only
    paths that it may read; None allows all inside the roots. With `reached_tools` the templates that it calls may have
    their own tools.
    """

    who: str
    scripts: bool = False
    tools: frozenset[str] = frozenset()
    templates_as_tools: bool = False
    reached_tools: bool = False
    files: frozenset[str] | None = None


def read_allowed(library: TemplateLibrary, text: str, allowance: Allowance, file: str) -> GeneratedTask:
    """The task in a model's `text`, with its `ref`s resolved and checked; its `errors` say why it cannot be used.

    The schema of an output is a type name or JSON Schema in the task: no file and no module is read for a model.
    """
    generated = read_generated_task(text, file)
    node = generated.node
    if node is None:
        return generated
    found = list(_forbidden(node, library, allowance))
    if not found:
        try:
            node = library.whole(node)
            found = list(_reached(node, library, allowance))
        except TemplateError as error:
            found = list(error.diagnostics)
    if not found:
        known = {name: template.node for name, template in library.templates.items()}
        # The templates of the library have been checked already.
        reuse = {name: Checked() for name in known}
        found = check_each({**known, _NAME: node}, broken=library.broken, reuse=reuse)[_NAME].diagnostics
    errors = [one for one in found if one.severity == "error"]
    warnings = [one for one in found if one.severity == "warning"]
    return replace(generated, node=node, warnings=(*generated.warnings, *warnings)).with_errors(errors)


def may_call(library: TemplateLibrary, name: str, allowance: Allowance) -> bool:
    """Whether a generated task may call the template `name`."""
    return not any(True for _ in _through([(name, Span())], library, allowance))


def _forbidden(node: Node, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """The refusals of what the task itself contains."""
    for task in tasks(node):
        if not allowance.scripts:
            yield from _processes(task, allowance)
        for tool in task.tools:
            if tool not in allowance.tools and not (allowance.templates_as_tools and tool in library):
                yield _refusal(f"{allowance.who} may not have the tool {tool!r}", task.span)
        if task.output is not None and task.output.schema is not None and not _is_plain(task.output.schema):
            message = f"{allowance.who} may not name a file or a module as its schema"
            yield _refusal(message, task.output.span, "write the JSON Schema into <output_format>")
        if task.file_paths is not None and allowance.files is not None:
            yield from _files(task.file_paths, allowance.files, allowance)


def _files(paths: FilePaths, allowed: frozenset[str], allowance: Allowance) -> Iterator[Diagnostic]:
    if paths.source == "command":
        return  # refused as a process
    for item in paths.items:
        if item.value not in allowed:
            yield _refusal(f"{allowance.who} may not read the file {item.value[:60]!r}", item.span)


def _processes(task: Task, allowance: Allowance) -> Iterator[Diagnostic]:
    if task.runs_process:
        yield _refusal(f"{allowance.who} may not run a script", task.span)
    if task.file_paths is not None and task.file_paths.source == "command":
        yield _refusal(f"{allowance.who} may not run a command", task.span)


def _reached(node: Task, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """The refusals of what the task reaches through templates: by `ref`, by calls, and by templates as tools."""
    if not allowance.scripts:
        for task in tasks(node):
            yield from _processes(task, allowance)
    yield from _through(_named_in(node, library), library, allowance)


def _through(named: list[tuple[str, Span]], library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """The refusals of what the templates `named` reach; each name has the place that names it."""
    waiting = list(named)
    seen: set[str] = set()
    while waiting:
        name, span = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        template = library.get(name).node
        for task in tasks(template):
            if not allowance.scripts and any(True for _ in _processes(task, allowance)):
                yield _refusal(f"{allowance.who} may not call {name!r}, which runs a process", span)
                break
            if not allowance.reached_tools and not allowance.tools.issuperset(task.tools):
                yield _refusal(f"{allowance.who} may not call {name!r}, which has tools of its own", span)
                break
        waiting += [(other, span) for other, _ in _named_in(template, library)]


def _named_in(node: TopLevel, library: TemplateLibrary) -> list[tuple[str, Span]]:
    """The templates that `node` calls, or offers as tools."""
    named = [(name, span) for name, (_, span) in calls_of(node).items()]
    return named + [(tool, task.span) for task in tasks(node) for tool in task.tools if tool in library]


def _is_plain(schema: str) -> bool:
    return schema.lstrip().startswith("{") or of_type(schema) is not None


def _refusal(message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("error", "forbidden", message, span, hint)


def describe(diagnostic: Diagnostic) -> str:
    """A finding about a model's answer in one line, for notes."""
    return f"line {diagnostic.span.line}: {diagnostic.message}"
