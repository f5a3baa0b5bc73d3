"""director_evaluator_loop: director, optional script, evaluator, until the condition holds or the iterations end.

Reaching `max_iterations` is COMPLETE with `termination_reason`, since there is a result; the caller sees
that the evaluator was not satisfied. An evaluator's output without `success` counts as not successful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from evaluator.binding.inputs import resolve_setting
from evaluator.binding.sandbox import evaluate_expression
from evaluator.binding.scopes import Scope
from evaluator.interpreter.evaluation import evaluation_of
from evaluator.interpreter.frame import ContextItem, Outcome, Run, value_of
from evaluator.interpreter.operators.atomic import read_output
from evaluator.interpreter.operators.call import functions_in_text
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.interpreter.operators.sequential import accumulated
from evaluator.nodes import DirectorEvaluatorLoop
from evaluator.results import Status, TaskError, TaskResult

EMPTY_SCRIPT: Mapping[str, Any] = {"stdout": "", "stderr": "", "exit_code": None}
NOT_EVALUATED: Mapping[str, Any] = {"success": False, "feedback": "", "details": None}


@dataclass(slots=True)
class State:
    """What one iteration hands to the next."""

    iteration: int = 0
    director: TaskResult | None = None
    script: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    is_judged: bool = True

    def bind(self, scope: Scope) -> Scope:
        evaluation = self.evaluation or NOT_EVALUATED
        return scope.child(
            {
                "current_iteration": self.iteration,
                "director_result": "" if self.director is None else value_of(self.director),
                "script_output": self.script or EMPTY_SCRIPT,
                "evaluation": evaluation,
                "evaluation_feedback": evaluation["feedback"],
            }
        )


async def run(run: Run, task: DirectorEvaluatorLoop, prepared: Prepared) -> Outcome:
    most: int = resolve_setting(task.max_iterations, "int", prepared.scope, name="max_iterations", minimum=1) or 1
    state, history, warnings = State(), list[dict[str, Any]](), list[str]()
    context = prepared.context.items
    reason = "max_iterations"
    for state.iteration in range(1, most + 1):
        failed = await _iterate(run, task, prepared, state, context)
        if failed is not None:
            return _failed(failed, prepared, state, most, history)
        assert state.director is not None and state.evaluation is not None
        if not state.is_judged:
            warnings.append(f"iteration {state.iteration}: the evaluator's answer has no true or false `success`")
        history.append({"iteration": state.iteration, "evaluation": dict(state.evaluation)})
        if await _done(run, task, prepared, state):
            reason = "condition_met"
            break
        if prepared.policy.accumulate_data:
            text = accumulated(state.director, prepared.policy.accumulation_format)
            if text:
                context = (*context, ContextItem(f"iteration:{state.iteration}", text))
    assert state.director is not None and state.evaluation is not None
    notes = prepared.notes(
        termination_reason=reason, iterations=state.iteration, max_iterations=most,
        evaluation=dict(state.evaluation), history=history,
    )  # fmt: skip
    notes["warnings"] += warnings
    if reason == "max_iterations" and not state.evaluation["success"]:
        notes["warnings"].append(f"the evaluator was not satisfied after {most} iterations")
    result = TaskResult(
        Status.COMPLETE, state.director.content, state.director.parsed_content, notes, prepared.budget.usage
    )
    return result if task.output is None else read_output(run, result, task.output, prepared.frame.path)


async def _iterate(
    run: Run, task: DirectorEvaluatorLoop, prepared: Prepared, state: State, context: tuple[ContextItem, ...]
) -> TaskError | None:
    """One round. `state` is updated part by part, so that a failure keeps what was done."""
    place = f"iterations[{state.iteration}]"
    services = run.services

    frame = prepared.inside(f"{place}/director", state.bind(prepared.scope), context=context)
    directed = await services.evaluate(run, task.director, frame)
    if isinstance(directed, TaskError):
        return directed
    state.director = directed
    if task.script_execution is not None:
        frame = prepared.inside(f"{place}/script", state.bind(prepared.scope), context=context)
        scripted = await services.evaluate(run, task.script_execution, frame)
        output = _script_output(scripted)
        if output is None:
            return cast("TaskError", scripted)
        state.script = output
    frame = prepared.inside(f"{place}/evaluator", state.bind(prepared.scope), context=context)
    evaluated = await services.evaluate(run, task.evaluator, frame)
    if isinstance(evaluated, TaskError) and evaluated.type != "INVALID_OUTPUT":
        return evaluated
    state.evaluation, state.is_judged = evaluation_of(evaluated)
    return None


def _script_output(outcome: Outcome) -> dict[str, Any] | None:
    """What the evaluator sees of the script: a failing exit code is information, a script that never ran is not."""
    if isinstance(outcome, TaskResult):
        return {"stdout": outcome.content, "stderr": outcome.notes.get("stderr", ""), "exit_code": 0}
    if outcome.reason == "tool_failure" and "exit_code" in outcome.details:
        return {
            "stdout": outcome.content, "stderr": outcome.details.get("stderr", ""),
            "exit_code": outcome.details["exit_code"],
        }  # fmt: skip
    if outcome.type == "RESOURCE_EXHAUSTION" and outcome.resource and outcome.resource.name == "time":
        return {"stdout": outcome.content, "stderr": outcome.message, "exit_code": None}
    return None


async def _done(run: Run, task: DirectorEvaluatorLoop, prepared: Prepared, state: State) -> bool:
    assert state.evaluation is not None
    if task.termination_condition is None:
        return bool(state.evaluation["success"])
    functions = functions_in_text(run, prepared.frame, f"iterations[{state.iteration}]/termination_condition")
    scope = state.bind(prepared.scope)
    return bool(await evaluate_expression(task.termination_condition, scope, functions=functions))


def _failed(error: TaskError, prepared: Prepared, state: State, most: int, history: list[dict[str, Any]]) -> TaskError:
    kept = "" if state.director is None else state.director.content
    details = {
        **error.details, "failed_step": {"iteration": state.iteration}, "total_steps": most,
        "partial_results": history, "director_result": kept,
    }  # fmt: skip
    return replace(
        error, message=f"iteration {state.iteration} of {most} failed: {error.message}", details=details,
        content=error.content or kept, usage=prepared.budget.usage, notes={**prepared.notes(), **error.notes},
    )  # fmt: skip
