"""Scorers that ask several judges, or one judge about two candidates.

`majority`: several judges vote. A judge that fails has no vote, and too few votes are an
error.

`pairwise`: a judge chooses the better of two candidates, and is asked in both orders.
Judges tend to prefer one position, often the first. So each pair is judged twice, and only a
candidate that is preferred in both orders wins. Anything else is a tie: value 0.5, passed None.
Source: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023, section 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import (
    BuiltinScorer,
    ScoredExpression,
    evaluate,
    names_in,
    question_of,
    text_or_json,
)
from evaluator.batch.scorers.contract import NO_TARGET, Scorer, ScorerInput, run_scorer, score_names
from evaluator.batch.scorers.model_graded import (
    InvalidJudgement,
    ModelGradedScorer,
    ReferenceScorer,
    judgement,
)
from evaluator.errors import UsageError
from evaluator.errors.results import Usage
from evaluator.fields import Count
from evaluator.lazy_dataclass import dataclass

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
    repeats: Count = 1
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
        return cls.from_table(made)

    def check(self) -> None:
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


_VERDICTS = {"a": ("win", 1.0), "b": ("loss", 0.0), "tie": ("tie", 0.5)}
_SWAPPED = {"a": "b", "b": "a", "tie": "tie"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseScorer(ModelGradedScorer):
    """The text against another candidate, `other`: an expression, by default the target. A win in
    both orders is 1, a loss in both 0, anything else 0.5 and passed None. The template's answer has
    `winner`: A, B or tie; its inputs are `question`, `answer_a` and `answer_b`, and those of
    `inputs`.

    `metadata`: `verdicts` with the text first and with the text last, as win, loss or tie;
    `flipped`: they differ.
    """

    type: ClassVar[str] = "pairwise"
    template: str = "pairwise_compare"
    asks: ClassVar[int] = 2

    other: ScoredExpression = "target"

    def check(self) -> None:
        if taken := {"answer_a", "answer_b"} & set(self.inputs or ()):
            raise UsageError(
                f"pairwise: inputs names {', '.join(sorted(taken))}, which are the two candidates"
            )

    def needs_target(self) -> bool:
        return "target" in names_in(self.other) or ModelGradedScorer.needs_target(self)

    def own_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        return {"question": question_of(scored.sample.inputs)}

    async def score(self, scored: ScorerInput) -> Score:
        if scored.sample.target is None and self.needs_target():
            return NO_TARGET
        shared = {"question": question_of(scored.sample.inputs), **self.judge_inputs(scored)}
        mine = self.text(scored)
        other = text_or_json(evaluate(self.other, scored))
        first, last = await asyncio.gather(
            self.ask(scored, {**shared, "answer_a": mine, "answer_b": other}),
            self.ask(scored, {**shared, "answer_a": other, "answer_b": mine}),
        )
        about = self.about()
        scores = [
            judgement(first, _read, about=about),
            judgement(last, partial(_read, swapped=True), about=about),
        ]
        usage = scores[0].usage + scores[1].usage
        metadata = {**scores[1].metadata, **scores[0].metadata}
        metadata["task_ids"] = [task for score in scores for task in score.metadata["task_ids"]]
        if errors := [score.error for score in scores if score.error is not None]:
            return Score(None, None, error=errors[0], metadata=metadata, usage=usage)
        verdicts = [str(score.answer) for score in scores]
        metadata |= {"verdicts": verdicts, "flipped": verdicts[0] != verdicts[1]}
        if verdicts[0] == verdicts[1]:
            settled = verdicts[0]
        else:
            settled = "tie"
        value, passed = {"win": (1.0, True), "loss": (0.0, False), "tie": (0.5, None)}[settled]
        explanation = scores[0].explanation
        if metadata["flipped"]:
            explanation = (
                f"the verdict changed with the order: {verdicts[0]} when shown first, "
                f"{verdicts[1]} when last"
            )
        return Score(
            value, passed, answer=settled, explanation=explanation, metadata=metadata, usage=usage
        )


def _read(parsed: Any, swapped: bool = False) -> Score:
    if isinstance(parsed, Mapping):
        fields = cast("Mapping[str, Any]", parsed)
    else:
        fields = {}
    winner = str(fields.get("winner", "")).strip().lower()
    if winner not in _VERDICTS:
        raise InvalidJudgement(f"winner is {fields.get('winner')!r:.60}, expected A, B or tie")
    verdict, value = _VERDICTS[_SWAPPED[winner] if swapped else winner]
    return Score(value, None, answer=verdict, explanation=str(fields.get("reason", "")))
