"""The operators, and the table of the functions that run them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from evaluator.errors.results import Outcome
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.frame import Run
from evaluator.interpreter.operators.atomic import run_atomic
from evaluator.interpreter.operators.iteration import run_map, run_reduce
from evaluator.interpreter.operators.loop import run_loop
from evaluator.interpreter.operators.script import run_script_task
from evaluator.interpreter.operators.sequential import run_sequential
from evaluator.nodes import Atomic, DirectorEvaluatorLoop, Map, Reduce, Script, Sequential, Task
from evaluator.nodes.declare import OPERATORS

RUNNERS: dict[type[Task], Callable[[Run, Any, BoundTask], Awaitable[Outcome]]] = {
    Atomic: run_atomic,
    Sequential: run_sequential,
    Reduce: run_reduce,
    Map: run_map,
    Script: run_script_task,
    DirectorEvaluatorLoop: run_loop,
}
"""Runs a bound task, by the class of its node."""

_missing = [name for name, cls in OPERATORS.items() if cls not in RUNNERS]
if _missing:
    raise TypeError(
        f"nothing runs tasks of type {', '.join(_missing)}; add a function to RUNNERS in {__name__}"
    )
