"""The operator director_evaluator_loop: director, optional script, evaluator, until the condition
holds.

Reaching `max_iterations` is COMPLETE with `termination_reason`, since there is a result; the caller
sees that the evaluator was not satisfied. An evaluator's output without `success` counts as not
successful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from evaluator.errors.results import CONDITION_MET, Outcome, TaskError, TaskResult
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import ContextItem, Run, value_of
from evaluator.interpreter.notes import needs_notes, reads
from evaluator.interpreter.operators.outcomes import accumulated, completed, failed, within
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import evaluate_expression
from evaluator.language.scopes import Scope
from evaluator.lazy_dataclass import dataclass
from evaluator.nodes import DirectorEvaluatorLoop, Node

EMPTY_SCRIPT: Mapping[str, Any] = {"stdout": "", "stderr": "", "exit_code": None}
NOT_EVALUATED: Mapping[str, Any] = {"success": False, "feedback": "", "details": None}


@dataclass(slots=True)
class _LoopState:
    """State that one iteration passes to the next. `history` has the evaluation of each."""

    iteration: int = 0
    director: TaskResult | None = None
    script: Mapping[str, Any] = field(default_factory=lambda: EMPTY_SCRIPT)
    evaluation: Mapping[str, Any] = field(default_factory=lambda: NOT_EVALUATED)
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    warnings: list[str] = field(default_factory=list[str])

    def bind(self, scope: Scope) -> Scope:
        director_result = ""
        if self.director is not None:
            director_result = value_of(self.director)
        return scope.child(
            {
                "current_iteration": self.iteration,
                "director_result": director_result,
                "script_output": self.script,
                "evaluation": self.evaluation,
                "evaluation_feedback": self.evaluation["feedback"],
            }
        )


async def run_loop(run: Run, task: DirectorEvaluatorLoop, bound: BoundTask) -> Outcome:
    most: int = resolve_setting(task, "max_iterations", scope=bound.scope)
    state = _LoopState()
    bound.details.update(total_steps=most, partial_results=state.history)
    earlier: list[ContextItem] = []
    reason = "max_iterations"
    for state.iteration in range(1, most + 1):
        bound.details["failed_step"] = {"iteration": state.iteration}
        error = await _iterate(run, task, bound=bound, state=state, earlier=earlier, most=most)
        if error is not None:
            outcome = failed(error, bound, what=f"iteration {state.iteration} of {most}")
            if state.director is None:
                directed = ""
            else:
                directed = state.director.content
            return replace(outcome, content=outcome.content or directed)
        if await _is_done(run, task, bound=bound, state=state):
            reason = CONDITION_MET
            break
        if state.director is not None:
            earlier += accumulated(bound, f"iteration:{state.iteration}", result=state.director)
    evaluation = dict(state.evaluation)
    notes = bound.notes(
        termination_reason=reason,
        iterations=state.iteration,
        max_iterations=most,
        evaluation=evaluation,
        history=state.history,
    )
    notes["warnings"] += state.warnings
    if reason == "max_iterations" and not evaluation["success"]:
        notes["warnings"].append(f"the evaluator was not satisfied after {most} iterations")
    return completed(run, bound, outcome=state.director or ("", None), notes=notes)


async def _iterate(
    run: Run,
    task: DirectorEvaluatorLoop,
    bound: BoundTask,
    state: _LoopState,
    earlier: list[ContextItem],
    most: int,
) -> TaskError | None:
    """One iteration. `state` is updated part by part, so that a failure keeps the results so
    far.
    """

    # A director that reads its last result has it in full.
    reads_last = bound.carries_notes and reads(task.director, ("director_result",))

    async def outcome_of(node: Node, part: str, *, wants_notes: bool = False) -> Outcome:
        segment = f"iterations[{state.iteration}]/{part}"
        if reads_last and part == "director":
            items = earlier[:-1]
        else:
            items = earlier
        context = (*bound.context.items, *within(items, bound))
        frame = bound.inside(
            segment, state.bind(bound.scope), context=context, wants_notes=wants_notes
        )
        outcome = await run.services.evaluate(run, node, frame)
        bound.use(outcome)
        return outcome

    # A later iteration sees the notes of this one; which one is the last is known only for
    # max_iterations.
    is_carried = bound.carries_notes and not reads_last and state.iteration < most
    wants_notes = is_carried and needs_notes(task.director, run.services.library, read=())
    directed = await outcome_of(
        task.director, "director", wants_notes=wants_notes or bound.frame.wants_notes
    )
    if isinstance(directed, TaskError):
        return directed
    state.director = directed
    bound.details["director_result"] = directed.content
    if task.script_execution is not None:
        scripted = _script_output(await outcome_of(task.script_execution, "script"))
        if isinstance(scripted, TaskError):
            return scripted
        state.script = scripted
    evaluated = await outcome_of(task.evaluator, "evaluator")
    if isinstance(evaluated, TaskError) and evaluated.type != "INVALID_OUTPUT":
        return evaluated
    from evaluator.interpreter.evaluation import evaluation_of

    state.evaluation, is_judged = evaluation_of(evaluated)
    if not is_judged:
        message = (
            f"iteration {state.iteration}: the evaluator's answer has no true or false `success`"
        )
        state.warnings.append(message)
    state.history.append({"iteration": state.iteration, "evaluation": dict(state.evaluation)})
    return None


def _script_output(outcome: Outcome) -> dict[str, Any] | TaskError:
    """The script's output for the evaluator, also with a failing exit code. A script that never ran
    is an error.
    """
    if isinstance(outcome, TaskResult):
        return {
            "stdout": outcome.content,
            "stderr": outcome.notes.get("stderr", ""),
            "exit_code": 0,
        }
    if outcome.reason == "tool_failure" and "exit_code" in outcome.details:
        return {
            "stdout": outcome.content,
            "stderr": outcome.details.get("stderr", ""),
            "exit_code": outcome.details["exit_code"],
        }
    if (
        outcome.type == "RESOURCE_EXHAUSTION"
        and outcome.resource
        and outcome.resource.name == "time"
    ):
        return {"stdout": outcome.content, "stderr": outcome.message, "exit_code": None}
    return outcome


async def _is_done(
    run: Run, task: DirectorEvaluatorLoop, bound: BoundTask, state: _LoopState
) -> bool:
    if task.termination_condition is None:
        return bool(state.evaluation["success"])
    functions = functions_in_text(
        run, bound.frame, field=f"iterations[{state.iteration}]/termination_condition"
    )
    scope = state.bind(bound.scope)
    return bool(await evaluate_expression(task.termination_condition, scope, functions=functions))
