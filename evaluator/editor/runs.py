"""The commands that a user triggers in an editor: the prompts of a template, and a run with the
simulated model. Both take the inputs of the template's first example.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluator.editor.outline import runs_programs
from evaluator.editor.project import Project, View
from evaluator.errors import UsageError
from evaluator.errors.messages import visible
from evaluator.errors.results import TaskError
from evaluator.files.locations import shipped
from evaluator.handler.profiles import load_profiles
from evaluator.interpreter.evaluator import Evaluator
from evaluator.language.types import read_typed
from evaluator.models.simulated import SimulatedBackend
from evaluator.nodes import Function, Task

_SAMPLES: dict[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "object": {},
    "array": [],
    "[]": [],
}


def sample_inputs(node: Task) -> dict[str, Any]:
    """Values for the inputs of a template: those of its first example, else ones of their types."""
    example = node.examples[0].inputs if node.examples else {}
    values: dict[str, Any] = {}
    for declared in node.inputs:
        if not declared.is_given:
            continue
        if declared.name in example:
            text = example[declared.name]
            is_text = declared.type in ("any", "string")
            values[declared.name] = text if is_text else read_typed(text, declared.type)
        elif declared.must_be_given:
            sample = [] if declared.type.endswith("[]") else f"({declared.name})"
            values[declared.name] = _SAMPLES.get(declared.type, sample)
    return values


def rendered(project: Project, view: View, name: str) -> str:
    """What a model would see for a template, without a call. Raises: EvaluatorError."""
    node = _task(view, name)
    evaluator = Evaluator(
        view.library, tasks_dir=None, profiles=project.profiles, notice=lambda line: None
    )
    outcome, seen = evaluator.render(name, sample_inputs(node))
    parts: list[str] = []
    for number, preview in enumerate(seen, 1):
        note = "" if preview.exact else ", after simulated answers"
        tokens = f"about {preview.input_tokens} tokens{note}"
        parts.append(f"=== request {number}: {preview.task or 'task'} ({tokens})")
        parts += [f"--- {message.role}\n{message.content}" for message in preview.messages]
    if isinstance(outcome, TaskError):
        parts.append(f"error: {outcome}")
    return visible("\n".join(parts))


def simulated(project: Project, view: View, name: str) -> str:
    """The result of a run with the simulated model, which is not recorded. Raises: EvaluatorError,
    also for a template that runs programs.
    """
    node = _task(view, name)
    if runs_programs(node, view):
        raise UsageError(
            f"`{name}` runs programs or tools, which an editor does not; use: "
            f"evaluator run --template {name} --handler offline"
        )
    # No profile of the project takes part, so none of its servers, tools and keys does.
    offline = load_profiles(shipped("handlers"))["offline"]
    evaluator = Evaluator(
        view.library,
        offline,
        backend=SimulatedBackend(),
        tasks_dir=None,
        profiles={each: replace(offline, name=each) for each in project.profiles},
        notice=lambda line: None,
    )
    outcome = evaluator.evaluate_sync(name, sample_inputs(node))
    if isinstance(outcome, TaskError):
        return visible(f"error: {outcome}")
    return visible(f"{outcome.content}\n\n(simulated model)")


def _task(view: View, name: str) -> Task:
    node = view.library.get(name).node
    if isinstance(node, Function):
        raise UsageError(f"`{name}` is a function; render a template that calls it")
    return node
