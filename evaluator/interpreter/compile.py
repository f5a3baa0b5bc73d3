"""Words to a task in XML, by a model: read leniently, validated, checked against the library, and shown. Nothing of
it is run here.

Scripts, commands and tools are refused unless the caller allows them; templates of the library may be called,
but for those that run a process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from evaluator.errors import Diagnostic, EvaluatorError, UsageError
from evaluator.interpreter.failures import to_task_error
from evaluator.interpreter.frame import Frame, Outcome, Run, join
from evaluator.interpreter.internal import INTERNAL, internal_template
from evaluator.interpreter.runs import RunStart, record_run
from evaluator.interpreter.services import Services
from evaluator.interpreter.written import Allowance, may_call, read_allowed, said
from evaluator.library import CallBound, Template
from evaluator.library.bounds import bound
from evaluator.nodes import Function, Input, Node, Task, children
from evaluator.results import TaskError, TaskId, Usage
from evaluator.xml.write import to_xml
from evaluator.xml.written import WrittenTask

MAX_TEMPLATES = 40
"""Templates that the model is told of: those that fit the words best."""

_UNNAMED = "compiled"


@dataclass(frozen=True, slots=True)
class CompiledTask:
    """What words were compiled to. Where `errors` say why there is no task, `xml` and `node` are None.

    `xml` is canonical, and read it is `node`. Lines in `warnings` and `errors` are those of `answer`, the
    model's text. `bound` is on the model calls of one run of the task; `usage` is that of the compilation, which
    `model` did (`simulated/…`: it was none).
    """

    xml: str | None
    node: Task | None
    warnings: tuple[Diagnostic, ...]
    errors: tuple[Diagnostic, ...]
    bound: CallBound | None
    answer: str
    usage: Usage
    task_id: TaskId | None
    model: str | None
    failure: TaskError | None = None
    """Why no answer came, where none did."""

    @property
    def ok(self) -> bool:
        return self.node is not None


async def compile_task(
    services: Services,
    words: str,
    *,
    allow_scripts: bool = False,
    allow_tools: Collection[str] = (),
    finish: Callable[[RunStart], RunStart] = lambda start: start,
) -> CompiledTask:
    """The task that `words` describe, written by one recorded call of the template `compile_task`.

    `allow_scripts`: the task may hold scripts and commands. `allow_tools`: the tools that it may name.
    `finish` adds to the run what its caller decides: model, profile, callbacks.

    Returns: what came of it, also where that is nothing. Raises: UsageError, where there are no words.
    """
    if not words.strip():
        raise UsageError("there is nothing to compile: say in words what the task is to do")
    allowance = Allowance(
        "a compiled task", scripts=allow_scripts, tools=frozenset(allow_tools), templates_as_tools=True,
        reached_tools=True,
    )  # fmt: skip
    written: WrittenTask | None = None

    async def body(run: Run, frame: Frame) -> Outcome:
        nonlocal written
        answer = await services.evaluate(run, node, replace(frame, arguments=asked))
        if isinstance(answer, TaskError):
            return answer
        written = _checked(services, answer.content, allowance)
        problem = "; ".join(str(one) for one in written.errors)
        output = {"warnings": [said(one) for one in written.warnings], "xml": _canonical(written)}
        run.steps.note(join(frame.path, "task"), "parse", "compiled task", None, output, error=problem or None)
        if written.node is not None:
            return answer
        return TaskError(
            "VALIDATION_ERROR", f"the answer is no task that can be used: {problem}", "xml_validation_failure",
            violations=written.errors, content=answer.content, notes=answer.notes, usage=answer.usage,
            retryable=True,
        )  # fmt: skip

    try:
        node = internal_template(services, "compile_task")
        asked = {
            "request": words,
            "templates": _listing(services, words, allowance),
            "allowed": _allowed(allow_scripts, allow_tools),
        }
        start = RunStart(
            node, words, asked, template="compile_task", template_version=node.version, body=body,
            origin={"node": to_xml(node)},
        )  # fmt: skip
        outcome = await record_run(services, finish(start))
    except EvaluatorError as error:
        outcome = to_task_error(error)
    return _compiled(services, written, outcome)


def _compiled(services: Services, written: WrittenTask | None, outcome: Outcome) -> CompiledTask:
    failure = outcome if isinstance(outcome, TaskError) else None
    node = None if written is None or failure is not None else written.node
    limit = None
    if node is not None:
        profile = services.default_profile
        limit = bound(node, services.library, max_turns=profile.max_turns, tools_granted=bool(profile.tools))
    return CompiledTask(
        None if node is None else to_xml(node), node,
        () if written is None else written.warnings, () if written is None else written.errors, limit,
        outcome.content if written is None else written.original, outcome.usage, outcome.task_id,
        outcome.notes.get("model"), failure if written is None or written.node is not None else None,
    )  # fmt: skip


def _checked(services: Services, text: str, allowance: Allowance) -> WrittenTask:
    written = read_allowed(services.library, text, allowance, "<answer>")
    if written.node is None:
        return written
    if written.node.name is None:
        # Without one it would be taken for a request, and could not be put into a library.
        node = replace(written.node, name=_UNNAMED)
        message = f"the task has no name; it is called {_UNNAMED!r}"
        written = replace(written, node=node).warned("no-name", message, node.span)
    node = written.node
    return written if node is None else written.refused(_profile_problems(node, services, allowance))


def _profile_problems(node: Node, services: Services, allowance: Allowance) -> list[Diagnostic]:
    """A profile that there is not, or one that grants what the task may not have."""
    found: list[Diagnostic] = []
    ref = node.handler.ref if isinstance(node, Task) and node.handler is not None else None
    if ref is not None and ref not in services.profiles:
        found.append(Diagnostic("error", "unknown-handler", f"no handler profile is called {ref!r}", node.span))
    elif ref is not None:
        granted = sorted({grant.name for grant in services.profiles[ref].tools} - allowance.tools)
        if granted:
            message = f"{allowance.who} may not have the tools of the profile {ref!r}: {', '.join(granted)}"
            found.append(Diagnostic("error", "forbidden", message, node.span))
    for child in children(node):
        found += _profile_problems(child, services, allowance)
    return found


def _canonical(written: WrittenTask) -> str:
    return written.kept_xml if written.node is None else to_xml(written.node)


def _allowed(allow_scripts: bool, allow_tools: Collection[str]) -> str:
    scripts = "run scripts (type script, <command>)" if allow_scripts else "no scripts, no commands"
    tools = f"use the tools {', '.join(sorted(allow_tools))}" if allow_tools else "no tools"
    return f"{scripts}; {tools}" if allow_scripts or allow_tools else f"{scripts}, {tools}"


def _listing(services: Services, words: str, allowance: Allowance) -> str:
    """The templates that may be called, those that fit the words first, one a line."""
    library = services.library
    matched = [match.template.name for match in library.match(words, limit=MAX_TEMPLATES)] if len(library) else []
    names = dict.fromkeys([*matched, *library.templates])
    usable = [name for name in names if name not in INTERNAL and may_call(library, name, allowance)]
    return "\n".join(_line(library.get(name)) for name in usable[:MAX_TEMPLATES]) or "none"


def _line(template: Template) -> str:
    node = template.node
    if isinstance(node, Function):
        inputs = ", ".join(param.name if param.default is None else f"{param.name}?" for param in node.params)
        return f"{template.name}({inputs}): {' '.join(node.description.split())}"
    inputs = ", ".join(_input(one) for one in node.inputs)
    return f"{template.name}({inputs}): {' '.join(node.description.value.split())}"


def _input(one: Input) -> str:
    return f"{one.name}: {one.type}" if one.required and one.default is None else f"{one.name}?: {one.type}"
