"""cond: the first case whose test holds, else the default, else an empty COMPLETE result."""

from __future__ import annotations

from evaluator.binding.sandbox import evaluate_expression
from evaluator.interpreter.frame import Frame, Outcome, Run
from evaluator.interpreter.operators.call import functions_in_text
from evaluator.nodes import Cond
from evaluator.results import Status, TaskResult


async def run(run: Run, node: Cond, frame: Frame) -> Outcome:
    for number, case in enumerate(node.cases, 1):
        functions = functions_in_text(run, frame, f"case[{number}].test")
        if await evaluate_expression(case.test, frame.scope, functions=functions):
            return await run.services.evaluate(run, case.body, frame.at(f"case[{number}]"))
    if node.default is not None:
        return await run.services.evaluate(run, node.default, frame.at("default"))
    return TaskResult(Status.COMPLETE, "", notes={"cond": "no case held and there is no default", "warnings": []})
