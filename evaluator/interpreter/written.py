"""A task that a model wrote, against the library that it would run with: may it be run, and does it fit.

What it may hold is its reader's to say (`Allowance`). What it reaches counts with it: a template that it calls or
takes parts from and that runs a process is refused like a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from evaluator.errors import Diagnostic, TemplateError
from evaluator.library import TemplateLibrary
from evaluator.library.calls import calls_of
from evaluator.library.checks import Checked, check_each
from evaluator.library.shapes import of_type
from evaluator.nodes import FilePaths, Node, Script, Span, Task, TopLevel, children
from evaluator.xml.written import WrittenTask, read_written_task

_NAME = "\x00written"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a written task may hold. `who` names it in messages.

    `tools` are those that it may name; `templates_as_tools`: any template too. `files` are the only paths that
    it may read, None any inside the roots. `reached_tools`: templates that it calls may have tools of their own.
    """

    who: str
    scripts: bool = False
    tools: frozenset[str] = frozenset()
    templates_as_tools: bool = False
    reached_tools: bool = False
    files: frozenset[str] | None = None


def read_allowed(library: TemplateLibrary, text: str, allowance: Allowance, file: str) -> WrittenTask:
    """The task in a model's `text`, whole and checked against `library`; its `errors` say why it cannot be used.

    Schemas of its outputs are names or stand in it: neither a file nor a module is looked at for a model.
    """
    written = read_written_task(text, file)
    node = written.node
    if node is None:
        return written
    found = list(_forbidden(node, library, allowance))
    if not found:
        try:
            node = library.whole(node)
            found = list(_reached(node, library, allowance))
        except TemplateError as error:
            found = list(error.diagnostics)
    if not found:
        known = {name: template.node for name, template in library.templates.items()}
        # Those of the library are checked already; only this one is new.
        reuse = {name: Checked() for name in known}
        found = check_each({**known, _NAME: node}, broken=library.broken, reuse=reuse)[_NAME].diagnostics
    errors = [one for one in found if one.severity == "error"]
    warnings = [one for one in found if one.severity == "warning"]
    return replace(written, node=node, warnings=(*written.warnings, *warnings)).refused(errors)


def may_call(library: TemplateLibrary, name: str, allowance: Allowance) -> bool:
    """Whether a written task may call the template `name`."""
    return not any(True for _ in _through([(name, Span())], library, allowance))


def _forbidden(node: Node, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """What stands in the task itself and may not."""
    for task in _tasks(node):
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
    if isinstance(task, Script):
        yield _refusal(f"{allowance.who} may not run a script", task.span)
    if task.file_paths is not None and task.file_paths.source == "command":
        yield _refusal(f"{allowance.who} may not run a command", task.span)


def _reached(node: Task, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """What the task would run or offer through templates: by `ref`, by calls, and by templates as tools."""
    if not allowance.scripts:
        for task in _tasks(node):
            yield from _processes(task, allowance)
    yield from _through(_named_in(node, library), library, allowance)


def _through(named: list[tuple[str, Span]], library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """What may not be reached through the templates `named`, each with the place that names it."""
    waiting = list(named)
    seen: set[str] = set()
    while waiting:
        name, span = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        template = library.get(name).node
        for task in _tasks(template):
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
    return named + [(tool, task.span) for task in _tasks(node) for tool in task.tools if tool in library]


def _is_plain(schema: str) -> bool:
    return schema.lstrip().startswith("{") or of_type(schema) is not None


def _refusal(message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("error", "forbidden", message, span, hint)


def _tasks(node: TopLevel | Node) -> Iterator[Task]:
    if isinstance(node, Task):
        yield node
    for child in children(node):
        yield from _tasks(child)


def said(diagnostic: Diagnostic) -> str:
    """A finding about a model's answer in one line, for notes."""
    return f"line {diagnostic.span.line}: {diagnostic.message}"
