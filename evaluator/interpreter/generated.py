"""Checks generated tasks, and names the templates that the Evaluator itself uses: to choose a
template, to extract inputs, to decompose a task, to compile words to a task. A template of the same
name in the library comes first, so that a project can change the prompt.

An `Allowance` says what a generated task may contain. It applies to templates that the task calls
or takes parts from, too: one that runs a process is refused like a process in the task itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from evaluator.errors import ConfigurationError, Diagnostic, TemplateError
from evaluator.files.locations import shipped
from evaluator.interpreter.authority import Authority, reached_tasks
from evaluator.interpreter.frame import Run, Services
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.library.checks import Checked, check_each
from evaluator.nodes import Atomic, Node, Span, Task
from evaluator.nodes.values import of_type
from evaluator.nodes.walk import tasks

if TYPE_CHECKING:
    from evaluator.xml.generated import GeneratedTask

_FILES = {
    "choose_template": "plan/choose_template.xml",
    "extract_inputs": "extract/extract_inputs.xml",
    "decompose": "plan/decompose.xml",
    "compile_task": "plan/compile_task.xml",
}
INTERNAL = frozenset(_FILES)
"""The names of these templates."""


def internal_template(services: Services, name: str) -> Atomic:
    """The template `name` of the library if it has an atomic one, else the shipped one.

    Raises: TemplateError, if the library's own has errors.
    """
    library = services.library
    if name in library or name in library.broken:
        node = library.get(name).node
        if isinstance(node, Atomic):
            return node
    return _shipped(name)


@cache
def _shipped(name: str) -> Atomic:
    node = TemplateLibrary.load(shipped("templates") / _FILES[name], shipped=False).get(name).node
    if not isinstance(node, Atomic):
        raise ConfigurationError(
            f"the shipped template {name!r} is not atomic; reinstall evaluator"
        )
    return node


_NAME = "\x00generated"


@frozen
class Allowance:
    """What a generated task may contain: that of `authority`. `who` names it in messages.

    With `templates_as_tools` it may name any template as a tool. With `reached_tools` the templates
    that it calls may have their own tools.
    """

    who: str
    authority: Authority
    templates_as_tools: bool = False
    reached_tools: bool = False


def read_allowed(
    library: TemplateLibrary, text: str, allowance: Allowance, file: str
) -> GeneratedTask:
    """The task in a model's `text`, with its `ref`s resolved and checked; its `errors` say why it
    cannot be used.

    The schema of an output is a type name or JSON Schema in the task: no file and no module is read
    for a model.
    """
    from evaluator.xml.generated import read_generated_task

    generated = read_generated_task(text, file)
    node = generated.node
    if node is None:
        return generated
    problems = list(_forbidden(node, library, allowance=allowance))
    if not problems:
        try:
            node = library.whole(node)
            problems = list(_reached(node, library, allowance=allowance))
        except TemplateError as error:
            problems = list(error.diagnostics)
    if not problems:
        known = {name: template.node for name, template in library.templates.items()}
        # The templates of the library have been checked already.
        reuse = {name: Checked() for name in known}
        problems = check_each({**known, _NAME: node}, broken=library.broken, reuse=reuse)[
            _NAME
        ].diagnostics
    errors = [one for one in problems if one.severity == "error"]
    warnings = [one for one in problems if one.severity == "warning"]
    return replace(generated, node=node, warnings=(*generated.warnings, *warnings)).with_errors(
        errors
    )


def may_call(library: TemplateLibrary, name: str, allowance: Allowance) -> bool:
    """Whether a generated task may call the template `name`."""
    template = library.get(name).node
    reached = [(name, Span(), task) for task in tasks(template)] + list(
        reached_tasks(template, library)
    )
    return not any(True for _ in _through(reached, allowance))


def _forbidden(node: Node, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """The refusals of what the task itself contains."""
    for task in tasks(node):
        for excess in allowance.authority.excess(task):
            if excess.kind != "tool":
                yield _refusal(f"{allowance.who} may not {excess.what}", excess.span)
        for tool in _tools_of(task, allowance):
            if not (allowance.templates_as_tools and tool in library):
                yield _refusal(f"{allowance.who} may not have the tool {tool!r}", task.span)
        output = task.output
        if output is None or output.schema is None:
            continue
        schema = output.schema.strip()
        if not schema.startswith("{") and of_type(schema) is None:
            message = f"{allowance.who} may not name a file or a module as its schema"
            yield _refusal(message, output.span, hint="write the JSON Schema into <output_format>")


def _tools_of(task: Task, allowance: Allowance) -> list[str]:
    """The tools of `task` that the allowance does not contain."""
    allowed = allowance.authority.tools
    if allowed is None:
        return []
    return [tool for tool in task.tools if tool not in allowed]


def _reached(node: Task, library: TemplateLibrary, allowance: Allowance) -> Iterator[Diagnostic]:
    """The refusals of what the task reaches through templates: by `ref`, by calls, and by templates
    as tools.
    """
    for task in tasks(node):
        for excess in allowance.authority.excess(task):
            if excess.kind == "process":
                yield _refusal(f"{allowance.who} may not {excess.what}", excess.span)
    yield from _through(reached_tasks(node, library), allowance)


def _through(
    reached: Iterable[tuple[str, Span, Task]], allowance: Allowance
) -> Iterator[Diagnostic]:
    """The refusals of templates that are reached, one for each template."""
    refused: set[str] = set()
    for name, span, task in reached:
        if name in refused:
            continue
        kinds = {excess.kind for excess in allowance.authority.excess(task)}
        if "process" in kinds:
            why = "runs a process"
        elif "file" in kinds:
            why = "reads files"
        else:
            why = None
        if why is None and not allowance.reached_tools and _tools_of(task, allowance):
            why = "has tools of its own"
        if why is not None:
            refused.add(name)
            yield _refusal(f"{allowance.who} may not call {name!r}, which {why}", span)


def _refusal(message: str, span: Span, hint: str | None = None) -> Diagnostic:
    return Diagnostic("error", "forbidden", message=message, span=span, hint=hint)


def note_generated(
    run: Run, path: str, name: str, generated: GeneratedTask, xml: str | None = None
) -> str:
    """Notes in the record of `run` what was read of a model's answer, as `xml` if given. Returns:
    the errors as one text, empty if there are none.
    """
    problem = "; ".join(str(one) for one in generated.errors)
    output = {
        "warnings": [describe(warning) for warning in generated.warnings],
        "xml": generated.xml if xml is None else xml,
    }
    run.steps.note(path, "parse", name, None, output, error=problem or None)
    return problem


def describe(diagnostic: Diagnostic) -> str:
    """A finding about a model's answer in one line, for notes."""
    return f"line {diagnostic.span.line}: {diagnostic.message}"
