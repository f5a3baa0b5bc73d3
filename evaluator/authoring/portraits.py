"""Portraits of templates: purpose, inputs, output, bounds, price, what it may reach, and its
prompts for sample inputs. Everything is computed without a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.results import TaskError
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.cost_bounds import CostBounds
from evaluator.interpreter.evaluator import Evaluator
from evaluator.language.scopes import read_typed
from evaluator.lazy_dataclass import frozen
from evaluator.library import CallBound, TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.library.calls import parameters
from evaluator.library.shapes import is_model
from evaluator.models.simulated import SimulatedBackend
from evaluator.nodes import Function, Node, Task, TopLevel
from evaluator.nodes.walk import tasks

Profiles = Mapping[str, HandlerConfig]

_MAX_EXAMPLES = 5
_SAMPLES: Mapping[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "object": {},
    "array": [],
    "[]": [],
}


@frozen
class Prompts:
    """The requests of a run with these inputs, as texts; `error` where it cannot be resolved. Only
    the first is exact: later ones follow simulated answers.
    """

    title: str
    inputs: Mapping[str, Any]
    requests: tuple[str, ...]
    expected: str | None = None
    error: str | None = None


@frozen
class Portrait:
    """What is known about a template. `reaches` has a line for each thing that it may use: a tool,
    a program, files, a model, a profile. `price` is in words.
    """

    name: str
    kind: str
    description: str
    version: str | None
    file: str | None
    sha256: str
    inputs: tuple[str, ...]
    output: str
    bound: CallBound
    price: str
    reaches: tuple[str, ...]
    calls: tuple[str, ...]
    prompts: tuple[Prompts, ...]


def signature(name: str, node: TopLevel) -> str:
    """A template with what it takes: `title_of(doc, style: string=…)`."""
    shown: list[str] = []
    for parameter, (type_name, is_required) in parameters(node).items():
        if type_name == "any":
            typed = parameter
        else:
            typed = f"{parameter}: {type_name}"
        shown.append(typed if is_required else f"{typed}=…")
    return f"{name}({', '.join(shown)})"


def description_of(node: TopLevel) -> str:
    if isinstance(node, Function):
        text = node.description
    else:
        text = node.description.value
    return " ".join(text.split())


def price_of(
    library: TemplateLibrary,
    profiles: Profiles,
    node: TopLevel | Node,
    model: str | None = None,
) -> str:
    """The most that a run of `node` costs, retries included, in words."""
    try:
        evaluator = Evaluator(
            library, tasks_dir=None, profiles=profiles, notice=lambda line: None
        ).without_network()
        bounds = CostBounds(evaluator, model=model, handler=None)
        most = bounds.most(node, {})  # pyright: ignore[reportArgumentType]
    except EvaluatorError as error:
        return f"no price: {str(error).splitlines()[0]}"
    models = [name for name in most if name is not None]
    if all(name.startswith("simulated/") for name in models):
        return "no price: no model is set" if models else "no cost"
    cost = most[None].cost_usd
    if cost is None:
        return f"price unknown with {', '.join(models)}"
    return f"at most ${cost:,.4f} with {', '.join(models)}, retries included"


def sample_inputs(node: Task, number: int = 0) -> dict[str, Any]:
    """Values for the inputs of a template: those of an example, else ones of their types. Raises:
    UsageError, for a value of another type.
    """
    if number < len(node.examples):
        example = node.examples[number].inputs
    else:
        example = {}
    values: dict[str, Any] = {}
    for declared in node.inputs:
        if not declared.is_given:
            continue
        if declared.name in example:
            values[declared.name] = read_typed(example[declared.name], declared.type)
        elif declared.must_be_given:
            if declared.type.endswith("[]"):
                sample = []
            else:
                sample = f"({declared.name})"
            values[declared.name] = _SAMPLES.get(declared.type, sample)
    return values


def reached(library: TemplateLibrary, node: TopLevel) -> Iterator[Task]:
    """The tasks of a template and of those that it calls."""
    yield from tasks(node)
    if node.name is not None and node.name in library.templates:
        for name in library.called_by(node.name):
            if name in library.templates:
                yield from tasks(library.templates[name].node)


def runs_programs(library: TemplateLibrary, node: TopLevel) -> bool:
    """Whether a run of a template may start programs or tools, or import code of the project."""
    for task in reached(library, node):
        schema = (task.output and task.output.schema) or ""
        is_command = task.file_paths is not None and task.file_paths.source == "command"
        if task.runs_process or task.tools or is_command or is_model(schema):
            return True
    return False


def _reaches(library: TemplateLibrary, node: TopLevel) -> Iterator[str]:
    for task in reached(library, node):
        yield from (f"tool {name}" for name in task.tools)
        command: Any = getattr(task, "command", ())
        if task.runs_process:
            yield f"program {' '.join(text.value for text in command)}"
        if task.file_paths is not None:
            items = ", ".join(text.value for text in task.file_paths.items)
            yield f"files ({task.file_paths.source}) {items}"
        if task.model is not None:
            yield f"model {task.model.value.strip()}"
        if task.model_role is not None:
            yield f"model role {task.model_role}"
        if task.handler is not None and task.handler.ref is not None:
            yield f"profile {task.handler.ref}"
        if task.output is not None and task.output.schema and is_model(task.output.schema):
            yield f"class {task.output.schema}"


def offline_evaluator(library: TemplateLibrary, profiles: Profiles) -> Evaluator:
    """An Evaluator whose every call is answered by the simulated model: no profile's server, tool
    or key takes part.
    """
    offline = HandlerConfig(name="offline", backend="simulated")
    return Evaluator(
        library,
        offline,
        backend=SimulatedBackend(),
        tasks_dir=None,
        profiles={name: replace(offline, name=name) for name in profiles},
        notice=lambda line: None,
    )


def prompts_of(
    library: TemplateLibrary,
    profiles: Profiles,
    name: str,
    inputs: Mapping[str, Any] | None = None,
) -> Iterator[Prompts]:
    """The prompts of a template for `inputs`, else for its first examples, else for sample
    inputs. Raises: UsageError, for a function.
    """
    node = library.get(name).node
    if isinstance(node, Function):
        raise UsageError(f"`{name}` is a function; render a template that calls it")
    with Evaluator(
        library, tasks_dir=None, profiles=profiles, notice=lambda line: None
    ) as evaluator:
        if inputs is not None:
            yield _prompts(evaluator, name, "given inputs", inputs, None)
        else:
            yield from _prompts_of_examples(evaluator, name, node)


def _prompts_of_examples(evaluator: Evaluator, name: str, node: Task) -> Iterator[Prompts]:
    for number in range(min(_MAX_EXAMPLES, max(1, len(node.examples)))):
        title = "sample inputs"
        expected = None
        if number < len(node.examples):
            title = f"example {number + 1}"
            expected = node.examples[number].output
        try:
            values = sample_inputs(node, number)
        except UsageError as error:
            yield Prompts(title, {}, (), expected, str(error))
            continue
        yield _prompts(evaluator, name, title, values, expected)


def _prompts(
    evaluator: Evaluator,
    name: str,
    title: str,
    inputs: Mapping[str, Any],
    expected: str | None,
) -> Prompts:
    outcome, seen = evaluator.render(name, inputs)
    requests: list[str] = []
    for number, preview in enumerate(seen, 1):
        if preview.exact:
            note = ""
        else:
            note = ", after simulated answers"
        lines = [f"=== request {number}: {preview.task or 'task'}{note}"]
        if preview.tools:
            lines.append(f"tools: {', '.join(preview.tools)}")
        lines += [f"--- {message.role}\n{message.content}" for message in preview.messages]
        requests.append("\n".join(lines))
    if isinstance(outcome, TaskError):
        error = str(outcome)
    else:
        error = None
    return Prompts(title, inputs, tuple(requests), expected, error)


def portrait(
    library: TemplateLibrary,
    profiles: Profiles,
    name: str,
    *,
    inputs: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Portrait:
    """The portrait of a template. Raises: UsageError, TemplateError, for one that is not usable."""
    template = library.get(name)
    node = template.node
    if isinstance(node, Function):
        kind = "function"
        taken = [signature(name, node)]
        output = node.returns or "text"
        prompts: tuple[Prompts, ...] = ()
    else:
        kind = node.type
        taken = [
            f"{each.name}: {each.type}{'' if each.must_be_given else ', optional'}"
            f"{f' – {each.description}' if each.description else ''}"
            for each in node.inputs
            if each.is_given
        ]
        if node.output is None:
            output = "text"
        else:
            output = node.output.type
        if node.output is not None and node.output.schema is not None:
            output += f" {' '.join(node.output.schema.split())}"
        prompts = tuple(prompts_of(library, profiles, name, inputs))
    return Portrait(
        name=name,
        kind=kind,
        description=description_of(node),
        version=getattr(node, "version", None),
        file=template.file,
        sha256=template.sha256,
        inputs=tuple(taken),
        output=output,
        bound=CallCounter(library).bound(node),
        price=price_of(library, profiles, node, model),
        reaches=tuple(dict.fromkeys(_reaches(library, node))),
        calls=tuple(sorted(library.called_by(name))),
        prompts=prompts,
    )
