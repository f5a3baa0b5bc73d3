"""The operator director_evaluator_loop: director, optional script, evaluator, until the condition holds.

Reaching `max_iterations` is COMPLETE with `termination_reason`, since there is a result; the caller sees
that the evaluator was not satisfied. An evaluator's output without `success` counts as not successful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.errors.results import TaskError, TaskResult
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.evaluation import evaluation_of
from evaluator.interpreter.frame import ContextItem, Outcome, Run, value_of
from evaluator.interpreter.operators.outcomes import accumulate, completed, failed
from evaluator.interpreter.prepared import Prepared
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import evaluate_expression
from evaluator.language.scopes import Scope
from evaluator.nodes import DirectorEvaluatorLoop, Node

EMPTY_SCRIPT: Mapping[str, Any] = {"stdout": "", "stderr": "", "exit_code": None}
NOT_EVALUATED: Mapping[str, Any] = {"success": False, "feedback": "", "details": None}


@dataclass(slots=True)
class _State:
    """State that one iteration passes to the next. `history` has the evaluation of each."""

    iteration: int = 0
    director: TaskResult | None = None
    script: Mapping[str, Any] = field(default_factory=lambda: EMPTY_SCRIPT)
    evaluation: Mapping[str, Any] = field(default_factory=lambda: NOT_EVALUATED)
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    warnings: list[str] = field(default_factory=list[str])

    def bind(self, scope: Scope) -> Scope:
        return scope.child(
            {
                "current_iteration": self.iteration,
                "director_result": "" if self.director is None else value_of(self.director),
                "script_output": self.script,
                "evaluation": self.evaluation,
                "evaluation_feedback": self.evaluation["feedback"],
            }
        )


async def run_loop(run: Run, task: DirectorEvaluatorLoop, prepared: Prepared) -> Outcome:
    most: int = resolve_setting(task, "max_iterations", prepared.scope)
    state = _State()
    context = prepared.context.items
    reason = "max_iterations"
    for state.iteration in range(1, most + 1):
        error = await _iterate(run, task, prepared, state, context)
        if error is not None:
            return _failed(error, prepared, state, most)
        if await _is_done(run, task, prepared, state):
            reason = "condition_met"
            break
        if state.director is not None:
            context = accumulate(context, prepared, f"iteration:{state.iteration}", state.director)
    evaluation = dict(state.evaluation)
    notes = prepared.notes(
        termination_reason=reason, iterations=state.iteration, max_iterations=most,
        evaluation=evaluation, history=state.history,
    )  # fmt: skip
    notes["warnings"] += state.warnings
    if reason == "max_iterations" and not evaluation["success"]:
        notes["warnings"].append(f"the evaluator was not satisfied after {most} iterations")
    content, parsed = _directed(state)
    return completed(run, prepared, content, parsed, notes)


async def _iterate(
    run: Run, task: DirectorEvaluatorLoop, prepared: Prepared, state: _State, context: tuple[ContextItem, ...]
) -> TaskError | None:
    """One iteration. `state` is updated part by part, so that a failure keeps the results so far."""

    async def outcome_of(node: Node, part: str) -> Outcome:
        segment = f"iterations[{state.iteration}]/{part}"
        frame = prepared.inside(segment, state.bind(prepared.scope), context=context)
        return await run.services.evaluate(run, node, frame)

    directed = await outcome_of(task.director, "director")
    if isinstance(directed, TaskError):
        return directed
    state.director = directed
    if task.script_execution is not None:
        scripted = _script_output(await outcome_of(task.script_execution, "script"))
        if isinstance(scripted, TaskError):
            return scripted
        state.script = scripted
    evaluated = await outcome_of(task.evaluator, "evaluator")
    if isinstance(evaluated, TaskError) and evaluated.type != "INVALID_OUTPUT":
        return evaluated
    state.evaluation, is_judged = evaluation_of(evaluated)
    if not is_judged:
        message = f"iteration {state.iteration}: the evaluator's answer has no true or false `success`"
        state.warnings.append(message)
    state.history.append({"iteration": state.iteration, "evaluation": dict(state.evaluation)})
    return None


def _directed(state: _State) -> tuple[str, Any]:
    """The director's last text and value."""
    return ("", None) if state.director is None else (state.director.content, state.director.parsed_content)


def _script_output(outcome: Outcome) -> dict[str, Any] | TaskError:
    """The script's output for the evaluator, also with a failing exit code. A script that never ran is an error."""
    if isinstance(outcome, TaskResult):
        return {"stdout": outcome.content, "stderr": outcome.notes.get("stderr", ""), "exit_code": 0}
    if outcome.reason == "tool_failure" and "exit_code" in outcome.details:
        return {
            "stdout": outcome.content, "stderr": outcome.details.get("stderr", ""),
            "exit_code": outcome.details["exit_code"],
        }  # fmt: skip
    if outcome.type == "RESOURCE_EXHAUSTION" and outcome.resource and outcome.resource.name == "time":
        return {"stdout": outcome.content, "stderr": outcome.message, "exit_code": None}
    return outcome


async def _is_done(run: Run, task: DirectorEvaluatorLoop, prepared: Prepared, state: _State) -> bool:
    if task.termination_condition is None:
        return bool(state.evaluation["success"])
    functions = functions_in_text(run, prepared.frame, f"iterations[{state.iteration}]/termination_condition")
    scope = state.bind(prepared.scope)
    return bool(await evaluate_expression(task.termination_condition, scope, functions=functions))


def _failed(error: TaskError, prepared: Prepared, state: _State, most: int) -> TaskError:
    content, _ = _directed(state)
    found = failed(
        error, prepared, f"iteration {state.iteration} of {most}", failed_step={"iteration": state.iteration},
        total_steps=most, partial_results=state.history, director_result=content,
    )  # fmt: skip
    return replace(found, content=found.content or content)
