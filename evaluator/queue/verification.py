"""Verification of an attempt's result: what a check receives, and the check by a grader template.

A result that no check refuses is verified if its task is COMPLETE; its declared output format was
checked already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evaluator.errors import UsageError
from evaluator.errors.machine import machine_error
from evaluator.errors.results import Outcome, TaskError, TaskResult
from evaluator.interpreter.evaluation import evaluation_of
from evaluator.interpreter.evaluator import Evaluator
from evaluator.nodes import Function, Task
from evaluator.queue.deliverables import text_of
from evaluator.queue.entries import QueueEntry


class EvaluateForVerifier(Protocol):
    """Evaluates a template for a check, as `Evaluator.evaluate` does."""

    def __call__(
        self,
        template: str,
        inputs: Mapping[str, Any],
        *,
        model_roles: Mapping[str, str] | None = None,
        epoch: int = 1,
    ) -> Awaitable[Outcome]: ...


@dataclass(frozen=True, slots=True)
class ResultToVerify:
    """The result of an attempt. `evaluate`: as `Evaluator.evaluate`, for evaluations that a check
    makes; after an interruption they are resumed. `file`: the file that is delivered, None if the
    answer is all that there is.
    """

    entry: QueueEntry
    template: str
    inputs: Mapping[str, Any]
    outcome: TaskResult
    evaluator: Evaluator
    evaluate: EvaluateForVerifier
    file: Path | None = None


class Verifier(Protocol):
    """Checks a result: None if it is what the entry asks for, else one sentence about what is
    wrong.
    """

    async def __call__(self, result: ResultToVerify) -> str | None: ...


class GraderVerifier:
    """A template that grades: it gets those of its inputs that are named in `INPUTS`, and answers
    with `success`, true or false, and `feedback`, as an evaluator of a `director_evaluator_loop`
    does. `file` is the text of the file that is delivered, empty if there is none.

    Raises: UsageError or TemplateError, if the template cannot be used or needs other inputs.
    """

    INPUTS = ("description", "goal", "answer", "criteria", "template", "inputs", "file")

    def __init__(self, evaluator: Evaluator, template: str) -> None:
        self.template = template
        node = evaluator.library.get(template).node
        if isinstance(node, Function):
            raise UsageError(f"{template!r} is a function; a grader is a task")
        self._inputs = [declared.name for declared in node.inputs if declared.name in self.INPUTS]
        needed = [
            i.name
            for i in node.inputs
            if i.required and i.default is None and i.name not in self.INPUTS
        ]
        if needed:
            raise UsageError(
                f"the grader {template!r} needs the input {needed[0]!r}; a grader may need "
                f"{', '.join(self.INPUTS)}"
            )

    async def __call__(self, result: ResultToVerify) -> str | None:
        entry = result.entry
        node = result.evaluator.library.get(result.template).node
        if isinstance(node, Task) and node.criteria is not None:
            criteria = node.criteria.value
        else:
            criteria = ""
        values: dict[str, Any] = {
            "description": entry.description,
            "goal": entry.goal,
            "answer": result.outcome.content,
            "criteria": criteria,
            "template": result.template,
            "inputs": dict(result.inputs),
        }
        inputs: dict[str, Any] = {name: values[name] for name in self._inputs if name in values}
        if "file" in self._inputs:
            if result.file is None:
                inputs["file"] = ""
            else:
                inputs["file"] = await asyncio.to_thread(text_of, result.evaluator, result.file)
        graded = await result.evaluate(self.template, inputs)
        if isinstance(graded, TaskError):
            return f"the grader {self.template!r} failed: {graded}"
        evaluation, _ = evaluation_of(graded)
        if evaluation["success"]:
            return None
        return (
            evaluation["feedback"] or f"the grader {self.template!r} says that it is not a success"
        )


async def failure_of(verifiers: Sequence[Verifier], result: ResultToVerify) -> str | None:
    """What the first check that refuses the result says; None if none does. A check that fails
    refuses it.

    Raises: MachineError.
    """
    if not result.outcome.ok:
        return f"the task ended with {result.outcome.status.value}, not COMPLETE"
    for verify in verifiers:
        try:
            found = await verify(result)
        except Exception as error:
            if (trouble := machine_error(error)) is not None:
                raise trouble from error
            return f"the check {verify!r:.100} failed: {type(error).__name__}: {error}"
        if found is not None:
            return found
    return None
