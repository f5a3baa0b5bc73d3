"""Inputs of scorers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from evaluator import Status, TaskResult
from evaluator.batch import Sample, Score
from evaluator.batch.scorers import SCORERS, ScorerInput, make_scorer, run_scorer

ARGUMENTS = {
    "similarity": "model=none/none,pass_at=0.5",
    "graded": "template=mine",
    "majority": 'graders=["exact","f1"]',
}
"""Arguments for each scorer that cannot be made without any."""


def spec_of(kind: str) -> str:
    """A shortest text from which the shipped scorer `kind` can be made."""
    needed = [
        field.name
        for field in fields(SCORERS[kind])
        if field.default is field.default_factory is MISSING
    ]
    assert not needed or kind in ARGUMENTS, (
        f"add {kind} to ARGUMENTS in tests/batch/scorers/scorer_inputs.py"
    )
    return f"{kind}:{ARGUMENTS[kind]}" if kind in ARGUMENTS else kind


async def no_judge(*_: Any, **__: Any) -> Any:
    raise AssertionError("this scorer asks no model")


def seen(
    content: str = "",
    target: Any = None,
    *,
    parsed: Any = None,
    inputs: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    evaluate: Any = no_judge,
) -> ScorerInput:
    sample = Sample(
        "row-1", {"question": "What?"} if inputs is None else inputs, target, metadata or {}
    )
    return ScorerInput(sample, TaskResult(Status.COMPLETE, content, parsed), lambda: None, evaluate)


def score(spec: Any, content: str = "", target: Any = None, **more: Any) -> Score:
    """The score that `run_scorer` gives."""
    return asyncio.run(run_scorer(make_scorer(spec), seen(content, target, **more)))
