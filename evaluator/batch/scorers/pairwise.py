"""`pairwise`: a judge chooses the better of two candidates, and is asked in both orders.

Judges tend to prefer one position, often the first. So each pair is judged twice, and only a
candidate that is preferred in both orders wins. Anything else is a tie: value 0.5, passed None.
Source: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023, section 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.contract import NO_TARGET, ScorerInput
from evaluator.batch.scorers.model_graded import InvalidJudgement, ModelGradedScorer, judgement
from evaluator.batch.scorers.result_scorer import (
    check_expression,
    evaluate,
    names_in,
    question_of,
    text_or_json,
)
from evaluator.errors import UsageError

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
    other: str = "target"

    def check(self) -> None:
        ModelGradedScorer.check(self)
        check_expression(self.type, "other", expression=self.other)
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
