"""The commands that a user triggers in an editor: the prompts of a template, and a run with the
simulated model. Both take the inputs of the template's first example.
"""

from __future__ import annotations

from evaluator.authoring.portraits import (
    offline_evaluator,
    prompts_of,
    runs_programs,
    sample_inputs,
)
from evaluator.editor.project import Project, View
from evaluator.errors import UsageError
from evaluator.errors.messages import visible
from evaluator.errors.results import TaskError
from evaluator.nodes import Function


def rendered(project: Project, view: View, name: str) -> str:
    """What a model would see for a template, without a call. Raises: EvaluatorError."""
    prompts = next(prompts_of(view.library, project.profiles, name))
    if prompts.error is None:
        error = []
    else:
        error = [f"error: {prompts.error}"]
    return visible("\n".join([f"({prompts.title})", *prompts.requests, *error]))


def simulated(project: Project, view: View, name: str) -> str:
    """The result of a run with the simulated model, which is not recorded. Raises: EvaluatorError,
    also for a template that runs programs.
    """
    node = view.library.get(name).node
    if isinstance(node, Function):
        raise UsageError(f"`{name}` is a function; run a template that calls it")
    if runs_programs(view.library, node):
        raise UsageError(
            f"`{name}` runs programs or tools, which an editor does not; use: "
            f"evaluator run --template {name} --handler offline"
        )
    evaluator = offline_evaluator(view.library, project.profiles)
    outcome = evaluator.evaluate_sync(name, sample_inputs(node))
    if isinstance(outcome, TaskError):
        return visible(f"error: {outcome}")
    return visible(f"{outcome.content}\n\n(simulated model)")
