"""Inputs of scorers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from evaluator.batch.records import Sample, Score
from evaluator.batch.scorers import ScorerInput, make_scorer, run_scorer
from evaluator.errors.results import Status, TaskResult


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
    sample = Sample("row-1", {"question": "What?"} if inputs is None else inputs, target, metadata or {})
    return ScorerInput(sample, TaskResult(Status.COMPLETE, content, parsed), lambda: None, evaluate)


def score(spec: Any, content: str = "", target: Any = None, **more: Any) -> Score:
    """The score that `run_scorer` gives."""
    return asyncio.run(run_scorer(make_scorer(spec), seen(content, target, **more)))
