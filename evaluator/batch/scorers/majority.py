"""`majority`: several judges vote. A judge that fails has no vote, and too few votes are no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import Scored, Scorer, judge
from evaluator.batch.scorers.graders import Grader
from evaluator.batch.scorers.settings import Settings
from evaluator.errors import UsageError
from evaluator.results import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Majority(Settings):
    """What most judges say: 1 and passed, 0 and failed, or 0.5 and passed None where the votes are even.

    The judges are one `grader` (a scorer's name, table or object) asked by each of `models` (ids, or roles), or
    `repeats` times, or both; or a list of `graders`. A judge that is in error, or could not judge, has no vote; with
    fewer votes than `quorum` (default: more than half of the judges) the score is an error.

    `metadata`: `votes` by judge (true, false or null), `agreement`: the share of votes that are with the majority, None
    where they are even, `errors` by judge, `models`: who was asked, by judge, `task_ids`.
    """

    type: ClassVar[str] = "majority"
    grader: Any = "reference"
    graders: Sequence[Any] | None = None
    models: Sequence[str] | None = None
    repeats: int = 1
    quorum: int | None = None
    judges: tuple[Scorer, ...] = field(default=(), init=False, repr=False)

    def check(self) -> None:
        from evaluator.batch.scorers.making import make_scorer

        if self.repeats < 1:
            raise UsageError(f"majority: repeats is {self.repeats}, expected 1 or more")
        if self.graders is not None and (self.models is not None or self.repeats != 1 or self.grader != "reference"):
            raise UsageError("majority: graders is a list of judges; grader, models and repeats make one from one")
        if self.graders is not None:
            made = [make_scorer(spec) for spec in self.graders]
            names = [scorer.name for scorer in made]
            judges = [
                (scorer if names.count(scorer.name) == 1 else _renamed(scorer, f"{scorer.name}.{place}"))
                for place, scorer in enumerate(made, 1)
            ]
        else:
            judges = _copies(make_scorer(self.grader), self.models, self.repeats)
        if len(judges) < 2:
            raise UsageError("majority needs two judges or more: models, repeats or graders")
        if self.quorum is not None and not 1 <= self.quorum <= len(judges):
            raise UsageError(f"majority: quorum is {self.quorum}, expected 1 to {len(judges)}, the number of judges")
        object.__setattr__(self, "judges", tuple(judges))

    def describe(self) -> dict[str, Any]:
        described = [judge.describe() for judge in self.judges]
        templates = sorted({name for each in described for name in each.get("templates", ())})
        return {"type": self.type, "members": described, "quorum": self._quorum(), "templates": templates}

    def _quorum(self) -> int:
        return len(self.judges) // 2 + 1 if self.quorum is None else self.quorum

    async def score(self, scored: Scored) -> Score:
        given = await asyncio.gather(*(judge(each, scored) for each in self.judges))
        scores = dict(zip((each.name for each in self.judges), given, strict=True))
        votes = {name: score.passed for name, score in scores.items()}
        errors = {name: score.error for name, score in scores.items() if score.error is not None}
        cast_votes = [vote for vote in votes.values() if vote is not None]
        usage = sum((score.usage for score in given), Usage())
        tasks = [task for score in given for task in score.metadata.get("task_ids", ())]
        metadata: dict[str, Any] = {"votes": votes, "agreement": None, "errors": errors, "task_ids": tasks}
        models = {name: score.metadata.get("model") for name, score in scores.items()}
        if asked := {name: model for name, model in models.items() if isinstance(model, str)}:
            metadata["models"] = asked
        if len(cast_votes) < self._quorum():
            if not errors:
                return Score(None, None, explanation=given[0].explanation, metadata=metadata, usage=usage)
            first = f"{len(cast_votes)} of {len(given)} judges voted, {self._quorum()} are needed"
            name, error = next(iter(errors.items()))
            return Score(None, None, error=f"{first}; {name}: {error}", metadata=metadata, usage=usage)
        yes = sum(cast_votes)
        no = len(cast_votes) - yes
        explanation = f"{yes} for, {no} against" + (
            f", {len(votes) - yes - no} without a vote" if len(votes) > yes + no else ""
        )
        if yes == no:
            return Score(0.5, None, explanation=explanation, metadata=metadata, usage=usage)
        metadata["agreement"] = max(yes, no) / len(cast_votes)
        return Score(float(yes > no), yes > no, explanation=explanation, metadata=metadata, usage=usage)


def members(scorer: Scorer) -> Iterator[Scorer]:
    """Those that judge for `scorer`: itself, or of a majority its judges, down to those that are none."""
    if not isinstance(scorer, Majority):
        yield scorer
        return
    for each in scorer.judges:
        yield from members(each)


def _copies(grader: Scorer, models: Sequence[str] | None, repeats: int) -> list[Scorer]:
    if not isinstance(grader, Grader):
        raise UsageError(f"majority: {grader.name} asks no model, so that all its votes would be one")
    made: list[Scorer] = []
    for model in models or [grader.model]:
        for repeat in range(1, repeats + 1):
            label = "judge" if model is None else "".join(c if c.isalnum() or c in "-." else "_" for c in model)[-50:]
            name = f"{label}.{repeat}" if repeats > 1 else label
            made.append(replace(grader, name=name, model=model, repeat=repeat))
    if len({each.name for each in made}) != len(made):
        raise UsageError("majority: models names one model twice; say repeats")
    return made


def _renamed(scorer: Scorer, name: str) -> Scorer:
    if isinstance(scorer, Mapping) or not hasattr(scorer, "__dataclass_fields__"):
        raise UsageError(f"majority: two judges are named {scorer.name!r}; give one another name")
    return replace(cast("Any", scorer), name=name)
