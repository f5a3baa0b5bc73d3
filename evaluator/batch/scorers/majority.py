"""`majority`: several judges vote. A judge that fails has no vote, and too few votes are an
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, ClassVar, Self, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import BuiltinScorer
from evaluator.batch.scorers.contract import Scorer, ScorerInput, run_scorer, score_names
from evaluator.batch.scorers.model_graded import ModelGradedScorer, ReferenceScorer
from evaluator.errors import UsageError
from evaluator.errors.results import Usage

_DEFAULT_GRADER = ReferenceScorer()


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityScorer(BuiltinScorer):
    """The vote of most judges: 1 and passed, 0 and failed, or 0.5 and passed None for a tie.

    The judges are one `grader` (a scorer's name, table or object) asked by each of `models` (ids,
    or roles), or `repeats` times, or both; or a list of `graders`. A judge with an error, or one
    that cannot judge, has no vote; with fewer votes than `quorum` (default: more than half of the
    judges) the score is an error.

    `metadata`: `votes` by judge (true, false or null), `agreement` (the share of votes with the
    majority, None for a tie), `errors` by judge, `models` (the model asked, by judge), `task_ids`.
    """

    type: ClassVar[str] = "majority"
    grader: Scorer = _DEFAULT_GRADER
    graders: Sequence[Scorer] | None = None
    models: Sequence[str] | None = None
    repeats: int = 1
    quorum: int | None = None
    judges: tuple[Scorer, ...] = field(default=(), init=False, repr=False)

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], make_scorer: Callable[[Any], Scorer]
    ) -> Self:
        made = dict(arguments)
        if "grader" in made:
            made["grader"] = make_scorer(made["grader"])
        if isinstance(graders := made.get("graders"), list | tuple):
            made["graders"] = [make_scorer(spec) for spec in cast("Sequence[Any]", graders)]
        return cls.of_arguments(made)

    def check(self) -> None:
        if self.repeats < 1:
            raise UsageError(f"majority: repeats is {self.repeats}, expected 1 or more")
        is_alone = self.models is None and self.repeats == 1 and self.grader == _DEFAULT_GRADER
        if self.graders is not None and not is_alone:
            raise UsageError("majority: give either graders, or grader with models and repeats")
        if self.graders is not None:
            names = [scorer.name for scorer in self.graders]
            judges = [
                scorer
                if names.count(scorer.name) == 1
                else _renamed(scorer, f"{scorer.name}.{place}")
                for place, scorer in enumerate(self.graders, 1)
            ]
        else:
            judges = _copies(self.grader, self.models, repeats=self.repeats)
        if len(judges) < 2:
            raise UsageError("majority needs two judges or more: models, repeats or graders")
        if several := next((judge for judge in judges if len(score_names(judge)) > 1), None):
            raise UsageError(
                f"majority: {several.name} has several values, and a judge has one vote"
            )
        if self.quorum is not None and not 1 <= self.quorum <= len(judges):
            raise UsageError(
                f"majority: quorum is {self.quorum}, expected 1 to {len(judges)}, the number of "
                "judges"
            )
        object.__setattr__(self, "judges", tuple(judges))

    def describe(self) -> dict[str, Any]:
        described = [judge.describe() for judge in self.judges]
        templates = sorted({name for each in described for name in each.get("templates", ())})
        return {
            "type": self.type,
            "members": described,
            "quorum": self._quorum(),
            "templates": templates,
        }

    def _quorum(self) -> int:
        if self.quorum is None:
            return len(self.judges) // 2 + 1
        return self.quorum

    async def score(self, scored: ScorerInput) -> Score:
        given = await asyncio.gather(*(run_scorer(judge, scored) for judge in self.judges))
        scores = {judge.name: score for judge, score in zip(self.judges, given, strict=True)}
        votes = {name: score.passed for name, score in scores.items()}
        errors = {name: score.error for name, score in scores.items() if score.error is not None}
        models = {name: score.metadata.get("model") for name, score in scores.items()}
        metadata: dict[str, Any] = {
            "votes": votes,
            "agreement": None,
            "errors": errors,
            "task_ids": [task for score in given for task in score.metadata.get("task_ids", ())],
        }
        if asked := {name: model for name, model in models.items() if isinstance(model, str)}:
            metadata["models"] = asked
        shared: dict[str, Any] = {
            "metadata": metadata,
            "usage": sum((score.usage for score in given), Usage()),
        }
        voted = [vote for vote in votes.values() if vote is not None]
        if len(voted) < self._quorum():
            if not errors:
                return Score(None, None, explanation=given[0].explanation, **shared)
            name, error = next(iter(errors.items()))
            count = f"{len(voted)} of {len(given)} judges voted, {self._quorum()} are needed"
            return Score(None, None, error=f"{count}; {name}: {error}", **shared)
        yes = sum(voted)
        no = len(voted) - sum(voted)
        if len(votes) > len(voted):
            without = f", {len(votes) - len(voted)} without a vote"
        else:
            without = ""
        explanation = f"{yes} for, {no} against{without}"
        if yes == no:
            return Score(0.5, None, explanation=explanation, **shared)
        metadata["agreement"] = max(yes, no) / len(voted)
        return Score(float(yes > no), yes > no, explanation=explanation, **shared)


def member_scorers(scorer: Scorer) -> Iterator[Scorer]:
    """The scorers that judge for `scorer`: the judges of a majority, at any depth, else itself."""
    if not isinstance(scorer, MajorityScorer):
        yield scorer
        return
    for judge in scorer.judges:
        yield from member_scorers(judge)


def _copies(grader: Scorer, models: Sequence[str] | None, repeats: int) -> list[Scorer]:
    if not isinstance(grader, ModelGradedScorer):
        raise UsageError(f"majority: {grader.name} asks no model, so all its votes would be equal")
    made: list[Scorer] = []
    for model in models or [grader.model]:
        for repeat in range(1, repeats + 1):
            if model is None:
                label = "judge"
            else:
                label = "".join(c if c.isalnum() or c in "-." else "_" for c in model)[-50:]
            name = f"{label}.{repeat}" if repeats > 1 else label
            made.append(replace(grader, name=name, model=model, repeat=repeat))
    if len({each.name for each in made}) != len(made):
        raise UsageError("majority: models has a model twice; use repeats")
    return made


def _renamed(scorer: Scorer, name: str) -> Scorer:
    if not is_dataclass(scorer):
        raise UsageError(f"majority: two judges are named {scorer.name!r}; give one another name")
    return cast("Scorer", replace(cast("Any", scorer), name=name))
