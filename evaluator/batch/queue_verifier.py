"""Scorers as checks of the queue: a result passes if every scorer passes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.batch.records import Sample
from evaluator.batch.scorers import Scorer, ScorerInput, ScorerSpec, make_scorers, run_scores
from evaluator.errors.results import Outcome
from evaluator.queue import ResultToVerify
from evaluator.record.steps import Recording


class ScorerVerifier:
    """A `Verifier` of the queue that asks scorers, shipped ones or functions, as `run_batch` takes
    them.

    A sample is the entry: its id, the inputs that it names, and its `description`, `goal`, `type`
    and the path of the delivered `file` as metadata. It has no target. A scorer without a verdict
    refuses the result.

    Raises: UsageError, as `make_scorers`.
    """

    def __init__(self, scorers: Iterable[ScorerSpec]) -> None:
        self._scorers: tuple[Scorer, ...] = make_scorers(scorers)

    async def __call__(self, result: ResultToVerify) -> str | None:
        entry = result.entry
        evaluator = result.evaluator
        metadata = {
            "description": entry.description,
            "goal": entry.goal,
            "type": entry.type,
            "file": result.file and str(result.file),
        }

        async def evaluate(template: str, inputs: Mapping[str, Any], **options: Any) -> Outcome:
            model = options.get("model")
            if model is None:
                roles = None
            else:
                roles = {"grader": evaluator.model_roles.get(model, model)}
            return await result.evaluate(
                template, inputs, model_roles=roles, epoch=options.get("repeat", 1)
            )

        def recording() -> Recording | None:
            store = evaluator.services.store
            number = result.outcome.task_id
            if store is None or number is None:
                return None
            return store.read(number)

        scored = ScorerInput(
            Sample(entry.id, result.inputs, metadata=metadata),
            result.outcome,
            recording=recording,
            evaluate=evaluate,
        )
        for scorer in self._scorers:
            for name, score in (await run_scores(scorer, scored)).items():
                if not score.decides:
                    continue
                if score.error is not None:
                    return f"the scorer {name!r} failed: {score.error}"
                if score.passed is not True:
                    return score.explanation or f"the scorer {name!r} gives {score.value}"
        return None
