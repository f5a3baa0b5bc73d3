"""Finds what a request evaluates: a template by name, one matched to words, a node, or XML; and
what a record says was evaluated.

A request is found once and bound to the inputs of each row.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from evaluator.errors import RecordError, TemplateError, UsageError
from evaluator.errors.messages import cut, shortened
from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.calls import call_function
from evaluator.interpreter.failures import failure, to_task_error
from evaluator.interpreter.frame import (
    DEFAULT_MAX_DEPTH,
    NO_OPTIONS,
    RECORDED_OPTIONS,
    ContextItem,
    Frame,
    Run,
    RunOptions,
    Services,
)
from evaluator.interpreter.interpret import evaluate_node
from evaluator.interpreter.preflight import check_start
from evaluator.interpreter.runs import Binder
from evaluator.interpreter.xml_requests import is_bare, read_xml_request
from evaluator.language.scopes import Scope
from evaluator.library import TemplateLibrary
from evaluator.nodes import Atomic, Call, Function, Input, Node, Sequential, Task, TopLevel
from evaluator.patterns import Pattern
from evaluator.record.steps import Header
from evaluator.xml.build import build
from evaluator.xml.source import read_source

if TYPE_CHECKING:
    from evaluator.interpreter.choosing import Candidate
    from evaluator.library import Match

_XML = Pattern(r"\s*(?:<\?xml\b|<!--|<(?:task|template|library)\b)")
# In scripts without spaces a whole request is one word, so only ASCII words are treated as names.
_NAME = Pattern(r"[A-Za-z0-9_./-]+")
Request = str | Node | Function
RunOf = Callable[[dict[str, Any]], Run]


def is_xml(request: str) -> bool:
    """Whether a request is XML and not words."""
    return request.lstrip().startswith("<") and _XML.match(request) is not None


def node_in(request: str) -> TopLevel | None:
    """The node in a request that is XML; None for words, and for XML that cannot be used."""
    try:
        if is_xml(request):
            return read_xml_request(request).node
        return None
    except TemplateError:
        return None


def prepare_request(
    services: Services, request: Request, ask_model: bool, rerank: bool = False
) -> Binder:
    """What `request` evaluates. The Binder gives the Run for the inputs of one row; a TaskError
    if no template fits or inputs are missing.

    With `rerank` the model chooses a template where the words of a request do not decide.

    Raises: TemplateError or UsageError, for a template that cannot be used.
    """
    library = services.library
    if not isinstance(request, str):
        return _of_task(services, request, ask_model=ask_model)
    if is_xml(request):
        return _of_xml(services, request, ask_model=ask_model)
    if request in library or request in library.broken:
        return _of_template(services, request, request=request)
    if _NAME.fullmatch(request):
        # One word is a name: a misspelt name must not run the nearest template.
        return _refusing(_no_template(request, library))
    from evaluator.interpreter.choosing import shortlist

    matches = library.match(request, limit=5)
    if rerank and (candidates := shortlist(library, request, matches)):
        return _of_choice(services, request, candidates=candidates)
    return _of_match(services, request, matches, ask_model=ask_model)


def _refusing(error: TaskError) -> Binder:
    return lambda values: error


def prepare_words(
    services: Services,
    words: str,
    template: str,
    context: Sequence[ContextItem] = (),
) -> Binder:
    """What a request in words evaluates, whatever they look like, with the template of this name.

    `context` is recorded, so that a resumed run has it too.

    Raises: TemplateError or UsageError, for a template that cannot be used.
    """
    matches = services.library.match(words)
    score = next((m.score for m in matches if m.template.name == template), 0.0)
    of_template = _of_template(services, template, request=words, score=score)
    recorded = recorded_context(context)

    def bind(values: dict[str, Any]) -> Run:
        run = of_template(values)
        _add_context(run, recorded)
        _add_extraction(run, words)
        return run

    return bind


def recorded_context(context: Sequence[ContextItem]) -> list[list[str]]:
    """Context items as a header has them."""
    return [[item.source, item.content] for item in context]


def _add_context(run: Run, recorded: Sequence[Sequence[str]]) -> None:
    """Gives `run` the context items that a header has, or will have."""
    if recorded:
        run.context = tuple(ContextItem(source, content) for source, content in recorded)
        run.extra = {**run.extra, "context": list(recorded)}


def _of_task(services: Services, node: Node | Function, ask_model: bool) -> Binder:
    """A task, which is evaluated as it is written. Where it has nothing but a description, this is
    matched to a template first.
    """
    as_written = _of_node(services, node)
    if not (isinstance(node, Atomic) and is_bare(node)):
        return as_written
    words = node.description.value
    matches = services.library.match(words, limit=5)
    of_match = _of_match(services, words, matches, ask_model=ask_model)

    def bind(values: dict[str, Any]) -> Run | TaskError:
        run = of_match(values)
        if isinstance(run, TaskError) and run.reason == "no_matching_template":
            run = as_written(values)
            run.request = words
        return run

    return bind


def _of_xml(services: Services, text: str, ask_model: bool) -> Binder:
    """The task in `text`; an error keeps the text as its content."""
    try:
        read = read_xml_request(text)
    except TemplateError as error:
        return _refusing(replace(to_task_error(error), content=text))
    if read.is_manual:
        of_task: Binder = _of_node(services, read.node)
    else:
        of_task = _of_task(services, read.node, ask_model=ask_model)

    def bind(values: dict[str, Any]) -> Run | TaskError:
        run = of_task(values)
        if isinstance(run, Run):
            _add_warnings(run, (*read.warnings, *run.warnings))
        return run

    return bind


def _add_warnings(run: Run, warnings: tuple[str, ...]) -> None:
    """Gives `run` warnings about the request, which a replay repeats from the record."""
    if warnings:
        run.warnings = warnings
        run.extra = {**run.extra, "request_warnings": list(warnings)}


def recorded_run(services: Services, header: Header, values: dict[str, Any]) -> Run:
    """The run whose task file has this header.

    Raises: RecordError, if the record does not say what was run; TemplateError or UsageError, as
    `prepare_request`.
    """
    library = services.library
    task = f"TASK-{header.task_id}"
    if header.extra.get("chat"):
        raise RecordError(
            f"{task} is an interactive session; resume it with: evaluator chat --resume "
            f"{header.task_id}{'' if services.store is None else services.store.option}"
        )
    xml = header.extra.get("node")
    score = header.extra.get("match_score")
    warnings = tuple(header.extra.get("request_warnings", ()))
    if isinstance(xml, str):
        run = _of_node(services, _read_node(xml))(values)
        run.request = header.request
        run.template = header.template
        _add_warnings(run, warnings)
        return run
    shortlist = header.extra.get("shortlist")
    if isinstance(shortlist, list):
        from evaluator.interpreter.choosing import Candidate

        candidates = [Candidate(name, score) for name, score in cast("list[Any]", shortlist)]
        return _of_choice(services, header.request, candidates)(values)
    if header.template is None:
        raise RecordError(f"{task}: its file does not say which template was evaluated")
    if header.template not in library and header.template not in library.broken:
        raise RecordError(
            f"{task} evaluates the template {header.template!r}, which is not loaded; name its "
            "folder with --library"
        )
    if not isinstance(score, (int, float)):
        return _of_template(services, header.template, request=header.request)(values)
    of_template = _of_template(services, header.template, header.request, score=float(score))
    run = of_template(values)
    _add_context(run, header.extra.get("context", ()))
    _add_extraction(run, header.request)
    _add_warnings(run, warnings)
    return run


def recorded_options(
    header: Header, services: Services, callbacks: RunOptions | None = None
) -> RunOptions:
    """The options with which the run of this header was started.

    What a header does not have is that of `callbacks`: what receives text, messages and events, and
    `shots`, if there are any.

    Raises: UsageError, if the evaluator was made for another root.
    """
    extra = header.extra
    root = str(services.root)
    if extra.get("root", root) != root:
        raise UsageError(
            f"TASK-{header.task_id} ran with the root {extra['root']}, not {root}; resume it with "
            "that root"
        )
    callbacks = callbacks or NO_OPTIONS
    recorded_shots = [(inputs, answer) for inputs, answer in extra.get("shots", ())]
    return replace(
        callbacks,
        model=header.model,
        shots=callbacks.shots or recorded_shots,
        **{name: extra[name] for name in RECORDED_OPTIONS if name in extra},
    )


def recorded_services(header: Header, services: Services) -> Services:
    """`services` with the settings of the Evaluator that started the run of this header."""
    return replace(
        services,
        reparse=bool(header.extra.get("reparse")),
        max_depth=header.extra.get("max_depth", DEFAULT_MAX_DEPTH),
    )


def _of_template(services: Services, name: str, request: str, score: float | None = None) -> RunOf:
    template = services.library.get(name)
    node = template.node
    called = services.library.called_by(name)
    version = None
    if isinstance(node, Task):
        version = node.version
    if called:
        extra = {"calls": dict(called)}
    else:
        extra = {}

    def bind(values: dict[str, Any]) -> Run:
        run = Run(
            services,
            request,
            inputs=values,
            node=node,
            template=name,
            template_sha256=template.sha256,
            template_version=version,
            match_score=score,
            extra=extra,
        )
        if isinstance(node, Function):
            run.body = _call_body(node, values)
        else:
            run.arguments = values
        return run

    return bind


def _call_body(
    function: Function, values: dict[str, Any]
) -> Callable[[Run, Frame], Awaitable[Outcome]]:
    return lambda run, frame: call_function(
        run, function, positional=[], named=values, span=function.span, frame=frame
    )


def _of_node(services: Services, node: Node | Function) -> RunOf:
    from evaluator.xml.write import to_xml

    try:
        extra = {"node": to_xml(node)}
    except UsageError:
        # The node holds values that XML cannot. The run is recorded, but cannot be started again
        # from its file.
        extra = {}
    if isinstance(node, Task):
        node = services.library.whole(node)

    def bind(values: dict[str, Any]) -> Run:
        run = Run(services, "node", inputs=values, node=node, extra=extra)
        if isinstance(node, Call):
            run.request = "call"
        elif isinstance(node, Function | Task):
            run.template = node.name
            run.request = node.name or "node"
        if isinstance(node, Function):
            run.body = _call_body(node, values)
        elif isinstance(node, Task) and node.inputs:
            # Declared inputs take their values as arguments; other values are in the scope.
            declared = {i.name for i in node.inputs}
            run.scope = Scope({k: v for k, v in values.items() if k not in declared})
            run.arguments = {k: v for k, v in values.items() if k in declared}
        else:
            run.scope = Scope(values)
        return run

    return bind


def _read_node(xml: str) -> Node | Function:
    """The node in `xml`. The root of a file has to be a task or a function, so other nodes are put
    into a task.
    """
    is_root = xml.startswith(("<task", "<template"))
    if is_root:
        text = xml
    else:
        text = f'<task type="sequential"><description>.</description><steps>{xml}</steps></task>'
    built = build(read_source(text.encode(), "<record>"))
    if len(built.templates) != 1:
        raise RecordError(
            "the node in the task file cannot be read: " + "; ".join(map(str, built.diagnostics))
        )
    node = built.templates[0]
    if is_root or not isinstance(node, Sequential):
        return node
    return node.steps[0]


def _of_match(services: Services, words: str, matches: list[Match], ask_model: bool) -> Binder:
    from evaluator.library.matching import better_composites, describe_composites, nothing_fits

    library = services.library
    best = None
    if matches:
        best = matches[0]
    composites = library.match_composites(words)
    better = better_composites(best, composites)
    if best is None or nothing_fits(best, composites):
        return _refusing(_no_match(words, matches, composites=better))
    name = best.template.name
    of_template = _of_template(services, name, request=words, score=best.score)
    warnings: tuple[str, ...] = ()
    if better:
        warnings = (f"{describe_composites(better)}; {name!r} ran",)

    def bind(values: dict[str, Any]) -> Run | TaskError:
        run = of_template(values)
        _add_warnings(run, warnings)
        missing = _missing(run)
        if missing and not ask_model:
            names = ", ".join(f"{i.name} ({i.type})" for i in missing)
            return failure(
                "input_validation_failure",
                f"{name!r} fits the request (score {best.score:.2f}) and needs: {names}",
                location=best.template.node.span,
            )
        if missing:
            _add_extraction(run, words)
        return run

    return bind


def _of_choice(services: Services, words: str, candidates: Sequence[Candidate]) -> RunOf:
    """What a request evaluates whose template a model chooses from the candidates."""
    from evaluator.interpreter.choosing import choose

    library = services.library
    extra = {"shortlist": [[candidate.name, candidate.score] for candidate in candidates]}

    async def body(run: Run, frame: Frame) -> Outcome:
        values = dict(run.inputs)
        chosen = await choose(run, frame, words, candidates)
        if isinstance(chosen, TaskError):
            return chosen
        if chosen is None:
            return _no_match(words, library.match(words, limit=5), composites=[], asked_model=True)
        of_chosen = _of_template(services, chosen.name, request=words)(values)
        _add_extraction(of_chosen, words)
        node = cast(Task, of_chosen.node)
        inner = replace(frame, arguments=values)
        await check_start(run, node, inner.domain)
        if of_chosen.body is not None:
            outcome = await of_chosen.body(run, inner)
        else:
            outcome = await evaluate_node(run, node, frame=inner)
        matched = {"template": chosen.name, "score": round(chosen.score, 4), "by": "model"}
        return replace(outcome, notes={**outcome.notes, "matched": matched})

    return lambda values: Run(services, words, inputs=values, extra=extra, body=body)


def _missing(run: Run) -> list[Input]:
    """The inputs that the task of `run` needs and has no values for."""
    if not isinstance(run.node, Task):
        return []
    return [
        i
        for i in run.node.inputs
        if i.required
        and i.default is None
        and i.task is None
        and i.source is None
        and i.name not in run.inputs
    ]


def _add_extraction(run: Run, words: str) -> None:
    """Lets a model call extract the missing inputs of `run` from the words."""
    missing = _missing(run)
    node = run.node
    values = run.inputs
    if not missing or not isinstance(node, Task):
        return

    async def body(run: Run, frame: Frame) -> Outcome:
        extracted = await _extract_inputs(run, frame, request=words, missing=missing, node=node)
        if isinstance(extracted, TaskError):
            return extracted
        return await evaluate_node(
            run, node, frame=replace(frame, arguments={**extracted, **values})
        )

    run.body = body


async def _extract_inputs(
    run: Run, frame: Frame, request: str, missing: Sequence[Input], node: Task
) -> dict[str, Any] | TaskError:
    """Values for `missing` by name, from one task at the path `bind`; an error lists the inputs not
    found.
    """
    from evaluator.interpreter.generated import internal_template

    arguments: dict[str, Any] = {
        "request": request,
        "template": node.description.value,
        "declared": "\n".join(f"{i.name} ({i.type}): {i.description}" for i in missing),
    }
    # A simulated model does not read; its value for each text input is the request itself.
    simulated = json.dumps({i.name: request for i in missing if i.type in ("string", "any")})
    outcome = await run.services.evaluate(
        run.inner(simulated),
        internal_template(run.services, "extract_inputs"),
        frame.at("bind", arguments=arguments),
    )
    if isinstance(outcome, TaskError):
        return outcome
    answer = outcome.parsed_data
    if isinstance(answer, Mapping):
        values = cast("Mapping[str, Any]", answer)
    else:
        values = {}
    names = {i.name for i in missing}
    kept = {key: value for key, value in values.items() if key in names and value is not None}
    lacking = [i.name for i in missing if i.name not in kept]
    if lacking:
        return failure(
            "input_validation_failure",
            f"{node.name!r} needs {', '.join(lacking)}, which the request does not give",
            location=node.span,
            content=outcome.content,
        )
    return kept


def _no_template(name: str, library: TemplateLibrary) -> TaskError:
    message = (
        f"there is no template {cut(name, 60)!r}, and a request in words has more than one word; "
        f"{library.suggestion(name)}"
    )
    return failure("no_matching_template", message)


def _no_match(
    words: str, matches: list[Match], composites: list[Match], *, asked_model: bool = False
) -> TaskError:
    from evaluator.library.matching import FOREIGN_ADVICE, describe_composites
    from evaluator.library.request_terms import seems_foreign

    nearest = ", ".join(f"{m.template.name} ({m.score:.2f})" for m in matches) or "none"
    advice = ["Name one with its exact name, or add a template for it"]
    if composites:
        advice.append(describe_composites(composites))
    if asked_model:
        advice.append("The model was asked too and chose none of them")
    elif seems_foreign(words):
        advice.append(FOREIGN_ADVICE)
    return failure(
        "no_matching_template",
        f"no template fits the request {shortened(words)}; the nearest are: {nearest}. "
        + ". ".join(advice),
    )
