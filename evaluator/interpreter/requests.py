"""What a request starts: a template's name, words that are matched, or a node; and the same again from a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.binding.scopes import Scope
from evaluator.errors import RecordError, UsageError
from evaluator.interpreter.extraction import extract_inputs
from evaluator.interpreter.failures import failure
from evaluator.interpreter.frame import Frame, Outcome, Run
from evaluator.interpreter.interpret import evaluate_node
from evaluator.interpreter.operators.call import call_function
from evaluator.interpreter.runs import RunStart
from evaluator.library import Match, TemplateLibrary
from evaluator.library.matching import LOW_SCORE
from evaluator.library.near import did_you_mean
from evaluator.nodes import Atomic, Call, Cond, Function, Input, Node, Sequential, Task, TopLevel
from evaluator.record.steps import Header
from evaluator.results import TaskError
from evaluator.xml.build import build
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml

# In scripts without spaces a whole request is one word: only ASCII ones are taken for names.
_NAME = re.compile(r"[A-Za-z0-9_./-]+")
Request = str | Node | Function


def start_of(
    library: TemplateLibrary, request: Request, values: dict[str, Any], ask_model: bool
) -> RunStart | TaskError:
    """The start of a run, without what its caller decides (model, profile, callbacks, …).

    Raises: TemplateError or UsageError, for a template that cannot be used.
    """
    if isinstance(request, str) and (request in library or request in library.broken):
        return start_template(library, request, request, values)
    if isinstance(request, str) and _NAME.fullmatch(request):
        # One word is a name: a misspelt one must not run whatever is nearest to it.
        return _no_template(request, library)
    if isinstance(request, str) or _is_request(request):
        return _start_matched(library, request, values, ask_model)
    return _start_node(library, request, values)


def start_again(library: TemplateLibrary, header: Header, values: dict[str, Any]) -> RunStart:
    """The start of the run whose task file has this header.

    Raises: RecordError, if the record does not say what was run; TemplateError or UsageError, as `start_of`.
    """
    if header.extra.get("chat"):
        raise RecordError(
            f"TASK-{header.task_id} is an interactive session; go on with it: evaluator chat --resume {header.task_id}"
        )
    written, score = header.extra.get("node"), header.extra.get("match_score")
    if isinstance(written, str):
        start = _start_node(library, _read_node(written), values)
        return replace(start, request=header.request, template=header.template)
    if header.template is None:
        raise RecordError(f"TASK-{header.task_id}: its file does not say which template was evaluated")
    if header.template not in library and header.template not in library.broken:
        raise RecordError(
            f"TASK-{header.task_id} evaluates the template {header.template!r}, which is not loaded; name its "
            "folder with --library"
        )
    if isinstance(score, (int, float)):
        start = start_template(library, header.template, header.request, values, float(score))
        return _with_extraction(start, header.request, values)
    return start_template(library, header.template, header.request, values)


def start_template(
    library: TemplateLibrary, name: str, request: str, values: dict[str, Any], score: float | None = None
) -> RunStart:
    template = library.get(name)
    node = template.node
    start = RunStart(
        node, request, values, template=name, template_sha256=template.sha256, match_score=score, arguments=values,
        template_version=None if isinstance(node, Function) else node.version,
    )  # fmt: skip
    called = library.called_by(name)
    if called:
        start = replace(start, origin={"calls": dict(called)})
    return replace(start, arguments=None, body=_calling(node, values)) if isinstance(node, Function) else start


def _calling(function: Function, values: dict[str, Any]) -> Any:
    async def body(run: Run, frame: Frame) -> Outcome:
        return await call_function(run, function, [], values, function.span, frame)

    return body


def _start_node(library: TemplateLibrary, node: Node | Function, values: dict[str, Any]) -> RunStart:
    try:
        origin = {"node": to_xml(node)}
    except UsageError:
        # It holds what XML cannot: such a run is recorded, and cannot be started again from its file.
        origin = {}
    if isinstance(node, Function):
        return RunStart(node, node.name, values, template=node.name, origin=origin, body=_calling(node, values))
    if isinstance(node, Task):
        node = library.whole(node)
    name = node.name if isinstance(node, Task) else None
    label = name or ("call" if isinstance(node, Call) else "node")
    return _evaluating(RunStart(node, label, values, template=name, origin=origin), values)


def _read_node(written: str) -> Node | Function:
    """The node that was written as XML, which as the root of a file has to be a task or a function."""
    text = written
    is_root = written.startswith(("<task", "<template"))
    if not is_root:
        text = f'<task type="sequential"><description>.</description><steps>{written}</steps></task>'
    built = build(read_source(text.encode(), "<record>"))
    if len(built.templates) != 1:
        raise RecordError("the node in the task file cannot be read: " + "; ".join(map(str, built.diagnostics)))
    found = built.templates[0]
    return found if is_root or not isinstance(found, Sequential) else found.steps[0]


def _evaluating(start: RunStart, values: dict[str, Any]) -> RunStart:
    """Declared inputs take their values as arguments; what a node does not declare it sees in its scope."""
    node = start.node
    if isinstance(node, Task) and node.inputs:
        declared = {i.name for i in node.inputs}
        rest = {k: v for k, v in values.items() if k not in declared}
        return replace(start, arguments={k: v for k, v in values.items() if k in declared}, scope=Scope(rest))
    return replace(start, scope=Scope(values))


def _start_matched(
    library: TemplateLibrary, request: Any, values: dict[str, Any], ask_model: bool
) -> RunStart | TaskError:
    words = request if isinstance(request, str) else request.description.value
    matches = library.match(request, limit=5)
    best = matches[0] if matches else None
    if best is None or best.score < LOW_SCORE:
        if isinstance(request, str):
            return _no_match(words, matches)
        return replace(_start_node(library, request, values), request=words)
    start = start_template(library, best.template.name, words, values, best.score)
    missing = _missing(start.node, values)
    if missing and not ask_model:
        names = ", ".join(f"{i.name} ({i.type})" for i in missing)
        return failure(
            "input_validation_failure",
            f"{best.template.name!r} fits the request (score {best.score:.2f}) and needs: {names}",
            location=best.template.node.span,
        )
    return _with_extraction(start, words, values)


def _missing(node: TopLevel | Node | None, values: Mapping[str, Any]) -> list[Input]:
    if not isinstance(node, Task):
        return []
    return [
        i for i in node.inputs
        if i.required and i.default is None and i.task is None and i.source is None and i.name not in values
    ]  # fmt: skip


def _with_extraction(start: RunStart, words: str, values: dict[str, Any]) -> RunStart:
    """With the model asked for the inputs that the words have to give."""
    node, missing = start.node, _missing(start.node, values)
    if not missing:
        return start
    assert isinstance(node, Task)

    async def body(run: Run, frame: Frame) -> Outcome:
        found = await extract_inputs(run, frame, words, missing, node)
        if isinstance(found, TaskError):
            return found
        return await evaluate_node(run, node, replace(frame, arguments={**found, **values}))

    return replace(start, body=body)


def _is_request(node: object) -> bool:
    return isinstance(node, Atomic) and node.name is None and node.instructions is None and node.ref is None


def _no_template(name: str, library: TemplateLibrary) -> TaskError:
    hint = did_you_mean(name, library.templates, f"{len(library.templates)} templates are loaded")
    return failure("no_matching_template", f"there is no template {name!r}; {hint}. A request in words has several")


def _no_match(words: str, matches: list[Match]) -> TaskError:
    nearest = ", ".join(f"{m.template.name} ({m.score:.2f})" for m in matches) or "none"
    shown = words if len(words) <= 80 else words[:77] + "…"
    return failure(
        "no_matching_template",
        f"no template fits the request {shown!r}; the nearest are: {nearest}. Name one with its exact name, "
        "or add a template for it",
    )


def is_request_type(value: object) -> bool:
    """Whether `value` is of a type that can be evaluated."""
    return isinstance(value, (str, Task, Call, Cond, Function))
