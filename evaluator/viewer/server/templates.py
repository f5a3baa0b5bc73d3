"""The templates of the project and the shipped ones: what each is for, takes, calls and costs,
source with findings, the prompt for given inputs, a run.

Showing and rendering run nothing and import nothing from the project. Only `simulated_run` does,
and it needs the form of this server with a confirmation.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from evaluator.authoring.pages import callers_of, graph_of
from evaluator.authoring.portraits import Portrait, portrait
from evaluator.errors import UsageError
from evaluator.errors.results import TaskError
from evaluator.handler.profiles import load_profiles
from evaluator.interpreter.evaluator import Evaluator
from evaluator.language.scopes import read_typed
from evaluator.lazy_dataclass import frozen
from evaluator.library import CallBound, TemplateLibrary
from evaluator.library.bounds import bound
from evaluator.library.content import Template
from evaluator.nodes import Function
from evaluator.viewer.json_form import JsonForm, Page, Query
from evaluator.viewer.server.sources import Line, excerpt, read_lines
from evaluator.viewer.server.state import COMPUTING_MS, NoSuchPage, State

MAX_LINES = 3_000
MAX_SHOWN = 1_000
MAX_CALLED = 50
MAX_PREVIEWS = 50
_PREFIX = "input."


@frozen
class InputField:
    """An input in the form. `problem` is why its text cannot be used."""

    name: str
    type: str
    is_required: bool
    default: str
    description: str
    text: str = ""
    problem: str = ""


def template_id(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def templates_page(state: State, query: Query) -> Page:
    """The usable templates, and the findings of all files."""
    library = state.library.read()
    rows = [
        {
            "href": f"/template/{template_id(name)}",
            "name": name,
            "type": template.type,
            "description": _description(template),
            "findings": len(template.diagnostics),
        }
        for name, template in sorted(library.templates.items())[:MAX_SHOWN]
    ]
    shown = {
        "rows": rows,
        "total": len(library.templates),
        "findings": _findings(library.errors),
    }
    return Page("templates", "Templates", shown)


def template_page(state: State, query: Query) -> Page:
    """A template; with the values of its form, the prompt that they give."""
    library = state.library.read()
    template = _template(library, query["template"])
    is_given = any(name.startswith(_PREFIX) for name in query)
    fields, values = _fields(template, query)
    shown: dict[str, Any] = {
        "href": f"/template/{query['template']}",
        "file": _shown_path(template, state),
        "lines": _source(template),
        "description": _description(template),
        "findings": _findings(template.diagnostics),
        "fields": fields,
        "token": state.form_token,
        "problem": "",
        "previews": [],
        "requests": 0,
        "bound": "",
        "error_findings": [],
    }
    described, is_current = _portrait(state, library, template, query.get("model", "").strip())
    shown["portrait"] = described
    if not isinstance(template.node, Function):
        limit = bound(template.node, library, inputs=values if is_given else None)
        shown["bound"] = describe_bound(limit)
        if (is_given or not fields) and not any(field.problem for field in fields):
            with _evaluator(library, state, tasks_dir=None) as evaluator:
                outcome, previews = evaluator.render(template.name, values)
            shown["previews"] = previews[:MAX_PREVIEWS]
            shown["requests"] = len(previews)
            if isinstance(outcome, TaskError):
                shown |= {
                    "problem": outcome.message,
                    "error_findings": _findings(outcome.violations),
                }
    return Page("template", template.name, shown, live_ms=0 if is_current else COMPUTING_MS)


def _portrait(
    state: State, library: TemplateLibrary, template: Template, model: str
) -> tuple[dict[str, Any], bool]:
    """What `evaluator docs` writes about a template, with prices of `model`, and whether it is that
    of now. It runs nothing and sends nothing.
    """
    name = template.name
    graph = graph_of(library, name)
    related = sorted({name, *(called for _, called in graph)})
    callers = callers_of(library, [name])[name]

    def make() -> Portrait:
        return portrait(library, load_profiles(trust=True), name, model=model or None)

    known = [library.templates[each].sha256 for each in related if each in library.templates]
    value = state.portraits.get((name, model), tuple(known), make)
    shown: dict[str, Any] = {
        "model": model,
        "error": value.error,
        "calls": _links(library, sorted(library.called_by(name))),
        "callers": _links(library, sorted(callers)),
        "edges": [_links(library, edge) for edge in graph[:MAX_CALLED]],
    }
    if value.value is not None:
        one: Portrait = value.value
        shown |= {
            "facts": [("type", one.kind), ("version", one.version), ("sha256", one.sha256)],
            "inputs": one.inputs,
            "output": one.output,
            "bound": one.bound.of_model_calls(),
            "price": one.price,
            "explanation": one.bound.explanation,
            "reaches": one.reaches,
            "prompts": one.prompts,
        }
    return JsonForm().plain(shown), value.is_current


def _links(library: TemplateLibrary, names: Iterable[str]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "href": f"/template/{template_id(name)}" if name in library.templates else "",
        }
        for name in list(names)[:MAX_CALLED]
    ]


def simulated_run(state: State, query: Query) -> str:
    """Runs a template with the simulated model, recorded in `tasks/`; scripts and functions of the
    template run.

    Returns: the address of the run. Raises: UsageError, without the form's token or the
    confirmation, or for an input that cannot be used.
    """
    state.check_confirmed(query, "the run")
    library = state.library.read()
    template = _template(library, query["template"])
    fields, values = _fields(template, query)
    for field in fields:
        if field.problem:
            raise UsageError(f"{field.name}: {field.problem}")
    tasks = state.project.root / "tasks"
    with _evaluator(library, state, tasks_dir=tasks) as evaluator:
        outcome = evaluator.evaluate_sync(template.name, values)
    if outcome.task_id is None:
        raise UsageError(f"nothing was run: {outcome}")
    return f"/run/{state.project.id_of(tasks)}/{outcome.task_id}"


def describe_bound(limit: CallBound) -> str:
    calls = limit.of_model_calls()
    if limit.max_calls is None:
        return f"{calls} before the inputs are known"
    return calls


def _evaluator(library: TemplateLibrary, state: State, *, tasks_dir: Path | None) -> Evaluator:
    """An Evaluator that calls the simulated model only, whatever the profile."""
    from evaluator.models.simulated import SimulatedBackend

    return Evaluator(
        library,
        "offline",
        backend=SimulatedBackend(),
        tasks_dir=tasks_dir,
        roots=[state.project.root],
        profiles=load_profiles(trust=tasks_dir is None),
        notice=lambda _line: None,
    )


def _template(library: TemplateLibrary, key: str) -> Template:
    for name, template in library.templates.items():
        if template_id(name) == key:
            return template
    for name in library.broken:
        if template_id(name) == key:
            library.get(name)
    raise NoSuchPage("There is no such template now; open the list of templates.")


def _description(template: Template) -> str:
    node = template.node
    if isinstance(node, Function):
        return node.description
    return node.description.value


def _fields(template: Template, query: Query) -> tuple[list[InputField], dict[str, Any]]:
    """The inputs of the form with the texts in `query`, and the values of those that are given."""
    node = template.node
    values = dict[str, Any]()
    fields: list[InputField] = []
    if isinstance(node, Function):
        return fields, values
    for declared in node.inputs:
        if not declared.is_given:
            continue
        # Browsers send line ends as CR LF.
        text = query.get(_PREFIX + declared.name, "").replace("\r\n", "\n")
        problem = ""
        if declared.default is None:
            default = ""
        else:
            default = declared.default.value
        if text:
            try:
                values[declared.name] = read_typed(text, declared.type)
            except UsageError as error:
                problem = str(error)
        its = (declared.name, declared.type, declared.must_be_given, default, declared.description)
        fields.append(InputField(*its, text, problem))
    return fields, values


def _shown_path(template: Template, state: State) -> str:
    """The path of its file: from the project's folder, or whole if it is outside."""
    if template.file is None:
        return ""
    path = Path(template.file).resolve()
    root = state.project.root
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _source(template: Template) -> list[Line]:
    """The lines of its file; those with a finding are places."""
    if template.file is None:
        return []
    texts = read_lines(Path(template.file))
    places = {each.span.line for each in template.diagnostics if each.span.file == template.file}
    return [
        Line(number, text, is_place=number in places)
        for number, text in enumerate(texts[:MAX_LINES], 1)
    ]


def _findings(diagnostics: Any) -> list[dict[str, Any]]:
    return [
        {
            "message": f"{each.severity}: {each.message} [{each.code}]",
            "hint": each.hint or "",
            "place": str(each.span),
            "lines": excerpt(Path(each.span.file), each.span.line) if each.span.file else (),
        }
        for each in diagnostics[:MAX_SHOWN]
    ]
